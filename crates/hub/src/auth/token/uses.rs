//! Tokens with a limited number of uses.

use super::{Token, Tokens, after, keys};
use crate::error::ApiError;
use crate::logical::Cx;
use crate::storage::Txn;

/// Seconds after its last use at which the background looks whether a token was revoked as it should have been.
const LAST_USE_GRACE: u64 = 900;

/// Refuses a leased secret to a token on its last use, before anything is created: the token is revoked when the
/// request ends, and the lease with it. `token` is the token as it was when this request took its use: of two requests
/// that found two uses left, one is on the last.
pub fn check_leased(token: &Token) -> Result<(), ApiError> {
    if token.num_uses == 1 {
        return Err(ApiError::invalid(
            "a token with one use left cannot get a leased secret: the secret would be revoked at once",
        ));
    }
    Ok(())
}

impl Tokens {
    /// Takes one use from a token with a limited number of them; 403 when another request took the last one. Returns
    /// how many were left before, this one included; 0 for unlimited.
    pub async fn consume_use(&self, cx: &Cx, token: &Token) -> Result<i64, ApiError> {
        if token.num_uses == 0 || token.accessor.is_empty() {
            return Ok(0);
        }
        loop {
            let Some(mut stored) = self.record(&cx.storage, &token.id)? else {
                return Err(ApiError::denied());
            };
            if stored.value.num_uses <= 0 || stored.value.revoking {
                return Err(ApiError::denied());
            }
            let before = stored.value.num_uses;
            let key = keys::id(&token.id);
            let mut txn = cx.storage.txn();
            txn.require_version(&key, stored.version);
            stored.value.num_uses -= 1;
            if stored.value.num_uses == 0 {
                stored.value.num_uses = -1;
                self.bring_end_forward(&mut txn, &mut stored.value)?;
            }
            txn.put(&key, &stored.value)?;
            match txn.commit().await {
                Err(error) if error.is_conflict() => {}
                done => return done.map(|_| before).map_err(ApiError::from),
            }
        }
    }

    /// Lets the background revoke a used-up token if the request that used it up cannot.
    fn bring_end_forward(&self, txn: &mut Txn<'_>, token: &mut Token) -> Result<(), ApiError> {
        let soon = after(self.now(), LAST_USE_GRACE);
        if token.expires.is_some_and(|at| at <= soon) {
            return Ok(());
        }
        if let Some(at) = token.expires.replace(soon) {
            txn.delete(&keys::expiry(at, &token.id));
        }
        Ok(txn.put(&keys::expiry(soon, &token.id), &())?)
    }

    /// Revokes a token whose last use this request was; call it once the request is answered.
    pub async fn finish_use(&self, cx: &Cx, token: &Token) -> Result<(), ApiError> {
        if token.num_uses == 0 || token.accessor.is_empty() {
            return Ok(());
        }
        match self.record(&cx.storage, &token.id)? {
            Some(stored) if stored.value.num_uses < 0 => self.revoke_tree(cx, &token.id).await,
            _ => Ok(()),
        }
    }
}
