//! What one call that ends many leases learns of the databases behind them: what is left of a queue whose database
//! could not be reached is not tried once more in the same call.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::record::Queue;

/// Attempts of one call on one database at once.
const AT_ONCE: usize = 8;

/// The databases of one call.
#[derive(Default)]
pub(super) struct Reach(Mutex<HashMap<Queue, Arc<Database>>>);

/// What is known of one database.
pub(super) struct Database {
    /// Taken for each attempt that the call makes itself.
    pub(super) slots: Semaphore,
    /// Fires when it could not be reached.
    pub(super) out: CancellationToken,
    reason: OnceLock<String>,
}

impl Reach {
    /// The database of a queue.
    pub(super) fn of(&self, queue: &Queue) -> Arc<Database> {
        let mut all = self.0.lock();
        Arc::clone(all.entry(queue.clone()).or_insert_with(|| {
            let (slots, out) = (Semaphore::new(AT_ONCE), CancellationToken::new());
            Arc::new(Database { slots, out, reason: OnceLock::new() })
        }))
    }
}

impl Database {
    /// It could not be reached, for this reason.
    pub(super) fn is_out(&self, reason: &str) {
        // The first reason stays; others say the same.
        let _ = self.reason.set(reason.to_owned());
        self.out.cancel();
    }

    /// Why it could not be reached.
    pub(super) fn reason(&self) -> String {
        self.reason.get().cloned().unwrap_or_default()
    }
}
