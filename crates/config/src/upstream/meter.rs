//! What the engine counts, for whoever shows it.

use std::time::Duration;

use holdfast_core::AnswerKind;
use holdfast_core::freshness::Outcome;

use crate::config::Scheme;
use crate::value::Value;

/// How an attempt ended, as a label.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Ending {
    /// With a value.
    Value,
    /// With a definite absence.
    Absent,
    /// With an error of this kind.
    Error(AnswerKind),
}

impl Ending {
    /// Its name in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Absent => "absent",
            Self::Error(kind) => kind.label(),
        }
    }
}

impl From<&Outcome<Value>> for Ending {
    fn from(outcome: &Outcome<Value>) -> Self {
        match outcome {
            Outcome::Value { .. } => Self::Value,
            Outcome::Absent => Self::Absent,
            Outcome::Error(failure) => Self::Error(failure.kind),
        }
    }
}

/// Counts attempts.
pub trait Meter: Send + Sync + 'static {
    /// An attempt ended. It took so long, unless nobody was asked: an event of a watch, or an open breaker.
    fn attempt(&self, scheme: Scheme, ending: Ending, took: Option<Duration>);
}

/// Counts nothing.
impl Meter for () {
    fn attempt(&self, _: Scheme, _: Ending, _: Option<Duration>) {}
}
