//! One request to a peer's store and its answer: HTTP/2 POST on the cluster port, postcard inside.
//!
//! What must hold: a request names the member that it is for, by number and name, and whoever else gets it refuses.
//! Numbers are never given twice, so a node that was removed and came back is not mistaken for what it was.

use std::time::Duration;

use bytes::Bytes;
use holdfast_net::cluster::{PeerBody, PeerError, PeerPool, full};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use openraft::raft::InstallSnapshotResponse;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::types::{LogId, Peer, TypeConfig};
use crate::cluster::{NodeAddress, NodeName};

/// The protocol's name on the cluster port.
pub const RAFT_ALPN: &str = "holdfast-raft/1";
/// The largest message: a batch of the largest size with room for its neighbours.
const MAX_MESSAGE: usize = 32 << 20;

/// The messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Method {
    Append,
    Vote,
    Snapshot,
    Ping,
    Stand,
    Change,
}

impl Method {
    const ALL: [Self; 6] = [Self::Append, Self::Vote, Self::Snapshot, Self::Ping, Self::Stand, Self::Change];

    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Append => "/append",
            Self::Vote => "/vote",
            Self::Snapshot => "/snapshot",
            Self::Ping => "/ping",
            Self::Stand => "/stand",
            Self::Change => "/change",
        }
    }

    pub(super) fn parse(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.path() == path)
    }
}

/// Whom a message is for.
#[derive(Clone, Debug)]
pub(super) struct To {
    pub id: u64,
    pub name: NodeName,
    pub address: String,
}

impl To {
    pub(super) fn new(id: u64, peer: &Peer) -> Self {
        Self { id, name: peer.name.clone(), address: peer.address.cluster.clone() }
    }
}

/// What goes in front of every message.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Envelope<T> {
    /// The sender's number.
    pub from: u64,
    /// The receiver's number.
    pub to: u64,
    /// The receiver's name: a node that has no number yet takes the one that comes with its name.
    pub name: NodeName,
    /// The message.
    pub message: T,
}

/// The answer to a piece of a state image.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum SnapshotAnswer {
    Taken(InstallSnapshotResponse<u64>),
    Mismatch(openraft::error::SnapshotMismatch),
}

/// What one node tells another about itself, several times a second.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Status {
    pub id: u64,
    pub name: NodeName,
    pub address: NodeAddress,
    pub version: String,
    pub term: u64,
    pub last: Option<LogId>,
    /// The index of the membership in force there.
    pub membership: Option<u64>,
    /// The leader it knows at first hand, and how long ago it heard of it.
    pub leader: Option<(u64, u64)>,
    /// That leader's term.
    pub leader_term: u64,
    pub store_healthy: bool,
    /// Whether it has just voted, or just won: an election that is not through yet is left alone.
    pub electing: bool,
}

/// A message that grows: fields that a later version adds are skipped by an earlier one, and left at their default
/// when an earlier one sends it. Travels as JSON inside of the envelope, whose own form never changes.
#[derive(Clone, Debug)]
pub(super) struct Tolerant<T>(pub T);

impl<T: Serialize> Serialize for Tolerant<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json = serde_json::to_vec(&self.0).map_err(serde::ser::Error::custom)?;
        serializer.serialize_bytes(&json)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Tolerant<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = <&[u8]>::deserialize(deserializer)?;
        serde_json::from_slice(json).map(Self).map_err(serde::de::Error::custom)
    }
}

/// The answer to a [`Status`].
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Pong {
    pub status: Status,
    /// Whether the one who asked is a member, as far as this node knows.
    pub member: bool,
}

/// A change of membership, sent to the leader by a node that handed over.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Change {
    Remove(NodeName),
    Demote(NodeName),
}

/// Why a call got no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("the peer answered {0}: {1}")]
    Refused(StatusCode, String),
    #[error("the peer's answer cannot be read: {0}")]
    Answer(String),
    #[error("the peer did not answer in time")]
    Timeout,
}

/// Sends one message and reads its answer.
pub(super) async fn call<Q: Serialize, A: DeserializeOwned>(
    pool: &PeerPool,
    from: u64,
    to: &To,
    method: Method,
    message: &Q,
) -> Result<A, CallError> {
    let envelope = Envelope { from, to: to.id, name: to.name.clone(), message };
    let body = postcard::to_stdvec(&envelope).map_err(|error| CallError::Answer(error.to_string()))?;
    let request = Request::post(format!("http://peer{}", method.path()))
        .body(full(body))
        .map_err(|error| CallError::Answer(error.to_string()))?;
    let answer = pool.send(&to.address, RAFT_ALPN, request).await?;
    let status = answer.status();
    let body = read(answer.into_body()).await.map_err(CallError::Answer)?;
    if status != StatusCode::OK {
        return Err(CallError::Refused(status, String::from_utf8_lossy(&body).into_owned()));
    }
    postcard::from_bytes(&body).map_err(|error| CallError::Answer(error.to_string()))
}

/// As [`call`], within a deadline.
pub(super) async fn call_within<Q: Serialize, A: DeserializeOwned>(
    pool: &PeerPool,
    from: u64,
    to: &To,
    method: Method,
    message: &Q,
    deadline: Duration,
) -> Result<A, CallError> {
    tokio::time::timeout(deadline, call(pool, from, to, method, message))
        .await
        .unwrap_or(Err(CallError::Timeout))
}

pub(super) async fn read(body: Incoming) -> Result<Bytes, String> {
    let whole = Limited::new(body, MAX_MESSAGE).collect().await;
    whole.map(http_body_util::Collected::to_bytes).map_err(|error| error.to_string())
}

pub(super) fn answer<A: Serialize>(answer: &A) -> Response<PeerBody> {
    match postcard::to_stdvec(answer) {
        Ok(body) => Response::new(full(body)),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

pub(super) fn refuse(status: StatusCode, text: impl Into<String>) -> Response<PeerBody> {
    let mut response = Response::new(full(text.into()));
    *response.status_mut() = status;
    response
}

pub(super) type Append = openraft::raft::AppendEntriesRequest<TypeConfig>;
pub(super) type Appended = openraft::raft::AppendEntriesResponse<u64>;
pub(super) type AskVote = openraft::raft::VoteRequest<u64>;
pub(super) type Voted = openraft::raft::VoteResponse<u64>;
pub(super) type Piece = openraft::raft::InstallSnapshotRequest<TypeConfig>;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Old {
        id: u64,
    }

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct New {
        zone: String,
        id: u64,
        #[serde(default)]
        load: u32,
    }

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Newer {
        id: u64,
        #[serde(default)]
        load: u32,
    }

    #[test]
    fn a_message_may_grow_between_versions() {
        let new = Tolerant(New { zone: "a".into(), id: 7, load: 3 });
        let bytes = postcard::to_stdvec(&(1u8, &new, 2u8)).unwrap();
        let (_, read, last): (u8, Tolerant<Old>, u8) = postcard::from_bytes(&bytes).unwrap();
        assert_eq!((read.0, last), (Old { id: 7 }, 2));
        let bytes = postcard::to_stdvec(&Tolerant(Old { id: 8 })).unwrap();
        let read: Tolerant<Newer> = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(read.0, Newer { id: 8, load: 0 });
    }
}
