//! Changes of the mount table: enabling, tuning and disabling.
//!
//! A change is decided on a table that was read and is refused by the store if the table changed since, by a
//! condition on one revision record that every change rewrites.

use holdfast_core::Kind;
use serde::{Deserialize, Serialize};

use super::registry::{self, Class, Implied, MountType};
use super::table::{self, Table};
use super::{ENTRIES, GONE, LeaseTtls, MountEntry};
use crate::error::ApiError;
use crate::logical::{Cx, Data};
use crate::storage::Txn;
use crate::wall;

/// Rewritten by every change of the table.
const REVISION: &str = "sys/mount-revision";
/// How often a change that met another one is decided anew.
const ATTEMPTS: usize = 8;
/// Seconds after which a removed mount is forgotten; a request may take minutes.
const FORGET_AFTER: i64 = 24 * 3600;
/// Removed mounts that one removal forgets.
const FORGET_AT_ONCE: usize = 256;
/// The longest path of a mount, in bytes.
const MAX_PATH: usize = 512;

#[derive(Default, Deserialize, Serialize)]
struct Revision {
    changes: u64,
}

/// Secrets engines and login methods are mounted by the same rules at different places.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Family {
    /// `sys/mounts`.
    Secret,
    /// `sys/auth`.
    Auth,
}

impl Family {
    /// The whole path of the mount that a caller names without the family's prefix.
    pub fn path(self, named: &str) -> String {
        let named = named.trim_matches('/');
        match self {
            Self::Secret => format!("{named}/"),
            Self::Auth => format!("auth/{named}/"),
        }
    }

    /// The path as the caller names it.
    pub fn shown(self, path: &str) -> &str {
        match self {
            Self::Secret => path,
            Self::Auth => path.strip_prefix("auth/").unwrap_or(path),
        }
    }

    /// Whether the mount belongs to the family.
    pub fn has(self, mount: &MountEntry) -> bool {
        mount.is_auth() == (self == Self::Auth)
    }

    /// 400: there is no such mount.
    pub fn missing(self, path: &str) -> ApiError {
        ApiError::invalid(match self {
            Self::Secret => format!("No secret engine mount at {path}"),
            Self::Auth => format!("No auth engine at {}", self.shown(path)),
        })
    }

    fn class(self) -> Class {
        match self {
            Self::Secret => Class::Secret,
            Self::Auth => Class::Auth,
        }
    }
}

/// Enables a mount as the request's fields say; returns what the client should be warned of.
pub async fn enable(cx: &Cx, family: Family, named: &str, data: &Data) -> Result<Vec<String>, ApiError> {
    let path = family.path(named);
    check_path(family, &path)?;
    let (entry, warnings) = new_entry(cx.hub.mounts.system, family, path, data)?;
    change(cx, |table, txn| {
        check_free(family, &entry.path, table)?;
        check_single(&entry, table)?;
        txn.require_absent(&format!("{ENTRIES}{}", entry.path));
        Ok(txn.put(&format!("{ENTRIES}{}", entry.path), &entry)?)
    })
    .await?;
    tracing::info!(path = %entry.path, kind = %entry.kind, "mount enabled");
    Ok(warnings)
}

/// Changes description, lease times and options of a mount; returns what the client should be warned of.
pub async fn tune(cx: &Cx, family: Family, path: &str, data: &Data) -> Result<Vec<String>, ApiError> {
    let mut warnings = Vec::new();
    change(cx, |table, txn| {
        let current = table.get(path).filter(|e| family.has(e)).ok_or_else(|| family.missing(path))?;
        let mut entry = MountEntry::clone(current);
        warnings = apply_tuning(&mut entry, data, cx.hub.mounts.system)?;
        tune_options(&mut entry, data)?;
        Ok(txn.put(&format!("{ENTRIES}{path}"), &entry)?)
    })
    .await?;
    Ok(warnings)
}

/// Disables a mount: it answers nothing from now on, its leases are revoked, then it and its data are removed.
///
/// Disabling what is not there succeeds. When leases could not be revoked the mount stays, answering nothing,
/// and the same call can be made again.
pub async fn disable(cx: &Cx, family: Family, named: &str) -> Result<(), ApiError> {
    let path = family.path(named);
    if family == Family::Secret && path.starts_with("auth/") {
        return Err(family.missing(&path));
    }
    if table::is_built_in(&path) {
        return Err(ApiError::invalid(format!("cannot unmount {:?}", family.shown(&path))));
    }
    let Some(route) = cx.hub.mounts.owner(&path)?.filter(|route| route.mount.path == path) else {
        return Ok(());
    };
    if !route.mount.tainted {
        taint(cx, &path).await?;
    }
    revoke_all(cx, &path).await?;
    route.engine.unmounted(cx, &route.mount).await?;
    route.mount.storage(&cx.storage).delete_prefix("").await?;
    change(cx, |_, txn| {
        txn.delete(&format!("{ENTRIES}{path}"));
        Ok(())
    })
    .await?;
    tracing::info!(%path, "mount disabled");
    forget_gone(cx).await
}

async fn taint(cx: &Cx, path: &str) -> Result<(), ApiError> {
    change(cx, |table, txn| {
        let Some(current) = table.get(path) else { return Ok(()) };
        let entry = MountEntry { tainted: true, ..MountEntry::clone(current) };
        txn.put(&format!("{GONE}{}", entry.uuid), &wall::now_unix())?;
        Ok(txn.put(&format!("{ENTRIES}{path}"), &entry)?)
    })
    .await
}

/// Forgets mounts that have been gone for so long that no request which they let in can still be running.
async fn forget_gone(cx: &Cx) -> Result<(), ApiError> {
    let before = wall::now_unix().saturating_sub(FORGET_AFTER);
    let mut txn = cx.storage.txn();
    for (key, since) in cx.storage.scan::<i64>(GONE, None, FORGET_AT_ONCE)? {
        let uuid = key.strip_prefix(GONE).unwrap_or_default();
        if since.value < before && cx.hub.mounts.all()?.iter().all(|entry| entry.uuid != uuid) {
            txn.delete(&key);
        }
    }
    if !txn.is_empty() {
        txn.commit().await?;
    }
    Ok(())
}

/// Revokes what the mount issued, or says how much of it is left.
async fn revoke_all(cx: &Cx, path: &str) -> Result<(), ApiError> {
    if path.starts_with("auth/") {
        cx.hub.tokens.revoke_made_by(cx, path).await?;
    }
    let failed = cx.hub.leases.revoke_prefix(cx, path, true).await?;
    match failed.max(cx.storage.count(&format!("lease/id/{path}"))?) {
        0 => Ok(()),
        left => Err(left_over(path, left)),
    }
}

fn left_over(path: &str, left: u64) -> ApiError {
    ApiError::invalid(format!(
        "{left} leases below {path} could not be revoked; \
         to drop them without revoking, use sys/leases/revoke-force/{path}"
    ))
}

/// Decides on the table as stored and commits under the condition that it is still that table; anew when not.
async fn change(
    cx: &Cx,
    mut decide: impl FnMut(&Table, &mut Txn<'_>) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    for _ in 1..ATTEMPTS {
        match try_change(cx, &mut decide).await {
            Err(error) if error.kind() == Kind::Conflict => {}
            outcome => return outcome,
        }
    }
    try_change(cx, &mut decide).await
}

async fn try_change(
    cx: &Cx,
    decide: &mut impl FnMut(&Table, &mut Txn<'_>) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    // The revision is read before the table: a change in between fails the condition.
    let revision = cx.storage.get::<Revision>(REVISION)?;
    let table = cx.hub.mounts.table()?;
    let mut txn = cx.storage.txn();
    let next = match &revision {
        Some(stored) => {
            txn.require_version(REVISION, stored.version);
            stored.value.changes.saturating_add(1)
        }
        None => {
            txn.require_absent(REVISION);
            1
        }
    };
    decide(&table, &mut txn)?;
    if txn.is_empty() {
        return Ok(());
    }
    txn.put(REVISION, &Revision { changes: next })?;
    match txn.commit().await {
        Ok(_) => Ok(()),
        Err(error) if error.is_conflict() => {
            let text = "the mount table was changed by another request; try again";
            let mut busy = ApiError::with_status(Kind::Conflict, 503, text).caused_by(error);
            busy.retry_after = Some(1);
            Err(busy)
        }
        Err(error) => Err(error.into()),
    }
}

fn check_path(family: Family, path: &str) -> Result<(), ApiError> {
    let named = family.shown(path);
    if named == "/" {
        return Err(ApiError::invalid("the path of a mount must not be empty"));
    }
    if path.len() > MAX_PATH || path.chars().any(|c| c.is_control()) || path.contains("//") {
        return Err(ApiError::invalid(format!("invalid mount path {named:?}")));
    }
    if path.split('/').any(|segment| segment == ".." || segment == ".") {
        return Err(ApiError::invalid("path cannot contain parent references"));
    }
    let in_auth = path.starts_with("auth/");
    if table::is_protected(path) && !table::is_built_in(path) || (family == Family::Secret && in_auth) {
        return Err(ApiError::invalid(format!("cannot mount {named:?}")));
    }
    Ok(())
}

fn check_free(family: Family, path: &str, table: &Table) -> Result<(), ApiError> {
    match table.overlap(path) {
        None => Ok(()),
        Some(found) if found.path == path => {
            Err(ApiError::invalid(format!("path is already in use at {}", family.shown(path))))
        }
        Some(found) => Err(ApiError::invalid(format!("existing mount at {}", family.shown(&found.path)))),
    }
}

/// There is one relay in a cluster: what it holds is its own part of the store and of every node.
fn check_single(entry: &MountEntry, table: &Table) -> Result<(), ApiError> {
    let twin = table.entries().find(|other| entry.kind == crate::relay::KIND && other.kind == entry.kind);
    match twin {
        None => Ok(()),
        Some(twin) => Err(ApiError::invalid(format!("a relay mount exists already at {}", twin.path))),
    }
}

fn new_entry(
    system: LeaseTtls,
    family: Family,
    path: String,
    data: &Data,
) -> Result<(MountEntry, Vec<String>), ApiError> {
    let (kind, implied) = mount_type(family, data)?;
    let config = data.object("config")?.unwrap_or_default();
    let mut entry = MountEntry {
        path,
        kind: kind.name.to_owned(),
        uuid: uuid::Uuid::new_v4().to_string(),
        accessor: format!("{}_{:08x}", kind.name, rand::random::<u32>()),
        local: data.bool("local")?.unwrap_or_default(),
        seal_wrap: data.bool("seal_wrap")?.unwrap_or_default(),
        ..MountEntry::default()
    };
    let warnings = apply_tuning(&mut entry, &config, system)?;
    entry.description = data.string("description")?.unwrap_or(entry.description);
    entry.options.extend(data.string_map("options")?.unwrap_or_default());
    entry.options.extend(implied.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    check_options(&entry)?;
    Ok((entry, warnings))
}

fn mount_type(family: Family, data: &Data) -> Result<(&'static MountType, Implied), ApiError> {
    let mut name = data.required("type", "backend type must be specified as a string")?;
    if name == "plugin" {
        // Older clients name the type beside the general word.
        let config = data.object("config")?.unwrap_or_default();
        name = config.string("plugin_name")?.or(data.string("plugin_name")?).unwrap_or(name);
    }
    registry::find(&name)
        .filter(|(kind, _)| kind.class == family.class())
        .ok_or_else(|| ApiError::invalid(format!("plugin not found in the catalog: {name}")))
}

fn apply_tuning(entry: &mut MountEntry, data: &Data, system: LeaseTtls) -> Result<Vec<String>, ApiError> {
    if let Some(description) = data.string("description")? {
        entry.description = description;
    }
    entry.default_lease_ttl = ttl(data, "default_lease_ttl")?.unwrap_or(entry.default_lease_ttl);
    entry.max_lease_ttl = ttl(data, "max_lease_ttl")?.unwrap_or(entry.max_lease_ttl);
    check_ttls(entry, system)
}

/// A lease time in seconds; `system` and 0 mean the system's.
fn ttl(data: &Data, field: &str) -> Result<Option<u64>, ApiError> {
    if data.string(field).is_ok_and(|text| text.as_deref() == Some("system")) {
        return Ok(Some(0));
    }
    Ok(data.duration(field)?.map(|d| d.as_secs()))
}

fn check_ttls(entry: &MountEntry, system: LeaseTtls) -> Result<Vec<String>, ApiError> {
    let (default, max) = (entry.default_lease_ttl, entry.max_lease_ttl);
    if max != 0 && default > max {
        return Err(ApiError::invalid("given default lease TTL greater than given max lease TTL"));
    }
    if max == 0 && default > system.max {
        let text = format!("given default lease TTL greater than system max lease TTL of {}s", system.max);
        return Err(ApiError::invalid(text));
    }
    let capped = max > system.max;
    Ok(capped
        .then(|| format!("max_lease_ttl is above the system's maximum of {}s, which holds", system.max))
        .into_iter()
        .collect())
}

/// Merges options; the layout of a mount's data stays what it is.
fn tune_options(entry: &mut MountEntry, data: &Data) -> Result<(), ApiError> {
    let version =
        |entry: &MountEntry| entry.options.get("version").cloned().unwrap_or_else(|| "1".to_owned());
    let before = version(entry);
    entry.options.extend(data.string_map("options")?.unwrap_or_default());
    check_options(entry)?;
    if entry.kind == "kv" && version(entry) != before {
        return Err(ApiError::invalid("the version of a kv mount cannot be changed"));
    }
    Ok(())
}

fn check_options(entry: &MountEntry) -> Result<(), ApiError> {
    match entry.options.get("version").map(String::as_str) {
        None | Some("1" | "2") => Ok(()),
        Some(_) if entry.kind != "kv" => Ok(()),
        Some(other) => Err(ApiError::invalid(format!("unsupported kv version {other:?}"))),
    }
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
