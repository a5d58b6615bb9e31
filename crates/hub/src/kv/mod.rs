//! The mount type `kv`: values under paths, plain (version 1) or with their history (version 2).

mod plain;
mod versioned;

use std::sync::Arc;

use async_trait::async_trait;

use crate::error::ApiError;
use crate::logical::{Cx, Engine, Request, Response};
use crate::mount::MountEntry;
use crate::storage::Storage;

/// The engine of the mount type `kv`.
pub fn engine() -> Arc<dyn Engine> {
    Arc::new(Kv)
}

struct Kv;

#[async_trait]
impl Engine for Kv {
    async fn exists(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<bool, ApiError> {
        if is_versioned(mount) {
            return versioned::exists(cx, mount, request);
        }
        plain::exists(cx, mount, request)
    }

    fn fields(&self, mount: &MountEntry, rest: &str) -> Option<Vec<&'static str>> {
        if is_versioned(mount) { versioned::fields(rest) } else { None }
    }

    async fn handle(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
        if is_versioned(mount) {
            return versioned::handle(cx, mount, request).await;
        }
        plain::handle(cx, mount, request).await
    }
}

fn is_versioned(mount: &MountEntry) -> bool {
    mount.options.get("version").is_some_and(|version| version == "2")
}

/// Refuses a path that no value can have.
fn check_path(path: &str) -> Result<(), ApiError> {
    if path.is_empty() || path.ends_with('/') {
        return Err(ApiError::unsupported_path());
    }
    if path.chars().any(char::is_control) {
        return Err(ApiError::invalid("the path must not contain control characters"));
    }
    Ok(())
}

/// The names below `folder`, which is empty or ends with a slash; 404 when there are none.
fn list(store: &Storage, folder: &str, request: &Request) -> Result<Response, ApiError> {
    let (after, limit) = request.page()?;
    let folder = match folder {
        "" => String::new(),
        named => format!("{}/", named.trim_end_matches('/')),
    };
    let keys = store.list(&folder, after.as_deref(), limit)?;
    if keys.is_empty() {
        return Err(ApiError::missing());
    }
    Ok(Response::keys(keys, None))
}
