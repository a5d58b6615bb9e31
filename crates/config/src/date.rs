//! Dates as text: RFC 3339, in UTC.

use holdfast_core::Wall;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::fmt::temporal::DateTimePrinter;
use jiff::tz::TimeZone;
use serde::Deserialize;

/// Always six digits, so that lines of a log sort as text.
static ALIGNED: DateTimePrinter = DateTimePrinter::new().precision(Some(6));

/// A date in a TOML file, bare or in quotes.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum DateText {
    /// TOML's own.
    Bare(toml::value::Datetime),
    /// In quotes.
    Quoted(String),
}

impl std::fmt::Display for DateText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bare(date) => date.fmt(f),
            Self::Quoted(text) => f.write_str(text),
        }
    }
}

/// Reads a time with its offset, or a day, which begins at midnight UTC.
pub fn parse(text: &str) -> Option<Wall> {
    let text = text.trim();
    let day = || TimeZone::UTC.to_timestamp(text.parse::<Date>().ok()?.at(0, 0, 0, 0)).ok();
    let time = text.parse::<Timestamp>().ok();
    // The parser of a day would take a time without an offset and forget the time.
    let time = if time.is_none() && text.len() == "2026-01-01".len() { day() } else { time };
    time.map(|time| Wall::from_micros(time.as_microsecond()))
}

/// The time with up to six digits of a fraction, none when it is zero.
pub fn show(at: Wall) -> String {
    timestamp(at).to_string()
}

/// The time with six digits of a fraction.
pub fn show_aligned(at: Wall) -> String {
    ALIGNED.timestamp_to_string(&timestamp(at))
}

fn timestamp(at: Wall) -> Timestamp {
    Timestamp::from_microsecond(at.as_micros())
        .unwrap_or_else(|_| if at.as_micros() < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_days_are_read_and_shown() {
        let at = |text: &str| parse(text).map(Wall::as_micros);
        assert_eq!(at("1970-01-01T00:00:01Z"), Some(1_000_000));
        assert_eq!(at("1970-01-01T01:00:00.25+01:00"), Some(250_000));
        assert_eq!(at(" 1970-01-02 "), Some(86_400_000_000));
        for bad in ["", "1970-01-02T00:00:00", "tomorrow", "1970-13-01", "01.02.1970", "19700102T000000"] {
            assert_eq!(at(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_fraction_is_shown_when_there_is_one() {
        assert_eq!(show(Wall::from_micros(0)), "1970-01-01T00:00:00Z");
        assert_eq!(show(Wall::from_micros(1_500_000)), "1970-01-01T00:00:01.5Z");
        assert_eq!(show(Wall::from_micros(1_000_001)), "1970-01-01T00:00:01.000001Z");
        assert_eq!(show_aligned(Wall::from_micros(1_500_000)), "1970-01-01T00:00:01.500000Z");
        assert!(show(Wall::from_micros(i64::MAX)).starts_with("9999-"));
    }
}
