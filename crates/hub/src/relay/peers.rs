//! What the relays of other nodes ask this one, on the cluster port.
//!
//! What must hold: a command that was forwarded is run here or not at all; checks come in the order sealed, term,
//! stream, commands under way, deadline, queue; a node that is not unsealed answers `sealed` to everything.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_core::Term;
use holdfast_core::ownership::NodeName;
use holdfast_core::ownership::registry::Reply;
use holdfast_dbdriver::IdempotencyKey;
use holdfast_net::cluster::{BodyError, PeerBody, PeerService};
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::command_error::Kind;
use holdfast_proto::relay::v1::relay_peers_server::{RelayPeers, RelayPeersServer};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::Status;
use tower_service::Service as _;

use super::calls::wire_set;
use super::convert;
use super::failure::CommandFailure;
use super::forward;
use super::late;
use super::renew;
use super::settings::MAX_FRAME;
use super::stream::Order;
use super::views;
use crate::hub::Hub;

/// The longest that a forwarded command may take, whatever its sender says.
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// The relay's side of the cluster port, which is there before the services behind it are.
#[derive(Default)]
pub struct Door(OnceLock<RelayPeersServer<Answers>>);

impl Door {
    /// Lets calls in.
    pub fn open(&self, hub: Arc<Hub>) {
        let server = RelayPeersServer::new(Answers(Some(hub)));
        drop(self.0.set(limited(server)));
    }
}

fn limited(server: RelayPeersServer<Answers>) -> RelayPeersServer<Answers> {
    server.max_decoding_message_size(MAX_FRAME).max_encoding_message_size(MAX_FRAME)
}

impl PeerService for Door {
    fn call(
        self: Arc<Self>,
        _peer: SocketAddr,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<PeerBody>> {
        let mut server =
            self.0.get().cloned().unwrap_or_else(|| limited(RelayPeersServer::new(Answers(None))));
        Box::pin(async move {
            let Ok(response) = server.call(request).await;
            response.map(|body| body.map_err(BodyError::new).boxed_unsync())
        })
    }
}

/// The answers of an unsealed node, or of one that is not.
pub struct Answers(Option<Arc<Hub>>);

type Reply1<T> = Result<tonic::Response<T>, Status>;

fn error(kind: Kind) -> proto::CommandError {
    proto::CommandError { kind: Some(kind) }
}

fn sealed() -> proto::CommandError {
    error(Kind::Sealed(proto::Empty {}))
}

fn stale(seen: Term) -> proto::CommandError {
    error(Kind::StaleTerm(proto::StaleTerm { term: seen.into_inner() }))
}

fn malformed(what: convert::Malformed) -> proto::CommandError {
    error(Kind::Invalid(proto::Text { text: what.to_string() }))
}

fn not_active(hub: &Hub) -> proto::CommandError {
    error(Kind::NotActive(proto::NotActive { leader: hub.spokes.leader_address() }))
}

impl Answers {
    async fn announce(&self, set: proto::SpokeSet) -> proto::AnnounceReply {
        let failed = |error| proto::AnnounceReply { error: Some(error), ..proto::AnnounceReply::default() };
        let Some(hub) = &self.0 else { return failed(sealed()) };
        let spokes = &hub.spokes;
        spokes.look();
        let (node, endpoint) = (NodeName::new(&set.node_id), set.relay_endpoint.clone());
        let listener_error = set.listener_error.clone();
        let set = match convert::set_from_wire(set) {
            Ok(set) => set,
            Err(what) => return failed(malformed(what)),
        };
        match spokes.announced(set).await {
            Some(Reply::Taken { superseded, newest }) => {
                spokes.note(&node, &endpoint, &listener_error);
                proto::AnnounceReply {
                    term: spokes.with_registry(|registry, _| registry.seen_term()).into_inner(),
                    superseded: superseded.iter().map(convert::superseded_to_wire).collect(),
                    error: None,
                    newest_seq: newest.into_inner(),
                    relay_endpoint: spokes.settings.advertise.clone().unwrap_or_default(),
                    relay_endpoints: spokes.endpoints(),
                }
            }
            Some(Reply::StaleTerm(seen)) => failed(stale(seen)),
            Some(Reply::NotActive) | None => failed(not_active(hub)),
        }
    }

    fn pull(&self, term: Term) -> proto::pull_reply::Outcome {
        use proto::pull_reply::Outcome;
        let Some(hub) = &self.0 else { return Outcome::Error(sealed()) };
        if let Err(seen) = hub.spokes.admit(term) {
            return Outcome::Error(stale(seen));
        }
        Outcome::Set(wire_set(&hub.spokes, hub.spokes.own_set(term)))
    }

    fn end(&self, request: proto::EndStreamsRequest) -> Option<proto::CommandError> {
        let Some(hub) = &self.0 else { return Some(sealed()) };
        let term = Term::new(request.term);
        if let Err(seen) = hub.spokes.admit(term) {
            return Some(stale(seen));
        }
        match convert::superseded_from_wire(request.superseded) {
            Ok(lost) => hub.spokes.told(term, lost),
            Err(what) => return Some(malformed(what)),
        }
        None
    }

    async fn run(&self, request: proto::RunCommandRequest) -> Result<Bytes, proto::CommandError> {
        let hub = self.0.as_ref().ok_or_else(sealed)?;
        hub.spokes.admit(Term::new(request.term)).map_err(stale)?;
        let spoke = convert::spoke(&request.spoke_name).map_err(malformed)?;
        let key = match <[u8; 16]>::try_from(&*request.idempotency_key) {
            Ok(bytes) => Some(IdempotencyKey::from_bytes(bytes)),
            Err(_) => None,
        };
        let left = Duration::from_millis(request.deadline_ms).min(LONGEST);
        let order = Order { method: request.method(), payload: request.payload, key };
        let answer = forward::run_here(&hub.spokes, &spoke, order, Instant::now() + left).await;
        answer.map_err(|failure: CommandFailure| failure.to_wire(&spoke, &hub.spokes.leader_address()))
    }

    async fn sign(
        &self,
        request: proto::SignRequest,
    ) -> Result<proto::SignedCertificate, proto::CommandError> {
        let hub = self.0.as_ref().ok_or_else(sealed)?;
        hub.spokes.admit(Term::new(request.term)).map_err(stale)?;
        convert::spoke(&request.spoke_name).map_err(malformed)?;
        renew::sign_here(hub, &request).await
    }

    /// Takes word of a user that was made for nobody.
    fn late(&self, request: &proto::LateUserRequest) -> Option<proto::CommandError> {
        let Some(hub) = &self.0 else { return Some(sealed()) };
        if let Err(seen) = hub.spokes.admit(Term::new(request.term)) {
            return Some(stale(seen));
        }
        if hub.cluster.view().active.is_none() {
            return Some(not_active(hub));
        }
        // Of a key that is none there is no user.
        if let Ok(key) = <[u8; 16]>::try_from(&*request.idempotency_key) {
            late::here(hub, IdempotencyKey::from_bytes(key));
        }
        None
    }

    fn list(&self) -> Result<Bytes, proto::CommandError> {
        let hub = self.0.as_ref().ok_or_else(sealed)?;
        hub.spokes.look();
        if hub.cluster.view().active.is_none() {
            return Err(not_active(hub));
        }
        Ok(serde_json::Value::Object(views::view(hub)).to_string().into())
    }
}

#[tonic::async_trait]
impl RelayPeers for Answers {
    async fn announce_spokes(
        &self,
        request: tonic::Request<proto::SpokeSet>,
    ) -> Reply1<proto::AnnounceReply> {
        Ok(tonic::Response::new(self.announce(request.into_inner()).await))
    }

    async fn pull_spokes(&self, request: tonic::Request<proto::PullRequest>) -> Reply1<proto::PullReply> {
        let outcome = Some(self.pull(Term::new(request.into_inner().term)));
        Ok(tonic::Response::new(proto::PullReply { outcome }))
    }

    async fn end_streams(
        &self,
        request: tonic::Request<proto::EndStreamsRequest>,
    ) -> Reply1<proto::EndStreamsReply> {
        Ok(tonic::Response::new(proto::EndStreamsReply { error: self.end(request.into_inner()) }))
    }

    async fn run_command(
        &self,
        request: tonic::Request<proto::RunCommandRequest>,
    ) -> Reply1<proto::RunCommandReply> {
        use proto::run_command_reply::Outcome;
        let outcome = Some(match self.run(request.into_inner()).await {
            Ok(output) => Outcome::Output(output),
            Err(error) => Outcome::Error(error),
        });
        Ok(tonic::Response::new(proto::RunCommandReply { outcome }))
    }

    async fn sign_spoke_csr(&self, request: tonic::Request<proto::SignRequest>) -> Reply1<proto::SignReply> {
        use proto::sign_reply::Outcome;
        let outcome = Some(match self.sign(request.into_inner()).await {
            Ok(signed) => Outcome::Signed(signed),
            Err(error) => Outcome::Error(error),
        });
        Ok(tonic::Response::new(proto::SignReply { outcome }))
    }

    async fn late_user(
        &self,
        request: tonic::Request<proto::LateUserRequest>,
    ) -> Reply1<proto::LateUserReply> {
        Ok(tonic::Response::new(proto::LateUserReply { error: self.late(request.get_ref()) }))
    }

    async fn list_spokes(&self, _request: tonic::Request<proto::ListRequest>) -> Reply1<proto::ListReply> {
        use proto::list_reply::Outcome;
        let outcome = Some(match self.list() {
            Ok(data) => Outcome::Data(data),
            Err(error) => Outcome::Error(error),
        });
        Ok(tonic::Response::new(proto::ListReply { outcome }))
    }
}
