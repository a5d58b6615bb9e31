//! The fields of a request body, read with the leniency that clients rely on: numbers and booleans may come as
//! strings, durations as seconds or as `1h30m`, lists as JSON arrays or as comma-separated text.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// A request's fields.
#[derive(Clone, Default, PartialEq)]
pub struct Data(Map<String, Value>);

/// Values may be secrets: only names are shown.
impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Data {
    /// Wraps a JSON object.
    pub fn new(map: Map<String, Value>) -> Self {
        Self(map)
    }

    /// Whether the field is there and not null.
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// The raw value; null counts as absent.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    /// A text; numbers and booleans are turned into text.
    pub fn string(&self, key: &str) -> Result<Option<String>, ApiError> {
        self.value(key)
            .map(|v| match v {
                Value::String(s) => Ok(s.clone()),
                Value::Number(n) => Ok(n.to_string()),
                Value::Bool(b) => Ok(b.to_string()),
                _ => Err(wrong(key, "a string")),
            })
            .transpose()
    }

    /// A text that must be there and not be empty; `missing` is the whole error text otherwise.
    pub fn required(&self, key: &str, missing: &str) -> Result<String, ApiError> {
        self.string(key)?.filter(|s| !s.is_empty()).ok_or_else(|| ApiError::invalid(missing))
    }

    /// A boolean; `"true"`, `"1"`, `1` and their opposites are accepted.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, ApiError> {
        self.value(key).map(|v| boolean(v).ok_or_else(|| wrong(key, "a boolean"))).transpose()
    }

    /// A whole number, also as text.
    pub fn int(&self, key: &str) -> Result<Option<i64>, ApiError> {
        self.value(key)
            .map(|v| match v {
                Value::Number(n) => {
                    n.as_i64().or_else(|| whole(n.as_f64()?)).ok_or_else(|| wrong(key, "an integer"))
                }
                Value::String(s) => s.trim().parse().map_err(|_| wrong(key, "an integer")),
                _ => Err(wrong(key, "an integer")),
            })
            .transpose()
    }

    /// A duration in seconds or as text with units; may be negative.
    pub fn seconds(&self, key: &str) -> Result<Option<i64>, ApiError> {
        self.value(key)
            .map(|v| match v {
                Value::Number(n) => {
                    n.as_i64().or_else(|| whole(n.as_f64()?)).ok_or_else(|| wrong(key, DURATION))
                }
                Value::String(s) => parse_seconds(s).ok_or_else(|| wrong(key, DURATION)),
                _ => Err(wrong(key, DURATION)),
            })
            .transpose()
    }

    /// A duration that must not be negative.
    pub fn duration(&self, key: &str) -> Result<Option<Duration>, ApiError> {
        self.seconds(key)?
            .map(|s| {
                u64::try_from(s)
                    .map(Duration::from_secs)
                    .map_err(|_| ApiError::invalid(format!("{key} must not be negative")))
            })
            .transpose()
    }

    /// A list of texts: a JSON array, or text separated by commas. Empty members are dropped.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<String>>, ApiError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let list = match value {
            Value::Array(items) => items
                .iter()
                .map(|item| match item {
                    Value::String(s) => Ok(s.trim().to_owned()),
                    Value::Number(n) => Ok(n.to_string()),
                    _ => Err(wrong(key, "a list of strings")),
                })
                .collect::<Result<Vec<_>, _>>()?,
            Value::String(s) => s.split(',').map(|part| part.trim().to_owned()).collect(),
            _ => return Err(wrong(key, "a list of strings")),
        };
        Ok(Some(list.into_iter().filter(|s| !s.is_empty()).collect()))
    }

    /// An object whose values are texts.
    pub fn string_map(
        &self,
        key: &str,
    ) -> Result<Option<std::collections::BTreeMap<String, String>>, ApiError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let Value::Object(map) = value else { return Err(wrong(key, "an object")) };
        map.iter()
            .map(|(name, v)| match v {
                Value::String(s) => Ok((name.clone(), s.clone())),
                Value::Number(n) => Ok((name.clone(), n.to_string())),
                Value::Bool(b) => Ok((name.clone(), b.to_string())),
                _ => Err(wrong(key, "an object of strings")),
            })
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// A nested object.
    pub fn object(&self, key: &str) -> Result<Option<Self>, ApiError> {
        self.value(key)
            .map(|v| v.as_object().cloned().map(Self).ok_or_else(|| wrong(key, "an object")))
            .transpose()
    }

    /// The whole object.
    pub fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }

    /// The whole object, taken.
    pub fn into_map(self) -> Map<String, Value> {
        self.0
    }
}

const DURATION: &str = "a duration in seconds or like 1h30m";

fn wrong(key: &str, expected: &str) -> ApiError {
    ApiError::invalid(format!("field {key:?} must be {expected}"))
}

fn whole(f: f64) -> Option<i64> {
    // The comparison holds exactly for every f64 whose value an i64 can have.
    (f.fract() == 0.0 && f.abs() < 9.0e15).then_some(f as i64)
}

fn boolean(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(b) => Some(*b),
        Value::Number(n) => match n.as_i64()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        },
        Value::String(s) => parse_bool(s),
        _ => None,
    }
}

/// A boolean as clients write it in a query string or body.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "t" => Some(true),
        "false" | "0" | "f" | "" => Some(false),
        _ => None,
    }
}

/// Whole seconds from `90`, `1h30m`, `1.5h`, `1500ms` (rounded down, but never to nothing) or `2d`; a leading minus
/// negates.
pub fn parse_seconds(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let seconds = match rest.bytes().all(|b| b.is_ascii_digit()) {
        true if text.is_empty() => 0,
        true => rest.parse().ok()?,
        false => {
            let exact = with_units(rest)?;
            // Zero means "not set" in most places: what was meant to be short must not become endless.
            whole(if exact > 0.0 { exact.trunc().max(1.0) } else { 0.0 })?
        }
    };
    Some(if negative { -seconds } else { seconds })
}

/// Whether a text is a duration longer than nothing and shorter than a second, which [`parse_seconds`] rounds up.
pub fn is_under_a_second(text: &str) -> bool {
    with_units(text.trim()).is_some_and(|seconds| seconds > 0.0 && seconds < 1.0)
}

/// The seconds of a text such as `1h30m`.
fn with_units(mut rest: &str) -> Option<f64> {
    let mut seconds = 0.0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_len = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        let factor = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * factor;
        rest = tail;
    }
    Some(seconds)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn data(value: Value) -> Data {
        Data::new(value.as_object().unwrap().clone())
    }

    #[test]
    fn numbers_and_booleans_may_be_strings() {
        let d = data(json!({"n": "30", "b": "true", "one": 1, "f": 4.0, "null": null}));
        assert_eq!(d.int("n").unwrap(), Some(30));
        assert_eq!(d.int("f").unwrap(), Some(4));
        assert_eq!(d.bool("b").unwrap(), Some(true));
        assert_eq!(d.bool("one").unwrap(), Some(true));
        assert_eq!(d.string("null").unwrap(), None);
        assert!(d.bool("n").is_err());
    }

    #[test]
    fn durations_are_seconds_or_have_units() {
        for (text, seconds) in [
            ("90", 90),
            ("1h30m", 5400),
            ("1.5h", 5400),
            ("1500ms", 1),
            ("500ms", 1),
            ("-1ns", -1),
            ("0ms", 0),
            ("2d", 172_800),
            ("-1m", -60),
            ("", 0),
        ] {
            assert_eq!(parse_seconds(text), Some(seconds), "{text}");
        }
        for (text, under) in
            [("999ms", true), ("0.5s", true), ("1s", false), ("0s", false), ("1", false), ("-1ms", false)]
        {
            assert_eq!(is_under_a_second(text), under, "{text}");
        }
        for bad in ["h", "1x", "1h2", "--1", "1..2s", "99999999999999999999"] {
            assert_eq!(parse_seconds(bad), None, "{bad}");
        }
        assert!(data(json!({"ttl": -1})).duration("ttl").is_err());
        assert!(data(json!({"ttl": [1]})).seconds("ttl").is_err());
    }

    #[test]
    fn lists_are_arrays_or_comma_text() {
        let d = data(json!({"a": ["x", " y "], "b": "x, y,", "c": {}}));
        assert_eq!(d.strings("a").unwrap().unwrap(), ["x", "y"]);
        assert_eq!(d.strings("b").unwrap().unwrap(), ["x", "y"]);
        assert!(d.strings("c").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = parse_seconds(&text);
            let _ = parse_bool(&text);
        }
    }
}
