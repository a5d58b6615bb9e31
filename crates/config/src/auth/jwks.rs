//! The keys that JSON web tokens are verified with, from a JWKS file.
//!
//! What must hold: a key is used only with algorithms of its type that are configured, and, where the file says which
//! one it is for, only with that one. A shared secret and a public key never stand side by side.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, KeyOperations, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};

/// The smallest RSA key, in bits.
const MIN_RSA_BITS: usize = 2048;
/// The smallest shared secret, in bytes.
const MIN_SECRET: usize = 32;

/// The usable keys of a file.
#[derive(Debug, Default)]
pub(super) struct Keys {
    list: Vec<Key>,
}

/// One key.
pub(super) struct Key {
    /// Its name in the file.
    kid: Option<String>,
    /// The hash of the key itself.
    pub(super) id: [u8; 32],
    /// What it verifies.
    algorithms: Vec<Algorithm>,
    pub(super) decoding: DecodingKey,
}

impl Keys {
    /// Reads a JWKS. Keys of a type or for a use that is not configured are left out.
    ///
    /// # Errors
    /// All that is wrong.
    pub(super) fn parse(text: &[u8], algorithms: &[Algorithm]) -> Result<Self, Vec<String>> {
        // The error of the parser could quote a key.
        let set: JwkSet = serde_json::from_slice(text).map_err(|error| {
            vec![format!("is not a JWKS (line {}, column {})", error.line(), error.column())]
        })?;
        let shared = algorithms.iter().any(|algorithm| algorithm.family() == AlgorithmFamily::Hmac);
        let (mut list, mut faults) = (Vec::new(), Vec::new());
        for (number, jwk) in set.keys.iter().enumerate() {
            let named = jwk
                .common
                .key_id
                .as_deref()
                .map_or_else(|| format!("{}", number + 1), |kid| format!("{kid:?}"));
            let is_public = !matches!(jwk.algorithm, AlgorithmParameters::OctetKey(_));
            if shared && is_public {
                faults.push(format!("holds the public key {named} while algorithms lists HS*"));
                continue;
            }
            match Key::new(jwk, algorithms) {
                Ok(key) => list.extend(key),
                Err(why) => faults.push(format!("holds the key {named}, which {why}")),
            }
        }
        if faults.is_empty() { Ok(Self { list }) } else { Err(faults) }
    }

    /// Whether none can be used.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The keys that may have signed a token: those of its key id if it names one, that fit its algorithm.
    pub(super) fn for_token<'a>(
        &'a self,
        kid: Option<&'a str>,
        algorithm: Algorithm,
    ) -> impl Iterator<Item = &'a Key> {
        let named = move |key: &&Key| kid.is_none() || key.kid.as_deref() == kid;
        self.list.iter().filter(named).filter(move |key| key.algorithms.contains(&algorithm))
    }

    /// Whether a key is still there for an algorithm.
    pub(super) fn holds(&self, id: &[u8; 32], algorithm: Algorithm) -> bool {
        self.for_token(None, algorithm).any(|key| key.id == *id)
    }
}

impl Key {
    /// The key, unless it is of no use here.
    fn new(jwk: &Jwk, allowed: &[Algorithm]) -> Result<Option<Self>, String> {
        check_shape(jwk)?;
        let own = jwk.common.key_algorithm;
        let usable = |algorithm: &&Algorithm| {
            fits(&jwk.algorithm, **algorithm) && own.is_none_or(|own| own == KeyAlgorithm::from(**algorithm))
        };
        let algorithms: Vec<Algorithm> = allowed.iter().filter(usable).copied().collect();
        if algorithms.is_empty() || !verifies(jwk) {
            return Ok(None);
        }
        let decoding = DecodingKey::from_jwk(jwk).map_err(|_| "cannot be read".to_owned())?;
        check_strength(&decoding)?;
        let material = serde_json::to_vec(&jwk.algorithm).map_err(|_| "cannot be read".to_owned())?;
        let id = digest(&SHA256, &material);
        let id = id.as_ref().try_into().map_err(|_| "cannot be read".to_owned())?;
        Ok(Some(Self { kid: jwk.common.key_id.clone(), id, algorithms, decoding }))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} for {:?}", self.kid, self.algorithms)
    }
}

/// Whether the key's type is the algorithm's.
fn fits(parameters: &AlgorithmParameters, algorithm: Algorithm) -> bool {
    match parameters {
        AlgorithmParameters::RSA(_) => algorithm.family() == AlgorithmFamily::Rsa,
        AlgorithmParameters::EllipticCurve(key) => match algorithm {
            Algorithm::ES256 => key.curve == EllipticCurve::P256,
            Algorithm::ES384 => key.curve == EllipticCurve::P384,
            _ => false,
        },
        AlgorithmParameters::OctetKeyPair(key) => {
            algorithm == Algorithm::EdDSA && key.curve == EllipticCurve::Ed25519
        }
        AlgorithmParameters::OctetKey(_) => algorithm.family() == AlgorithmFamily::Hmac,
        _ => false,
    }
}

/// Whether the file allows the key to verify signatures.
fn verifies(jwk: &Jwk) -> bool {
    let for_signatures = matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature));
    let operations = jwk.common.key_operations.as_ref();
    for_signatures && operations.is_none_or(|list| list.contains(&KeyOperations::Verify))
}

/// A key of a type that we know, of which a part is missing, is a fault; one of another type is none of our business.
fn check_shape(jwk: &Jwk) -> Result<(), String> {
    let AlgorithmParameters::Other(other) = &jwk.algorithm else { return Ok(()) };
    let field = |name: &str| other.fields.get(name).and_then(serde_json::Value::as_str);
    let known = match field("kty") {
        Some("RSA" | "oct") => true,
        Some("EC") => matches!(field("crv"), Some("P-256" | "P-384") | None),
        Some("OKP") => matches!(field("crv"), Some("Ed25519") | None),
        Some(_) => false,
        None => true,
    };
    if known { Err("is not complete".to_owned()) } else { Ok(()) }
}

fn check_strength(key: &DecodingKey) -> Result<(), String> {
    match key.kind() {
        DecodingKeyKind::RsaModulusExponent { n, .. } => {
            let bytes = n.iter().skip_while(|byte| **byte == 0).count();
            if bytes * 8 < MIN_RSA_BITS { Err(format!("has fewer than {MIN_RSA_BITS} bits")) } else { Ok(()) }
        }
        DecodingKeyKind::SecretOrDer(secret)
            if key.family() == AlgorithmFamily::Hmac && secret.len() < MIN_SECRET =>
        {
            Err(format!("has fewer than {MIN_SECRET} bytes"))
        }
        DecodingKeyKind::SecretOrDer(_) => Ok(()),
    }
}
