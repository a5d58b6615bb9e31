//! The records of the intent protocol: written before a database user is made, gone when its lease is written or
//! the user is removed.

use holdfast_core::intent::{Batch, Key, Next, State, Written};
use holdfast_core::{Kind, Term};
use serde::{Deserialize, Serialize};

use super::names;
use crate::lease::record::Queue;
use crate::lease::{Lease, Login, Wall, index};
use crate::storage::{Storage, StorageError, Stored, Txn};

/// All intents.
pub const INTENTS: &str = "intent/";

/// An intent.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Intent {
    /// How far it has come.
    pub state: State,
    /// The term in which it was opened.
    pub term: Term,
    /// When it was opened.
    pub opened: Wall,
    /// After this instant nothing may make its user any more.
    pub deadline: Wall,
    /// The spoke that makes the user; empty for this process.
    pub spoke: String,
    /// The user, and how it is removed.
    pub login: Login,
}

impl Intent {
    /// Who removes its user.
    pub fn queue(&self) -> Queue {
        self.login.queue()
    }
}

/// The key of an intent in the state machines, from its text in records.
pub fn parse_key(text: &str) -> Option<Key> {
    u128::from_str_radix(text, 16).ok().map(Key::new)
}

/// The text of a key in records.
pub fn key_text(key: Key) -> String {
    format!("{:032x}", key.into_inner())
}

/// The storage key of an intent.
pub fn record_key(key: Key) -> String {
    format!("{INTENTS}{}", key_text(key))
}

/// Reads an intent.
pub fn read(storage: &Storage, key: Key) -> Result<Option<Stored<Intent>>, StorageError> {
    storage.get(&record_key(key))
}

/// What a batch puts beside the change of the intent.
pub enum With<'a> {
    /// Nothing.
    Nothing,
    /// The lease, and conditions that its owner sets.
    Lease(&'a Lease),
}

/// Writes the batch that opens an intent; `conditions` adds to its conditions.
pub async fn open(
    storage: &Storage,
    key: Key,
    intent: &Intent,
    conditions: impl FnOnce(&mut Txn<'_>),
) -> Result<Stored<Intent>, StorageError> {
    let (record, name) = (record_key(key), names::key_of(&intent.login));
    let mut txn = storage.txn();
    txn.require_absent(&name);
    txn.require_absent(&record);
    conditions(&mut txn);
    txn.put(&record, intent)?;
    txn.put(&name, &names::Holder::Intent(key_text(key)))?;
    let version = txn.commit().await?.version;
    Ok(Stored { value: intent.clone(), version })
}

/// Writes the batch that moves an intent on, on condition that it is as it was read.
pub async fn advance(
    storage: &Storage,
    batch: Batch,
    intent: &Stored<Intent>,
    with: With<'_>,
    conditions: impl FnOnce(&mut Txn<'_>),
) -> Result<Stored<Intent>, StorageError> {
    let key = record_key(batch.key);
    let mut next = intent.value.clone();
    let mut txn = storage.txn();
    txn.require_version(&key, intent.version);
    conditions(&mut txn);
    match batch.to {
        Next::State(state) => {
            next.state = state;
            txn.put(&key, &next)?;
        }
        Next::Lease => {
            txn.delete(&key);
            if let With::Lease(lease) = with {
                index::insert(&mut txn, lease)?;
            }
        }
        Next::Nothing => {
            txn.delete(&key);
            txn.delete(&names::key_of(&next.login));
        }
    }
    let version = txn.commit().await?.version;
    Ok(Stored { value: next, version })
}

/// What a failed write means to the state machines.
pub fn written(error: &StorageError) -> Written {
    match error.kind() {
        Kind::Timeout => Written::Unknown,
        // Nothing was proposed, or a condition refused it: nothing will be applied.
        _ => Written::Refused,
    }
}

/// Whether a write was refused because this key has a value.
pub fn name_is_taken(error: &StorageError, name: &str) -> bool {
    use crate::store::{CommitError, Condition};
    matches!(error, StorageError::Commit(CommitError::Refused(Condition::Absent(key))) if key == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_one_text() {
        let key = Key::new(7);
        assert_eq!(key_text(key), "00000000000000000000000000000007");
        assert_eq!(parse_key(&key_text(key)), Some(key));
        assert_eq!(parse_key("x"), None);
    }
}
