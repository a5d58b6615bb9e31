//! The breaker of one upstream.
//!
//! What must hold: it opens after a run of "unavailable" only; while open at most one call is under way for each step
//! of its back-off; any other answer closes it; a probe whose end is never told does not hold it open for ever.

use std::time::Duration;

use super::upper_half;
use crate::time::doubling;
use crate::{AnswerKind, Mono};

/// The times and bounds of a [`Breaker`].
#[derive(Clone, Copy, Debug)]
pub struct BreakerTiming {
    /// How many calls in a row must end "unavailable"; 5.
    pub failures: u32,
    /// The wait before the first probe; 1 s, doubling to `ceiling`, each spread over its upper half.
    pub first: Duration,
    /// The longest wait; 60 s.
    pub ceiling: Duration,
    /// After how long another probe is let through when the end of the last one was not told; 150 s, more than the
    /// longest deadline of an attempt.
    pub patience: Duration,
}

impl Default for BreakerTiming {
    fn default() -> Self {
        Self {
            failures: 5,
            first: Duration::from_secs(1),
            ceiling: Duration::from_secs(60),
            patience: Duration::from_secs(150),
        }
    }
}

/// Whether an attempt that is due may call the upstream.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Admission {
    /// It may.
    Call,
    /// It may, and the upstream is judged by it.
    Probe,
    /// It may not: the attempt ends "unavailable" without a call.
    Refuse,
}

/// A change of the breaker.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Turn {
    /// It opened.
    Opened,
    /// It closed: what is due is spread, [`super::Schedule::recover`].
    Closed,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        since: Mono,
        step: u32,
        /// From when on an attempt is the probe.
        next: Mono,
    },
}

/// The breaker of one upstream.
#[derive(Clone, Debug)]
pub struct Breaker {
    timing: BreakerTiming,
    state: State,
}

impl Breaker {
    /// A closed one.
    pub const fn new(timing: BreakerTiming) -> Self {
        Self { timing, state: State::Closed { failures: 0 } }
    }

    /// Judges an attempt that is due. What it admits is followed by [`Breaker::ended`], or [`Breaker::abandoned`].
    pub fn admit(&mut self, now: Mono) -> Admission {
        match &mut self.state {
            State::Closed { .. } => Admission::Call,
            State::Open { next, .. } if *next <= now => {
                *next = now.after(self.timing.patience);
                Admission::Probe
            }
            State::Open { .. } => Admission::Refuse,
        }
    }

    /// A call that was admitted ended: well or with "absent" for none, else with this kind. `unit` in `0.0..=1.0` is the
    /// caller's random number.
    pub fn ended(
        &mut self,
        now: Mono,
        admitted: Admission,
        kind: Option<AnswerKind>,
        unit: f64,
    ) -> Option<Turn> {
        if admitted == Admission::Refuse {
            return None;
        }
        if kind != Some(AnswerKind::Unavailable) {
            let was_open = self.is_open();
            self.state = State::Closed { failures: 0 };
            return was_open.then_some(Turn::Closed);
        }
        match self.state {
            State::Closed { failures } if failures.saturating_add(1) < self.timing.failures => {
                self.state = State::Closed { failures: failures.saturating_add(1) };
                None
            }
            State::Closed { .. } => {
                self.state = State::Open { since: now, step: 0, next: now.after(self.wait(0, unit)) };
                Some(Turn::Opened)
            }
            State::Open { since, step, .. } if admitted == Admission::Probe => {
                let step = step.saturating_add(1);
                self.state = State::Open { since, step, next: now.after(self.wait(step, unit)) };
                None
            }
            // Called before it opened.
            State::Open { .. } => None,
        }
    }

    /// An attempt that was admitted will not end: another one may take its place.
    pub fn abandoned(&mut self, now: Mono, admitted: Admission) {
        if let (Admission::Probe, State::Open { next, .. }) = (admitted, &mut self.state) {
            *next = now;
        }
    }

    /// Since when it is open.
    pub const fn open_since(&self) -> Option<Mono> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { since, .. } => Some(since),
        }
    }

    /// Whether calls are refused.
    pub const fn is_open(&self) -> bool {
        self.open_since().is_some()
    }

    /// From when on an attempt is the probe; an object that is due later may be hastened to it.
    pub const fn next_probe(&self) -> Option<Mono> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { next, .. } => Some(next),
        }
    }

    fn wait(&self, step: u32, unit: f64) -> Duration {
        upper_half(doubling(self.timing.first, self.timing.ceiling, step), unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: Option<AnswerKind> = Some(AnswerKind::Unavailable);

    fn ms(n: u64) -> Mono {
        Mono::from_millis(n)
    }

    fn open(at: u64) -> Breaker {
        let mut breaker = Breaker::new(BreakerTiming::default());
        let turns: Vec<_> =
            (0..5).filter_map(|_| breaker.ended(ms(at), Admission::Call, DOWN, 1.0)).collect();
        assert_eq!(turns, [Turn::Opened]);
        breaker
    }

    #[test]
    fn five_in_a_row_open_it_and_anything_between_begins_anew() {
        let mut breaker = Breaker::new(BreakerTiming::default());
        for between in [None, Some(AnswerKind::RateLimited), Some(AnswerKind::Unknown)] {
            for _ in 0..4 {
                assert_eq!(breaker.ended(ms(0), Admission::Call, DOWN, 0.0), None);
            }
            assert_eq!(breaker.ended(ms(0), Admission::Call, between, 0.0), None);
            assert_eq!(breaker.admit(ms(0)), Admission::Call);
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn one_probe_a_step_and_steps_double_up_to_a_minute() {
        let mut breaker = open(1000);
        assert_eq!((breaker.open_since(), breaker.next_probe()), (Some(ms(1000)), Some(ms(2000))));
        let mut now = ms(1000);
        for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
            let due = now.after(Duration::from_secs(wait));
            assert_eq!(breaker.next_probe(), Some(due));
            assert_eq!(breaker.admit(due.after(Duration::ZERO)), Admission::Probe);
            assert_eq!([breaker.admit(due), breaker.admit(due)], [Admission::Refuse; 2]);
            now = due.after(Duration::from_millis(7));
            assert_eq!(breaker.ended(now, Admission::Probe, DOWN, 1.0), None);
        }
    }

    #[test]
    fn waits_lie_in_their_upper_half() {
        let mut breaker = Breaker::new(BreakerTiming { failures: 1, ..BreakerTiming::default() });
        breaker.ended(ms(0), Admission::Call, DOWN, 0.0);
        assert_eq!(breaker.next_probe(), Some(ms(500)));
        assert_eq!(breaker.admit(ms(499)), Admission::Refuse);
        assert_eq!(breaker.admit(ms(500)), Admission::Probe);
        breaker.ended(ms(500), Admission::Probe, DOWN, 0.5);
        assert_eq!(breaker.next_probe(), Some(ms(2000)));
    }

    #[test]
    fn any_other_answer_closes_it_also_one_of_an_earlier_call() {
        for (admitted, kind) in [
            (Admission::Probe, None),
            (Admission::Probe, Some(AnswerKind::PermissionDenied)),
            (Admission::Call, None),
        ] {
            let mut breaker = open(0);
            assert_eq!(breaker.admit(ms(1000)), Admission::Probe);
            assert_eq!(breaker.ended(ms(1100), admitted, kind, 0.0), Some(Turn::Closed));
            assert_eq!(breaker.admit(ms(1100)), Admission::Call);
            assert_eq!(breaker.ended(ms(1200), Admission::Call, None, 0.0), None);
        }
    }

    #[test]
    fn earlier_calls_that_fail_late_and_refused_attempts_move_nothing() {
        let mut breaker = open(0);
        assert_eq!(breaker.ended(ms(900), Admission::Call, DOWN, 1.0), None);
        assert_eq!(breaker.ended(ms(900), Admission::Refuse, DOWN, 1.0), None);
        assert_eq!(breaker.next_probe(), Some(ms(1000)));
    }

    #[test]
    fn a_probe_that_never_ends_is_replaced() {
        let mut breaker = open(0);
        assert_eq!(breaker.admit(ms(1000)), Admission::Probe);
        assert_eq!(breaker.admit(ms(150_999)), Admission::Refuse);
        assert_eq!(breaker.admit(ms(151_000)), Admission::Probe);
        breaker.abandoned(ms(151_500), Admission::Probe);
        assert_eq!(breaker.admit(ms(151_500)), Admission::Probe);
    }
}
