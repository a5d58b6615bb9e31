//! The two paths that need no token of the hub: how a spoke learns whom to trust, and gets its certificate.
//!
//! What must hold: a caller without a good bootstrap token gets one answer for every reason, after the same work,
//! and learns nothing of what it sent beside the token; a use is counted only once the certificate it is for has been
//! recorded.

use holdfast_core::SpokeName;
use holdfast_net::enrol::BootstrapToken;
use serde_json::{Map, json};

use super::bootstrap::{Found, Usage, refused};
use super::metrics::{SignOutcome, Signing};
use super::not_initialised;
use super::record::{CA, DENIED};
use super::sign::{self, Reason, Signed};
use crate::error::ApiError;
use crate::logical::{Cx, Operation, Request, Response};
use crate::mount::MountEntry;

/// How often a use is counted anew when the authority, the denied names or the token changed meanwhile.
const ATTEMPTS: usize = 8;
/// A token that is of no use, for what is not even of the form of one.
const NOBODY: &str = "000000.0000000000000000";

/// Whether the path is one of the two.
pub fn is_open(operation: Operation, rest: &str) -> bool {
    matches!((operation, rest), (Operation::Read, "cluster-info") | (Operation::Write, "sign-csr"))
}

/// `cluster-info`: the hub's description, signed with the token.
pub fn cluster_info(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    let id = request.data.string("token_id").ok().flatten().unwrap_or_default();
    let found = Found::look_up(&cx.storage, &id)?;
    let identity = cx.hub.relay.authority.current();
    let described = identity.as_ref().map_or_else(String::new, |identity| {
        json!({ "ca_cert_pem": identity.ca_pem, "hub_endpoint": identity.endpoint_text }).to_string()
    });
    let signature = found.sign(&described);
    if !found.allows(Usage::Signing) {
        return Err(refused());
    }
    identity.ok_or_else(not_initialised)?;
    let data = json!({ "payload": described, "signature": signature });
    Ok(Response::data(data.as_object().cloned().unwrap_or_default()))
}

/// `sign-csr`: a certificate for whoever has the token.
pub async fn sign_csr(cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
    let enrolled = enrol(cx, mount, request).await;
    let outcome = SignOutcome::of(&enrolled);
    cx.hub.spokes.metrics.enrol.get_or_create(&Signing { outcome }).inc();
    let signed = enrolled?;
    let fields = [("cert_pem", json!(signed.cert_pem)), ("ca_cert_pem", json!(signed.ca_cert_pem))];
    Ok(Response::data(
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>(),
    ))
}

async fn enrol(cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Signed, ApiError> {
    let missing = "token, spoke_name, csr_pem are all required";
    let text = |name: &str| request.data.required(name, missing);
    let (token, name, csr) = (text("token")?, text("spoke_name")?, text("csr_pem")?);
    let parsed = BootstrapToken::parse(&token).or_else(|_| BootstrapToken::parse(NOBODY));
    let token = parsed.map_err(|_| refused())?;
    // Whoever has no good token is told at once, and holds nobody up.
    good(cx, &token, &name)?;
    let busy = || ApiError::unavailable("the token is being used by many at once; try again");
    let enrolments = cx.hub.relay.enrolments.lock();
    let _one = tokio::time::timeout_at(cx.deadline, enrolments).await.map_err(|_| busy())?;
    for _ in 0..ATTEMPTS {
        if let Some(signed) = try_enrol(cx, mount, request, (&token, &name, &csr)).await? {
            return Ok(signed);
        }
    }
    Err(busy())
}

/// The token as it is stored, if it may be used now for a certificate in this name.
fn good(cx: &Cx, token: &BootstrapToken, name: &str) -> Result<Found, ApiError> {
    let found = Found::look_up(&cx.storage, token.id())?;
    let good = found.allows(Usage::Authentication) & found.proves(token.secret(), name);
    if good { Ok(found) } else { Err(refused()) }
}

/// None when the token, the authority or the list of denied names changed meanwhile.
async fn try_enrol(
    cx: &Cx,
    mount: &MountEntry,
    request: &Request,
    (token, name, csr): (&BootstrapToken, &str, &str),
) -> Result<Option<Signed>, ApiError> {
    let found = good(cx, token, name)?;
    let spoke: SpokeName = name.parse().map_err(|error| ApiError::invalid(format!("{error}")))?;
    let authority = &cx.hub.relay.authority;
    if authority.is_denied(&spoke) {
        return Err(sign::denied(&spoke));
    }
    let version = cx.storage.get::<super::record::CaRecord>(CA)?.ok_or_else(not_initialised)?.version;
    let identity = authority.current().ok_or_else(not_initialised)?;
    let ttl = request.data.seconds("ttl")?.unwrap_or(0);
    let signed = sign::make(&identity, &spoke, csr, ttl)?;
    sign::record(cx, &spoke, &signed, cx.hub.cluster.node(), Reason::Enrol).await?;
    let mut txn = cx.storage.txn();
    mount.require_mounted(&mut txn);
    txn.require_version(CA, version);
    txn.require_absent(&format!("{DENIED}{spoke}"));
    found.count_use(&mut txn)?;
    match txn.commit().await {
        Ok(_) => Ok(Some(signed)),
        // What was signed never leaves.
        Err(error) if error.is_conflict() && !crate::mount::is_gone(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
