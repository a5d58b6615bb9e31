//! PostgreSQL: one row is one value; changes come by `NOTIFY` on a connection of its own.
//!
//! What must hold: names of tables and columns are checked and quoted, and a key is always a parameter; a notification
//! tells where to look, never what the value is.
//!
//! The payload of a notification is what changed: `TABLE/KEY` as a reference says it, a key alone, a table alone, or
//! nothing for everything. Any other payload is not about us.

mod errors;
mod query;
mod watching;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome};
use holdfast_dbdriver::{Messages, PostgresAddress};
use holdfast_ops::Tasks;
use parking_lot::Mutex;
use tokio_postgres::Client;

use self::errors::failure;
use self::query::{Question, is_identifier};
use super::subscriptions::{Subscriptions, keep};
use super::{BuildError, credential};
use crate::config::UpstreamSettings;
use crate::provider::{Fetched, Provider, Sink, WatchGuard};
use crate::reference::ObjectKey;
use crate::value::Value;

/// The channel unless another is set.
const CHANNEL: &str = "holdfast_config";
/// How long connecting may take, all handshakes included.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// `type = "postgres"`
pub struct Postgres {
    server: Arc<Server>,
    subscriptions: Arc<Subscriptions>,
    sensitive: bool,
    tasks: Tasks,
}

impl Postgres {
    /// Reads the settings and the connection string; nothing is dialled before something is asked.
    ///
    /// # Errors
    /// When a setting cannot be used.
    pub fn build(name: &str, settings: &UpstreamSettings, tasks: &Tasks) -> Result<Self, BuildError> {
        let wrong = |key, problem: &str| BuildError::setting(name, key, problem);
        let dsn_file = settings.dsn_file.clone().ok_or_else(|| wrong("dsn_file", "is missing"))?;
        let dsn = credential::text(&dsn_file).map_err(|_| wrong("dsn_file", "cannot be read"))?;
        PostgresAddress::parse(&dsn.as_str().into())
            .map_err(|error| BuildError::setting(name, "dsn_file", error.client_text()))?;
        let channel = settings.channel.clone().unwrap_or_else(|| CHANNEL.to_owned());
        if !is_identifier(&channel) {
            return Err(wrong("channel", "must be a plain name of at most 63 letters, digits and _"));
        }
        let tasks = tasks.child(name);
        let server = Arc::new(Server { dsn_file, tasks: tasks.clone(), reading: Mutex::default() });
        let subscriptions = Subscriptions::new();
        let idle = settings.watch_idle.map_or(Duration::from_secs(45), Into::into);
        let (watched, place, upstream) = (Arc::clone(&subscriptions), Arc::clone(&server), name.to_owned());
        tasks.spawn_until_cancelled("watch", async move {
            keep(&upstream, &watched, || watching::session(&place, &watched, &channel, idle)).await;
        });
        Ok(Self { server, subscriptions, sensitive: settings.sensitive, tasks })
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

#[async_trait]
impl Provider for Postgres {
    async fn fetch(&self, object: &ObjectKey, _held: Option<&Value>) -> Fetched {
        let outcome = match Question::of(object) {
            None => Outcome::Error(Failure::of(AnswerKind::Invalid)),
            Some(question) => match self.server.reader().await {
                Err(failure) => Outcome::Error(failure),
                Ok(reader) => {
                    let answer = question.ask(&reader.client, self.sensitive).await;
                    reader.answered();
                    answer.unwrap_or_else(|error| Outcome::Error(failure(&error)))
                }
            },
        };
        outcome.into()
    }

    fn watch(&self, object: &ObjectKey, sink: Arc<dyn Sink>) -> Option<WatchGuard> {
        Some(self.subscriptions.add(object, sink))
    }
}

/// The way to a server. The connection string is read anew for each connection.
struct Server {
    dsn_file: PathBuf,
    tasks: Tasks,
    /// The connection for reads; several may wait on it at once.
    reading: Mutex<Option<Arc<Client>>>,
}

impl Server {
    async fn connect(&self) -> Result<(Client, Messages), Failure> {
        let dsn = credential::text(&self.dsn_file)?;
        let address = PostgresAddress::parse(&dsn.as_str().into()).map_err(|_| Failure::own_login())?;
        match tokio::time::timeout(CONNECT_WITHIN, address.connect()).await {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(error)) => Err(failure(&error)),
            Err(_) => Err(Failure::of(AnswerKind::Unavailable)),
        }
    }

    async fn reader(&self) -> Result<Reader<'_>, Failure> {
        let current = self.reading.lock().clone().filter(|client| !client.is_closed());
        if let Some(client) = current {
            return Ok(Reader { client, of: self, answered: false });
        }
        let (client, mut messages) = self.connect().await?;
        self.tasks.spawn_until_cancelled("connection", async move {
            use futures_util::StreamExt as _;
            while let Some(Ok(_)) = messages.next().await {}
        });
        let client = Arc::new(client);
        // Of several that connected at once the last one is kept; the others end with their question.
        *self.reading.lock() = Some(Arc::clone(&client));
        Ok(Reader { client, of: self, answered: false })
    }
}

/// The use of the connection for one question. A question that is given up without an answer leaves the connection,
/// which may be dead without knowing.
struct Reader<'a> {
    client: Arc<Client>,
    of: &'a Server,
    answered: bool,
}

impl Reader<'_> {
    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut reading = self.of.reading.lock();
        if !self.answered && reading.as_ref().is_some_and(|now| Arc::ptr_eq(now, &self.client)) {
            *reading = None;
        }
    }
}

#[cfg(test)]
mod tests;
