//! What the active node does for the relay by itself: the hub's certificate stays right.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Kind, Term};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::change;
use crate::hub::Hub;

/// How often it looks.
const TICK: Duration = Duration::from_secs(2);
/// How long a change may take.
const CHANGE: Duration = Duration::from_secs(10);
/// How long members have to tell this node where they are before a host counts as gone.
const SETTLED: Duration = Duration::from_secs(180);

/// Runs until `cancel`, in `term`.
pub async fn run(hub: Arc<Hub>, term: Term, cancel: CancellationToken) {
    let started = Instant::now();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = tick.tick() => {}
        }
        let cx = hub.cx(term, Instant::now() + CHANGE, cancel.clone());
        let change = change::reissue_if_needed(&cx, started.elapsed() >= SETTLED);
        tokio::select! {
            () = cancel.cancelled() => return,
            done = tokio::time::timeout(CHANGE, change) => match done {
                Ok(Ok(_)) => {}
                Ok(Err(error)) if error.kind() == Kind::NotLeader => return,
                Ok(Err(error)) => tracing::warn!(%error, "the hub's certificate for spokes was not reissued"),
                Err(_) => tracing::warn!("reissuing the hub's certificate for spokes took too long"),
            },
        }
    }
}
