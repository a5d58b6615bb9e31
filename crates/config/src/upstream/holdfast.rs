//! Other config servers: values of theirs under names of ours.
//!
//! What must hold: date, state, order, epoch, end and secrecy of a value are passed through as the other server says
//! them and never renewed here; all names come over one stream; every request says through whom it came.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_client::config::{self as chained, Client, Event, HeaderEditor, State, Watch};
use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome, Passed};
use holdfast_ops::Tasks;
use http::{HeaderMap, HeaderValue, header};
use tokio::time::sleep;

use super::hops::{Hops, VIA};
use super::http_answer::USER_AGENT;
use super::subscriptions::{Subscription, Subscriptions, WatchId, keep};
use super::{BuildError, credential};
use crate::config::UpstreamSettings;
use crate::provider::{Fetched, Provider, Sink, WatchGuard};
use crate::reference::ObjectKey;
use crate::value::{Secret, Value};

/// Names that come one after another, as at the start, are asked for together.
const GATHER: Duration = Duration::from_millis(50);

tokio::task_local! {
    /// What goes along with the request that is being made.
    static ALONG: Option<HeaderValue>;
}

/// `type = "holdfast"`
pub struct Chain {
    client: Client,
    hops: Arc<Hops>,
    subscriptions: Arc<Subscriptions>,
    tasks: Tasks,
}

impl Chain {
    /// Reads the settings; nothing is dialled before something is asked.
    ///
    /// # Errors
    /// When a setting cannot be used.
    pub fn build(
        name: &str,
        settings: &UpstreamSettings,
        tasks: &Tasks,
        hops: &Arc<Hops>,
    ) -> Result<Self, BuildError> {
        let tls = settings.tls.clone().unwrap_or_default();
        let config = chained::Config {
            endpoints: settings.endpoints.clone(),
            headers: Some(headers(settings, hops)),
            tls: chained::Tls { ca_file: tls.ca, cert_file: tls.cert, key_file: tls.key },
            insecure_no_tls: settings.allow_insecure || all_loopback(&settings.endpoints),
            user_agent: USER_AGENT.to_owned(),
            ..chained::Config::default()
        };
        let client = Client::new(config).map_err(|error| BuildError::setting(name, "endpoints", error))?;
        let tasks = tasks.child(name);
        let subscriptions = Subscriptions::new();
        let (watched, asked, upstream) = (Arc::clone(&subscriptions), client.clone(), name.to_owned());
        tasks.spawn_until_cancelled("watch", async move {
            keep(&upstream, &watched, || session(&asked, &watched)).await;
        });
        Ok(Self { client, hops: Arc::clone(hops), subscriptions, tasks })
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.client.close();
        self.tasks.cancel();
    }
}

#[async_trait]
impl Provider for Chain {
    async fn fetch(&self, object: &ObjectKey, _held: Option<&Value>) -> Fetched {
        let along = self.hops.header(Some(object));
        let answer = ALONG.scope(along, self.client.get(&object.path)).await;
        answer.map_or_else(|error| refusal(&error), passed_on).into()
    }

    fn watch(&self, object: &ObjectKey, sink: Arc<dyn Sink>) -> Option<WatchGuard> {
        Some(self.subscriptions.add(object, sink))
    }
}

/// Token and way of each request. The token is read anew, so that it can be replaced; without one the server refuses,
/// which says what is wrong.
fn headers(settings: &UpstreamSettings, hops: &Arc<Hops>) -> HeaderEditor {
    let (token_file, hops) = (settings.token_file.clone(), Arc::clone(hops));
    HeaderEditor::new(move |headers: &mut HeaderMap| {
        let token = token_file.as_deref().and_then(|file| credential::text(file).ok());
        if let Some(mut token) =
            token.and_then(|token| HeaderValue::try_from(format!("Bearer {}", *token)).ok())
        {
            token.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, token);
        }
        let along = ALONG.try_with(Clone::clone).unwrap_or_else(|_| hops.header(None));
        if let Some(along) = along {
            headers.insert(VIA, along);
        }
    })
}

fn all_loopback(endpoints: &[String]) -> bool {
    let loopback = |text: &String| {
        let host = text.split_once("://").map_or("", |(_, rest)| rest);
        host.starts_with("127.") || host.starts_with("localhost:") || host.starts_with("[::1]")
    };
    endpoints.iter().filter(|text| text.starts_with("http://")).all(loopback)
}

/// Keeps one stream for all names; returns when the client is closed.
async fn session(client: &Client, subscriptions: &Subscriptions) -> AnswerKind {
    let mut changes = subscriptions.changes();
    let mut session = Session { subscriptions, held: BTreeMap::new(), told: BTreeSet::new(), live: false };
    loop {
        // sleep: more watches are being added
        sleep(GATHER).await;
        changes.mark_unchanged();
        let names = session.names();
        let mut watch = match client.watch(names.iter().map(String::as_str)) {
            Ok(watch) => watch,
            Err(_) => return AnswerKind::Invalid,
        };
        // Told ones stay told: the new stream begins with all that they may have missed.
        session.live = false;
        if !session.follow(&mut watch, &mut changes, &names).await {
            return AnswerKind::Unavailable;
        }
    }
}

struct Session<'a> {
    subscriptions: &'a Subscriptions,
    /// What was told last of each name, to be told again with another date.
    held: BTreeMap<Arc<str>, chained::Value>,
    /// Who knows that the stream stands.
    told: BTreeSet<WatchId>,
    live: bool,
}

impl Session<'_> {
    fn names(&self) -> BTreeSet<String> {
        self.subscriptions.all().into_iter().map(|subscription| subscription.object.path).collect()
    }

    /// Follows a stream until other names are wanted; false when there will be none any more.
    async fn follow(
        &mut self,
        watch: &mut Watch,
        changes: &mut tokio::sync::watch::Receiver<u64>,
        names: &BTreeSet<String>,
    ) -> bool {
        loop {
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() { return false; }
                    if self.names() != *names { return true; }
                    self.welcome();
                }
                event = watch.next() => match event {
                    Some(event) => self.take(event),
                    None => return false,
                }
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Update(value) => {
                self.held.insert(Arc::clone(&value.name), value.clone());
                self.tell(&value.name.clone(), |one| one.sink.event(passed_on(value.clone())));
            }
            Event::Fresh { name, resolved_at, .. } => {
                let Some(value) = self.held.get_mut(&name) else { return };
                value.resolved_at = Some(resolved_at);
                let value = value.clone();
                self.tell(&name, |one| one.sink.event(passed_on(value.clone())));
            }
            // A read says what it is about, with a way of its own.
            Event::Error { name, .. } => {
                self.held.remove(&name);
                self.tell(&name, |one| one.sink.changed());
            }
            Event::State(State::Live { .. }) => {
                self.live = true;
                self.welcome();
            }
            Event::State(State::Reconnecting { .. }) => self.lost(AnswerKind::Unavailable),
            Event::State(State::Refused { error }) => self.lost(error.answer_kind()),
            Event::ConfigDiffers { between: [(one, _), (other, _)] } => {
                tracing::warn!(%one, %other, "two upstream config servers run different configurations");
            }
            _ => {}
        }
    }

    fn tell(&self, name: &str, what: impl Fn(&Subscription)) {
        self.subscriptions.of_path(name).iter().for_each(what);
    }

    fn welcome(&mut self) {
        if self.live {
            let all: BTreeSet<WatchId> = self.subscriptions.all().into_iter().map(|one| one.id).collect();
            all.difference(&self.told).for_each(|id| self.subscriptions.subscribed(*id));
            self.told = all;
        }
    }

    fn lost(&mut self, kind: AnswerKind) {
        self.live = false;
        self.told.clear();
        self.subscriptions.all_lost(kind);
    }
}

/// The value with everything that the other server says of it.
fn passed_on(value: chained::Value) -> Outcome<Value> {
    let kind = value.kind.or_else(|| value.stale.then_some(AnswerKind::Unknown));
    let passed = Some(Passed { resolved_at: value.resolved_at, kind });
    let value = Value {
        bytes: Secret::new(value.bytes.expose().to_vec()),
        version: value.version,
        order: value.order,
        epoch: value.epoch,
        sensitive: value.sensitive,
        not_after: value.not_after,
        metadata: value.metadata,
    };
    Outcome::Value { value, passed }
}

/// What the other server, or its absence, says.
fn refusal(error: &chained::Error) -> Outcome<Value> {
    let retry_after = error.retry_after();
    Outcome::Error(match error.answer_kind() {
        AnswerKind::NotFound => return Outcome::Absent,
        // Our token, not the value.
        AnswerKind::Unauthenticated => Failure::own_login(),
        kind => Failure { kind, retry_after, own_login: false },
    })
}

#[cfg(test)]
mod replicas_tests;
#[cfg(test)]
mod tests;
