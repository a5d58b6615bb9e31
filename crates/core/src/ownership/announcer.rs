//! When a node tells the active one of its streams.
//!
//! What must hold: a change is told at once, bursts of changes together; the tick goes on whatever happened to earlier
//! sets; what is under way is bounded. Sets may overtake one another: their numbers put them in order.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{NodeName, Seq};
use crate::retry::Active;
use crate::time::{doubling, earliest};
use crate::{Mono, Term};

/// The times and bounds of an [`Announcer`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The tick; 5 s (200 ms-60 s). Also the longest pause between tries.
    pub interval: Duration,
    /// The pause before the first try after a failure; 250 ms.
    pub first_retry: Duration,
    /// The least distance of two sets that changes cause; 20 ms.
    pub spacing: Duration,
    /// How many sets may be under way; 4. For one more the oldest is given up.
    pub under_way: usize,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            first_retry: Duration::from_millis(250),
            spacing: Duration::from_millis(20),
            under_way: 4,
        }
    }
}

/// Why a set is sent.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Trigger {
    /// A stream was accepted.
    Connect,
    /// A stream ended.
    Drop,
    /// Another node leads, or is said to.
    Leader,
    /// An interval passed.
    Tick,
    /// An earlier set failed.
    Retry,
}

impl Trigger {
    /// The value of a metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Drop => "drop",
            Self::Leader => "leader",
            Self::Tick => "tick",
            Self::Retry => "retry",
        }
    }
}

/// What became of a set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// The active node took it, and this is the highest number it knows of this node.
    Taken(Seq),
    /// The other node is not active, and knows this one to be.
    NotActive(Option<NodeName>),
    /// The other node has seen this higher term.
    StaleTerm(Term),
    /// It could not be delivered, or no answer came in time.
    Failed,
}

/// What the shell tells an [`Announcer`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// Who serves, and in which term, changed or was confirmed.
    Active(Active<NodeName>, Term),
    /// The own streams changed.
    Changed(Trigger),
    /// A set that was sent came to its end.
    Ended(Seq, Outcome),
    /// Time passed.
    Tick,
}

/// What the shell must do, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Send the whole set as it is now, with this number, and answer with [`Event::Ended`].
    Send {
        /// To whom.
        to: NodeName,
        /// The term to carry.
        term: Term,
        /// The number to carry.
        seq: Seq,
        /// Why, for the metric.
        trigger: Trigger,
    },
    /// Stop waiting for the answer to this set.
    GiveUp(Seq),
}

/// The announcer of one node, for one unseal.
#[derive(Clone, Debug)]
pub struct Announcer {
    timing: Timing,
    own: NodeName,
    active: Active<NodeName>,
    /// Where the last answer said that the active node is; until the next tick or change of leader.
    hint: Option<NodeName>,
    hinted: bool,
    term: Term,
    seq: Seq,
    under_way: BTreeMap<Seq, NodeName>,
    sent: Option<Mono>,
    next_tick: Option<Mono>,
    changed: Option<(Mono, Trigger)>,
    retry: Option<Mono>,
    failures: u32,
}

impl Announcer {
    /// An announcer that knows no active node yet. `first` is the number before the first set: this node's own
    /// milliseconds since 1970.
    pub const fn new(timing: Timing, own: NodeName, first: Seq) -> Self {
        Self {
            timing,
            own,
            active: Active::Unknown,
            hint: None,
            hinted: false,
            term: Term::new(0),
            seq: first,
            under_way: BTreeMap::new(),
            sent: None,
            next_tick: None,
            changed: None,
            retry: None,
            failures: 0,
        }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Active(active, term) => self.active_is(now, active, term, out),
            Event::Changed(trigger) => self.changed(now, trigger),
            Event::Ended(seq, outcome) => self.ended(now, seq, outcome),
            Event::Tick => {}
        }
        self.settle(now, out);
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Mono> {
        self.target()?;
        earliest(earliest(self.next_tick, self.retry), self.changed.map(|(at, _)| at))
    }

    /// The number for a set that answers a pull. Take it under the lock that guards the set.
    pub const fn next_seq(&mut self) -> Seq {
        self.seq = self.seq.next();
        self.seq
    }

    /// To whom sets go.
    pub fn target(&self) -> Option<&NodeName> {
        match &self.active {
            Active::Peer(node) => Some(self.hint.as_ref().unwrap_or(node)),
            Active::Here | Active::Unknown => None,
        }
    }

    fn active_is(&mut self, now: Mono, active: Active<NodeName>, term: Term, out: &mut Vec<Effect>) {
        if self.active == active && term <= self.term {
            return;
        }
        self.active = active;
        self.term = self.term.max(term);
        (self.hint, self.hinted, self.retry, self.failures) = (None, false, None, 0);
        // What is under way to a former active node would only be refused.
        out.extend(std::mem::take(&mut self.under_way).into_keys().map(Effect::GiveUp));
        self.changed = self.target().is_some().then_some((now, Trigger::Leader));
    }

    fn changed(&mut self, now: Mono, trigger: Trigger) {
        let spaced = self.sent.map_or(now, |sent| now.max(sent.after(self.timing.spacing)));
        // With no target the change waits for nobody: a new target is told the whole set anyway.
        if self.target().is_some() && self.changed.is_none() {
            self.changed = Some((spaced, trigger));
        }
    }

    fn ended(&mut self, now: Mono, seq: Seq, outcome: Outcome) {
        let Some(to) = self.under_way.remove(&seq) else { return };
        match outcome {
            Outcome::Taken(newest) => {
                (self.failures, self.retry, self.hinted) = (0, None, false);
                if newest > self.seq {
                    // Our clock went back since an earlier life, so the set was taken for a late one.
                    (self.seq, self.changed) = (newest, Some((now, Trigger::Retry)));
                }
                return;
            }
            // Followed once between two ticks, so that two nodes that point at each other are not asked in turns.
            Outcome::NotActive(Some(node)) if !self.hinted && node != self.own && node != to => {
                (self.hint, self.hinted) = (Some(node), true);
                self.changed = Some((now, Trigger::Leader));
                return;
            }
            Outcome::StaleTerm(term) if !self.hinted && term > self.term => {
                (self.term, self.hinted) = (term, true);
                self.changed = Some((now, Trigger::Leader));
                return;
            }
            Outcome::StaleTerm(term) => self.term = self.term.max(term),
            Outcome::NotActive(_) | Outcome::Failed => {}
        }
        let pause = doubling(self.timing.first_retry, self.timing.interval, self.failures);
        self.failures = self.failures.saturating_add(1);
        self.retry = Some(now.after(pause));
    }

    fn settle(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self.target().is_none() {
            (self.changed, self.retry, self.next_tick) = (None, None, None);
            return;
        }
        let tick = self.next_tick.is_none_or(|at| at <= now);
        let retry = self.retry.is_some_and(|at| at <= now);
        let changed = self.changed.filter(|(at, _)| *at <= now).map(|(_, trigger)| trigger);
        let trigger = changed.or(retry.then_some(Trigger::Retry)).or(tick.then_some(Trigger::Tick));
        if let Some(trigger) = trigger {
            self.send(now, tick, trigger, out);
        }
    }

    fn send(&mut self, now: Mono, tick: bool, trigger: Trigger, out: &mut Vec<Effect>) {
        if tick && self.next_tick.is_some() && trigger != Trigger::Leader {
            // A hint is a guess; from here on consensus is believed again.
            (self.hint, self.hinted) = (None, false);
        }
        let Some(to) = self.target().cloned() else { return };
        while self.under_way.len() >= self.timing.under_way.max(1) {
            out.extend(self.under_way.pop_first().map(|(oldest, _)| Effect::GiveUp(oldest)));
        }
        let seq = self.next_seq();
        self.under_way.insert(seq, to.clone());
        // Every set is whole, so each send serves all that was due.
        (self.changed, self.retry, self.sent) = (None, None, Some(now));
        if tick {
            self.next_tick = Some(now.after(self.timing.interval));
        }
        out.push(Effect::Send { to, term: self.term, seq, trigger });
    }
}

#[cfg(test)]
mod tests;
