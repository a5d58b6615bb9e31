//! The data keys of the barrier, by key term, and the key from which message authentication keys are derived.

use std::collections::BTreeMap;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, hmac, rand};
use holdfast_core::Kind;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

const NONCE: usize = 12;
/// Version byte, key term, nonce.
const HEADER: usize = 1 + 4 + NONCE;
const FORMAT: u8 = 1;

/// Why the barrier could not do its work.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BarrierError {
    /// There is no key: the node is sealed.
    #[error("the barrier is sealed")]
    Sealed,
    /// The bytes are not of this format.
    #[error("the ciphertext has an unknown format")]
    Format,
    /// The key term is not in the keyring.
    #[error("the ciphertext was made under an unknown key term {0}")]
    UnknownTerm(u32),
    /// The bytes were changed, or belong to another storage key.
    #[error("the ciphertext is not authentic")]
    NotAuthentic,
    /// The library refused.
    #[error("the cryptographic library failed")]
    Library,
}

impl BarrierError {
    /// The class of the failure.
    pub fn kind(self) -> Kind {
        match self {
            Self::Sealed => Kind::Unavailable,
            Self::Format | Self::UnknownTerm(_) | Self::NotAuthentic => Kind::Corrupt,
            Self::Library => Kind::Internal,
        }
    }
}

/// A 256-bit key that is wiped when dropped and never printed.
#[derive(Clone, Deserialize, Serialize, Zeroize, ZeroizeOnDrop)]
pub struct SecretKey([u8; 32]);

impl SecretKey {
    /// A fresh random key.
    pub fn random() -> Result<Self, BarrierError> {
        let mut bytes = [0u8; 32];
        rand::fill(&mut bytes).map_err(|_| BarrierError::Library)?;
        Ok(Self(bytes))
    }

    /// A key from its bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Encrypts under this key alone, with `aad` bound to the result.
    pub fn seal(&self, aad: &[u8], plaintext: &[u8]) -> Result<Vec<u8>, BarrierError> {
        let mut nonce = [0u8; NONCE];
        rand::fill(&mut nonce).map_err(|_| BarrierError::Library)?;
        let mut out = Vec::with_capacity(NONCE + plaintext.len() + AES_256_GCM.tag_len());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(plaintext);
        let (_, body) = out.split_at_mut(NONCE);
        let tag = self
            .aead()?
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(aad), body)
            .map_err(|_| BarrierError::Library)?;
        out.extend_from_slice(tag.as_ref());
        Ok(out)
    }

    /// Undoes [`SecretKey::seal`].
    pub fn open(&self, aad: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, BarrierError> {
        let (nonce, body) = sealed.split_at_checked(NONCE).ok_or(BarrierError::Format)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| BarrierError::Format)?;
        let mut body = Zeroizing::new(body.to_vec());
        let len = self
            .aead()?
            .open_in_place(nonce, Aad::from(aad), &mut body)
            .map_err(|_| BarrierError::NotAuthentic)?
            .len();
        body.truncate(len);
        Ok(body)
    }

    fn aead(&self) -> Result<LessSafeKey, BarrierError> {
        UnboundKey::new(&AES_256_GCM, &self.0).map(LessSafeKey::new).map_err(|_| BarrierError::Library)
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKey(redacted)")
    }
}

/// Data keys by term; the newest encrypts, all decrypt.
///
/// It is stored as one record, encrypted under the root key; so rotating the data keys needs no new shares.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Keyring {
    keys: BTreeMap<u32, SecretKey>,
    mac_root: SecretKey,
}

impl Keyring {
    /// A keyring with one fresh data key.
    pub fn generate() -> Result<Self, BarrierError> {
        Ok(Self { keys: BTreeMap::from([(1, SecretKey::random()?)]), mac_root: SecretKey::random()? })
    }

    /// Adds a fresh data key; what is written from now on uses it.
    pub fn rotate(&mut self) -> Result<u32, BarrierError> {
        let term = self.active_term().saturating_add(1);
        self.keys.insert(term, SecretKey::random()?);
        Ok(term)
    }

    /// The term of the key that encrypts.
    pub fn active_term(&self) -> u32 {
        self.keys.last_key_value().map_or(0, |(term, _)| *term)
    }

    pub(super) fn encrypt(&self, aad: &[u8], plaintext: &[u8]) -> Result<Vec<u8>, BarrierError> {
        let (term, key) = self.keys.last_key_value().ok_or(BarrierError::Sealed)?;
        let sealed = key.seal(aad, plaintext)?;
        let mut out = Vec::with_capacity(HEADER + sealed.len());
        out.push(FORMAT);
        out.extend_from_slice(&term.to_be_bytes());
        out.extend_from_slice(&sealed);
        Ok(out)
    }

    pub(super) fn decrypt(&self, aad: &[u8], ciphertext: &[u8]) -> Result<Zeroizing<Vec<u8>>, BarrierError> {
        let (&format, rest) = ciphertext.split_first().ok_or(BarrierError::Format)?;
        let (term, sealed) = rest.split_first_chunk::<4>().ok_or(BarrierError::Format)?;
        if format != FORMAT {
            return Err(BarrierError::Format);
        }
        let term = u32::from_be_bytes(*term);
        self.keys.get(&term).ok_or(BarrierError::UnknownTerm(term))?.open(aad, sealed)
    }

    pub(super) fn mac(&self, label: &[u8], data: &[u8]) -> Result<[u8; 32], BarrierError> {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"holdfast");
        let mut key = Zeroizing::new([0u8; 32]);
        salt.extract(self.mac_root.as_bytes())
            .expand(&[label], hkdf::HKDF_SHA256)
            .and_then(|okm| okm.fill(key.as_mut()))
            .map_err(|_| BarrierError::Library)?;
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()), data);
        tag.as_ref().try_into().map_err(|_| BarrierError::Library)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_opens_only_under_its_own_storage_key() {
        let ring = Keyring::generate().unwrap();
        let sealed = ring.encrypt(b"a", b"secret").unwrap();
        assert_eq!(ring.decrypt(b"a", &sealed).unwrap().as_slice(), b"secret");
        assert_eq!(ring.decrypt(b"b", &sealed), Err(BarrierError::NotAuthentic));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let ring = Keyring::generate().unwrap();
        let sealed = ring.encrypt(b"a", b"secret").unwrap();
        for i in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[i] ^= 1;
            assert!(ring.decrypt(b"a", &bad).is_err(), "byte {i}");
            assert!(ring.decrypt(b"a", &sealed[..i]).is_err(), "cut {i}");
        }
    }

    #[test]
    fn a_rotation_keeps_old_values_and_macs() {
        let mut ring = Keyring::generate().unwrap();
        let (old, mac) = (ring.encrypt(b"a", b"1").unwrap(), ring.mac(b"p", b"x").unwrap());
        assert_eq!(ring.rotate().unwrap(), 2);
        assert_eq!(ring.decrypt(b"a", &old).unwrap().as_slice(), b"1");
        assert_eq!(ring.mac(b"p", b"x").unwrap(), mac);
        assert_ne!(ring.mac(b"q", b"x").unwrap(), mac);
        let new = ring.encrypt(b"a", b"1").unwrap();
        assert_eq!(new[1..5], 2u32.to_be_bytes());
    }
}
