//! The wall clock, for records and protocol fields that show a time of day. Decisions within this process use the
//! monotonic clock.

use jiff::Timestamp;

/// The time of day.
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// Whole seconds since the Unix epoch.
pub fn now_unix() -> i64 {
    now().as_second()
}

/// Seconds since the Unix epoch as RFC 3339 in UTC; the epoch itself for a time that no calendar holds.
pub fn rfc3339_unix(at: i64) -> String {
    Timestamp::from_second(at).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// RFC 3339 in UTC with nanoseconds.
pub fn rfc3339(at: Timestamp) -> String {
    format!("{at:.9}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_are_shown_without_a_fraction() {
        assert_eq!(rfc3339_unix(1), "1970-01-01T00:00:01Z");
        assert_eq!(rfc3339_unix(i64::MAX), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn all_nine_digits_are_shown() {
        assert_eq!(rfc3339(Timestamp::new(1, 5).unwrap()), "1970-01-01T00:00:01.000000005Z");
        assert_eq!(rfc3339(Timestamp::new(1, 0).unwrap()), "1970-01-01T00:00:01.000000000Z");
    }
}
