//! Leases: promises to revoke.

use crate::storage::Storage;

/// The leases of the cluster.
pub struct Leases {
    storage: Storage,
}

impl Leases {
    /// Over the whole store.
    pub fn new(storage: Storage) -> Self {
        Self { storage }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }
}
