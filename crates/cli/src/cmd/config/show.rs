//! How values are shown: hidden from shoulders, and never able to steer a terminal.

use std::io::IsTerminal as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use holdfast_client::config::{Secret, Value};
use holdfast_core::Wall;
use serde_json::{Map, Value as Json, json};

/// What stands for a value that is hidden.
const MASK: &str = "********";

/// What is shown of sensitive values.
#[derive(Clone, Copy, Debug)]
pub struct Show {
    sensitive: bool,
}

impl Show {
    /// Hides them on a terminal unless `show` asks for them.
    pub fn new(show: bool) -> Self {
        Self { sensitive: show || !std::io::stdout().is_terminal() }
    }

    fn hides(self, value: &Value) -> bool {
        value.sensitive && !self.sensitive
    }

    /// A value as one line of text.
    pub fn text(self, value: &Value) -> String {
        if self.hides(value) { MASK.to_owned() } else { plain(&value.bytes) }
    }

    /// A value as JSON.
    pub fn json(self, value: &Value) -> Json {
        let mut map = Map::new();
        map.insert("name".into(), json!(&*value.name));
        if self.hides(value) {
            map.insert("masked".into(), json!(true));
        } else {
            match std::str::from_utf8(value.bytes.expose()) {
                Ok(text) => map.insert("value".into(), json!(text)),
                Err(_) => map.insert("bytes".into(), json!(STANDARD.encode(value.bytes.expose()))),
            };
        }
        map.insert("version".into(), json!(value.version));
        map.insert("sensitive".into(), json!(value.sensitive));
        map.insert("not_after".into(), json!(value.not_after.and_then(date)));
        map.insert("metadata".into(), json!(value.metadata));
        map.insert("kind".into(), json!(value.kind.map(|kind| kind.label())));
        map.insert("stale".into(), json!(value.stale));
        map.insert("behind".into(), json!(value.behind));
        map.insert("resolved_at".into(), json!(value.resolved_at.and_then(date)));
        map.insert("endpoint".into(), json!(&*value.endpoint));
        Json::Object(map)
    }
}

/// Bytes as one line: text with its controls escaped, else their number.
fn plain(bytes: &Secret) -> String {
    match std::str::from_utf8(bytes.expose()) {
        Ok(text) => {
            let mut line = String::with_capacity(text.len());
            for c in text.chars() {
                if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
            }
            line
        }
        Err(_) => format!("({} bytes)", bytes.len()),
    }
}

/// A date as RFC 3339 writes it.
pub fn date(at: Wall) -> Option<String> {
    jiff::Timestamp::from_microsecond(at.as_micros()).ok().map(|at| at.to_string())
}

/// The time of day.
pub fn now() -> Wall {
    Wall::from_micros(jiff::Timestamp::now().as_microsecond())
}

/// How old a value is; a dash for one that is not dated.
pub fn age(value: &Value, now: Wall) -> String {
    value.resolved_at.map_or_else(|| "-".to_owned(), |at| span(now.since(at)))
}

/// Whether a value is old, and why.
pub fn stale(value: &Value) -> String {
    match (value.stale, value.kind, value.behind) {
        (_, _, true) => "behind".to_owned(),
        (true, Some(kind), _) => kind.to_string(),
        (true, None, _) => "yes".to_owned(),
        (false, ..) => "-".to_owned(),
    }
}

/// A time in its largest whole unit.
pub fn span(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{}ms", time.as_millis()),
        s if s < 60 => format!("{s}s"),
        s if s < 3600 => format!("{}m", s / 60),
        s if s < 86_400 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_steers_a_terminal() {
        assert_eq!(plain(&Secret::new(b"a\x1b[2J\nb\xc3\xa4".to_vec())), "a\\u{1b}[2J\\nb\u{e4}");
        assert_eq!(plain(&Secret::new(vec![0xff, 0])), "(2 bytes)");
        assert_eq!(plain(&Secret::default()), "");
    }

    #[test]
    fn times_are_their_largest_whole_unit() {
        for (millis, text) in [(0, "0ms"), (999, "999ms"), (59_999, "59s"), (60_000, "1m"), (7_200_000, "2h")]
        {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
        assert_eq!(span(Duration::from_secs(200_000)), "2d");
    }

    #[test]
    fn dates_are_written_as_the_wire_does() {
        assert_eq!(
            date(Wall::from_micros(1_785_099_851_250_000)).as_deref(),
            Some("2026-07-26T21:04:11.25Z")
        );
    }
}
