//! Renewals of spokes' certificates: signed by the active node alone, answered on the stream that asked.
//!
//! What must hold: the spoke that is signed for is the one of the stream's own certificate.

use std::sync::Arc;

use holdfast_core::Kind;
use holdfast_core::SpokeName;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::command_error::Kind as Wire;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

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
    term: holdfast_core::Term,
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
    let view = hub.cluster.view();
    let leader = view.leader.as_ref();
    let term = view.active.or_else(|| leader.map(|leader| leader.term));
    let request = proto::SignRequest {
        term: term.unwrap_or_default().into_inner(),
        spoke_name: spoke.to_string(),
        csr_pem,
        ttl_seconds,
        node_id: spokes.own.to_string(),
    };
    if view.active.is_some() {
        return sign_here(hub, &request).await.map_err(|error| match error.kind {
            Some(Wire::Invalid(text) | Wire::Denied(text)) => text.text,
            _ => "there is no active node now".to_owned(),
        });
    }
    let leader = leader.filter(|leader| leader.node != *hub.cluster.node());
    let leader = leader.ok_or("there is no active node now")?;
    let calls = spokes.calls().ok_or("this node is alone")?;
    calls.sign(&leader.address.cluster, request).await
}
