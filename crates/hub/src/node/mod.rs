//! The life of a node between start and exit: uninitialised, sealed, unsealed.
//!
//! What must hold: one change of state at a time; a node that is not unsealed holds no key; what is saved to disk
//! is saved after the fallible part of a change succeeded.

pub mod backend;
pub mod challenge;
pub mod files;
pub mod gate;
pub mod init;
pub mod join;
pub mod raft;
pub mod restored;
pub mod running;
pub mod unseal;

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use holdfast_ops::Tasks;
use parking_lot::Mutex;

use crate::barrier::seal::{SealError, SealPublic, SealRecord, SealType};
use crate::cluster::NodeAddress;
use crate::config::HubConfig;
use crate::error::ApiError;
use crate::metrics::Metrics;
use backend::{Backend, Forwarded, Opening};
use challenge::Challenges;
use files::DataDir;
use join::PendingJoin;
use running::Running;
use unseal::Progress;

/// What every part of a node's life needs.
pub struct Shared {
    /// The configuration.
    pub config: Arc<HubConfig>,
    /// Opens stores.
    pub backend: Arc<dyn Backend>,
    /// The data directory.
    pub dir: DataDir,
    /// Where this node is reached.
    pub address: NodeAddress,
    /// The owner of all tasks of the node.
    pub tasks: Tasks,
}

/// The state of a node.
#[derive(Clone)]
pub enum State {
    /// No cluster was made or joined.
    Uninitialised,
    /// There is a seal and no key.
    Sealed(Arc<Sealed>),
    /// Everything runs.
    Unsealed(Arc<Running>),
}

/// A seal that is closed.
pub struct Sealed {
    /// What may be told of it.
    pub public: SealPublic,
    source: Source,
}

/// Where the rest of the seal comes from.
enum Source {
    /// This node's disk.
    Disk(SealRecord),
    /// The cluster that is to be joined.
    Join(PendingJoin),
}

/// A node.
pub struct Node {
    /// What every part needs.
    pub shared: Shared,
    state: ArcSwap<State>,
    /// Held through every change of state.
    change: tokio::sync::Mutex<()>,
    progress: Mutex<Progress>,
    challenges: Mutex<Challenges>,
    forwarded: OnceLock<Arc<dyn Forwarded>>,
}

impl Sealed {
    fn on_disk(record: SealRecord) -> Arc<Self> {
        Arc::new(Self { public: record.public.clone(), source: Source::Disk(record) })
    }
}

impl Node {
    /// Reads the seal of the data directory; opens nothing.
    pub fn new(shared: Shared) -> Result<Arc<Self>, SealError> {
        let state = match SealRecord::load(shared.dir.path())? {
            Some(record) => State::Sealed(Sealed::on_disk(record)),
            None => State::Uninitialised,
        };
        Ok(Arc::new(Self {
            shared,
            state: ArcSwap::from_pointee(state),
            change: tokio::sync::Mutex::new(()),
            progress: Mutex::default(),
            challenges: Mutex::default(),
            forwarded: OnceLock::new(),
        }))
    }

    /// Says what answers requests that other nodes forward; once, before anything is unsealed.
    pub fn serve_forwarded(&self, handler: Arc<dyn Forwarded>) {
        // A second handler would be a fault of the wiring; the first stays.
        let _ = self.forwarded.set(handler);
    }

    /// The state now.
    pub fn state(&self) -> State {
        State::clone(&self.state.load())
    }

    /// The running services, while unsealed.
    pub fn running(&self) -> Option<Arc<Running>> {
        match &**self.state.load() {
            State::Unsealed(running) => Some(Arc::clone(running)),
            _ => None,
        }
    }

    /// Whether this node was removed from its cluster.
    pub fn is_removed(&self) -> bool {
        self.running().is_some_and(|running| running.hub.cluster.view().removed)
    }

    /// The seal's public part, when there is a seal.
    pub fn seal_public(&self) -> Option<SealPublic> {
        match &**self.state.load() {
            State::Uninitialised => None,
            State::Sealed(sealed) => Some(sealed.public.clone()),
            State::Unsealed(running) => Some(running.record.public.clone()),
        }
    }

    /// Opens the seal by the key file, where the configuration has one; anything else stays as it is.
    pub async fn start(self: &Arc<Self>) {
        if let Err(error) = self.shared.dir.clear_scratch() {
            tracing::warn!(%error, "clearing the scratch directory failed");
        }
        if let State::Sealed(sealed) = self.state()
            && sealed.public.seal == SealType::Keyfile
            && let Err(error) = self.unseal_by_keyfile().await
        {
            let error = raft::chain(&error);
            tracing::error!(error, "unsealing by the key file failed; the node stays sealed");
        }
        if !self.shared.config.raft.retry_join.is_empty() {
            let node = Arc::clone(self);
            self.shared.tasks.spawn_until_cancelled("retry-join", node.retry_join());
        }
    }

    /// Seals: requests drain, services and consensus stop, keys are wiped, the cluster port closes.
    pub async fn seal(&self) {
        let _change = self.change.lock().await;
        self.close().await;
    }

    /// Stops an unsealed node; the caller holds the change lock.
    async fn close(&self) {
        let Some(running) = self.running() else { return };
        self.set(State::Sealed(Sealed::on_disk(running.record.clone())));
        running.stop().await;
        tracing::info!("sealed");
    }

    fn set(&self, state: State) {
        self.state.store(Arc::new(state));
    }

    fn opening(&self, identity: zeroize::Zeroizing<Vec<u8>>, found: bool) -> Result<Opening, ApiError> {
        let forwarded = self.forwarded.get().cloned();
        Ok(Opening {
            data_dir: self.shared.dir.path().to_owned(),
            node: self.shared.config.node(),
            address: self.shared.address.clone(),
            identity,
            found,
            forwarded: forwarded.ok_or_else(|| ApiError::internal("no handler for forwarded requests"))?,
            metrics: Metrics::new(),
            relay: Arc::default(),
            tasks: self.shared.tasks.child("unsealed"),
        })
    }
}
