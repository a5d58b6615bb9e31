//! At most one change of a lease runs at a time: a second caller waits for the first one's outcome.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::id::LeaseId;
use super::revoke::Outcome;

type Slot = watch::Receiver<Option<Outcome>>;

/// The leases that are being revoked or renewed on this node.
#[derive(Default)]
pub struct Running {
    slots: Arc<Mutex<HashMap<LeaseId, Slot>>>,
}

/// A caller's place.
pub enum Place {
    /// The lease is the caller's until the guard is dropped.
    First(Guard),
    /// Another caller had it; this is how it ended, or nothing when it gave up or did something else.
    Waited(Option<Outcome>),
}

/// Holds a lease. Dropping it without [`Guard::finish`] lets waiters try for themselves.
pub struct Guard {
    id: LeaseId,
    slots: Arc<Mutex<HashMap<LeaseId, Slot>>>,
    done: watch::Sender<Option<Outcome>>,
}

impl Running {
    /// Takes the lease, or waits for whoever has it.
    pub async fn enter(&self, id: &LeaseId) -> Place {
        let mut slot = {
            let mut slots = self.slots.lock();
            match slots.get(id) {
                Some(slot) => slot.clone(),
                None => {
                    let (done, slot) = watch::channel(None);
                    slots.insert(id.clone(), slot);
                    return Place::First(Guard { id: id.clone(), slots: Arc::clone(&self.slots), done });
                }
            }
        };
        // An error means that the guard was dropped without an outcome.
        let outcome = slot.wait_for(Option::is_some).await.ok().and_then(|seen| seen.clone());
        Place::Waited(outcome)
    }

    /// Takes the lease, waiting as often as others have it.
    pub async fn take(&self, id: &LeaseId) -> Guard {
        loop {
            if let Place::First(guard) = self.enter(id).await {
                return guard;
            }
        }
    }
}

impl Guard {
    /// Gives the outcome to whoever waits.
    pub fn finish(self, outcome: Outcome) {
        self.done.send_replace(Some(outcome));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.slots.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_caller_gets_the_first_ones_outcome() {
        let running = Running::default();
        let id = LeaseId::from_client("a/b");
        let Place::First(guard) = running.enter(&id).await else { panic!("free") };
        let second = running.enter(&id);
        tokio::pin!(second);
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        guard.finish(Outcome::Gone);
        assert!(matches!(second.await, Place::Waited(Some(Outcome::Gone))));
        assert!(matches!(running.enter(&id).await, Place::First(_)));
    }

    #[tokio::test]
    async fn a_caller_that_gives_up_lets_the_next_one_try() {
        let running = Running::default();
        let id = LeaseId::from_client("a/b");
        let guard = running.take(&id).await;
        let second = running.enter(&id);
        tokio::pin!(second);
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        drop(guard);
        assert!(matches!(second.await, Place::Waited(None)));
    }
}
