//! A value as an application gets it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use holdfast_core::{AnswerKind, Wall};
use zeroize::Zeroizing;

/// Bytes that are never shown and are wiped when the last holder drops them. Clones share them.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

impl Secret {
    /// Takes bytes into custody.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    /// Shows the bytes, to whoever uses them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none; an empty value is a value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes]", self.len())
    }
}

/// A value with everything that the replica says of it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Value {
    /// The name of the binding.
    pub name: Arc<str>,
    /// The bytes.
    pub bytes: Secret,
    /// The upstream's version of it.
    pub version: Option<String>,
    /// Whether it is a secret that no terminal should show.
    pub sensitive: bool,
    /// When it ends to be usable, of leased values.
    pub not_after: Option<Wall>,
    /// What else the upstream says of it.
    pub metadata: BTreeMap<String, String>,
    /// How the upstream currently fails; none while it answers.
    pub kind: Option<AnswerKind>,
    /// Whether it is last-known-good, served while the upstream fails.
    pub stale: bool,
    /// When the replica last fetched or confirmed the bytes; none of a replica that does not date.
    pub resolved_at: Option<Wall>,
    /// The upstream's revision, where revisions are ordered.
    pub order: Option<u64>,
    /// The domain within which `order` compares.
    pub epoch: Option<Arc<str>>,
    /// The endpoint that gave it.
    pub endpoint: Arc<str>,
    /// Whether every replica that answered was older than this, which the client had delivered before.
    pub behind: bool,
}
