//! A value derived from part of the store, rebuilt when an applied entry touched that part.
//!
//! Contract: a value that [`Cached::load`] returns reflects every entry that was applied before the call.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use crate::storage::{Storage, StorageError};

/// A value derived from the records below one or more key prefixes.
pub struct Cached<T> {
    changes: Arc<AtomicU64>,
    held: ArcSwapOption<(u64, Arc<T>)>,
}

impl<T> Cached<T> {
    /// Watches the keys of the whole store that start with one of `prefixes`.
    pub fn watching(storage: &Storage, prefixes: &'static [&'static str]) -> Self {
        let changes = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&changes);
        storage.store().on_applied(Arc::new(move |keys| {
            if keys.is_empty() || prefixes.iter().any(|p| touches(keys, p)) {
                seen.fetch_add(1, Ordering::AcqRel);
            }
        }));
        Self { changes, held: ArcSwapOption::empty() }
    }

    /// The value, rebuilt if something changed since it was made.
    pub fn load(&self, build: impl FnOnce() -> Result<T, StorageError>) -> Result<Arc<T>, StorageError> {
        // The count is read before the store is: a change in between makes the next load build again.
        let now = self.changes.load(Ordering::Acquire);
        if let Some(held) = self.held.load().as_ref().filter(|held| held.0 == now) {
            return Ok(Arc::clone(&held.1));
        }
        let value = Arc::new(build()?);
        self.held.store(Some(Arc::new((now, Arc::clone(&value)))));
        Ok(value)
    }
}

fn touches(keys: &std::collections::BTreeSet<String>, prefix: &str) -> bool {
    keys.range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
        .next()
        .is_some_and(|key| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::{Barrier, Keyring};
    use crate::store::memory::MemoryStore;

    #[tokio::test]
    async fn only_a_change_below_the_prefix_rebuilds() {
        let storage = Storage::new(MemoryStore::new(), Barrier::opened(Keyring::generate().unwrap()));
        let cached = Cached::watching(&storage, &["a/"]);
        let load = |n: u32| *cached.load(|| Ok(n)).unwrap();
        assert_eq!(load(1), 1);
        storage.put("b/x", &0).await.unwrap();
        assert_eq!(load(2), 1);
        storage.put("a/x", &0).await.unwrap();
        assert_eq!(load(3), 3);
        assert_eq!(load(4), 3);
    }
}
