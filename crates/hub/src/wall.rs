//! The wall clock, for records and protocol fields that show a time of day. Decisions within this process use the
//! monotonic clock.

use jiff::Timestamp;

/// The time of day.
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// RFC 3339 in UTC with nanoseconds.
pub fn rfc3339(at: Timestamp) -> String {
    format!("{at:.9}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_nine_digits_are_shown() {
        assert_eq!(rfc3339(Timestamp::new(1, 5).unwrap()), "1970-01-01T00:00:01.000000005Z");
        assert_eq!(rfc3339(Timestamp::new(1, 0).unwrap()), "1970-01-01T00:00:01.000000000Z");
    }
}
