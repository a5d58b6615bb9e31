//! What is due on a stream of named values: the baseline, changes, dates, and which frame may carry a resume id.
//!
//! A stream holds no queue of values, only the set of names that are due; what is written for a name is its state at the
//! moment of writing. What must hold:
//! - a frame for an older state of a name never follows one for a newer state; the newest is never skipped;
//! - an id stands only on a frame after which the state of every name up to the id's number has been written;
//! - a denied name is told so once, and then nothing.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Wall;

/// The number of a visible change within a process.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Seq(u64);

impl Seq {
    /// Change number `number`; 0 stands for none yet.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// As a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What a stream sees of a name when it decides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum View {
    /// There is no such binding.
    Unbound,
    /// There is one.
    Bound {
        /// Its last visible change.
        seq: Seq,
        /// When its value was last fetched or confirmed.
        resolved_at: Option<Wall>,
        /// Whether its value is served and the last attempt succeeded.
        confirmed: bool,
    },
}

/// How a stream behaves.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How much newer the date of an unchanged value must be to be told again; 60 s.
    pub redate: Duration,
    /// Whether dates alone come as one frame of dates a beat, not as updates.
    pub fresh: bool,
}

/// Why a name is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Why {
    /// It is the first time, or the first since it was allowed.
    Baseline,
    /// It changed.
    Change,
    /// Its date moved.
    Date,
}

/// Why a client shall move to another replica.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// The replica goes down.
    Draining,
    /// The stream has reached its age.
    MaxAge,
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// At once.
    Now,
    /// After each name was told that the caller is no longer known.
    Unauthenticated,
}

/// What is written next. `R` is what the caller's look at a name returned beside the [`View`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Next<R> {
    /// Nothing is due.
    Nothing,
    /// A heartbeat.
    Heartbeat,
    /// The state of a name, as it was looked at.
    Name {
        /// Which.
        index: usize,
        /// What the look returned.
        look: R,
        /// The number of the id that the frame carries.
        id: Option<Seq>,
        /// Why.
        why: Why,
    },
    /// That a name is denied.
    Denied(usize),
    /// That the caller is no longer known, for a name.
    Unauthenticated(usize),
    /// That the baseline, or what a resume owed, is complete.
    Synced(Seq),
    /// That the client shall move within so much time.
    GoAway(Reason, Duration),
    /// New dates of unchanged values.
    Fresh(Vec<(usize, Wall)>),
    /// The end.
    End,
}

/// What was told last of a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Told {
    Nothing,
    Denied,
    Unbound,
    State { seq: Seq, resolved_at: Option<Wall>, redated: bool },
}

#[derive(Clone, Debug)]
struct Slot {
    allowed: bool,
    told: Told,
    queued: bool,
    dated: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Due {
    Nothing,
    State,
    Date,
}

/// One stream.
#[derive(Clone, Debug)]
pub struct Stream {
    rules: Rules,
    slots: Vec<Slot>,
    /// Changed names that the baseline has passed, each at most once.
    due: VecDeque<usize>,
    /// Names whose dates alone are due.
    dates: Vec<usize>,
    /// The next name of the baseline.
    opening: usize,
    synced: bool,
    /// The state of every name up to this had been published when the stream began.
    base: Seq,
    beat: bool,
    dates_open: bool,
    goaway: Option<(Reason, Duration)>,
    /// Why the client was told to move last.
    gone: Option<Reason>,
    end: Option<End>,
}

impl Stream {
    /// A stream over names in their order, each allowed or not. It has to be registered for changes before `base` is
    /// read, and `base` before any name is looked at.
    pub fn new(rules: Rules, allowed: impl IntoIterator<Item = bool>, base: Seq) -> Self {
        let slot = |allowed| Slot { allowed, told: Told::Nothing, queued: false, dated: false };
        Self {
            rules,
            slots: allowed.into_iter().map(slot).collect(),
            due: VecDeque::new(),
            dates: Vec::new(),
            opening: 0,
            synced: false,
            base,
            beat: false,
            dates_open: true,
            goaway: None,
            gone: None,
            end: None,
        }
    }

    /// Takes the states up to `seen` as written, since the client has them from a former stream of the same process, the
    /// same configuration, the same names and the same rights.
    pub fn resume(&mut self, seen: Seq, mut look: impl FnMut(usize) -> View) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.told = match look(index) {
                _ if !slot.allowed => Told::Denied,
                View::Unbound => Told::Unbound,
                View::Bound { seq, resolved_at, .. } if seq <= seen => {
                    Told::State { seq, resolved_at, redated: false }
                }
                View::Bound { .. } => Told::Nothing,
            };
        }
    }

    /// A name was published. Whether something can be written now that could not before.
    pub fn mark(&mut self, index: usize, view: View) -> bool {
        let opening = index >= self.opening;
        let (rules, Some(slot)) = (self.rules, self.slots.get_mut(index)) else { return false };
        if opening || self.end.is_some() {
            // The baseline will find it as it is then.
            return false;
        }
        match slot.due(view, rules.redate) {
            Due::Nothing => false,
            Due::Date if rules.fresh => {
                if !std::mem::replace(&mut slot.dated, true) {
                    self.dates.push(index);
                }
                self.dates_open && self.synced
            }
            Due::Date | Due::State => {
                let new = !std::mem::replace(&mut slot.queued, true);
                if new {
                    self.due.push_back(index);
                }
                new
            }
        }
    }

    /// Judges rights anew. Names that were unbound meanwhile are found, too.
    pub fn rejudge(&mut self, mut allowed: impl FnMut(usize) -> bool, mut look: impl FnMut(usize) -> View) {
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            let now = allowed(index);
            if now && !slot.allowed {
                slot.told = Told::Nothing;
            }
            slot.allowed = now;
            self.mark(index, look(index));
        }
    }

    /// A beat: a heartbeat is due, and dates may go out again.
    pub const fn beat(&mut self) {
        self.beat = true;
        self.dates_open = true;
    }

    /// Tells the client to move; once for each reason.
    pub fn go_away(&mut self, reason: Reason, within: Duration) {
        if self.gone != Some(reason) {
            self.gone = Some(reason);
            self.goaway = Some((reason, within));
        }
    }

    /// Ends the stream.
    pub fn end(&mut self, end: End) {
        if self.end != Some(End::Now) {
            if end == End::Unauthenticated && self.end.is_none() {
                self.due = (0..self.slots.len()).collect();
            }
            self.end = Some(end);
        }
    }

    /// Whether the baseline, or what a resume owed, is complete.
    pub const fn is_synced(&self) -> bool {
        self.synced
    }

    /// Whether [`Stream::next`] has something, as far as it can be told without a look.
    pub fn is_due(&self) -> bool {
        self.beat
            || self.goaway.is_some()
            || self.end.is_some()
            || !self.synced
            || !self.due.is_empty()
            || (self.dates_open && !self.dates.is_empty())
    }

    /// Takes what is written next. Every change up to `followed` has been given to [`Stream::mark`] before this call;
    /// `look` loads a name as it is now.
    pub fn next<R>(&mut self, followed: Seq, mut look: impl FnMut(usize) -> (View, R)) -> Next<R> {
        match self.end {
            // Who ends a stream says why, also when it could not be said before.
            Some(End::Now) => {
                return self.goaway.take().map_or(Next::End, |(reason, within)| Next::GoAway(reason, within));
            }
            Some(End::Unauthenticated) => {
                return self.due.pop_front().map_or(Next::End, Next::Unauthenticated);
            }
            None => {}
        }
        if std::mem::take(&mut self.beat) {
            return Next::Heartbeat;
        }
        if let Some((reason, within)) = self.goaway.take() {
            return Next::GoAway(reason, within);
        }
        if !self.synced {
            return self.open(followed, look);
        }
        while let Some(index) = self.due.pop_front() {
            let written = self.write(index, &mut look);
            let id = self.due.is_empty().then_some(followed.max(self.base));
            match written {
                Some(Next::Name { index, look, why, .. }) => return Next::Name { index, look, id, why },
                Some(other) => return other,
                None => {}
            }
        }
        self.fresh(look)
    }

    fn open<R>(&mut self, followed: Seq, mut look: impl FnMut(usize) -> (View, R)) -> Next<R> {
        while self.opening < self.slots.len() {
            let index = self.opening;
            self.opening += 1;
            if let Some(next) = self.write(index, &mut look) {
                return next;
            }
        }
        self.synced = true;
        // With changes still due, only what was there at the beginning is certain to be written.
        Next::Synced(if self.due.is_empty() { followed.max(self.base) } else { self.base })
    }

    fn write<R>(&mut self, index: usize, look: &mut impl FnMut(usize) -> (View, R)) -> Option<Next<R>> {
        let redate = self.rules.redate;
        let slot = self.slots.get_mut(index)?;
        slot.queued = false;
        let (view, look) = look(index);
        let due = slot.due(view, redate);
        if due == Due::Nothing {
            return None;
        }
        if !slot.allowed {
            slot.told = Told::Denied;
            return Some(Next::Denied(index));
        }
        let why = match slot.told {
            Told::Nothing => Why::Baseline,
            _ if due == Due::Date => Why::Date,
            _ => Why::Change,
        };
        slot.tell(view);
        Some(Next::Name { index, look, id: None, why })
    }

    fn fresh<R>(&mut self, mut look: impl FnMut(usize) -> (View, R)) -> Next<R> {
        if !self.dates_open || self.dates.is_empty() {
            return Next::Nothing;
        }
        let mut dates = Vec::new();
        for index in std::mem::take(&mut self.dates) {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            slot.dated = false;
            let (view, _) = look(index);
            // A change of the state comes as an update of its own, which is marked or about to be.
            if let (Due::Date, View::Bound { resolved_at: Some(date), .. }) =
                (slot.due(view, self.rules.redate), view)
            {
                slot.tell(view);
                dates.push((index, date));
            }
        }
        if dates.is_empty() {
            return Next::Nothing;
        }
        self.dates_open = false;
        Next::Fresh(dates)
    }
}

impl Slot {
    fn due(&self, view: View, redate: Duration) -> Due {
        match (self.allowed, self.told, view) {
            (false, Told::Denied, _) | (true, Told::Unbound, View::Unbound) => Due::Nothing,
            (
                true,
                Told::State { seq, resolved_at, redated },
                View::Bound { seq: now, resolved_at: date, confirmed },
            ) => {
                if now > seq {
                    Due::State
                } else if confirmed && moved(resolved_at, date, redated.then_some(redate)) {
                    Due::Date
                } else {
                    Due::Nothing
                }
            }
            _ => Due::State,
        }
    }

    fn tell(&mut self, view: View) {
        self.told = match view {
            View::Unbound => Told::Unbound,
            View::Bound { seq, resolved_at, confirmed } => {
                let redated = match self.told {
                    Told::State { redated, .. } => redated || confirmed,
                    _ => false,
                };
                Told::State { seq, resolved_at, redated }
            }
        };
    }
}

/// Whether a date moved at all, or by so much.
fn moved(told: Option<Wall>, now: Option<Wall>, least: Option<Duration>) -> bool {
    match (told, now) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(told), Some(now)) => now > told && least.is_none_or(|least| now >= told.after(least)),
    }
}

#[cfg(test)]
mod tests;
