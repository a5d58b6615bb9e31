//! The bytes of the file: magic (8), format (2, big-endian), salt (32), nonce (12), then all records under one seal.
//!
//! What must hold: no two files share a key, since each draws a salt from which its key is derived; the seal covers magic,
//! format and the fleet's id too, so that no file of another fleet or format is taken for this one's.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use holdfast_core::Wall;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{Kept, Records};
use crate::load::key_file::Key;
use crate::value::{Secret, Value};

/// The largest file that is read: 1 GiB.
pub const MAX_FILE: usize = 1 << 30;
const MAGIC: &[u8; 8] = b"HFASTLKG";
const FORMAT: u16 = 1;
const SALT: usize = 32;
const PURPOSE: &[u8] = b"holdfast config last-known-good";

/// Why a file cannot be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Corrupt {
    /// It is something else.
    #[error("it is no last-known-good file")]
    Magic,
    /// A newer version wrote it.
    #[error("it has format {0}, which is newer than this version knows")]
    Newer(u16),
    /// It ends too early, or is too long.
    #[error("it has an impossible length")]
    Length,
    /// The key or the fleet is another one, or the content was changed.
    #[error("its key or fleet.id is another one, or it is damaged")]
    Seal,
    /// The seal is whole, and the content is not what it should be.
    #[error("its content cannot be read")]
    Content,
}

/// One record as it is written. `bytes` is the value; dates are microseconds since the epoch.
#[derive(Deserialize, Serialize)]
struct Stored<'a> {
    name: &'a str,
    ref_digest: [u8; 32],
    resolved_at: i64,
    bytes: &'a [u8],
    version: Option<&'a str>,
    order: Option<u64>,
    epoch: Option<&'a str>,
    sensitive: bool,
    metadata: BTreeMap<&'a str, &'a str>,
}

/// Seals records; each call gives other bytes.
pub(super) fn seal(key: &Key, fleet: &str, records: &Records) -> Result<Vec<u8>, Corrupt> {
    let (salt, nonce) = (holdfast_ops::rand::bytes::<SALT>(), holdfast_ops::rand::bytes::<NONCE_LEN>());
    let mut text = encode(records)?;
    let cipher = cipher(key, fleet, &salt)?;
    let nonce_of = Nonce::assume_unique_for_key(nonce);
    let tag = cipher.seal_in_place_separate_tag(nonce_of, Aad::from(bound(fleet)), &mut text);
    let tag = tag.map_err(|_| Corrupt::Seal)?;
    Ok([MAGIC, &FORMAT.to_be_bytes()[..], &salt, &nonce, &text, tag.as_ref()].concat())
}

/// Opens what [`seal`] made.
pub(super) fn open(key: &Key, fleet: &str, sealed: &[u8]) -> Result<Records, Corrupt> {
    if sealed.len() > MAX_FILE {
        return Err(Corrupt::Length);
    }
    let rest = sealed.strip_prefix(MAGIC).ok_or(Corrupt::Magic)?;
    let (format, rest) = rest.split_first_chunk().ok_or(Corrupt::Length)?;
    match u16::from_be_bytes(*format) {
        FORMAT => {}
        0 => return Err(Corrupt::Magic),
        newer => return Err(Corrupt::Newer(newer)),
    }
    let (salt, rest) = rest.split_first_chunk::<SALT>().ok_or(Corrupt::Length)?;
    let (nonce, rest) = rest.split_first_chunk::<NONCE_LEN>().ok_or(Corrupt::Length)?;
    let mut text = Zeroizing::new(rest.to_vec());
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let plain = cipher(key, fleet, salt)?.open_in_place(nonce, Aad::from(bound(fleet)), &mut text);
    decode(plain.map_err(|_| Corrupt::Seal)?)
}

fn encode(records: &Records) -> Result<Zeroizing<Vec<u8>>, Corrupt> {
    let stored: Vec<_> = records.iter().map(|(name, kept)| stored(name, kept)).collect();
    // Measured first, so that the buffer leaves no copies of secrets behind as it grows.
    let size = postcard::experimental::serialized_size(&stored).map_err(|_| Corrupt::Content)?;
    let mut text = Zeroizing::new(vec![0; size]);
    let used = postcard::to_slice(&stored, &mut text).map_err(|_| Corrupt::Content)?.len();
    text.truncate(used);
    Ok(text)
}

pub(super) fn decode(text: &[u8]) -> Result<Records, Corrupt> {
    let (stored, rest) = postcard::take_from_bytes::<Vec<Stored<'_>>>(text).map_err(|_| Corrupt::Content)?;
    if !rest.is_empty() {
        return Err(Corrupt::Content);
    }
    Ok(stored.into_iter().map(|stored| (Arc::from(stored.name), kept(&stored))).collect())
}

fn stored<'a>(name: &'a str, kept: &'a Kept) -> Stored<'a> {
    let value = &kept.value;
    Stored {
        name,
        ref_digest: kept.ref_digest,
        resolved_at: kept.resolved_at.as_micros(),
        bytes: value.bytes.expose(),
        version: value.version.as_deref(),
        order: value.order,
        epoch: value.epoch.as_deref(),
        sensitive: value.sensitive,
        metadata: value.metadata.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect(),
    }
}

fn kept(stored: &Stored<'_>) -> Kept {
    let own = |(key, text): (&&str, &&str)| ((*key).to_owned(), (*text).to_owned());
    Kept {
        value: Value {
            bytes: Secret::new(stored.bytes.to_vec()),
            version: stored.version.map(str::to_owned),
            order: stored.order,
            epoch: stored.epoch.map(Arc::from),
            sensitive: stored.sensitive,
            not_after: None,
            metadata: stored.metadata.iter().map(own).collect(),
        },
        resolved_at: Wall::from_micros(stored.resolved_at),
        ref_digest: stored.ref_digest,
    }
}

/// What the seal covers besides the records.
fn bound(fleet: &str) -> Vec<u8> {
    [MAGIC, &FORMAT.to_be_bytes()[..], fleet.as_bytes()].concat()
}

fn cipher(key: &Key, fleet: &str, salt: &[u8; SALT]) -> Result<LessSafeKey, Corrupt> {
    let secret = Salt::new(HKDF_SHA256, salt).extract(key.as_slice());
    let info = [PURPOSE, fleet.as_bytes()];
    let own = secret.expand(&info, &CHACHA20_POLY1305).map_err(|_| Corrupt::Seal)?;
    Ok(LessSafeKey::new(UnboundKey::from(own)))
}
