//! One thing, one change at a time: a renewal and a revocation of a lease never overlap on this node, nor do two
//! rotations of a password.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

type Locks<K> = Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>;

/// What is being changed on this node.
pub struct Running<K>(Arc<Locks<K>>);

/// Holds a thing until it is dropped.
pub struct Guard<K: Eq + Hash> {
    id: K,
    locks: Arc<Locks<K>>,
    /// Given back before the entry is looked at, see [`Drop`].
    held: Option<OwnedMutexGuard<()>>,
}

impl<K> Default for Running<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> Running<K> {
    /// Takes the thing, once whoever has it is done.
    pub async fn take(&self, id: &K) -> Guard<K> {
        let lock = Arc::clone(self.0.lock().entry(id.clone()).or_default());
        let mut guard = Guard { id: id.clone(), locks: Arc::clone(&self.0), held: None };
        guard.held = Some(lock.lock_owned().await);
        guard
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl<K: Eq + Hash> Drop for Guard<K> {
    fn drop(&mut self) {
        self.held = None;
        let mut locks = self.locks.lock();
        // The map's own handle is the last one when nobody else has or waits for it.
        if locks.get(&self.id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_waits_for_the_first_and_nothing_is_left() {
        let running = Running::default();
        let id = "a/b".to_owned();
        let first = running.take(&id).await;
        {
            let second = running.take(&id);
            tokio::pin!(second);
            assert!(futures_util::poll!(second.as_mut()).is_pending());
            drop(first);
            drop(second.await);
        }
        assert_eq!(running.len(), 0);
        let first = running.take(&id).await;
        {
            let gives_up = running.take(&id);
            tokio::pin!(gives_up);
            assert!(futures_util::poll!(gives_up.as_mut()).is_pending());
        }
        drop(first);
        assert_eq!(running.len(), 0);
    }
}
