//! Spokes that an operator locked out: they do not enrol, renew or connect.

use holdfast_core::SpokeName;
use serde_json::{Value, json};

use super::record::{DENIED, DeniedRecord};
use crate::error::ApiError;
use crate::logical::{Cx, Operation, Request, Response};
use crate::mount::MountEntry;
use crate::wall;

/// `denied-spokes` and `denied-spokes/<name>`.
pub async fn handle(
    cx: &Cx,
    mount: &MountEntry,
    request: &Request,
    name: &str,
) -> Result<Response, ApiError> {
    match (name, request.operation) {
        ("", Operation::List) => list(cx, request),
        ("", _) => Err(ApiError::unsupported_operation()),
        (_, Operation::Read) => {
            let found = cx.storage.get::<DeniedRecord>(&key(name)?)?.ok_or_else(ApiError::missing)?;
            Ok(Response::data(shown(&found.value).as_object().cloned().unwrap_or_default()))
        }
        (_, Operation::Write) => deny(cx, mount, request, name).await,
        (_, Operation::Delete) => {
            cx.storage.delete(&key(name)?).await?;
            tracing::info!(spoke = name, "spoke allowed again");
            Ok(Response::no_content())
        }
        _ => Err(ApiError::unsupported_operation()),
    }
}

async fn deny(cx: &Cx, mount: &MountEntry, request: &Request, name: &str) -> Result<Response, ApiError> {
    let reason = request.data.string("reason")?.unwrap_or_default();
    let key = key(name)?;
    let mut txn = cx.storage.txn();
    mount.require_mounted(&mut txn);
    txn.put(&key, &DeniedRecord { reason, created_unix: wall::now_unix() })?;
    txn.commit().await?;
    tracing::info!(spoke = name, "spoke denied");
    Ok(Response::no_content())
}

fn list(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    let (after, limit) = request.page()?;
    let keys = cx.storage.list(DENIED, after.as_deref(), limit)?;
    if keys.is_empty() {
        return Err(ApiError::missing());
    }
    let denied = cx.hub.relay.authority.denied()?;
    let info = |name: &String| {
        let record = name.parse::<SpokeName>().ok().and_then(|name| denied.get(&name).map(shown));
        (name.clone(), record.unwrap_or_default())
    };
    let info = keys.iter().map(info).collect();
    Ok(Response::keys(keys, Some(info)))
}

fn shown(record: &DeniedRecord) -> Value {
    json!({ "reason": record.reason, "created_unix": record.created_unix })
}

fn key(name: &str) -> Result<String, ApiError> {
    let name = name.parse::<SpokeName>().map_err(|error| ApiError::invalid(error.to_string()))?;
    Ok(format!("{DENIED}{name}"))
}
