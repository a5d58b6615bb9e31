//! The bytes of the wire API: value objects, error envelopes, event frames, plain texts.
//!
//! The shapes of the first version are frozen: fields, their order, what is left out and when, and the fixed messages. No text
//! of an upstream or of the policy is ever among them.

use std::collections::BTreeMap;
use std::fmt;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut as _, Bytes, BytesMut};
use holdfast_core::freshness::{Refusal, Served, State};
use holdfast_core::{AnswerKind, Wall};
use serde::{Serialize, Serializer};
use zeroize::Zeroizing;

use crate::value::Value;

/// The fixed messages.
pub mod message {
    /// There is no such binding.
    pub const NOT_BOUND: &str = "binding not found";
    /// No value could be resolved.
    pub const RESOLVE_FAILED: &str = "binding resolve failed";
    /// The body of a batch or a watch cannot be read.
    pub const MALFORMED: &str = "malformed request body";
    /// A watch without a name.
    pub const NAME_REQUIRED: &str = "at least one name query parameter is required";
    /// More names than the limit.
    pub const TOO_MANY_NAMES: &str = "too many names";
    /// The request came back to where it was.
    pub const CHAINING_LOOP: &str = "chaining loop";
    /// A frame would be larger than the stream's cap.
    pub const TOO_LARGE: &str = "value too large for this stream";
    /// No valid credential.
    pub const UNAUTHENTICATED: &str = "unauthenticated";
    /// The policy says no.
    pub const DENIED: &str = "permission denied";
    /// A limit was reached.
    pub const RATE_LIMITED: &str = "rate limited";
    /// Older than it may be while the upstream fails.
    pub const TOO_OLD: &str = "value too old";
    /// The value's own life is over.
    pub const EXPIRED: &str = "value expired";
    /// The audit line could not be written and must be.
    pub const AUDIT: &str = "audit unavailable";
    /// Body of a path that is no route.
    pub const NO_ROUTE: &str = "404 page not found";
    /// Body of a route asked with a method it has not.
    pub const BAD_METHOD: &str = "Method Not Allowed";
}

/// A refusal: a kind and one of the fixed messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fault {
    /// What clients decide by.
    pub kind: AnswerKind,
    /// For people.
    pub message: &'static str,
}

impl Fault {
    /// A refusal.
    pub const fn new(kind: AnswerKind, message: &'static str) -> Self {
        Self { kind, message }
    }

    /// There is no such binding.
    pub const NOT_BOUND: Self = Self::new(AnswerKind::NotFound, message::NOT_BOUND);
    /// The policy says no.
    pub const DENIED: Self = Self::new(AnswerKind::PermissionDenied, message::DENIED);
    /// The caller is not known, or no longer.
    pub const UNAUTHENTICATED: Self = Self::new(AnswerKind::Unauthenticated, message::UNAUTHENTICATED);
    /// A body that cannot be read.
    pub const MALFORMED: Self = Self::new(AnswerKind::Invalid, message::MALFORMED);
    /// A frame over the cap.
    pub const TOO_LARGE: Self = Self::new(AnswerKind::Invalid, message::TOO_LARGE);
    /// A limit was reached.
    pub const RATE_LIMITED: Self = Self::new(AnswerKind::RateLimited, message::RATE_LIMITED);
}

/// A record as readers get it.
#[derive(Clone)]
pub struct Encoded {
    /// None when a value is served, else what is answered instead.
    pub fault: Option<Fault>,
    /// The value object, or the error entry of a batch or a stream.
    pub entry: Bytes,
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded").field("fault", &self.fault).field("bytes", &self.entry.len()).finish()
    }
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Base64<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
    #[serde(skip_serializing_if = "is_false")]
    sensitive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<String>,
    metadata: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved_at: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    stale: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<&'a str>,
}

#[derive(Serialize)]
struct ErrorBody {
    kind: &'static str,
    message: &'static str,
}

impl From<Fault> for ErrorBody {
    fn from(fault: Fault) -> Self {
        Self { kind: fault.kind.label(), message: fault.message }
    }
}

#[derive(Serialize)]
struct Envelope {
    error: ErrorBody,
}

struct Base64<'a>(&'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

static NOTHING: BTreeMap<String, String> = BTreeMap::new();

/// What a state is on the wire.
pub fn encode(name: &str, state: &State<Value>) -> Encoded {
    match (&state.value, state.served) {
        (Some(value), Served::Value { stale }) => {
            Encoded { fault: None, entry: value_object(name, value, state.resolved_at, stale) }
        }
        (_, Served::Refused(kind, refusal)) => refused(name, kind, refusal),
        // A value is served only where there is one.
        (None, Served::Value { .. }) => refused(name, AnswerKind::Unknown, Refusal::ResolveFailed),
    }
}

fn refused(name: &str, kind: AnswerKind, refusal: Refusal) -> Encoded {
    let message = match refusal {
        Refusal::ResolveFailed => message::RESOLVE_FAILED,
        Refusal::TooOld => message::TOO_OLD,
        Refusal::Expired => message::EXPIRED,
    };
    let fault = Fault::new(kind, message);
    Encoded { fault: Some(fault), entry: error_entry(name.as_bytes(), fault) }
}

fn value_object(name: &str, value: &Value, resolved_at: Option<Wall>, stale: Option<AnswerKind>) -> Bytes {
    let entry = Entry {
        name,
        bytes: (!value.bytes.is_empty()).then(|| Base64(value.bytes.expose())),
        version: value.version.as_deref().filter(|version| !version.is_empty()),
        sensitive: value.sensitive,
        not_after: value.not_after.map(date),
        metadata: &value.metadata,
        kind: stale.map(AnswerKind::label),
        error: None,
        resolved_at: resolved_at.map(date),
        stale: stale.is_some(),
        order: value.order,
        epoch: value.epoch.as_deref().filter(|_| value.order.is_some()),
    };
    // Reserved at once: a buffer that grows would leave copies of a secret behind.
    json(&entry, value.bytes.len() / 3 * 4 + 512)
}

/// The entry of a name in a batch or a stream that has no value to show; a name that is not UTF-8 is shown as near to it
/// as can be.
pub fn error_entry(name: &[u8], fault: Fault) -> Bytes {
    let entry = Entry {
        name: &String::from_utf8_lossy(name),
        bytes: None,
        version: None,
        sensitive: false,
        not_after: None,
        metadata: &NOTHING,
        kind: None,
        error: Some(fault.into()),
        resolved_at: None,
        stale: false,
        order: None,
        epoch: None,
    };
    json(&entry, 128)
}

/// The body of a refusal of a whole request.
pub fn envelope(fault: Fault) -> Bytes {
    json(&Envelope { error: fault.into() }, 96)
}

/// `{"status":"..."}`
pub fn status(text: &str) -> Bytes {
    Bytes::from(format!("{{\"status\":\"{text}\"}}"))
}

/// RFC 3339 in UTC with `Z`, up to 6 digits of fraction, none when it is zero.
pub fn date(at: Wall) -> String {
    jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or_default().to_string()
}

/// Wiped when the last holder drops it, as the values in it are.
fn json(value: &impl Serialize, room: usize) -> Bytes {
    let mut text = Zeroizing::new(Vec::with_capacity(room));
    if serde_json::to_writer(&mut *text, value).is_err() {
        // Maps with text as keys, and a writer that takes everything: there is nothing that could fail.
        text.clear();
    }
    Bytes::from_owner(text)
}

/// The types of event frames.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Event {
    /// A value object.
    Update,
    /// An error entry.
    Error,
    /// The baseline or a resume is complete.
    Synced,
    /// The client should move.
    Goaway,
    /// New dates of unchanged values.
    Fresh,
}

impl Event {
    /// Its name on the wire.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Error => "error",
            Self::Synced => "synced",
            Self::Goaway => "goaway",
            Self::Fresh => "fresh",
        }
    }
}

/// What a stream begins with: how long a client waits before it comes again.
pub const PREAMBLE: &[u8] = b"retry: 1000\n\n";
/// A heartbeat.
pub const HEARTBEAT: &[u8] = b": heartbeat\n\n";
/// What stands before the data of a frame.
const DATA: &[u8] = b"data: ";
/// What stands after it.
pub const END: &[u8] = b"\n\n";

/// The length of a frame's `data:` line, without its end.
pub const fn data_line(data: usize) -> usize {
    DATA.len() + data
}

/// The part of a frame before its data; `id` is a resume id, where one may stand.
pub fn frame_head(out: &mut BytesMut, event: Event, id: Option<&str>) {
    for part in ["event: ", event.label(), "\n"] {
        out.put_slice(part.as_bytes());
    }
    if let Some(id) = id {
        for part in ["id: ", id, "\n"] {
            out.put_slice(part.as_bytes());
        }
    }
    out.put_slice(DATA);
}

/// The end of a frame.
pub fn frame_end(out: &mut BytesMut) {
    out.put_slice(END);
}

/// A whole frame.
pub fn frame(out: &mut BytesMut, event: Event, id: Option<&str>, data: &[u8]) {
    frame_head(out, event, id);
    out.put_slice(data);
    frame_end(out);
}

#[derive(Serialize)]
struct FreshBody<'a> {
    names: BTreeMap<&'a str, String>,
}

/// The data of a `fresh` frame.
pub fn fresh<'a>(dates: impl IntoIterator<Item = (&'a str, Wall)>) -> Bytes {
    let names = dates.into_iter().map(|(name, at)| (name, date(at))).collect();
    json(&FreshBody { names }, 256)
}

/// The data of a `goaway` frame.
pub fn goaway(reason: holdfast_core::stream::Reason, within: std::time::Duration) -> Bytes {
    let reason = match reason {
        holdfast_core::stream::Reason::Draining => "draining",
        holdfast_core::stream::Reason::MaxAge => "max_age",
    };
    Bytes::from(format!("{{\"reason\":\"{reason}\",\"within_ms\":{}}}", within.as_millis()))
}

#[cfg(test)]
mod tests;
