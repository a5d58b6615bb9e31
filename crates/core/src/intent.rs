//! Which database users may exist, and who removes those that must not.
//!
//! An intent is a record that is committed *before* a database user is made. It ends in one of two ways: the batch
//! that writes the lease deletes it, or the sweeper removes the user and then deletes it. What must hold: every
//! user that was ever asked for belongs to a lease or to an intent; after an intent left `Open`, its lease can no
//! longer be written; each change of a record is conditional on the record's state and on the writer's term.
//!
//! [`Creation`] is the life of one request, [`Sweeper`] the task of the active node.

mod creation;
mod sweeper;

use serde::{Deserialize, Serialize};

pub use creation::{Creation, Outcome, UserMade};
pub use sweeper::{Limits, Sweeper};

use crate::Term;

/// Events and effects of a [`Creation`].
pub mod creating {
    pub use super::creation::{Effect, Event};
}

/// Events and effects of a [`Sweeper`].
pub mod sweeping {
    pub use super::sweeper::{Effect, Event};
}

/// The 128-bit idempotency key of one creation; also the identity of its intent.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Key(u128);

impl Key {
    /// Wraps 128 random bits.
    pub const fn new(bits: u128) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn into_inner(self) -> u128 {
        self.0
    }
}

/// The state of an intent's record. It only moves forward.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The user may be made, and the lease may be written.
    Open,
    /// The user is to be removed; the lease can no longer be written.
    Sweep,
    /// The user was removed once; a second removal catches what committed late.
    Verify,
}

/// What an intent's record becomes.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Next {
    /// A record in this state.
    State(State),
    /// No record; the same batch puts the lease and its indexes.
    Lease,
    /// No record and no claim on the user name.
    Nothing,
}

/// A conditional batch on one intent. The store applies all of it or none.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Batch {
    /// The intent.
    pub key: Key,
    /// Condition: the store's term equals this one.
    pub term: Term,
    /// Condition: the record is in this state; `None`: there is none, and the user name is free.
    pub from: Option<State>,
    /// What it becomes.
    pub to: Next,
}

impl Batch {
    pub(crate) const fn new(key: Key, term: Term, from: Option<State>, to: Next) -> Self {
        Self { key, term, from, to }
    }
}

/// How a conditional batch ended.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Written {
    /// It is in the log and applied.
    Applied,
    /// A condition failed; nothing was applied and nothing will be.
    Refused,
    /// Not known: leadership was lost, or the deadline passed, while it was under way.
    Unknown,
}
