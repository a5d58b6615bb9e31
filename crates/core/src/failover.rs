//! How a client of several replicas goes from one to another: for a request that must be answered, and for a stream
//! that must not stay away.
//!
//! What must hold: an answer that every replica would give alike is asked for once; an endpoint that failed is tried
//! last, and found again by one request at a time; a request tries each endpoint at most once; with one endpoint there
//! is one request.

mod streams;

use std::num::NonZeroUsize;
use std::time::Duration;

pub use streams::{Effect, End, Event, Standing, StreamId, Streams, Timing as StreamTiming};

use crate::time::doubling;
use crate::{AnswerKind, Mono};

/// The place of an endpoint in the configured list, from 0.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EndpointId(usize);

impl EndpointId {
    /// The endpoint at this place.
    pub const fn new(index: usize) -> Self {
        Self(index)
    }

    /// Its place.
    pub const fn index(self) -> usize {
        self.0
    }

    /// The one after it in a list of `count`; the first comes after the last.
    const fn next(self, count: NonZeroUsize) -> Self {
        Self(self.0.wrapping_add(1) % count.get())
    }
}

/// How one attempt of a request ended.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Ended {
    /// With the answer.
    Answered,
    /// With an error envelope of this kind.
    Refused(AnswerKind),
    /// The dial was refused, the name not resolved, or TLS failed.
    Unreachable,
    /// The deadline of the attempt passed.
    TimedOut,
    /// With something that no replica in order sends: a status without an envelope, a redirect, a body that is cut
    /// short, not JSON, or about another name.
    Broken,
    /// With a value older than the watermark.
    Behind,
    /// The caller's own deadline passed, or it gave up.
    Stopped,
}

impl Ended {
    /// Whether another endpoint is asked.
    pub const fn moves_on(self) -> bool {
        match self {
            Self::Answered | Self::Stopped => false,
            Self::Refused(kind) => !kind.is_authoritative(),
            Self::Unreachable | Self::TimedOut | Self::Broken | Self::Behind => true,
        }
    }

    /// Whether it says that the endpoint itself is not in order. An envelope, of whatever kind, speaks of one name.
    pub const fn blames_endpoint(self) -> bool {
        matches!(self, Self::Unreachable | Self::TimedOut | Self::Broken)
    }
}

/// The times of [`Endpoints`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// For how long an endpoint that failed is tried last; 1 s, doubling to `ceiling`.
    pub pause: Duration,
    /// The longest such time; 30 s.
    pub ceiling: Duration,
    /// How long the one request that probes it may take before another one does; 3 s, the deadline of an attempt.
    pub probe: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(1),
            ceiling: Duration::from_secs(30),
            probe: Duration::from_secs(3),
        }
    }
}

/// What is known of one endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Health {
    /// Pauses in a row; 0 while it is in order.
    failures: u32,
    /// When the current pause began, and when it ends.
    began: Mono,
    until: Mono,
    /// When the request set out that probes it.
    probed: Option<Mono>,
}

/// The endpoints of one client, shared by all its requests.
#[derive(Clone, Debug)]
pub struct Endpoints {
    timing: Timing,
    list: Vec<Health>,
}

impl Endpoints {
    /// So many endpoints, all believed in order.
    pub fn new(count: NonZeroUsize, timing: Timing) -> Self {
        Self { timing, list: vec![Health::default(); count.get()] }
    }

    /// Whether requests try this one last now.
    pub fn is_paused(&self, now: Mono, endpoint: EndpointId) -> bool {
        self.list.get(endpoint.0).is_some_and(|health| self.paused(now, health))
    }

    fn paused(&self, now: Mono, health: &Health) -> bool {
        let probed = health.probed.is_some_and(|at| now < at.after(self.timing.probe));
        health.failures > 0 && (now < health.until || probed)
    }

    /// The first one in order that was not tried, else the first that was not tried.
    fn choose(&mut self, now: Mono, tried: &[EndpointId]) -> Option<EndpointId> {
        let left = || (0..self.list.len()).map(EndpointId).filter(|id| !tried.contains(id));
        let chosen = left().find(|id| !self.is_paused(now, *id)).or_else(|| left().next())?;
        if let Some(health) = self.list.get_mut(chosen.0).filter(|health| health.failures > 0)
            && health.until <= now
        {
            health.probed = Some(now);
        }
        Some(chosen)
    }

    fn ended(&mut self, now: Mono, endpoint: EndpointId, started: Mono, ended: Ended) {
        let Timing { pause, ceiling, .. } = self.timing;
        let Some(health) = self.list.get_mut(endpoint.0) else { return };
        if ended == Ended::Stopped {
            health.probed = health.probed.filter(|at| *at != started);
        } else if !ended.blames_endpoint() {
            // Late answers of what was asked before the failure prove nothing.
            if started >= health.began {
                *health = Health::default();
            }
        } else if health.failures == 0 || started >= health.until {
            // Many requests fail when an endpoint does: that is one failure, and so is what was tried in its pause.
            let until = now.after(doubling(pause, ceiling, health.failures));
            *health = Health { failures: health.failures.saturating_add(1), began: now, until, probed: None };
        }
    }
}

/// What comes next for a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Ask this endpoint.
    Try(EndpointId),
    /// It is over.
    Done(Verdict),
}

/// How a request ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// With what the last attempt brought: the answer, or a refusal that every replica would give.
    Given,
    /// With the error of the last attempt: no endpoint could answer.
    Failed,
    /// With the newest value already delivered, marked as behind: nobody had a newer one.
    Behind,
    /// The caller went.
    Stopped,
}

/// The way of one request along the endpoints.
#[derive(Clone, Debug)]
pub struct Walk {
    tried: Vec<EndpointId>,
    started: Mono,
    behind: bool,
}

impl Walk {
    /// Begins, and names the endpoint to ask first.
    pub fn begin(endpoints: &mut Endpoints, now: Mono) -> (Self, EndpointId) {
        let first = endpoints.choose(now, &[]).unwrap_or_default();
        (Self { tried: vec![first], started: now, behind: false }, first)
    }

    /// Takes the end of the attempt under way.
    pub fn ended(&mut self, endpoints: &mut Endpoints, now: Mono, ended: Ended) -> Step {
        if let Some(endpoint) = self.tried.last() {
            endpoints.ended(now, *endpoint, self.started, ended);
        }
        self.behind |= ended == Ended::Behind;
        match ended {
            Ended::Stopped => return Step::Done(Verdict::Stopped),
            _ if !ended.moves_on() => return Step::Done(Verdict::Given),
            _ => {}
        }
        match endpoints.choose(now, &self.tried) {
            Some(next) => {
                self.tried.push(next);
                self.started = now;
                Step::Try(next)
            }
            // What was delivered before is a better answer than that some replicas are away.
            None if self.behind => Step::Done(Verdict::Behind),
            None => Step::Done(Verdict::Failed),
        }
    }
}

#[cfg(test)]
mod tests;
