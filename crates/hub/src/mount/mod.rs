//! The mount table: which engine serves which path.
//!
//! Contract: paths of mounts never contain each other, because every change of the table is conditional on the
//! table it was decided on.

pub mod change;
pub mod registry;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cached::Cached;
use crate::error::ApiError;
use crate::storage::{Storage, StorageError, Txn};
use crate::store::{CommitError, Condition};
pub use table::Route;
use table::{Engines, Table};

/// Where the entries are, by path.
pub(crate) const ENTRIES: &str = "sys/mounts/";
/// Marks of mounts that are being removed or are gone, by unique id.
const GONE: &str = "sys/mount-gone/";
/// 32 days, in seconds.
const DEFAULT_TTL: u64 = 768 * 3600;

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

    /// As [`MountEntry::storage`], for what requests write: it is refused once the mount is being removed, so that
    /// nothing lands behind the removal and stays for ever.
    pub fn live_storage(&self, storage: &Storage) -> Storage {
        self.storage(&storage.unless(&self.gone_key()))
    }

    /// Makes a transaction depend on the mount not being removed when it is applied. What a mount issues puts this
    /// into its batch: it is then either found by the removal, or not made.
    pub fn require_mounted(&self, txn: &mut Txn<'_>) {
        txn.require_absent_in_store(&self.gone_key());
    }

    fn gone_key(&self) -> String {
        format!("{GONE}{}", self.uuid)
    }

    /// Whether it is a login method.
    pub fn is_auth(&self) -> bool {
        self.path.starts_with("auth/")
    }
}

/// Whether a write was refused because its mount is being removed.
pub fn is_gone(error: &StorageError) -> bool {
    matches!(error, StorageError::Commit(CommitError::Refused(Condition::Absent(key))) if key.starts_with(GONE))
}

/// Whether a request failed because its mount is being removed.
pub fn was_gone(error: &ApiError) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<StorageError>());
    cause.is_some_and(is_gone)
}

/// How long leases live, in seconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LeaseTtls {
    /// When nothing else is asked for.
    pub default: u64,
    /// At most, since the issue.
    pub max: u64,
}

impl Default for LeaseTtls {
    fn default() -> Self {
        Self { default: DEFAULT_TTL, max: DEFAULT_TTL }
    }
}

/// The mount table, cached until an applied entry changes it.
pub struct Mounts {
    storage: Storage,
    engines: Engines,
    table: Cached<Table>,
    system: LeaseTtls,
}

impl Mounts {
    /// Over the whole store, with the default lease times.
    pub fn new(storage: Storage) -> Self {
        Self::with_ttls(storage, LeaseTtls::default())
    }

    /// Over the whole store, with the lease times of the configuration.
    pub fn with_ttls(storage: Storage, system: LeaseTtls) -> Self {
        let engines = registry::TYPES.iter().map(|t| (t.name, (t.engine)())).collect();
        let table = Cached::watching(&storage, &[ENTRIES]);
        Self { storage, engines, table, system }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The mount that answers `path`, which carries no `/v1/`. A mount that is being removed answers nothing.
    pub fn route(&self, path: &str) -> Result<Option<Route>, ApiError> {
        Ok(self.table()?.route(path, &self.engines).filter(|route| !route.mount.tainted))
    }

    /// The mount to which `path` belongs, also while that is being removed: for revocations.
    pub fn owner(&self, path: &str) -> Result<Option<Route>, ApiError> {
        Ok(self.table()?.route(path, &self.engines))
    }

    /// All mounts by path, those that are being removed too.
    pub fn all(&self) -> Result<Vec<Arc<MountEntry>>, ApiError> {
        Ok(self.table()?.entries().cloned().collect())
    }

    /// The mount at exactly this path, which ends with a slash.
    pub fn get(&self, path: &str) -> Result<Option<Arc<MountEntry>>, ApiError> {
        Ok(self.table()?.get(path).cloned())
    }

    /// The lease times that hold for a mount: its own where set, never above the system's maximum.
    pub fn ttls(&self, mount: &MountEntry) -> LeaseTtls {
        let or = |own: u64, system: u64| if own == 0 { system } else { own };
        let max = or(mount.max_lease_ttl, self.system.max).min(self.system.max);
        LeaseTtls { default: or(mount.default_lease_ttl, self.system.default).min(max), max }
    }

    /// The lease times of the configuration.
    pub fn system_ttls(&self) -> LeaseTtls {
        self.system
    }

    fn table(&self) -> Result<Arc<Table>, StorageError> {
        self.table.load(|| {
            let stored = self.storage.scan::<MountEntry>(ENTRIES, None, usize::MAX)?;
            Ok(Table::new(stored.into_iter().map(|(_, stored)| stored.value)))
        })
    }
}
