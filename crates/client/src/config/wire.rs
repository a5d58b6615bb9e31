//! The bodies of the config server's wire API, read at the edge.
//!
//! What must hold: success or failure is told by the presence of `error`, never of `bytes`; fields that are not known
//! are skipped; an answer that is not what the API promises is malformed, and never an empty value.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use holdfast_core::{AnswerKind, Wall};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use zeroize::Zeroizing;

use super::value::{Secret, Value};

/// The longest text of an error that is kept, in bytes.
const MAX_MESSAGE: usize = 512;

/// The answer is not what the API promises. The reason never holds a part of the answer.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the answer is malformed: {0}")]
pub struct Malformed(pub &'static str);

/// What one name got.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Entry {
    /// Its value, not yet marked with the endpoint.
    Value(Box<Value>),
    /// Its error.
    Error {
        /// Of which name.
        name: Arc<str>,
        /// Why.
        refusal: Refusal,
    },
}

impl Entry {
    /// Of which name it is.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Self::Value(value) => &value.name,
            Self::Error { name, .. } => name,
        }
    }
}

/// Why a request, or a name of it, was refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// The kind, which is the contract.
    pub kind: AnswerKind,
    /// For people.
    pub message: String,
}

/// What one frame of a stream says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StreamEvent {
    /// `update` or `error`.
    Entry(Entry),
    /// Everything up to here was sent.
    Synced,
    /// The values that were sent last were confirmed at these times.
    Fresh(BTreeMap<String, Wall>),
    /// The replica wants this client to move within the time.
    GoAway(Duration),
    /// A type that this version does not know.
    Other,
}

#[derive(Deserialize)]
struct WireValue<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default)]
    bytes: Option<Base64>,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    sensitive: Option<bool>,
    #[serde(default)]
    not_after: Option<Date>,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    error: Option<WireError>,
    #[serde(default)]
    resolved_at: Option<Date>,
    #[serde(default)]
    stale: Option<bool>,
    #[serde(default)]
    order: Option<u64>,
    #[serde(default)]
    epoch: Option<String>,
}

#[derive(Deserialize)]
struct WireError {
    kind: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct WireEnvelope {
    error: WireError,
}

#[derive(Deserialize)]
struct WireBatch<'a> {
    #[serde(borrow, default)]
    values: Option<Vec<WireValue<'a>>>,
}

#[derive(Deserialize)]
struct WireFresh {
    #[serde(default)]
    names: BTreeMap<String, Date>,
}

#[derive(Deserialize)]
struct WireGoAway {
    #[serde(default)]
    within_ms: u64,
}

/// The body of a batch.
#[derive(Serialize)]
pub struct BatchRequest<'a> {
    /// The names.
    #[serde(serialize_with = "as_texts")]
    pub names: &'a [Arc<str>],
}

/// The body of a subscription.
#[derive(Serialize)]
pub struct WatchRequest<'a> {
    /// The names.
    #[serde(serialize_with = "as_texts")]
    pub names: &'a [Arc<str>],
    /// The last id that was seen, or nothing.
    pub last_event_id: &'a str,
    /// Whether moved dates come without bytes.
    pub fresh: bool,
    /// The longest data line that is taken, in bytes.
    pub max_frame: usize,
}

fn as_texts<S: Serializer>(names: &[Arc<str>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(|name| &**name))
}

impl From<WireError> for Refusal {
    fn from(wire: WireError) -> Self {
        let mut message = wire.message;
        let end = (0..=MAX_MESSAGE.min(message.len())).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or(0));
        // A terminal must not obey what a server says.
        if message.chars().any(char::is_control) {
            message = message.chars().filter(|c| !c.is_control()).collect();
        }
        Self { kind: AnswerKind::from_label(&wire.kind), message }
    }
}

impl From<WireValue<'_>> for Entry {
    fn from(wire: WireValue<'_>) -> Self {
        let name: Arc<str> = wire.name.into();
        if let Some(error) = wire.error {
            return Self::Error { name, refusal: error.into() };
        }
        Self::Value(Box::new(Value {
            name,
            bytes: wire.bytes.map(|bytes| bytes.0).unwrap_or_default(),
            version: wire.version.filter(|version| !version.is_empty()),
            sensitive: wire.sensitive.unwrap_or(false),
            not_after: wire.not_after.map(|date| date.0),
            metadata: wire.metadata.unwrap_or_default(),
            kind: wire.kind.filter(|kind| !kind.is_empty()).map(|kind| AnswerKind::from_label(&kind)),
            stale: wire.stale.unwrap_or(false),
            resolved_at: wire.resolved_at.map(|date| date.0),
            order: wire.order,
            epoch: wire.epoch.map(Into::into),
            endpoint: Arc::default(),
            behind: false,
        }))
    }
}

/// Reads a JSON object. The library would take an array of the fields for one as well.
fn object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Option<T> {
    let is_object = body.trim_ascii_start().starts_with(b"{");
    serde_json::from_slice(body).ok().filter(|_| is_object)
}

/// Reads a value object, or the entry of a name in error.
///
/// # Errors
/// When it is none.
pub fn entry(body: &[u8]) -> Result<Entry, Malformed> {
    let value: WireValue<'_> = object(body).ok_or(Malformed("no value object"))?;
    Ok(value.into())
}

/// Reads the answer to a batch.
///
/// # Errors
/// When it is none.
pub fn batch(body: &[u8]) -> Result<Vec<Entry>, Malformed> {
    let batch: WireBatch<'_> = object(body).ok_or(Malformed("no batch of values"))?;
    Ok(batch.values.unwrap_or_default().into_iter().map(Into::into).collect())
}

/// Reads the body of a refusal; none when it is not the API's envelope, such as the page of a proxy.
pub fn envelope(body: &[u8]) -> Option<Refusal> {
    let envelope: WireEnvelope = object(body)?;
    Some(envelope.error.into())
}

/// Reads a frame of a stream.
///
/// # Errors
/// When its data is not what its type promises.
pub fn event(event: &str, data: &[u8]) -> Result<StreamEvent, Malformed> {
    match event {
        "update" | "error" => entry(data).map(StreamEvent::Entry),
        "synced" => Ok(StreamEvent::Synced),
        "fresh" => {
            let fresh: WireFresh = object(data).ok_or(Malformed("no dates in a fresh event"))?;
            Ok(StreamEvent::Fresh(fresh.names.into_iter().map(|(name, date)| (name, date.0)).collect()))
        }
        "goaway" => {
            // Whatever the notice says, it is one.
            let away = object(data).unwrap_or(WireGoAway { within_ms: 0 });
            Ok(StreamEvent::GoAway(Duration::from_millis(away.within_ms)))
        }
        _ => Ok(StreamEvent::Other),
    }
}

/// Standard base64, decoded where it stands, so that no copy of the text is made.
struct Base64(Secret);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Base64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base64")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Base64, E> {
                let mut bytes = Zeroizing::new(Vec::new());
                // The cause would hold a byte of the value.
                STANDARD.decode_vec(text, &mut bytes).map_err(|_| E::custom("not base64"))?;
                Ok(Base64(Secret::new(std::mem::take(&mut *bytes))))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Base64, E> {
                self.visit_str(&Zeroizing::new(text))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// A date of RFC 3339 with up to nine digits of a second.
struct Date(Wall);

impl<'de> Deserialize<'de> for Date {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        date(&text).map(Date).ok_or_else(|| de::Error::custom("not a date of RFC 3339"))
    }
}

/// Reads a date of RFC 3339; what is below a microsecond is cut off.
pub fn date(text: &str) -> Option<Wall> {
    // The library reads more than the RFC allows, such as a date that names its zone.
    let shape = text.as_bytes();
    let apart = |at: usize, allowed: &[u8]| shape.get(at).is_some_and(|byte| allowed.contains(byte));
    if !(apart(4, b"-") && apart(7, b"-") && apart(10, b"Tt ") && apart(13, b":") && apart(16, b":"))
        || text.contains('[')
    {
        return None;
    }
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(Wall::from_micros(at.as_microsecond()))
}

#[cfg(test)]
mod tests;
