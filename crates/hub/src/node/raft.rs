//! The backend of a real node: the raft store, and the cluster port with its connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use holdfast_core::Kind;
use holdfast_core::retry::Failure;
use holdfast_net::cluster::{
    BodyError, ClusterIdentity, ClusterPort, PeerBody, PeerError, PeerPool, PeerService,
};
use holdfast_net::serve::Body;
use holdfast_ops::Tasks;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use zeroize::{Zeroize, Zeroizing};

use super::backend::{Backend, BackendError, Forwarded, Opened, Opening, Peers, SendError};
use crate::api::{ALPN, body};
use crate::config::HubConfig;
use crate::metrics::Metrics;
use crate::relay::calls;
use crate::store::{self, OpenStore, RaftTiming, StoreObserver};

/// How long connections of the cluster port may go on once it closes.
const CLOSE: Duration = Duration::from_secs(2);

/// How long requests may still wait for a node that leads no longer: it answers them as a standby, or is gone.
const GRACE: Duration = Duration::from_secs(1);

/// Opens raft stores.
pub struct RaftBackend {
    listen: String,
    timing: RaftTiming,
}

/// An identity as it is sealed.
#[derive(Deserialize, Serialize, Zeroize)]
struct Stored {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl RaftBackend {
    /// With the addresses and times of the configuration.
    pub fn new(config: &HubConfig) -> Self {
        let raft = &config.raft;
        let timing = RaftTiming {
            heartbeat_ms: raft.heartbeat_ms,
            election_min_ms: raft.election_min_ms,
            election_max_ms: raft.election_max_ms,
            compact_after: raft.compact_after,
            keep_entries: raft.keep_entries,
        };
        Self { listen: config.cluster.listen.clone(), timing }
    }
}

#[async_trait]
impl Backend for RaftBackend {
    fn new_identity(&self) -> Result<Zeroizing<Vec<u8>>, BackendError> {
        let made = ClusterIdentity::generate();
        let made =
            made.map_err(|e| BackendError::new(Kind::Internal, "making the cluster identity failed", e))?;
        let mut stored = Stored { cert: made.cert_der().to_vec(), key: made.key_der().to_vec() };
        let bytes = postcard::to_stdvec(&stored).map(Zeroizing::new);
        stored.zeroize();
        bytes.map_err(|e| BackendError::new(Kind::Internal, "keeping the cluster identity failed", e))
    }

    async fn open(&self, opening: Opening) -> Result<Opened, BackendError> {
        let stored: Stored = postcard::from_bytes(&opening.identity)
            .map_err(|e| BackendError::new(Kind::Corrupt, "the cluster identity cannot be read", e))?;
        let identity = ClusterIdentity::from_der(stored.cert, stored.key);
        let port_failed = |e| BackendError::new(Kind::Unavailable, "the cluster port cannot be opened", e);
        // The port first: what cannot be bound is found out before anything is written.
        let mut port = ClusterPort::bind(&self.listen, identity.clone()).await.map_err(port_failed)?;
        let pool = PeerPool::new(identity, &opening.tasks.child("peers"));
        let store = store::open(OpenStore {
            data_dir: opening.data_dir,
            node: opening.node,
            address: opening.address,
            pool: pool.clone(),
            timing: self.timing,
            observer: Arc::new(Observer(opening.metrics)),
            tasks: opening.tasks.clone(),
        });
        let store =
            store.await.map_err(|e| BackendError::new(Kind::Unavailable, "the store cannot be opened", e))?;
        port.register(store::RAFT_ALPN, store.service());
        port.register(ALPN, Arc::new(ForwardService(opening.forwarded)));
        port.register(calls::ALPN, opening.relay);
        let port_tasks = opening.tasks.child("cluster-port");
        port.serve(&port_tasks).map_err(port_failed)?;
        if opening.found {
            let done = store.initialize().await;
            done.map_err(|e| BackendError::new(Kind::Internal, "starting the cluster failed", e))?;
        }
        let peers = Arc::new(RaftPeers { pool, port: port_tasks });
        Ok(Opened { store: Arc::new(store.clone()), cluster: Arc::new(store), peers })
    }
}

/// Counts what the store does.
struct Observer(Metrics);

impl StoreObserver for Observer {
    fn committed(&self, took: Duration) {
        self.0.commit_seconds.observe(took.as_secs_f64());
    }

    fn gate_opened(&self, _term: holdfast_core::Term, after: Duration) {
        self.0.gate_open_seconds.observe(after.as_secs_f64());
    }

    fn elected(&self, _term: holdfast_core::Term) {
        self.0.elections.inc();
    }
}

/// The pool and the port of an unsealed node.
struct RaftPeers {
    pool: PeerPool,
    port: Tasks,
}

#[async_trait]
impl Peers for RaftPeers {
    async fn send(
        &self,
        address: &str,
        request: Request<Body>,
        deadline: Instant,
    ) -> Result<Response<Body>, SendError> {
        let request = request.map(|body| body.map_err(BodyError::new).boxed_unsync());
        let sent = tokio::time::timeout_at(deadline, self.pool.send(address, ALPN, request)).await;
        match sent {
            Ok(Ok(response)) => Ok(response.map(body::boxed)),
            Ok(Err(error)) => Err(SendError { failure: failure(&error), cause: chain(&error) }),
            Err(_) => {
                Err(SendError { failure: Failure::TimedOut, cause: "no answer by the deadline".into() })
            }
        }
    }

    async fn send_relay(&self, address: &str, request: Request<Body>) -> Result<Response<Body>, SendError> {
        let request = request.map(|body| body.map_err(BodyError::new).boxed_unsync());
        let sent = self.pool.send(address, calls::ALPN, request).await;
        sent.map(|response| response.map(body::boxed))
            .map_err(|error| SendError { failure: failure(&error), cause: chain(&error) })
    }

    fn close(&self, address: &str) {
        self.pool.retire(address, ALPN, GRACE);
    }

    async fn shutdown(&self) {
        if let Err(error) = self.port.stop(CLOSE).await {
            tracing::debug!(%error, "connections of the cluster port were cut");
        }
    }
}

const fn failure(error: &PeerError) -> Failure {
    match error {
        PeerError::Dial { .. } => Failure::DialFailed,
        PeerError::NotSent { .. } => Failure::StreamRefused,
        _ => Failure::Broken,
    }
}

/// An error with its causes, for the log.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

/// The API on the cluster port.
struct ForwardService(Arc<dyn Forwarded>);

impl PeerService for ForwardService {
    fn call(
        self: Arc<Self>,
        _peer: SocketAddr,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<PeerBody>> {
        Box::pin(async move {
            let response = self.0.answer(request.map(body::boxed)).await;
            response.map(|body| body.map_err(BodyError::new).boxed_unsync())
        })
    }
}
