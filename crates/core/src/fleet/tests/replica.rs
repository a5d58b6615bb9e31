//! One replica: cells fed by its own attempts, a board, readiness, a file of last-known-good values, and streams.

use std::collections::BTreeMap;
use std::time::Duration;

use super::upstream::{Text, Upstream};
use super::{Breach, Climate, LinkId, NAMES, Plant, wall};
use crate::freshness::{Cell, Effect, Event, Failure, Outcome, Rules, Served, State};
use crate::polling::{Admission, Breaker, BreakerTiming, Schedule, ScheduleTiming, Turn};
use crate::readiness::{self, Answer, Readiness};
use crate::stream::{Seq, Stream, View};
use crate::time::Spread;
use crate::{AnswerKind, Mono, Now};

const PRIMING: Duration = Duration::from_secs(60);

/// What readers see of one name.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    pub seq: Seq,
    pub state: State<Text>,
    /// When the attempt began, in true time, that last confirmed the value.
    pub confirmed: Mono,
}

impl Shown {
    pub fn view(&self) -> View {
        let confirmed = self.state.served == (Served::Value { stale: None });
        View::Bound { seq: self.seq, resolved_at: self.state.resolved_at, confirmed }
    }
}

#[derive(Debug)]
struct Flight {
    name: usize,
    admitted: Admission,
    began: Now,
    reads: Mono,
    answer: Option<Outcome<Text>>,
    ends: Mono,
}

#[derive(Debug)]
pub struct Replica {
    pub boot: u64,
    pub alive: bool,
    pub paused: Mono,
    /// How far its wall clock is off, in milliseconds.
    pub skew: i64,
    pub board: Vec<Shown>,
    /// The numbers of the visible changes of each name.
    pub changes: [Vec<u64>; NAMES],
    pub seq: u64,
    pub streams: BTreeMap<LinkId, Stream>,
    cells: Vec<Cell<Text>>,
    schedules: Vec<Schedule>,
    breaker: Breaker,
    pub readiness: Readiness<usize>,
    flights: Vec<Flight>,
    /// When the attempt began that last brought a value.
    confirmed: [Mono; NAMES],
    /// The file: a value, its date and when it was confirmed.
    kept: [Option<(Text, crate::Wall, Mono)>; NAMES],
    /// Whether an attempt for the name has ended, or the time to wait for one is over.
    ended: [bool; NAMES],
    was_ready: bool,
}

impl Replica {
    pub fn new(skew: i64) -> Self {
        Self {
            boot: 0,
            alive: false,
            paused: Mono::ZERO,
            skew,
            board: Vec::new(),
            changes: Default::default(),
            seq: 0,
            streams: BTreeMap::new(),
            cells: Vec::new(),
            schedules: Vec::new(),
            breaker: Breaker::new(BreakerTiming::default()),
            readiness: Readiness::new(Mono::ZERO, []),
            flights: Vec::new(),
            confirmed: [Mono::ZERO; NAMES],
            kept: [const { None }; NAMES],
            ended: [false; NAMES],
            was_ready: false,
        }
    }

    pub fn now(&self, now: Mono) -> Now {
        Now { mono: now, wall: wall(now, self.skew) }
    }

    pub fn serves(&self, now: Mono) -> bool {
        self.alive && self.paused <= now
    }

    pub fn start(&mut self, now: Mono, climate: Climate, spread: &mut Spread) {
        let rules = Rules { max_stale: None, on_absent_drop: spread.below(2) == 0 };
        let longest = if climate.strict { 3 } else { 20 };
        let every = Some(Duration::from_secs(1 + spread.below(longest)));
        *self = Self {
            boot: spread.bits(),
            alive: true,
            board: vec![Shown::default(); NAMES],
            cells: (0..NAMES).map(|_| Cell::new(rules)).collect(),
            schedules: (0..NAMES)
                .map(|_| Schedule::new(now, every, ScheduleTiming::default(), spread.unit()))
                .collect(),
            readiness: Readiness::new(now.after(PRIMING), (0..NAMES).map(|name| (name, false))),
            kept: std::mem::take(&mut self.kept),
            ..Self::new(self.skew)
        };
        for (cell, kept) in self.cells.iter_mut().zip(&self.kept) {
            if let Some((value, resolved_at, _)) = kept.clone() {
                cell.on(Now::default(), Event::Restore { value, resolved_at }, &mut Vec::new());
            }
        }
    }

    pub fn kill(&mut self) {
        self.alive = false;
        self.streams.clear();
        self.flights.clear();
    }

    /// A push says that a name may have changed.
    pub fn push(&mut self, now: Mono, name: usize) {
        if self.serves(now) {
            self.schedules[name].hasten(now);
        }
    }

    pub fn run(
        &mut self,
        now: Mono,
        upstream: &Upstream,
        (climate, plant, quiet): (Climate, Plant, bool),
        spread: &mut Spread,
    ) -> Result<(), Breach> {
        if !self.serves(now) {
            return Ok(());
        }
        for flight in &mut self.flights {
            if flight.answer.is_none() && flight.reads <= now {
                flight.answer = Some(upstream.answer(flight.name));
            }
        }
        for flight in self.flights.extract_if(.., |flight| flight.ends <= now).collect::<Vec<_>>() {
            self.land(now, flight, (climate, plant), spread);
        }
        self.launch(now, climate, quiet, spread);
        for name in 0..NAMES {
            if self.cells[name].next_deadline().is_some_and(|at| at <= now) {
                self.feed(now, name, Event::Tick, plant);
            }
        }
        self.prime(now, readiness::Event::Tick, plant);
        self.check_ready()
    }

    fn launch(&mut self, now: Mono, climate: Climate, quiet: bool, spread: &mut Spread) {
        for name in 0..NAMES {
            if self.schedules[name].next().is_none_or(|at| at > now) || !self.schedules[name].begin() {
                continue;
            }
            let began = self.now(now);
            let admitted = self.breaker.admit(now);
            let slow = climate.slow && !quiet && spread.below(4) == 0;
            let first = if slow { spread.below(9000) } else { spread.below(50) };
            let second = if slow { spread.below(9000) } else { spread.below(50) };
            let reads = now.after(Duration::from_millis(first));
            let lost = !quiet && spread.below(12) == 0;
            let deadline = now.after(climate.timeout);
            let ends = reads.after(Duration::from_millis(second));
            let down = || Some(Outcome::Error(Failure::of(AnswerKind::Unavailable)));
            let (answer, ends) = match admitted {
                Admission::Refuse => (down(), now),
                _ if lost || ends >= deadline => (down(), deadline),
                _ => (None, ends),
            };
            self.flights.push(Flight { name, admitted, began, reads, answer, ends });
        }
    }

    fn land(&mut self, now: Mono, flight: Flight, (climate, plant): (Climate, Plant), spread: &mut Spread) {
        // Who was paused finds its own attempts beyond their deadline.
        let late = now.since(flight.began.mono) > climate.timeout;
        let timed_out = || Outcome::Error(Failure::of(AnswerKind::Unavailable));
        let outcome = flight.answer.filter(|_| !late).unwrap_or_else(timed_out);
        let failure = match &outcome {
            Outcome::Error(failure) => Some(*failure),
            _ => None,
        };
        if plant == Plant::SilentEnd && failure.is_some() && spread.below(3) == 0 {
            return;
        }
        let turn = self.breaker.ended(now, flight.admitted, failure.map(|of| of.kind), spread.unit());
        self.schedules[flight.name].ended(now, failure.as_ref(), spread.unit());
        if turn == Some(Turn::Closed) {
            self.schedules.iter_mut().for_each(|schedule| schedule.recover(now, spread.unit()));
        }
        self.ended[flight.name] = true;
        if plant == Plant::AbsentIsSilence && outcome == Outcome::Absent {
            return;
        }
        if matches!(outcome, Outcome::Value { .. }) {
            self.confirmed[flight.name] = flight.began.mono;
        }
        let began = if plant == Plant::DatedByArrival { self.now(now) } else { flight.began };
        self.feed(now, flight.name, Event::Attempt { began, outcome }, plant);
    }

    fn feed(&mut self, now: Mono, name: usize, event: Event<Text>, plant: Plant) {
        let mut out = Vec::new();
        let at = self.now(now);
        self.cells[name].on(at, event, &mut out);
        for effect in out {
            match effect {
                Effect::Publish { visible } => self.publish(now, name, visible, plant),
                Effect::ConfirmAbsence(at) => self.schedules[name].hasten(at),
                Effect::UseRestored => {
                    self.confirmed[name] = self.kept[name].as_ref().map_or(Mono::ZERO, |kept| kept.2);
                }
                Effect::DiscardRestored => self.kept[name] = None,
                Effect::ClockSteppedBack => {}
            }
        }
    }

    fn publish(&mut self, now: Mono, name: usize, visible: bool, plant: Plant) {
        if plant == Plant::OnlyChangesPublished && !visible {
            return;
        }
        let shown = &mut self.board[name];
        (shown.state, shown.confirmed) = (self.cells[name].state().clone(), self.confirmed[name]);
        if plant == Plant::FailuresRenewDates && shown.state.value.is_some() {
            shown.state.resolved_at = shown.state.checked_at;
        }
        if visible {
            self.seq += 1;
            shown.seq = Seq::new(self.seq);
            self.changes[name].push(self.seq);
        }
        if let (Some(value), Some(date), None) =
            (&shown.state.value, shown.state.resolved_at, shown.state.trouble)
        {
            self.kept[name] = Some((value.clone(), date, shown.confirmed));
        }
        let (view, state) = (shown.view(), &shown.state);
        let servable = matches!(state.served, Served::Value { .. });
        let event = readiness::Event::Published { name, settled: state.settled, servable };
        self.streams.values_mut().for_each(|stream| _ = stream.mark(name, view));
        self.prime(now, event, plant);
    }

    fn prime(&mut self, now: Mono, event: readiness::Event<usize>, plant: Plant) {
        let mut out = Vec::new();
        self.readiness.on(now, event, &mut out);
        if out.contains(&readiness::Effect::SettleRest) {
            self.ended = [true; NAMES];
            (0..NAMES).for_each(|name| self.feed(now, name, Event::PrimingOver, plant));
        }
    }

    /// Ready exactly since every name had an outcome, and every read says so.
    fn check_ready(&mut self) -> Result<(), Breach> {
        self.was_ready |= self.ended.iter().all(|ended| *ended);
        let ready = self.readiness.answer() == Answer::Ready;
        let settled = self.board.iter().all(|shown| shown.state.settled);
        if ready != self.was_ready || (ready && !settled) {
            return Err("ready-iff-settled");
        }
        Ok(())
    }
}
