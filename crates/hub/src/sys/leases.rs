//! `sys/leases/...` and its older names `sys/renew`, `sys/revoke`, `sys/revoke-prefix` and `sys/revoke-force`.

use serde_json::{Map, Value, json};

use super::split;
use crate::error::ApiError;
use crate::lease::record::Lease;
use crate::lease::{LeaseId, Outcome, Wall, index};
use crate::logical::data::parse_bool;
use crate::logical::{Cx, LeaseTicket, Logical, Operation, Request, Response};

/// Irrevocable leases that one answer lists.
const LISTED: usize = 10_000;

/// Whether a path below `leases/` needs `sudo`: those that list or end leases of others.
pub fn sudo(rest: &str) -> bool {
    match split(rest) {
        // Looking up one lease has the id in the body; only a list has a path.
        ("lookup", _) => rest.starts_with("lookup/"),
        ("" | "revoke-prefix" | "revoke-force", _) => true,
        _ => false,
    }
}

/// Answers the path `rest` below `leases/`.
pub async fn handle(cx: &Cx, rest: &str, request: &Request) -> Result<Response, ApiError> {
    let (verb, named) = split(rest);
    let write = request.operation == Operation::Write;
    match (verb, request.operation) {
        ("", Operation::Read) => irrevocable(cx, request),
        ("count", Operation::Read) if named.is_empty() => count(cx, request),
        ("lookup", Operation::List) => list(cx, named, request),
        ("lookup", _) if write && named.is_empty() => lookup(cx, request),
        ("renew", _) if write => renew(cx, named, request).await,
        ("revoke", _) if write => revoke(cx, named, request).await,
        ("revoke-prefix", _) if write => revoke_prefix(cx, named, request).await,
        ("revoke-force", _) if write => {
            cx.hub.leases.revoke_force(cx, &prefix(cx, named)?).await?;
            Ok(Response::no_content())
        }
        ("" | "count" | "lookup" | "renew" | "revoke" | "revoke-prefix" | "revoke-force", _) => {
            Err(ApiError::unsupported_operation())
        }
        _ => Err(ApiError::unsupported_path()),
    }
}

/// The lease that a request names, in its path or its body.
fn lease_id(named: &str, request: &Request) -> Result<LeaseId, ApiError> {
    const MISSING: &str = "lease_id must be specified";
    let in_body = || {
        let field = if request.data.has("lease_id") { "lease_id" } else { "url_lease_id" };
        request.data.required(field, MISSING)
    };
    let text = if named.is_empty() { in_body()? } else { named.to_owned() };
    Ok(LeaseId::from_client(&text))
}

fn lookup(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    let id = lease_id("", request)?;
    let lease = index::read(&cx.storage, &id)?.ok_or_else(|| ApiError::invalid("invalid lease"))?.value;
    Ok(Response::mirrored(view(cx, &lease)))
}

fn view(cx: &Cx, lease: &Lease) -> Map<String, Value> {
    Map::from_iter([
        ("id".to_owned(), json!(lease.id.as_str())),
        ("path".to_owned(), json!(lease.path)),
        ("issue_time".to_owned(), json!(lease.issued.display())),
        ("expire_time".to_owned(), json!(lease.expires.display())),
        ("last_renewal".to_owned(), lease.renewed.map_or(Value::Null, |at| json!(at.display()))),
        ("renewable".to_owned(), json!(lease.renewable && !lease.is_over(Wall::now()))),
        ("ttl".to_owned(), json!(lease.remaining(Wall::now()))),
        ("revoke_error".to_owned(), json!(cx.hub.leases.revoke_error(lease))),
    ])
}

fn list(cx: &Cx, named: &str, request: &Request) -> Result<Response, ApiError> {
    let prefix = match named.trim_matches('/') {
        "" => index::LEASES.to_owned(),
        path => format!("{}{path}/", index::LEASES),
    };
    let (after, limit) = request.page()?;
    let keys = cx.storage.list(&prefix, after.as_deref(), limit)?;
    if keys.is_empty() {
        return Err(ApiError::missing());
    }
    Ok(Response::mirrored(Map::from_iter([("keys".to_owned(), json!(keys))])))
}

async fn renew(cx: &Cx, named: &str, request: &Request) -> Result<Response, ApiError> {
    let id = lease_id(named, request)?;
    let increment = request.data.duration("increment")?.map_or(0, |d| d.as_secs());
    let renewed = cx.hub.leases.renew(cx, &id, increment).await?;
    let ticket = LeaseTicket {
        id: renewed.lease.id.to_string(),
        duration: renewed.lease.remaining(Wall::now()),
        renewable: renewed.lease.renewable,
    };
    Ok(Logical { lease: Some(ticket), warnings: renewed.warnings, ..Logical::default() }.into())
}

/// Whether the caller wants to wait for the outcome.
fn sync(request: &Request) -> Result<bool, ApiError> {
    match request.data.bool("sync")? {
        Some(sync) => Ok(sync),
        None => Ok(request.query("sync").and_then(parse_bool).unwrap_or(false)),
    }
}

async fn revoke(cx: &Cx, named: &str, request: &Request) -> Result<Response, ApiError> {
    let id = lease_id(named, request)?;
    if !sync(request)? {
        // One that is gone already is what was wanted.
        cx.hub.leases.mark_due(cx, &id).await?;
        return Ok(Response::empty(202));
    }
    match cx.hub.leases.revoke_and_wait(cx, &id).await? {
        None | Some(Outcome::Gone) => Ok(Response::no_content()),
        Some(Outcome::NotTried(text) | Outcome::Failed(text)) => Err(ApiError::invalid(text)),
    }
}

/// A prefix ends where a path segment does, so that `a` does not mean `ab`; or it is one lease.
fn prefix(cx: &Cx, named: &str) -> Result<String, ApiError> {
    let path = named.trim_matches('/');
    if path.is_empty() {
        return Err(ApiError::invalid("a prefix must be specified"));
    }
    let one = index::read(&cx.storage, &LeaseId::from_client(path))?.is_some();
    Ok(if one { path.to_owned() } else { format!("{path}/") })
}

async fn revoke_prefix(cx: &Cx, named: &str, request: &Request) -> Result<Response, ApiError> {
    let sync = sync(request)?;
    let failed = cx.hub.leases.revoke_below(cx, &prefix(cx, named)?, sync).await?;
    match failed.first() {
        None if sync => Ok(Response::no_content()),
        None => Ok(Response::empty(202)),
        Some(first) => {
            Err(ApiError::invalid(format!("{} leases could not be revoked: {first}", failed.len())))
        }
    }
}

fn counted_type(request: &Request) -> Result<bool, ApiError> {
    let wanted = request.query("type").map(str::to_owned).or(request.data.string("type")?);
    match wanted.as_deref() {
        None | Some("") => Ok(false),
        Some("irrevocable") => Ok(true),
        Some(other) => Err(ApiError::invalid(format!("unknown lease type {other:?}"))),
    }
}

fn count(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    let below = if counted_type(request)? { index::IRREVOCABLE } else { index::LEASES };
    let counts = index::count_by_mount(&cx.storage, below)?;
    let total: u64 = counts.iter().map(|(_, n)| n).sum();
    let counts: Map<String, Value> = counts.into_iter().map(|(mount, n)| (mount, json!(n))).collect();
    Ok(Response::mirrored(Map::from_iter([
        ("lease_count".to_owned(), json!(total)),
        ("counts".to_owned(), Value::Object(counts)),
    ])))
}

fn irrevocable(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    if !counted_type(request)? {
        return Err(ApiError::invalid("type must be specified; supported: irrevocable"));
    }
    let (after, limit) = request.page()?;
    let limit = if limit == usize::MAX { LISTED } else { limit };
    let after = after.map(|id| format!("{}{id}", index::IRREVOCABLE));
    let found = cx.storage.scan::<String>(index::IRREVOCABLE, after.as_deref(), limit)?;
    let total = cx.storage.count(index::IRREVOCABLE)?;
    let leases: Vec<Value> = found
        .into_iter()
        .map(|(key, error)| {
            let id = key.strip_prefix(index::IRREVOCABLE).unwrap_or(&key).to_owned();
            json!({"lease_id": id, "error": error.value})
        })
        .collect();
    Ok(Response::mirrored(Map::from_iter([
        ("lease_count".to_owned(), json!(total)),
        ("leases".to_owned(), Value::Array(leases)),
    ])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_shows_or_ends_leases_of_others_needs_sudo() {
        for (path, needs) in [
            ("lookup", false),
            ("lookup/", true),
            ("lookup/database/creds/", true),
            ("renew", false),
            ("revoke/database/creds/r/x", false),
            ("revoke-prefix/database", true),
            ("revoke-force/database", true),
            ("count", false),
            ("", true),
        ] {
            assert_eq!(sudo(path), needs, "{path}");
        }
    }
}
