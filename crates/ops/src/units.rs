//! Units as types, so that a configuration key says what its number means.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A span of time in a configuration file: an integer of seconds, or text such as `30s`, `1h30m` or `250ms`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Duration(std::time::Duration);

impl Duration {
    /// `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(std::time::Duration::from_secs(secs))
    }

    /// `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(std::time::Duration::from_millis(millis))
    }

    /// The span as the standard library's type.
    pub const fn get(self) -> std::time::Duration {
        self.0
    }
}

impl From<std::time::Duration> for Duration {
    fn from(value: std::time::Duration) -> Self {
        Self(value)
    }
}

impl From<Duration> for std::time::Duration {
    fn from(value: Duration) -> Self {
        value.0
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// The text is not a span of time.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a duration; write seconds as a number, or text such as \"30s\" or \"1h30m\"")]
pub struct BadDuration;

impl FromStr for Duration {
    type Err = BadDuration;

    fn from_str(text: &str) -> Result<Self, BadDuration> {
        let text = text.trim();
        if let Ok(secs) = text.parse::<u64>() {
            return Ok(Self::from_secs(secs));
        }
        humantime::parse_duration(text).map(Self).map_err(|_| BadDuration)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parse;
        impl Visitor<'_> for Parse {
            type Value = Duration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"30s\", \"1h30m\" or a number of seconds")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, secs: u64) -> Result<Duration, E> {
                Ok(Duration::from_secs(secs))
            }
            fn visit_i64<E: de::Error>(self, secs: i64) -> Result<Duration, E> {
                u64::try_from(secs).map(Duration::from_secs).map_err(|_| E::custom(BadDuration))
            }
        }
        deserializer.deserialize_any(Parse)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A number of bytes in a configuration file: an integer, or text such as `32MiB`, `64KiB` or `1GiB`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ByteSize(u64);

/// The suffixes, longest value first so that the largest whole one is shown.
const SIZES: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl ByteSize {
    /// `bytes` bytes.
    pub const fn bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// `mib` mebibytes; saturates.
    pub const fn mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number of bytes as a length in memory; saturates.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SIZES.iter().find(|(_, size)| self.0 >= *size && self.0.is_multiple_of(*size)) {
            Some((suffix, size)) => write!(f, "{}{suffix}", self.0 / size),
            None => write!(f, "{}", self.0),
        }
    }
}

/// The text is not a number of bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a size; write bytes as a number, or text such as \"64KiB\" or \"32MiB\"")]
pub struct BadSize;

impl FromStr for ByteSize {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(split);
        let number: u64 = number.parse().map_err(|_| BadSize)?;
        let suffix = suffix.trim();
        let size = match SIZES.iter().find(|(name, _)| suffix.eq_ignore_ascii_case(name)) {
            Some((_, size)) => *size,
            None if suffix.is_empty() || suffix.eq_ignore_ascii_case("B") => 1,
            // Decimal suffixes are refused: a reader cannot tell whether 1 MB was meant as a power of ten.
            None => return Err(BadSize),
        };
        number.checked_mul(size).map(Self).ok_or(BadSize)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parse;
        impl Visitor<'_> for Parse {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"32MiB\" or a number of bytes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes).map(ByteSize).map_err(|_| E::custom(BadSize))
            }
        }
        deserializer.deserialize_any(Parse)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_seconds_or_text() {
        for (text, millis) in [("30", 30_000), ("30s", 30_000), ("1h30m", 5_400_000), ("250ms", 250)] {
            assert_eq!(text.parse(), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "-1", "1x", "1.5", "s"] {
            assert_eq!(text.parse::<Duration>(), Err(BadDuration), "{text}");
        }
        assert_eq!(Duration::from_secs(5400).to_string(), "1h 30m");
        assert_eq!("1h 30m".parse(), Ok(Duration::from_secs(5400)), "what is shown can be read again");
    }

    #[test]
    fn sizes_are_bytes_or_binary_suffixes() {
        for (text, bytes) in [("1024", 1024), ("64KiB", 65_536), ("32 mib", 33_554_432), ("7B", 7)] {
            assert_eq!(text.parse(), Ok(ByteSize::bytes(bytes)), "{text}");
        }
        for text in ["", "MiB", "1MB", "-1", "1.5GiB", "99999999999TiB"] {
            assert_eq!(text.parse::<ByteSize>(), Err(BadSize), "{text}");
        }
        assert_eq!(ByteSize::mib(32).to_string(), "32MiB");
        assert_eq!(ByteSize::bytes(1025).to_string(), "1025");
    }
}
