//! Calls from this node to the relays of the others, on the cluster port.
//!
//! What must hold: every call has a deadline; a call that provably was not sent is told apart from one that broke.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_core::SpokeName;
use holdfast_core::Term;
use holdfast_core::ownership::announcer::Outcome;
use holdfast_core::ownership::registry::Event;
use holdfast_core::ownership::{NodeName, Seq, SpokeSet, Superseded};
use holdfast_dbdriver::IdempotencyKey;
use holdfast_net::serve::Body;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::relay_peers_client::RelayPeersClient;
use http::{Request, Response, Uri};
use http_body_util::BodyExt as _;
use prost::Message as _;
use tokio::time::{Instant, timeout};
use tonic::Status;
use tower_service::Service;

use super::active::{self, Asked};
use super::convert::{self, Sender};
use super::failure::CommandFailure;
use super::renew;
use super::settings::{MAX_FRAME, PEER_CALL};
use super::spokes::Spokes;
use super::stream::{Answer, Order};
use crate::node::backend::{Peers, SendError};

/// The ALPN name of the relay on the cluster port.
pub const ALPN: &str = "holdfast-relay/1";
/// How long telling a node of streams that have to end may take.
const END_CALL: Duration = Duration::from_secs(5);
/// How long a node may take over its set: the priming waits no longer, and a command less.
const PULL_CALL: Duration = Duration::from_secs(1);

/// The relays of the other nodes.
#[derive(Clone)]
pub struct Calls {
    peers: Arc<dyn Peers>,
    origin: Uri,
}

/// Carries the calls of a generated client to one node.
#[derive(Clone)]
struct Channel {
    peers: Arc<dyn Peers>,
    address: Arc<str>,
}

impl Service<Request<tonic::body::Body>> for Channel {
    type Response = Response<Body>;
    type Error = SendError;
    type Future = BoxFuture<'static, Result<Response<Body>, SendError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let Self { peers, address } = self.clone();
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        Box::pin(async move { peers.send_relay(&address, request).await })
    }
}

impl Calls {
    /// Over the connections to the peers.
    pub fn new(peers: Arc<dyn Peers>) -> Self {
        Self { peers, origin: Uri::from_static("https://cluster.holdfast.internal") }
    }

    fn client(&self, address: &str) -> RelayPeersClient<Channel> {
        let channel = Channel { peers: Arc::clone(&self.peers), address: Arc::from(address) };
        RelayPeersClient::with_origin(channel, self.origin.clone())
            .max_decoding_message_size(MAX_FRAME)
            .max_encoding_message_size(MAX_FRAME)
    }

    /// Tells a node of the own streams.
    pub async fn announce(&self, spokes: &Spokes, to: &NodeName, address: &str, set: SpokeSet) -> Outcome {
        let set = wire_set(spokes, set);
        spokes.metrics.announce_bytes.inc_by(u64::try_from(set.encoded_len()).unwrap_or(0));
        let sent = timeout(PEER_CALL, async { self.client(address).announce_spokes(set).await }).await;
        let reply = match sent {
            Ok(Ok(reply)) => reply.into_inner(),
            Ok(Err(status)) => {
                tracing::debug!(peer = %to, cause = %chain(&status), "announcing the spokes failed");
                return Outcome::Failed;
            }
            Err(_) => return Outcome::Failed,
        };
        match reply.error {
            Some(error) => refused(spokes, error),
            None => {
                let term = Term::new(reply.term);
                match convert::superseded_from_wire(reply.superseded) {
                    Ok(lost) if !lost.is_empty() => spokes.told(term, lost),
                    Ok(_) => {}
                    Err(error) => tracing::warn!(peer = %to, %error, "an answer cannot be read"),
                }
                spokes.note_cluster(to, &reply.relay_endpoint, reply.relay_endpoints);
                Outcome::Taken(Seq::new(reply.newest_seq))
            }
        }
    }

    /// Asks a node for its set; none when there is no answer in time.
    pub async fn pull(
        &self,
        spokes: &Spokes,
        node: &NodeName,
        address: &str,
        term: Term,
    ) -> Option<SpokeSet> {
        let request = proto::PullRequest { term: term.into_inner() };
        let pulled = timeout(PULL_CALL, async { self.client(address).pull_spokes(request).await }).await;
        let reached = match &pulled {
            Ok(Ok(_)) => Some(true),
            Ok(Err(status)) => was_not_sent(status).then_some(false),
            Err(_) => None,
        };
        if let Some(reached) = reached {
            spokes.tell_registry(Event::Reached(node.clone(), reached));
        }
        let Some(proto::pull_reply::Outcome::Set(set)) = pulled.ok()?.ok()?.into_inner().outcome else {
            return None;
        };
        spokes.note(node, &set.relay_endpoint, &set.listener_error);
        convert::set_from_wire(set).ok()
    }

    /// Has a node end streams.
    ///
    /// # Errors
    /// When it did not say that it did.
    pub async fn end_streams(&self, address: &str, term: Term, lost: &[Superseded]) -> Result<(), Status> {
        let superseded = lost.iter().map(convert::superseded_to_wire).collect();
        let request = proto::EndStreamsRequest { term: term.into_inner(), superseded };
        let ended = timeout(END_CALL, async { self.client(address).end_streams(request).await }).await;
        match ended.map_err(|_| Status::deadline_exceeded("no answer in time"))??.into_inner().error {
            Some(_) => Err(Status::failed_precondition("the node left the streams alone")),
            None => Ok(()),
        }
    }

    /// Has the owner of a spoke's stream run a command. Dropping the future cancels it there.
    pub async fn run(
        &self,
        address: &str,
        term: Term,
        spoke: &SpokeName,
        order: Order,
        deadline: Instant,
    ) -> Answer {
        let left = deadline.saturating_duration_since(Instant::now());
        let request = proto::RunCommandRequest {
            term: term.into_inner(),
            spoke_name: spoke.to_string(),
            method: order.method.into(),
            payload: order.payload,
            deadline_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            idempotency_key: order
                .key
                .map(|k| bytes::Bytes::copy_from_slice(k.as_bytes()))
                .unwrap_or_default(),
        };
        let mut client = self.client(address);
        let sent = tokio::time::timeout_at(deadline, client.run_command(request)).await;
        let reply = match sent {
            Err(_) => return Err(CommandFailure::Deadline { sent: true }),
            Ok(Ok(reply)) => reply.into_inner(),
            Ok(Err(status)) => {
                let (address, cause) = (address.to_owned(), chain(&status));
                return Err(if was_not_sent(&status) {
                    CommandFailure::CannotReach { address, cause }
                } else {
                    CommandFailure::Broken { address, cause }
                });
            }
        };
        match reply.outcome {
            Some(proto::run_command_reply::Outcome::Output(output)) => Ok(output),
            Some(proto::run_command_reply::Outcome::Error(error)) => Err(error.into()),
            None => Err(proto::CommandError::default().into()),
        }
    }

    /// Has a node that should be active sign a renewal.
    pub async fn sign(
        &self,
        address: &str,
        request: proto::SignRequest,
    ) -> Asked<Result<proto::SignedCertificate, String>> {
        let signed = timeout(PEER_CALL, async { self.client(address).sign_spoke_csr(request).await }).await;
        let reply = match signed {
            Ok(Ok(reply)) => reply.into_inner(),
            Ok(Err(status)) => {
                tracing::warn!(peer = address, cause = %chain(&status), "forwarding a renewal failed");
                let why = "the active node cannot be reached";
                // It signed nothing if it saw nothing.
                return if was_not_sent(&status) {
                    Asked::Elsewhere(why)
                } else {
                    Asked::Answered(Err(why.to_owned()))
                };
            }
            Err(_) => return Asked::Answered(Err("the active node did not answer in time".to_owned())),
        };
        match reply.outcome {
            Some(proto::sign_reply::Outcome::Signed(signed)) => renew::judge(Ok(signed)),
            Some(proto::sign_reply::Outcome::Error(error)) => renew::judge(Err(error)),
            None => Asked::Answered(Err("the active node gave no answer".to_owned())),
        }
    }

    /// Tells a node that should be active of a user that was made for nobody. Being told twice does no harm.
    pub async fn late_user(&self, address: &str, term: Term, key: IdempotencyKey) -> Asked<()> {
        let idempotency_key = bytes::Bytes::copy_from_slice(key.as_bytes());
        let request = proto::LateUserRequest { term: term.into_inner(), idempotency_key };
        match self.client(address).late_user(request).await.map(tonic::Response::into_inner) {
            Ok(proto::LateUserReply { error: None }) => Asked::Answered(()),
            Ok(_) => Asked::Elsewhere(active::NOBODY),
            Err(_) => Asked::Elsewhere("the active node cannot be reached"),
        }
    }

    /// The cluster-wide view of the active node, as JSON.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn list(&self, address: &str, term: Term) -> Result<bytes::Bytes, String> {
        let request = proto::ListRequest { term: term.into_inner() };
        let listed = timeout(PEER_CALL, async { self.client(address).list_spokes(request).await }).await;
        let reply = match listed {
            Ok(Ok(reply)) => reply.into_inner(),
            Ok(Err(status)) => return Err(chain(&status)),
            Err(_) => return Err("no answer in time".into()),
        };
        match reply.outcome {
            Some(proto::list_reply::Outcome::Data(data)) => Ok(data),
            _ => Err("the node is not active".into()),
        }
    }
}

/// The own set as it is sent.
pub fn wire_set(spokes: &Spokes, set: SpokeSet) -> proto::SpokeSet {
    let listener_error = spokes.listener_error(&spokes.own);
    let sender = Sender {
        address: &spokes.address,
        boot: &spokes.boot,
        endpoint: spokes.settings.advertise.as_deref().unwrap_or_default(),
        listener_error: &listener_error,
    };
    convert::set_to_wire(set, &sender)
}

/// Why a set was not taken.
fn refused(spokes: &Spokes, error: proto::CommandError) -> Outcome {
    match error.kind {
        Some(proto::command_error::Kind::NotActive(proto::NotActive { leader })) => {
            Outcome::NotActive(spokes.node_at(&leader))
        }
        Some(proto::command_error::Kind::StaleTerm(stale)) => Outcome::StaleTerm(Term::new(stale.term)),
        _ => Outcome::Failed,
    }
}

/// Whether the node provably saw nothing of the call.
fn was_not_sent(status: &Status) -> bool {
    let mut next = std::error::Error::source(status);
    while let Some(source) = next {
        if let Some(error) = source.downcast_ref::<SendError>() {
            return error.failure.did_not_start();
        }
        next = source.source();
    }
    false
}

/// What went wrong, for people.
fn chain(status: &Status) -> String {
    let mut next = std::error::Error::source(status);
    while let Some(source) = next {
        if let Some(error) = source.downcast_ref::<SendError>() {
            return error.cause.clone();
        }
        next = source.source();
    }
    status.message().to_owned()
}
