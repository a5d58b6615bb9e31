//! The wall clock, for what outlives a process or is shown to people: expiry times and creation times.
//!
//! Decisions about peers and timeouts use monotonic time, not this.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Whole seconds since the Unix epoch.
pub fn now_unix() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// A time in seconds since the Unix epoch as RFC 3339 in UTC.
pub fn rfc3339(unix: i64) -> String {
    Timestamp::from_second(unix).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// The present as RFC 3339 in UTC, always with nine digits of a second.
pub fn now_rfc3339_nanos() -> String {
    format!("{:.9}", Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_utc() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(i64::MAX), "1970-01-01T00:00:00Z");
        let now = now_rfc3339_nanos();
        assert_eq!(now.len(), "2026-01-02T03:04:05.123456789Z".len(), "{now}");
    }
}
