//! The databases and their executor: users, statements that take time, commits that come late, restarts.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::intent::Key;
use holdfast_core::{Mono, Term};

/// What a node asks the executor for.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    Make {
        deadline: Mono,
    },
    Cancel,
    /// A sweeper's or a creation's removal; cancels first.
    Remove,
    /// The revocation of a lease.
    Revoke,
}

/// What it answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reply {
    Done,
    Failed,
    NotTried,
}

/// A statement under way.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    pub key: Key,
    pub ask: Ask,
    pub term: Term,
}

/// The executor and its database.
#[derive(Default)]
pub struct Database {
    pub users: BTreeSet<Key>,
    /// Keys that are refused. Lost in a restart.
    cancelled: BTreeSet<Key>,
    /// Statements under way by number. Rolled back in a restart.
    pub flights: BTreeMap<u64, Flight>,
    pub newest: Term,
    /// Grows with each restart; what was sent to an earlier life never arrives.
    pub life: u32,
    pub offline: bool,
}

impl Database {
    /// Begins a statement, or answers at once.
    pub fn begin(
        &mut self,
        now: Mono,
        number: u64,
        flight: Flight,
    ) -> Result<(), Result<Reply, &'static str>> {
        if self.offline || !flight.term.may_act_on(self.newest) {
            return Err(Ok(Reply::NotTried));
        }
        self.newest = flight.term;
        match flight.ask {
            Ask::Make { deadline } if deadline <= now || self.cancelled.contains(&flight.key) => {
                return Err(Ok(Reply::NotTried));
            }
            Ask::Cancel => {
                self.cancelled.insert(flight.key);
                return Err(Ok(Reply::Done));
            }
            Ask::Remove => {
                self.cancelled.insert(flight.key);
            }
            Ask::Revoke => {
                let same = |other: &Flight| other.key == flight.key && matches!(other.ask, Ask::Revoke);
                if self.flights.values().any(|other| same(other) && other.term == flight.term) {
                    return Err(Err("a lease is never revoked twice at the same time"));
                }
                // A newer term supersedes what an older one left running.
                self.flights.retain(|_, other| !same(other));
            }
            Ask::Make { .. } => {}
        }
        self.flights.insert(number, flight);
        Ok(())
    }

    /// Ends a statement, unless it was superseded or rolled back meanwhile.
    pub fn end(&mut self, number: u64, fails: bool) -> Option<(Flight, Reply)> {
        let flight = self.flights.remove(&number)?;
        if fails {
            return Some((flight, Reply::Failed));
        }
        match flight.ask {
            Ask::Make { .. } => {
                self.users.insert(flight.key);
            }
            Ask::Remove | Ask::Revoke => {
                self.users.remove(&flight.key);
            }
            Ask::Cancel => {}
        }
        Some((flight, Reply::Done))
    }

    pub fn restart(&mut self) {
        self.life += 1;
        self.flights.clear();
        self.cancelled.clear();
    }
}
