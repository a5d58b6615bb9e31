//! How the consensus library reaches the other members.

use std::sync::Arc;
use std::time::Duration;

use holdfast_net::cluster::PeerPool;
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::InstallSnapshotResponse;

use super::gate::Gate;
use super::rpc::{self, Append, Appended, AskVote, CallError, Method, Piece, SnapshotAnswer, To, Voted};
use super::types::{Peer, TypeConfig};

/// Pause before an unreachable member is tried again: shorter than an election, long enough not to spin.
const BACKOFF: Duration = Duration::from_millis(100);

type Failure<E = openraft::error::Infallible> = RPCError<u64, Peer, RaftError<u64, E>>;

/// Makes one link for each member.
#[derive(Clone)]
pub(super) struct Network {
    pub own: u64,
    pub pool: PeerPool,
    pub gate: Arc<Gate>,
}

/// The way to one member.
pub(super) struct Link {
    network: Network,
    to: To,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &Peer) -> Link {
        Link { network: self.clone(), to: To::new(target, node) }
    }
}

impl Link {
    async fn call<Q: serde::Serialize, A: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        message: &Q,
    ) -> Result<A, CallError> {
        let answer = rpc::call(&self.network.pool, self.network.own, &self.to, method, message).await;
        if let Err(error) = &answer {
            tracing::debug!(peer = %self.to.name, ?method, %error, "a message of consensus failed");
        }
        answer
    }
}

fn failure<E: std::error::Error>(error: &CallError) -> RPCError<u64, Peer, E> {
    match error {
        // The library tries again at once after a network error; only a broken connection deserves that.
        CallError::Peer(peer) if !peer.did_not_start() => RPCError::Network(NetworkError::new(error)),
        _ => RPCError::Unreachable(Unreachable::new(error)),
    }
}

impl RaftNetwork<TypeConfig> for Link {
    async fn append_entries(&mut self, message: Append, _option: RPCOption) -> Result<Appended, Failure> {
        let (sent, term) = (self.network.gate.now(), message.vote.leader_id.term);
        let answer: Appended = self.call(Method::Append, &message).await.map_err(|error| failure(&error))?;
        // A conflict is about the log; it too comes from a follower that takes us for its leader.
        if !matches!(answer, Appended::HigherVote(_)) {
            self.network.gate.acknowledged(self.to.id, term, sent);
        }
        Ok(answer)
    }

    async fn install_snapshot(
        &mut self,
        piece: Piece,
        _option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Failure<InstallSnapshotError>> {
        match self.call(Method::Snapshot, &piece).await.map_err(|error| failure(&error))? {
            SnapshotAnswer::Taken(answer) => Ok(answer),
            SnapshotAnswer::Mismatch(mismatch) => {
                let source = RaftError::APIError(InstallSnapshotError::SnapshotMismatch(mismatch));
                Err(RPCError::RemoteError(RemoteError::new(self.to.id, source)))
            }
        }
    }

    async fn vote(&mut self, message: AskVote, _option: RPCOption) -> Result<Voted, Failure> {
        self.call(Method::Vote, &message).await.map_err(|error| failure(&error))
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}
