//! Signing certificates of spokes, on the active node alone, and recording each one before it leaves.

use holdfast_core::SpokeName;
use serde_json::{Map, json};

use super::authority::Authority;
use super::ca::{self, DAY, SpokeCertificate};
use super::identity::Identity;
use super::{csr, not_initialised};
use crate::audit::AuditEntry;
use crate::cluster::NodeName;
use crate::error::ApiError;
use crate::logical::{Cx, Data, Operation, Request};
use crate::wall;

/// How long a certificate lives when nothing else is asked for, in seconds.
const LIFE: i64 = 30 * DAY;
/// How long it lives at most.
const LONGEST_LIFE: i64 = 90 * DAY;
/// Names in the entry that are no secrets.
const CLEAR: &[&str] = &["spoke_name", "serial", "not_after", "node_id", "reason"];

/// A certificate for a spoke, with the authority that signed it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Signed {
    /// The certificate, PEM.
    pub cert_pem: String,
    /// The authority, PEM.
    pub ca_cert_pem: String,
    /// The serial number in hexadecimal.
    pub serial: String,
    /// When it ends, in seconds since 1970.
    pub not_after: i64,
}

/// Why a certificate is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reason {
    /// A spoke joins with a token.
    Enrol,
    /// A connected spoke renews.
    Renew,
}

impl Authority {
    /// Signs a renewal for a spoke that is connected to `asked_by`. The certificate is for `ttl` seconds: 30 days
    /// for 0, 90 days at most.
    ///
    /// # Errors
    /// 400 for a bad request or a negative `ttl`, 403 for a denied name, 503 when this node is not active.
    pub async fn sign_renewal(
        &self,
        cx: &Cx,
        spoke: &SpokeName,
        csr_pem: &str,
        ttl: i64,
        asked_by: &NodeName,
    ) -> Result<Signed, ApiError> {
        if ttl < 0 {
            return Err(ApiError::invalid("ttl must not be negative"));
        }
        let identity = self.current().ok_or_else(not_initialised)?;
        check_active(cx)?;
        if self.is_denied(spoke) {
            return Err(denied(spoke));
        }
        let signed = make(&identity, spoke, csr_pem, ttl)?;
        record(cx, spoke, &signed, asked_by, Reason::Renew).await?;
        Ok(signed)
    }
}

/// 403: the name was denied by an operator.
pub(super) fn denied(spoke: &SpokeName) -> ApiError {
    ApiError::new(holdfast_core::Kind::Denied, format!("spoke {:?} is denied", spoke.as_str()))
}

/// Makes a certificate; a `ttl` that is not positive is the usual life.
pub(super) fn make(
    identity: &Identity,
    spoke: &SpokeName,
    csr_pem: &str,
    ttl: i64,
) -> Result<Signed, ApiError> {
    let key = csr::check(csr_pem, spoke).map_err(|error| ApiError::invalid(error.to_string()))?;
    let life = if ttl <= 0 { LIFE } else { ttl.min(LONGEST_LIFE) };
    let now = wall::now_unix();
    let made = ca::spoke(identity.issuer(), spoke, &key, now, life, identity.ca_not_after);
    let SpokeCertificate { pem, serial, not_after } = made.map_err(ApiError::internal)?;
    Ok(Signed { cert_pem: pem, ca_cert_pem: identity.ca_pem.clone(), serial, not_after })
}

/// Records what was signed. With an error the certificate must not leave.
pub(super) async fn record(
    cx: &Cx,
    spoke: &SpokeName,
    signed: &Signed,
    asked_by: &NodeName,
    reason: Reason,
) -> Result<(), ApiError> {
    let reason_name = match reason {
        Reason::Enrol => "enrol",
        Reason::Renew => "renew",
    };
    let fields = [
        ("spoke_name", json!(spoke.as_str())),
        ("serial", json!(signed.serial)),
        ("not_after", json!(signed.not_after)),
        ("node_id", json!(asked_by.0)),
        ("reason", json!(reason_name)),
    ];
    let data = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>();
    let request = entry(cx, Data::new(data));
    let entry = AuditEntry {
        request: &request,
        token: None,
        mount_type: super::KIND,
        clear: CLEAR,
        response: None,
        error: None,
        relay: None,
    };
    cx.hub.audit.request(&entry).await?;
    // Leadership may have gone while the device was written: what a former leader signed must not leave.
    check_active(cx)?;
    tracing::info!(%spoke, serial = signed.serial, not_after = signed.not_after, asked_by = %asked_by,
        reason = reason_name, "certificate signed");
    Ok(())
}

/// Whether this node leads in the term of the work, with a fresh acknowledgement of a quorum.
fn check_active(cx: &Cx) -> Result<(), ApiError> {
    if cx.hub.cluster.view().active == Some(cx.term) { Ok(()) } else { Err(ApiError::no_leader()) }
}

fn entry(cx: &Cx, data: Data) -> Request {
    let mount = cx.hub.relay.authority.mount().map(|mount| mount.path).unwrap_or_default();
    Request {
        id: uuid::Uuid::new_v4().to_string(),
        operation: Operation::Write,
        path: format!("{mount}certificates"),
        rest: "certificates".to_owned(),
        mount,
        data,
        query: Vec::new(),
        client_token: None,
        token: None,
        wrap_ttl: None,
        upload: None,
        remote: std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        deadline: cx.deadline,
        cancel: cx.cancel.clone(),
    }
}
