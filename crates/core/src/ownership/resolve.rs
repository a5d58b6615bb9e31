//! The way of one command to the stream of its spoke.
//!
//! What must hold: at most two sends; a forwarded command is run here or not at all; a command that may have started
//! is never sent again; whatever is waited for, the command's deadline ends it, with a typed error.

use std::time::Duration;

use super::{Lookup, NodeName, Stamp};
use crate::Mono;

/// The times of a [`Resolve`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long a newer claim is waited for after the first way failed; 1 s.
    pub wait: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { wait: Duration::from_secs(1) }
    }
}

/// Why a send came to nothing. Answers of the command itself, errors of the database too, are no failure: the shell
/// returns them and drops the machine.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Failure {
    /// The owner answered, typed, that it has no such stream; or the own stream was gone before anything was queued.
    NotConnected,
    /// The owner is sealed.
    Sealed,
    /// No connection to the owner came about, so nothing was sent.
    DialFailed,
    /// The owner has seen a higher term: this node is not active any more. Nothing was done.
    StaleTerm,
    /// It was sent, and no whole answer came; or the stream was replaced while it ran.
    Broken,
}

/// What the shell tells a [`Resolve`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// What the registry knows now. First of all, and again whenever the registry says so.
    Look(Lookup),
    /// The send under way failed.
    Failed(Failure),
    /// Time passed.
    Tick,
}

/// Why there is no answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// No node has a stream of this spoke: `spoke not connected: "<name>"`.
    NotConnected,
    /// The owner does not answer: `cannot reach spoke owner <addr>: <cause>`, with the cause of the failed dial.
    CannotReach(NodeName),
    /// This node is not active, so it knows no other node's streams.
    NotActive,
    /// It may have been done or not.
    OutcomeUnknown,
}

/// What the shell must do, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Run it on this node's own stream.
    Run(Stamp),
    /// Send it to this node, with what is left of the deadline.
    Forward(NodeName, Stamp),
    /// Tell the registry, compare-and-forget: this node has no such stream.
    Forget(NodeName, Stamp),
    /// Tell the registry that this node cannot be reached; the entry stays in views.
    Unreachable(NodeName),
    /// Have the registry pull all members once, then look at once: it may know of a newer claim already.
    Pull,
    /// Answer with this error. The machine is at its end.
    Refuse(Refusal),
}

/// An owner, none for this node, and the stream.
type Way = (Option<NodeName>, Stamp);

#[derive(Clone, Debug, Eq, PartialEq)]
enum State {
    /// Nothing sent, or waiting for the priming.
    Looking,
    /// Under way to this owner.
    Sent(Option<NodeName>, Stamp),
    /// Waiting for another claim than the one that failed.
    Again {
        until: Mono,
        failed: Option<Way>,
        refusal: Refusal,
    },
    Over,
}

/// One command.
#[derive(Clone, Debug)]
pub struct Resolve {
    timing: Timing,
    deadline: Mono,
    forwarded: bool,
    again: bool,
    sends: u8,
    state: State,
}

impl Resolve {
    /// A command that ends at `deadline`; `forwarded` when another node sent it here.
    pub const fn new(timing: Timing, deadline: Mono, forwarded: bool) -> Self {
        Self { timing, deadline, forwarded, again: false, sends: 0, state: State::Looking }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Look(lookup) => self.look(now, lookup, out),
            Event::Failed(failure) => self.failed(now, failure, out),
            Event::Tick => self.tick(now, out),
        }
    }

    /// When [`Event::Tick`] is due. None while a send is under way: its own deadline ends it.
    pub const fn next_deadline(&self) -> Option<Mono> {
        match &self.state {
            State::Looking => Some(self.deadline),
            State::Again { until, .. } => Some(*until),
            State::Sent(..) | State::Over => None,
        }
    }

    /// How often it was sent or run.
    pub const fn sends(&self) -> u8 {
        self.sends
    }

    /// Whether this was resolved a second time, for the metric.
    pub const fn resolved_again(&self) -> bool {
        self.again
    }

    fn look(&mut self, now: Mono, lookup: Lookup, out: &mut Vec<Effect>) {
        if matches!(self.state, State::Sent(..) | State::Over) {
            return;
        }
        if self.deadline <= now {
            return self.tick(now, out);
        }
        match lookup {
            Lookup::Local(stamp) if self.may_go(None, stamp) => self.send(None, stamp, out),
            Lookup::Local(_) => {}
            _ if self.forwarded => self.refuse(Refusal::NotConnected, out),
            Lookup::NotActive => self.refuse(Refusal::NotActive, out),
            Lookup::Remote(node, stamp) if self.may_go(Some(&node), stamp) => {
                self.send(Some(node), stamp, out);
            }
            Lookup::Remote(..) | Lookup::Priming => {}
            Lookup::Unknown { lately } => {
                if self.state == State::Looking {
                    self.unknown(now, lately, out);
                }
            }
        }
    }

    fn unknown(&mut self, now: Mono, lately: bool, out: &mut Vec<Effect>) {
        if lately {
            self.look_again(now, None, Refusal::NotConnected, out);
        } else {
            self.refuse(Refusal::NotConnected, out);
        }
    }

    /// Whether this way is another than the one that failed.
    fn may_go(&self, node: Option<&NodeName>, stamp: Stamp) -> bool {
        match &self.state {
            State::Again { failed: Some((owner, before)), .. } => *before != stamp || owner.as_ref() != node,
            _ => true,
        }
    }

    fn send(&mut self, node: Option<NodeName>, stamp: Stamp, out: &mut Vec<Effect>) {
        self.sends = self.sends.saturating_add(1);
        out.push(match &node {
            None => Effect::Run(stamp),
            Some(node) => Effect::Forward(node.clone(), stamp),
        });
        self.state = State::Sent(node, stamp);
    }

    fn failed(&mut self, now: Mono, failure: Failure, out: &mut Vec<Effect>) {
        let State::Sent(node, stamp) = self.state.clone() else { return };
        self.state = State::Over;
        let refusal = match (failure, node.clone()) {
            (Failure::Broken, _) => return out.push(Effect::Refuse(Refusal::OutcomeUnknown)),
            (Failure::StaleTerm, _) => return out.push(Effect::Refuse(Refusal::NotActive)),
            (Failure::DialFailed, Some(node)) => {
                out.push(Effect::Unreachable(node.clone()));
                Refusal::CannotReach(node)
            }
            (_, Some(node)) => {
                out.push(Effect::Forget(node, stamp));
                Refusal::NotConnected
            }
            (_, None) => Refusal::NotConnected,
        };
        if self.forwarded || self.again {
            return self.refuse(refusal, out);
        }
        self.look_again(now, Some((node, stamp)), refusal, out);
    }

    fn look_again(&mut self, now: Mono, failed: Option<Way>, refusal: Refusal, out: &mut Vec<Effect>) {
        self.again = true;
        let until = now.after(self.timing.wait).min(self.deadline);
        if until <= now {
            return self.refuse(refusal, out);
        }
        self.state = State::Again { until, failed, refusal };
        out.push(Effect::Pull);
    }

    fn tick(&mut self, now: Mono, out: &mut Vec<Effect>) {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Looking if self.deadline <= now => self.refuse(Refusal::NotConnected, out),
            State::Again { until, refusal, .. } if until <= now => self.refuse(refusal, out),
            state => self.state = state,
        }
    }

    fn refuse(&mut self, refusal: Refusal, out: &mut Vec<Effect>) {
        self.state = State::Over;
        out.push(Effect::Refuse(refusal));
    }
}

#[cfg(test)]
mod tests;
