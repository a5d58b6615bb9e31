//! Ending leases before their time: by id, by token and by prefix, at once or through the queue.
//!
//! A lease is first marked as due, durably; whatever happens to this node then, it will be revoked. Who wants to
//! know the outcome asks the queue, which makes the attempt.

use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use holdfast_core::Kind;
use tokio::sync::oneshot;

use super::clock::Wall;
use super::id::LeaseId;
use super::mailbox::{Mail, Outcome};
use super::reach::{Database, Reach};
use super::record::{Lease, Queue};
use super::{Leases, index};
use crate::database::removal;
use crate::error::ApiError;
use crate::logical::Cx;
use crate::storage::{StorageError, Stored};

/// Leases that one batch marks.
const PAGE: usize = 250;
/// Leases whose outcome one caller waits for at once.
const WAITING: usize = 256;
/// How often a lease that changes under our hands is read again.
const TRIES: u32 = 8;

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

    /// Marks a lease as due and waits for the attempt to revoke it; none when there is no such lease.
    pub async fn revoke_and_wait(&self, cx: &Cx, id: &LeaseId) -> Result<Option<Outcome>, ApiError> {
        if !self.mark_due(cx, id).await? {
            return Ok(None);
        }
        Ok(Some(self.outcome(cx, id.clone()).await))
    }

    /// Revokes a lease at once; whatever comes of it, the lease is marked as due and the queue goes on with it.
    ///
    /// Used when the answer that would have carried the login could not be given.
    pub async fn revoke_now(&self, cx: &Cx, lease_id: &str) -> Result<(), ApiError> {
        match self.revoke_and_wait(cx, &LeaseId::from_client(lease_id)).await? {
            None | Some(Outcome::Gone) => Ok(()),
            Some(Outcome::NotTried(text)) => Err(ApiError::unavailable(text)),
            Some(Outcome::Failed(text)) => Err(ApiError::failed(text)),
        }
    }

    /// Marks all leases of a token as due and lets the queue do the rest.
    pub async fn revoke_by_token(&self, cx: &Cx, token_id: &str) -> Result<(), ApiError> {
        self.mark_below(cx, &index::token_prefix(token_id)).await.map(drop)
    }

    /// Marks all leases below a path as due. With `sync`, waits for one attempt on each, but no longer for those of a
    /// database that could not be reached, and returns how many are left.
    pub async fn revoke_prefix(&self, cx: &Cx, prefix: &str, sync: bool) -> Result<u64, ApiError> {
        Ok(self.revoke_below(cx, prefix, sync).await?.len() as u64)
    }

    /// As [`Self::revoke_prefix`], with the texts of the attempts that failed.
    pub async fn revoke_below(&self, cx: &Cx, prefix: &str, sync: bool) -> Result<Vec<String>, ApiError> {
        let leases = self.mark_below(cx, &format!("{}{prefix}", index::LEASES)).await?;
        if !sync {
            return Ok(Vec::new());
        }
        let reach = Reach::default();
        let asked = leases.into_iter().map(|(id, queue)| self.outcome_within(cx, id, reach.of(&queue)));
        let mut outcomes = stream::iter(asked).buffer_unordered(WAITING);
        let mut failed = Vec::new();
        while let Some(outcome) = outcomes.next().await {
            match outcome {
                Outcome::Gone => {}
                Outcome::NotTried(text) | Outcome::Failed(text) => failed.push(text),
            }
        }
        Ok(failed)
    }

    /// Removes all leases below a path, after one attempt on each, whatever came of it; without one where the database
    /// could not be reached before. What the databases still hold then is the caller's to remove.
    pub async fn revoke_force(&self, cx: &Cx, prefix: &str) -> Result<(), ApiError> {
        let leases = self.mark_below(cx, &format!("{}{prefix}", index::LEASES)).await?;
        let reach = Reach::default();
        let forced = leases.into_iter().map(|(id, queue)| self.force(cx, id, reach.of(&queue)));
        let mut dropped = stream::iter(forced).buffer_unordered(WAITING);
        let mut result = Ok(());
        while let Some(one) = dropped.next().await {
            result = result.and(one);
        }
        result
    }

    /// Asks the queue for an attempt and waits for its outcome, at most as long as the request may take.
    async fn outcome(&self, cx: &Cx, id: LeaseId) -> Outcome {
        let (answer, asked) = oneshot::channel();
        self.tell(Mail::Revoke(id, answer));
        tokio::select! {
            outcome = asked => outcome.unwrap_or_else(|_| Outcome::NotTried("the revocation is queued".into())),
            () = tokio::time::sleep_until(cx.deadline) => {
                Outcome::NotTried("the revocation did not end in time; it goes on".into())
            }
        }
    }

    /// As [`Self::outcome`], unless the database turns out to be out of reach meanwhile.
    async fn outcome_within(&self, cx: &Cx, id: LeaseId, database: Arc<Database>) -> Outcome {
        let outcome = tokio::select! {
            biased;
            () = database.out.cancelled() => return Outcome::NotTried(database.reason()),
            outcome = self.outcome(cx, id) => outcome,
        };
        if let Outcome::NotTried(reason) = &outcome {
            database.is_out(reason);
        }
        outcome
    }

    async fn force(&self, cx: &Cx, id: LeaseId, database: Arc<Database>) -> Result<(), ApiError> {
        // One direct attempt, beside the queue: a database that cannot be reached must not delay the others.
        let held = self.running.take(&id).await;
        if let Some(lease) = index::read(&cx.storage, &id)? {
            self.try_once(cx, &lease.value, &database).await;
        }
        for _ in 0..TRIES {
            let Some(lease) = index::read(&cx.storage, &id)? else { break };
            let mut txn = cx.storage.txn();
            index::remove(&mut txn, &lease);
            match txn.commit().await {
                Err(error) if error.is_conflict() => continue,
                done => done.map_err(ApiError::from)?,
            };
            self.collect(&cx.storage, &lease.value.login.queue()).await?;
            break;
        }
        drop(held);
        self.tell(Mail::Gone(id));
        Ok(())
    }

    /// Removes the user of a lease that is dropped whatever comes of it.
    async fn try_once(&self, cx: &Cx, lease: &Lease, database: &Database) {
        // Closed by nobody.
        let _slot = database.slots.acquire().await;
        if database.out.is_cancelled() {
            tracing::debug!(lease = %lease.id, reason = %database.reason(), "a lease is dropped without an attempt");
            return;
        }
        let cancel = cx.cancel.child_token();
        if let Err(error) = removal::remove(&cx.hub, &cx.storage, cx.term, &lease.login, cancel).await {
            tracing::warn!(lease = %lease.id, %error, "a lease is dropped though its user could not be removed");
            if error.is_not_tried() {
                database.is_out(&error.text());
            }
        }
    }

    /// Marks the leases named by the keys below `prefix`, page by page; returns them with their queues.
    async fn mark_below(&self, cx: &Cx, prefix: &str) -> Result<Vec<(LeaseId, Queue)>, ApiError> {
        let mut marked = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let keys = cx.storage.scan_keys(prefix, after.as_deref(), PAGE)?;
            let Some(last) = keys.last() else { return Ok(marked) };
            after = Some(last.clone());
            let mut page = Vec::new();
            for key in &keys {
                page.extend(index::read(&cx.storage, &id_of(prefix, key))?);
            }
            marked.extend(page.iter().map(|lease| (lease.value.id.clone(), lease.value.login.queue())));
            page.retain(|lease| !is_marked(&lease.value));
            self.mark_page(cx, &page).await?;
        }
    }

    async fn mark_page(&self, cx: &Cx, leases: &[Stored<Lease>]) -> Result<(), ApiError> {
        match self.mark(cx, leases).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == Kind::Conflict => {
                // One of them changed meanwhile: each by itself, then.
                for lease in leases {
                    self.mark_due(cx, &lease.value.id).await?;
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
        self.tell(Mail::Due(now));
        Ok(())
    }
}

/// Whether it is due by request already. One that failed before is marked again, to be tried at once.
fn is_marked(lease: &Lease) -> bool {
    lease.revocation.requested && lease.due <= Wall::now()
}

/// Index keys end with the id; a lease's own key is the id below the prefix of all leases.
fn id_of(prefix: &str, key: &str) -> LeaseId {
    let id = key.strip_prefix(index::LEASES).or_else(|| key.strip_prefix(prefix)).unwrap_or(key);
    LeaseId::from_client(id)
}
