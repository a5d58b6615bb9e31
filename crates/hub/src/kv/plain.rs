//! Version 1: one JSON object a path, without history.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::logical::{Cx, LeaseTicket, Logical, Operation, Request, Response};
use crate::mount::MountEntry;
use crate::storage::Storage;

fn values(cx: &Cx, mount: &MountEntry) -> Storage {
    mount.live_storage(&cx.storage).view("value/")
}

pub(super) fn exists(cx: &Cx, mount: &MountEntry, request: &Request) -> Result<bool, ApiError> {
    Ok(values(cx, mount).get::<Map<String, Value>>(&request.rest)?.is_some())
}

pub(super) async fn handle(cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
    let (store, path) = (values(cx, mount), request.rest.as_str());
    if request.operation == Operation::List {
        return super::list(&store, path, request);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::logical::Body;
    use crate::testing;

    #[tokio::test]
    async fn a_value_is_written_read_listed_and_deleted() {
        let (_store, _hub, cx) = testing::hub();
        let mount = MountEntry { path: "kv/".into(), uuid: "u".into(), ..MountEntry::default() };
        let call = async |operation, rest: &str, body| {
            let request = testing::request(operation, "kv/", rest, body);
            crate::kv::engine().handle(&cx, &mount, &request).await
        };
        let read = async |operation, rest: &str| match call(operation, rest, json!({})).await {
            Ok(Response { body: Body::Logical(logical), .. }) => Ok(logical),
            Ok(other) => panic!("unexpected {other:?}"),
            Err(error) => Err(error.status()),
        };
        call(Operation::Write, "a/b", json!({"k": "v", "ttl": "1h"})).await.unwrap();
        let found = read(Operation::Read, "a/b").await.unwrap();
        assert_eq!(found.data.unwrap()["k"], "v");
        let lease = LeaseTicket { id: String::new(), duration: 3600, renewable: false };
        assert_eq!(found.lease, Some(lease));
        assert_eq!(read(Operation::List, "").await.unwrap().data.unwrap()["keys"], json!(["a/"]));
        assert_eq!(call(Operation::Write, "a/b", json!({})).await.unwrap_err().status(), 400);
        call(Operation::Delete, "a/b", json!({})).await.unwrap();
        assert_eq!(read(Operation::Read, "a/b").await.unwrap_err(), 404);
        assert_eq!(read(Operation::List, "").await.unwrap_err(), 404);
        assert_eq!(call(Operation::Patch, "a/b", json!({})).await.unwrap_err().status(), 405);
    }
}
