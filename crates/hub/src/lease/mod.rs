//! Leases: promises to revoke.
//!
//! What must hold: a lease is in the log before its answer leaves; whatever a live lease needs to be revoked
//! outlives it; at most one revocation of a lease runs at a time; what is due comes from a time-ordered index in
//! the store, so taking over reads nothing in bulk.

pub mod clock;
mod id;
pub mod index;
pub mod record;
mod revoke;
mod running;

use std::time::Duration;

use tokio::sync::Notify;

pub use clock::Wall;
pub use id::LeaseId;
pub use record::{Lease, Login, Revocation};
pub use revoke::Outcome;

use crate::storage::{Storage, StorageError, Stored};
use running::Running;

/// What the configuration says of leases.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSettings {
    /// How long a lease lasts when nothing else is said. Default 768 h.
    pub default_ttl: Duration,
    /// How long a lease lasts at most when its mount says nothing. Default 768 h.
    pub max_ttl: Duration,
    /// Revocations at once. Default 200, 1 to 10000.
    pub revoke_workers: usize,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        let month = Duration::from_secs(768 * 3600);
        Self { default_ttl: month, max_ttl: month, revoke_workers: 200 }
    }
}

/// The leases of the cluster.
pub struct Leases {
    storage: Storage,
    settings: LeaseSettings,
    running: Running,
    /// Something was marked as due.
    due: Notify,
}

impl Leases {
    /// Over the whole store.
    pub fn new(storage: Storage) -> Self {
        Self::with_settings(storage, LeaseSettings::default())
    }

    /// Over the whole store, with the node's settings.
    pub fn with_settings(storage: Storage, settings: LeaseSettings) -> Self {
        Self { storage, settings, running: Running::default(), due: Notify::new() }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The node's settings.
    pub fn settings(&self) -> &LeaseSettings {
        &self.settings
    }

    /// Reads a lease.
    pub fn lookup(&self, id: &LeaseId) -> Result<Option<Stored<Lease>>, StorageError> {
        index::read(&self.storage, id)
    }
}
