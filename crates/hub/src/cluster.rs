//! What the rest of the hub knows of the cluster: who leads, who belongs to it, and how to change that.
//!
//! Health, leader answers, labels and the write gate all come from [`Cluster::view`]; nothing else may claim to
//! be active.

use std::path::Path;

use async_trait::async_trait;
use holdfast_core::{Kind, Term};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// The name of a node: 1-128 of `[A-Za-z0-9._-]`.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct NodeName(pub String);

impl std::fmt::Display for NodeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a node is reached.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NodeAddress {
    /// `host:port` of its cluster port.
    pub cluster: String,
    /// URL of its API, as advertised.
    pub api: String,
}

/// The active node as this node knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Leader {
    /// Its name.
    pub node: NodeName,
    /// Where it is reached; the API address may be empty until its first ping.
    pub address: NodeAddress,
    /// The term in which it leads.
    pub term: Term,
}

/// One consistent view of leadership.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct View {
    /// The term in which this node is active: leader, gate open, freshly acknowledged by a quorum.
    pub active: Option<Term>,
    /// Since when, as seconds of the Unix epoch, for display.
    pub active_since: Option<i64>,
    /// The leader, this node or another; none when this node knows of none or is cut off.
    pub leader: Option<Leader>,
    /// Whether the local disk takes writes.
    pub storage_healthy: bool,
    /// Whether this node was removed from the cluster.
    pub removed: bool,
    /// The newest committed index known here.
    pub committed_index: u64,
    /// The newest index applied here.
    pub applied_index: u64,
}

/// A member of the cluster.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Member {
    /// Its name.
    pub node: NodeName,
    /// Where it is reached.
    pub address: NodeAddress,
    /// Whether it votes.
    pub voter: bool,
    /// Whether it leads.
    pub leader: bool,
    /// Whether this node reached it lately.
    pub reachable: bool,
    /// Milliseconds since its last answer, when there was one.
    pub last_echo_ms: Option<u64>,
    /// Its version, when known.
    pub version: String,
}

/// Why a change to the cluster failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// This node does not lead.
    #[error("this node is not the leader")]
    NotLeader,
    /// Another membership change is under way.
    #[error("another membership change is under way")]
    Busy,
    /// There is no such member.
    #[error("no member {0:?}")]
    UnknownMember(String),
    /// The change makes no sense, for the reason given.
    #[error("{0}")]
    Invalid(String),
    /// It did not finish in time.
    #[error("the change did not finish in time")]
    Timeout,
    /// The file is damaged or of another cluster.
    #[error("{0}")]
    Image(String),
    /// Something else failed.
    #[error("changing the cluster failed")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ClusterError {
    /// The class of the failure.
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotLeader => Kind::NotLeader,
            Self::Busy => Kind::Conflict,
            Self::UnknownMember(_) | Self::Invalid(_) | Self::Image(_) => Kind::Invalid,
            Self::Timeout => Kind::Timeout,
            Self::Internal(_) => Kind::Internal,
        }
    }
}

/// The running consensus of an unsealed node.
#[async_trait]
pub trait Cluster: Send + Sync + 'static {
    /// The view now, judged at the moment of the call: an acknowledgement that grew too old shows at once.
    fn view(&self) -> View;

    /// Changes of the view.
    fn watch(&self) -> watch::Receiver<View>;

    /// The name of this node.
    fn node(&self) -> &NodeName;

    /// All members with what this node's pings know of them.
    fn members(&self) -> Vec<Member>;

    /// The log index of the membership in force.
    fn membership_index(&self) -> u64;

    /// Hands leadership over; returns once this node is no longer active, within 2 s.
    async fn step_down(&self) -> Result<(), ClusterError>;

    /// Adds a node as a learner that becomes a voter when it has caught up, unless it is to stay a learner; the
    /// same name with a new address replaces the address.
    async fn add(&self, node: NodeName, address: NodeAddress, non_voter: bool) -> Result<(), ClusterError>;

    /// Removes a node; removing the leader hands over first.
    async fn remove(&self, node: &NodeName) -> Result<(), ClusterError>;

    /// Makes a learner a voter.
    async fn promote(&self, node: &NodeName) -> Result<(), ClusterError>;

    /// Makes a voter a learner.
    async fn demote(&self, node: &NodeName) -> Result<(), ClusterError>;

    /// Writes an image of the applied state to a new file at `path`; returns its last index and term.
    async fn save_image(&self, path: &Path) -> Result<(u64, u64), ClusterError>;

    /// Replaces the state of the whole cluster by the image at `path`, on all nodes.
    async fn restore_image(&self, path: &Path) -> Result<(), ClusterError>;

    /// Bytes on disk of the log and the state.
    fn store_bytes(&self) -> u64;

    /// Stops taking part; the last call before the node seals or exits.
    async fn shutdown(&self);
}
