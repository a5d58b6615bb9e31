//! The replicated store as one thing: what a quorum holds. A proposal is applied only while a majority of the
//! members has not promised itself to a newer term, which is what consensus guarantees.

use std::collections::BTreeMap;

use holdfast_core::intent::{Batch, Key, Next, State, Written};
use holdfast_core::{Mono, Term};

/// An intent's record.
#[derive(Clone, Copy, Debug)]
pub struct Intent {
    pub state: State,
    /// The creation's deadline, world time.
    pub deadline: Mono,
    pub opened: Mono,
}

/// A lease's record.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub due: Mono,
    pub failures: u32,
}

/// One batch.
#[derive(Clone, Copy, Debug)]
pub enum Write {
    /// The first entry of a term.
    Lead,
    /// A batch on an intent; the deadline is for `Open`, the due time for the lease.
    Intent { batch: Batch, deadline: Mono, due: Mono },
    /// Delete a lease whose user was removed.
    DeleteLease { key: Key },
    /// Move a lease in the index.
    MoveLease { key: Key, due: Mono, failures: Option<u32> },
}

/// The promised terms of the members, and the data.
pub struct Store {
    pub promised: Vec<Term>,
    pub intents: BTreeMap<Key, Intent>,
    pub leases: BTreeMap<Key, Lease>,
    /// The planted fault: terms are not looked at.
    pub ignore_terms: bool,
}

impl Store {
    pub fn new(members: usize, ignore_terms: bool) -> Self {
        Self {
            promised: vec![Term::default(); members],
            intents: BTreeMap::new(),
            leases: BTreeMap::new(),
            ignore_terms,
        }
    }

    /// Whether a majority still accepts `term`.
    pub fn accepts(&self, term: Term) -> bool {
        let willing = self.promised.iter().filter(|promised| term.may_act_on(**promised)).count();
        willing * 2 > self.promised.len()
    }

    /// Applies a batch; `None` when consensus never decides it.
    pub fn apply(&mut self, now: Mono, term: Term, write: Write) -> Option<Written> {
        if !self.ignore_terms && !self.accepts(term) {
            return None;
        }
        let holds = match write {
            Write::Lead => true,
            Write::Intent { batch, deadline, due } => self.intent(now, batch, deadline, due),
            Write::DeleteLease { key } => self.leases.remove(&key).is_some(),
            Write::MoveLease { key, due, failures } => match self.leases.get_mut(&key) {
                Some(lease) => {
                    lease.due = due;
                    lease.failures = failures.unwrap_or(lease.failures);
                    true
                }
                None => false,
            },
        };
        Some(if holds { Written::Applied } else { Written::Refused })
    }

    fn intent(&mut self, now: Mono, batch: Batch, deadline: Mono, due: Mono) -> bool {
        let held = self.intents.get(&batch.key).map(|intent| intent.state);
        if held != batch.from || (held.is_none() && self.leases.contains_key(&batch.key)) {
            return false;
        }
        match batch.to {
            Next::State(State::Open) => {
                self.intents.insert(batch.key, Intent { state: State::Open, deadline, opened: now });
            }
            Next::State(state) => {
                self.intents.entry(batch.key).and_modify(|intent| intent.state = state);
            }
            Next::Lease => {
                self.intents.remove(&batch.key);
                self.leases.insert(batch.key, Lease { due, failures: 0 });
            }
            Next::Nothing => {
                self.intents.remove(&batch.key);
            }
        }
        true
    }
}
