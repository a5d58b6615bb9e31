//! Encrypted, typed and fenced access to the store.
//!
//! A [`Storage`] is a view of the store below a key prefix. Values are JSON, encrypted by the barrier for their
//! full key. A view that was made for a term puts that term into the conditions of every transaction, so that
//! whoever holds it stops writing the moment another node leads.

use std::sync::Arc;

use holdfast_core::{Kind, Term};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::barrier::{Barrier, BarrierError};
use crate::error::ApiError;
use crate::store::{Batch, CommitError, Committed, Condition, Op, ReadError, Store};

/// Why a read or a transaction failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The transaction was not, or may not have been, applied.
    #[error("committing failed")]
    Commit(#[source] CommitError),
    /// The store could not be read.
    #[error("reading failed")]
    Read(#[from] ReadError),
    /// The barrier refused.
    #[error("the barrier refused {key:?}")]
    Barrier {
        /// The full storage key.
        key: String,
        /// Why.
        #[source]
        source: BarrierError,
    },
    /// The record is not of the expected shape.
    #[error("the record {key:?} cannot be read")]
    Record {
        /// The full storage key.
        key: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

impl StorageError {
    /// The class of the failure.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Commit(error) => error.kind(),
            Self::Read(_) => Kind::Unavailable,
            Self::Barrier { source, .. } => source.kind(),
            Self::Record { .. } => Kind::Corrupt,
        }
    }

    /// Whether a condition other than the term was refused: the record changed underneath.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Commit(error) if error.kind() == Kind::Conflict)
    }
}

impl From<StorageError> for ApiError {
    fn from(error: StorageError) -> Self {
        match &error {
            StorageError::Commit(CommitError::TooLarge) => Self::entry_too_large(),
            StorageError::Commit(CommitError::Unknown) => Self::outcome_unknown().caused_by(error),
            StorageError::Barrier { source: BarrierError::Sealed, .. } => Self::sealed(),
            _ => match error.kind() {
                Kind::NotLeader => Self::no_leader().caused_by(error),
                Kind::Conflict => {
                    Self::unavailable("the record was changed by another request; try again").caused_by(error)
                }
                Kind::Unavailable => Self::unavailable("the store is not available").caused_by(error),
                _ => Self::internal(error),
            },
        }
    }
}

/// A record with the version that wrote it, for conditional writes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stored<T> {
    /// The record.
    pub value: T,
    /// Its version.
    pub version: u64,
}

/// A view of the encrypted store below a prefix.
#[derive(Clone)]
pub struct Storage {
    store: Arc<dyn Store>,
    barrier: Arc<Barrier>,
    prefix: Arc<str>,
    term: Option<Term>,
    /// A full key that must have no value when a transaction is applied.
    unless: Option<Arc<str>>,
}

impl Storage {
    /// The whole store, not fenced: for reads on any node.
    pub fn new(store: Arc<dyn Store>, barrier: Arc<Barrier>) -> Self {
        Self { store, barrier, prefix: "".into(), term: None, unless: None }
    }

    /// The same view for a holder of leadership in `term`.
    pub fn fenced(&self, term: Term) -> Self {
        Self { term: Some(term), ..self.clone() }
    }

    /// The same view over another store, such as one that watches what passes through it.
    pub fn over(&self, store: Arc<dyn Store>) -> Self {
        Self { store, ..self.clone() }
    }

    /// The view below `prefix` of this view. `prefix` ends with a slash.
    pub fn view(&self, prefix: &str) -> Self {
        Self { prefix: format!("{}{prefix}", self.prefix).into(), ..self.clone() }
    }

    /// The same view whose transactions are refused once `key` of this view has a value.
    pub fn unless(&self, key: &str) -> Self {
        Self { unless: Some(self.full(key).into()), ..self.clone() }
    }

    /// Reads a record.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<Stored<T>>, StorageError> {
        let full = self.full(key);
        let Some(found) = self.store.read(&full)? else { return Ok(None) };
        let value = self.open(&full, &found.value)?;
        Ok(Some(Stored { value, version: found.version }))
    }

    /// Up to `limit` records below `prefix` in key order after `after`; keys are relative to this view.
    pub fn scan<T: DeserializeOwned>(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Stored<T>)>, StorageError> {
        let after = after.map(|a| self.full(a));
        let rows = self.store.scan(&self.full(prefix), after.as_deref(), limit)?;
        rows.into_iter()
            .map(|(full, found)| {
                let value = self.open(&full, &found.value)?;
                Ok((self.relative(&full), Stored { value, version: found.version }))
            })
            .collect()
    }

    /// Up to `limit` keys below `prefix` in order after `after`, relative to this view.
    pub fn scan_keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StorageError> {
        let after = after.map(|a| self.full(a));
        let keys = self.store.scan_keys(&self.full(prefix), after.as_deref(), limit)?;
        Ok(keys.iter().map(|key| self.relative(key)).collect())
    }

    /// The next segments below `prefix` (empty or ending with a slash), folders with a trailing slash.
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, StorageError> {
        Ok(self.store.list(&self.full(prefix), after, limit)?)
    }

    /// The number of records below `prefix`.
    pub fn count(&self, prefix: &str) -> Result<u64, StorageError> {
        Ok(self.store.count(&self.full(prefix))?)
    }

    /// Starts a transaction.
    pub fn txn(&self) -> Txn<'_> {
        let term = self.term.map(Condition::Term);
        let unless = self.unless.as_ref().map(|key| Condition::Absent(key.to_string()));
        let conditions = term.into_iter().chain(unless).collect();
        Txn { storage: self, batch: Batch { conditions, ops: Vec::new() } }
    }

    /// Writes one record.
    pub async fn put<T: Serialize + ?Sized>(&self, key: &str, value: &T) -> Result<Committed, StorageError> {
        let mut txn = self.txn();
        txn.put(key, value)?;
        txn.commit().await
    }

    /// Removes one record.
    pub async fn delete(&self, key: &str) -> Result<Committed, StorageError> {
        let mut txn = self.txn();
        txn.delete(key);
        txn.commit().await
    }

    /// Removes everything below `prefix`, in batches.
    pub async fn delete_prefix(&self, prefix: &str) -> Result<(), StorageError> {
        loop {
            let keys = self.scan_keys(prefix, None, 1000)?;
            if keys.is_empty() {
                return Ok(());
            }
            let mut txn = self.txn();
            keys.iter().for_each(|key| txn.delete(key));
            txn.commit().await?;
        }
    }

    /// The barrier under this view.
    pub fn barrier(&self) -> &Barrier {
        &self.barrier
    }

    /// The store under this view.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The term that fences this view's transactions.
    pub fn term(&self) -> Option<Term> {
        self.term
    }

    /// The prefix of this view.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn relative(&self, full: &str) -> String {
        full.strip_prefix(&*self.prefix).unwrap_or(full).to_owned()
    }

    fn open<T: DeserializeOwned>(&self, full: &str, ciphertext: &[u8]) -> Result<T, StorageError> {
        let plain = self
            .barrier
            .decrypt(full, ciphertext)
            .map_err(|source| StorageError::Barrier { key: full.to_owned(), source })?;
        serde_json::from_slice(&plain).map_err(|source| StorageError::Record { key: full.to_owned(), source })
    }
}

/// Changes that are applied together or not at all.
#[must_use = "a transaction does nothing until it is committed"]
pub struct Txn<'a> {
    storage: &'a Storage,
    batch: Batch,
}

impl Txn<'_> {
    /// Sets a record.
    pub fn put<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), StorageError> {
        let key = self.storage.full(key);
        let plain = serde_json::to_vec(value)
            .map(zeroize::Zeroizing::new)
            .map_err(|source| StorageError::Record { key: key.clone(), source })?;
        let value = self
            .storage
            .barrier
            .encrypt(&key, &plain)
            .map_err(|source| StorageError::Barrier { key: key.clone(), source })?;
        self.batch.ops.push(Op::Put { key, value });
        Ok(())
    }

    /// Removes a record.
    pub fn delete(&mut self, key: &str) {
        let key = self.storage.full(key);
        self.batch.ops.push(Op::Delete { key });
    }

    /// The key must have no value.
    pub fn require_absent(&mut self, key: &str) {
        self.batch.conditions.push(Condition::Absent(self.storage.full(key)));
    }

    /// A key of the whole store, whatever this view's prefix, must have no value.
    pub fn require_absent_in_store(&mut self, key: &str) {
        self.batch.conditions.push(Condition::Absent(key.to_owned()));
    }

    /// The key must have a value.
    pub fn require_present(&mut self, key: &str) {
        self.batch.conditions.push(Condition::Present(self.storage.full(key)));
    }

    /// The key must still have the version that was read.
    pub fn require_version(&mut self, key: &str, version: u64) {
        self.batch.conditions.push(Condition::Version(self.storage.full(key), version));
    }

    /// Whether nothing would change.
    pub fn is_empty(&self) -> bool {
        self.batch.ops.is_empty()
    }

    /// Commits.
    pub async fn commit(self) -> Result<Committed, StorageError> {
        self.storage.store.commit(self.batch).await.map_err(StorageError::Commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::Keyring;
    use crate::store::memory::MemoryStore;

    fn storage() -> (Arc<MemoryStore>, Storage) {
        let store = MemoryStore::new();
        (store.clone(), Storage::new(store, Barrier::opened(Keyring::generate().unwrap())))
    }

    #[tokio::test]
    async fn views_nest_and_encrypt() {
        let (store, storage) = storage();
        let view = storage.view("a/").view("b/");
        view.put("k", "hello").await.unwrap();
        assert_eq!(view.get::<String>("k").unwrap().unwrap().value, "hello");
        let raw = store.read("a/b/k").unwrap().unwrap().value;
        assert!(!raw.windows(5).any(|w| w == b"hello"));
        assert_eq!(storage.list("a/", None, 10).unwrap(), ["b/"]);
    }

    #[tokio::test]
    async fn a_former_leader_writes_nothing() {
        let (store, storage) = storage();
        let view = storage.fenced(Term::new(1));
        view.put("k", &1).await.unwrap();
        store.set_term(Term::new(2));
        let refused = view.put("k", &2).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::NotLeader);
        assert_eq!(view.get::<u32>("k").unwrap().unwrap().value, 1);
    }

    #[tokio::test]
    async fn a_changed_record_is_a_conflict() {
        let (_, storage) = storage();
        storage.put("k", &1).await.unwrap();
        let read = storage.get::<u32>("k").unwrap().unwrap();
        storage.put("k", &2).await.unwrap();
        let mut txn = storage.txn();
        txn.require_version("k", read.version);
        txn.put("k", &3).unwrap();
        assert!(txn.commit().await.unwrap_err().is_conflict());
    }
}
