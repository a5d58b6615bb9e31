//! An operator's view of one replica: the only answer that names its node. And the meters.

use std::sync::Arc;

use aws_lc_rs::hmac;
use bytes::Bytes;
use holdfast_core::freshness::Served;
use holdfast_core::readiness::Answer;
use holdfast_core::{AnswerKind, Wall};
use holdfast_net::serve::Body;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use super::answer;
use super::exchange::Exchange;
use crate::fanout::board::{Entry, Record};
use crate::metrics::Standing;
use crate::wire::date;

/// What the view takes from the rest of the replica.
pub trait StatusSource: Send + Sync + 'static {
    /// Its name in its own records.
    fn node(&self) -> String;
    /// When the process started.
    fn started_at(&self) -> Wall;
    /// When the configuration in use was loaded.
    fn loaded_at(&self) -> Wall;
    /// Keys that were changed and count only after a restart.
    fn restart_required(&self) -> Vec<String>;
    /// Why the last reload was rejected; none after one that was applied.
    fn last_reload_error(&self) -> Option<String>;
    /// The addresses that were bound.
    fn listening(&self) -> Vec<String>;
    /// All upstreams.
    fn upstreams(&self) -> Vec<UpstreamView>;
    /// The key of value digests.
    fn fleet_key(&self) -> Option<Arc<hmac::Key>>;
    /// All meters as text.
    fn metrics(&self) -> String;
}

/// One upstream, as an operator sees it.
#[derive(Clone, Debug, Serialize)]
pub struct UpstreamView {
    /// Its name.
    pub name: String,
    /// Its type.
    pub scheme: String,
    /// `up` or `down`.
    pub state: &'static str,
    /// Since when.
    pub since: String,
    /// The kind of its last failure.
    pub last_error_kind: Option<&'static str>,
    /// Bindings that come from it.
    pub bindings: usize,
    /// Calls in the last minute.
    pub calls_per_minute: u32,
}

#[derive(Serialize)]
struct Status {
    node: String,
    version: &'static str,
    state: &'static str,
    boot: String,
    started_at: String,
    restart_required: Vec<String>,
    last_reload_error: Option<String>,
    listeners: Vec<String>,
    config: Config,
    streams: Streams,
    upstreams: Vec<UpstreamView>,
    bindings: Vec<Binding>,
}

#[derive(Serialize)]
struct Config {
    generation: u64,
    digest: String,
    bindings_digest: String,
    policy_digest: String,
    loaded_at: String,
}

#[derive(Serialize)]
struct Streams {
    open: usize,
}

#[derive(Serialize)]
struct Binding {
    name: String,
    ref_digest: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checked_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stale_since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ms: Option<u64>,
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_digest: Option<String>,
}

/// `GET /v1/status`
pub(super) fn answer(exchange: &Exchange) -> Response<Body> {
    let (parts, world) = (&exchange.api.parts, &exchange.world);
    let (source, digest) = (&parts.status, &world.configuration.digest);
    let (now, key) = (parts.clock.now().wall, source.fleet_key());
    let ready: Answer = *parts.ready.borrow();
    let bound = world.configuration.bindings.iter();
    let bindings = bound.filter_map(|(name, binding)| {
        let entry = parts.board.get(name)?;
        Some(Binding::of(&entry, binding.ref_digest.to_string(), now, key.as_deref()))
    });
    let status = Status {
        node: source.node(),
        version: env!("CARGO_PKG_VERSION"),
        state: ready.label(),
        boot: parts.boot.as_str().to_owned(),
        started_at: date(source.started_at()),
        restart_required: source.restart_required(),
        last_reload_error: source.last_reload_error(),
        listeners: source.listening(),
        config: Config {
            generation: world.generation,
            digest: digest.whole.to_string(),
            bindings_digest: digest.bindings.to_string(),
            policy_digest: digest.policy.to_string(),
            loaded_at: date(source.loaded_at()),
        },
        streams: Streams { open: parts.hub.open() },
        upstreams: source.upstreams(),
        bindings: bindings.collect(),
    };
    // Texts, numbers and lists of them: there is nothing that could fail.
    answer::json(StatusCode::OK, Bytes::from(serde_json::to_vec(&status).unwrap_or_default()))
}

impl Binding {
    fn of(entry: &Entry, ref_digest: String, now: Wall, key: Option<&hmac::Key>) -> Self {
        let record = entry.load();
        let (state, value) = (&record.state, record.state.value.as_ref());
        let refused = match state.served {
            Served::Refused(kind, _) => Some(kind),
            Served::Value { stale } => stale,
        };
        Self {
            name: entry.name().to_string(),
            ref_digest,
            state: standing(&record).label(),
            kind: state.trouble.map(|trouble| trouble.kind).or(refused).map(AnswerKind::label),
            version: value.and_then(|value| value.version.clone()),
            resolved_at: state.resolved_at.map(date),
            checked_at: state.checked_at.map(date),
            stale_since: state.trouble.filter(|_| value.is_some()).map(|trouble| date(trouble.since)),
            age_ms: state.resolved_at.map(|at| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX)),
            seq: record.seq.get(),
            value_digest: key.zip(value).map(|(key, value)| value_digest(key, value.bytes.expose())),
        }
    }
}

/// How a binding stands.
pub(crate) fn standing(record: &Record) -> Standing {
    match record.state.served {
        _ if !record.state.settled => Standing::Pending,
        Served::Value { stale: None } => Standing::Fresh,
        Served::Value { stale: Some(_) } => Standing::Stale,
        Served::Refused(..) => Standing::Failed,
    }
}

/// The first 16 hexadecimal digits of an HMAC: equal values show as equal to who has no key, and nothing else of them.
fn value_digest(key: &hmac::Key, value: &[u8]) -> String {
    let tag = hmac::sign(key, value);
    hex::encode(tag.as_ref().get(..8).unwrap_or_default())
}

/// `GET /metrics`
pub(super) fn metrics(text: String) -> Response<Body> {
    let mut response = answer::text(StatusCode::OK, "");
    let kind = HeaderValue::from_static(holdfast_ops::metrics::CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    *response.body_mut() = answer::full(Bytes::from(text));
    response
}
