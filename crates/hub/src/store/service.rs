//! Answers the messages of other members' stores.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_core::Term;
use holdfast_net::cluster::{PeerBody, PeerService};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use openraft::error::{InstallSnapshotError, RaftError};
use serde::de::DeserializeOwned;

use super::core::Core;
use super::members;
use super::rpc::{
    self, Append, Appended, AskVote, Change, Envelope, Method, Piece, Pong, SnapshotAnswer, Status, Tolerant,
    refuse,
};
use super::types::Raft;

/// The store's side of the cluster port.
pub(super) struct RaftService {
    pub core: Arc<Core>,
}

impl PeerService for RaftService {
    fn call(
        self: Arc<Self>,
        _peer: SocketAddr,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<PeerBody>> {
        Box::pin(async move {
            let Some(method) = Method::parse(request.uri().path()) else {
                return refuse(StatusCode::NOT_FOUND, "no such message");
            };
            match rpc::read(request.into_body()).await {
                Ok(body) => self
                    .answer(method, &body)
                    .await
                    .unwrap_or_else(|Refusal(status, text)| refuse(status, text)),
                Err(error) => refuse(StatusCode::BAD_REQUEST, error),
            }
        })
    }
}

/// Why a message is not taken.
struct Refusal(StatusCode, String);

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self(status, text.into())
    }
}

type Answer = Result<Response<PeerBody>, Refusal>;

impl RaftService {
    async fn answer(&self, method: Method, body: &Bytes) -> Answer {
        match method {
            Method::Append => self.append(self.open(body, true).await?).await,
            Method::Vote => self.vote(self.open(body, false).await?).await,
            Method::Snapshot => self.piece(self.open(body, true).await?).await,
            Method::Ping => Ok(self.ping(&self.open(body, false).await?)),
            Method::Stand => self.stand(&self.open(body, false).await?),
            Method::Change => self.change(self.open(body, false).await?).await,
        }
    }

    /// Decodes a message and makes sure that it is for this node. A leader's message may give it its number.
    async fn open<T: DeserializeOwned>(
        &self,
        body: &Bytes,
        gives_number: bool,
    ) -> Result<Envelope<T>, Refusal> {
        let envelope: Envelope<T> = postcard::from_bytes(body)
            .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))?;
        let own = self.core.own();
        if own.is_none() && gives_number && envelope.name == self.core.name {
            self.core.start(envelope.to).await.map_err(|error| {
                tracing::error!(%error, "consensus cannot be started");
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
            })?;
        }
        if self.core.own() == Some(envelope.to) && envelope.name == self.core.name {
            return Ok(envelope);
        }
        Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, "this message is for another node"))
    }

    fn raft(&self) -> Result<&Raft, Refusal> {
        self.core.raft().ok_or_else(|| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "not a member yet"))
    }

    async fn append(&self, envelope: Envelope<Append>) -> Answer {
        let (vote, commit) = (envelope.message.vote, envelope.message.leader_commit);
        let answer = self.raft()?.append_entries(envelope.message).await.map_err(unavailable)?;
        if !matches!(answer, Appended::HigherVote(_)) {
            if let Some(leader) = vote.leader_id.voted_for {
                self.core.gate.hear(leader, vote.leader_id.term);
            }
            self.core.gate.committed(commit.map_or(0, |commit| commit.index));
        }
        Ok(rpc::answer(&answer))
    }

    async fn vote(&self, envelope: Envelope<AskVote>) -> Answer {
        if !self.core.gate.store_healthy() {
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the store does not take writes"));
        }
        if self.core.elector.may_have_forgotten(self.core.gate.now(), self.core.timing.lease()) {
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "this node has just been started"));
        }
        let answer = self.raft()?.vote(envelope.message).await.map_err(unavailable)?;
        if answer.vote_granted {
            self.core.elector.granted(self.core.gate.now());
        }
        Ok(rpc::answer(&answer))
    }

    async fn piece(&self, envelope: Envelope<Piece>) -> Answer {
        let vote = envelope.message.vote;
        match self.raft()?.install_snapshot(envelope.message).await {
            Ok(answer) => {
                if answer.vote <= vote
                    && let Some(leader) = vote.leader_id.voted_for
                {
                    self.core.gate.hear(leader, vote.leader_id.term);
                }
                Ok(rpc::answer(&SnapshotAnswer::Taken(answer)))
            }
            Err(RaftError::APIError(InstallSnapshotError::SnapshotMismatch(mismatch))) => {
                Ok(rpc::answer(&SnapshotAnswer::Mismatch(mismatch)))
            }
            Err(error) => Err(unavailable(error)),
        }
    }

    fn ping(&self, envelope: &Envelope<Tolerant<Status>>) -> Response<PeerBody> {
        let membership = self.core.gate.membership();
        let (from, Tolerant(status)) = (envelope.from, &envelope.message);
        let peer = membership.membership().get_node(&from);
        if peer.is_some_and(|peer| peer.name == status.name) {
            self.core.peers.says(from, self.core.gate.now(), &status.address);
        }
        rpc::answer(&Tolerant(Pong { status: self.core.status(), member: peer.is_some() }))
    }

    fn stand(&self, envelope: &Envelope<u64>) -> Answer {
        let term = envelope.message;
        let newest = self.raft()?.server_metrics().borrow().vote.leader_id.term;
        if newest > term {
            return Err(Refusal::new(StatusCode::CONFLICT, "there is a newer term"));
        }
        self.core.elector.stand(self.core.gate.now(), Term::new(term));
        Ok(rpc::answer(&()))
    }

    async fn change(&self, envelope: Envelope<Change>) -> Answer {
        let changed = match envelope.message {
            Change::Remove(name) => members::remove(&self.core, &name).await,
            Change::Demote(name) => members::demote(&self.core, &name).await,
        };
        changed.map_err(|error| Refusal::new(StatusCode::CONFLICT, error.to_string()))?;
        Ok(rpc::answer(&()))
    }
}

fn unavailable(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}
