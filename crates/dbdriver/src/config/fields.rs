//! Reads the fields of a written configuration, in every form in which clients send them.

use std::time::Duration;

use serde_json::{Map, Value};

use super::ConfigError;

/// The fields that a client wrote. A field that was not written leaves its target as it is.
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl Fields<'_> {
    fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, ConfigError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(_) => Err(wrong(name, "a string")),
        }
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(Value::Number(number)) if number.as_i64() == Some(0) => Ok(Some(false)),
            Some(Value::Number(number)) if number.as_i64() == Some(1) => Ok(Some(true)),
            Some(Value::String(text)) => match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "t" => Ok(Some(true)),
                "false" | "0" | "f" | "" => Ok(Some(false)),
                _ => Err(wrong(name, "a boolean")),
            },
            Some(_) => Err(wrong(name, "a boolean")),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, ConfigError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Number(number)) => number.as_i64().map(Some).ok_or_else(|| wrong(name, "an integer")),
            Some(Value::String(text)) => text.trim().parse().map(Some).map_err(|_| wrong(name, "an integer")),
            Some(_) => Err(wrong(name, "an integer")),
        }
    }

    /// Seconds, or text such as `1h30m`.
    pub(super) fn duration(&self, name: &str) -> Result<Option<Duration>, ConfigError> {
        let parsed = match self.value(name) {
            None => return Ok(None),
            Some(Value::Number(number)) => number.as_u64().map(Duration::from_secs),
            Some(Value::String(text)) => parse_duration(text.trim()),
            Some(_) => None,
        };
        parsed.map(Some).ok_or_else(|| wrong(name, "a duration"))
    }

    /// A list, or text with commas.
    pub(super) fn names(&self, name: &str) -> Result<Option<Vec<String>>, ConfigError> {
        match self.value(name) {
            Some(Value::String(text)) => Ok(Some(
                text.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect(),
            )),
            _ => self.list(name),
        }
    }

    /// A list, or text that is its only item.
    pub(super) fn list(&self, name: &str) -> Result<Option<Vec<String>>, ConfigError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(Some(Vec::new())),
            Some(Value::String(text)) => Ok(Some(vec![text.clone()])),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| item.as_str().map(str::to_owned).ok_or_else(|| wrong(name, "a list of strings")))
                .collect::<Result<_, _>>()
                .map(Some),
            Some(_) => Err(wrong(name, "a list of strings")),
        }
    }
}

fn wrong(name: &str, wanted: &str) -> ConfigError {
    ConfigError(format!("field \"{name}\" must be {wanted}"))
}

fn parse_duration(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, after) = rest.split_at_checked(digits)?;
        let unit_length = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, behind) = after.split_at_checked(unit_length)?;
        let number: u64 = number.parse().ok()?;
        let step = match unit {
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "m" => Duration::from_secs(number.checked_mul(60)?),
            "h" => Duration::from_secs(number.checked_mul(3600)?),
            "d" => Duration::from_secs(number.checked_mul(86_400)?),
            _ => return None,
        };
        total = total.checked_add(step)?;
        rest = behind;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_seconds_or_text() {
        for (text, seconds) in [
            ("30", Some(30)),
            ("1h30m", Some(5400)),
            ("2d", Some(172_800)),
            ("", None),
            ("5x", None),
            ("h", None),
        ] {
            assert_eq!(parse_duration(text), seconds.map(Duration::from_secs), "{text}");
        }
        assert_eq!(parse_duration("99999999999999999999h"), None);
    }
}
