//! Revoking tokens: mark, cascade, remove.
//!
//! The mark is one batch; from then on callers are refused, nothing new can be created on the token's behalf, and
//! an entry at time zero of the expiry index makes the background finish what a crash interrupts. All steps after
//! the mark may run twice.

use holdfast_core::Kind;

use super::{Token, Tokens, keys};
use crate::error::ApiError;
use crate::logical::Cx;
use crate::storage::{Storage, Stored, Txn};

/// Children read at once.
const PAGE: usize = 256;
/// Records read at once by a walk over all tokens.
const WALK: usize = 128;

/// What becomes of the children of a revoked token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Children {
    /// They are revoked too.
    Revoke,
    /// They live on without a parent.
    Orphan,
}

impl Tokens {
    /// Revokes a token and everything below it: callers are refused at once, then children, leases, cubbyhole and
    /// indexes go. A token that is gone is no error.
    pub async fn revoke_tree(&self, cx: &Cx, id: &str) -> Result<(), ApiError> {
        if self.mark(&cx.storage, id, Children::Revoke, None).await?.is_none() {
            return Ok(());
        }
        self.finish(cx, id).await
    }

    /// Revokes a token and everything below it unless it is alive at `now`.
    pub(super) async fn revoke_expired(&self, cx: &Cx, id: &str, now: i64) -> Result<(), ApiError> {
        if self.mark(&cx.storage, id, Children::Revoke, Some(now)).await?.is_none() {
            return Ok(());
        }
        self.finish(cx, id).await
    }

    /// Revokes a token alone; its children become orphans.
    pub async fn revoke_orphan(&self, cx: &Cx, id: &str) -> Result<(), ApiError> {
        if self.mark(&cx.storage, id, Children::Orphan, None).await?.is_none() {
            return Ok(());
        }
        self.finish(cx, id).await
    }

    /// Revokes every token that a path below `prefix` made, as when a login method is removed.
    pub async fn revoke_made_by(&self, cx: &Cx, prefix: &str) -> Result<(), ApiError> {
        let mut after: Option<String> = None;
        loop {
            let page = cx.storage.scan::<Token>("token/id/", after.as_deref(), WALK)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(last.clone());
            for (_, stored) in page.iter().filter(|(_, stored)| stored.value.path.starts_with(prefix)) {
                self.revoke_tree(cx, &stored.value.id).await?;
            }
        }
    }

    /// Adds the removal of a token and its indexes to a transaction; it must have no children, leases or cubbyhole
    /// any more.
    pub(crate) fn remove_childless(txn: &mut Txn<'_>, token: &Token) {
        txn.delete(&keys::id(&token.id));
        txn.delete(&keys::accessor(&token.accessor));
        txn.delete(&keys::expiry(0, &token.id));
        if let Some(at) = token.expires {
            txn.delete(&keys::expiry(at, &token.id));
        }
        if let Some(parent) = &token.parent {
            txn.delete(&keys::child(parent, &token.id));
        }
    }

    /// Does what is left to do for a marked token.
    pub(super) async fn finish(&self, cx: &Cx, id: &str) -> Result<(), ApiError> {
        let Some(stored) = self.record(&cx.storage, id)? else { return Ok(()) };
        if stored.value.spare_children {
            self.orphan_children(&cx.storage, id).await?;
        } else {
            self.mark_below(&cx.storage, id).await?;
            self.destroy_below(cx, id).await?;
        }
        self.destroy(cx, None, &[id.to_owned()]).await
    }

    /// Marks one token; none when there is no such token, or when it is alive at `unless_alive`: renewed since it
    /// was found to have expired.
    async fn mark(
        &self,
        storage: &Storage,
        id: &str,
        children: Children,
        unless_alive: Option<i64>,
    ) -> Result<Option<Token>, ApiError> {
        let spare = children == Children::Orphan;
        loop {
            let Some(mut stored) = self.record(storage, id)? else { return Ok(None) };
            if unless_alive.is_some_and(|now| stored.value.is_alive(now)) {
                return Ok(None);
            }
            // A revocation of the whole tree that is under way is not taken back.
            if stored.value.revoking && (spare || !stored.value.spare_children) {
                return Ok(Some(stored.value));
            }
            stored.value.spare_children = spare;
            let mut txn = storage.txn();
            add_mark(&mut txn, &mut stored)?;
            match txn.commit().await {
                Err(error) if error.is_conflict() => {}
                done => return done.map(|_| Some(stored.value)).map_err(ApiError::from),
            }
        }
    }

    /// Marks everything below a token, parents before children, so that no caller below it gets in any more. What
    /// is held at once is a page of names for each level of the tree.
    async fn mark_below(&self, storage: &Storage, id: &str) -> Result<(), ApiError> {
        let mut stack: Vec<(String, Option<String>)> = vec![(id.to_owned(), None)];
        while let Some((parent, cursor)) = stack.pop() {
            let page = storage.list(&keys::children(&parent), cursor.as_deref(), PAGE)?;
            let Some(last) = page.last().cloned() else { continue };
            self.mark_page(storage, &page).await?;
            stack.push((parent, Some(last)));
            stack.extend(page.into_iter().map(|child| (child, None)));
        }
        Ok(())
    }

    /// Marks some tokens in one batch; one by one when one of them changes meanwhile or the batch is too large.
    async fn mark_page(&self, storage: &Storage, ids: &[String]) -> Result<(), ApiError> {
        let mut txn = storage.txn();
        for id in ids {
            let Some(mut stored) = self.record(storage, id)? else { continue };
            if stored.value.revoking && !stored.value.spare_children {
                continue;
            }
            stored.value.spare_children = false;
            add_mark(&mut txn, &mut stored)?;
        }
        if txn.is_empty() {
            return Ok(());
        }
        match txn.commit().await {
            Err(error) if error.is_conflict() || error.kind() == Kind::Invalid => {}
            done => return done.map(|_| ()).map_err(ApiError::from),
        }
        for id in ids {
            self.mark(storage, id, Children::Revoke, None).await?;
        }
        Ok(())
    }

    /// Removes everything below a token, children before parents, a page of childless siblings at a time.
    async fn destroy_below(&self, cx: &Cx, id: &str) -> Result<(), ApiError> {
        let mut stack = vec![id.to_owned()];
        while let Some(parent) = stack.last().cloned() {
            let page = cx.storage.list(&keys::children(&parent), None, PAGE)?;
            if page.is_empty() {
                // It is childless now and goes with its siblings.
                stack.pop();
                continue;
            }
            let mut childless = Vec::new();
            for child in page {
                if has_children(&cx.storage, &child)? {
                    stack.push(child);
                } else {
                    childless.push(child);
                }
            }
            self.destroy(cx, Some(&parent), &childless).await?;
        }
        Ok(())
    }

    /// Takes the parent from every child of a token.
    async fn orphan_children(&self, storage: &Storage, id: &str) -> Result<(), ApiError> {
        loop {
            let page = storage.scan_keys(&keys::children(id), None, PAGE)?;
            if page.is_empty() {
                return Ok(());
            }
            for key in page {
                let child = key.rsplit('/').next().unwrap_or_default().to_owned();
                self.orphan(storage, &key, &child).await?;
            }
        }
    }

    async fn orphan(&self, storage: &Storage, index: &str, child: &str) -> Result<(), ApiError> {
        loop {
            let mut txn = storage.txn();
            txn.delete(index);
            if let Some(mut stored) = self.record(storage, child)? {
                let key = keys::id(child);
                stored.value.parent = None;
                txn.require_version(&key, stored.version);
                txn.put(&key, &stored.value)?;
            }
            match txn.commit().await {
                Err(error) if error.is_conflict() => {}
                done => return done.map(|_| ()).map_err(ApiError::from),
            }
        }
    }

    /// Removes marked, childless tokens with all that belongs to them. The records go last: until then a crash is
    /// repaired.
    async fn destroy(&self, cx: &Cx, parent: Option<&str>, ids: &[String]) -> Result<(), ApiError> {
        let mut txn = cx.storage.txn();
        for id in ids {
            if let Some(stored) = self.record(&cx.storage, id)? {
                cx.hub.leases.revoke_by_token(cx, id).await?;
                cx.storage.delete_prefix(&keys::cubbyhole(id)).await?;
                Self::remove_childless(&mut txn, &stored.value);
            }
            if let Some(parent) = parent {
                txn.delete(&keys::child(parent, id));
            }
        }
        if !txn.is_empty() {
            txn.commit().await?;
        }
        Ok(())
    }
}

/// Adds the mark of a token that was read.
fn add_mark(txn: &mut Txn<'_>, stored: &mut Stored<Token>) -> Result<(), ApiError> {
    let token = &mut stored.value;
    token.revoking = true;
    let key = keys::id(&token.id);
    txn.require_version(&key, stored.version);
    txn.put(&key, token)?;
    txn.put(&keys::expiry(0, &token.id), &())?;
    txn.delete(&keys::accessor(&token.accessor));
    Ok(())
}

fn has_children(storage: &Storage, id: &str) -> Result<bool, ApiError> {
    Ok(!storage.scan_keys(&keys::children(id), None, 1)?.is_empty())
}
