//! etcd: linearizable reads, and one connection with many watches on few streams.
//!
//! What must hold: a value's order is the revision of its last change, within the cluster that its epoch names; a
//! member that lost the leader counts as no answer, neither for reads nor for watches.

mod book;
mod channel;
mod errors;
mod watching;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use holdfast_core::freshness::{Failure, Outcome};
use holdfast_ops::Tasks;
use holdfast_proto::etcd::{KeyValue, RangeRequest, RangeResponse};

use self::channel::{Channel, Login};
use super::BuildError;
use super::address::{Address, client_tls};
use super::subscriptions::{Subscriptions, keep};
use crate::config::UpstreamSettings;
use crate::provider::{Fetched, Provider, Sink, WatchGuard};
use crate::reference::ObjectKey;
use crate::value::{Secret, Value};

const PORT: u16 = 2379;

/// `type = "etcd"`
pub struct Etcd {
    channel: Arc<Channel>,
    subscriptions: Arc<Subscriptions>,
    tasks: Tasks,
}

impl Etcd {
    /// Reads the settings; nothing is dialled before something is asked.
    ///
    /// # Errors
    /// When a setting cannot be used.
    pub fn build(name: &str, settings: &UpstreamSettings, tasks: &Tasks) -> Result<Self, BuildError> {
        let wrong = |key, problem: String| BuildError::setting(name, key, problem);
        if settings.addrs.is_empty() {
            return Err(wrong("addrs", "at least one address is needed".to_owned()));
        }
        let parse = |text: &String| Address::parse(text, ("http", "https"), PORT, settings.tls.is_some());
        let addresses: Result<Vec<_>, _> = settings.addrs.iter().map(parse).collect();
        let login = match (&settings.user, &settings.password_file) {
            (None, None) => None,
            (Some(user), Some(file)) => {
                holdfast_ops::secret_file::read(file).map_err(|e| wrong("password_file", e.to_string()))?;
                Some(Login { user: user.clone(), password_file: file.clone() })
            }
            _ => return Err(wrong("password_file", "user and password_file belong together".to_owned())),
        };
        let tls = client_tls(settings.tls.as_ref(), &[b"h2"]).map_err(|e| wrong("tls", e.to_string()))?;
        let tasks = tasks.child(name);
        let times = watching::Times::of(settings);
        let addresses = addresses.map_err(|e| wrong("addrs", e))?;
        let channel = Arc::new(Channel::new(addresses, tls, login, times.idle, tasks.clone()));
        let subscriptions = Subscriptions::new();
        let (watched, link, upstream) = (Arc::clone(&subscriptions), Arc::clone(&channel), name.to_owned());
        tasks.spawn_until_cancelled("watch", async move {
            keep(&upstream, &watched, || watching::session(&link, &watched, times)).await;
        });
        Ok(Self { channel, subscriptions, tasks })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

#[async_trait]
impl Provider for Etcd {
    async fn fetch(&self, object: &ObjectKey, _held: Option<&Value>) -> Fetched {
        let key = object.path.clone().into_bytes().into();
        let request = RangeRequest { key, ..RangeRequest::default() };
        match self.channel.range(request).await {
            Ok(answer) => found(answer).into(),
            Err(failure) => Outcome::Error(failure).into(),
        }
    }

    fn watch(&self, object: &ObjectKey, sink: Arc<dyn Sink>) -> Option<WatchGuard> {
        Some(self.subscriptions.add(object, sink))
    }
}

fn found(answer: RangeResponse) -> Outcome<Value> {
    let Some(header) = answer.header else {
        return Outcome::Error(Failure::of(holdfast_core::AnswerKind::Unknown));
    };
    match answer.kvs.into_iter().next() {
        Some(kv) => Outcome::Value { value: value(kv, header.cluster_id), passed: None },
        None => Outcome::Absent,
    }
}

fn value(kv: KeyValue, cluster: u64) -> Value {
    Value {
        bytes: Secret::new(kv.value.into()),
        version: Some(kv.mod_revision.to_string()),
        order: u64::try_from(kv.mod_revision).ok(),
        epoch: Some(format!("{cluster:x}").into()),
        sensitive: false,
        not_after: None,
        metadata: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests;
