//! The watch of one object: a list that gives the place to begin, then the stream of what happens behind it.

use std::time::Duration;

use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome};
use http::StatusCode;
use reqwest::Response;
use serde::Deserialize;
use tokio::time::Instant;

use super::{Api, Place, meaning};
use crate::provider::Sink;

/// Only what stands around an object, not what is in it.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// How long the server keeps a watch before it ends it in an orderly way, in seconds.
const KEPT: u32 = 600;
/// A watch that ended sooner was not ended in an orderly way.
const BRIEF: Duration = Duration::from_secs(1);
/// The longest line of a stream: a server that does not know how to leave the content out sends all of it.
const LINE: usize = 8 << 20;

/// Watches until something breaks; returns how. A cursor that the server does not know any more is replaced.
pub(super) async fn session(api: &Api, place: &Place, sink: &dyn Sink) -> Failure {
    loop {
        let mut cursor = match list(api, place).await {
            Ok(cursor) => cursor,
            Err(failure) => return failure,
        };
        sink.subscribed();
        loop {
            match follow(api, place, &mut cursor, sink).await {
                // The server ended the watch in its own time; nothing was missed behind the cursor.
                Ok(End::Orderly) => {}
                Ok(End::Gone) => break,
                Err(failure) => return failure,
            }
        }
    }
}

enum End {
    Orderly,
    Gone,
}

async fn list(api: &Api, place: &Place) -> Result<String, Failure> {
    let response = api.get(&path(place), &selector(place), METADATA_LIST).await?;
    refused(&response)?;
    let body = super::http_answer::body(response).await.map_err(Failure::of)?;
    let list: Listed = serde_json::from_slice(&body).map_err(|_| Failure::of(AnswerKind::Unknown))?;
    Ok(list.metadata.resource_version)
}

async fn follow(api: &Api, place: &Place, cursor: &mut String, sink: &dyn Sink) -> Result<End, Failure> {
    let query = format!(
        "watch=true&allowWatchBookmarks=true&timeoutSeconds={KEPT}&resourceVersion={cursor}&{}",
        selector(place)
    );
    let response = api.get(&path(place), &query, METADATA).await?;
    if response.status() == StatusCode::GONE {
        return Ok(End::Gone);
    }
    refused(&response)?;
    let mut lines = Lines { response, buffer: zeroize::Zeroizing::default() };
    let began = Instant::now();
    while let Some(line) = lines.next().await? {
        let event: Event = serde_json::from_slice(&line).map_err(|_| Failure::of(AnswerKind::Unknown))?;
        match event.kind.as_str() {
            "ERROR" if event.object.code == Some(410) => return Ok(End::Gone),
            "ERROR" => return Err(of_code(event.object.code)),
            "BOOKMARK" => sink.confirmed(),
            _ => sink.changed(),
        }
        if let Some(version) = event.object.metadata.and_then(|metadata| metadata.resource_version) {
            *cursor = version;
        }
    }
    // A server that ends each watch at once would be asked in a hot loop.
    if began.elapsed() >= BRIEF { Ok(End::Orderly) } else { Err(Failure::of(AnswerKind::Unavailable)) }
}

fn path(place: &Place) -> String {
    format!("api/v1/namespaces/{}/{}", place.namespace, place.collection())
}

fn selector(place: &Place) -> String {
    format!("fieldSelector=metadata.name%3D{}", place.name)
}

fn refused(response: &Response) -> Result<(), Failure> {
    match meaning(response) {
        None => Ok(()),
        Some(Outcome::Error(failure)) => Err(failure),
        // A collection is not absent: this is not the API that we take it for.
        Some(_) => Err(Failure::of(AnswerKind::Unknown)),
    }
}

fn of_code(code: Option<u16>) -> Failure {
    match code {
        Some(401) => Failure::own_login(),
        Some(403) => Failure::of(AnswerKind::PermissionDenied),
        Some(429) => Failure::of(AnswerKind::RateLimited),
        _ => Failure::of(AnswerKind::Unavailable),
    }
}

/// The lines of an answer as they come.
struct Lines {
    response: Response,
    buffer: zeroize::Zeroizing<Vec<u8>>,
}

impl Lines {
    /// The next line; none at an orderly end.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                let mut line = std::mem::replace(&mut *self.buffer, rest);
                line.truncate(end);
                return Ok(Some(line));
            }
            if self.buffer.len() > LINE {
                return Err(Failure::of(AnswerKind::Invalid));
            }
            match self.response.chunk().await.map_err(|_| Failure::of(AnswerKind::Unavailable))? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }
}

#[derive(Deserialize)]
struct Listed {
    metadata: ListMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: EventObject,
}

#[derive(Deserialize)]
struct EventObject {
    metadata: Option<EventMetadata>,
    code: Option<u16>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventMetadata {
    resource_version: Option<String>,
}
