//! The upstream: what it holds when, and how it answers.

use super::NAMES;
use crate::freshness::{Failure, Outcome, Record};
use crate::{AnswerKind, Mono, Wall};

/// A value is its revision.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Text(pub usize);

impl Record for Text {
    fn not_after(&self) -> Option<Wall> {
        None
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mood {
    Up,
    Down,
    Throttled,
    Denied,
    LoggedOut,
    Odd,
}

#[derive(Debug)]
pub struct Upstream {
    /// When each revision of each name was written.
    pub written: [Vec<Mono>; NAMES],
    pub absent: [bool; NAMES],
    pub mood: Mood,
}

impl Upstream {
    pub fn new() -> Self {
        let written = std::array::from_fn(|_| vec![Mono::ZERO]);
        Self { written, absent: [false; NAMES], mood: Mood::Up }
    }

    pub fn write(&mut self, now: Mono, name: usize) {
        self.written[name].push(now);
    }

    pub fn truth(&self, name: usize) -> usize {
        self.written[name].len() - 1
    }

    /// When a revision ceased to be the newest.
    pub fn superseded(&self, name: usize, revision: usize) -> Mono {
        self.written[name].get(revision + 1).copied().unwrap_or(Mono::FAR)
    }

    pub fn answer(&self, name: usize) -> Outcome<Text> {
        let failure = match self.mood {
            Mood::Up if self.absent[name] => return Outcome::Absent,
            Mood::Up => return Outcome::Value { value: Text(self.truth(name)), passed: None },
            Mood::Down => Failure::of(AnswerKind::Unavailable),
            Mood::Throttled => Failure::of(AnswerKind::RateLimited),
            Mood::Denied => Failure::of(AnswerKind::PermissionDenied),
            Mood::LoggedOut => Failure::own_login(),
            Mood::Odd => Failure::of(AnswerKind::Unknown),
        };
        Outcome::Error(failure)
    }
}
