//! Quotas: how many requests and leases a path may have.

use crate::storage::Storage;

/// The quotas of the cluster.
pub struct Quotas {
    storage: Storage,
}

impl Quotas {
    /// Over the whole store.
    pub fn new(storage: Storage) -> Self {
        Self { storage }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }
}
