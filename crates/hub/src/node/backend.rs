//! What a node needs of consensus and of its peers, so that everything above can be tested without sockets.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use holdfast_core::Kind;
use holdfast_core::retry::Failure;
use holdfast_net::serve::Body;
use holdfast_ops::Tasks;
use http::{Request, Response};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::cluster::{Cluster, NodeAddress, NodeName};
use crate::metrics::Metrics;
use crate::relay::peers::Door;
use crate::store::Store;

/// Why the store or the cluster port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct BackendError {
    /// What a person should read.
    pub text: String,
    /// The class of the failure.
    pub kind: Kind,
    /// Why.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl BackendError {
    /// A failure with its cause.
    pub fn new(
        kind: Kind,
        text: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { text: text.into(), kind, source: Some(source.into()) }
    }
}

/// What to open.
pub struct Opening {
    /// The data directory; the store's files lie in `raft/` below it.
    pub data_dir: PathBuf,
    /// The name of this node.
    pub node: NodeName,
    /// Where it is reached.
    pub address: NodeAddress,
    /// The cluster's identity, as [`Backend::new_identity`] made it.
    pub identity: Zeroizing<Vec<u8>>,
    /// Whether to start a new cluster with this node alone.
    pub found: bool,
    /// What answers requests that other nodes forward.
    pub forwarded: Arc<dyn Forwarded>,
    /// What answers the relays of other nodes.
    pub relay: Arc<Door>,
    /// Where is counted what the store does.
    pub metrics: Metrics,
    /// The owner of everything that runs while the node is unsealed.
    pub tasks: Tasks,
}

/// What was opened.
pub struct Opened {
    /// The replicated store.
    pub store: Arc<dyn Store>,
    /// Leadership and membership.
    pub cluster: Arc<dyn Cluster>,
    /// The way to the other nodes.
    pub peers: Arc<dyn Peers>,
}

/// Answers a request that another node forwarded.
#[async_trait]
pub trait Forwarded: Send + Sync + 'static {
    /// Answers; never forwards again.
    async fn answer(&self, request: Request<Body>) -> Response<Body>;
}

/// A forwarded request got no answer.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct SendError {
    /// Where it failed, which decides whether it may be sent again.
    pub failure: Failure,
    /// Why, for the log.
    pub cause: String,
}

/// The way to the other nodes.
#[async_trait]
pub trait Peers: Send + Sync + 'static {
    /// Sends a request to the node whose cluster port is `address`; returns once the head of the answer is there.
    async fn send(
        &self,
        address: &str,
        request: Request<Body>,
        deadline: Instant,
    ) -> Result<Response<Body>, SendError>;

    /// Sends a call to the relay of the node whose cluster port is `address`. The caller sets the deadline.
    async fn send_relay(&self, address: &str, request: Request<Body>) -> Result<Response<Body>, SendError>;

    /// Sends nothing more on the connections for forwarded requests to a node that leads no longer, and closes
    /// them: what is under way has a moment left to be answered.
    fn close(&self, address: &str);

    /// Closes the cluster port and every connection; what is under way may finish for a moment.
    async fn shutdown(&self);
}

/// Opens stores and makes identities.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// A fresh cluster identity, in a form that only the backend reads.
    fn new_identity(&self) -> Result<Zeroizing<Vec<u8>>, BackendError>;

    /// Opens the store and starts to take part in the cluster.
    async fn open(&self, opening: Opening) -> Result<Opened, BackendError>;
}
