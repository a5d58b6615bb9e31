//! The wall clock, for what is stored and shown: ends of leases and database validity are agreed upon between
//! nodes, databases and clients, and no monotonic clock is.

use std::time::Duration;

use holdfast_core::Mono;
use jiff::Timestamp;

/// Milliseconds of the Unix epoch.
#[derive(
    Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd, serde::Deserialize, serde::Serialize,
)]
#[serde(transparent)]
pub struct Wall(i64);

impl Wall {
    /// Now.
    pub fn now() -> Self {
        Self(Timestamp::now().as_millisecond())
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

    /// The instant of the monotonic clock that corresponds, when `now` is now.
    pub fn on_mono(self, now: Mono) -> Mono {
        let wall = Self::now();
        if self >= wall {
            return now.after(wall.until(self));
        }
        let ago = u64::try_from(self.until(wall).as_nanos()).unwrap_or(u64::MAX);
        Mono::from_nanos(now.as_nanos().saturating_sub(ago))
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
    fn remaining_seconds_round_up() {
        let a = Wall::from_millis(1000);
        assert_eq!(a.secs_until(Wall::from_millis(2001)), 2);
        assert_eq!(a.secs_until(Wall::from_millis(2000)), 1);
        assert_eq!(a.secs_until(Wall::from_millis(500)), 0);
    }
}
