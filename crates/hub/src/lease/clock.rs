//! The clock of leases: wall time, since ends of leases and database validity are agreed upon between nodes,
//! databases and clients, but on this node it never goes back.
//!
//! It starts from the wall clock, runs with the monotonic one, and jumps forward when the wall clock is ahead of
//! it. So a wall clock that is set back lets leases of this node live no shorter, and the index of what is due can
//! be read behind a cursor.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use holdfast_core::Mono;
use jiff::Timestamp;
use tokio::time::Instant;

/// How far the wall clock may be ahead before this clock follows it. Tests that stop the monotonic clock stop
/// this one too.
const TOLERANCE_MS: i64 = if cfg!(test) { i64::MAX / 4 } else { 1000 };

/// Milliseconds of the Unix epoch.
#[derive(
    Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd, serde::Deserialize, serde::Serialize,
)]
#[serde(transparent)]
pub struct Wall(i64);

impl Wall {
    /// Now.
    pub fn now() -> Self {
        static ORIGIN: OnceLock<(Instant, i64)> = OnceLock::new();
        static AHEAD: AtomicI64 = AtomicI64::new(0);
        let wall = Timestamp::now().as_millisecond();
        let (start, base) = *ORIGIN.get_or_init(|| (Instant::now(), wall));
        let elapsed = i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX);
        let steady = base.saturating_add(elapsed);
        if wall > steady.saturating_add(AHEAD.load(Ordering::Relaxed)).saturating_add(TOLERANCE_MS) {
            AHEAD.fetch_max(wall.saturating_sub(steady), Ordering::Relaxed);
        }
        Self(steady.saturating_add(AHEAD.load(Ordering::Relaxed)))
    }

    /// From milliseconds of the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// The instant `d` later; saturates.
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(d.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The instant `seconds` later; saturates.
    pub fn after_secs(self, seconds: u64) -> Self {
        self.after(Duration::from_secs(seconds.min(u64::MAX / 2000)))
    }

    /// How long until `later`; zero when it has passed.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// Whole seconds until `later`, rounded up; zero when it has passed.
    pub fn secs_until(self, later: Self) -> u64 {
        u64::try_from(self.until(later).as_millis().div_ceil(1000)).unwrap_or(u64::MAX)
    }

    /// The bare number.
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// As the 16 hexadecimal digits of a time-ordered key.
    pub fn key(self) -> String {
        format!("{:016x}", u64::try_from(self.0).unwrap_or(0))
    }

    /// From the digits of a key.
    pub fn from_key(digits: &str) -> Option<Self> {
        i64::try_from(u64::from_str_radix(digits, 16).ok()?).ok().map(Self)
    }

    /// For a driver.
    pub fn timestamp(self) -> Timestamp {
        Timestamp::from_millisecond(self.0).unwrap_or(Timestamp::MAX)
    }

    /// For display: RFC 3339.
    pub fn display(self) -> String {
        self.timestamp().to_string()
    }

    /// As an instant for the state machines, which only compare: this clock does not go back.
    pub fn mono(self) -> Mono {
        Mono::from_millis(u64::try_from(self.0).unwrap_or(0))
    }

    /// From an instant of the state machines; saturates.
    pub fn from_mono(at: Mono) -> Self {
        Self(i64::try_from(at.as_nanos() / 1_000_000).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_like_times() {
        let (a, b) = (Wall::from_millis(9), Wall::from_millis(1_000_000_000_000));
        assert!(a.key() < b.key());
        assert_eq!(a.key().len(), 16);
        assert_eq!(Wall::from_key(&b.key()), Some(b));
        assert_eq!(Wall::from_key("x"), None);
    }

    #[test]
    fn instants_of_the_machines_convert_back_exactly() {
        let now = Wall::now();
        assert_eq!(Wall::from_mono(now.mono()), now);
        assert!(Wall::now() >= now);
    }

    #[test]
    fn remaining_seconds_round_up() {
        let a = Wall::from_millis(1000);
        assert_eq!(a.secs_until(Wall::from_millis(2001)), 2);
        assert_eq!(a.secs_until(Wall::from_millis(2000)), 1);
        assert_eq!(a.secs_until(Wall::from_millis(500)), 0);
    }
}
