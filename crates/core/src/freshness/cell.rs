//! The state of one binding on one replica: every outcome of an attempt becomes one publish.
//!
//! What must hold: staleness, dates and what is served follow from outcomes and are set nowhere else; a failure keeps
//! the value and its date; the date never goes back unless a clock was set back; ages and deadlines are monotonic, so
//! that a clock that is set changes none; what a file restored never outlives a definite answer.

use std::time::Duration;

use super::{BAND, FUTURE, Failure, Outcome, Passed, Record, Refusal, Served, State, Trouble};
use crate::time::earliest;
use crate::{AnswerKind, Mono, Now, Wall};

/// How long after a first "absent" the confirming attempt begins.
const CONFIRM: Duration = Duration::from_secs(1);

/// What a binding's configuration says of its cell.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rules {
    /// From which age on a value is refused while the upstream fails; none, the default, for never.
    pub max_stale: Option<Duration>,
    /// Whether a confirmed "absent" drops the value; false, the default, keeps it as last-known-good.
    pub on_absent_drop: bool,
}

/// What the shell tells a [`Cell`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event<V> {
    /// An attempt ended.
    Attempt {
        /// When it was begun, or a push arrived. A value is dated by that: it was current at some moment since, while an
        /// answer that was long under way may have been overtaken.
        began: Now,
        /// How it ended.
        outcome: Outcome<V>,
    },
    /// A file has kept this value. Comes before the first attempt; afterwards it is ignored.
    Restore {
        /// The value.
        value: V,
        /// When it was last confirmed by the upstream.
        resolved_at: Wall,
    },
    /// The time to wait for a first outcome is over.
    PrimingOver,
    /// The configuration of the binding changed.
    Rules(Rules),
    /// The binding has another reference: what is held serves until the first outcome of that one, whatever its date.
    Rebound,
    /// Time passed.
    Tick,
}

/// What the shell must do, in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Show readers the state as it is now.
    Publish {
        /// Whether a reader sees a difference; else only dates moved.
        visible: bool,
    },
    /// Begin another attempt at this instant: it decides whether an absent value is dropped.
    ConfirmAbsence(Mono),
    /// The restored value serves; for a log line and the metric.
    UseRestored,
    /// The restored value must never serve again: take it out of the file.
    DiscardRestored,
    /// The wall clock was set back, and dates with it. The shell warns once for all the cells.
    ClockSteppedBack,
}

/// A value from a file that waits for the first outcome.
#[derive(Clone, Debug)]
struct Restored<V> {
    value: V,
    resolved_at: Wall,
    /// False once an outcome came that neither asks for it nor refutes it.
    usable: bool,
}

/// The cell of one binding.
#[derive(Clone, Debug)]
pub struct Cell<V> {
    rules: Rules,
    state: State<V>,
    /// The newest date ever shown.
    newest: Option<Wall>,
    /// The age of the value at an instant; from there the monotonic clock counts.
    age: (Duration, Mono),
    /// When the value's own life ends.
    expires: Option<Mono>,
    /// From when on another "absent" confirms the first.
    confirm: Option<Mono>,
    restored: Option<Restored<V>>,
    /// The value is the restored one, and no outcome has confirmed it yet.
    unconfirmed: bool,
    /// The value is one of an earlier reference.
    rebound: bool,
}

impl<V: Record> Cell<V> {
    /// A cell that had no outcome yet.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            state: State::default(),
            newest: None,
            age: (Duration::ZERO, Mono::ZERO),
            expires: None,
            confirm: None,
            restored: None,
            unconfirmed: false,
            rebound: false,
        }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Now, event: Event<V>, out: &mut Vec<Effect>) {
        let shown = (self.kind(), self.state.served);
        let asked = self.confirm;
        let (ended, replaced) = match event {
            Event::Attempt { began, outcome } => (true, self.attempt(now, began, outcome, out)),
            Event::PrimingOver if !self.state.settled => {
                (true, self.failed(now, Failure::of(AnswerKind::Unavailable), out))
            }
            Event::Restore { value, resolved_at } if !self.state.settled => {
                self.restored = Some(Restored { value, resolved_at, usable: true });
                (false, false)
            }
            Event::Rules(rules) => {
                self.rules = rules;
                (false, false)
            }
            Event::Rebound => {
                (self.rebound, self.confirm) = (true, None);
                (false, false)
            }
            Event::Restore { .. } | Event::PrimingOver | Event::Tick => (false, false),
        };
        self.state.served = self.serve(now.mono);
        let visible = replaced || shown != (self.kind(), self.state.served);
        if ended || visible {
            out.push(Effect::Publish { visible });
        }
        if let Some(at) = self.confirm.filter(|_| self.confirm != asked) {
            out.push(Effect::ConfirmAbsence(at));
        }
    }

    /// When [`Event::Tick`] is due: the value expires, or becomes older than it may be.
    pub fn next_deadline(&self) -> Option<Mono> {
        match self.state.served {
            Served::Value { .. } => earliest(self.expires, self.too_old_at()),
            Served::Refused(_, Refusal::TooOld) => self.expires,
            Served::Refused(..) => None,
        }
    }

    /// What readers see. Right at the moment of each [`Effect::Publish`].
    pub const fn state(&self) -> &State<V> {
        &self.state
    }

    /// How long ago the bytes that are held were confirmed by the upstream.
    pub fn age(&self, now: Mono) -> Option<Duration> {
        let (age, at) = self.age;
        self.state.value.as_ref().map(|_| age.saturating_add(now.since(at)))
    }

    fn kind(&self) -> Option<AnswerKind> {
        self.state.trouble.map(|trouble| trouble.kind)
    }

    /// Each of these returns whether the value was replaced or dropped.
    fn attempt(&mut self, now: Now, began: Now, outcome: Outcome<V>, out: &mut Vec<Effect>) -> bool {
        match outcome {
            Outcome::Value { value, passed } => self.resolved(now, began, (value, passed), out),
            Outcome::Error(failure) => self.failed(now, failure, out),
            Outcome::Absent => self.absent(now, out),
        }
    }

    fn resolved(
        &mut self,
        now: Now,
        began: Now,
        (value, passed): (V, Option<Passed>),
        out: &mut Vec<Effect>,
    ) -> bool {
        if self.restored.take().is_some() {
            out.push(Effect::DiscardRestored);
        }
        self.confirm = None;
        let kind = passed.and_then(|passed| passed.kind);
        if passed.and_then(|passed| passed.resolved_at).is_some_and(|date| self.is_behind(now.wall, date)) {
            // What another cache held earlier than this is no news about the value, and no confirmation of a restored one.
            let kind = kind.or_else(|| self.kind().filter(|_| self.unconfirmed));
            self.settle(now, kind);
            return false;
        }
        let same = self.state.value.as_ref() == Some(&value);
        match passed {
            Some(passed) => self.date_passed(now, passed, same),
            None => {
                self.age = (Duration::ZERO, began.mono);
                self.date_is(self.not_before_newest(began.wall, out));
            }
        }
        if !same {
            self.expires = value.not_after().map(|end| now.mono.after(end.since(now.wall)));
            self.state.value = Some(value);
        }
        (self.unconfirmed, self.rebound) = (false, false);
        self.settle(now, kind);
        !same
    }

    fn failed(&mut self, now: Now, failure: Failure, out: &mut Vec<Effect>) -> bool {
        let replaced = match failure.kind {
            // A refused login says nothing about the value: the next outcome is the first one that does.
            _ if failure.own_login => false,
            AnswerKind::Unavailable | AnswerKind::RateLimited => self.use_restored(now, out),
            AnswerKind::Unknown => {
                self.restored = self.restored.take().map(|kept| Restored { usable: false, ..kept });
                false
            }
            _ => self.discard_restored(out),
        };
        self.confirm = None;
        self.settle(now, Some(failure.kind));
        replaced
    }

    fn absent(&mut self, now: Now, out: &mut Vec<Effect>) -> bool {
        let mut dropped = self.discard_restored(out);
        match self.confirm {
            _ if !self.rules.on_absent_drop || self.state.value.is_none() => self.confirm = None,
            Some(at) if at <= now.mono => {
                self.drop_value();
                dropped = true;
            }
            // The same absence, seen again before its time.
            Some(_) => {}
            None => self.confirm = Some(now.mono.after(CONFIRM)),
        }
        self.settle(now, Some(AnswerKind::NotFound));
        dropped
    }

    fn settle(&mut self, now: Now, kind: Option<AnswerKind>) {
        self.state.settled = true;
        self.state.checked_at = Some(now.wall);
        let since = self.state.trouble.map_or(now.wall, |trouble| trouble.since);
        self.state.trouble = kind.map(|kind| Trouble { kind, since });
    }

    /// Whether another cache confirmed a value so much earlier than what is held here that it cannot be newer.
    fn is_behind(&self, wall: Wall, date: Wall) -> bool {
        let held = self.state.resolved_at.filter(|_| self.state.value.is_some() && !self.rebound);
        held.is_some_and(|held| held.since(date) > BAND && held.since(wall) <= FUTURE)
    }

    /// Dates the value that is held from now on as another cache did.
    fn date_passed(&mut self, now: Now, passed: Passed, same: bool) {
        let Some(date) = passed.resolved_at else {
            if !same {
                (self.state.resolved_at, self.age) = (None, (Duration::ZERO, now.mono));
            }
            return;
        };
        // The same date again: its age goes on by the monotonic clock, whatever became of the wall clock.
        if self.state.resolved_at != Some(date) {
            self.age = (now.wall.since(date), now.mono);
        }
        // Inside the band, clocks of two replicas differ: the later date stays.
        let held = self.state.resolved_at.filter(|held| held.since(date) <= BAND);
        self.date_is(held.map_or(date, |held| held.max(date)));
    }

    fn date_is(&mut self, date: Wall) {
        (self.state.resolved_at, self.newest) = (Some(date), Some(date));
    }

    fn not_before_newest(&self, date: Wall, out: &mut Vec<Effect>) -> Wall {
        match self.newest {
            Some(newest) if newest.since(date) > FUTURE => {
                out.push(Effect::ClockSteppedBack);
                date
            }
            Some(newest) => newest.max(date),
            None => date,
        }
    }

    fn use_restored(&mut self, now: Now, out: &mut Vec<Effect>) -> bool {
        let Some(restored) = self.restored.take_if(|restored| restored.usable) else { return false };
        self.age = (now.wall.since(restored.resolved_at), now.mono);
        self.expires = restored.value.not_after().map(|end| now.mono.after(end.since(now.wall)));
        self.state.value = Some(restored.value);
        self.date_is(restored.resolved_at);
        self.unconfirmed = true;
        out.push(Effect::UseRestored);
        true
    }

    /// After a definite answer that is not a value.
    fn discard_restored(&mut self, out: &mut Vec<Effect>) -> bool {
        let serves = self.unconfirmed;
        if self.restored.take().is_some() || serves {
            out.push(Effect::DiscardRestored);
        }
        if serves {
            self.drop_value();
        }
        serves
    }

    fn drop_value(&mut self) {
        (self.state.value, self.state.resolved_at, self.expires) = (None, None, None);
        (self.confirm, self.unconfirmed, self.rebound) = (None, false, false);
    }

    fn serve(&self, now: Mono) -> Served {
        let kind = self.kind();
        if self.state.value.is_none() {
            return Served::Refused(kind.unwrap_or(AnswerKind::Unknown), Refusal::ResolveFailed);
        }
        if self.expires.is_some_and(|at| at <= now) {
            return Served::Refused(AnswerKind::Unavailable, Refusal::Expired);
        }
        if self.too_old_at().is_some_and(|at| at <= now) {
            return Served::Refused(AnswerKind::Unavailable, Refusal::TooOld);
        }
        Served::Value { stale: kind }
    }

    /// When the value becomes older than it may be, while the upstream fails.
    fn too_old_at(&self) -> Option<Mono> {
        let (age, at) = self.age;
        let max =
            self.rules.max_stale.filter(|_| self.state.trouble.is_some() && self.state.value.is_some())?;
        Some(at.after(max.saturating_sub(age)))
    }
}

#[cfg(test)]
mod tests;
