//! Consul's key-value store: reads, and a blocking query for each watch.
//!
//! What must hold: an index that goes back, or is none, is forgotten; a watch returns at most ten times a second; more
//! watches than an agent lets one client have are refused, and their keys read by poll.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome};
use holdfast_ops::Tasks;
use http::StatusCode;
use reqwest::Url;
use serde::Deserialize;
use tokio::time::{Instant, sleep_until, timeout};
use zeroize::Zeroizing;

use super::address::{Address, HTTP, client_tls, http_client};
use super::subscriptions::keep_alone;
use super::wiped::Wiped;
use super::{BuildError, content, credential, http_answer};
use crate::config::UpstreamSettings;
use crate::provider::{Fetched, Provider, Sink, WatchGuard};
use crate::reference::ObjectKey;
use crate::value::{Secret, Value};

const PORT: u16 = 8500;
/// How long the agent may hold a query.
const WAIT: Duration = Duration::from_secs(55);
/// What it may add, a sixteenth, and time for the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(65);
/// How long an agent may take for a read while there are others.
const PATIENCE: Duration = Duration::from_secs(3);
/// The shortest time between two returns of a watch.
const APART: Duration = Duration::from_millis(100);
/// Watches at once. An agent lets one address have 200 connections.
const MOST: usize = 128;

/// `type = "consul"`
pub struct Consul {
    agents: Arc<Agents>,
    watches: Arc<AtomicUsize>,
    tasks: Tasks,
}

impl Consul {
    /// Reads the settings; nothing is dialled before something is asked.
    ///
    /// # Errors
    /// When a setting cannot be used.
    pub fn build(name: &str, settings: &UpstreamSettings, tasks: &Tasks) -> Result<Self, BuildError> {
        let wrong = |key, problem: String| BuildError::setting(name, key, problem);
        let url = |text: &String| {
            let address = Address::parse(text, ("http", "https"), PORT, settings.tls.is_some())?;
            let scheme = if address.tls { "https" } else { "http" };
            let url = Url::parse(&format!("{scheme}://{}/v1/kv", address.authority()));
            url.map_err(|e| format!("\"{text}\": {e}"))
        };
        let bases: Result<Vec<Url>, String> = settings.addrs.iter().map(url).collect();
        let bases = bases.map_err(|e| wrong("addrs", e))?;
        if bases.is_empty() {
            return Err(wrong("addrs", "at least one address is needed".to_owned()));
        }
        let tls = client_tls(settings.tls.as_ref(), &HTTP).map_err(|e| wrong("tls", e.to_string()))?;
        // A held query is silent for longer than other watches may be.
        let http = http_client(&tls, ANSWER_WITHIN).map_err(|e| wrong("tls", e.to_string()))?;
        let agents = Agents { http, bases, token_file: settings.token_file.clone(), at: AtomicUsize::new(0) };
        Ok(Self { agents: Arc::new(agents), watches: Arc::default(), tasks: tasks.child(name) })
    }
}

impl Drop for Consul {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

#[async_trait]
impl Provider for Consul {
    async fn fetch(&self, object: &ObjectKey, _held: Option<&Value>) -> Fetched {
        let answer = self.agents.read(&object.path).await;
        answer.map_or_else(Outcome::Error, |answer| answer.outcome).into()
    }

    fn watch(&self, object: &ObjectKey, sink: Arc<dyn Sink>) -> Option<WatchGuard> {
        let place = Place::take(&self.watches)?;
        let (agents, path) = (Arc::clone(&self.agents), object.path.clone());
        let guard = keep_alone(&self.tasks, sink, move |sink| {
            let (agents, path) = (Arc::clone(&agents), path.clone());
            async move { follow(&agents, &path, sink.as_ref()).await }
        });
        Some(WatchGuard::new((guard, place)))
    }
}

/// One of the watches that may be there.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(watches: &Arc<AtomicUsize>) -> Option<Self> {
        let taken = watches.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(watches));
        (taken < MOST).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Holds one query after another until one fails.
async fn follow(agents: &Agents, path: &str, sink: &dyn Sink) -> Failure {
    let (mut index, mut known) = (0, None);
    loop {
        let next = Instant::now() + APART;
        let answer = match agents.hold(path, index).await {
            Ok(answer) => answer,
            Err(failure) => return failure,
        };
        let version = answer.version();
        match (index, known.as_ref() == Some(&version)) {
            // From here on changes are told.
            (0, _) => sink.subscribed(),
            (_, true) => sink.confirmed(),
            (_, false) => match answer.outcome {
                told @ Outcome::Value { .. } => sink.event(told),
                // Absence has no order by which an older one could be told from a newer value.
                _ => sink.changed(),
            },
        }
        known = Some(version);
        let before = index;
        index = next_index(before, answer.index);
        if before == 0 && index == 0 {
            // Nothing to wait behind: no Consul.
            return Failure::of(AnswerKind::Unknown);
        }
        // sleep: the bound on how often a watch returns
        sleep_until(next).await;
    }
}

/// The index to wait behind: none when it went back, as after a restore, or was none.
const fn next_index(before: u64, told: Option<u64>) -> u64 {
    match told {
        Some(told) if told >= before => told,
        _ => 0,
    }
}

/// The agents of one datacentre.
struct Agents {
    http: reqwest::Client,
    /// Each with the path of the store.
    bases: Vec<Url>,
    token_file: Option<PathBuf>,
    /// The one that answered last.
    at: AtomicUsize,
}

/// What an agent says of a key.
struct Answer {
    outcome: Outcome<Value>,
    index: Option<u64>,
}

impl Answer {
    fn version(&self) -> Option<u64> {
        match &self.outcome {
            Outcome::Value { value, .. } => value.order,
            _ => None,
        }
    }
}

impl Agents {
    /// Reads, from another agent where one does not answer.
    async fn read(&self, path: &str) -> Result<Answer, Failure> {
        let mut failed = Failure::of(AnswerKind::Unavailable);
        let patience = if self.bases.len() > 1 { PATIENCE } else { Duration::MAX };
        for _ in &self.bases {
            let late = |_| Err(Failure::of(AnswerKind::Unavailable));
            failed = match timeout(patience, self.ask(path, 0)).await.unwrap_or_else(late) {
                Err(failure) if failure.kind == AnswerKind::Unavailable && !failure.own_login => failure,
                answer => return answer,
            };
            self.at.fetch_add(1, Ordering::Relaxed);
        }
        Err(failed)
    }

    /// Asks what comes after an index; at once when it is 0.
    async fn hold(&self, path: &str, index: u64) -> Result<Answer, Failure> {
        let at = self.at.load(Ordering::Relaxed);
        let late = |_| Err(Failure::of(AnswerKind::Unavailable));
        let answer = timeout(ANSWER_WITHIN, self.ask(path, index)).await.unwrap_or_else(late);
        if answer.as_ref().is_err_and(|failure| failure.kind == AnswerKind::Unavailable) {
            // Many watches fail together; they move on by one.
            let _ = self.at.compare_exchange(at, at.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
        }
        answer
    }

    async fn ask(&self, path: &str, index: u64) -> Result<Answer, Failure> {
        let base = self.bases.get(self.at.load(Ordering::Relaxed) % self.bases.len().max(1));
        let mut url = base.and_then(|base| url(base, path)).ok_or(Failure::of(AnswerKind::Invalid))?;
        if index > 0 {
            url.set_query(Some(&format!("index={index}&wait={}s", WAIT.as_secs())));
        }
        let mut request = self.http.get(url);
        if let Some(file) = &self.token_file {
            let mut token = http::HeaderValue::try_from(credential::text(file)?.as_str())
                .map_err(|_| Failure::own_login())?;
            token.set_sensitive(true);
            request = request.header("X-Consul-Token", token);
        }
        let response = request.send().await.map_err(|_| Failure::of(AnswerKind::Unavailable))?;
        let told = response.headers().get("X-Consul-Index").and_then(|text| text.to_str().ok()?.parse().ok());
        let status = response.status();
        let meaning = http_answer::meaning(status, response.headers());
        let body = http_answer::body(response).await;
        let outcome = match meaning {
            Some(Outcome::Error(_)) if status == StatusCode::FORBIDDEN && is_unknown_token(&body) => {
                return Err(Failure::own_login());
            }
            Some(Outcome::Error(failure)) => return Err(failure),
            Some(outcome) => outcome,
            None => found(&body.map_err(Failure::of)?)?,
        };
        Ok(Answer { outcome, index: told.filter(|index| *index > 0) })
    }
}

/// The URL of a key; none when its path would lead elsewhere.
fn url(base: &Url, path: &str) -> Option<Url> {
    let segments = path.trim_start_matches('/').split('/');
    if segments.clone().any(|segment| matches!(segment, "." | "..")) {
        return None;
    }
    let mut url = base.clone();
    url.path_segments_mut().ok()?.extend(segments);
    Some(url)
}

/// A token that the datacentre does not know is refused like one without rights; only the text tells.
fn is_unknown_token(body: &Result<Zeroizing<Vec<u8>>, AnswerKind>) -> bool {
    body.as_ref().is_ok_and(|body| body.trim_ascii().starts_with(b"ACL not found"))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pair {
    value: Option<Wiped>,
    modify_index: u64,
}

fn found(body: &[u8]) -> Result<Outcome<Value>, Failure> {
    let unknown = Failure::of(AnswerKind::Unknown);
    let pairs: Vec<Pair> = serde_json::from_slice(body).map_err(|_| unknown)?;
    let Some(pair) = pairs.into_iter().next() else { return Ok(Outcome::Absent) };
    // An empty value comes as null.
    let text = pair.value.unwrap_or_default();
    let bytes = BASE64_STANDARD.decode(text.as_bytes()).map_err(|_| unknown)?;
    if bytes.len() > content::MAX_OBJECT {
        return Err(Failure::of(AnswerKind::Invalid));
    }
    let value = Value {
        bytes: Secret::new(bytes),
        version: Some(pair.modify_index.to_string()),
        order: Some(pair.modify_index),
        ..Value::default()
    };
    Ok(Outcome::Value { value, passed: None })
}

#[cfg(test)]
mod tests;
