//! The mount table: which engine serves which path.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::storage::Storage;

/// A mounted engine.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct MountEntry {
    /// The whole prefix with a trailing slash, `auth/` included for login methods.
    pub path: String,
    /// The mount type by name.
    pub kind: String,
    /// Names the mount's part of the store: `logical/<uuid>/`.
    pub uuid: String,
    /// Changes never: `<type>_<8 hex>`.
    pub accessor: String,
    /// For people.
    pub description: String,
    /// Type-specific options.
    pub options: BTreeMap<String, String>,
    /// Seconds; 0 for the system's default.
    pub default_lease_ttl: u64,
    /// Seconds; 0 for the system's maximum.
    pub max_lease_ttl: u64,
    /// Accepted and shown; no other effect.
    pub local: bool,
    /// Accepted and shown; no other effect.
    pub seal_wrap: bool,
    /// Set while the mount is being removed: it answers nothing any more.
    pub tainted: bool,
}

impl MountEntry {
    /// The mount's own part of a storage view of the whole store.
    pub fn storage(&self, storage: &Storage) -> Storage {
        storage.view(&format!("logical/{}/", self.uuid))
    }
}

/// The mount table, cached until an applied entry changes it.
pub struct Mounts {
    storage: Storage,
}

impl Mounts {
    /// Over the whole store.
    pub fn new(storage: Storage) -> Self {
        Self { storage }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }
}
