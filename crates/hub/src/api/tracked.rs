//! Whether a request changed anything: one that did not, and found that leadership had gone, may be sent to the
//! next leader as if it had never started.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use crate::store::{AppliedHook, Batch, CommitError, Committed, ReadError, Store, Versioned};

/// A store that remembers whether a commit through it took, or may have taken, effect.
pub struct Tracked {
    inner: Arc<dyn Store>,
    /// Commits begun, less those that provably changed nothing.
    touching: AtomicU64,
}

impl Tracked {
    /// Over a store.
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, touching: AtomicU64::new(0) })
    }

    /// Whether anything changed, or may have.
    pub fn touched(&self) -> bool {
        self.touching.load(Ordering::Acquire) > 0
    }
}

#[async_trait]
impl Store for Tracked {
    async fn commit(&self, batch: Batch) -> Result<Committed, CommitError> {
        // Counted first: a future that is dropped half way leaves an unknown outcome behind.
        self.touching.fetch_add(1, Ordering::AcqRel);
        let result = self.inner.commit(batch).await;
        if !matches!(result, Ok(_) | Err(CommitError::Unknown)) {
            self.touching.fetch_sub(1, Ordering::AcqRel);
        }
        result
    }

    fn read(&self, key: &str) -> Result<Option<Versioned>, ReadError> {
        self.inner.read(key)
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Versioned)>, ReadError> {
        self.inner.scan(prefix, after, limit)
    }

    fn scan_keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, ReadError> {
        self.inner.scan_keys(prefix, after, limit)
    }

    fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, ReadError> {
        self.inner.list(prefix, after, limit)
    }

    fn count(&self, prefix: &str) -> Result<u64, ReadError> {
        self.inner.count(prefix)
    }

    fn on_applied(&self, hook: AppliedHook) {
        self.inner.on_applied(hook);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Condition, Op, memory::MemoryStore};

    #[tokio::test]
    async fn only_refused_batches_leave_no_trace() {
        let put = |conditions| Batch { conditions, ops: vec![Op::Delete { key: "a".into() }] };
        let memory = MemoryStore::new();
        let tracked = Tracked::new(memory.clone());
        tracked.commit(put(vec![Condition::Present("a".into())])).await.unwrap_err();
        memory.fail_next(CommitError::NotLeader);
        tracked.commit(put(vec![])).await.unwrap_err();
        assert!(!tracked.touched());
        memory.fail_next(CommitError::Unknown);
        tracked.commit(put(vec![])).await.unwrap_err();
        assert!(tracked.touched());
    }
}
