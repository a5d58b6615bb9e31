//! Both clocks at one moment, behind a trait so that tests decide what time it is.

use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_core::{Now, Wall};
use holdfast_ops::MonoClock;

/// What tells the time.
pub trait Clock: Send + Sync + 'static {
    /// Both clocks now.
    fn now(&self) -> Now;
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock(MonoClock);

impl Clock for SystemClock {
    fn now(&self) -> Now {
        Now { mono: self.0.now(), wall: wall() }
    }
}

/// The time of day, to the microsecond.
pub fn wall() -> Wall {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Wall::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
