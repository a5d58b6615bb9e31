//! How a server without leadership goes down: the config server's way out, in named phases.
//!
//! `Serving -> Draining -> EndingStreams -> Finishing -> WindingUp -> Stopped`. What must hold: probes say no before any
//! stream or listener is touched; during the grace everything is served as ever; streams are told, then ended cleanly;
//! sockets are unlinked while they are still open; every wait is bounded; a second signal ends the grace and a third
//! one the process.

use std::time::Duration;

use crate::Mono;

/// The times of a [`Leaving`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long everything goes on while probes say no, so that balancers move away; 0 s (0 s-1 h).
    pub grace: Duration,
    /// The longest wait for streams to end cleanly; 1 s.
    pub streams: Duration,
    /// The longest wait for requests in flight, one for all listeners; 5 s.
    pub requests: Duration,
    /// The longest wait for tasks to end and files to be written; 5 s.
    pub wind_up: Duration,
}

impl Timing {
    /// The defaults with this grace.
    pub const fn with_grace(grace: Duration) -> Self {
        Self {
            grace,
            streams: Duration::from_secs(1),
            requests: Duration::from_secs(5),
            wind_up: Duration::from_secs(5),
        }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::with_grace(Duration::ZERO)
    }
}

/// Where a server is on its way down; published on a watch channel.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Phase {
    /// It has not started; a close now makes it never start.
    Starting,
    /// Normal work.
    Serving,
    /// Probes say no until this instant; everything else goes on.
    Draining(Mono),
    /// Streams end; listeners still accept.
    EndingStreams(Mono),
    /// Listeners are closed; requests in flight may finish until this instant.
    Finishing(Mono),
    /// Nothing is served any more; tasks end and files are written.
    WindingUp(Mono),
    /// Nothing runs any more.
    Stopped,
}

impl Phase {
    /// Whether probes say that it goes down.
    pub const fn is_draining(self) -> bool {
        !matches!(self, Self::Starting | Self::Serving)
    }
}

/// What the shell tells a [`Leaving`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The listeners are bound and the server is about to accept.
    Started,
    /// SIGTERM or SIGINT.
    Signal,
    /// The server was closed, or its run was cancelled. Again is as good as once.
    Close,
    /// How much is open now; told whenever it changes.
    Open {
        /// Streams.
        streams: usize,
        /// Other requests in flight.
        requests: usize,
    },
    /// [`Effect::WindUp`] is done.
    WoundUp,
    /// Time passed.
    Tick,
}

/// What the shell must do, in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Publish the phase.
    Enter(Phase),
    /// Send `goaway` on every stream, open or to come, and let responses ask their connections to close.
    TellToGo {
        /// Within which time clients should have moved.
        within: Duration,
    },
    /// End all streams cleanly, and those that still come.
    EndStreams,
    /// Cut the streams that did not end.
    CutStreams,
    /// Unlink the own Unix sockets, if they are still the own ones.
    UnlinkSockets,
    /// Close the listeners.
    StopAccepting,
    /// Abort the requests that did not finish.
    AbortRequests,
    /// Stop upstream tasks, write the last-known-good file, flush the audit; answer with [`Event::WoundUp`].
    WindUp,
    /// Refuse to start: the server was closed before.
    RefuseStart,
    /// End the process with this status.
    Exit(u8),
}

/// The way down of one server.
#[derive(Clone, Debug)]
pub struct Leaving {
    timing: Timing,
    phase: Phase,
    /// How often it was asked to go; a close is as good as the first signal.
    signals: u32,
    streams: usize,
    requests: usize,
}

impl Leaving {
    /// A server that has not started.
    pub const fn new(timing: Timing) -> Self {
        Self { timing, phase: Phase::Starting, signals: 0, streams: 0, requests: 0 }
    }

    /// Another grace, as a reload gives; it counts from the next signal on.
    pub const fn set_grace(&mut self, grace: Duration) {
        self.timing.grace = grace;
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Started => self.started(out),
            Event::Signal => self.signal(now, out),
            Event::Close => {
                self.signals = self.signals.max(1);
                self.leave(now, out);
            }
            Event::Open { streams, requests } => (self.streams, self.requests) = (streams, requests),
            Event::WoundUp if matches!(self.phase, Phase::WindingUp(_)) => self.stop(0, out),
            Event::WoundUp | Event::Tick => {}
        }
        self.proceed(now, out);
    }

    /// When [`Event::Tick`] is due.
    pub const fn next_deadline(&self) -> Option<Mono> {
        match self.phase {
            Phase::Starting | Phase::Serving | Phase::Stopped => None,
            Phase::Draining(at) | Phase::EndingStreams(at) | Phase::Finishing(at) | Phase::WindingUp(at) => {
                Some(at)
            }
        }
    }

    /// Where the server is.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    fn started(&mut self, out: &mut Vec<Effect>) {
        match self.phase {
            Phase::Starting => self.enter(Phase::Serving, out),
            Phase::Stopped => out.push(Effect::RefuseStart),
            _ => {}
        }
    }

    fn signal(&mut self, now: Mono, out: &mut Vec<Effect>) {
        self.signals = self.signals.saturating_add(1);
        match (self.signals, self.phase) {
            (_, Phase::Stopped) => {}
            (3.., _) => self.stop(1, out),
            (2, Phase::Draining(_)) => self.end_streams(now, out),
            _ => self.leave(now, out),
        }
    }

    fn leave(&mut self, now: Mono, out: &mut Vec<Effect>) {
        match self.phase {
            Phase::Starting => self.stop(0, out),
            Phase::Serving => {
                let grace = self.timing.grace;
                self.enter(Phase::Draining(now.after(grace)), out);
                out.push(Effect::TellToGo { within: grace / 2 });
            }
            _ => {}
        }
    }

    /// Goes through every phase whose time is over or that has nothing to wait for.
    fn proceed(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Draining(until) if until <= now) {
            self.end_streams(now, out);
        }
        if matches!(self.phase, Phase::EndingStreams(until) if self.streams == 0 || until <= now) {
            if self.streams > 0 {
                out.push(Effect::CutStreams);
            }
            out.extend([Effect::UnlinkSockets, Effect::StopAccepting]);
            self.enter(Phase::Finishing(now.after(self.timing.requests)), out);
        }
        if matches!(self.phase, Phase::Finishing(until) if self.requests == 0 || until <= now) {
            if self.requests > 0 {
                out.push(Effect::AbortRequests);
            }
            self.enter(Phase::WindingUp(now.after(self.timing.wind_up)), out);
            out.push(Effect::WindUp);
        }
        // Something was not saved, and the status says so.
        if matches!(self.phase, Phase::WindingUp(until) if until <= now) {
            self.stop(1, out);
        }
    }

    fn end_streams(&mut self, now: Mono, out: &mut Vec<Effect>) {
        self.enter(Phase::EndingStreams(now.after(self.timing.streams)), out);
        out.push(Effect::EndStreams);
    }

    fn stop(&mut self, status: u8, out: &mut Vec<Effect>) {
        self.enter(Phase::Stopped, out);
        out.push(Effect::Exit(status));
    }

    fn enter(&mut self, phase: Phase, out: &mut Vec<Effect>) {
        self.phase = phase;
        out.push(Effect::Enter(phase));
    }
}

#[cfg(test)]
mod tests;
