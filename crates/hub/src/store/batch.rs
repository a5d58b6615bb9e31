//! Conditional batches: the one way in which the store changes.

use std::collections::BTreeSet;

use holdfast_core::{Kind, Term};
use serde::{Deserialize, Serialize};

/// The largest key plus value of one operation, in bytes.
pub const MAX_ENTRY: usize = 1 << 20;
/// The largest sum of keys and values of one batch, in bytes.
pub const MAX_BATCH: usize = 8 << 20;

/// One change.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Op {
    /// Sets a key.
    Put {
        /// The key, in clear.
        key: String,
        /// The value, opaque here: ciphertext of the barrier.
        #[serde(with = "super::bytes")]
        value: Vec<u8>,
    },
    /// Removes a key; removing one that is not there is no error.
    Delete {
        /// The key.
        key: String,
    },
}

impl Op {
    /// The key that this operation changes.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Put { key, value } => key.len() + value.len(),
            Self::Delete { key } => key.len(),
        }
    }
}

/// What must hold at the moment of applying, or nothing of the batch is applied.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Condition {
    /// The key has no value.
    Absent(String),
    /// The key has a value.
    Present(String),
    /// The key's value was written by exactly this version.
    Version(String, u64),
    /// The entry was proposed in this term: a former leader's late write fails here.
    Term(Term),
}

/// Changes that are applied together or not at all.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Batch {
    /// Checked in order before anything changes.
    pub conditions: Vec<Condition>,
    /// Applied in order.
    pub ops: Vec<Op>,
}

impl Batch {
    /// Refuses a batch that one log entry must not hold.
    pub fn check_size(&self) -> Result<(), CommitError> {
        if self.size() > MAX_BATCH || self.ops.iter().any(|op| op.size() > MAX_ENTRY) {
            return Err(CommitError::TooLarge);
        }
        Ok(())
    }

    /// The bytes of its keys and values.
    pub fn size(&self) -> usize {
        self.ops.iter().map(Op::size).sum()
    }

    /// The keys that the batch changes.
    pub fn keys(&self) -> BTreeSet<String> {
        self.ops.iter().map(|op| op.key().to_owned()).collect()
    }
}

/// A value with the version of the batch that wrote it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Versioned {
    /// Opaque bytes.
    pub value: Vec<u8>,
    /// The version of the writing batch; no other batch has the same, and later ones have higher ones.
    pub version: u64,
}

/// A batch that was applied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Committed {
    /// The version of every key that it put.
    pub version: u64,
    /// The term in which it was proposed.
    pub term: Term,
}

/// Why a batch was not, or may not have been, applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// A condition did not hold; nothing was applied.
    #[error("a condition of the batch did not hold: {0:?}")]
    Refused(Condition),
    /// This node does not lead; nothing was proposed.
    #[error("this node is not the leader")]
    NotLeader,
    /// The batch is over a size limit; nothing was proposed.
    #[error("entry too large")]
    TooLarge,
    /// The local disk does not take writes; nothing was proposed.
    #[error("the store does not take writes")]
    Unhealthy,
    /// Leadership or time was lost while the batch was under way.
    #[error("the outcome of the batch is unknown")]
    Unknown,
    /// The node is going down or sealed; nothing was proposed.
    #[error("the store is closed")]
    Closed,
}

impl CommitError {
    /// The class of the failure.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Refused(Condition::Term(_)) | Self::NotLeader => Kind::NotLeader,
            Self::Refused(_) => Kind::Conflict,
            Self::TooLarge => Kind::Invalid,
            Self::Unhealthy | Self::Closed => Kind::Unavailable,
            Self::Unknown => Kind::Timeout,
        }
    }
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The database under the store failed.
    #[error("reading the store failed")]
    Database(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The node is going down or sealed.
    #[error("the store is closed")]
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_write_of_a_former_leader_is_a_matter_of_leadership() {
        assert_eq!(CommitError::Refused(Condition::Term(Term::new(1))).kind(), Kind::NotLeader);
        assert_eq!(CommitError::Refused(Condition::Absent("a".into())).kind(), Kind::Conflict);
    }

    #[test]
    fn one_oversized_entry_refuses_the_batch() {
        let put = |size| Op::Put { key: "k".into(), value: vec![0; size] };
        let batch = |ops| Batch { conditions: vec![], ops };
        assert!(batch(vec![put(MAX_ENTRY - 1)]).check_size().is_ok());
        assert!(matches!(batch(vec![put(MAX_ENTRY)]).check_size(), Err(CommitError::TooLarge)));
        let many = (0..9).map(|_| put(MAX_ENTRY - 1)).collect();
        assert!(matches!(batch(many).check_size(), Err(CommitError::TooLarge)));
    }
}
