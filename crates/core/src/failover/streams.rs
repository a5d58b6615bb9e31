//! Where a client's stream goes when it ends.
//!
//! What must hold: every attempt that ends moves to the next endpoint, and only a full cycle of failures is followed by
//! a pause, so that a dead replica keeps no stream away; pauses grow until a stream has proved itself; a refusal is an
//! answer: it slows down and does not rotate; who is told to go, or gets nothing but what is older than it has, opens the
//! next stream before it drops the old one.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::EndpointId;
use crate::Mono;
use crate::time::{Spread, doubling, earliest, jittered};

/// The times of [`Streams`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The pause after the first full cycle; 100 ms, doubling to `pause_ceiling`, each spread over its upper half.
    pub pause: Duration,
    /// The longest pause; 30 s.
    pub pause_ceiling: Duration,
    /// How long a stream must live, and have synced, before pauses begin anew; 15 s.
    pub proof: Duration,
    /// The pause after a refusal that names none; 5 s, doubling to `refusal_ceiling`.
    pub refusal: Duration,
    /// The longest pause after a refusal, whatever it asks for; 5 min.
    pub refusal_ceiling: Duration,
    /// How long a stream may be behind before the client looks for a better one; 60 s, doubling to `behind_ceiling`.
    pub behind: Duration,
    /// The longest such time; 10 min.
    pub behind_ceiling: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            pause: Duration::from_millis(100),
            pause_ceiling: Duration::from_secs(30),
            proof: Duration::from_secs(15),
            refusal: Duration::from_secs(5),
            refusal_ceiling: Duration::from_secs(300),
            behind: Duration::from_secs(60),
            behind_ceiling: Duration::from_secs(600),
        }
    }
}

/// The number of one attempt to have a stream.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct StreamId(u64);

impl StreamId {
    /// The attempt of this number, from 0.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// How a stream, or the attempt to have it, ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// It failed, was silent, broke, or the server ended it.
    Lost,
    /// The server refused to subscribe with an answer that every replica would give alike: 400, 401, 403 or 429.
    Refused {
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
}

/// What the shell tells [`Streams`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// Begin.
    Begin,
    /// The server took the subscription.
    Opened(StreamId),
    /// Its baseline, or what was missed, is complete.
    Synced(StreamId),
    /// The server asks the client to move.
    GoAway {
        /// From which stream.
        stream: StreamId,
        /// At a random moment within this time.
        within: Duration,
    },
    /// Whether a value of this stream is held back that differs from what the application has. A replica whose clock was
    /// set back, or which lost its upstream, would else keep the client from what others know.
    Behind {
        /// Of which stream.
        stream: StreamId,
        /// From now on, or no more.
        behind: bool,
    },
    /// It is over.
    Ended(StreamId, End),
    /// Time passed.
    Tick,
}

/// Whether changes arrive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// They do.
    Live,
    /// They have not since this instant.
    Reconnecting {
        /// When the last stream ended.
        since: Mono,
    },
    /// They do not, because the servers refuse to subscribe.
    Refused,
}

/// What the shell must do, in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Subscribe at this endpoint, and answer with what becomes of it.
    Open(StreamId, EndpointId),
    /// Drop this stream; nothing of it is heard any more.
    Close(StreamId),
    /// Tell the application.
    Show(Standing),
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    id: StreamId,
    endpoint: EndpointId,
    opened: Option<Mono>,
    synced: bool,
    /// It has lived long enough, and pauses began anew.
    proved: bool,
    /// When the client moves away from it.
    leave: Option<Mono>,
    /// When it has been behind for too long.
    behind: Option<Mono>,
}

impl Stream {
    fn leaves(&self) -> Option<Mono> {
        earliest(self.leave, self.behind)
    }
}

/// The stream of one set of names.
#[derive(Clone, Debug)]
pub struct Streams {
    timing: Timing,
    count: NonZeroUsize,
    spread: Spread,
    standing: Standing,
    /// Since when no stream serves, while none does.
    since: Mono,
    /// The one that serves.
    current: Option<Stream>,
    /// The one that is to serve next.
    next: Option<Stream>,
    /// When the next one is opened, and where.
    wait: Option<(Mono, EndpointId)>,
    first: EndpointId,
    ids: u64,
    /// Attempts that ended since the last pause, or since a stream proved itself.
    spent: usize,
    pauses: u32,
    refusals: u32,
    /// Moves in a row because a stream was behind.
    moves: u32,
}

impl Streams {
    /// Over so many endpoints, of which `first` is tried first.
    pub const fn new(count: NonZeroUsize, first: EndpointId, timing: Timing, spread: Spread) -> Self {
        Self {
            timing,
            count,
            spread,
            standing: Standing::Reconnecting { since: Mono::ZERO },
            since: Mono::ZERO,
            current: None,
            next: None,
            wait: None,
            first,
            ids: 0,
            spent: 0,
            pauses: 0,
            refusals: 0,
            moves: 0,
        }
    }

    /// Takes one event. What concerns a stream that is gone changes nothing.
    pub fn on(&mut self, now: Mono, event: Event, out: &mut Vec<Effect>) {
        self.credit(now);
        match event {
            Event::Begin if self.ids == 0 => {
                (self.since, self.standing) = (now, Standing::Reconnecting { since: now });
                self.open(self.first, out);
            }
            Event::Opened(id) => self.opened(now, id, out),
            Event::Synced(id) => self.synced(id, out),
            Event::GoAway { stream, within } => self.go_away(now, stream, within),
            Event::Behind { stream, behind } => self.behind(now, stream, behind),
            Event::Ended(id, end) => self.ended(now, id, end, out),
            Event::Begin | Event::Tick => {}
        }
        self.proceed(now, out);
        self.show(out);
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Mono> {
        let idle = self.next.is_none() && self.wait.is_none();
        let leave = self.current.filter(|_| idle).and_then(|current| current.leaves());
        earliest(self.wait.map(|(at, _)| at), leave)
    }

    /// Whether changes arrive.
    pub const fn standing(&self) -> Standing {
        self.standing
    }

    /// A stream that has lived long enough lets pauses begin anew, once.
    fn credit(&mut self, now: Mono) {
        let Some(current) = &mut self.current else { return };
        let lived = current.opened.is_some_and(|at| now.since(at) >= self.timing.proof);
        if lived && current.synced && !current.proved {
            current.proved = true;
            (self.spent, self.pauses) = (0, 0);
        }
        if lived && current.synced && current.behind.is_none() {
            self.moves = 0;
        }
    }

    fn opened(&mut self, now: Mono, id: StreamId, out: &mut Vec<Effect>) {
        let Some(next) = self.next.as_mut().filter(|next| next.id == id) else { return };
        next.opened = Some(now);
        self.refusals = 0;
        if self.current.is_none() || next.synced {
            self.take_over(out);
        }
    }

    fn synced(&mut self, id: StreamId, out: &mut Vec<Effect>) {
        if let Some(current) = self.current.as_mut().filter(|current| current.id == id) {
            current.synced = true;
        } else if let Some(next) = self.next.as_mut().filter(|next| next.id == id) {
            next.synced = true;
            if next.opened.is_some() {
                self.take_over(out);
            }
        }
    }

    /// The next one serves from now on; the old one, if there is one, is dropped only now.
    fn take_over(&mut self, out: &mut Vec<Effect>) {
        if let Some(old) = std::mem::replace(&mut self.current, self.next.take()) {
            out.push(Effect::Close(old.id));
        }
    }

    fn go_away(&mut self, now: Mono, id: StreamId, within: Duration) {
        let leave = now.after(within.mul_f64(self.spread.unit()));
        for stream in [&mut self.current, &mut self.next].into_iter().flatten() {
            if stream.id == id {
                stream.leave.get_or_insert(leave);
            }
        }
    }

    fn behind(&mut self, now: Mono, id: StreamId, behind: bool) {
        let patience = doubling(self.timing.behind, self.timing.behind_ceiling, self.moves);
        for stream in [&mut self.current, &mut self.next].into_iter().flatten() {
            if stream.id == id && behind {
                stream.behind.get_or_insert(now.after(patience));
            } else if stream.id == id {
                (stream.behind, self.moves) = (None, 0);
            }
        }
    }

    fn ended(&mut self, now: Mono, id: StreamId, end: End, out: &mut Vec<Effect>) {
        if let Some(next) = self.next.take_if(|next| next.id == id) {
            return match end {
                End::Lost => self.move_on(now, next, out),
                End::Refused { retry_after } => self.slow_down(now, next.endpoint, retry_after),
            };
        }
        let Some(current) = self.current.take_if(|current| current.id == id) else { return };
        self.since = now;
        if self.next.is_some_and(|next| next.opened.is_some()) {
            self.take_over(out);
        } else if self.next.is_none() && self.wait.is_none() {
            self.move_on(now, current, out);
        }
    }

    /// After an attempt that ended: the next endpoint, at once unless all have had their turn.
    fn move_on(&mut self, now: Mono, ended: Stream, out: &mut Vec<Effect>) {
        let target = ended.endpoint.next(self.count);
        self.refusals = 0;
        // The end of a stream that proved itself is no failure, and the cycle begins with the attempt after it.
        self.spent = self.spent.saturating_add(usize::from(!ended.proved));
        if self.spent < self.count.get() {
            return self.open(target, out);
        }
        let pause = doubling(self.timing.pause, self.timing.pause_ceiling, self.pauses);
        let pause = jittered(pause.mul_f64(0.75), 1.0 / 3.0, self.spread.unit());
        (self.spent, self.pauses) = (0, self.pauses.saturating_add(1));
        self.wait = Some((now.after(pause), target));
    }

    /// After a refusal: the same endpoint, later.
    fn slow_down(&mut self, now: Mono, endpoint: EndpointId, retry_after: Option<Duration>) {
        let Timing { refusal, refusal_ceiling, .. } = self.timing;
        let pause = retry_after.unwrap_or(doubling(refusal, refusal_ceiling, self.refusals));
        self.refusals = self.refusals.saturating_add(1);
        self.wait = Some((now.after(pause.min(refusal_ceiling)), endpoint));
    }

    fn proceed(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self.next_deadline().is_none_or(|at| now < at) {
            return;
        }
        if let Some((_, endpoint)) = self.wait.take() {
            self.open(endpoint, out);
        } else if let Some(current) = &mut self.current {
            // Once: when the move fails, the rotation goes on by itself.
            current.leave = None;
            if current.behind.is_some_and(|at| at <= now) {
                self.moves = self.moves.saturating_add(1);
                let patience = doubling(self.timing.behind, self.timing.behind_ceiling, self.moves);
                current.behind = Some(now.after(patience));
            }
            let endpoint = current.endpoint.next(self.count);
            self.open(endpoint, out);
        }
    }

    fn open(&mut self, endpoint: EndpointId, out: &mut Vec<Effect>) {
        let id = StreamId(self.ids);
        self.ids = self.ids.saturating_add(1);
        let stream =
            Stream { id, endpoint, opened: None, synced: false, proved: false, leave: None, behind: None };
        self.next = Some(stream);
        out.push(Effect::Open(id, endpoint));
    }

    fn show(&mut self, out: &mut Vec<Effect>) {
        let standing = match self.current {
            Some(_) => Standing::Live,
            None if self.refusals > 0 => Standing::Refused,
            None => Standing::Reconnecting { since: self.since },
        };
        if standing != self.standing {
            self.standing = standing;
            out.push(Effect::Show(standing));
        }
    }
}

#[cfg(test)]
mod tests;
