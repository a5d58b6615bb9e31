//! The replicated store: an ordered map from key to opaque value that changes only through conditional batches.
//!
//! Everything outside this folder sees [`Store`] and the plain types of [`batch`]; no type of the consensus
//! library or of the database leaves it.

pub mod batch;
mod bytes;
pub mod memory;

mod apply;
mod core;
mod db;
mod elector;
mod gate;
mod health;
mod image;
mod log;
mod members;
mod network;
mod peers;
mod propose;
mod raft;
mod reads;
mod restore;
mod rpc;
mod service;
mod state;
mod stepdown;
mod timing;
mod types;
mod writer;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

pub use self::db::OpenError;
pub use self::gate::{NoObserver, StoreObserver};
pub use self::raft::{OpenStore, RaftStore, open, peek};
pub use self::rpc::RAFT_ALPN;
pub use self::timing::RaftTiming;

pub use self::batch::{Batch, CommitError, Committed, Condition, Op, ReadError, Versioned};

/// Called with the keys that an applied batch changed, before its writer is answered; must be quick and must not
/// call back into the store's writer.
pub type AppliedHook = Arc<dyn Fn(&BTreeSet<String>) + Send + Sync>;

/// A replicated, ordered key-value map.
///
/// Reads come from this node's applied state. Whether that state may be trusted as current is the leadership
/// gate's business, not the store's.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Proposes a batch and waits until it is applied or refused.
    ///
    /// A refused condition applies nothing. [`CommitError::Unknown`] means that the batch may or may not be
    /// applied, now or a little later.
    async fn commit(&self, batch: Batch) -> Result<Committed, CommitError>;

    /// The value of a key.
    fn read(&self, key: &str) -> Result<Option<Versioned>, ReadError>;

    /// Up to `limit` entries whose key starts with `prefix` and sorts after `after`, in key order.
    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Versioned)>, ReadError>;

    /// As [`Store::scan`], without the values.
    fn scan_keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, ReadError>;

    /// The next path segments below `prefix`, in order, folders with a trailing slash, after `after`.
    ///
    /// `prefix` is empty or ends with a slash.
    fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, ReadError>;

    /// The number of keys that start with `prefix`.
    fn count(&self, prefix: &str) -> Result<u64, ReadError>;

    /// Registers a hook that runs after each applied batch on this node, on standbys too. A whole state that is
    /// installed or restored calls the hooks with an empty set, which means "anything may have changed".
    fn on_applied(&self, hook: AppliedHook);
}

#[cfg(test)]
mod tests;
