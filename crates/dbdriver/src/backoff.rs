//! Waiting before a transaction that met a conflict is tried again.

use std::time::Duration;

use holdfast_core::time::doubling;
use rand::RngExt as _;

/// How often a conflict is retried.
pub(crate) const RETRIES: u32 = 6;
const FIRST: Duration = Duration::from_millis(5);
const CEILING: Duration = Duration::from_millis(320);

/// The delay before retry `attempt` (0 for the first): somewhere between nothing and a bound that doubles.
pub(crate) fn delay(attempt: u32) -> Duration {
    doubling(FIRST, CEILING, attempt).mul_f64(rand::rng().random_range(0.0..=1.0))
}
