//! When and whom a daemon dials.

use std::time::Duration;

use super::addresses::Addresses;
use crate::ownership::{BootId, Stamp};
use crate::time::{Spread, doubling, jittered};
use crate::{Epoch, Mono};

/// The times and bounds of a [`Dialer`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The longest pause before the first try; 250 ms. Doubles with every failure.
    pub first: Duration,
    /// Where the doubling ends; 10 s.
    pub ceiling: Duration,
    /// A session this long proves that all is well: counts begin anew; 30 s.
    pub settled: Duration,
    /// The pause before a redirect is followed; 2 s.
    pub redirect: Duration,
    /// How many redirects in a row are followed; 5.
    pub redirects: u32,
    /// The pause after one more, +-20 %; 30 s.
    pub redirect_limit: Duration,
    /// The pause before each dial while another daemon uses the identity, +-20 %; 60 s.
    pub rival: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(250),
            ceiling: Duration::from_secs(10),
            settled: Duration::from_secs(30),
            redirect: Duration::from_secs(2),
            redirects: 5,
            redirect_limit: Duration::from_secs(30),
            rival: Duration::from_secs(60),
        }
    }
}

/// What a [`Dialer`] is made from.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The times.
    pub timing: Timing,
    /// The addresses of the configuration, at least one.
    pub addresses: Vec<String>,
    /// This start of the daemon.
    pub boot: BootId,
    /// The epoch that was used last: the counter in the session file, or the daemon's own milliseconds since 1970 when
    /// there is none.
    pub last: Epoch,
    /// End instead of dialling again.
    pub once: bool,
    /// Drawn from a real random source.
    pub seed: u64,
}

/// Why a dial came to nothing, or a session ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum End {
    /// The other side ended the stream in order.
    Closed,
    /// Anything that is none of the others.
    Failed,
    /// Code and detail say: dial this address.
    Redirected(String),
    /// Another stream of this spoke won.
    Superseded {
        /// The winner.
        by: Stamp,
        /// Whether it was heard of lately.
        alive: bool,
    },
}

/// What the shell tells a [`Dialer`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// Begin.
    Start,
    /// The epoch is on disk; or, when `false`, it could not be written and lives in memory only.
    Persisted(Epoch, bool),
    /// The dial's welcome came, with the addresses of all nodes.
    Opened(Epoch, Vec<String>),
    /// The dial failed, or its session ended.
    Ended(Epoch, End),
    /// The session's hub asks to leave: for this address, or for any other node's when empty.
    Drain(Epoch, Option<String>),
    /// The daemon goes down.
    Stop,
    /// Time passed.
    Tick,
}

/// Something for the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Report {
    /// WARN, once: the epoch cannot be written and lives in memory only.
    NotPersisted,
    /// ERROR: another daemon uses this identity; the next dial comes after this pause.
    TwoDaemons(Duration),
    /// ERROR `redirect limit reached`.
    RedirectLimit,
}

/// Why a session is closed from this side.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Goodbye {
    /// A successor stands.
    Moved,
    /// The daemon goes down.
    Stopping,
}

/// How a daemon ends.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Exit {
    /// Code 0.
    Ok,
    /// Code 1.
    Failed,
}

/// What the shell must do, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Write this epoch to the session file and fsync, then answer with [`Event::Persisted`].
    Persist(Epoch),
    /// Dial, saying hello with this epoch; answer with [`Event::Opened`] or [`Event::Ended`].
    Dial(Epoch, String),
    /// Give a dial up that has not been answered. No event follows.
    Abandon(Epoch),
    /// Say goodbye, finish what runs, close. No event has to follow.
    Close(Epoch, Goodbye),
    /// For the log.
    Report(Report),
    /// End the process, when the sessions told to close have done so.
    Exit(Exit),
}

#[derive(Clone, Debug)]
struct Session {
    epoch: Epoch,
    address: String,
    since: Mono,
    draining: bool,
}

#[derive(Clone, Debug)]
struct Attempt {
    epoch: Epoch,
    address: String,
    persisted: bool,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Plan {
    /// An address in turn.
    Turn,
    /// The address of a redirect.
    To(String),
}

/// The dialling of one daemon.
#[derive(Clone, Debug)]
pub struct Dialer {
    timing: Timing,
    boot: BootId,
    once: bool,
    spread: Spread,
    addresses: Addresses,
    last: Epoch,
    session: Option<Session>,
    attempt: Option<Attempt>,
    next: Option<(Mono, Plan)>,
    failures: u32,
    redirects: u32,
    rival: bool,
    lifted: bool,
    warned: bool,
    stopped: bool,
}

impl Dialer {
    /// A daemon that has not begun.
    pub fn new(setup: Setup) -> Self {
        Self {
            timing: setup.timing,
            boot: setup.boot,
            once: setup.once,
            spread: Spread::new(setup.seed),
            addresses: Addresses::new(setup.addresses),
            last: setup.last,
            session: None,
            attempt: None,
            next: None,
            failures: 0,
            redirects: 0,
            rival: false,
            lifted: false,
            warned: false,
            stopped: false,
        }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event, out: &mut Vec<Effect>) {
        if self.stopped {
            return;
        }
        match event {
            Event::Start => self.next = Some((now, Plan::Turn)),
            Event::Persisted(epoch, durable) => self.persisted(epoch, durable, out),
            Event::Opened(epoch, told) => self.opened(now, epoch, told, out),
            Event::Ended(epoch, end) => self.ended(now, epoch, end, out),
            Event::Drain(epoch, redirect) => self.drain(now, epoch, redirect, out),
            Event::Stop => self.exit(Exit::Ok, out),
            Event::Tick => {}
        }
        self.dial(now, out);
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Mono> {
        self.next.as_ref().map(|(at, _)| *at)
    }

    /// The session that takes commands, and its address.
    pub fn session(&self) -> Option<(Epoch, &str)> {
        self.session.as_ref().map(|session| (session.epoch, session.address.as_str()))
    }

    /// The epoch that was used last.
    pub const fn last_epoch(&self) -> Epoch {
        self.last
    }

    fn dial(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let due = self.attempt.is_none() && self.next.as_ref().is_some_and(|(at, _)| *at <= now);
        let Some((_, plan)) = self.next.take_if(|_| due) else { return };
        // A draining hub is the last that should be dialled again.
        let leave = self.session.as_ref().map(|session| session.address.as_str());
        let address = match plan {
            Plan::Turn => self.addresses.next(leave),
            Plan::To(address) => address,
        };
        self.last = self.last.next();
        self.attempt = Some(Attempt { epoch: self.last, address, persisted: false });
        out.push(Effect::Persist(self.last));
    }

    fn persisted(&mut self, epoch: Epoch, durable: bool, out: &mut Vec<Effect>) {
        let attempt = self.attempt.as_mut().filter(|attempt| attempt.epoch == epoch && !attempt.persisted);
        let Some(attempt) = attempt else { return };
        attempt.persisted = true;
        if !durable && !self.warned {
            self.warned = true;
            out.push(Effect::Report(Report::NotPersisted));
        }
        out.push(Effect::Dial(epoch, attempt.address.clone()));
    }

    fn opened(&mut self, now: Mono, epoch: Epoch, told: Vec<String>, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempt.take_if(|attempt| attempt.epoch == epoch) else { return };
        self.addresses.worked(&attempt.address, told);
        self.next = None;
        let session = Session { epoch, address: attempt.address, since: now, draining: false };
        if let Some(before) = self.session.replace(session) {
            out.push(Effect::Close(before.epoch, Goodbye::Moved));
        }
    }

    fn ended(&mut self, now: Mono, epoch: Epoch, end: End, out: &mut Vec<Effect>) {
        if let Some(session) = self.session.take_if(|session| session.epoch == epoch) {
            if now.since(session.since) > self.timing.settled {
                self.settled();
            }
            self.addresses.restart();
            // The successor of a draining session is on its way already, at its own pace.
            if (self.attempt.is_some() || self.next.is_some()) && !self.by_rival(&end) {
                return;
            }
            self.after(now, &session.address, end, true, out);
        } else if let Some(attempt) = self.attempt.take_if(|attempt| attempt.epoch == epoch) {
            self.after(now, &attempt.address, end, false, out);
        }
    }

    const fn settled(&mut self) {
        (self.failures, self.redirects) = (0, 0);
        (self.rival, self.lifted) = (false, false);
    }

    fn by_rival(&self, end: &End) -> bool {
        matches!(end, End::Superseded { by, .. } if by.boot != self.boot)
    }

    /// Plans the dial after one that failed, or after a session.
    fn after(&mut self, now: Mono, address: &str, end: End, was_open: bool, out: &mut Vec<Effect>) {
        let rival = self.by_rival(&end);
        match end {
            End::Superseded { by, alive: false } if rival => {
                self.last = self.last.max(by.epoch);
                if self.once {
                    return self.exit(Exit::Failed, out);
                }
                // At once, but not again and again.
                if std::mem::replace(&mut self.lifted, true) {
                    self.back_off(now, out);
                } else {
                    self.next = Some((now, Plan::Turn));
                }
            }
            End::Superseded { .. } if rival => {
                self.rival = true;
                self.fail(now, out);
            }
            End::Redirected(to) if to != address && !to.is_empty() => self.redirected(now, to, out),
            End::Closed if was_open && self.once => self.exit(Exit::Ok, out),
            _ => self.fail(now, out),
        }
    }

    fn fail(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self.once {
            self.exit(Exit::Failed, out);
        } else {
            self.back_off(now, out);
        }
    }

    fn back_off(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self.rival {
            let pause = self.rival_pause(out);
            self.next = Some((now.after(pause), Plan::Turn));
            return;
        }
        let longest = doubling(self.timing.first, self.timing.ceiling, self.failures);
        self.failures = self.failures.saturating_add(1);
        let pause = longest.mul_f64(self.spread.unit());
        self.next = Some((now.after(pause), Plan::Turn));
    }

    fn rival_pause(&mut self, out: &mut Vec<Effect>) -> Duration {
        let pause = jittered(self.timing.rival, 0.2, self.spread.unit());
        out.push(Effect::Report(Report::TwoDaemons(pause)));
        pause
    }

    fn redirected(&mut self, now: Mono, to: String, out: &mut Vec<Effect>) {
        self.redirects = self.redirects.saturating_add(1);
        if self.redirects <= self.timing.redirects {
            let pause = if self.rival { self.rival_pause(out) } else { self.timing.redirect };
            self.next = Some((now.after(pause), Plan::To(to)));
            return;
        }
        out.push(Effect::Report(Report::RedirectLimit));
        if self.once {
            return self.exit(Exit::Failed, out);
        }
        (self.redirects, self.failures) = (0, 0);
        self.addresses.forget();
        let pause = jittered(self.timing.redirect_limit, 0.2, self.spread.unit());
        self.next = Some((now.after(pause), Plan::Turn));
    }

    /// The successor is opened first; `opened` closes the session.
    fn drain(&mut self, now: Mono, epoch: Epoch, redirect: Option<String>, out: &mut Vec<Effect>) {
        let session = self.session.as_mut().filter(|session| session.epoch == epoch && !session.draining);
        let Some(session) = session.filter(|_| !self.once) else { return };
        session.draining = true;
        let settled = now.since(session.since) > self.timing.settled;
        let to = redirect.filter(|to| *to != session.address && !to.is_empty());
        if settled {
            self.settled();
        }
        self.addresses.restart();
        if self.attempt.is_some() || self.next.is_some() {
            return;
        }
        self.back_off(now, out);
        // Counted like a refusal with a redirect: two nodes that drain towards each other are left alone soon.
        if let (Some(to), false) = (to, self.rival) {
            self.redirects = self.redirects.saturating_add(1);
            if self.redirects <= self.timing.redirects {
                self.next = self.next.take().map(|(at, _)| (at, Plan::To(to)));
            }
        }
    }

    fn exit(&mut self, exit: Exit, out: &mut Vec<Effect>) {
        self.stopped = true;
        self.next = None;
        // An epoch that is still being written was not dialled.
        let dialling = self.attempt.take().filter(|attempt| attempt.persisted);
        out.extend(dialling.map(|attempt| Effect::Abandon(attempt.epoch)));
        out.extend(self.session.take().map(|session| Effect::Close(session.epoch, Goodbye::Stopping)));
        out.push(Effect::Exit(exit));
    }
}

#[cfg(test)]
mod tests;
