//! A backup that was restored brings the seal that fits its data: every node takes it over.

use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use super::{Node, Sealed, State};
use crate::barrier::seal::{STORE_KEY, SealRecord};

/// Waits for changes of the seal in the store and takes them over. Ends with the unsealed life of the node.
pub(super) fn watch(node: Weak<Node>, changed: Arc<Notify>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        loop {
            changed.notified().await;
            let Some(node) = node.upgrade() else { return };
            if node.seal_differs() {
                let owner = node.shared.tasks.clone();
                // Sealing ends the task group that this task belongs to.
                owner.spawn("take-over-seal", async move { node.take_over_seal().await });
            }
        }
    })
}

impl Node {
    fn stored_seal(&self) -> Option<SealRecord> {
        let running = self.running()?;
        let found = match running.hub.storage.store().read(STORE_KEY) {
            Ok(found) => found?,
            Err(error) => {
                tracing::warn!(%error, "reading the seal in the store failed");
                return None;
            }
        };
        match SealRecord::from_bytes(STORE_KEY, &found.value) {
            Ok(record) => Some(record),
            Err(error) => {
                tracing::error!(%error, "the seal in the store cannot be used");
                None
            }
        }
    }

    fn seal_differs(&self) -> bool {
        match (self.stored_seal(), self.running()) {
            (Some(stored), Some(running)) => stored != running.record,
            _ => false,
        }
    }

    /// Saves the restored seal and opens it with the root key at hand; when that does not fit, the node stays
    /// sealed until someone brings the key of the restored cluster.
    async fn take_over_seal(self: &Arc<Self>) {
        let _change = self.change.lock().await;
        let (Some(record), Some(running)) = (self.stored_seal(), self.running()) else { return };
        if record == running.record {
            return;
        }
        if let Err(error) = record.save(self.shared.dir.path()) {
            tracing::error!(%error, "saving the restored seal failed");
            return;
        }
        let root = running.root.clone();
        let fits = record.open(&root).is_ok();
        self.close().await;
        self.set(State::Sealed(Sealed::on_disk(record.clone())));
        if !fits {
            tracing::warn!("a backup of another cluster was restored; unseal with the keys of that cluster");
            return;
        }
        match self.open_record(record, root, false).await {
            Ok(running) => self.set(State::Unsealed(running)),
            Err(error) => tracing::error!(%error, "unsealing after a restore failed"),
        }
    }
}
