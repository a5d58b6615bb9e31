//! Where leases and their indexes stand in the store, and the batches that keep them in step.
//!
//! Contract: a lease and its index entries are put and removed in one batch, so a reader of an index never needs
//! to doubt it for longer than one applied entry.

use super::clock::Wall;
use super::id::LeaseId;
use super::record::{DueEntry, Lease};
use crate::database::names;
use crate::storage::{Storage, StorageError, Stored, Txn};

/// All leases.
pub const LEASES: &str = "lease/id/";
/// All leases, by the time at which something is to be done.
pub const DUE: &str = "lease/due/";
/// Leases that could not be revoked.
pub const IRREVOCABLE: &str = "lease/irrevocable/";

/// The key of a lease.
pub fn lease_key(id: &LeaseId) -> String {
    format!("{LEASES}{id}")
}

/// The key of a lease in the index of what is due.
pub fn due_key(due: Wall, id: &LeaseId) -> String {
    format!("{DUE}{}/{id}", due.key())
}

/// The time and lease of a key of the index of what is due.
pub fn parse_due(key: &str) -> Option<(Wall, LeaseId)> {
    let (digits, id) = key.strip_prefix(DUE)?.split_once('/')?;
    Some((Wall::from_key(digits)?, LeaseId::from_client(id)))
}

/// The prefix under which the leases of a token stand.
pub fn token_prefix(token: &str) -> String {
    format!("lease/token/{token}/")
}

/// Reads a lease.
pub fn read(storage: &Storage, id: &LeaseId) -> Result<Option<Stored<Lease>>, StorageError> {
    storage.get(&lease_key(id))
}

/// Puts a new lease with all of its index entries.
pub fn insert(txn: &mut Txn<'_>, lease: &Lease) -> Result<(), StorageError> {
    txn.put(&lease_key(&lease.id), lease)?;
    txn.put(&due_key(lease.due, &lease.id), &lease.due_entry())?;
    if !lease.token.is_empty() {
        txn.put(&format!("{}{}", token_prefix(&lease.token), lease.id), &())?;
    }
    txn.put(&names::key_of(&lease.login), &names::Holder::Lease(lease.id.clone()))
}

/// Replaces a lease that was read at `before`; refused when it changed since.
pub fn replace(txn: &mut Txn<'_>, before: &Stored<Lease>, lease: &Lease) -> Result<(), StorageError> {
    let key = lease_key(&lease.id);
    txn.require_version(&key, before.version);
    txn.put(&key, lease)?;
    if before.value.due != lease.due || before.value.due_entry() != lease.due_entry() {
        txn.delete(&due_key(before.value.due, &lease.id));
        txn.put(&due_key(lease.due, &lease.id), &lease.due_entry())?;
    }
    let mark = format!("{IRREVOCABLE}{}", lease.id);
    if lease.revocation.irrevocable {
        txn.put(&mark, &lease.revocation.error)?;
    } else if before.value.revocation.irrevocable {
        txn.delete(&mark);
    }
    Ok(())
}

/// Removes a lease with all of its index entries; refused when it changed since it was read.
pub fn remove(txn: &mut Txn<'_>, lease: &Stored<Lease>) {
    let Stored { value: lease, version } = lease;
    let key = lease_key(&lease.id);
    txn.require_version(&key, *version);
    txn.delete(&key);
    txn.delete(&due_key(lease.due, &lease.id));
    if !lease.token.is_empty() {
        txn.delete(&format!("{}{}", token_prefix(&lease.token), lease.id));
    }
    if lease.revocation.irrevocable {
        txn.delete(&format!("{IRREVOCABLE}{}", lease.id));
    }
    txn.delete(&names::key_of(&lease.login));
}

/// A page of the index of what is due.
#[derive(Debug, Default)]
pub struct DuePage {
    /// What is due, in order.
    pub leases: Vec<(Wall, LeaseId, DueEntry)>,
    /// Whether more is due by now.
    pub more: bool,
    /// When the first lease that is not due yet will be.
    pub next: Option<Wall>,
}

/// Reads up to `limit` leases that are due at `now`, behind a place of the index.
pub fn due_page(
    storage: &Storage,
    now: Wall,
    after: Option<&(Wall, LeaseId)>,
    limit: usize,
) -> Result<DuePage, StorageError> {
    let after = after.map(|(due, id)| due_key(*due, id));
    let rows = storage.scan::<DueEntry>(DUE, after.as_deref(), limit)?;
    let mut page = DuePage { more: rows.len() >= limit, ..DuePage::default() };
    for (key, entry) in rows {
        let Some((due, id)) = parse_due(&key) else { continue };
        if due > now {
            page.more = false;
            page.next = Some(due);
            break;
        }
        page.leases.push((due, id, entry.value));
    }
    Ok(page)
}

/// Counts what stands below `prefix` by mount, without reading more than one record a mount.
pub fn count_by_mount(storage: &Storage, prefix: &str) -> Result<Vec<(String, u64)>, StorageError> {
    let mut counts = Vec::new();
    let mut after: Option<String> = None;
    while let Some(key) = storage.scan_keys(prefix, after.as_deref(), 1)?.into_iter().next() {
        let id = LeaseId::from_client(key.strip_prefix(prefix).unwrap_or(&key));
        let Some(lease) = read(storage, &id)? else {
            after = Some(key);
            continue;
        };
        let mount = lease.value.mount;
        let below = format!("{prefix}{mount}");
        counts.push((mount, storage.count(&below)?));
        // Nothing that starts with the mount's path sorts after this.
        after = Some(format!("{below}\u{10ffff}"));
    }
    Ok(counts)
}
