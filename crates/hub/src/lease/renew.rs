//! Renewing a lease: the database's end of validity moves first, then the lease. A renewal that the database
//! refuses changes nothing.

use holdfast_core::Kind;
use holdfast_dbdriver::{Call, Change, UpdateUser};

use super::clock::Wall;
use super::id::LeaseId;
use super::mailbox::Mail;
use super::record::Lease;
use super::{Leases, index};
use crate::auth::token::Token;
use crate::database::creds::VALIDITY_MARGIN_SECS;
use crate::database::ttl::{self, Times};
use crate::database::{connection, role};
use crate::error::ApiError;
use crate::logical::Cx;
use crate::storage::Stored;

/// A renewed lease, with what its caller should know.
pub struct Renewed {
    /// The lease as it is now.
    pub lease: Lease,
    /// What was capped.
    pub warnings: Vec<String>,
}

impl Leases {
    /// Renews a lease for `increment` seconds from now; 0 for as long as its role says.
    pub async fn renew(&self, cx: &Cx, id: &LeaseId, increment: u64) -> Result<Renewed, ApiError> {
        let _held = tokio::select! {
            held = self.running.take(id) => held,
            () = tokio::time::sleep_until(cx.deadline) => return Err(ApiError::unavailable("the lease is busy")),
        };
        let before = index::read(&cx.storage, id)?.ok_or_else(|| ApiError::invalid("lease not found"))?;
        let now = Wall::now();
        if before.value.is_over(now) {
            return Err(ApiError::invalid("lease expired"));
        }
        if !before.value.renewable {
            return Err(ApiError::invalid("lease is not renewable"));
        }
        let times = times(cx, &before.value)?;
        let token = token_of(cx, &before.value)?;
        let wanted = if increment == 0 { times.default } else { increment };
        let limit = before.value.issued.after_secs(times.max);
        let limit = before.value.not_after.map_or(limit, |end| end.min(limit));
        let granted = ttl::grant(wanted, now, limit, token.as_ref());
        if granted.ttl == 0 {
            return Err(ApiError::invalid("past the max TTL, cannot renew"));
        }
        let mut lease = before.value.clone();
        lease.expires = now.after_secs(granted.ttl);
        lease.due = lease.expires;
        lease.renewed = Some(now);
        move_validity(cx, &before.value, &lease).await?;
        self.store_renewal(cx, &before, &lease).await?;
        self.tell(Mail::Renewed(lease.id.clone(), lease.due));
        Ok(Renewed { lease, warnings: granted.warnings })
    }

    async fn store_renewal(&self, cx: &Cx, before: &Stored<Lease>, lease: &Lease) -> Result<(), ApiError> {
        let mut txn = cx.storage.txn();
        index::replace(&mut txn, before, lease)?;
        match txn.commit().await {
            Ok(_) => Ok(()),
            // Someone asked for its revocation meanwhile.
            Err(error) if error.kind() == Kind::Conflict => Err(ApiError::invalid("lease expired")),
            Err(error) => Err(error.into()),
        }
    }
}

/// The times that hold now: the role's and mount's, or what the lease was made with when these are gone.
fn times(cx: &Cx, lease: &Lease) -> Result<Times, ApiError> {
    let of_lease = Times { default: lease.default_ttl, max: lease.max_ttl };
    let Some(mount) = cx.hub.mounts.get(&lease.mount)?.filter(|m| m.uuid == lease.login.mount_uuid) else {
        return Ok(of_lease);
    };
    let place = crate::database::Place::new(cx, &mount);
    let Some(role) = role::read(&place, &lease.login.role)? else { return Ok(of_lease) };
    Ok(Times::of(role.value.default_ttl, role.value.max_ttl, cx.hub.mounts.ttls(&mount)))
}

/// The token of a lease. Only a record can be read back: a batch token bounded the lease when it was made.
fn token_of(cx: &Cx, lease: &Lease) -> Result<Option<Token>, ApiError> {
    if lease.token.is_empty() {
        return Ok(None);
    }
    let found = cx.storage.get::<Token>(&crate::auth::token::keys::id(&lease.token))?;
    Ok(found.map(|token| token.value))
}

/// Moves the user's end of validity. It only ever moves out: a lease that is shortened is revoked at its end.
async fn move_validity(cx: &Cx, before: &Lease, after: &Lease) -> Result<(), ApiError> {
    let login = &after.login;
    let found = connection::by_queue(&cx.storage, &login.queue())?.ok_or_else(|| {
        ApiError::failed(format!("failed to find entry for connection with name: {:?}", login.config))
    })?;
    let instance = cx
        .hub
        .leases
        .databases()
        .instances
        .acquire(cx.term, &cx.hub.metrics, &found)
        .map_err(|error| crate::database::paths::driver_error(&error))?;
    let until = before.expires.max(after.expires).after_secs(VALIDITY_MARGIN_SECS);
    let update = UpdateUser {
        username: login.username.clone(),
        change: Change::Expiration(until.timestamp()),
        statements: login.renew_statements.clone(),
    };
    let deadline = cx.deadline.min(tokio::time::Instant::now() + instance.timeout);
    let call = Call::new(deadline, cx.cancel.child_token());
    let moved = instance.update_user(&call, &update).await;
    moved.map_err(|error| crate::database::paths::driver_error(&error))
}
