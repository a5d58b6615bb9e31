//! The one place where the process reads its monotonic clock.
//!
//! Decisions take a [`Mono`] as an argument; the shells get it here. All clocks of one process share an origin,
//! so that instants read by different tasks can be compared.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use holdfast_core::Mono;

/// The monotonic clock of this process. Copies are the same clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonoClock;

impl MonoClock {
    /// The clock.
    pub fn new() -> Self {
        // Reading it once here fixes the origin at start, not at the first decision.
        origin();
        Self
    }

    /// The instant now.
    pub fn now(&self) -> Mono {
        Mono::ZERO.after(origin().elapsed())
    }

    /// How long from now until `at`; zero when it has passed.
    pub fn until(&self, at: Mono) -> Duration {
        self.now().until(at)
    }

    /// How long ago `at` was; zero when it lies ahead.
    pub fn since(&self, at: Mono) -> Duration {
        self.now().since(at)
    }

    /// Waits until `at`. With `None`, or an instant that never comes, it waits for ever, which lets a `select!`
    /// take a machine's `next_deadline()` as it is.
    pub async fn sleep_until(&self, at: Option<Mono>) {
        match at {
            Some(at) if at != Mono::FAR => tokio::time::sleep(self.until(at)).await,
            _ => std::future::pending().await,
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back_and_copies_agree() {
        let (a, b) = (MonoClock::new(), MonoClock::new());
        let first = a.now();
        let second = b.now();
        assert!(second >= first);
        assert_eq!(a.until(Mono::ZERO), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_missing_deadline_never_fires_and_a_past_one_fires_at_once() {
        let clock = MonoClock::new();
        clock.sleep_until(Some(Mono::ZERO)).await;
        let never = tokio::time::timeout(Duration::from_millis(20), clock.sleep_until(None)).await;
        assert!(never.is_err());
    }
}
