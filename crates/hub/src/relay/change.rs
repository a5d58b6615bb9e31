//! Changes of the authority and of the hub's certificate.
//!
//! What must hold: changes follow one another; a record is saved only if it can be opened, and only after the port
//! that it names was bound.

use holdfast_net::enrol::BootstrapToken;
use rcgen::Issuer;
use secrecy::SecretString;

use super::bootstrap::TokenRecord;
use super::hosts::{self, Extra};
use super::identity::{Endpoint, Identity};
use super::record::{CA, CaRecord, PLACEHOLDER};
use super::{ca, not_initialised};
use crate::error::ApiError;
use crate::logical::{Cx, Request};
use crate::mount::MountEntry;
use crate::storage::Stored;
use crate::wall;

/// What a rotation replaced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rotated {
    /// The hub's certificate.
    Hub,
    /// The authority too.
    All,
}

/// Makes the authority; in place of one that is there only with `force`.
pub async fn init(cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Identity, ApiError> {
    let endpoint = hosts::endpoint(&request.data)?;
    let extra = Extra::parse(&request.data, None)?;
    let force = request.data.bool("force")?.unwrap_or(false);
    let relay = &cx.hub.relay;
    let _one = relay.changes.lock().await;
    let former = cx.storage.get::<CaRecord>(CA)?;
    if former.is_some() && !force {
        return Err(ApiError::invalid("CA already initialized; pass force=true to regenerate"));
    }
    let bound = relay
        .listener
        .bind(endpoint.port)
        .map_err(|error| ApiError::invalid(format!("start relay listener: {error}")))?;
    let text = request.data.string("hub_endpoint")?.unwrap_or_default();
    let record = fresh(cx, &endpoint, text, extra)?;
    let identity = save(cx, mount, former.map(|stored| stored.version), &record).await?;
    relay.listener.adopt(bound);
    tracing::info!(endpoint = %record.hub_endpoint, ca = %identity.ca_hash, "relay authority made");
    Ok(identity)
}

/// Changes where spokes dial; authority and port stay.
pub async fn update_endpoint(cx: &Cx, mount: &MountEntry, request: &Request) -> Result<(), ApiError> {
    let endpoint = hosts::endpoint(&request.data)?;
    let _one = cx.hub.relay.changes.lock().await;
    let (stored, identity) = held(cx)?;
    if endpoint.port != identity.port() {
        return Err(ApiError::invalid(format!("the port of hub_endpoint must stay {}", identity.port())));
    }
    let extra = Extra::parse(&request.data, Some(&stored.value))?;
    let text = request.data.string("hub_endpoint")?.unwrap_or_default();
    let moved = CaRecord { hub_endpoint: text, ..stored.value };
    let record = reissued(cx, moved, &identity, extra)?;
    save(cx, mount, Some(stored.version), &record).await?;
    tracing::info!(endpoint = %record.hub_endpoint, "relay endpoint changed");
    Ok(())
}

/// Replaces the hub's certificate, and with `full` the authority too.
pub async fn rotate(cx: &Cx, mount: &MountEntry, request: &Request) -> Result<(Rotated, Identity), ApiError> {
    let full = request.data.bool("full")?.unwrap_or(false);
    let _one = cx.hub.relay.changes.lock().await;
    let (stored, identity) = held(cx)?;
    let extra = Extra::parse(&request.data, Some(&stored.value))?;
    let record = if full {
        fresh(cx, &identity.endpoint, stored.value.hub_endpoint, extra)?
    } else {
        reissued(cx, stored.value, &identity, extra)?
    };
    let identity = save(cx, mount, Some(stored.version), &record).await?;
    let rotated = if full { Rotated::All } else { Rotated::Hub };
    tracing::info!(full, ca = %identity.ca_hash, "relay certificates rotated");
    Ok((rotated, identity))
}

/// Gives the hub a new certificate under the same authority when the one it has is no longer right.
///
/// With `removals` a host that no member has any more is a reason too.
pub async fn reissue_if_needed(cx: &Cx, removals: bool) -> Result<bool, ApiError> {
    let relay = &cx.hub.relay;
    let due = |identity: &Identity| is_due(cx, identity, removals, wall::now_unix());
    // The record with its keys is opened only for a change.
    let (Some(mount), Some(current)) = (relay.authority.mount(), relay.authority.current()) else {
        return Ok(false);
    };
    if !due(&current) {
        return Ok(false);
    }
    let _one = relay.changes.lock().await;
    let Ok((stored, identity)) = held(cx) else { return Ok(false) };
    // Somebody may have changed it just before.
    if !due(&identity) {
        return Ok(false);
    }
    let extra = Extra { dns: stored.value.hub_dns_sans.clone(), ip: stored.value.hub_ip_sans.clone() };
    let record = reissued(cx, stored.value, &identity, extra)?;
    let identity = save(cx, &mount, Some(stored.version), &record).await?;
    tracing::info!(until = identity.hub_not_after, "the hub's certificate for spokes was reissued");
    Ok(true)
}

/// Whether the hub's certificate is past half its life, or is not for the members there are.
pub(super) fn is_due(cx: &Cx, identity: &Identity, removals: bool, now: i64) -> bool {
    let half = identity.hub_not_before.midpoint(identity.hub_not_after);
    let wanted = members(cx);
    let missing = wanted.iter().any(|host| !identity.member_hosts.contains(host));
    let left = identity.member_hosts.iter().any(|host| !wanted.contains(host));
    now > half || missing || (removals && left)
}

fn members(cx: &Cx) -> std::collections::BTreeSet<String> {
    hosts::of_members(&cx.hub.cluster.members(), &cx.hub.relay.told_hosts())
}

/// The authority as it is stored, opened.
fn held(cx: &Cx) -> Result<(Stored<CaRecord>, Identity), ApiError> {
    let stored = cx.storage.get::<CaRecord>(CA)?.ok_or_else(not_initialised)?;
    let identity = Identity::open(&stored.value).map_err(ApiError::internal)?;
    Ok((stored, identity))
}

/// A new authority.
fn fresh(cx: &Cx, endpoint: &Endpoint, text: String, extra: Extra) -> Result<CaRecord, ApiError> {
    let now = wall::now_unix();
    let (cert, key) = ca::authority(now).map_err(ApiError::internal)?;
    let ca_key_pem = key.pem();
    let issuer = Issuer::from_ca_cert_der(cert.der(), key).map_err(ApiError::internal)?;
    let record = CaRecord {
        ca_cert_pem: cert.pem(),
        ca_key_pem,
        hub_cert_pem: String::new(),
        hub_key_pem: SecretString::default(),
        hub_endpoint: text,
        hub_dns_sans: Vec::new(),
        hub_ip_sans: Vec::new(),
        member_hosts: Vec::new(),
        created_unix: now,
    };
    with_hub(cx, record, &issuer, endpoint, extra, i64::MAX)
}

/// The same authority with a new certificate for the hub, at the record's endpoint.
fn reissued(cx: &Cx, record: CaRecord, identity: &Identity, extra: Extra) -> Result<CaRecord, ApiError> {
    let endpoint = Endpoint::parse(&record.hub_endpoint).map_err(ApiError::internal)?;
    with_hub(cx, record, identity.issuer(), &endpoint, extra, identity.ca_not_after)
}

fn with_hub(
    cx: &Cx,
    record: CaRecord,
    issuer: &ca::Authority,
    endpoint: &Endpoint,
    extra: Extra,
    until: i64,
) -> Result<CaRecord, ApiError> {
    let members = members(cx);
    let hosts = hosts::all(endpoint, &extra, &members);
    let (cert, key) = ca::hub(issuer, &hosts, wall::now_unix(), until).map_err(ApiError::internal)?;
    Ok(CaRecord {
        hub_cert_pem: cert.pem(),
        hub_key_pem: key.pem(),
        hub_dns_sans: extra.dns,
        hub_ip_sans: extra.ip,
        member_hosts: members.into_iter().collect(),
        ..record
    })
}

/// Saves a record that can be opened, in place of the version it was made from.
async fn save(
    cx: &Cx,
    mount: &MountEntry,
    former: Option<u64>,
    record: &CaRecord,
) -> Result<Identity, ApiError> {
    let identity = Identity::open(record).map_err(ApiError::internal)?;
    let mut txn = cx.storage.txn();
    mount.require_mounted(&mut txn);
    match former {
        Some(version) => txn.require_version(CA, version),
        None => txn.require_absent(CA),
    }
    txn.put(CA, record)?;
    txn.put(PLACEHOLDER, &TokenRecord::placeholder(&BootstrapToken::random()))?;
    txn.commit().await?;
    Ok(identity)
}
