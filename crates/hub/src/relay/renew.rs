//! Renewals of spokes' certificates: signed by the active node alone, answered on the stream that asked.
//!
//! What must hold: the spoke that is signed for is the one of the stream's own certificate; a node that is not active
//! any more is not the end of a renewal while another one is or becomes it.

use std::sync::Arc;

use holdfast_core::{Kind, SpokeName, Term};
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::command_error::Kind as Wire;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::active::{self, Asked, Place};
use super::failure::CommandFailure;
use super::metrics::{SignOutcome, Signing};
use super::settings::PEER_CALL;
use crate::cluster::NodeName;
use crate::error::ApiError;
use crate::hub::Hub;

/// Signs here; this node has to be active.
///
/// # Errors
/// As the node that asked is told.
pub async fn sign_here(
    hub: &Arc<Hub>,
    request: &proto::SignRequest,
) -> Result<proto::SignedCertificate, proto::CommandError> {
    let wire = |kind| proto::CommandError { kind: Some(kind) };
    let Some(term) = hub.cluster.view().active else {
        return Err(wire(Wire::NotActive(proto::NotActive { leader: hub.spokes.leader_address() })));
    };
    let signed = sign_as(hub, term, request).await;
    let outcome = SignOutcome::of(&signed);
    hub.spokes.metrics.sign.get_or_create(&Signing { outcome }).inc();
    signed.map_err(|error| {
        let text = proto::Text { text: error.to_string() };
        match error.kind() {
            Kind::Denied => wire(Wire::Denied(text)),
            Kind::NotLeader | Kind::Unavailable | Kind::Timeout => {
                wire(Wire::NotActive(proto::NotActive::default()))
            }
            _ => wire(Wire::Invalid(text)),
        }
    })
}

async fn sign_as(
    hub: &Arc<Hub>,
    term: Term,
    request: &proto::SignRequest,
) -> Result<proto::SignedCertificate, ApiError> {
    let spoke = request.spoke_name.parse().map_err(|_| ApiError::invalid("invalid spoke name"))?;
    let cx = hub.cx(term, Instant::now() + PEER_CALL, CancellationToken::new());
    let asked_by = NodeName(request.node_id.clone());
    let authority = &hub.relay.authority;
    let signed =
        authority.sign_renewal(&cx, &spoke, &request.csr_pem, request.ttl_seconds, &asked_by).await?;
    Ok(proto::SignedCertificate {
        cert_pem: signed.cert_pem,
        ca_cert_pem: signed.ca_cert_pem,
        not_after_unix: signed.not_after,
    })
}

/// Has a certificate signed for a spoke that is connected to this node: here, or by the active node.
///
/// # Errors
/// What the spoke is told.
pub async fn sign(
    hub: &Arc<Hub>,
    spoke: &SpokeName,
    csr_pem: String,
    ttl_seconds: i64,
) -> Result<proto::SignedCertificate, String> {
    let spokes = &hub.spokes;
    let request = proto::SignRequest {
        term: 0,
        spoke_name: spoke.to_string(),
        csr_pem,
        ttl_seconds,
        node_id: spokes.own.to_string(),
    };
    let sign = |place, term: Term| {
        let request = proto::SignRequest { term: term.into_inner(), ..request.clone() };
        async move {
            match (place, spokes.calls()) {
                (Place::Here, _) => judge(sign_here(hub, &request).await),
                (Place::There(address), Some(calls)) => calls.sign(&address, request).await,
                (Place::There(_), None) => Asked::Answered(Err("this node is alone".to_owned())),
            }
        }
    };
    active::ask(hub, Instant::now() + PEER_CALL, sign).await?
}

/// What an answer means to the spoke; none that the node which was asked could not give.
pub fn judge(
    answer: Result<proto::SignedCertificate, proto::CommandError>,
) -> Asked<Result<proto::SignedCertificate, String>> {
    match answer.map_err(CommandFailure::from) {
        Ok(signed) => Asked::Answered(Ok(signed)),
        Err(CommandFailure::Invalid(text) | CommandFailure::Denied(text)) => Asked::Answered(Err(text)),
        Err(CommandFailure::NotActive | CommandFailure::StaleTerm(_) | CommandFailure::Sealed) => {
            Asked::Elsewhere(active::NOBODY)
        }
        Err(_) => Asked::Answered(Err(active::NOBODY.to_owned())),
    }
}
