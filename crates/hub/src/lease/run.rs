//! The background work of the active node: revocations, the sweeper, rotations, and the closing of drivers.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Term;
use holdfast_ops::Tasks;
use tokio_util::sync::CancellationToken;

use super::{Leases, index, queue};
use crate::database::{root, rotation, sweep};
use crate::hub::Hub;
use crate::metrics::{ByMount, MountKind};

/// How often drivers that were replaced are looked at.
const CLOSING: Duration = Duration::from_millis(250);
/// How often leases are counted for the metrics.
const COUNTING: Duration = Duration::from_secs(10);
/// From this many leases on, an operator should look.
const MANY: u64 = 256_000;
/// How long tasks may take to notice that the term is over.
const ENDING: Duration = Duration::from_secs(5);

impl Leases {
    /// Runs the background work of the active node in `term`, until `cancel`. Returns when nothing of it runs any
    /// more and the drivers are closed, within some 5 s.
    pub fn run(
        hub: Arc<Hub>,
        term: Term,
        cancel: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        // Before the first request of the term, not when the task gets its turn.
        hub.leases.databases.instances.begin_term(term);
        Self::run_begun(hub, term, cancel)
    }

    async fn run_begun(hub: Arc<Hub>, term: Term, cancel: CancellationToken) {
        let tasks = Tasks::new("leases");
        let leases = &hub.leases;
        // What is left of the time before must not close what is opened now.
        let turn = leases.turn.lock().await;
        leases.mailbox.open();
        leases.databases.sweeper.open();
        let ended = |name: &str| tasks.child(name);
        tokio::join!(
            queue::run(Arc::clone(&hub), term, ended("queue"), cancel.clone()),
            sweep::run(Arc::clone(&hub), term, ended("sweeper"), cancel.clone()),
            rotation::run(Arc::clone(&hub), term, cancel.clone()),
            root::run(Arc::clone(&hub), term, cancel.clone()),
            close_replaced(&hub, &cancel),
            count(&hub, &tasks, &cancel),
            async {
                cancel.cancelled().await;
                tasks.cancel();
                leases.databases.instances.end_term(term);
            },
        );
        leases.mailbox.close();
        leases.databases.sweeper.close();
        leases.waiting.lock().clear();
        drop(turn);
        while leases.databases.instances.close_retired().await {
            tokio::time::sleep(CLOSING).await;
        }
        if let Err(unfinished) = tasks.stop(ENDING).await {
            tracing::warn!(error = %unfinished, "tasks of the ended term had to be stopped");
        }
    }
}

async fn close_replaced(hub: &Hub, cancel: &CancellationToken) {
    while cancel.run_until_cancelled(tokio::time::sleep(CLOSING)).await.is_some() {
        hub.leases.databases.instances.close_retired().await;
    }
}

/// Counts for the metrics, off the async threads, since a count reads an index.
async fn count(hub: &Arc<Hub>, tasks: &Tasks, cancel: &CancellationToken) {
    let mut crowd = Crowd::default();
    loop {
        let storage = hub.storage.clone();
        let counted = tasks.spawn_blocking("count", move || {
            let leases = storage.count(index::LEASES).ok()?;
            Some((leases, storage.count(index::IRREVOCABLE).ok()?))
        });
        let Some(counted) = cancel.run_until_cancelled(counted.join()).await else { return };
        if let Some((leases, irrevocable)) = counted.flatten() {
            let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            let labels = ByMount { mount_type: MountKind::Database };
            hub.metrics.leases.get_or_create(&labels).set(gauge(leases));
            hub.metrics.irrevocable.set(gauge(irrevocable));
            if crowd.has_come(leases) {
                tracing::warn!(leases, "there are many leases; a shorter ttl would keep their number down");
            }
        }
        if cancel.run_until_cancelled(tokio::time::sleep(COUNTING)).await.is_none() {
            return;
        }
    }
}

/// Whether there are many leases: told once, and again after there were fewer.
#[derive(Default)]
struct Crowd {
    told: bool,
}

impl Crowd {
    fn has_come(&mut self, leases: u64) -> bool {
        let before = std::mem::replace(&mut self.told, leases >= MANY);
        self.told && !before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_number_of_leases_is_warned_of_once() {
        let mut crowd = Crowd::default();
        let told = [0, 255_999, 256_000, 300_000, 255_999, 256_000].map(|leases| crowd.has_come(leases));
        assert_eq!(told, [false, false, true, false, false, true]);
    }
}
