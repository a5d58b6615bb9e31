//! The clock of one lease.
//!
//! What must hold: a value under a lease is fetched anew only when its lease is about to end, and before it ends; a
//! renewal that is refused or grants little is not repeated, since the end is near then.

use std::time::Duration;

use super::upper_half;
use crate::time::doubling;
use crate::{AnswerKind, Mono};

/// What a lease needs next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeaseDue {
    /// Renew it at this instant, asking for [`LeaseClock::asked`].
    Renew(Mono),
    /// Fetch the value anew at this instant, with a lease of its own.
    Reread(Mono),
}

/// The shortest time to the next step, however short the lease.
const LEAST: Duration = Duration::from_secs(1);
/// The longest pause between renewals that fail.
const CEILING: Duration = Duration::from_secs(60);

/// When to renew one lease, and when to fetch anew.
#[derive(Clone, Debug)]
pub struct LeaseClock {
    asked: Duration,
    expires: Mono,
    /// When 90 % of its remaining life have passed.
    reread: Mono,
    due: LeaseDue,
    failures: u32,
}

impl LeaseClock {
    /// A lease that was just granted for so long.
    pub fn granted(now: Mono, ttl: Duration, renewable: bool) -> Self {
        let due = LeaseDue::Reread(now);
        let mut clock = Self { asked: ttl, expires: now, reread: now, due, failures: 0 };
        clock.run(now, ttl, renewable);
        clock
    }

    /// What is due next.
    pub const fn due(&self) -> LeaseDue {
        self.due
    }

    /// How long a renewal asks for: what was granted first.
    pub const fn asked(&self) -> Duration {
        self.asked
    }

    /// When the lease ends.
    pub const fn expires(&self) -> Mono {
        self.expires
    }

    /// A renewal was granted for so long.
    pub fn renewed(&mut self, now: Mono, ttl: Duration, renewable: bool) {
        self.run(now, ttl, renewable);
        if ttl < self.asked / 2 {
            self.due = LeaseDue::Reread(now);
        }
    }

    /// A renewal failed. `unit` in `0.0..=1.0` is the caller's random number.
    pub fn renewal_failed(&mut self, now: Mono, kind: AnswerKind, unit: f64) {
        if !matches!(kind, AnswerKind::Unavailable | AnswerKind::RateLimited | AnswerKind::Unknown) {
            self.due = LeaseDue::Reread(now);
            return;
        }
        let at = now.after(upper_half(doubling(LEAST, CEILING, self.failures), unit));
        self.failures = self.failures.saturating_add(1);
        self.due =
            if at < self.reread { LeaseDue::Renew(at) } else { LeaseDue::Reread(self.reread.max(now)) };
    }

    fn run(&mut self, now: Mono, ttl: Duration, renewable: bool) {
        self.failures = 0;
        self.expires = now.after(ttl);
        self.reread = now.after(ttl.mul_f64(0.9).max(LEAST));
        self.due = if renewable {
            LeaseDue::Renew(now.after((ttl * 2 / 3).max(LEAST)))
        } else {
            LeaseDue::Reread(self.reread)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn sec(n: u64) -> Mono {
        Mono::from_millis(n * 1000)
    }

    #[test]
    fn renewed_at_two_thirds_each_time() {
        let mut clock = LeaseClock::granted(sec(0), HOUR, true);
        assert_eq!((clock.due(), clock.expires()), (LeaseDue::Renew(sec(2400)), sec(3600)));
        clock.renewed(sec(2400), HOUR, true);
        assert_eq!((clock.due(), clock.expires()), (LeaseDue::Renew(sec(4800)), sec(6000)));
    }

    #[test]
    fn what_cannot_be_renewed_is_fetched_at_nine_tenths() {
        let mut clock = LeaseClock::granted(sec(0), HOUR, false);
        assert_eq!(clock.due(), LeaseDue::Reread(sec(3240)));
        clock = LeaseClock::granted(sec(0), HOUR, true);
        clock.renewed(sec(2400), Duration::from_secs(2000), false);
        assert_eq!(clock.due(), LeaseDue::Reread(sec(4200)));
    }

    #[test]
    fn less_than_half_of_what_was_asked_means_fetch_at_once() {
        let mut clock = LeaseClock::granted(sec(0), HOUR, true);
        clock.renewed(sec(2400), Duration::from_secs(1800), true);
        assert_eq!((clock.due(), clock.asked()), (LeaseDue::Renew(sec(3600)), HOUR));
        clock.renewed(sec(3600), Duration::from_secs(1799), true);
        assert_eq!(clock.due(), LeaseDue::Reread(sec(3600)));
    }

    #[test]
    fn a_renewal_that_cannot_be_sent_is_repeated_until_nine_tenths() {
        let mut clock = LeaseClock::granted(sec(0), Duration::from_secs(60), true);
        assert_eq!(clock.due(), LeaseDue::Renew(sec(40)));
        let mut seen = Vec::new();
        while let LeaseDue::Renew(at) = clock.due() {
            clock.renewal_failed(at, AnswerKind::Unavailable, 1.0);
            seen.push(clock.due());
        }
        let renewals = [41, 43, 47].map(|at| LeaseDue::Renew(sec(at)));
        assert_eq!(seen, [&renewals[..], &[LeaseDue::Reread(sec(54))]].concat());
    }

    #[test]
    fn a_refused_renewal_means_fetch_at_once() {
        for kind in [AnswerKind::PermissionDenied, AnswerKind::Invalid, AnswerKind::NotFound] {
            let mut clock = LeaseClock::granted(sec(0), HOUR, true);
            clock.renewal_failed(sec(2400), kind, 0.5);
            assert_eq!(clock.due(), LeaseDue::Reread(sec(2400)));
        }
    }

    #[test]
    fn the_shortest_lease_is_not_a_busy_loop() {
        assert_eq!(LeaseClock::granted(sec(5), Duration::ZERO, true).due(), LeaseDue::Renew(sec(6)));
        assert_eq!(LeaseClock::granted(sec(5), Duration::ZERO, false).due(), LeaseDue::Reread(sec(6)));
    }
}
