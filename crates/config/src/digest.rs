//! Digests of what replicas must have in common: two replicas are alike if and only if their digests are equal.

use std::fmt;

/// A SHA-256.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
        let mut whole = [0; 32];
        whole.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
        Self(whole)
    }

    /// Its bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Its first 8 hexadecimal characters, as in `Holdfast-Config`.
    pub fn short(&self) -> String {
        hex::encode(self.0).chars().take(8).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The digests of one configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Digests {
    /// Of everything that replicas must have in common.
    pub whole: Digest,
    /// Of the bindings alone.
    pub bindings: Digest,
    /// Of the policy alone.
    pub policy: Digest,
}
