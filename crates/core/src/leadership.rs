//! When a node that won an election may act: one gate, one predicate.
//!
//! What must hold: the gate is open for a term only while this node leads in that term, has applied the term's
//! first entry, had a quorum's acknowledgement within the window, is not stepping down and can write to its store.
//! Health, leader answers, labels and the write gate all ask [`Leadership::active`]; nothing else may claim to be
//! active. An event that carries a term other than the current one changes nothing and is counted.
//!
//! [`Tenure`] is the part an elector over a lease record shares; [`stepdown`] hands a term over on request;
//! [`standing`] decides whether a node may stand for election at all.

pub mod standing;
pub mod stepdown;
mod tenure;

use std::time::Duration;

pub use tenure::Tenure;

use crate::time::earliest;
use crate::{LogIndex, Mono, Term};

/// The times of a [`Leadership`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long a quorum's acknowledgement is good for, counted from the sending of what was acknowledged.
    /// Half of the election maximum, so 400 ms at default settings; it must not exceed the time for which
    /// followers that heard us refuse to vote for another, and a follower that restarted must refuse for as long
    /// after its start, because it no longer knows whom it heard.
    pub ack_window: Duration,
    /// The pause between test writes while the store is unhealthy; 5 s.
    pub test_write_every: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { ack_window: Duration::from_millis(400), test_write_every: Duration::from_secs(5) }
    }
}

/// What the shell tells a [`Leadership`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// This node won `term`, and `entry` is the first entry it wrote in it.
    Elected {
        /// The term won.
        term: Term,
        /// The index of the term's first entry.
        entry: LogIndex,
    },
    /// The state machine has applied every entry up to `index`.
    Applied {
        /// The highest applied entry.
        index: LogIndex,
    },
    /// A quorum acknowledged, in `term`, something that was sent at `sent`.
    Acknowledged {
        /// The term in which it was acknowledged.
        term: Term,
        /// When the oldest message of that round was sent.
        sent: Mono,
    },
    /// `term` is over for this node: a higher one was seen, or leadership ended otherwise.
    Lost {
        /// The term that ended.
        term: Term,
    },
    /// A step-down of `term` began.
    StepDownBegan {
        /// The term to hand over.
        term: Term,
    },
    /// The step-down of `term` ended and this node still leads in it.
    StepDownEnded {
        /// The term that was not handed over.
        term: Term,
    },
    /// A write to the store failed.
    StoreFailed,
    /// A test write ended.
    StoreTested {
        /// Whether it succeeded.
        healthy: bool,
    },
    /// Time passed.
    Tick,
}

/// Why a gate closed.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Reason {
    /// The term is over for this node.
    Lost,
    /// The term is being handed over on request.
    StepDown,
    /// The store does not take writes.
    StoreUnhealthy,
    /// No quorum acknowledged within the window.
    NoQuorum,
    /// The term's first entry is not applied yet.
    NotApplied,
}

/// What the shell must do, in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Take reads and writes for this term.
    OpenGate(Term),
    /// Take no more for this term, before anything else is done.
    CloseGate(Term, Reason),
    /// Begin a step-down of this term: the node cannot serve it.
    HandOver(Term),
    /// Say once, at ERROR when `false`, whether the store takes writes; health shows it from now on.
    ReportStore(bool),
    /// Try a write to the store and answer with [`Event::StoreTested`].
    TestWrite,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    tenure: Tenure,
    entry: LogIndex,
    stepping_down: bool,
}

/// The gate of one node.
#[derive(Clone, Debug)]
pub struct Leadership {
    timing: Timing,
    claim: Option<Claim>,
    ended: Option<Term>,
    applied: LogIndex,
    open: Option<Term>,
    store: Store,
    stale: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Store {
    Healthy,
    /// Unhealthy; the next test write starts at this instant.
    TestAt(Mono),
    /// Unhealthy; a test write is running.
    Testing,
}

impl Leadership {
    /// A follower with a healthy store.
    pub const fn new(timing: Timing) -> Self {
        Self {
            timing,
            claim: None,
            ended: None,
            applied: LogIndex::new(0),
            open: None,
            store: Store::Healthy,
            stale: 0,
        }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Elected { term, entry } => self.elected(term, entry, out),
            Event::Applied { index } => self.applied = self.applied.max(index),
            Event::Acknowledged { term, sent } => self.acknowledged(term, sent.min(now)),
            Event::Lost { term } => self.lost(term, out),
            Event::StepDownBegan { term } => self.stepping_down(term, true),
            Event::StepDownEnded { term } => self.stepping_down(term, false),
            Event::StoreFailed => self.store_failed(now, out),
            Event::StoreTested { healthy } => self.store_tested(now, healthy, out),
            Event::Tick => {}
        }
        self.test_store(now, out);
        self.settle(now, out);
    }

    /// For a node that is the only voter: it is its own quorum at every instant, so no late renewal may end its term.
    /// Changes no gate by itself; call it before anything is asked or told.
    pub fn renew_alone(&mut self, now: Mono) {
        if let Some(claim) = &mut self.claim {
            claim.tenure.renew(claim.tenure.term(), now);
        }
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Mono> {
        let expiry = self.open.and(self.claim).and_then(|claim| claim.tenure.valid_until());
        let test = match self.store {
            Store::TestAt(at) => Some(at),
            Store::Healthy | Store::Testing => None,
        };
        earliest(expiry, test)
    }

    /// The term in which this node may act at this very instant. Exact even when a tick is late.
    pub fn active(&self, now: Mono) -> Option<Term> {
        self.open.filter(|_| self.obstacle(now).is_none())
    }

    /// Whether `term` may act at this very instant; asked before every effect on the outside.
    pub fn may_act(&self, now: Mono, term: Term) -> bool {
        self.active(now) == Some(term)
    }

    /// The term this node leads in, whether or not its gate is open.
    pub fn leading(&self) -> Option<Term> {
        self.claim.map(|claim| claim.tenure.term())
    }

    /// Whether the store takes writes. While it does not, no vote may be granted.
    pub fn store_healthy(&self) -> bool {
        self.store == Store::Healthy
    }

    /// How many events came for a term other than the current one.
    pub const fn stale_events(&self) -> u64 {
        self.stale
    }

    fn elected(&mut self, term: Term, entry: LogIndex, out: &mut Vec<Effect>) {
        let over = self.ended.is_some_and(|ended| term <= ended);
        if over || self.leading().is_some_and(|current| term <= current) {
            self.stale = self.stale.saturating_add(1);
            return;
        }
        if let Some(before) = self.leading() {
            self.lost(before, out);
        }
        let tenure = Tenure::new(term, self.timing.ack_window);
        self.claim = Some(Claim { tenure, entry, stepping_down: false });
        if !self.store_healthy() {
            out.push(Effect::HandOver(term));
        }
    }

    fn acknowledged(&mut self, term: Term, sent: Mono) {
        if !self.claim.as_mut().is_some_and(|claim| claim.tenure.renew(term, sent)) {
            self.stale = self.stale.saturating_add(1);
        }
    }

    fn lost(&mut self, term: Term, out: &mut Vec<Effect>) {
        self.ended = self.ended.max(Some(term));
        match self.leading() {
            Some(current) if current <= term => {
                self.claim = None;
                self.close(Reason::Lost, out);
            }
            Some(_) => self.stale = self.stale.saturating_add(1),
            None => {}
        }
    }

    fn stepping_down(&mut self, term: Term, begun: bool) {
        match &mut self.claim {
            Some(claim) if claim.tenure.term() == term => claim.stepping_down = begun,
            _ => self.stale = self.stale.saturating_add(1),
        }
    }

    fn store_failed(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if !self.store_healthy() {
            return;
        }
        self.store = Store::TestAt(now.after(self.timing.test_write_every));
        self.close(Reason::StoreUnhealthy, out);
        out.push(Effect::ReportStore(false));
        if let Some(term) = self.leading() {
            out.push(Effect::HandOver(term));
        }
    }

    fn store_tested(&mut self, now: Mono, healthy: bool, out: &mut Vec<Effect>) {
        if self.store != Store::Testing {
            return;
        }
        if healthy {
            self.store = Store::Healthy;
            out.push(Effect::ReportStore(true));
        } else {
            self.store = Store::TestAt(now.after(self.timing.test_write_every));
        }
    }

    fn test_store(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if matches!(self.store, Store::TestAt(at) if at <= now) {
            self.store = Store::Testing;
            out.push(Effect::TestWrite);
        }
    }

    fn settle(&mut self, now: Mono, out: &mut Vec<Effect>) {
        match (self.open, self.obstacle(now)) {
            (Some(_), Some(reason)) => self.close(reason, out),
            (None, None) => {
                self.open = self.leading();
                out.extend(self.open.map(Effect::OpenGate));
            }
            _ => {}
        }
    }

    fn close(&mut self, reason: Reason, out: &mut Vec<Effect>) {
        out.extend(self.open.take().map(|term| Effect::CloseGate(term, reason)));
    }

    fn obstacle(&self, now: Mono) -> Option<Reason> {
        let Some(claim) = &self.claim else { return Some(Reason::Lost) };
        if claim.stepping_down {
            return Some(Reason::StepDown);
        }
        if !self.store_healthy() {
            return Some(Reason::StoreUnhealthy);
        }
        if !claim.tenure.holds(now, Duration::ZERO) {
            return Some(Reason::NoQuorum);
        }
        (self.applied < claim.entry).then_some(Reason::NotApplied)
    }
}

#[cfg(test)]
mod tests;
