//! The background of the active node: revokes tokens that expired, used up their uses, or whose revocation was
//! interrupted.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use holdfast_core::{Kind, Term};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{Tokens, keys};
use crate::error::ApiError;
use crate::hub::Hub;
use crate::logical::Cx;

const TICK: Duration = Duration::from_secs(1);
/// Due entries read at once.
const PAGE: usize = 256;
/// Tokens revoked at the same time.
const AT_ONCE: usize = 8;
/// How long one token's revocation may take before the next tick tries again.
const PATIENCE: Duration = Duration::from_secs(60);

impl Tokens {
    /// Runs until `cancel`; the active node's work in `term`.
    pub async fn run_expiry(hub: Arc<Hub>, term: Term, cancel: CancellationToken) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = tick.tick() => {}
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                done = hub.tokens.expire_due(&hub, term, &cancel) => match done {
                    Ok(()) => {}
                    Err(error) if error.kind() == Kind::NotLeader => return,
                    Err(error) => tracing::warn!(%error, term = term.into_inner(), "looking for expired tokens failed"),
                },
            }
        }
    }

    /// Works through everything that is due now, once.
    pub(crate) async fn expire_due(
        &self,
        hub: &Arc<Hub>,
        term: Term,
        cancel: &CancellationToken,
    ) -> Result<(), ApiError> {
        let storage = hub.storage.fenced(term);
        let mut after: Option<String> = None;
        loop {
            let page = storage.scan_keys(keys::EXPIRY, after.as_deref(), PAGE)?;
            let now = self.now();
            let due: Vec<(i64, String)> =
                page.iter().filter_map(|key| parse(key)).take_while(|(at, _)| *at <= now).collect();
            let whole_page = due.len() == page.len();
            let lost = futures_util::stream::iter(due)
                .map(|(at, id)| self.expire_in_time(hub, term, cancel, at, id))
                .buffer_unordered(AT_ONCE)
                .any(std::future::ready)
                .await;
            if lost {
                return Err(ApiError::no_leader());
            }
            // What failed stays in the index; the cursor moves past it so that it blocks nothing behind it.
            match page.last() {
                Some(last) if whole_page => after = Some(last.clone()),
                _ => return Ok(()),
            }
        }
    }

    /// Deals with one entry; true when leadership is lost.
    async fn expire_in_time(
        &self,
        hub: &Arc<Hub>,
        term: Term,
        cancel: &CancellationToken,
        at: i64,
        id: String,
    ) -> bool {
        let cx = hub.cx(term, Instant::now() + PATIENCE, cancel.clone());
        match tokio::time::timeout(PATIENCE, self.expire_one(&cx, at, &id)).await {
            Ok(Err(error)) if error.kind() == Kind::NotLeader => return true,
            Ok(Err(error)) => {
                tracing::warn!(%error, term = term.into_inner(), "revoking an expired token failed")
            }
            Err(_) => tracing::warn!(term = term.into_inner(), "revoking an expired token took too long"),
            Ok(Ok(())) => {}
        }
        false
    }

    async fn expire_one(&self, cx: &Cx, at: i64, id: &str) -> Result<(), ApiError> {
        let now = self.now();
        match self.record(&cx.storage, id)? {
            Some(stored) if stored.value.revoking => self.finish(cx, id).await?,
            Some(stored) if !stored.value.is_alive(now) => self.revoke_expired(cx, id, now).await?,
            // This node's clock is behind that of the one which found the entry due.
            Some(stored) if stored.value.expires == Some(at) => return Ok(()),
            // What else stands here for a living token is left from before it was renewed.
            _ => {}
        }
        cx.storage.delete(&keys::expiry(at, id)).await?;
        Ok(())
    }
}

/// The time and the token of an index entry.
fn parse(key: &str) -> Option<(i64, String)> {
    let (time, id) = key.strip_prefix(keys::EXPIRY)?.split_once('/')?;
    Some((i64::from_str_radix(time, 16).ok()?, id.to_owned()))
}
