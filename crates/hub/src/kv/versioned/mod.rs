//! Version 2: every write makes a version; old ones stay readable until they are too many, deleted or destroyed.
//!
//! Layout inside the mount: `config`, `meta/<path>` and `version/<path>@<n>`. Contract: metadata and the version
//! it speaks of change in one transaction that is conditional on the metadata that was read.

mod config;
mod data;
mod merge;
mod metadata;
mod record;

use holdfast_core::Kind;

use crate::error::ApiError;
use crate::logical::{Cx, Operation, Request, Response};
use crate::mount::{MountEntry, is_gone};
use crate::storage::{Storage, Stored, Txn};
use record::{Config, Metadata};

const CONFIG: &str = "config";
const META: &str = "meta/";
/// How often a change that met another one of the same path is decided anew. Each round, one of them gets through.
const ATTEMPTS: usize = 64;

fn meta_key(path: &str) -> String {
    format!("{META}{path}")
}

/// The number follows the last `@`, so that no two paths share a key.
fn version_key(path: &str, version: u64) -> String {
    format!("version/{path}@{version}")
}

/// One request's view of the mount.
struct Kv<'a> {
    cx: &'a Cx,
    store: Storage,
}

impl<'a> Kv<'a> {
    fn new(cx: &'a Cx, mount: &MountEntry) -> Self {
        Self { cx, store: mount.live_storage(&cx.storage) }
    }

    fn config(&self) -> Result<Config, ApiError> {
        Ok(self.store.get::<Config>(CONFIG)?.map(|stored| stored.value).unwrap_or_default())
    }

    fn metadata(&self, path: &str) -> Result<Option<Stored<Metadata>>, ApiError> {
        Ok(self.store.get(&meta_key(path))?)
    }

    /// Decides on the metadata of a path and commits under the condition that it is unchanged; anew when not.
    /// `decide` may leave `None` behind, which removes the metadata.
    async fn change<T>(
        &self,
        path: &str,
        mut decide: impl FnMut(&mut Option<Metadata>, &mut Txn<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        for _ in 1..ATTEMPTS {
            match self.try_change(path, &mut decide).await {
                Err(error) if error.kind() == Kind::Conflict && !self.cx.cancel.is_cancelled() => {}
                outcome => return outcome,
            }
        }
        self.try_change(path, &mut decide).await
    }

    async fn try_change<T>(
        &self,
        path: &str,
        decide: &mut impl FnMut(&mut Option<Metadata>, &mut Txn<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let key = meta_key(path);
        let found = self.metadata(path)?;
        let mut txn = self.store.txn();
        match &found {
            Some(stored) => txn.require_version(&key, stored.version),
            None => txn.require_absent(&key),
        }
        let before = found.map(|stored| stored.value);
        let mut after = before.clone();
        let result = decide(&mut after, &mut txn)?;
        if after == before && txn.is_empty() {
            return Ok(result);
        }
        match &after {
            Some(metadata) => txn.put(&key, metadata)?,
            None => txn.delete(&key),
        }
        match txn.commit().await {
            Ok(_) => Ok(result),
            Err(error) if error.is_conflict() && !is_gone(&error) => {
                let text = "the secret was changed by another request; try again";
                let mut busy = ApiError::with_status(Kind::Conflict, 503, text).caused_by(error);
                busy.retry_after = Some(1);
                Err(busy)
            }
            Err(error) => Err(error.into()),
        }
    }
}

pub(super) fn exists(cx: &Cx, mount: &MountEntry, request: &Request) -> Result<bool, ApiError> {
    match request.rest.split_once('/') {
        Some(("data" | "metadata", path)) => Ok(Kv::new(cx, mount).metadata(path)?.is_some()),
        _ => Ok(true),
    }
}

pub(super) fn fields(rest: &str) -> Option<Vec<&'static str>> {
    let settings = ["max_versions", "cas_required", "delete_version_after"];
    match rest.split_once('/') {
        Some(("metadata", _)) => Some([&settings[..], &["custom_metadata", "path"]].concat()),
        None if rest == CONFIG => Some(settings.to_vec()),
        _ => None,
    }
}

pub(super) async fn handle(cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
    let kv = Kv::new(cx, mount);
    let (family, path) = request.rest.split_once('/').unwrap_or((&request.rest, ""));
    if family == "metadata" && request.operation == Operation::List {
        return super::list(&kv.store.view(META), path, request);
    }
    if family == CONFIG && path.is_empty() {
        return config::handle(&kv, request).await;
    }
    if !matches!(family, "data" | "metadata" | "delete" | "undelete" | "destroy") {
        return Err(not_versioned(&request.rest));
    }
    super::check_path(path)?;
    match (family, request.operation) {
        ("data", Operation::Read) => data::read(&kv, path, request),
        ("data", Operation::Write) => data::write(&kv, path, &request.data).await,
        ("data", Operation::Patch) => data::patch(&kv, path, &request.data).await,
        ("data", Operation::Delete) => data::delete_newest(&kv, path).await,
        ("metadata", Operation::Read) => metadata::read(&kv, path),
        ("metadata", Operation::Write) => metadata::write(&kv, path, &request.data).await,
        ("metadata", Operation::Patch) => metadata::patch(&kv, path, &request.data).await,
        ("metadata", Operation::Delete) => metadata::delete(&kv, path).await,
        ("delete", Operation::Write) => data::delete(&kv, path, &request.data).await,
        ("undelete", Operation::Write) => data::undelete(&kv, path, &request.data).await,
        ("destroy", Operation::Write) => data::destroy(&kv, path, &request.data).await,
        _ => Err(ApiError::unsupported_operation()),
    }
}

/// Clients that take the mount for a plain one leave the `data/` out; the warning says so.
fn not_versioned(rest: &str) -> ApiError {
    let mut error = ApiError::unsupported_path();
    error.warnings.push(format!("this kv mount keeps versions: values are at data/{rest}"));
    error
}

#[cfg(test)]
#[path = "versioned_tests.rs"]
mod tests;
