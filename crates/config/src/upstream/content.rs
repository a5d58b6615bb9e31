//! Values that have no version but their content.

use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome};

use crate::value::{Secret, Value};

/// No object may be larger, whatever its bindings say: 16 MiB, as their own largest bound.
pub const MAX_OBJECT: usize = 16 << 20;

/// The version of something that has none: 16 hexadecimal digits of the hash of its bytes.
///
/// A hash of a short secret could be guessed back from its version by whoever may read the version but not the value;
/// nobody can, since the two travel together only.
pub fn version(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    hex::encode(digest.as_ref().get(..8).unwrap_or_default())
}

/// A value whose version is its hash; too much is invalid.
pub fn hashed(bytes: Vec<u8>, sensitive: bool) -> Outcome<Value> {
    let version = Some(version(&bytes));
    let bytes = Secret::new(bytes);
    if bytes.len() > MAX_OBJECT {
        return Outcome::Error(Failure::of(AnswerKind::Invalid));
    }
    Outcome::Value { value: Value { bytes, version, sensitive, ..Value::default() }, passed: None }
}

/// A failure of a kind, as an outcome.
pub const fn failed(kind: AnswerKind) -> Outcome<Value> {
    Outcome::Error(Failure::of(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_first_half_of_the_first_half_of_sha_256() {
        assert_eq!(version(b"abc"), "ba7816bf8f01cfea");
        assert_eq!(version(b""), "e3b0c44298fc1c14");
    }

    #[test]
    fn what_is_too_large_is_invalid() {
        assert_eq!(hashed(vec![0; MAX_OBJECT + 1], false), failed(AnswerKind::Invalid));
        assert!(matches!(hashed(vec![0; MAX_OBJECT], false), Outcome::Value { .. }));
    }
}
