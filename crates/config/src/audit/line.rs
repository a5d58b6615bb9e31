//! One audit line: what it can say, and its JSON.
//!
//! What must hold: no field can take the bytes of a value; the fields stand in one fixed order; every text of a stranger
//! is cut, so that the queue of lines is bounded in bytes too.

use std::io::Write as _;
use std::time::Duration;

use holdfast_core::{AnswerKind, Wall};

use crate::auth::Identity;
use crate::date;

/// The most bytes of a name; no binding has a longer one.
const NAME: usize = 256;
/// The most bytes of a path.
const PATH: usize = 1024;
/// The most bytes of a user agent.
const USER_AGENT: usize = 128;
/// The most bytes of any other text.
const TEXT: usize = 512;
/// The most groups of a caller.
const GROUPS: usize = 64;

/// What happened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Message {
    /// A request was answered: one line for each name.
    #[default]
    Request,
    /// A change was written to a stream; only with `audit.deliveries`.
    Deliver,
    /// A stream ended.
    StreamEnd {
        /// The frames that were written to it.
        frames: u64,
        /// How long it lived.
        lived: Duration,
    },
}

impl Message {
    const fn label(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Deliver => "deliver",
            Self::StreamEnd { .. } => "stream_end",
        }
    }
}

/// A line. What does not apply stays as in the default; the node adds its own name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line<'a> {
    /// When it happened.
    pub time: Wall,
    /// What happened.
    pub message: Message,
    /// The request's id, 16 hexadecimal digits.
    pub request_id: &'a str,
    /// Who asked; none when that could not be found out.
    pub identity: Option<&'a Identity>,
    /// The name that was asked for, as it came; empty where there is none.
    pub name: &'a [u8],
    /// Whether it was allowed.
    pub allow: bool,
    /// The kind of the failure that was answered.
    pub kind: Option<AnswerKind>,
    /// The HTTP status.
    pub status: u16,
    /// The HTTP method.
    pub method: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// From the request's head to its answer.
    pub latency: Duration,
    /// The far end: an address, or `unix`.
    pub remote: &'a str,
    /// Why: of a refused caller which checks failed, of a stream why it ended.
    pub reason: &'a str,
    /// The `User-Agent` as it came.
    pub user_agent: &'a [u8],
    /// The version of the value that was given out.
    pub version: Option<&'a str>,
    /// The date of the value that was given out.
    pub resolved_at: Option<Wall>,
    /// Whether it was given out as stale.
    pub stale: bool,
}

impl Line<'_> {
    /// Appends the line as JSON with a newline.
    pub(super) fn encode(&self, node: &str, out: &mut Vec<u8>) {
        let mut json = Object::begin(out);
        json.text("time", &date::show_aligned(self.time), TEXT);
        json.text("msg", self.message.label(), TEXT);
        json.text("node", node, TEXT);
        json.text("request_id", self.request_id, TEXT);
        json.text("subject", self.identity.map_or("", |identity| &identity.subject), TEXT);
        json.bytes("name", self.name, NAME);
        json.text("decision", if self.allow { "allow" } else { "deny" }, TEXT);
        json.text("kind", self.kind.map_or("", AnswerKind::label), TEXT);
        json.number("status", format_args!("{}", self.status));
        json.text("method", self.method, TEXT);
        json.text("path", self.path, PATH);
        json.number("latency_ms", format_args!("{:.3}", self.latency.as_secs_f64() * 1000.0));
        self.encode_ours(&mut json);
        json.end();
    }

    /// The fields that are left out where they do not apply.
    fn encode_ours(&self, json: &mut Object<'_>) {
        json.text_if_any("remote", self.remote, TEXT);
        if let Some(identity) = self.identity {
            json.text("auth", identity.method.label(), TEXT);
        }
        json.text_if_any("reason", self.reason, TEXT);
        if let Some(identity) = self.identity.filter(|identity| !identity.groups.is_empty()) {
            json.list("groups", identity.groups.iter().take(GROUPS).map(|group| &**group));
        }
        if !self.user_agent.is_empty() {
            json.bytes("user_agent", self.user_agent, USER_AGENT);
        }
        json.text_if_any("version", self.version.unwrap_or_default(), TEXT);
        if let Some(at) = self.resolved_at {
            json.text("resolved_at", &date::show(at), TEXT);
        }
        if self.stale {
            json.number("stale", format_args!("true"));
        }
        if let Message::StreamEnd { frames, lived } = self.message {
            json.number("frames", format_args!("{frames}"));
            json.number("seconds", format_args!("{:.3}", lived.as_secs_f64()));
        }
    }
}

/// A JSON object that is written field by field. Writing to memory cannot fail.
struct Object<'a> {
    out: &'a mut Vec<u8>,
    separator: u8,
}

impl<'a> Object<'a> {
    const fn begin(out: &'a mut Vec<u8>) -> Self {
        Self { out, separator: b'{' }
    }

    fn end(self) {
        self.out.extend_from_slice(b"}\n");
    }

    fn key(&mut self, key: &'static str) {
        self.out.extend_from_slice(&[self.separator, b'"']);
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.separator = b',';
    }

    fn text(&mut self, key: &'static str, text: &str, most: usize) {
        self.key(key);
        put(self.out, text, most);
    }

    fn text_if_any(&mut self, key: &'static str, text: &str, most: usize) {
        if !text.is_empty() {
            self.text(key, text, most);
        }
    }

    /// A text that may not be UTF-8; what is not becomes U+FFFD.
    fn bytes(&mut self, key: &'static str, bytes: &[u8], most: usize) {
        let bytes = bytes.get(..most).unwrap_or(bytes);
        self.text(key, &String::from_utf8_lossy(bytes), most);
    }

    fn list<'t>(&mut self, key: &'static str, texts: impl Iterator<Item = &'t str>) {
        self.key(key);
        let mut separator = b'[';
        for text in texts {
            self.out.push(separator);
            put(self.out, text, TEXT);
            separator = b',';
        }
        self.out.push(b']');
    }

    fn number(&mut self, key: &'static str, number: std::fmt::Arguments<'_>) {
        self.key(key);
        let _ = self.out.write_fmt(number);
    }
}

fn put(out: &mut Vec<u8>, text: &str, most: usize) {
    let cut = text.get(..text.floor_char_boundary(most)).unwrap_or_default();
    let _ = serde_json::to_writer(out, cut);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &Line<'_>) -> String {
        let mut out = Vec::new();
        line.encode("node-7", &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_fields_stand_in_their_order() {
        let mut caller = Identity::supposed("svc-orders", &["a".to_owned(), "b\"".to_owned()]);
        caller.method = crate::auth::Method::Mtls;
        let line = Line {
            time: Wall::from_micros(1_700_000_000_250_000),
            request_id: "00112233445566ff",
            identity: Some(&caller),
            name: b"db-password",
            allow: true,
            kind: Some(AnswerKind::Unavailable),
            status: 200,
            method: "GET",
            path: "/v1/values/db-password",
            latency: Duration::from_micros(1234),
            remote: "10.0.0.1:999",
            reason: "why",
            user_agent: b"curl/8",
            version: Some("12"),
            resolved_at: Some(Wall::from_micros(1_699_999_999_000_000)),
            stale: true,
            ..Line::default()
        };
        assert_eq!(
            shown(&line),
            concat!(
                r#"{"time":"2023-11-14T22:13:20.250000Z","msg":"request","node":"node-7","request_id":"00112233445566ff","#,
                r#""subject":"svc-orders","name":"db-password","decision":"allow","kind":"unavailable","status":200,"#,
                r#""method":"GET","path":"/v1/values/db-password","latency_ms":1.234,"remote":"10.0.0.1:999","#,
                r#""auth":"mtls","reason":"why","groups":["a","b\""],"user_agent":"curl/8","version":"12","#,
                r#""resolved_at":"2023-11-14T22:13:19Z","stale":true}"#,
                "\n"
            )
        );
    }

    #[test]
    fn the_twelve_are_always_there_and_ours_only_where_they_apply() {
        assert_eq!(
            shown(&Line::default()),
            concat!(
                r#"{"time":"1970-01-01T00:00:00.000000Z","msg":"request","node":"node-7","request_id":"","subject":"","#,
                r#""name":"","decision":"deny","kind":"","status":0,"method":"","path":"","latency_ms":0.000}"#,
                "\n"
            )
        );
        let end = Message::StreamEnd { frames: 3, lived: Duration::from_millis(1500) };
        let line = shown(&Line { message: end, reason: "slow", ..Line::default() });
        assert!(line.contains(r#""msg":"stream_end""#), "{line}");
        assert!(
            line.ends_with("\"latency_ms\":0.000,\"reason\":\"slow\",\"frames\":3,\"seconds\":1.500}\n"),
            "{line}"
        );
        assert!(shown(&Line { message: Message::Deliver, ..Line::default() }).contains(r#""msg":"deliver""#));
    }

    #[test]
    fn a_stranger_makes_neither_a_second_line_nor_a_long_one() {
        let huge = "é\n\"".repeat(100_000);
        let line = Line {
            name: b"a\xff\n\"b\0",
            path: &huge,
            user_agent: huge.as_bytes(),
            reason: &huge,
            version: Some(&huge),
            ..Line::default()
        };
        let line = shown(&line);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.len() < 8192, "{}", line.len());
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["name"], "a\u{fffd}\n\"b\0");
        assert!(read["user_agent"].as_str().unwrap().len() <= USER_AGENT);
        let long = [b'n'; 1_000_000];
        let read: serde_json::Value =
            serde_json::from_str(&shown(&Line { name: &long, ..Line::default() })).unwrap();
        assert_eq!(read["name"].as_str().unwrap().len(), NAME);
    }
}
