//! Redis and its like: string keys, and keyspace events on the connection that also reads.
//!
//! What must hold: events and answers come over one connection in order, so that an answered ping says that no event
//! before it is missing; a server that sends no keyspace events is read by poll, not believed to be quiet.

mod connection;
mod errors;
mod watching;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::freshness::{Failure, Outcome};
use holdfast_ops::Tasks;

use self::connection::Server;
use super::BuildError;
use super::address::{Address, client_tls};
use super::content;
use super::subscriptions::{Subscriptions, keep};
use crate::config::UpstreamSettings;
use crate::provider::{Fetched, Provider, Sink, WatchGuard};
use crate::reference::ObjectKey;
use crate::value::Value;

const PORT: u16 = 6379;

/// `type = "redis"`
pub struct Redis {
    server: Arc<Server>,
    subscriptions: Arc<Subscriptions>,
    tasks: Tasks,
}

impl Redis {
    /// Reads the settings; nothing is dialled before something is asked.
    ///
    /// # Errors
    /// When a setting cannot be used.
    pub fn build(name: &str, settings: &UpstreamSettings, tasks: &Tasks) -> Result<Self, BuildError> {
        let wrong = |key, problem: String| BuildError::setting(name, key, problem);
        if settings.addrs.is_empty() {
            return Err(wrong("addrs", "at least one address is needed".to_owned()));
        }
        let parse = |text: &String| {
            let address = Address::parse(text, ("redis", "rediss"), PORT, settings.tls.is_some())?;
            match address.path.as_str() {
                "" => Ok((address, 0)),
                number => match number.parse() {
                    Ok(database) => Ok((address, database)),
                    Err(_) => Err(format!("\"{number}\" is no number of a database")),
                },
            }
        };
        let places: Result<Vec<(Address, u16)>, String> = settings.addrs.iter().map(parse).collect();
        if settings.user.is_some() && settings.password_file.is_none() {
            return Err(wrong("password_file", "user needs one".to_owned()));
        }
        let tls = client_tls(settings.tls.as_ref(), &[]).map_err(|e| wrong("tls", e.to_string()))?;
        let tasks = tasks.child(name);
        let login = Login { user: settings.user.clone(), password_file: settings.password_file.clone() };
        let subscriptions = Subscriptions::new();
        let places = places.map_err(|e| wrong("addrs", e))?;
        let server = Server::new(places, tls, login, tasks.clone(), Arc::clone(&subscriptions));
        let server = Arc::new(server);
        let idle = settings.watch_idle.map_or(Duration::from_secs(45), Into::into);
        let (watched, connection, upstream) =
            (Arc::clone(&subscriptions), Arc::clone(&server), name.to_owned());
        tasks.spawn_until_cancelled("watch", async move {
            keep(&upstream, &watched, || watching::session(&connection, &watched, idle)).await;
        });
        Ok(Self { server, subscriptions, tasks })
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

#[async_trait]
impl Provider for Redis {
    async fn fetch(&self, object: &ObjectKey, _held: Option<&Value>) -> Fetched {
        let outcome = match self.server.get(&object.path).await {
            Ok(Some(bytes)) => content::hashed(bytes, false),
            Ok(None) => Outcome::Absent,
            Err(failure) => Outcome::Error(failure),
        };
        outcome.into()
    }

    fn watch(&self, object: &ObjectKey, sink: Arc<dyn Sink>) -> Option<WatchGuard> {
        Some(self.subscriptions.add(object, sink))
    }
}

/// Who to log in as; nobody when all is unset.
struct Login {
    user: Option<String>,
    password_file: Option<PathBuf>,
}

impl Login {
    fn password(&self) -> Result<Option<zeroize::Zeroizing<String>>, Failure> {
        self.password_file.as_deref().map(super::credential::text).transpose()
    }
}

#[cfg(test)]
mod tests;
