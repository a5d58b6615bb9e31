//! Opening a stream, and what the hub asks of its caller while it is open.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{AnswerKind, Wall};
use holdfast_net::serve::{Body, stream_cut};
use http::{HeaderValue, Method, Response, Version, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;

use super::exchange::{Exchange, Note, remote, user_agent};
use super::request::Watch;
use super::{Api, answer, body};
use crate::audit::{Line, Message};
use crate::auth::Identity;
use crate::config::Verb;
use crate::fanout::board::Record;
use crate::fanout::hub::{Holder, Rights, Subscription};
use crate::metrics::StreamEnd;
use crate::ratelimit::StreamPermit;
use crate::wire::Fault;

/// `GET` and `POST /v1/watch`
pub(super) async fn open(exchange: Exchange, body: Incoming) -> (Response<Body>, Option<AnswerKind>) {
    // The headers alone open no stream.
    let head = exchange.parts.method == Method::HEAD;
    let permit = match exchange.identity.as_ref().filter(|_| !head) {
        None => None,
        Some(identity) => match exchange.api.parts.limits.stream(&identity.subject) {
            Ok(permit) => Some(permit),
            Err(limited) => return exchange.refuse(&exchange.limited(limited)),
        },
    };
    let asked = match asked(&exchange, body).await {
        Ok(asked) => asked,
        Err(fault) => return exchange.refuse(&fault.into()),
    };
    if let Err(refused) = exchange.audit_ready() {
        return exchange.refuse(&refused);
    }
    let allowed = judge(&exchange, &asked.names);
    let body = match head {
        true => answer::full(bytes::Bytes::new()),
        false => subscribe(&exchange, asked, allowed, permit),
    };
    let mut response = answer::events(body);
    if exchange.parts.version == Version::HTTP_11 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("keep-alive"));
    }
    if head {
        // A stream has no length.
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    (response, None)
}

async fn asked(exchange: &Exchange, body: Incoming) -> Result<Watch, Fault> {
    let most = exchange.world.configuration.settings.limits.names_per_stream as usize;
    let headers = &exchange.parts.headers;
    if exchange.parts.method == Method::POST {
        return Watch::of_body(body::read(body).await?, headers, most);
    }
    Watch::of_query(exchange.parts.uri.query().unwrap_or_default(), headers, most)
}

/// Judges and records each name.
fn judge(exchange: &Exchange, names: &[Box<[u8]>]) -> Vec<bool> {
    let judge = |name: &[u8]| {
        let allow = exchange.allows(Verb::Watch, name);
        let kind = (!allow).then_some(AnswerKind::PermissionDenied);
        let recorded = exchange.record(Note { name, allow, kind, status: 200, ..Note::default() });
        allow && recorded
    };
    names.iter().map(|name| judge(name)).collect()
}

fn subscribe(exchange: &Exchange, asked: Watch, allowed: Vec<bool>, permit: Option<StreamPermit>) -> Body {
    let identity = exchange.identity.clone().unwrap_or_else(Identity::nobody);
    let expires = identity.expires;
    let watcher = Watcher {
        api: Arc::clone(&exchange.api),
        identity: Mutex::new(identity),
        permit: Mutex::new(permit),
        request_id: exchange.id.clone(),
        method: if exchange.parts.method == Method::POST { "POST" } else { "GET" },
        path: exchange.parts.uri.path().to_owned(),
        remote: remote(&exchange.peer),
        user_agent: user_agent(&exchange.parts.headers).into(),
    };
    let body = exchange.api.parts.hub.subscribe(Subscription {
        names: asked.names,
        rights: Rights { allowed, expires },
        judged: exchange.world.generation,
        holder: Arc::new(watcher),
        last_event_id: asked.last_event_id,
        fresh: asked.fresh,
        max_frame: asked.max_frame,
        cut: stream_cut(),
        connection: Some(Arc::clone(&exchange.peer.connection)),
    });
    body.boxed_unsync()
}

/// The caller of a stream.
struct Watcher {
    api: Arc<Api>,
    identity: Mutex<Identity>,
    permit: Mutex<Option<StreamPermit>>,
    request_id: String,
    method: &'static str,
    path: String,
    remote: String,
    user_agent: Box<[u8]>,
}

impl Watcher {
    fn record(&self, message: Message, reason: &str, name: &[u8], record: Option<&Record>) {
        let identity = self.identity.lock().clone();
        let state = record.map(|record| &record.state);
        let line = Line {
            time: self.api.parts.clock.now().wall,
            message,
            request_id: &self.request_id,
            identity: Some(&identity),
            name,
            allow: true,
            status: 200,
            method: self.method,
            path: &self.path,
            remote: &self.remote,
            reason,
            user_agent: &self.user_agent,
            version: state.and_then(|state| state.value.as_ref()).and_then(|value| value.version.as_deref()),
            resolved_at: state.and_then(|state| state.resolved_at),
            stale: state.is_some_and(|state| state.trouble.is_some()),
            ..Line::default()
        };
        // A line that is lost is counted; what was sent cannot be taken back.
        let _ = self.api.parts.audit.record(&line);
    }
}

impl Holder for Watcher {
    fn judge(&self, names: &[Box<[u8]>], now: Wall) -> Option<Rights> {
        let world = self.api.world();
        let known = self.identity.lock().clone();
        let identity = world.configuration.authenticator.again(&known, now).ok()?;
        let allow = |name: &[u8]| world.configuration.policy.decide(&identity, Verb::Watch, name, now).allow;
        let rights =
            Rights { allowed: names.iter().map(|name| allow(name)).collect(), expires: identity.expires };
        *self.identity.lock() = identity;
        Some(rights)
    }

    fn delivered(&self, name: &[u8], record: Option<&Record>) {
        if self.api.parts.audit.deliveries() {
            self.record(Message::Deliver, "", name, record);
        }
    }

    fn ended(&self, why: StreamEnd, frames: u64, lasted: Duration) {
        drop(self.permit.lock().take());
        self.record(Message::StreamEnd { frames, lived: lasted }, why.label(), b"", None);
    }
}
