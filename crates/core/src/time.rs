//! Monotonic time as a value.
//!
//! Decisions compare instants of one machine's monotonic clock only; the wall clock is for certificates, display
//! and protocol fields that demand it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant of a monotonic clock, in nanoseconds since an origin that the process chose at its start.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Mono(u64);

impl Mono {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// Later than every instant that occurs.
    pub const FAR: Self = Self(u64::MAX);

    /// An instant `nanos` after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// An instant `millis` after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `d` later; saturates at [`Mono::FAR`].
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; zero when it lies ahead.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// How long until `later`; zero when it has passed.
    pub const fn until(self, later: Self) -> Duration {
        later.since(self)
    }
}

impl fmt::Display for Mono {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.since(Self::ZERO).as_secs_f64())
    }
}

/// A time of day, in microseconds since the Unix epoch: for dates that others read, never for deadlines.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Wall(i64);

impl Wall {
    /// A time so many microseconds after the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The time `d` later; saturates.
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(d.as_micros()).unwrap_or(i64::MAX)))
    }

    /// How long ago `earlier` was; zero when it lies ahead.
    pub const fn since(self, earlier: Self) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        if micros > 0 { Duration::from_micros(micros.unsigned_abs()) } else { Duration::ZERO }
    }
}

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Now {
    /// What decisions compare.
    pub mono: Mono,
    /// What others read.
    pub wall: Wall,
}

/// Spreads `base` by a fraction: `unit` in `0.0..=1.0` is the caller's random number, and the result lies in
/// `base * (1 - fraction) ..= base * (1 + fraction)`.
pub fn jittered(base: Duration, fraction: f64, unit: f64) -> Duration {
    let factor = 1.0 - fraction + 2.0 * fraction * unit.clamp(0.0, 1.0);
    base.mul_f64(factor.max(0.0))
}

/// The delay before attempt `attempt` (0 for the first retry): doubles from `first`, never above `ceiling`.
pub fn doubling(first: Duration, ceiling: Duration, attempt: u32) -> Duration {
    first.saturating_mul(1u32.checked_shl(attempt.min(31)).unwrap_or(u32::MAX)).min(ceiling)
}

/// A stream of numbers that a seed determines: jitter as data.
///
/// The shell draws the seed once from a real random source; from then on a machine that holds a `Spread` is a
/// function of its inputs and can be replayed. Not for secrets.
#[derive(Clone, Debug)]
pub struct Spread(u64);

impl Spread {
    /// The stream that `seed` determines.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits (splitmix64).
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.bits() % bound }
    }

    /// A number in `0.0..1.0`, as [`jittered`] wants it.
    pub fn unit(&mut self) -> f64 {
        const STEPS: f64 = (1u64 << 53) as f64;
        (self.bits() >> 11) as f64 / STEPS
    }
}

/// The earlier of two optional deadlines.
pub fn earliest(a: Option<Mono>, b: Option<Mono>) -> Option<Mono> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_never_go_below_zero() {
        let (a, b) = (Mono::from_millis(5), Mono::from_millis(9));
        assert_eq!(b.since(a), Duration::from_millis(4));
        assert_eq!(a.since(b), Duration::ZERO);
        assert_eq!(a.until(b), Duration::from_millis(4));
        assert_eq!(Mono::FAR.after(Duration::from_secs(1)), Mono::FAR);
    }

    #[test]
    fn jitter_spans_both_sides() {
        let base = Duration::from_secs(10);
        assert_eq!(jittered(base, 0.2, 0.0), Duration::from_secs(8));
        assert_eq!(jittered(base, 0.2, 0.5), base);
        assert_eq!(jittered(base, 0.2, 1.0), Duration::from_secs(12));
    }

    #[test]
    fn a_seed_determines_its_stream() {
        let (mut a, mut b) = (Spread::new(7), Spread::new(7));
        assert!((0..100).all(|_| a.bits() == b.bits()));
        assert!((0..1000).map(|_| a.unit()).all(|u| (0.0..1.0).contains(&u)));
        assert!((0..1000).all(|_| a.below(3) < 3));
        assert_eq!(a.below(0), 0);
    }

    #[test]
    fn doubling_stops_at_its_ceiling() {
        let (first, ceiling) = (Duration::from_millis(5), Duration::from_millis(60));
        let delays: Vec<_> = (0..5).map(|n| doubling(first, ceiling, n).as_millis()).collect();
        assert_eq!(delays, [5, 10, 20, 40, 60]);
        assert_eq!(doubling(first, ceiling, 200), ceiling);
    }
}
