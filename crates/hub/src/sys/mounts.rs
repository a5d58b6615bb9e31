//! `sys/mounts` and `sys/auth`: show, enable, tune and disable mounts.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::logical::{Cx, Operation, Request, Response};
use crate::mount::change::{self, Family};
use crate::mount::{LeaseTtls, MountEntry};

/// What a client may tune. The last two are sent by clients that mean nothing by them.
pub(super) const TUNING: [&str; 6] =
    ["default_lease_ttl", "max_lease_ttl", "description", "options", "path", "force_no_cache"];

pub(super) async fn handle(
    cx: &Cx,
    family: Family,
    rest: &str,
    request: &Request,
) -> Result<Response, ApiError> {
    let named = rest.trim_matches('/');
    if named.is_empty() {
        return list(cx, family, request.operation);
    }
    match named.strip_suffix("/tune") {
        Some(named) => tuning(cx, family, named, request).await,
        None => one(cx, family, named, request).await,
    }
}

fn list(cx: &Cx, family: Family, operation: Operation) -> Result<Response, ApiError> {
    if !matches!(operation, Operation::Read | Operation::List) {
        return Err(ApiError::unsupported_operation());
    }
    let all = cx.hub.mounts.all()?;
    let shown = all.iter().filter(|entry| family.has(entry));
    Ok(Response::mirrored(shown.map(|e| (family.shown(&e.path).to_owned(), describe(e))).collect()))
}

async fn one(cx: &Cx, family: Family, named: &str, request: &Request) -> Result<Response, ApiError> {
    match request.operation {
        Operation::Read => {
            let path = family.path(named);
            let entry = cx.hub.mounts.get(&path)?.filter(|entry| family.has(entry));
            let entry = entry.ok_or_else(|| family.missing(&path))?;
            Ok(Response::mirrored(into_map(describe(&entry))))
        }
        Operation::Write => Ok(warned(change::enable(cx, family, named, &request.data).await?)),
        Operation::Delete => {
            change::disable(cx, family, named).await?;
            Ok(Response::no_content())
        }
        _ => Err(ApiError::unsupported_operation()),
    }
}

/// Clients tune login methods at `sys/auth/<p>/tune` and at `sys/mounts/auth/<p>/tune`.
async fn tuning(cx: &Cx, family: Family, named: &str, request: &Request) -> Result<Response, ApiError> {
    let (family, named) = match named.strip_prefix("auth/") {
        Some(method) if family == Family::Secret => (Family::Auth, method),
        _ => (family, named),
    };
    let path = family.path(named);
    match request.operation {
        Operation::Read => {
            let entry = cx.hub.mounts.get(&path)?.filter(|entry| family.has(entry));
            let entry = entry.ok_or_else(|| family.missing(&path))?;
            Ok(Response::mirrored(describe_tuning(&entry, cx.hub.mounts.system_ttls())))
        }
        Operation::Write => Ok(warned(change::tune(cx, family, &path, &request.data).await?)),
        _ => Err(ApiError::unsupported_operation()),
    }
}

fn warned(warnings: Vec<String>) -> Response {
    warnings.into_iter().fold(Response::no_content(), Response::warn)
}

pub(super) fn describe(entry: &MountEntry) -> Value {
    let mut config = json!({
        "default_lease_ttl": entry.default_lease_ttl,
        "force_no_cache": false,
        "max_lease_ttl": entry.max_lease_ttl,
    });
    if entry.is_auth()
        && let Some(config) = config.as_object_mut()
    {
        config.insert("token_type".to_owned(), json!("default-service"));
    }
    json!({
        "accessor": entry.accessor,
        "config": config,
        "deprecation_status": "supported",
        "description": entry.description,
        "external_entropy_access": false,
        "local": entry.local,
        "options": options(entry),
        "plugin_version": "",
        "running_plugin_version": "",
        "running_sha256": "",
        "seal_wrap": entry.seal_wrap,
        "type": entry.kind,
        "uuid": entry.uuid,
    })
}

fn describe_tuning(entry: &MountEntry, system: LeaseTtls) -> Map<String, Value> {
    let or = |own: u64, system: u64| if own == 0 { system } else { own };
    let mut map = into_map(json!({
        "default_lease_ttl": or(entry.default_lease_ttl, system.default),
        "description": entry.description,
        "force_no_cache": false,
        "max_lease_ttl": or(entry.max_lease_ttl, system.max),
    }));
    if !entry.options.is_empty() {
        map.insert("options".to_owned(), options(entry));
    }
    if entry.is_auth() {
        map.insert("token_type".to_owned(), json!("default-service"));
    }
    map
}

fn options(entry: &MountEntry) -> Value {
    if entry.options.is_empty() { Value::Null } else { json!(entry.options) }
}

fn into_map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
