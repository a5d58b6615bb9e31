//! A hub over a store whose writer can be interrupted before and after each batch, and a fake database.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::Term;
use holdfast_ops::Tasks;
use holdfast_ops::tasks::TaskHandle;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::auth::token::Token;
use crate::barrier::{Barrier, Keyring};
use crate::database::fake::FakeDatabase;
use crate::database::{engine, intent, names};
use crate::error::ApiError;
use crate::hub::Hub;
use crate::lease::{Lease, Leases, index};
use crate::logical::{Body, Cx, Logical, Operation, Response};
use crate::mount::MountEntry;
use crate::storage::Storage;
use crate::store::memory::MemoryStore;
use crate::store::{AppliedHook, Batch, CommitError, Committed, ReadError, Store, Versioned};
use crate::testing::{FakeCluster, hub_with, request};

pub const URL: &str = "postgresql://{{username}}:{{password}}@db/x";

/// A store with an await before and after each batch.
pub struct Interruptible(pub Arc<MemoryStore>);

#[async_trait]
impl Store for Interruptible {
    async fn commit(&self, batch: Batch) -> Result<Committed, CommitError> {
        tokio::task::yield_now().await;
        let done = self.0.commit(batch).await;
        tokio::task::yield_now().await;
        done
    }

    fn read(&self, key: &str) -> Result<Option<Versioned>, ReadError> {
        self.0.read(key)
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Versioned)>, ReadError> {
        self.0.scan(prefix, after, limit)
    }

    fn scan_keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, ReadError> {
        self.0.scan_keys(prefix, after, limit)
    }

    fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, ReadError> {
        self.0.list(prefix, after, limit)
    }

    fn count(&self, prefix: &str) -> Result<u64, ReadError> {
        self.0.count(prefix)
    }

    fn on_applied(&self, hook: AppliedHook) {
        self.0.on_applied(hook);
    }
}

/// A cluster of one with a database mount, a connection `db` and a role `r`.
pub struct World {
    pub store: Arc<MemoryStore>,
    pub storage: Storage,
    pub database: Arc<FakeDatabase>,
    pub cluster: Arc<FakeCluster>,
    pub hub: Arc<Hub>,
    pub term: Term,
    pub mount: MountEntry,
    /// Whether drivers are real.
    real: bool,
    running: Option<(CancellationToken, Tasks, TaskHandle<()>)>,
}

impl World {
    pub async fn new() -> Self {
        let world = Self::bare();
        let config = json!({
            "plugin_name": "postgresql-database-plugin", "connection_url": URL, "username": "root",
            "password": "root-password", "allowed_roles": "*", "max_open_connections": 8,
        });
        world.write("config/db", config).await.unwrap();
        let role =
            json!({"db_name": "db", "creation_statements": "CREATE", "default_ttl": "1h", "max_ttl": "24h"});
        world.write("roles/r", role).await.unwrap();
        world
    }

    /// The same without connection and role, over real drivers. The sweeper looks again after a second.
    pub fn real() -> Self {
        let mut world = Self::bare();
        world.real = true;
        world.make_hub();
        world
    }

    fn make_hub(&mut self) {
        self.hub = hub_with(self.storage.clone(), self.cluster.clone());
        if !self.real {
            self.hub.leases.databases().instances.set_opener(self.database.opener());
            return;
        }
        let limits = &mut Arc::get_mut(&mut self.hub).unwrap().leases.databases_mut().sweep_limits;
        limits.verify_after = Duration::from_secs(1);
        limits.pause_ceiling = Duration::from_secs(1);
    }

    pub fn bare() -> Self {
        let store = MemoryStore::new();
        let barrier = Barrier::opened(Keyring::generate().unwrap());
        let storage = Storage::new(Arc::new(Interruptible(store.clone())), barrier);
        let (database, term) = (FakeDatabase::new(), Term::new(1));
        let cluster = FakeCluster::active("n1", term);
        let hub = hub_with(storage.clone(), cluster.clone());
        hub.leases.databases().instances.set_opener(database.opener());
        let mount = MountEntry {
            path: "database/".into(),
            kind: "database".into(),
            uuid: "m-1".into(),
            ..MountEntry::default()
        };
        Self { store, storage, database, cluster, hub, term, mount, real: false, running: None }
    }

    /// Another node takes over in the next term, with nothing but the store.
    pub async fn take_over(&mut self) {
        self.stop().await;
        self.term = self.term.next();
        self.store.set_term(self.term);
        self.cluster = FakeCluster::active("n2", self.term);
        self.make_hub();
    }

    /// Starts the background work of the active node.
    pub fn start(&mut self) {
        let cancel = CancellationToken::new();
        let tasks = Tasks::new("test");
        let task = tasks.spawn("leases", Leases::run(Arc::clone(&self.hub), self.term, cancel.clone()));
        self.running = Some((cancel, tasks, task));
    }

    pub async fn stop(&mut self) {
        if let Some((cancel, _tasks, task)) = self.running.take() {
            cancel.cancel();
            task.join().await.unwrap();
        }
    }

    pub fn cx(&self) -> Cx {
        self.cx_until(CancellationToken::new())
    }

    pub fn cx_until(&self, cancel: CancellationToken) -> Cx {
        self.hub.cx(self.term, Instant::now() + Duration::from_secs(60), cancel)
    }

    pub async fn call(&self, operation: Operation, path: &str, body: Value) -> Result<Response, ApiError> {
        self.call_as(&self.cx(), None, operation, path, body).await
    }

    pub async fn call_as(
        &self,
        cx: &Cx,
        token: Option<Token>,
        operation: Operation,
        path: &str,
        body: Value,
    ) -> Result<Response, ApiError> {
        let mut request = request(operation, "database/", path, body);
        request.token = token.map(Arc::new);
        engine().handle(cx, &self.mount, &request).await
    }

    pub async fn write(&self, path: &str, body: Value) -> Result<Response, ApiError> {
        self.call(Operation::Write, path, body).await
    }

    pub async fn read(&self, path: &str) -> Result<Response, ApiError> {
        self.call(Operation::Read, path, json!({})).await
    }

    /// A request below `sys/leases/`.
    pub async fn sys(&self, operation: Operation, path: &str, body: Value) -> Result<Response, ApiError> {
        let mut request = request(operation, "sys/", &format!("leases/{path}"), body);
        if operation == Operation::Read {
            request.query =
                request.data.as_map().iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().into())).collect();
        }
        crate::sys::engine().handle(&self.cx(), &MountEntry::default(), &request).await
    }

    pub async fn creds(&self) -> Result<Logical, ApiError> {
        self.read("creds/r").await.map(logical)
    }

    pub fn leases(&self) -> Vec<Lease> {
        let found = self.storage.scan::<Lease>(index::LEASES, None, usize::MAX).unwrap();
        found.into_iter().map(|(_, lease)| lease.value).collect()
    }

    pub fn intents(&self) -> usize {
        self.storage.scan_keys(intent::INTENTS, None, usize::MAX).unwrap().len()
    }

    /// Waits, in virtual time, until `holds`.
    pub async fn eventually(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(400);
        while !holds(self) {
            assert!(Instant::now() < deadline, "never: {what}; intents {}", self.intents());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Users of the database are those of live leases; no intent is left; the indexes agree.
    pub fn check(&self) {
        let leases = self.leases();
        let expected: BTreeSet<_> = leases.iter().map(|lease| lease.login.username.clone()).collect();
        let users: BTreeSet<_> = self.database.users().into_iter().collect();
        assert_eq!(users, expected, "users are not those of the leases");
        assert_eq!(self.intents(), 0);
        let held = self.storage.scan::<names::Holder>("dbname/", None, usize::MAX).unwrap();
        assert_eq!(held.len(), leases.len(), "names held: {held:?}");
        let due: BTreeSet<_> = self
            .storage
            .scan_keys(index::DUE, None, usize::MAX)
            .unwrap()
            .iter()
            .map(|key| index::parse_due(key).unwrap())
            .collect();
        let expected: BTreeSet<_> = leases.iter().map(|lease| (lease.due, lease.id.clone())).collect();
        assert_eq!(due, expected, "the index of what is due differs");
    }
}

/// The envelope of an answer.
pub fn logical(response: Response) -> Logical {
    match response.body {
        Body::Logical(logical) => *logical,
        other => panic!("not an envelope: {other:?}"),
    }
}

/// A field of an answer's data.
pub fn field(logical: &Logical, name: &str) -> Value {
    logical.data.as_ref().unwrap().get(name).cloned().unwrap_or(Value::Null)
}

/// A text of an answer's data.
pub fn text(logical: &Logical, name: &str) -> String {
    field(logical, name).as_str().unwrap_or_else(|| panic!("no {name}")).to_owned()
}

/// Polls a future so often at most, then drops it: a client, or a node, that goes away at that point.
pub async fn polled<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = times;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match Pin::new(&mut future).as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

impl World {
    /// No user name is held.
    pub fn check_no_names(&self) {
        assert_eq!(self.storage.scan_keys("dbname/", None, 10).unwrap(), Vec::<String>::new());
    }
}

/// Messages of level ERROR that were logged on this thread since it was made.
#[derive(Clone, Default)]
pub struct Errors(Arc<parking_lot::Mutex<Vec<String>>>);

impl Errors {
    /// Those that hold `text`.
    pub fn count(&self, text: &str) -> usize {
        self.0.lock().iter().filter(|message| message.contains(text)).count()
    }
}

impl tracing::Subscriber for Errors {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{value:?} "));
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().push(message.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
