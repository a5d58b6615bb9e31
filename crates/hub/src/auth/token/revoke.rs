//! Revoking tokens: mark, cascade, remove.
//!
//! The mark is one batch; from then on callers are refused, nothing new can be created on the token's behalf, and
//! an entry at time zero of the expiry index makes the background finish what a crash interrupts. All steps after
//! the mark may run twice.

use super::{Token, Tokens, keys};
use crate::error::ApiError;
use crate::logical::Cx;
use crate::storage::{Storage, Txn};

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
        if self.mark(&cx.storage, id, Children::Revoke).await?.is_none() {
            return Ok(());
        }
        self.finish(cx, id).await
    }

    /// Revokes a token alone; its children become orphans.
    pub async fn revoke_orphan(&self, cx: &Cx, id: &str) -> Result<(), ApiError> {
        if self.mark(&cx.storage, id, Children::Orphan).await?.is_none() {
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
        self.destroy(cx, id).await
    }

    /// Marks one token; none when there is no such token.
    async fn mark(&self, storage: &Storage, id: &str, children: Children) -> Result<Option<Token>, ApiError> {
        loop {
            let Some(mut stored) = self.record(storage, id)? else { return Ok(None) };
            let spare = children == Children::Orphan;
            if stored.value.revoking && stored.value.spare_children == spare {
                return Ok(Some(stored.value));
            }
            if stored.value.revoking && spare {
                // A revocation of the whole tree is under way already and is not taken back.
                return Ok(Some(stored.value));
            }
            stored.value.revoking = true;
            stored.value.spare_children = spare;
            let key = keys::id(id);
            let mut txn = storage.txn();
            txn.require_version(&key, stored.version);
            txn.put(&key, &stored.value)?;
            txn.put(&keys::expiry(0, id), &())?;
            txn.delete(&keys::accessor(&stored.value.accessor));
            match txn.commit().await {
                Err(error) if error.is_conflict() => {}
                done => return done.map(|_| Some(stored.value)).map_err(ApiError::from),
            }
        }
    }

    /// Marks everything below a token, parents before children, so that no caller below it gets in any more.
    /// The walk holds one cursor for each level of the tree.
    async fn mark_below(&self, storage: &Storage, id: &str) -> Result<(), ApiError> {
        let mut stack: Vec<(String, Option<String>)> = vec![(id.to_owned(), None)];
        while let Some((parent, cursor)) = stack.pop() {
            let Some(child) = next_child(storage, &parent, cursor.as_deref())? else { continue };
            let marked = self.mark(storage, &child, Children::Revoke).await?;
            stack.push((parent, Some(child.clone())));
            if marked.is_some() {
                stack.push((child, None));
            }
        }
        Ok(())
    }

    /// Removes everything below a token, children before parents.
    async fn destroy_below(&self, cx: &Cx, id: &str) -> Result<(), ApiError> {
        let mut stack = vec![id.to_owned()];
        while let Some(parent) = stack.last().cloned() {
            if let Some(child) = next_child(&cx.storage, &parent, None)? {
                if self.record(&cx.storage, &child)?.is_some() {
                    stack.push(child);
                } else {
                    cx.storage.delete(&keys::child(&parent, &child)).await?;
                }
                continue;
            }
            stack.pop();
            if !stack.is_empty() {
                self.destroy(cx, &parent).await?;
            }
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

    /// Removes one marked token with all that belongs to it. The record goes last: until then a crash is repaired.
    async fn destroy(&self, cx: &Cx, id: &str) -> Result<(), ApiError> {
        let Some(stored) = self.record(&cx.storage, id)? else { return Ok(()) };
        cx.hub.leases.revoke_by_token(cx, id).await?;
        cx.storage.delete_prefix(&keys::cubbyhole(id)).await?;
        let mut txn = cx.storage.txn();
        Self::remove_childless(&mut txn, &stored.value);
        txn.commit().await?;
        Ok(())
    }
}

fn next_child(storage: &Storage, parent: &str, after: Option<&str>) -> Result<Option<String>, ApiError> {
    Ok(storage.list(&keys::children(parent), after, 1)?.into_iter().next())
}
