//! What the bodies of answers say.
//!
//! What must hold: secrets are cut out of a body without being copied on the way; a body that is not what it should be is
//! `unknown`, never half a value.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::AnswerKind;
use holdfast_core::freshness::Outcome;
use serde::Deserialize;
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use crate::provider::{Fetched, Lease};
use crate::upstream::content;
use crate::value::{Secret, Value};

/// How a mount keeps what is read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Store {
    /// Version 2 of the key-value store: read below `data/`.
    Versioned,
    /// Anything else: read as it is.
    Plain,
    /// Nobody said so.
    Unknown,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    lease_id: Option<String>,
    lease_duration: Option<u64>,
    renewable: Option<bool>,
}

#[derive(Deserialize)]
struct Versioned<'a> {
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    version: u64,
}

/// A secret of version 2 of the key-value store.
pub(super) fn versioned(body: &[u8]) -> Result<Fetched, AnswerKind> {
    let envelope: Envelope<'_> = parse(body)?;
    let data = envelope.data.ok_or(AnswerKind::Unknown)?;
    let inner: Versioned<'_> = parse(data.get().as_bytes())?;
    let Some(map) = inner.data else { return Ok(Outcome::Absent.into()) };
    let version = inner.metadata.version;
    let value = Value {
        bytes: sorted(map)?,
        version: Some(version.to_string()),
        order: Some(version),
        sensitive: true,
        ..Value::default()
    };
    Ok(Outcome::Value { value, passed: None }.into())
}

/// A secret of anything else, with its lease if it has one.
pub(super) fn plain(body: &[u8], renew: bool) -> Result<Fetched, AnswerKind> {
    let envelope: Envelope<'_> = parse(body)?;
    let Some(map) = envelope.data else { return Ok(Outcome::Absent.into()) };
    let bytes = sorted(map)?;
    let version = Some(content::version(bytes.expose()));
    let value = Value { bytes, version, sensitive: true, ..Value::default() };
    let lease = envelope.lease().map(|lease| Lease { renewable: lease.renewable && renew, ..lease });
    Ok(Fetched { outcome: Outcome::Value { value, passed: None }, lease })
}

/// A lease that was renewed.
pub(super) fn lease(body: &[u8]) -> Result<Lease, AnswerKind> {
    let envelope: Envelope<'_> = parse(body)?;
    envelope.lease().ok_or(AnswerKind::Unknown)
}

/// The mount that `sys/internal/ui/mounts/PATH` tells of, without its last `/`.
pub(super) fn mount(body: &[u8]) -> Option<(String, Store)> {
    #[derive(Deserialize)]
    struct Answer {
        data: Data,
    }
    #[derive(Deserialize)]
    struct Data {
        path: String,
        options: Option<BTreeMap<String, String>>,
    }
    let Data { path, options } = serde_json::from_slice::<Answer>(body).ok()?.data;
    let versioned = options.is_some_and(|options| options.get("version").is_some_and(|text| text == "2"));
    let store = if versioned { Store::Versioned } else { Store::Plain };
    Some((path.trim_matches('/').to_owned(), store)).filter(|(path, _)| !path.is_empty())
}

/// The token of a login and how long it lives; zero for one that does not end.
pub(super) fn auth(body: &[u8]) -> Option<(Zeroizing<String>, Duration)> {
    #[derive(Deserialize)]
    struct Answer {
        auth: Auth,
    }
    #[derive(Deserialize)]
    struct Auth {
        client_token: String,
        #[serde(default)]
        lease_duration: u64,
    }
    let Auth { client_token, lease_duration } = serde_json::from_slice::<Answer>(body).ok()?.auth;
    let token = Zeroizing::new(client_token);
    (!token.is_empty()).then_some((token, Duration::from_secs(lease_duration)))
}

impl Envelope<'_> {
    fn lease(&self) -> Option<Lease> {
        let id = self.lease_id.as_deref().filter(|id| !id.is_empty())?.to_owned();
        let ttl = Duration::from_secs(self.lease_duration.unwrap_or_default());
        Some(Lease { id, ttl, renewable: self.renewable.unwrap_or_default() })
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, AnswerKind> {
    serde_json::from_slice(body).map_err(|_| AnswerKind::Unknown)
}

/// The map with its keys in order; the values keep their bytes.
fn sorted(map: &RawValue) -> Result<Secret, AnswerKind> {
    let sorted: BTreeMap<Cow<'_, str>, &RawValue> = parse(map.get().as_bytes())?;
    // Room for all of it at once leaves no copies behind as it grows.
    let mut bytes = Vec::with_capacity(map.get().len().saturating_mul(2));
    serde_json::to_writer(&mut bytes, &sorted).map_err(|_| AnswerKind::Unknown)?;
    match bytes.len() > content::MAX_OBJECT {
        true => Err(AnswerKind::Invalid),
        false => Ok(Secret::new(bytes)),
    }
}
