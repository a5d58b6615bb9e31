//! What may be sent again, and how long a request waits for a node that can take it.
//!
//! What must hold: a request that may have started and has side effects is never sent twice; a request is answered
//! exactly once; none outlives its deadline; the waiting room is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::Mono;
use crate::time::doubling;

/// Whether doing it twice differs from doing it once.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Work {
    /// A read without side effects. A read that makes something, such as a login, is not one.
    Pure,
    /// Anything else.
    Effectful,
}

/// Where a request that was sent to another node failed.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Failure {
    /// No connection came about.
    DialFailed,
    /// The connection refused the stream before the request was handed to anyone.
    StreamRefused,
    /// The other side answered, typed, that it is not the active node and did nothing.
    NotActive,
    /// The request left, and no complete answer came.
    Broken,
    /// The request left, and its deadline passed.
    TimedOut,
}

impl Failure {
    /// Whether the request provably did not start.
    pub const fn did_not_start(self) -> bool {
        matches!(self, Self::DialFailed | Self::StreamRefused | Self::NotActive)
    }
}

/// Whether `work` may be sent again after `failure`. The only place that knows.
pub const fn may_resend(work: Work, failure: Failure) -> bool {
    failure.did_not_start() || matches!(work, Work::Pure)
}

/// The times and bounds of a [`Forwarder`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a request is held while no active node is known or reachable; 2 s (0-10 s).
    pub hold: Duration,
    /// How many requests are held at most; 1024. One more is refused at once.
    pub held: usize,
    /// The pause before the same node is tried again, doubling to `pause_ceiling`; 20 ms.
    pub pause: Duration,
    /// The longest pause; 250 ms.
    pub pause_ceiling: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(2),
            held: 1024,
            pause: Duration::from_millis(20),
            pause_ceiling: Duration::from_millis(250),
        }
    }
}

/// Who serves, as this node believes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Active<N> {
    /// Nobody known.
    Unknown,
    /// Another node.
    Peer(N),
    /// This node, and its gate is open.
    Here,
}

impl<N: PartialEq> Active<N> {
    /// From what consensus reports. A leader equal to ourselves while our gate is shut is nobody: forwarding to
    /// it would come back to us.
    pub fn resolve(reported: Option<N>, own: &N, gate_open: bool) -> Self {
        match reported {
            _ if gate_open => Self::Here,
            Some(node) if node != *own => Self::Peer(node),
            _ => Self::Unknown,
        }
    }
}

/// The number of a request within its node.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestId(u64);

impl RequestId {
    /// Wraps a number, unique among the requests that are not answered yet.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }
}

/// What the shell tells a [`Forwarder`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event<N> {
    /// A request arrived.
    Arrived {
        /// Its number.
        id: RequestId,
        /// Its kind.
        work: Work,
        /// When it ends at the latest.
        deadline: Mono,
        /// It was forwarded to us by another node, and is never forwarded again.
        forwarded: bool,
    },
    /// Who serves changed, or was confirmed.
    Active(Active<N>),
    /// A request that was sent failed.
    Failed {
        /// The request.
        id: RequestId,
        /// Where it failed.
        failure: Failure,
    },
    /// A request was answered by the node it was sent to, or its client went away.
    Done {
        /// The request.
        id: RequestId,
    },
    /// Time passed.
    Tick,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Refusal {
    /// Nobody serves: 503 `no active Vault instance found`.
    NoActiveNode,
    /// It may have been done: 503 `request outcome unknown`.
    OutcomeUnknown,
    /// It was forwarded to us and we do not serve: the typed `not_active` answer.
    NotActive,
}

/// What the shell must do, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect<N> {
    /// Send the request to this node; answer with [`Event::Failed`] or [`Event::Done`].
    Send(RequestId, N),
    /// Serve the request here; the machine forgets it.
    Serve(RequestId),
    /// Refuse the request; the machine forgets it.
    Refuse(RequestId, Refusal),
    /// Start nothing more on connections to this node and close them once idle: it serves no longer.
    CloseConnections(N),
}

#[derive(Clone, Debug)]
struct Request<N> {
    work: Work,
    deadline: Mono,
    /// Until when it may be held; runs from the moment nobody could take it, and only a new node resets it.
    patience: Option<Mono>,
    failed_at: Option<N>,
    tries: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Under way; ours to hear of.
    Sent,
    /// Held until the active node changes, or until this instant when the same one is tried again.
    Held(Mono),
}

/// The requests that a node passes on to the active one.
#[derive(Clone, Debug)]
pub struct Forwarder<N> {
    limits: Limits,
    active: Active<N>,
    requests: BTreeMap<RequestId, Request<N>>,
    held: usize,
    wakes: BTreeSet<(Mono, RequestId)>,
}

impl<N: Clone + Eq> Forwarder<N> {
    /// No request, and nobody known to serve.
    pub const fn new(limits: Limits) -> Self {
        Self { limits, active: Active::Unknown, requests: BTreeMap::new(), held: 0, wakes: BTreeSet::new() }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event<N>, out: &mut Vec<Effect<N>>) {
        match event {
            Event::Arrived { id, forwarded: true, .. } => out.push(match self.active {
                Active::Here => Effect::Serve(id),
                _ => Effect::Refuse(id, Refusal::NotActive),
            }),
            Event::Arrived { id, work, deadline, forwarded: false } => {
                let request =
                    Request { work, deadline, patience: None, failed_at: None, tries: 0, state: State::Sent };
                self.dispatch(now, id, request, out);
            }
            Event::Active(active) => self.active_is(now, active, out),
            Event::Failed { id, failure } => self.failed(now, id, failure, out),
            Event::Done { id } => {
                self.take(id);
            }
            Event::Tick => {}
        }
        self.wake(now, out);
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Mono> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// How many requests wait for a node that can take them.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Who serves, as this node believes.
    pub const fn active(&self) -> &Active<N> {
        &self.active
    }

    fn active_is(&mut self, now: Mono, active: Active<N>, out: &mut Vec<Effect<N>>) {
        if self.active == active {
            return;
        }
        if let Active::Peer(before) = std::mem::replace(&mut self.active, active) {
            out.push(Effect::CloseConnections(before));
        }
        let held: Vec<_> = self.wakes.iter().map(|(_, id)| *id).collect();
        for id in held {
            if let Some(request) = self.take(id) {
                self.dispatch(now, id, request, out);
            }
        }
    }

    fn failed(&mut self, now: Mono, id: RequestId, failure: Failure, out: &mut Vec<Effect<N>>) {
        // A late report about a request that is held again, or gone, changes nothing.
        if self.requests.get(&id).is_none_or(|request| request.state != State::Sent) {
            return;
        }
        let Some(mut request) = self.take(id) else { return };
        if !may_resend(request.work, failure) {
            out.push(Effect::Refuse(id, Refusal::OutcomeUnknown));
            return;
        }
        request.tries = request.tries.saturating_add(1);
        self.dispatch(now, id, request, out);
    }

    /// Sends, serves, holds or refuses.
    fn dispatch(&mut self, now: Mono, id: RequestId, mut request: Request<N>, out: &mut Vec<Effect<N>>) {
        if request.deadline <= now {
            out.push(Effect::Refuse(id, Refusal::NoActiveNode));
            return;
        }
        match &self.active {
            Active::Here => out.push(Effect::Serve(id)),
            Active::Peer(node) if request.failed_at.as_ref() != Some(node) => {
                let node = node.clone();
                (request.patience, request.tries) = (None, 0);
                self.send(id, node, request, out);
            }
            Active::Peer(_) | Active::Unknown => self.hold(now, id, request, out),
        }
    }

    fn send(&mut self, id: RequestId, node: N, mut request: Request<N>, out: &mut Vec<Effect<N>>) {
        // Remembered now, so that a failure of this very attempt finds the node that it failed at.
        request.failed_at = Some(node.clone());
        request.state = State::Sent;
        self.requests.insert(id, request);
        out.push(Effect::Send(id, node));
    }

    fn hold(&mut self, now: Mono, id: RequestId, mut request: Request<N>, out: &mut Vec<Effect<N>>) {
        let patience = *request.patience.get_or_insert(now.after(self.limits.hold));
        if self.held >= self.limits.held || patience <= now {
            out.push(Effect::Refuse(id, Refusal::NoActiveNode));
            return;
        }
        let pause = doubling(self.limits.pause, self.limits.pause_ceiling, request.tries.saturating_sub(1));
        let end = patience.min(request.deadline);
        let until = if self.active == Active::Unknown { end } else { now.after(pause).min(end) };
        request.state = State::Held(until);
        self.held = self.held.saturating_add(1);
        self.wakes.insert((until, id));
        self.requests.insert(id, request);
    }

    fn wake(&mut self, now: Mono, out: &mut Vec<Effect<N>>) {
        while let Some((_, id)) = self.wakes.first().copied().filter(|(at, _)| *at <= now) {
            let Some(request) = self.take(id) else { return };
            let over = request.patience.is_some_and(|end| end <= now) || request.deadline <= now;
            match &self.active {
                Active::Peer(node) if !over => {
                    let node = node.clone();
                    self.send(id, node, request, out);
                }
                _ => out.push(Effect::Refuse(id, Refusal::NoActiveNode)),
            }
        }
    }

    fn take(&mut self, id: RequestId) -> Option<Request<N>> {
        let request = self.requests.remove(&id)?;
        if let State::Held(until) = request.state {
            self.held = self.held.saturating_sub(1);
            self.wakes.remove(&(until, id));
        }
        Some(request)
    }
}

#[cfg(test)]
mod tests;
