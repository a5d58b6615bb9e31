//! Connection configurations as they are stored.
//!
//! Contract: a configuration has an id of its own, by which leases, intents and static roles refer to it. A name
//! points to an id; deleting takes the name away at once, and the record stays, hidden, until nothing refers to it.
//! The records lie outside the mount's own part of the store, so they outlive the mount too.

use holdfast_dbdriver::DriverConfig;
use serde::{Deserialize, Serialize};

use super::names;
use super::paths::Place;
use crate::error::ApiError;
use crate::lease::record::Queue;
use crate::storage::{Storage, StorageError, Stored};

/// Names of configurations, in the mount's own part of the store.
pub const NAMES: &str = "config/";

/// A connection configuration.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Connection {
    /// Its unique id.
    pub id: String,
    /// The unique id of its mount.
    pub mount_uuid: String,
    /// The name under which it was written.
    pub name: String,
    /// The name is gone; kept for what still refers to it.
    pub deleted: bool,
    /// What an operator must look at, after a rotation whose outcome could not be found out; empty for nothing.
    pub needs_attention: String,
    /// How the database is reached.
    pub config: DriverConfig,
}

impl Connection {
    /// The key of its record in the whole store.
    pub fn key(&self) -> String {
        key(&self.mount_uuid, &self.id)
    }

    /// What refers to it from the queues.
    pub fn queue(&self) -> Queue {
        Queue { mount_uuid: self.mount_uuid.clone(), config_id: self.id.clone() }
    }
}

/// The key of a configuration's record in the whole store.
pub fn key(mount_uuid: &str, id: &str) -> String {
    format!("dbconn/{mount_uuid}/{id}")
}

/// The configuration that a lease or intent refers to, deleted or not.
pub fn by_queue(storage: &Storage, queue: &Queue) -> Result<Option<Stored<Connection>>, StorageError> {
    storage.get(&key(&queue.mount_uuid, &queue.config_id))
}

/// A name with the configuration it points to.
pub struct Named {
    /// The pointer, for conditions.
    pub pointer: Stored<String>,
    /// The configuration.
    pub connection: Stored<Connection>,
}

/// The key of a name in the mount's own part of the store.
pub fn pointer_key(name: &str) -> String {
    format!("{NAMES}{name}")
}

/// The configuration of a name.
pub fn by_name(place: &Place<'_>, name: &str) -> Result<Option<Named>, ApiError> {
    let Some(pointer) = place.storage.get::<String>(&pointer_key(name))? else { return Ok(None) };
    let record = place.cx.storage.get::<Connection>(&key(&place.mount.uuid, &pointer.value))?;
    Ok(record.map(|connection| Named { pointer, connection }))
}

/// Forgets a deleted configuration once nothing refers to it any more. Says whether it is gone: its driver may be
/// retired then.
pub async fn collect(storage: &Storage, queue: &Queue) -> Result<bool, StorageError> {
    let Some(found) = by_queue(storage, queue)? else { return Ok(true) };
    if !found.value.deleted || names::count(storage, &queue.mount_uuid, &queue.config_id)? > 0 {
        return Ok(false);
    }
    let key = found.value.key();
    let mut txn = storage.txn();
    txn.require_version(&key, found.version);
    txn.delete(&key);
    match txn.commit().await {
        Ok(_) => Ok(true),
        Err(error) if error.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}
