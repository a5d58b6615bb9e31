//! The one connection: RESP3, so that events come in between the answers, to one server at a time.
//!
//! What must hold: dialling happens once at a time; a server that is a replica is taken only when none is a master;
//! the password is read from its file at each login.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_core::AnswerKind;
use holdfast_core::freshness::Failure;
use holdfast_net::stall::Stalling;
use holdfast_ops::Tasks;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, Value};
use rustls::ClientConfig;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::super::address::Address;
use super::super::subscriptions::Subscriptions;
use super::Login;
use super::errors::{failure, is_of_server};

/// How long a login may take.
const LOGIN_WITHIN: Duration = Duration::from_secs(3);
/// How long one server may take to answer while there are others.
const PATIENCE: Duration = Duration::from_secs(3);
/// A server that takes nothing of what is sent for so long is given up.
const STALLED: Duration = Duration::from_secs(30);

/// A connection with what ends it.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    /// Cancelled when the connection has ended, and ends it when cancelled.
    pub(super) over: CancellationToken,
    pub(super) database: u16,
}

/// The way to a Redis.
pub(super) struct Server {
    places: Vec<(Address, u16)>,
    tls: Arc<ClientConfig>,
    login: Login,
    tasks: Tasks,
    subscriptions: Arc<Subscriptions>,
    next: AtomicUsize,
    current: Mutex<Option<Link>>,
}

impl Server {
    pub(super) fn new(
        places: Vec<(Address, u16)>,
        tls: Arc<ClientConfig>,
        login: Login,
        tasks: Tasks,
        subscriptions: Arc<Subscriptions>,
    ) -> Self {
        let (next, current) = (AtomicUsize::new(0), Mutex::new(None));
        Self { places, tls, login, tasks, subscriptions, next, current }
    }

    /// Reads a key.
    pub(super) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Failure> {
        let mut servers = self.places.len();
        let patience = if servers > 1 { PATIENCE } else { Duration::MAX };
        loop {
            let mut link = self.link().await?;
            let get = redis::cmd("GET").arg(key).clone();
            let answer = tokio::time::timeout(patience, get.query_async(&mut link.connection)).await;
            let failed = match answer {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(error)) => failure(&error),
                Err(_) => Failure::of(AnswerKind::Unavailable),
            };
            if failed.own_login || is_of_server(&failed) {
                self.leave(&link);
            }
            servers = servers.saturating_sub(1);
            if servers == 0 || !is_of_server(&failed) {
                return Err(failed);
            }
        }
    }

    /// The connection, made if there is none.
    pub(super) async fn link(&self) -> Result<Link, Failure> {
        let mut current = self.current.lock().await;
        if let Some(link) = current.as_ref().filter(|link| !link.over.is_cancelled()) {
            return Ok(link.clone());
        }
        *current = None;
        let mut failed = Failure::of(AnswerKind::Unavailable);
        let mut replica = None;
        for _ in &self.places {
            match self.dial().await {
                Ok((link, true)) => replica = Some(link),
                Ok((link, false)) => {
                    *current = Some(link.clone());
                    return Ok(link);
                }
                Err(other) => failed = other,
            }
        }
        current.clone_from(&replica);
        replica.ok_or(failed)
    }

    /// Ends a connection.
    pub(super) fn leave(&self, link: &Link) {
        link.over.cancel();
    }

    /// The next server, and whether it is a replica.
    async fn dial(&self) -> Result<(Link, bool), Failure> {
        // Moved on first: who asked may give up while we wait for this one.
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.places.len().max(1);
        let unavailable = Failure::of(AnswerKind::Unavailable);
        let Some((address, database)) = self.places.get(at) else { return Err(unavailable) };
        let stream = address.connect(&self.tls).await.map_err(|error| {
            tracing::debug!(address = address.authority(), %error, "no connection to Redis");
            unavailable
        })?;
        let info = self.info(*database)?;
        let over = CancellationToken::new();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(Events { subscriptions: Arc::clone(&self.subscriptions), over: over.clone() });
        let stream = Stalling::new(stream, STALLED);
        let made = MultiplexedConnection::new_with_config(&info, stream, config);
        let made = tokio::time::timeout(LOGIN_WITHIN, made).await.map_err(|_| unavailable)?;
        let (connection, driver) = made.map_err(|error| failure(&error))?;
        let link = Link { connection, over: over.clone(), database: *database };
        self.tasks.spawn_until_cancelled("connection", async move {
            over.run_until_cancelled(driver).await;
            over.cancel();
        });
        let replica = tokio::time::timeout(LOGIN_WITHIN, is_replica(&link)).await.map_err(|_| unavailable)?;
        Ok((link, replica))
    }

    fn info(&self, database: u16) -> Result<RedisConnectionInfo, Failure> {
        let mut info = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(i64::from(database))
            .set_lib_name("holdfast", env!("CARGO_PKG_VERSION"));
        if let Some(password) = self.login.password()? {
            info = info.set_password(password.as_str());
        }
        if let Some(user) = &self.login.user {
            info = info.set_username(user);
        }
        Ok(info)
    }
}

/// Whether a server says that it is a replica. One that does not say, since we may not ask, is taken for a master.
async fn is_replica(link: &Link) -> bool {
    let mut connection = link.connection.clone();
    match redis::cmd("ROLE").query_async::<Value>(&mut connection).await {
        Ok(Value::Array(role)) => matches!(role.first(), Some(Value::BulkString(name)) if name == b"slave"),
        _ => false,
    }
}

/// Tells the watches of a path what happened to it. Runs on the connection's own task, and waits for nothing.
struct Events {
    subscriptions: Arc<Subscriptions>,
    over: CancellationToken,
}

impl redis::aio::AsyncPushSender for Events {
    fn send(&self, info: PushInfo) -> Result<(), redis::aio::SendError> {
        match info.kind {
            PushKind::Disconnection => self.over.cancel(),
            PushKind::Message => {
                let Some(Value::BulkString(channel)) = info.data.first() else { return Ok(()) };
                let path = std::str::from_utf8(channel).ok().and_then(path_of);
                for subscription in path.map(|path| self.subscriptions.of_path(path)).unwrap_or_default() {
                    subscription.sink.changed();
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The channel on which the events of a key come.
pub(super) fn channel(database: u16, path: &str) -> String {
    format!("__keyspace@{database}__:{path}")
}

/// The key of a channel.
fn path_of(channel: &str) -> Option<&str> {
    channel.strip_prefix("__keyspace@")?.split_once("__:").map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_names_its_key() {
        for path in ["a", "a__:b", "with space", ""] {
            assert_eq!(path_of(&channel(3, path)), Some(path));
        }
        assert_eq!(path_of("news"), None);
    }
}
