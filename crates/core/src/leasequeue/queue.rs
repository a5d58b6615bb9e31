//! The leases of one database configuration, and how many of them may be revoked at once.

use std::collections::VecDeque;

use crate::Mono;

/// One queue. It holds ids only; entries that are out of date are skipped when they are popped.
#[derive(Clone, Debug)]
pub(super) struct Queue<I> {
    pub(super) due: VecDeque<I>,
    pub(super) urgent: VecDeque<I>,
    /// Attempts under way.
    pub(super) running: usize,
    /// The most attempts at once.
    pub(super) limit: usize,
    /// The executor could not be tried; nobody but an explicit caller tries it before this instant.
    pub(super) parked: Option<Mono>,
    /// How often in a row it could not be tried.
    pub(super) pauses: u32,
    /// How many leases of this queue are in memory.
    pub(super) loaded: usize,
    /// Due leases were left in the store because too many were loaded.
    pub(super) skipped: bool,
    /// Stands in the round.
    pub(super) in_round: bool,
    /// Its configuration is gone.
    pub(super) retired: bool,
}

impl<I> Queue<I> {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            due: VecDeque::new(),
            urgent: VecDeque::new(),
            running: 0,
            limit,
            parked: None,
            pauses: 0,
            loaded: 0,
            skipped: false,
            in_round: false,
            retired: false,
        }
    }

    /// Whether an attempt may start now, if there is a lease for it.
    ///
    /// After "could not be tried", one attempt at a time finds out whether the executor is back.
    pub(super) fn has_room(&self) -> bool {
        let limit = if self.pauses > 0 { 1 } else { self.limit };
        let waiting = !self.urgent.is_empty() || (self.parked.is_none() && !self.due.is_empty());
        waiting && self.running < limit
    }

    /// The next id to look at, explicit callers first, and whether it stood among the due ones.
    pub(super) fn pop(&mut self) -> Option<(I, bool)> {
        if let Some(id) = self.urgent.pop_front() {
            return Some((id, false));
        }
        let due = if self.parked.is_none() { self.due.pop_front() } else { None };
        due.map(|id| (id, true))
    }
}
