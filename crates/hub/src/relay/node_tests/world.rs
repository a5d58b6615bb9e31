//! Several nodes in one process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::SpokeName;
use holdfast_core::Term;
use holdfast_core::retry::Failure;
use holdfast_net::cluster::{BodyError, ClusterIdentity, ClusterPort, PeerPool};
use holdfast_net::serve::Body;
use holdfast_ops::{Duration as Span, Tasks};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use rcgen::{Issuer, KeyPair, PublicKeyData as _};
use serde_json::json;
use tokio::time::Instant;

use super::spoke::{Credentials, TestSpoke};
use crate::api::body;
use crate::barrier::{Barrier, Keyring};
use crate::cluster::{Leader, Member, NodeAddress, NodeName};
use crate::hub::Hub;
use crate::logical::{Cx, Data};
use crate::mount::change::{Family, enable};
use crate::node::backend::{Peers, SendError};
use crate::relay::calls::ALPN;
use crate::relay::peers::Door;
use crate::relay::record::{CA, CaRecord};
use crate::relay::{RelaySettings, ca, start};
use crate::storage::Storage;
use crate::store::memory::MemoryStore;
use crate::testing::{FakeCluster, hub_node};

/// Three times what anything here is promised within.
pub const SOON: Duration = Duration::from_secs(30);

pub struct Node {
    pub hub: Arc<Hub>,
    pub cluster: Arc<FakeCluster>,
    pub peers: Arc<TestPeers>,
    pub address: String,
    tasks: Tasks,
}

pub struct World {
    pub nodes: Vec<Node>,
    pub port: u16,
    /// What the cluster port shows and asks for.
    pub identity: ClusterIdentity,
    ca: CaRecord,
}

/// The way to other nodes, which counts and can be cut.
pub struct TestPeers {
    pool: PeerPool,
    /// Calls of every sort.
    pub sent: AtomicUsize,
    pub runs: AtomicUsize,
    /// Renewals that were sent on.
    pub signs: AtomicUsize,
    pub cut: AtomicBool,
    /// Sets do not get through.
    pub mute: AtomicBool,
    /// Happens just before the second command leaves.
    pub before_second: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

#[async_trait]
impl Peers for TestPeers {
    async fn send(&self, _: &str, _: Request<Body>, _: Instant) -> Result<Response<Body>, SendError> {
        Err(SendError { failure: Failure::DialFailed, cause: "not here".into() })
    }

    async fn send_relay(&self, address: &str, request: Request<Body>) -> Result<Response<Body>, SendError> {
        let path = request.uri().path().to_owned();
        self.sent.fetch_add(1, Ordering::SeqCst);
        if path.ends_with("/RunCommand") {
            let before = self.runs.fetch_add(1, Ordering::SeqCst);
            if before == 1
                && let Some(happens) = self.before_second.lock().take()
            {
                happens();
            }
        }
        if path.ends_with("/SignSpokeCsr") {
            self.signs.fetch_add(1, Ordering::SeqCst);
        }
        if self.cut.load(Ordering::SeqCst)
            || self.mute.load(Ordering::SeqCst) && path.ends_with("/AnnounceSpokes")
        {
            return Err(SendError { failure: Failure::DialFailed, cause: "the wire is cut".into() });
        }
        let request = request.map(|body| body.map_err(BodyError::new).boxed_unsync());
        let sent = self.pool.send(address, ALPN, request).await;
        sent.map(|response| response.map(body::boxed)).map_err(|error| SendError {
            failure: if error.did_not_start() { Failure::DialFailed } else { Failure::Broken },
            cause: error.to_string(),
        })
    }

    fn close(&self, _: &str) {}

    async fn shutdown(&self) {}
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn authority(port: u16) -> CaRecord {
    let now = crate::wall::now_unix();
    let (cert, key) = ca::authority(now).unwrap();
    let (ca_cert_pem, ca_key_pem) = (cert.pem(), key.pem());
    let issuer = Issuer::from_ca_cert_der(cert.der(), key).unwrap();
    let hosts: BTreeSet<_> = (1..=9).map(|n| format!("127.0.0.{n}")).collect();
    let (hub, hub_key) = ca::hub(&issuer, &hosts, now, now + 86_400).unwrap();
    CaRecord {
        ca_cert_pem,
        ca_key_pem,
        hub_cert_pem: hub.pem(),
        hub_key_pem: hub_key.pem(),
        hub_endpoint: format!("127.0.0.1:{port}"),
        hub_dns_sans: Vec::new(),
        hub_ip_sans: Vec::new(),
        member_hosts: Vec::new(),
        created_unix: now,
    }
}

impl World {
    /// Nodes of which the first is active in term 1.
    pub async fn new(count: usize) -> Self {
        Self::with(count, |settings| settings).await
    }

    pub async fn with(count: usize, settings: impl Fn(RelaySettings) -> RelaySettings) -> Self {
        let port = free_port();
        let storage = Storage::new(MemoryStore::new(), Barrier::opened(Keyring::generate().unwrap()));
        let identity = ClusterIdentity::generate().unwrap();
        let mut nodes = Vec::new();
        for i in 0..count {
            let tasks = Tasks::new("node");
            let door = Arc::new(Door::default());
            let mut cluster_port =
                ClusterPort::bind(&format!("127.0.0.{}:0", i + 1), identity.clone()).await.unwrap();
            let address = cluster_port.local_addr().to_string();
            cluster_port.register(ALPN, door.clone());
            cluster_port.serve(&tasks).unwrap();
            let cluster = FakeCluster::active(&format!("n{i}"), Term::new(1));
            let bind = format!("127.0.0.{}", i + 1);
            let relay = settings(RelaySettings {
                bind,
                announce_interval: Span::from_secs(60),
                ..RelaySettings::default()
            });
            let hub = hub_node(storage.clone(), cluster.clone(), relay, &address);
            let peers = Arc::new(TestPeers {
                pool: PeerPool::new(identity.clone(), &tasks),
                sent: AtomicUsize::new(0),
                runs: AtomicUsize::new(0),
                signs: AtomicUsize::new(0),
                cut: AtomicBool::new(false),
                mute: AtomicBool::new(false),
                before_second: Mutex::default(),
            });
            nodes.push((Node { hub, cluster, peers, address, tasks }, door));
        }
        let ca = authority(port);
        let mut world = Self { nodes: Vec::new(), port, identity, ca };
        let (all, doors): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        world.nodes = all;
        world.lead(Some(0), 1);
        for (node, door) in world.nodes.iter().zip(doors) {
            start::start(&node.hub, node.peers.clone(), &door, &node.tasks);
        }
        let data = Data::new(json!({"type": "relay"}).as_object().cloned().unwrap());
        enable(&world.cx(), Family::Secret, "relay", &data).await.unwrap();
        storage.put(CA, &world.ca).await.unwrap();
        for i in 0..count {
            world.until(|w| w.nodes[i].hub.relay.listener.port() == Some(port)).await;
        }
        world
    }

    /// A context for work on the first node.
    pub fn cx(&self) -> Cx {
        let term = self.nodes[0].cluster_term();
        self.nodes[0].hub.cx(term, Instant::now() + SOON, tokio_util::sync::CancellationToken::new())
    }

    /// Has a node lead, or none.
    pub fn lead(&self, leader: Option<usize>, term: u64) {
        let term = Term::new(term);
        let members: Vec<_> = self.nodes.iter().enumerate().map(|(i, node)| node.member(i, leader)).collect();
        for (i, node) in self.nodes.iter().enumerate() {
            node.cluster.set_members(members.clone());
            node.cluster.change(|view| {
                view.active = (leader == Some(i)).then_some(term);
                view.leader = leader.and_then(|leader| {
                    let member = members.get(leader)?;
                    Some(Leader { node: member.node.clone(), address: member.address.clone(), term })
                });
            });
        }
    }

    /// Credentials for a spoke.
    pub fn credentials(&self, name: &str) -> Credentials {
        use rustls_pki_types::pem::PemObject as _;
        let key = KeyPair::generate().unwrap();
        let ca_der =
            rustls_pki_types::CertificateDer::from_pem_slice(self.ca.ca_cert_pem.as_bytes()).unwrap();
        let ca_key = ca::Key::from_pem(&self.ca.ca_key_pem).unwrap();
        let issuer = Issuer::from_ca_cert_der(&ca_der, ca_key).unwrap();
        let now = crate::wall::now_unix();
        let public = rcgen::SubjectPublicKeyInfo::from_der(&key.subject_public_key_info()).unwrap();
        let cert = ca::spoke(&issuer, &name.parse().unwrap(), &public, now, 3600, now + 86_400).unwrap();
        let cert = rustls_pki_types::CertificateDer::from_pem_slice(cert.pem.as_bytes()).unwrap();
        Credentials { ca: ca_der, cert, key: key.serialize_der() }
    }

    /// Connects a spoke to a node.
    pub async fn spoke(&self, name: &str, node: usize, epoch: u64, boot: u8) -> TestSpoke {
        let credentials = self.credentials(name);
        TestSpoke::connect(&credentials, node, self.port, epoch, boot).await.unwrap()
    }

    /// Waits for something.
    pub async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < SOON, "it never came true");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the first node has a way to a spoke.
    pub async fn routable(&self, name: &str) {
        use holdfast_core::ownership::Lookup;
        let spoke = SpokeName::parse(name).unwrap();
        self.until(|w| matches!(w.nodes[0].hub.spokes.lookup(&spoke), Lookup::Local(_) | Lookup::Remote(..)))
            .await;
    }
}

impl Node {
    fn cluster_term(&self) -> Term {
        crate::cluster::Cluster::view(&*self.cluster).active.unwrap_or_default()
    }

    fn member(&self, i: usize, leader: Option<usize>) -> Member {
        Member {
            node: NodeName(format!("n{i}")),
            address: NodeAddress { cluster: self.address.clone(), api: String::new() },
            voter: true,
            leader: leader == Some(i),
            reachable: true,
            last_echo_ms: Some(0),
            version: String::new(),
        }
    }
}
