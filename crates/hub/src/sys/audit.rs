//! `sys/audit` and `sys/audit-hash`: show, enable and disable audit devices, and hash a value as they do.

use serde_json::{Map, Value, json};

use crate::audit::entry::DeviceEntry;
use crate::audit::{self, DEVICES};
use crate::error::ApiError;
use crate::logical::{Cx, Operation, Request, Response};
use crate::storage::StorageError;

pub(super) async fn handle(cx: &Cx, rest: &str, request: &Request) -> Result<Response, ApiError> {
    let named = rest.trim_matches('/');
    match (named.is_empty(), request.operation) {
        (true, Operation::Read | Operation::List) => list(cx),
        (false, Operation::Read) => read(cx, named),
        (false, Operation::Write) => enable(cx, named, request).await,
        (false, Operation::Delete) => disable(cx, named).await,
        _ => Err(ApiError::unsupported_operation()),
    }
}

/// `sys/audit-hash/<p>`: the hash under which devices show a value.
pub(super) fn handle_hash(cx: &Cx, rest: &str, request: &Request) -> Result<Response, ApiError> {
    if request.operation != Operation::Write {
        return Err(ApiError::unsupported_operation());
    }
    let named = rest.trim_matches('/');
    if cx.storage.get::<DeviceEntry>(&key(named))?.is_none() {
        return Err(ApiError::invalid(format!("unknown audit backend {named:?}")));
    }
    let input = request.data.required("input", "the \"input\" parameter is empty")?;
    let hash = audit::hash(cx.storage.barrier(), &input)
        .map_err(|source| StorageError::Barrier { key: key(named), source })?;
    Ok(Response::data(Map::from_iter([("hash".to_owned(), Value::from(hash))])))
}

fn key(named: &str) -> String {
    format!("{DEVICES}{named}/")
}

fn list(cx: &Cx) -> Result<Response, ApiError> {
    let stored = cx.storage.scan::<DeviceEntry>(DEVICES, None, usize::MAX)?;
    let shown = stored.into_iter().map(|(_, found)| (found.value.path.clone(), describe(&found.value)));
    Ok(Response::mirrored(shown.collect()))
}

fn read(cx: &Cx, named: &str) -> Result<Response, ApiError> {
    let found = cx.storage.get::<DeviceEntry>(&key(named))?.ok_or_else(ApiError::missing)?;
    match describe(&found.value) {
        Value::Object(map) => Ok(Response::mirrored(map)),
        _ => Err(ApiError::missing()),
    }
}

async fn enable(cx: &Cx, named: &str, request: &Request) -> Result<Response, ApiError> {
    if named.len() > 512 || named.chars().any(char::is_control) {
        return Err(ApiError::invalid("invalid path of an audit device"));
    }
    let entry = DeviceEntry::parse(named, &request.data)?;
    cx.hub.audit.check(&entry).await?;
    let mut txn = cx.storage.txn();
    txn.require_absent(&key(named));
    txn.put(&key(named), &entry)?;
    match txn.commit().await {
        Ok(_) => {
            tracing::info!(device = %entry.path, "audit device enabled");
            Ok(Response::no_content())
        }
        Err(error) if error.is_conflict() => Err(ApiError::invalid("path already in use")),
        Err(error) => Err(error.into()),
    }
}

/// Disabling what is not there succeeds.
async fn disable(cx: &Cx, named: &str) -> Result<Response, ApiError> {
    cx.storage.delete(&key(named)).await?;
    tracing::info!(device = named, "audit device disabled");
    Ok(Response::no_content())
}

fn describe(entry: &DeviceEntry) -> Value {
    json!({
        "description": entry.description,
        "local": entry.local,
        "options": entry.given,
        "path": entry.path,
        "type": entry.kind,
    })
}
