//! Keeps in memory what every request asks of the store: mounts, policies, quotas, audit devices, the relay's authority.
//!
//! What must hold: whoever becomes active has them already, because every unsealed node reads them again when an
//! applied entry changed them. Correctness does not depend on it: a cache that is cold is filled by its first user.

use std::sync::Arc;

use holdfast_ops::Tasks;
use tokio::sync::Notify;

use crate::error::ApiError;
use crate::hub::Hub;
use crate::quota::rule;
use crate::relay::record;
use crate::{audit, mount, policy};

/// The records that the caches are made of.
const KEPT: [&str; 7] =
    [mount::ENTRIES, policy::PREFIX, rule::RATES, rule::LEASES, audit::DEVICES, record::CA, record::DENIED];

impl Hub {
    /// Reads into memory whatever is not there.
    pub(crate) fn warm(&self) -> Result<(), ApiError> {
        self.mounts.all()?;
        self.policies.warm()?;
        self.quotas.warm()?;
        self.audit.enabled()?;
        self.relay.authority.denied()?;
        Ok(())
    }
}

/// Follows the applied entries until the node seals.
pub(crate) async fn run(hub: Arc<Hub>, tasks: Tasks) {
    let changed = Arc::new(Notify::new());
    let told = Arc::clone(&changed);
    hub.storage.store().on_applied(Arc::new(move |keys| {
        let touched = |prefix: &&str| {
            keys.range((*prefix).to_owned()..).next().is_some_and(|key| key.starts_with(prefix))
        };
        if keys.is_empty() || KEPT.iter().any(touched) {
            told.notify_one();
        }
    }));
    loop {
        let own = Arc::clone(&hub);
        // Off the async threads, since it may read many records.
        match tasks.spawn_blocking("warm", move || own.warm()).join().await {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::debug!(%error, "the caches were not filled; their first users will"),
            None => return,
        }
        changed.notified().await;
    }
}
