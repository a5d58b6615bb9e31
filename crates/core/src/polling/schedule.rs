//! When one object is asked for next.
//!
//! What must hold: one attempt at a time; whatever asks for another one while it runs is not lost, since it may have
//! read before the change; a failure delays this object only; "leave me alone" is obeyed by every later wish.

use std::time::Duration;

use super::upper_half;
use crate::freshness::Failure;
use crate::time::{doubling, jittered};
use crate::{AnswerKind, Mono};

/// The times of a [`Schedule`].
#[derive(Clone, Copy, Debug)]
pub struct ScheduleTiming {
    /// Over how long the first attempts are spread; 500 ms.
    pub start: Duration,
    /// The fraction by which polls vary; 0.2.
    pub jitter: f64,
    /// The pause after the first failure; 1 s, doubling to `ceiling` or the interval if that is less.
    pub first: Duration,
    /// The longest pause after failures; 60 s.
    pub ceiling: Duration,
    /// The longest time for which an upstream is left alone because it asks for it; 300 s.
    pub hold: Duration,
    /// Over how long the objects of an upstream that came back are spread; 2 s.
    pub recovery: Duration,
}

impl Default for ScheduleTiming {
    fn default() -> Self {
        Self {
            start: Duration::from_millis(500),
            jitter: 0.2,
            first: Duration::from_secs(1),
            ceiling: Duration::from_secs(60),
            hold: Duration::from_secs(300),
            recovery: Duration::from_secs(2),
        }
    }
}

/// The interval of an object: the smallest of its bindings', not below what its scheme allows. None without bindings.
pub fn smallest(polls: impl IntoIterator<Item = Duration>, floor: Duration) -> Option<Duration> {
    polls.into_iter().min().map(|poll| poll.max(floor))
}

/// The schedule of one object.
#[derive(Clone, Debug)]
pub struct Schedule {
    timing: ScheduleTiming,
    every: Option<Duration>,
    next: Option<Mono>,
    /// The upstream asked to be left alone until then.
    not_before: Mono,
    failures: u32,
    running: bool,
    /// What was wished for while an attempt runs.
    again: Option<Mono>,
}

impl Schedule {
    /// An object that is asked for first within [`ScheduleTiming::start`], and then at this interval; never by itself for
    /// none, as with values under a lease or values that cannot change. Every `unit` in `0.0..=1.0` is the caller's
    /// random number.
    pub fn new(now: Mono, every: Option<Duration>, timing: ScheduleTiming, unit: f64) -> Self {
        let next = Some(now.after(timing.start.mul_f64(unit.clamp(0.0, 1.0))));
        Self { timing, every, next, not_before: Mono::ZERO, failures: 0, running: false, again: None }
    }

    /// When the next attempt is due; none while one runs.
    pub const fn next(&self) -> Option<Mono> {
        if self.running { None } else { self.next }
    }

    /// The current interval.
    pub const fn every(&self) -> Option<Duration> {
        self.every
    }

    /// Another interval: the configuration changed, or a watch began or ended. A longer one counts after the next attempt.
    pub fn set_every(&mut self, now: Mono, every: Option<Duration>, unit: f64) {
        if self.every == every {
            return;
        }
        self.every = every;
        if let Some(every) = every {
            self.hasten(now.after(jittered(every, self.timing.jitter, unit)));
        }
    }

    /// An attempt begins; false when one runs already.
    pub const fn begin(&mut self) -> bool {
        if self.running {
            return false;
        }
        (self.running, self.next) = (true, None);
        true
    }

    /// The attempt ended: well or with "absent" for none.
    pub fn ended(&mut self, now: Mono, failure: Option<&Failure>, unit: f64) {
        self.running = false;
        let again = self.again.take();
        let Some(failure) = failure else {
            self.failures = 0;
            return self.in_turn(now, again, unit);
        };
        let interval = self.every.unwrap_or(self.timing.ceiling);
        let asked = failure.retry_after.unwrap_or_default().min(self.timing.hold);
        match failure.kind {
            AnswerKind::Unavailable | AnswerKind::Unknown => {
                let ceiling = interval.min(self.timing.ceiling);
                let pause = upper_half(doubling(self.timing.first, ceiling, self.failures), unit);
                self.failures = self.failures.saturating_add(1);
                self.next = Some(now.after(pause.max(asked.min(ceiling))));
            }
            AnswerKind::RateLimited => {
                self.failures = 0;
                self.not_before = now.after(asked);
                // Later only, never earlier, and not all objects at the same moment.
                let pause = asked.max(interval);
                self.next = Some(now.after(jittered(pause, self.timing.jitter, 0.5 + unit / 2.0)));
            }
            _ => {
                self.failures = 0;
                self.in_turn(now, again, unit);
                // Without an interval an object that failed is still asked for again.
                self.next = self.next.or_else(|| Some(now.after(interval)));
            }
        }
    }

    /// The attempt will not end; the object is due at once.
    pub fn abandoned(&mut self, now: Mono) {
        (self.running, self.again) = (false, None);
        self.hasten(now);
    }

    /// Something asks for an attempt at this instant or before: a push, a confirmation, a lease.
    pub fn hasten(&mut self, at: Mono) {
        if self.running {
            self.again = Some(self.again.map_or(at, |again| again.min(at)));
            return;
        }
        let at = at.max(self.not_before);
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// The upstream came back: due within [`ScheduleTiming::recovery`].
    pub fn recover(&mut self, now: Mono, unit: f64) {
        self.failures = 0;
        if !self.running {
            self.hasten(now.after(self.timing.recovery.mul_f64(unit.clamp(0.0, 1.0))));
        }
    }

    fn in_turn(&mut self, now: Mono, again: Option<Mono>, unit: f64) {
        self.next = self.every.map(|every| now.after(jittered(every, self.timing.jitter, unit)));
        if let Some(at) = again {
            self.hasten(at.max(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Option<Duration> = Some(Duration::from_secs(30));

    fn ms(n: u64) -> Mono {
        Mono::from_millis(n)
    }

    fn schedule(every: Option<Duration>) -> Schedule {
        let mut schedule = Schedule::new(ms(0), every, ScheduleTiming::default(), 0.0);
        assert!(schedule.begin());
        schedule
    }

    fn after(schedule: &mut Schedule, at: u64, kind: AnswerKind, unit: f64) -> Option<Mono> {
        schedule.ended(ms(at), Some(&Failure::of(kind)), unit);
        let next = schedule.next();
        assert!(schedule.begin());
        next
    }

    #[test]
    fn the_smallest_poll_of_its_bindings_counts() {
        let polls = [30, 5, 60].map(Duration::from_secs);
        assert_eq!(smallest(polls, Duration::ZERO), Some(Duration::from_secs(5)));
        assert_eq!(smallest(polls, Duration::from_secs(10)), Some(Duration::from_secs(10)));
        assert_eq!(smallest([], Duration::ZERO), None);
    }

    #[test]
    fn first_attempts_are_spread_over_half_a_second() {
        let first = |unit| Schedule::new(ms(100), POLL, ScheduleTiming::default(), unit).next();
        assert_eq!([first(0.0), first(0.5), first(1.0)], [Some(ms(100)), Some(ms(350)), Some(ms(600))]);
    }

    #[test]
    fn polls_vary_by_a_fifth() {
        let mut schedule = schedule(POLL);
        schedule.ended(ms(1000), None, 0.0);
        assert_eq!(schedule.next(), Some(ms(25_000)));
        schedule.begin();
        schedule.ended(ms(1000), None, 1.0);
        assert_eq!(schedule.next(), Some(ms(37_000)));
    }

    #[test]
    fn what_is_down_is_asked_after_pauses_that_double_up_to_the_interval() {
        let mut schedule = schedule(POLL);
        let kinds = [AnswerKind::Unavailable, AnswerKind::Unknown].into_iter().cycle().take(7);
        let pauses: Vec<_> = kinds.map(|kind| after(&mut schedule, 0, kind, 1.0).unwrap()).collect();
        assert_eq!(pauses, [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000].map(ms));
        assert_eq!(after(&mut schedule, 0, AnswerKind::Unavailable, 0.0), Some(ms(15_000)));
        schedule.ended(ms(0), None, 0.5);
        schedule.begin();
        assert_eq!(after(&mut schedule, 0, AnswerKind::Unavailable, 1.0), Some(ms(1000)));
    }

    #[test]
    fn a_long_interval_does_not_make_pauses_longer_than_a_minute() {
        let mut schedule = schedule(Some(Duration::from_secs(3600)));
        let last = (0..9).map(|_| after(&mut schedule, 0, AnswerKind::Unavailable, 1.0)).last();
        assert_eq!(last, Some(Some(ms(60_000))));
    }

    #[test]
    fn definite_refusals_are_asked_again_in_turn() {
        for kind in [AnswerKind::NotFound, AnswerKind::PermissionDenied, AnswerKind::Invalid] {
            assert_eq!(after(&mut schedule(POLL), 0, kind, 0.5), Some(ms(30_000)));
            assert_eq!(after(&mut schedule(None), 0, kind, 0.5), Some(ms(60_000)));
        }
    }

    fn limited(seconds: u64) -> Failure {
        let retry_after = Some(Duration::from_secs(seconds));
        Failure { retry_after, ..Failure::of(AnswerKind::RateLimited) }
    }

    #[test]
    fn a_throttle_is_obeyed_within_reason() {
        let mut fast = schedule(Some(Duration::from_secs(2)));
        fast.ended(ms(0), Some(&limited(7)), 0.0);
        assert_eq!(fast.next(), Some(ms(7000)));
        fast.hasten(ms(10));
        fast.recover(ms(20), 0.0);
        assert_eq!(fast.next(), Some(ms(7000)), "whatever else wishes for it");
        for (seconds, expected) in [(7, 30_000), (4000, 300_000)] {
            let mut schedule = schedule(POLL);
            schedule.ended(ms(0), Some(&limited(seconds)), 0.0);
            assert_eq!(schedule.next(), Some(ms(expected)));
        }
        fast.begin();
        fast.ended(ms(7000), Some(&limited(10)), 1.0);
        assert_eq!(fast.next(), Some(ms(19_000)));
    }

    #[test]
    fn a_server_that_is_down_and_names_a_time_is_believed_up_to_the_longest_pause() {
        let mut schedule = schedule(POLL);
        for (seconds, expected) in [(9, 9000), (1000, 30_000)] {
            let failure = Failure {
                retry_after: Some(Duration::from_secs(seconds)),
                ..Failure::of(AnswerKind::Unavailable)
            };
            schedule.ended(ms(0), Some(&failure), 0.0);
            assert_eq!(schedule.next(), Some(ms(expected)));
            schedule.begin();
        }
    }

    #[test]
    fn one_attempt_at_a_time_and_a_wish_meanwhile_is_not_lost() {
        let mut schedule = schedule(POLL);
        assert!(!schedule.begin());
        schedule.hasten(ms(5));
        schedule.hasten(ms(3));
        assert_eq!(schedule.next(), None);
        schedule.ended(ms(10), None, 0.5);
        assert_eq!(schedule.next(), Some(ms(10)));
        schedule.begin();
        schedule.ended(ms(20), None, 0.5);
        assert_eq!(schedule.next(), Some(ms(30_020)));
        schedule.hasten(ms(1020));
        assert_eq!(schedule.next(), Some(ms(1020)));
    }

    #[test]
    fn a_wish_does_not_shorten_the_pause_of_the_very_attempt_that_failed() {
        let mut schedule = schedule(POLL);
        schedule.hasten(ms(5));
        assert_eq!(after(&mut schedule, 10, AnswerKind::Unavailable, 1.0), Some(ms(1010)));
    }

    #[test]
    fn what_cannot_be_polled_is_asked_for_when_something_wishes_it() {
        let mut schedule = schedule(None);
        schedule.ended(ms(0), None, 0.5);
        assert_eq!(schedule.next(), None);
        schedule.hasten(ms(40));
        assert_eq!(schedule.next(), Some(ms(40)));
    }

    #[test]
    fn recovery_is_spread_over_two_seconds() {
        let mut schedule = schedule(POLL);
        schedule.ended(ms(0), Some(&Failure::of(AnswerKind::PermissionDenied)), 0.5);
        schedule.recover(ms(100), 1.0);
        assert_eq!(schedule.next(), Some(ms(2100)));
        schedule.recover(ms(100), 0.25);
        assert_eq!(schedule.next(), Some(ms(600)));
    }

    #[test]
    fn a_shorter_interval_counts_at_once_a_longer_one_after_the_next_attempt() {
        let mut schedule = schedule(POLL);
        schedule.ended(ms(0), None, 0.5);
        schedule.set_every(ms(1000), Some(Duration::from_secs(60)), 0.5);
        assert_eq!(schedule.next(), Some(ms(30_000)));
        schedule.set_every(ms(1000), Some(Duration::from_secs(5)), 0.5);
        assert_eq!((schedule.next(), schedule.every()), (Some(ms(6000)), Some(Duration::from_secs(5))));
    }

    #[test]
    fn an_attempt_that_was_given_up_is_due_again() {
        let mut schedule = schedule(POLL);
        schedule.abandoned(ms(70));
        assert_eq!(schedule.next(), Some(ms(70)));
    }
}
