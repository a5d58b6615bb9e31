//! When an upstream is asked: the schedule of an object, the breaker of an upstream, the clock of a lease.
//!
//! What must hold: a failing object is asked less often and never makes another one be asked; an upstream that is down
//! gets one probe a step, not one call an object; nothing is asked earlier than the upstream allows; what mints a
//! credential is asked by the clock of its lease only.

mod breaker;
mod lease;
mod schedule;

pub use breaker::{Admission, Breaker, BreakerTiming, Turn};
pub use lease::{LeaseClock, LeaseDue};
pub use schedule::{Schedule, ScheduleTiming, smallest};

use std::time::Duration;

use crate::time::jittered;

/// A pause somewhere in the upper half of `pause`; `unit` in `0.0..=1.0` says where.
fn upper_half(pause: Duration, unit: f64) -> Duration {
    jittered(pause.mul_f64(0.75), 1.0 / 3.0, unit)
}
