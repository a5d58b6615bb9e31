//! `sys/quotas/rate-limit` and `sys/quotas/lease-count`.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::logical::{Cx, Data, Operation, Request, Response};
use crate::quota::counted_prefix;
use crate::quota::rule::{LEASES, LeaseEntry, RATES, RateEntry};

pub(super) async fn handle(cx: &Cx, rest: &str, request: &Request) -> Result<Response, ApiError> {
    let (kind, name) = super::split(rest);
    match kind {
        "rate-limit" => serve::<RateEntry>(cx, name, request).await,
        "lease-count" => serve::<LeaseEntry>(cx, name, request).await,
        _ => Err(ApiError::unsupported_path()),
    }
}

/// What the two kinds of quota differ in.
trait Quota: DeserializeOwned + Serialize + Default + Send + Sync {
    const STORED: &'static str;

    /// Takes what the fields name; the rest stays.
    fn apply(&mut self, data: &Data) -> Result<(), ApiError>;
    fn describe(&self, cx: &Cx) -> Result<Value, ApiError>;
    /// What no two quotas may share.
    fn place(&self) -> (&str, &str);
    fn set_place(&mut self, name: &str, path: String);
}

impl Quota for RateEntry {
    const STORED: &'static str = RATES;

    fn apply(&mut self, data: &Data) -> Result<(), ApiError> {
        if let Some(rate) = data.string("rate")? {
            let number = rate.parse::<f64>().ok().filter(|rate| rate.is_finite());
            self.rate = number.ok_or_else(|| ApiError::invalid("rate must be a number"))?;
        }
        let seconds = |field| Ok::<_, ApiError>(data.duration(field)?.map(|d| d.as_secs()));
        self.interval = seconds("interval")?.unwrap_or(self.interval.max(1)).max(1);
        self.block_interval = seconds("block_interval")?.unwrap_or(self.block_interval);
        if self.rate <= 0.0 {
            return Err(ApiError::invalid("rate must be greater than 0"));
        }
        Ok(())
    }

    fn describe(&self, _cx: &Cx) -> Result<Value, ApiError> {
        Ok(json!({
            "block_interval": self.block_interval,
            "inheritable": true,
            "interval": self.interval,
            "name": self.name,
            "path": self.path,
            "rate": self.rate,
            "role": "",
            "type": "rate-limit",
        }))
    }

    fn place(&self) -> (&str, &str) {
        (&self.path, "")
    }

    fn set_place(&mut self, name: &str, path: String) {
        name.clone_into(&mut self.name);
        self.path = path;
    }
}

impl Quota for LeaseEntry {
    const STORED: &'static str = LEASES;

    fn apply(&mut self, data: &Data) -> Result<(), ApiError> {
        self.role = data.string("role")?.unwrap_or(std::mem::take(&mut self.role));
        if let Some(max) = data.int("max_leases")? {
            self.max_leases = u64::try_from(max).unwrap_or_default();
        }
        if self.max_leases == 0 {
            return Err(ApiError::invalid("max_leases must be greater than 0"));
        }
        Ok(())
    }

    fn describe(&self, cx: &Cx) -> Result<Value, ApiError> {
        Ok(json!({
            "counter": cx.storage.count(&counted_prefix(self))?,
            "inheritable": true,
            "max_leases": self.max_leases,
            "name": self.name,
            "path": self.path,
            "role": self.role,
            "type": "lease-count",
        }))
    }

    fn place(&self) -> (&str, &str) {
        (&self.path, &self.role)
    }

    fn set_place(&mut self, name: &str, path: String) {
        name.clone_into(&mut self.name);
        self.path = path;
    }
}

async fn serve<Q: Quota>(cx: &Cx, name: &str, request: &Request) -> Result<Response, ApiError> {
    let name = name.trim_end_matches('/');
    match (name.is_empty(), request.operation) {
        (true, Operation::List) => list::<Q>(cx, request),
        (true, _) => Err(ApiError::unsupported_operation()),
        (false, Operation::Read) => read::<Q>(cx, name),
        (false, Operation::Write) => write::<Q>(cx, name, &request.data).await,
        (false, Operation::Delete) => {
            cx.storage.delete(&format!("{}{name}", Q::STORED)).await?;
            Ok(Response::no_content())
        }
        _ => Err(ApiError::unsupported_operation()),
    }
}

fn list<Q: Quota>(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    let (after, limit) = request.page()?;
    match cx.storage.list(Q::STORED, after.as_deref(), limit)? {
        keys if keys.is_empty() => Err(ApiError::missing()),
        keys => Ok(Response::keys(keys, None)),
    }
}

fn read<Q: Quota>(cx: &Cx, name: &str) -> Result<Response, ApiError> {
    let found = cx.storage.get::<Q>(&format!("{}{name}", Q::STORED))?.ok_or_else(ApiError::missing)?;
    match found.value.describe(cx)? {
        Value::Object(map) => Ok(Response::data(map)),
        _ => Ok(Response::data(Map::new())),
    }
}

async fn write<Q: Quota>(cx: &Cx, name: &str, data: &Data) -> Result<Response, ApiError> {
    if name.contains('/') || name.len() > 256 || name.chars().any(char::is_control) {
        return Err(ApiError::invalid("invalid name of a quota"));
    }
    let key = format!("{}{name}", Q::STORED);
    let found = cx.storage.get::<Q>(&key)?;
    let mut txn = cx.storage.txn();
    match &found {
        Some(stored) => txn.require_version(&key, stored.version),
        None => txn.require_absent(&key),
    }
    let mut quota = found.map(|stored| stored.value).unwrap_or_default();
    let path = match data.string("path")? {
        Some(path) => place(cx, &path)?,
        None => quota.place().0.to_owned(),
    };
    quota.set_place(name, path);
    quota.apply(data)?;
    let role = quota.place().1;
    if !role.is_empty() && !quota.place().0.ends_with('/') {
        return Err(ApiError::invalid("a quota with a role needs the path of a mount"));
    }
    check_unique(cx, name, &quota)?;
    txn.put(&key, &quota)?;
    txn.commit().await?;
    Ok(Response::no_content())
}

/// The path of a quota: empty, a mount with its slash, or something below a mount.
fn place(cx: &Cx, path: &str) -> Result<String, ApiError> {
    let path = path.trim_start_matches('/');
    if path.is_empty() {
        return Ok(String::new());
    }
    let mounts = &cx.hub.mounts;
    let as_mount = format!("{}/", path.trim_end_matches('/'));
    if mounts.get(&as_mount)?.is_some() {
        return Ok(as_mount);
    }
    match mounts.route(path)? {
        Some(_) => Ok(path.to_owned()),
        None => Err(ApiError::invalid(format!("no mount serves the path {path:?}"))),
    }
}

fn check_unique<Q: Quota>(cx: &Cx, name: &str, quota: &Q) -> Result<(), ApiError> {
    let all = cx.storage.scan::<Q>(Q::STORED, None, usize::MAX)?;
    let twin = all
        .iter()
        .find(|(_, other)| other.value.place() == quota.place())
        .filter(|(other, _)| other.strip_prefix(Q::STORED).unwrap_or(other) != name);
    match twin {
        None => Ok(()),
        Some((other, _)) => {
            let other = other.strip_prefix(Q::STORED).unwrap_or(other);
            Err(ApiError::invalid(format!("the quota {other:?} holds for the same path and role")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logical::Body;
    use crate::testing;

    async fn call(cx: &Cx, operation: Operation, rest: &str, body: Value) -> Result<Value, u16> {
        let request = testing::request(operation, "sys/", &format!("quotas/{rest}"), body);
        match handle(cx, rest, &request).await {
            Ok(Response { body: Body::Logical(logical), .. }) => {
                Ok(Value::Object(logical.data.unwrap_or_default()))
            }
            Ok(_) => Ok(Value::Null),
            Err(error) => Err(error.status()),
        }
    }

    #[tokio::test]
    async fn quotas_are_written_read_listed_and_deleted() {
        let (_store, _hub, cx) = testing::hub();
        let write = async |rest: &str, body| call(&cx, Operation::Write, rest, body).await;
        write("rate-limit/a", json!({"rate": "2.5", "path": "sys", "block_interval": "1m"})).await.unwrap();
        let shown = call(&cx, Operation::Read, "rate-limit/a", json!({})).await.unwrap();
        assert_eq!((&shown["rate"], &shown["path"]), (&json!(2.5), &json!("sys/")));
        assert_eq!((&shown["interval"], &shown["block_interval"]), (&json!(1), &json!(60)));
        write("rate-limit/a", json!({"rate": 3})).await.unwrap();
        let shown = call(&cx, Operation::Read, "rate-limit/a", json!({})).await.unwrap();
        assert_eq!((&shown["rate"], &shown["path"]), (&json!(3.0), &json!("sys/")));
        write("lease-count/b", json!({"max_leases": 5})).await.unwrap();
        let shown = call(&cx, Operation::Read, "lease-count/b", json!({})).await.unwrap();
        assert_eq!((&shown["max_leases"], &shown["counter"]), (&json!(5), &json!(0)));
        let listed = call(&cx, Operation::List, "rate-limit/", json!({})).await.unwrap();
        assert_eq!(listed["keys"], json!(["a"]));
        call(&cx, Operation::Delete, "rate-limit/a", json!({})).await.unwrap();
        assert_eq!(call(&cx, Operation::Read, "rate-limit/a", json!({})).await, Err(404));
        assert_eq!(call(&cx, Operation::List, "rate-limit", json!({})).await, Err(404));
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_refused() {
        let (_store, _hub, cx) = testing::hub();
        let write = async |rest: &str, body| call(&cx, Operation::Write, rest, body).await;
        write("rate-limit/a", json!({"rate": 1})).await.unwrap();
        for (rest, body) in [
            ("rate-limit/b", json!({"rate": 1})),
            ("rate-limit/b", json!({"rate": 0, "path": "sys/"})),
            ("rate-limit/b", json!({"path": "sys/"})),
            ("rate-limit/b", json!({"rate": "NaN", "path": "sys/"})),
            ("rate-limit/b", json!({"rate": 1, "path": "nowhere/"})),
            ("rate-limit/b/c", json!({"rate": 1, "path": "sys/"})),
            ("lease-count/b", json!({"max_leases": -1})),
            ("lease-count/b", json!({"max_leases": 1, "role": "ro"})),
        ] {
            assert_eq!(write(rest, body.clone()).await, Err(400), "{rest} {body}");
        }
    }
}
