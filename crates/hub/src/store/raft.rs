//! The store of a node: opens its files, starts consensus, and is a [`Store`] and a [`Cluster`].

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::leadership::standing::Veto;
use holdfast_net::cluster::{PeerPool, PeerService};
use holdfast_ops::Tasks;
use rusqlite::OptionalExtension as _;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::timeout;

use super::core::{self, Core};
use super::db::{self, OpenError};
use super::elector::{self, Elector};
use super::gate::{Gate, StoreObserver};
use super::health::Health;
use super::log::LogStore;
use super::service::RaftService;
use super::state::StateHandle;
use super::timing::RaftTiming;
use super::{AppliedHook, Batch, CommitError, Committed, ReadError, Store, Versioned};
use super::{members, propose, restore, stepdown};
use crate::cluster::{Cluster, ClusterError, Member, NodeAddress, NodeName, View};

/// The number of the node that initialises a cluster.
const FIRST: u64 = 1;
/// How long a new cluster takes at most until its node is active.
const INITIALIZE: Duration = Duration::from_secs(10);
/// How long the parts of the store may take to end.
const CLOSE: Duration = Duration::from_secs(5);

/// What a store is opened with.
pub struct OpenStore {
    /// The node's folder; the store's files lie in `raft/` below it.
    pub data_dir: PathBuf,
    /// The name of this node.
    pub node: NodeName,
    /// Where the others reach this node.
    pub address: NodeAddress,
    /// The connections to the others.
    pub pool: PeerPool,
    /// Times and sizes.
    pub timing: RaftTiming,
    /// Told what may be measured.
    pub observer: Arc<dyn StoreObserver>,
    /// The parent of the store's tasks.
    pub tasks: Tasks,
}

/// The store of a node. Clones are the same store.
#[derive(Clone)]
pub struct RaftStore {
    core: Arc<Core>,
}

/// Opens the store. A node that is a member takes part at once; another waits for [`RaftStore::initialize`], or
/// for the first message of a leader that was told to add it.
///
/// # Errors
/// When a file is damaged, of a newer version, or cannot be used; the error names it.
pub async fn open(options: OpenStore) -> Result<RaftStore, OpenError> {
    let folder = own_folder(&options.data_dir)?;
    let tasks = options.tasks.child("store");
    let health = Arc::new(Health::new());
    let (gate, forced) = Gate::new(options.timing, Arc::clone(&health), options.observer);
    let origin = u64::from_le_bytes(holdfast_ops::rand::bytes());
    let (state, log) = {
        let (folder, health, own) = (folder.clone(), Arc::clone(&health), tasks.clone());
        let opened = tasks.spawn_blocking("store-open", move || {
            let state = StateHandle::open(&folder, Arc::clone(&health), &own)?;
            let (log, writer) = LogStore::open(&folder.join("log.db"), origin, state.clone(), health)?;
            own.spawn_thread("store-log", writer).map_err(|error| OpenError::Start(Box::new(error)))?;
            Ok::<_, OpenError>((state, log))
        });
        opened.join().await.unwrap_or_else(|| Err(OpenError::Start("the node is going down".into())))?
    };
    let listener = Arc::downgrade(&gate);
    state.listen(Box::new(move |index| {
        if let Some(gate) = listener.upgrade() {
            gate.applied(index);
        }
    }));
    gate.applied(state.applied().map_or(0, |applied| applied.index));
    let (proposals, waiting) = mpsc::channel(propose::QUEUE);
    let (step_down, asks) = mpsc::channel(16);
    let core = Arc::new(Core {
        name: options.node,
        address: options.address,
        timing: options.timing,
        origin,
        folder,
        tasks: tasks.clone(),
        pool: options.pool,
        health,
        elector: Elector::new(gate.now()),
        gate,
        log,
        state,
        peers: Arc::default(),
        proposals,
        step_down,
        changing: Mutex::new(()),
        caught_up: parking_lot::Mutex::default(),
        running: OnceLock::new(),
        starting: Mutex::new(()),
        quiet: AtomicBool::new(false),
    });
    if let Some(id) = core.log.node_id()? {
        core.start(id).await?;
    }
    tasks.spawn_until_cancelled("store-propose", propose::run(Arc::clone(&core), waiting));
    tasks.spawn_until_cancelled("store-elect", elector::run(Arc::clone(&core)));
    tasks.spawn_until_cancelled("store-expire", core::expire(Arc::clone(&core)));
    tasks.spawn_until_cancelled("store-beat", core::beat(Arc::clone(&core)));
    tasks.spawn_until_cancelled("store-step-down", stepdown::run(Arc::clone(&core), asks, forced));
    Ok(RaftStore { core })
}

/// The store's folder, which only its owner may enter.
fn own_folder(data_dir: &Path) -> Result<PathBuf, OpenError> {
    let folder = data_dir.join("raft");
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| OpenError::io(&folder, error))?;
    Ok(folder)
}

/// Reads one value from the files of a store that is not open.
///
/// # Errors
/// When the file cannot be read.
pub fn peek(data_dir: &Path, key: &str) -> Result<Option<Vec<u8>>, OpenError> {
    let path = data_dir.join("raft").join("state.db");
    if !path.exists() {
        return Ok(None);
    }
    let database = |error| OpenError::database(&path, error);
    let reader = db::reader(&path).map_err(database)?;
    reader
        .query_row("SELECT value FROM kv WHERE key = ?1", [key.as_bytes()], |row| row.get(0))
        .optional()
        .map_err(database)
}

impl RaftStore {
    /// Makes this node the one voter of a new cluster; returns once it is active.
    ///
    /// # Errors
    /// When it is a member of a cluster already, or does not become active within 10 s.
    pub async fn initialize(&self) -> Result<(), ClusterError> {
        let internal = |error| ClusterError::Internal(Box::new(error));
        if self.core.own().is_some() {
            return Err(ClusterError::Invalid("this node is a member already".into()));
        }
        self.core.start(FIRST).await.map_err(internal)?;
        let raft = self.core.raft().ok_or(ClusterError::NotLeader)?;
        let members = BTreeMap::from([(FIRST, self.core.peer())]);
        raft.initialize(members).await.map_err(|error| ClusterError::Internal(Box::new(error)))?;
        let mut views = self.core.gate.watch();
        let active = timeout(INITIALIZE, views.wait_for(|view| view.active.is_some())).await;
        active.map_err(|_| ClusterError::Timeout)?.map(drop).map_err(|_| ClusterError::NotLeader)
    }

    /// Whether this node is, or once was, a member of a cluster.
    pub fn is_member(&self) -> bool {
        self.core.own().is_some()
    }

    /// What answers the other members; to be registered at the cluster port as [`super::RAFT_ALPN`].
    pub fn service(&self) -> Arc<dyn PeerService> {
        Arc::new(RaftService { core: Arc::clone(&self.core) })
    }

    /// How many commits, and so syncs to disk, the log made.
    pub fn log_commits(&self) -> u64 {
        self.core.log.commits()
    }

    /// Takes a state image and drops what the log does not need any more.
    ///
    /// # Errors
    /// When the store is closed.
    pub async fn compact(&self) -> Result<(), ClusterError> {
        let raft = self.core.raft().ok_or(ClusterError::NotLeader)?;
        raft.trigger().snapshot().await.map_err(|error| ClusterError::Internal(Box::new(error)))
    }
}

#[async_trait]
impl Store for RaftStore {
    async fn commit(&self, batch: Batch) -> Result<Committed, CommitError> {
        propose::commit(&self.core, batch).await
    }

    fn read(&self, key: &str) -> Result<Option<Versioned>, ReadError> {
        self.core.state.readers().read(key)
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Versioned)>, ReadError> {
        self.core.state.readers().scan(prefix, after, limit)
    }

    fn scan_keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, ReadError> {
        self.core.state.readers().scan_keys(prefix, after, limit)
    }

    fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, ReadError> {
        self.core.state.readers().list(prefix, after, limit)
    }

    fn count(&self, prefix: &str) -> Result<u64, ReadError> {
        self.core.state.readers().count(prefix)
    }

    fn on_applied(&self, hook: AppliedHook) {
        self.core.state.add_hook(hook);
    }
}

#[async_trait]
impl Cluster for RaftStore {
    fn view(&self) -> View {
        let view = self.core.gate.view();
        View { committed_index: view.committed_index.max(self.core.log.committed()), ..view }
    }

    fn watch(&self) -> watch::Receiver<View> {
        self.core.gate.watch()
    }

    fn node(&self) -> &NodeName {
        &self.core.name
    }

    fn members(&self) -> Vec<Member> {
        let (core, membership) = (&self.core, self.core.gate.membership());
        let (own, now) = (core.own(), core.gate.now());
        let leader = core.gate.view().leader.map(|leader| leader.node);
        let voters: Vec<u64> = membership.membership().voter_ids().collect();
        let of = |(id, peer): (&u64, &super::types::Peer)| {
            let known = core.peers.known(*id);
            let echo = known.as_ref().map(|known| now.since(known.sent));
            let itself = own == Some(*id);
            Member {
                node: peer.name.clone(),
                address: peer.address.clone(),
                voter: voters.contains(id),
                leader: leader.as_ref() == Some(&peer.name),
                reachable: itself || echo.is_some_and(|echo| echo < Duration::from_secs(1)),
                last_echo_ms: echo
                    .map(|echo| u64::try_from(echo.as_millis()).unwrap_or(u64::MAX))
                    .or(itself.then_some(0)),
                version: match known {
                    Some(known) => known.status.version,
                    None if itself => env!("CARGO_PKG_VERSION").to_owned(),
                    None => String::new(),
                },
            }
        };
        membership.nodes().map(of).collect()
    }

    fn membership_index(&self) -> u64 {
        self.core.gate.membership().log_id().map_or(0, |id| id.index)
    }

    async fn step_down(&self) -> Result<(), ClusterError> {
        use holdfast_core::leadership::stepdown::Outcome;
        match members::step_down(&self.core).await? {
            Outcome::Relieved => Ok(()),
            Outcome::Alone => Err(ClusterError::Invalid("there is no other voter".into())),
            Outcome::NobodyTookOver => Err(ClusterError::Timeout),
        }
    }

    async fn add(&self, node: NodeName, address: NodeAddress, non_voter: bool) -> Result<(), ClusterError> {
        members::add(&self.core, node, address, non_voter).await
    }

    async fn remove(&self, node: &NodeName) -> Result<(), ClusterError> {
        members::remove(&self.core, node).await
    }

    async fn promote(&self, node: &NodeName) -> Result<(), ClusterError> {
        members::promote(&self.core, node).await
    }

    async fn demote(&self, node: &NodeName) -> Result<(), ClusterError> {
        members::demote(&self.core, node).await
    }

    async fn save_image(&self, path: &Path) -> Result<(u64, u64), ClusterError> {
        let saved = self.core.state.save_image(path.to_owned()).await;
        let head = saved.map_err(|error| ClusterError::Internal(Box::new(error)))?;
        Ok(head.applied.map_or((0, 0), |applied| (applied.index, applied.leader_id.term)))
    }

    async fn restore_image(&self, path: &Path) -> Result<(), ClusterError> {
        restore::run(&self.core, path).await
    }

    fn store_bytes(&self) -> u64 {
        self.core.log.bytes() + self.core.state.bytes()
    }

    async fn shutdown(&self) {
        let core = &self.core;
        core.elector.veto(core.gate.now(), Veto::Stopping, true);
        // A writer that is held by a full disk gives up; without that the library would wait for it.
        core.health.close();
        if let Some(raft) = core.raft()
            && timeout(CLOSE, raft.shutdown()).await.is_err()
        {
            tracing::warn!("consensus did not end in time");
        }
        core.tasks.cancel();
        let closed = timeout(CLOSE, async {
            core.log.close().await;
            core.state.close().await;
        });
        if closed.await.is_err() {
            tracing::warn!(folder = %core.folder.display(), "the store's files were not closed in time");
        }
        if let Err(error) = core.tasks.wait(CLOSE).await {
            tracing::warn!(%error, "tasks of the store did not end in time");
        }
    }
}
