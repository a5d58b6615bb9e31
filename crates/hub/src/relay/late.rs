//! Users that a spoke made for whom nobody waits any more: the active node hears of them, and has them removed.

use std::sync::Arc;

use holdfast_dbdriver::IdempotencyKey;
use tokio::time::Instant;

use super::active::{self, Asked, Place};
use super::settings::PEER_CALL;
use crate::hub::Hub;

/// Tells the active node. It would find the user without being told, only later, so a failure is not more than noted.
pub fn tell(hub: &Arc<Hub>, key: IdempotencyKey) {
    if hub.cluster.view().active.is_some() {
        return here(hub, key);
    }
    let told = Arc::clone(hub);
    hub.spokes.tasks.spawn_until_cancelled("late-user", async move {
        let hub = &told;
        let tell = |place, term| async move {
            match (place, hub.spokes.calls()) {
                (Place::There(address), Some(calls)) => calls.late_user(&address, term, key).await,
                _ => {
                    here(hub, key);
                    Asked::Answered(())
                }
            }
        };
        if let Err(why) = active::ask(hub, Instant::now() + PEER_CALL, tell).await {
            tracing::debug!(why, "the active node was not told of a user that came late");
        }
    });
}

/// Takes the word of it; on a node that is not active it is nobody's.
pub fn here(hub: &Hub, key: IdempotencyKey) {
    hub.leases.databases().late_user(&hub.storage, key);
}
