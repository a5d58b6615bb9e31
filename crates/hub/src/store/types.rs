//! The types that the consensus library is told to work with, and what one log entry of ours holds.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Batch;
use crate::cluster::{NodeAddress, NodeName};

openraft::declare_raft_types!(
    /// The library's view of our store.
    pub TypeConfig:
        D = Command,
        R = Reply,
        NodeId = u64,
        Node = Peer,
        Entry = openraft::Entry<TypeConfig>,
        SnapshotData = tokio::fs::File,
);

pub(super) type Raft = openraft::Raft<TypeConfig>;
pub(super) type Entry = openraft::Entry<TypeConfig>;
pub(super) type LogId = openraft::LogId<u64>;
pub(super) type Vote = openraft::Vote<u64>;
pub(super) type Membership = openraft::StoredMembership<u64, Peer>;
pub(super) type SnapshotMeta = openraft::SnapshotMeta<u64, Peer>;
pub(super) type StorageError = openraft::StorageError<u64>;

/// A member, as the membership entries of the log record it. Its number is never given to another node.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Peer {
    /// Its name.
    pub name: NodeName,
    /// Where it is reached.
    pub address: NodeAddress,
    /// Whether it is to stay a learner.
    pub non_voter: bool,
}

impl Default for Peer {
    fn default() -> Self {
        let address = NodeAddress { cluster: String::new(), api: String::new() };
        Self { name: NodeName(String::new()), address, non_voter: false }
    }
}

/// One row of a state that is being restored.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Row {
    /// The key.
    pub key: String,
    /// Its value.
    #[serde(with = "super::bytes")]
    pub value: Vec<u8>,
}

/// What one log entry does to the state.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub enum Command {
    /// Batches of several writers that share one entry, and so one sync to disk. Each stands for itself.
    Group {
        /// The proposing process, drawn at its start.
        origin: u64,
        /// Grows with every proposal of that process.
        number: u64,
        /// The batches, in order.
        batches: Vec<Batch>,
    },
    /// A restore begins: rows of an unfinished one are forgotten.
    RestoreBegin {
        /// Names the restore.
        id: u64,
    },
    /// Some rows of the state to come. Nothing changes yet.
    RestoreRows {
        /// The restore they belong to.
        id: u64,
        /// The rows.
        rows: Vec<Row>,
    },
    /// The rows become the whole state, if all `rows` of them are there.
    RestoreEnd {
        /// The restore that ends.
        id: u64,
        /// How many rows it had.
        rows: u64,
    },
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group { number, batches, .. } => write!(f, "Group({number}, {} batches)", batches.len()),
            Self::RestoreBegin { id } => write!(f, "RestoreBegin({id})"),
            Self::RestoreRows { id, rows } => write!(f, "RestoreRows({id}, {} rows)", rows.len()),
            Self::RestoreEnd { id, rows } => write!(f, "RestoreEnd({id}, {rows} rows)"),
        }
    }
}

/// What became of one batch.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Outcome {
    /// Applied, with this version.
    Applied(u64),
    /// The condition at this place did not hold.
    Refused(u32),
}

/// What became of one entry.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Reply {
    /// For a group: one outcome a batch. For the end of a restore: one outcome.
    pub outcomes: Vec<Outcome>,
}
