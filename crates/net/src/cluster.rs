//! The cluster port: how the nodes of one cluster talk to each other.
//!
//! What must hold: both sides of every connection prove that they hold the cluster's one identity, over TLS 1.3;
//! the protocol is picked by ALPN before a byte of it is read; and there is one multiplexed connection per peer
//! and protocol, closed on a transport error or when its user says that the peer no longer leads.

mod identity;
mod pool;
mod port;
mod tls;

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};

pub use identity::{ClusterIdentity, IdentityError};
pub use pool::{PeerConnection, PeerError, PeerPool};
pub use port::{ClusterPort, PeerService, PortError};

/// Any cause of a failed body.
#[derive(Debug, thiserror::Error)]
#[error("a body between peers failed")]
pub struct BodyError(#[source] Box<dyn StdError + Send + Sync>);

impl BodyError {
    /// Wraps the cause.
    pub fn new(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

/// A request's or response's body between peers.
pub type PeerBody = UnsyncBoxBody<Bytes, BodyError>;

/// How often an open connection is probed, and how long an answer may take: a peer that vanished without a word
/// is noticed within twice this.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How long dialling, and the handshake on either side, may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A body that is already whole.
pub fn full(bytes: impl Into<Bytes>) -> PeerBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests;
