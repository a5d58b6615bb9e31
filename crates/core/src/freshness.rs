//! Dated values: what one attempt to fetch a value ends in, what a replica then shows of it, and what a client takes.
//!
//! What must hold: every outcome is published; a date says when its bytes were last confirmed, and nothing else moves
//! it; old is never shown as fresh; a client is never moved back in time.

mod cell;
mod watermark;

use std::time::Duration;

pub use cell::{Cell, Effect, Event, Rules};
pub use watermark::{Offer, Verdict, Watermark};

use crate::{AnswerKind, Wall};

/// How far the clocks of two replicas may differ without one of them counting as behind.
pub const BAND: Duration = Duration::from_secs(1);
/// A date so far ahead of the own clock is a wrong one: it is passed on, but nothing is measured against it. A clock
/// that went back by more was set back.
pub const FUTURE: Duration = Duration::from_secs(60);

/// What a cell can hold: a value with everything that a reader sees of it.
pub trait Record: Clone + Eq {
    /// When it ends to be usable; none when it does not.
    fn not_after(&self) -> Option<Wall>;
}

/// The one end of one attempt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome<V> {
    /// The upstream's value, new or the same as before.
    Value {
        /// The value.
        value: V,
        /// Set when another cache gave it: its date and state are passed on, never renewed.
        passed: Option<Passed>,
    },
    /// The attempt failed.
    Error(Failure),
    /// The upstream says definitely that there is nothing.
    Absent,
}

/// The date and the state of a value that another cache gave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Passed {
    /// When the value was last confirmed by its origin; none when it never was stamped.
    pub resolved_at: Option<Wall>,
    /// How the origin currently fails; the value is last-known-good then.
    pub kind: Option<AnswerKind>,
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Failure {
    /// Its kind.
    pub kind: AnswerKind,
    /// How long the upstream asks to be left alone.
    pub retry_after: Option<Duration>,
    /// The replica's own login was refused or missing: it says nothing about the value itself.
    pub own_login: bool,
}

impl Failure {
    /// A failure of a kind, with nothing more to say.
    pub const fn of(kind: AnswerKind) -> Self {
        Self { kind, retry_after: None, own_login: false }
    }

    /// The replica itself could not log in; readers see `unavailable`.
    pub const fn own_login() -> Self {
        Self { kind: AnswerKind::Unavailable, retry_after: None, own_login: true }
    }
}

/// What a reader gets from a cell.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Served {
    /// The value.
    Value {
        /// How the upstream currently fails; the value is last-known-good then.
        stale: Option<AnswerKind>,
    },
    /// None.
    Refused(AnswerKind, Refusal),
}

/// Why there is none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// Nothing was resolved yet, or what failed left no value.
    ResolveFailed,
    /// The value is older than it may be while the upstream fails.
    TooOld,
    /// The value's own life is over.
    Expired,
}

/// How the upstream currently fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Trouble {
    /// As what it shows.
    pub kind: AnswerKind,
    /// Since when; a change of the kind does not move it.
    pub since: Wall,
}

/// Everything about one binding on one replica; readers see one of these at a time, never a mixture.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct State<V> {
    /// The value that is held.
    pub value: Option<V>,
    /// When its bytes were last fetched or confirmed by the upstream.
    pub resolved_at: Option<Wall>,
    /// When the last attempt ended.
    pub checked_at: Option<Wall>,
    /// Set while the upstream fails.
    pub trouble: Option<Trouble>,
    /// Whether the upstream has answered at all, one way or the other.
    pub settled: bool,
    /// What a reader gets now.
    pub served: Served,
}

impl<V> Default for State<V> {
    fn default() -> Self {
        Self {
            value: None,
            resolved_at: None,
            checked_at: None,
            trouble: None,
            settled: false,
            served: Served::Refused(AnswerKind::Unknown, Refusal::ResolveFailed),
        }
    }
}
