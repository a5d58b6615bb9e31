//! A store of one process without consensus or disk, for unit tests of what lies above the store.
//!
//! It has the semantics of the real one: conditions, versions, terms, hooks before the answer. The term can be
//! moved by the test to play a change of leadership.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use holdfast_core::Term;
use parking_lot::{Mutex, RwLock};

use super::{AppliedHook, Batch, CommitError, Committed, Condition, Op, ReadError, Store, Versioned};

/// An in-memory [`Store`].
#[derive(Default)]
pub struct MemoryStore {
    state: Mutex<State>,
    hooks: RwLock<Vec<AppliedHook>>,
    looks: Mutex<Looks>,
}

/// How often single keys were read.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Looks {
    /// In all.
    pub reads: u64,
    /// Of those, how often there was a value.
    pub found: u64,
}

#[derive(Default)]
struct State {
    map: BTreeMap<String, Versioned>,
    index: u64,
    term: Term,
    fail_next: Option<CommitError>,
    tried: usize,
    reads: Vec<Read>,
}

/// A read of more than one key: its prefix, and how many rows it asked for.
pub type Read = (String, usize);

impl State {
    fn holds(&self, condition: &Condition) -> bool {
        match condition {
            Condition::Absent(key) => !self.map.contains_key(key),
            Condition::Present(key) => self.map.contains_key(key),
            Condition::Version(key, version) => self.map.get(key).is_some_and(|v| v.version == *version),
            Condition::Term(term) => *term == self.term,
        }
    }
}

impl MemoryStore {
    /// An empty store in term 1.
    pub fn new() -> Arc<Self> {
        let store = Self::default();
        store.state.lock().term = Term::new(1);
        Arc::new(store)
    }

    /// Plays a change of leadership: writes fenced by another term are refused from now on.
    pub fn set_term(&self, term: Term) {
        self.state.lock().term = term;
    }

    /// How often single keys were read since the last call.
    pub fn take_looks(&self) -> Looks {
        std::mem::take(&mut self.looks.lock())
    }

    /// How many batches were handed in so far, applied or not.
    pub fn tried(&self) -> usize {
        self.state.lock().tried
    }

    /// The reads of more than one key since this was last asked.
    pub fn take_reads(&self) -> Vec<Read> {
        std::mem::take(&mut self.state.lock().reads)
    }

    /// Lets the next commit fail with this error without applying anything.
    pub fn fail_next(&self, error: CommitError) {
        self.state.lock().fail_next = Some(error);
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn commit(&self, batch: Batch) -> Result<Committed, CommitError> {
        batch.check_size()?;
        let committed = {
            let mut state = self.state.lock();
            state.tried += 1;
            if let Some(error) = state.fail_next.take() {
                return Err(error);
            }
            if let Some(failed) = batch.conditions.iter().find(|c| !state.holds(c)) {
                return Err(CommitError::Refused(failed.clone()));
            }
            state.index += 1;
            let version = state.index;
            for op in &batch.ops {
                match op {
                    Op::Put { key, value } => {
                        state.map.insert(key.clone(), Versioned { value: value.clone(), version });
                    }
                    Op::Delete { key } => {
                        state.map.remove(key);
                    }
                }
            }
            Committed { version, term: state.term }
        };
        let keys = batch.keys();
        self.hooks.read().iter().for_each(|hook| hook(&keys));
        Ok(committed)
    }

    fn read(&self, key: &str) -> Result<Option<Versioned>, ReadError> {
        let value = self.state.lock().map.get(key).cloned();
        let mut looks = self.looks.lock();
        looks.reads += 1;
        looks.found += u64::from(value.is_some());
        Ok(value)
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Versioned)>, ReadError> {
        let mut state = self.state.lock();
        state.reads.push((prefix.to_owned(), limit));
        let from = after.filter(|a| *a >= prefix).unwrap_or(prefix);
        let rows = state
            .map
            .range(from.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter(|(key, _)| after.is_none_or(|a| key.as_str() > a))
            .take(limit)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        Ok(rows)
    }

    fn scan_keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, ReadError> {
        Ok(self.scan(prefix, after, limit)?.into_iter().map(|(key, _)| key).collect())
    }

    fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, ReadError> {
        let mut names: Vec<String> = Vec::new();
        for key in self.scan_keys(prefix, None, usize::MAX)? {
            let rest = key.strip_prefix(prefix).unwrap_or(&key);
            let name = match rest.split_once('/') {
                Some((folder, _)) => format!("{folder}/"),
                None => rest.to_owned(),
            };
            if names.last() != Some(&name) && after.is_none_or(|a| name.as_str() > a) {
                names.push(name);
            }
        }
        names.sort();
        names.dedup();
        names.truncate(limit);
        Ok(names)
    }

    fn count(&self, prefix: &str) -> Result<u64, ReadError> {
        Ok(self.scan_keys(prefix, None, usize::MAX)?.len() as u64)
    }

    fn on_applied(&self, hook: AppliedHook) {
        self.hooks.write().push(hook);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str) -> Op {
        Op::Put { key: key.into(), value: b"v".to_vec() }
    }

    #[tokio::test]
    async fn a_refused_condition_applies_nothing() {
        let store = MemoryStore::new();
        let batch = Batch { conditions: vec![Condition::Term(Term::new(2))], ops: vec![put("a")] };
        assert!(matches!(store.commit(batch).await, Err(CommitError::Refused(Condition::Term(_)))));
        assert_eq!(store.read("a").unwrap(), None);
    }

    #[tokio::test]
    async fn lists_show_folders_once() {
        let store = MemoryStore::new();
        let ops = vec![put("x/a"), put("x/b/1"), put("x/b/2"), put("x/b"), put("y/a")];
        store.commit(Batch { conditions: vec![], ops }).await.unwrap();
        assert_eq!(store.list("x/", None, 10).unwrap(), ["a", "b", "b/"]);
        assert_eq!(store.list("x/", Some("a"), 1).unwrap(), ["b"]);
        assert_eq!(store.scan_keys("x/b/", None, 10).unwrap(), ["x/b/1", "x/b/2"]);
    }
}
