//! How the consensus library reaches the other members.

use std::sync::Arc;
use std::time::Duration;

use holdfast_net::cluster::PeerPool;
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::InstallSnapshotResponse;

use super::gate::Gate;
use super::peers::Peers;
use super::rpc::{self, Append, Appended, AskVote, CallError, Method, Piece, SnapshotAnswer, To, Voted};
use super::types::{LogId, Peer, TypeConfig};

/// Pause before an unreachable member is tried again: shorter than an election, long enough not to spin.
const BACKOFF: Duration = Duration::from_millis(100);

type Failure<E = openraft::error::Infallible> = RPCError<u64, Peer, RaftError<u64, E>>;

/// Makes one link for each member.
#[derive(Clone)]
pub(super) struct Network {
    pub own: u64,
    pub pool: PeerPool,
    pub gate: Arc<Gate>,
    pub peers: Arc<Peers>,
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

impl Link {
    async fn append(&self, message: &Append) -> Result<Appended, Failure> {
        let (sent, term) = (self.network.gate.now(), message.vote.leader_id.term);
        let answer: Appended = self.call(Method::Append, message).await.map_err(|error| failure(&error))?;
        // A conflict is about the log; it too comes from a follower that takes us for its leader.
        if !matches!(answer, Appended::HigherVote(_)) {
            self.network.gate.acknowledged(self.to.id, term, sent);
        }
        Ok(answer)
    }
}

/// The question whether a member has the entries of a message, in their place, when it said that its log reaches as far.
///
/// A new leader looks for the place where a follower's log ends by halves, and each look carries entries: hundreds
/// that the follower has, many times over, before it gets the one that opens the gate. An append without entries says
/// as much when the last of them is what it comes after. A follower that has another one there refuses it, as it
/// would have replaced it.
fn whether_held(message: &Append, held: Option<LogId>) -> Option<Append> {
    let last = message.entries.last()?.log_id;
    (held?.index >= last.index).then(|| Append {
        vote: message.vote,
        prev_log_id: Some(last),
        entries: Vec::new(),
        leader_commit: message.leader_commit,
    })
}

impl RaftNetwork<TypeConfig> for Link {
    async fn append_entries(&mut self, message: Append, _option: RPCOption) -> Result<Appended, Failure> {
        if let Some(question) = whether_held(&message, self.network.peers.last(self.to.id)) {
            match self.append(&question).await? {
                Appended::Conflict => {}
                answer => return Ok(answer),
            }
        }
        self.append(&message).await
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

#[cfg(test)]
mod tests {
    use openraft::{CommittedLeaderId, EntryPayload, Vote};

    use super::super::types::Entry;
    use super::*;

    fn at(term: u64, index: u64) -> LogId {
        LogId::new(CommittedLeaderId::new(term, 0), index)
    }

    fn message(indices: std::ops::Range<u64>) -> Append {
        let entry = |index| Entry { log_id: at(3, index), payload: EntryPayload::Blank };
        Append {
            vote: Vote::new_committed(4, 1),
            prev_log_id: Some(at(3, indices.start - 1)),
            entries: indices.map(entry).collect(),
            leader_commit: Some(at(3, 9)),
        }
    }

    #[test]
    fn entries_that_a_member_may_have_are_asked_for_before_they_are_sent() {
        let question = whether_held(&message(5..8), Some(at(3, 7))).unwrap();
        assert_eq!((question.prev_log_id, question.entries.len()), (Some(at(3, 7)), 0));
        assert_eq!((question.vote, question.leader_commit), (Vote::new_committed(4, 1), Some(at(3, 9))));
        assert!(
            whether_held(&message(5..8), Some(at(2, 9))).is_some(),
            "it may have others there: it will say"
        );
        for held in [None, Some(at(3, 6))] {
            assert!(whether_held(&message(5..8), held).is_none(), "{held:?}");
        }
        assert!(whether_held(&message(5..5), Some(at(3, 7))).is_none(), "a heartbeat asks nothing");
    }
}
