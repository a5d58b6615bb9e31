//! Databases in memory: what they do is written in the connection URL.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use holdfast_dbdriver::wire::{self, Request};
use holdfast_dbdriver::{
    Call, DeleteUser, Driver, DriverConfig, DriverError, IdempotencyKey, NewUser, PluginName, Reason,
    UpdateUser,
};
use holdfast_proto::relay::v1 as proto;
use parking_lot::Mutex;
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;

use crate::cache::Opener;

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// All databases of a test. A URL with `slow` holds its creations, and one with `held` its opening, until `gate`; one
/// with `broken` does not open; one with `refuse` lets nobody in.
#[derive(Debug, Default)]
pub(crate) struct Fakes {
    pub opened: AtomicUsize,
    pub closed: AtomicUsize,
    pub initialized: AtomicUsize,
    pub running: AtomicUsize,
    pub gate: CancellationToken,
    pub users: Mutex<BTreeSet<String>>,
}

#[derive(Debug)]
struct Fake {
    all: Arc<Fakes>,
    url: String,
}

/// The opener of a test's databases.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opens(pub Arc<Fakes>);

impl Opener for Opens {
    fn open(&self, config: &DriverConfig) -> Result<Arc<dyn Driver>, DriverError> {
        let url = config.connection_url.expose_secret().to_owned();
        if url.contains("broken") {
            return Err(DriverError::invalid("broken"));
        }
        self.0.opened.fetch_add(1, SeqCst);
        Ok(Arc::new(Fake { all: Arc::clone(&self.0), url }))
    }
}

struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[async_trait]
impl Driver for Fake {
    fn plugin(&self) -> PluginName {
        PluginName::Postgres
    }

    async fn initialize(&self, call: &Call, verify: bool) -> Result<(), DriverError> {
        self.all.initialized.fetch_add(1, SeqCst);
        if self.url.contains("held") {
            call.run(self.all.gate.cancelled()).await?;
        }
        if verify && self.url.contains("refuse") {
            return Err(DriverError::new(Reason::Login, "refused"));
        }
        Ok(())
    }

    async fn new_user(&self, call: &Call, user: &NewUser) -> Result<(), DriverError> {
        self.all.running.fetch_add(1, SeqCst);
        let _running = Running(&self.all.running);
        if self.url.contains("slow") {
            call.run(self.all.gate.cancelled()).await?;
        }
        self.all.users.lock().insert(format!("{}@{}", user.username, self.url));
        Ok(())
    }

    async fn update_user(&self, _: &Call, _: &UpdateUser) -> Result<(), DriverError> {
        Ok(())
    }

    async fn delete_user(&self, _: &Call, user: &DeleteUser) -> Result<(), DriverError> {
        self.all.users.lock().remove(&format!("{}@{}", user.username, self.url));
        Ok(())
    }

    async fn verify_password(&self, _: &Call, _: &str, password: &SecretString) -> Result<bool, DriverError> {
        Ok(password.expose_secret() == "right")
    }

    async fn close(&self) {
        self.all.closed.fetch_add(1, SeqCst);
    }
}

/// An instance with a configuration; one connection is `pool`.
pub(crate) fn instance(id: &str, version: u64, url: &str, pool: u32) -> proto::Instance {
    let config =
        DriverConfig { max_open_connections: pool, ..DriverConfig::new(PluginName::RemotePostgres, url) };
    proto::Instance {
        instance_id: id.to_owned(),
        config_version: version,
        config: wire::encode_config(&config).unwrap().into(),
        plugin: "postgresql-database-plugin".to_owned(),
    }
}

/// A creation of `name` with the key of that name.
pub(crate) fn creation(name: &str) -> Request {
    Request::NewUser(NewUser {
        key: key(name),
        resent: false,
        username: name.to_owned(),
        password: "secret".to_owned().into(),
        expiration: jiff::Timestamp::UNIX_EPOCH,
        statements: vec!["x".to_owned()],
        rollback_statements: Vec::new(),
    })
}

/// The removal that undoes [`creation`].
pub(crate) fn removal(name: &str) -> Request {
    Request::DeleteUser(DeleteUser {
        key: Some(key(name)),
        username: name.to_owned(),
        statements: Vec::new(),
        terminate_sessions: false,
    })
}

fn key(name: &str) -> IdempotencyKey {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    IdempotencyKey::from_bytes(bytes)
}

/// A command with this id, whose deadline is a minute.
pub(crate) fn command(id: &str, request: &Request, instance: proto::Instance) -> proto::Command {
    let encoded = wire::encode(request, instance);
    proto::Command {
        request_id: id.to_owned(),
        method: encoded.method.into(),
        payload: encoded.payload,
        deadline_ms: 60_000,
        idempotency_key: encoded.key.map(|key| key.as_bytes().to_vec().into()).unwrap_or_default(),
    }
}

/// Waits until something holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waits = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, waits).await.is_ok(), "never: {what}");
}
