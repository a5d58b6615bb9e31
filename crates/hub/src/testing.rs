//! What unit tests of the hub share: services over an in-memory store, and a cluster whose leadership the test
//! moves by hand. Compiled for tests only.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::Term;
use holdfast_ops::Tasks;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::audit::Audit;
use crate::auth::token::Tokens;
use crate::barrier::{Barrier, Keyring};
use crate::cluster::{Cluster, ClusterError, Leader, Member, NodeAddress, NodeName, View};
use crate::hub::Hub;
use crate::lease::Leases;
use crate::logical::{Cx, Data, Operation, Request};
use crate::metrics::Metrics;
use crate::mount::Mounts;
use crate::policy::Policies;
use crate::quota::Quotas;
use crate::relay::spokes::{Parts, Spokes};
use crate::relay::{Relay, RelaySettings};
use crate::storage::Storage;
use crate::store::memory::MemoryStore;

/// Services over an in-memory store, active in term 1, and a context for a minute of work in that term.
pub fn hub() -> (Arc<MemoryStore>, Arc<Hub>, Cx) {
    let store = MemoryStore::new();
    let hub = hub_over(&store, FakeCluster::active("node-1", Term::new(1)));
    let cx = hub.cx(Term::new(1), Instant::now() + Duration::from_secs(60), CancellationToken::new());
    (store, hub, cx)
}

/// Services over a given store and cluster, with a fresh keyring.
pub fn hub_over(store: &Arc<MemoryStore>, cluster: Arc<FakeCluster>) -> Arc<Hub> {
    let Ok(keyring) = Keyring::generate() else { unreachable!("the random source works in tests") };
    hub_with(Storage::new(store.clone(), Barrier::opened(keyring)), cluster)
}

/// Services over a given storage and cluster.
pub fn hub_with(storage: Storage, cluster: Arc<FakeCluster>) -> Arc<Hub> {
    let relay = RelaySettings { bind: "127.0.0.1".into(), ..RelaySettings::default() };
    hub_node(storage, cluster, relay, "127.0.0.1:8201")
}

/// Services over a given storage and cluster, of a node whose relay is set up so and whose cluster port is there.
pub fn hub_node(
    storage: Storage,
    cluster: Arc<FakeCluster>,
    relay: RelaySettings,
    address: &str,
) -> Arc<Hub> {
    let metrics = Metrics::new();
    let spokes = Spokes::new(Parts {
        settings: relay.clone(),
        address: address.to_owned(),
        cluster: cluster.clone(),
        metrics: metrics.relay.clone(),
        tasks: Tasks::new("streams"),
    });
    Arc::new(Hub {
        spokes,
        handover: crate::handover::Handover::default(),
        cluster,
        mounts: Mounts::new(storage.clone()),
        policies: Policies::new(storage.clone()),
        tokens: Tokens::new(storage.clone()),
        leases: Leases::new(storage.clone()),
        audit: Audit::new(storage.clone()),
        quotas: Quotas::new(storage.clone()),
        relay: Relay::new(&storage, relay),
        metrics,
        scratch: std::env::temp_dir(),
        storage,
    })
}

/// A request with a body as the pipeline would hand it to a mount: `mount` ends with a slash, `rest` follows it.
pub fn request(operation: Operation, mount: &str, rest: &str, body: Value) -> Request {
    let data = match body {
        Value::Object(map) => Data::new(map),
        _ => Data::default(),
    };
    Request {
        id: uuid::Uuid::new_v4().to_string(),
        operation,
        path: format!("{mount}{rest}"),
        mount: mount.to_owned(),
        rest: rest.to_owned(),
        data,
        query: Vec::new(),
        client_token: None,
        token: None,
        wrap_ttl: None,
        upload: None,
        remote: IpAddr::V4(Ipv4Addr::LOCALHOST),
        deadline: Instant::now() + Duration::from_secs(60),
        cancel: CancellationToken::new(),
    }
}

/// A cluster of one whose leadership the test moves by hand.
pub struct FakeCluster {
    node: NodeName,
    view: watch::Sender<View>,
    members: Mutex<Vec<Member>>,
    image: Mutex<Vec<u8>>,
}

impl FakeCluster {
    /// A node that is active in `term`.
    pub fn active(node: &str, term: Term) -> Arc<Self> {
        let address = NodeAddress { cluster: "127.0.0.1:8201".into(), api: "http://127.0.0.1:8200".into() };
        let node = NodeName(node.to_owned());
        let member = Member {
            node: node.clone(),
            address: address.clone(),
            voter: true,
            leader: true,
            reachable: true,
            last_echo_ms: Some(0),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let view = View {
            active: Some(term),
            active_since: Some(0),
            leader: Some(Leader { node: node.clone(), address, term }),
            storage_healthy: true,
            removed: false,
            committed_index: 1,
            applied_index: 1,
        };
        Arc::new(Self {
            node,
            view: watch::Sender::new(view),
            members: Mutex::new(vec![member]),
            image: Mutex::default(),
        })
    }

    /// Changes what the node believes of the cluster.
    pub fn change(&self, change: impl FnOnce(&mut View)) {
        self.view.send_modify(change);
    }

    /// Replaces the members.
    pub fn set_members(&self, members: Vec<Member>) {
        *self.members.lock() = members;
    }

    /// What stands for the state of the cluster in backups.
    pub fn set_image(&self, image: Vec<u8>) {
        *self.image.lock() = image;
    }

    /// The state that was last set or restored.
    pub fn image(&self) -> Vec<u8> {
        self.image.lock().clone()
    }

    /// The node neither leads nor knows who does.
    pub fn lose_leader(&self) {
        self.change(|view| {
            view.active = None;
            view.active_since = None;
            view.leader = None;
        });
    }
}

#[async_trait]
impl Cluster for FakeCluster {
    fn view(&self) -> View {
        self.view.borrow().clone()
    }

    fn watch(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    fn node(&self) -> &NodeName {
        &self.node
    }

    fn members(&self) -> Vec<Member> {
        self.members.lock().clone()
    }

    fn membership_index(&self) -> u64 {
        1
    }

    async fn step_down(&self) -> Result<(), ClusterError> {
        self.lose_leader();
        Ok(())
    }

    async fn add(&self, node: NodeName, address: NodeAddress, non_voter: bool) -> Result<(), ClusterError> {
        let mut members = self.members.lock();
        members.retain(|m| m.node != node);
        members.push(Member {
            node,
            address,
            voter: !non_voter,
            leader: false,
            reachable: true,
            last_echo_ms: Some(0),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        });
        Ok(())
    }

    async fn remove(&self, node: &NodeName) -> Result<(), ClusterError> {
        let mut members = self.members.lock();
        let before = members.len();
        members.retain(|m| m.node != *node);
        if members.len() == before {
            return Err(ClusterError::UnknownMember(node.to_string()));
        }
        Ok(())
    }

    async fn promote(&self, node: &NodeName) -> Result<(), ClusterError> {
        self.set_voter(node, true)
    }

    async fn demote(&self, node: &NodeName) -> Result<(), ClusterError> {
        self.set_voter(node, false)
    }

    async fn save_image(&self, path: &Path) -> Result<(u64, u64), ClusterError> {
        std::fs::write(path, self.image()).map_err(|error| ClusterError::Image(error.to_string()))?;
        Ok((1, 1))
    }

    async fn restore_image(&self, path: &Path) -> Result<(), ClusterError> {
        self.set_image(std::fs::read(path).map_err(|error| ClusterError::Image(error.to_string()))?);
        Ok(())
    }

    fn store_bytes(&self) -> u64 {
        0
    }

    async fn shutdown(&self) {
        self.lose_leader();
    }
}

impl FakeCluster {
    fn set_voter(&self, node: &NodeName, voter: bool) -> Result<(), ClusterError> {
        let mut members = self.members.lock();
        let member = members.iter_mut().find(|m| m.node == *node);
        member.map(|m| m.voter = voter).ok_or_else(|| ClusterError::UnknownMember(node.to_string()))
    }
}
