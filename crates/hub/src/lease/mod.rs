//! Leases: promises to revoke.
//!
//! What must hold: a lease is in the log before its answer leaves; whatever a live lease needs to be revoked
//! outlives it; at most one revocation of a lease runs at a time; what is due comes from a time-ordered index in
//! the store, so taking over reads nothing in bulk.

pub mod clock;
mod id;
pub mod index;
mod mailbox;
mod queue;
mod reach;
pub mod record;
mod renew;
mod revoke;
mod run;
mod running;

use std::collections::HashMap;

use parking_lot::Mutex;

pub use clock::Wall;
pub use id::LeaseId;
pub use mailbox::{Mail, Mailbox, Outcome};
pub use record::{Lease, Login, Revocation};
pub use renew::Renewed;
pub use running::{Guard, Running};

use crate::database::Databases;
use crate::storage::{Storage, StorageError, Stored};

/// What the configuration says of revocations.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSettings {
    /// Revocations at once. Default 200, 1 to 10000.
    pub revoke_workers: usize,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self { revoke_workers: 200 }
    }
}

/// The leases of the cluster, and the databases behind them.
pub struct Leases {
    storage: Storage,
    settings: LeaseSettings,
    databases: Databases,
    running: Running<LeaseId>,
    mailbox: Mailbox<Mail>,
    /// Held by the background work of the active node: that of one term ends before that of the next begins.
    turn: tokio::sync::Mutex<()>,
    /// Databases that cannot be reached, and why: their leases wait.
    waiting: Mutex<HashMap<record::Queue, String>>,
}

impl Leases {
    /// Over the whole store.
    pub fn new(storage: Storage) -> Self {
        Self::with_settings(storage, LeaseSettings::default())
    }

    /// Over the whole store, with the node's settings.
    pub fn with_settings(storage: Storage, settings: LeaseSettings) -> Self {
        Self {
            storage,
            settings,
            databases: Databases::default(),
            running: Running::default(),
            mailbox: Mailbox::default(),
            turn: tokio::sync::Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The node's settings.
    pub fn settings(&self) -> &LeaseSettings {
        &self.settings
    }

    /// The drivers of this node and who waits for them.
    pub fn databases(&self) -> &Databases {
        &self.databases
    }

    /// For a test that changes bounds before anything runs.
    #[cfg(test)]
    pub fn databases_mut(&mut self) -> &mut Databases {
        &mut self.databases
    }

    /// Reads a lease.
    pub fn lookup(&self, id: &LeaseId) -> Result<Option<Stored<Lease>>, StorageError> {
        index::read(&self.storage, id)
    }

    /// Why a lease that is due was not revoked yet; empty when nothing is known.
    pub fn revoke_error(&self, lease: &Lease) -> String {
        let waits = lease.due <= Wall::now();
        let cause = waits.then(|| self.waiting.lock().get(&lease.login.queue()).cloned()).flatten();
        cause.unwrap_or_else(|| lease.revocation.error.clone())
    }

    /// Forgets a deleted configuration, with all that this node holds for it, once nothing refers to it any more.
    pub async fn collect(&self, storage: &Storage, queue: &record::Queue) -> Result<(), StorageError> {
        if self.databases.collect(storage, queue).await? {
            self.tell(Mail::Retired(queue.clone()));
        }
        Ok(())
    }

    /// How many databases are known to be out of reach.
    #[cfg(test)]
    pub fn waiting_for(&self) -> usize {
        self.waiting.lock().len()
    }

    /// A spoke has a stream again: what waits for its databases goes on at once.
    pub fn spoke_back(&self, spoke: &str) {
        let waiting: Vec<_> = self.waiting.lock().keys().cloned().collect();
        let of_spoke = |queue: &record::Queue| {
            let found = crate::database::connection::by_queue(&self.storage, queue).ok().flatten();
            found.is_some_and(|connection| connection.value.config.spoke_name == spoke)
        };
        for queue in waiting.into_iter().filter(of_spoke) {
            self.tell(Mail::Back(queue));
        }
        self.databases.sweeper.send(crate::database::sweep::Note::back(spoke));
    }

    /// Tells the background task something.
    pub fn tell(&self, mail: Mail) {
        self.mailbox.send(mail);
    }
}
