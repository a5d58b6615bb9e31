//! Audit: one line for each request and each response, or nothing happens.

use crate::storage::Storage;

/// The audit devices of this node.
pub struct Audit {
    storage: Storage,
}

impl Audit {
    /// Over the whole store.
    pub fn new(storage: Storage) -> Self {
        Self { storage }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }
}
