//! Version 1: one JSON object a path, without history.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::logical::{Cx, LeaseTicket, Logical, Operation, Request, Response};
use crate::mount::MountEntry;
use crate::storage::Storage;

fn values(cx: &Cx, mount: &MountEntry) -> Storage {
    mount.storage(&cx.storage).view("value/")
}

pub(super) fn exists(cx: &Cx, mount: &MountEntry, request: &Request) -> Result<bool, ApiError> {
    Ok(values(cx, mount).get::<Map<String, Value>>(&request.rest)?.is_some())
}

pub(super) async fn handle(cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
    let (store, path) = (values(cx, mount), request.rest.as_str());
    if request.operation == Operation::List {
        return list(&store, request);
    }
    super::check_path(path)?;
    match request.operation {
        Operation::Read => read(cx, mount, &store, path),
        Operation::Write => {
            if request.data.as_map().is_empty() {
                return Err(ApiError::invalid("missing data fields"));
            }
            store.put(path, request.data.as_map()).await?;
            Ok(Response::no_content())
        }
        Operation::Delete => {
            store.delete(path).await?;
            Ok(Response::no_content())
        }
        _ => Err(ApiError::unsupported_operation()),
    }
}

/// The answer carries a time to read again after, and no lease; a field `ttl` of the value sets it.
fn read(cx: &Cx, mount: &MountEntry, store: &Storage, path: &str) -> Result<Response, ApiError> {
    let value = store.get::<Map<String, Value>>(path)?.ok_or_else(ApiError::missing)?.value;
    let data = crate::logical::Data::new(value);
    let own = ["ttl", "lease"].iter().find_map(|field| data.duration(field).ok().flatten());
    let duration = own.map_or_else(|| cx.hub.mounts.ttls(mount).default, |d| d.as_secs());
    let lease = LeaseTicket { id: String::new(), duration, renewable: false };
    Ok(Logical { lease: Some(lease), data: Some(data.into_map()), ..Logical::default() }.into())
}

fn list(store: &Storage, request: &Request) -> Result<Response, ApiError> {
    super::list(store, &request.rest, request)
}
