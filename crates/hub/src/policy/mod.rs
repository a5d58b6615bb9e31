//! Policies: which paths a token may touch, and how.

use crate::storage::Storage;

/// The policies of the cluster, cached until an applied entry changes them.
pub struct Policies {
    storage: Storage,
}

impl Policies {
    /// Over the whole store.
    pub fn new(storage: Storage) -> Self {
        Self { storage }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }
}
