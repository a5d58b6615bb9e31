//! Who holds a user name: the index that keeps one name from being given out twice.
//!
//! Contract: while a lease, an intent or a static role refers to a connection configuration, a name below it is
//! held; so counting the names of a configuration tells whether it may be forgotten.

use serde::{Deserialize, Serialize};

use crate::lease::{LeaseId, Login};
use crate::storage::{Storage, StorageError};

/// Who holds a name.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// A creation under way, or its user being removed; the intent's key.
    Intent(String),
    /// A live lease.
    Lease(LeaseId),
    /// A static role, by name.
    Static(String),
}

/// The prefix of the names held under a configuration.
pub fn prefix(mount_uuid: &str, config_id: &str) -> String {
    format!("dbname/{mount_uuid}/{config_id}/")
}

/// The key of a name.
pub fn key(mount_uuid: &str, config_id: &str, username: &str) -> String {
    format!("{}{username}", prefix(mount_uuid, config_id))
}

/// The key of a login's name.
pub fn key_of(login: &Login) -> String {
    key(&login.mount_uuid, &login.config_id, &login.username)
}

/// How many leases, intents and static roles refer to a configuration.
pub fn count(storage: &Storage, mount_uuid: &str, config_id: &str) -> Result<u64, StorageError> {
    storage.count(&prefix(mount_uuid, config_id))
}
