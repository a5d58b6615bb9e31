//! A value with everything that a reader may see of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use holdfast_core::Wall;
use holdfast_core::freshness::Record;
use zeroize::Zeroizing;

/// Bytes that are never shown and are wiped when the last holder drops them.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

impl Secret {
    /// Takes bytes into custody.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    /// Shows the bytes, to whoever sends or hashes them.
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

/// What a provider fetched, or what a binding's fragment cut out of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Value {
    /// The bytes.
    pub bytes: Secret,
    /// The upstream's version of it; none when it has no such thing.
    pub version: Option<String>,
    /// The upstream's revision, where revisions are ordered.
    pub order: Option<u64>,
    /// The domain within which `order` compares, such as the id of a cluster.
    pub epoch: Option<Arc<str>>,
    /// Whether it is a secret.
    pub sensitive: bool,
    /// When it ends to be usable, of leased values.
    pub not_after: Option<Wall>,
    /// What else the upstream says of it.
    pub metadata: BTreeMap<String, String>,
}

impl Record for Value {
    fn not_after(&self) -> Option<Wall> {
        self.not_after
    }
}
