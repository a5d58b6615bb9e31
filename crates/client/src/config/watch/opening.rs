//! Subscribes at one endpoint: by `POST`, or by `GET` at a server that does not know that.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use holdfast_core::AnswerKind;
use http::header::CONTENT_TYPE;

use super::super::error::Error;
use super::super::read::segment;
use super::super::shared::Shared;
use super::super::sse::MAX_FRAME;
use super::super::transport::{Call, MAX_ERROR_BODY, Reply, collect};
use super::super::wire;

/// The longest address that every proxy takes, in bytes.
const MAX_TARGET: usize = 8000;
/// The longest data line that is asked for: with its field name it fits the decoder's cap.
const MAX_DATA: usize = MAX_FRAME - 64;

/// What became of an attempt to subscribe.
pub enum Opened {
    /// The stream stands; its body follows.
    Stream(Box<Reply>),
    /// No stream, and another endpoint may give one.
    Lost(Error),
    /// The replica refuses the caller, as every other one would.
    Refused(Error),
    /// This server takes the names in the address only, where they have no room.
    TooMany,
}

/// Subscribes within the deadline of an attempt.
pub fn open(
    shared: &Arc<Shared>,
    endpoint: usize,
    names: &Arc<[Arc<str>]>,
    last_id: Option<String>,
) -> BoxFuture<'static, Opened> {
    let (shared, names) = (Arc::clone(shared), Arc::clone(names));
    Box::pin(async move {
        let attempt = attempt(&shared, endpoint, &names, last_id);
        match tokio::time::timeout(shared.attempt_timeout, attempt).await {
            Ok(opened) => opened,
            Err(_) => Opened::Lost(shared.unreachable(endpoint, "the deadline of the attempt passed")),
        }
    })
}

async fn attempt(shared: &Shared, endpoint: usize, names: &[Arc<str>], last_id: Option<String>) -> Opened {
    if !shared.is_get_only(endpoint) {
        match by_post(shared, endpoint, names, last_id.as_deref()).await {
            Some(opened) => return opened,
            None => shared.set_get_only(endpoint, true),
        }
    }
    let opened = by_get(shared, endpoint, names, last_id).await;
    if matches!(opened, Opened::Lost(_)) {
        // Whatever comes back may be of another version.
        shared.set_get_only(endpoint, false);
    }
    opened
}

/// None when the server does not know this way.
async fn by_post(
    shared: &Shared,
    endpoint: usize,
    names: &[Arc<str>],
    last_id: Option<&str>,
) -> Option<Opened> {
    let request = wire::WatchRequest {
        names,
        last_event_id: last_id.unwrap_or_default(),
        fresh: true,
        max_frame: MAX_DATA,
    };
    let Ok(body) = serde_json::to_vec(&request) else {
        return Some(Opened::Lost(shared.unreachable(endpoint, "the names cannot be sent")));
    };
    let mut call = Call::post("/v1/watch", body);
    call.last_event_id = last_id.map(str::to_owned);
    let reply = match send(shared, endpoint, call).await {
        Ok(reply) => reply,
        Err(error) => return Some(Opened::Lost(error)),
    };
    if !matches!(reply.status, 404 | 405) {
        return Some(judge(shared, endpoint, reply).await);
    }
    // Only the plain text of a router says that there is no such route.
    let envelope = collect(reply, MAX_ERROR_BODY).await.ok().and_then(|body| wire::envelope(&body));
    envelope
        .map(|refusal| Opened::Lost(shared.unreachable(endpoint, &format!("no stream: {}", refusal.kind))))
}

async fn by_get(shared: &Shared, endpoint: usize, names: &[Arc<str>], last_id: Option<String>) -> Opened {
    let mut target = "/v1/watch?fresh=1".to_owned();
    for name in names {
        target.push_str("&name=");
        target.push_str(&segment(name));
    }
    if target.len() > MAX_TARGET && names.len() > 1 {
        return Opened::TooMany;
    }
    let mut call = Call::get(target);
    call.last_event_id = last_id;
    match send(shared, endpoint, call).await {
        Ok(reply) => judge(shared, endpoint, reply).await,
        Err(error) => Opened::Lost(error),
    }
}

/// The names in parts of which each has room in an address.
pub fn parts(names: &[Arc<str>]) -> Vec<Vec<Arc<str>>> {
    let mut parts: Vec<Vec<Arc<str>>> = Vec::new();
    let mut room = 0;
    for name in names {
        let length = segment(name).len() + "&name=".len();
        match parts.last_mut() {
            Some(part) if length <= room => part.push(Arc::clone(name)),
            _ => {
                room = MAX_TARGET - "/v1/watch?fresh=1".len();
                parts.push(vec![Arc::clone(name)]);
            }
        }
        room = room.saturating_sub(length);
    }
    parts
}

async fn send(shared: &Shared, endpoint: usize, call: Call) -> Result<Reply, Error> {
    let Some(link) = shared.links.get(endpoint) else {
        return Err(shared.unreachable(endpoint, "there is no such endpoint"));
    };
    link.send(call).await.map_err(|broken| shared.unreachable(endpoint, &broken.to_string()))
}

async fn judge(shared: &Shared, endpoint: usize, reply: Reply) -> Opened {
    shared.heard(endpoint, &reply.headers);
    let status = reply.status;
    if status == 200 {
        let kind = reply.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream") {
            return Opened::Stream(Box::new(reply));
        }
        return Opened::Lost(shared.unreachable(endpoint, "the answer is no event stream"));
    }
    let error = shared.refusal(endpoint, reply).await;
    match &error {
        Error::Refused { kind, .. } if kind.is_authoritative() && *kind != AnswerKind::NotFound => {
            Opened::Refused(error)
        }
        _ => Opened::Lost(error),
    }
}
