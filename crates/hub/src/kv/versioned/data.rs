//! `data`, `delete`, `undelete` and `destroy`: the versions of a secret.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::merge::merge;
use super::record::{Metadata, Version};
use super::{Kv, version_key};
use crate::error::ApiError;
use crate::logical::{Data, Logical, Request, Response};
use crate::storage::Txn;
use crate::wall;

type Object = Map<String, Value>;

/// Reads a version, the newest unless one is named.
pub(super) fn read(kv: &Kv<'_>, path: &str, request: &Request) -> Result<Response, ApiError> {
    let wanted = request.data.int("version")?.filter(|n| *n != 0);
    let metadata = kv.metadata(path)?.ok_or_else(ApiError::missing)?.value;
    let number = match wanted {
        Some(n) => u64::try_from(n).map_err(|_| ApiError::invalid("version must not be negative"))?,
        None => metadata.current,
    };
    let version = metadata.versions.get(&number).ok_or_else(ApiError::missing)?;
    if !version.is_readable(wall::now()) {
        return Ok(unreadable(&metadata, number, version));
    }
    // Between the two reads the version may have been dropped.
    let stored = kv.store.get::<Object>(&version_key(path, number))?.ok_or_else(ApiError::missing)?;
    let shown = metadata.describe_version(number, version);
    Ok(Response::data(answer(Value::Object(stored.value), shown)))
}

fn answer(data: Value, metadata: Value) -> Object {
    Map::from_iter([("data".to_owned(), data), ("metadata".to_owned(), metadata)])
}

/// 404 that still tells what became of the version.
fn unreadable(metadata: &Metadata, number: u64, version: &Version) -> Response {
    let data = answer(Value::Null, metadata.describe_version(number, version));
    let logical = Logical { data: Some(data), ..Logical::default() };
    Response { status: Some(404), ..Response::from(logical) }
}

/// Writes a new version.
pub(super) async fn write(kv: &Kv<'_>, path: &str, fields: &Data) -> Result<Response, ApiError> {
    let (data, cas) = (new_data(fields)?, cas(fields)?);
    let config = kv.config()?;
    let written = kv
        .change(path, |metadata, txn| {
            let now = wall::now();
            let metadata = metadata.get_or_insert_with(|| Metadata::new(now));
            check_cas(cas, config.cas_required || metadata.cas_required, metadata.current)?;
            add(metadata, txn, path, &data, now, &config)
        })
        .await?;
    Ok(Response::data(written))
}

/// Merges into the newest version, which makes a new one.
pub(super) async fn patch(kv: &Kv<'_>, path: &str, fields: &Data) -> Result<Response, ApiError> {
    let (change, cas) = (new_data(fields)?, cas(fields)?);
    let config = kv.config()?;
    let outcome = kv
        .change(path, |metadata, txn| {
            let now = wall::now();
            let metadata = metadata.as_mut().ok_or_else(ApiError::missing)?;
            let number = metadata.current;
            let version = metadata.versions.get(&number).ok_or_else(ApiError::missing)?;
            if !version.is_readable(now) {
                return Ok(unreadable(metadata, number, version));
            }
            check_cas(cas, config.cas_required || metadata.cas_required, number)?;
            let stored = kv.store.get::<Object>(&version_key(path, number))?.ok_or_else(ApiError::missing)?;
            let mut data = stored.value;
            merge(&mut data, &change);
            add(metadata, txn, path, &data, now, &config).map(Response::data)
        })
        .await?;
    Ok(outcome)
}

/// Puts the version and takes away those that are no longer kept; returns what the writer is told.
fn add(
    metadata: &mut Metadata,
    txn: &mut Txn<'_>,
    path: &str,
    data: &Object,
    now: Timestamp,
    config: &super::Config,
) -> Result<Object, ApiError> {
    let (number, dropped) = metadata.add(now, config);
    txn.put(&version_key(path, number), data)?;
    dropped.iter().for_each(|old| txn.delete(&version_key(path, *old)));
    let version = metadata.versions.get(&number).ok_or_else(ApiError::missing)?;
    match metadata.describe_version(number, version) {
        Value::Object(map) => Ok(map),
        _ => Ok(Map::new()),
    }
}

fn new_data(fields: &Data) -> Result<Object, ApiError> {
    let data = fields.object("data")?.ok_or_else(|| ApiError::invalid("no data provided"))?;
    Ok(data.into_map())
}

fn cas(fields: &Data) -> Result<Option<i64>, ApiError> {
    fields.object("options")?.map_or(Ok(None), |options| options.int("cas"))
}

fn check_cas(cas: Option<i64>, required: bool, current: u64) -> Result<(), ApiError> {
    match cas {
        None if required => Err(ApiError::invalid("check-and-set parameter required for this call")),
        Some(cas) if u64::try_from(cas).ok() != Some(current) => {
            Err(ApiError::invalid("check-and-set parameter did not match the current version"))
        }
        _ => Ok(()),
    }
}

/// Marks the newest version as deleted.
pub(super) async fn delete_newest(kv: &Kv<'_>, path: &str) -> Result<Response, ApiError> {
    change_versions(kv, path, |metadata, _| {
        let now = wall::now();
        if let Some(version) = metadata.versions.get_mut(&metadata.current) {
            mark_deleted(version, now);
        }
    })
    .await
}

/// Marks the named versions as deleted.
pub(super) async fn delete(kv: &Kv<'_>, path: &str, fields: &Data) -> Result<Response, ApiError> {
    let numbers = numbers(fields)?;
    change_versions(kv, path, |metadata, _| {
        let now = wall::now();
        for_each(metadata, &numbers, |_, version| mark_deleted(version, now));
    })
    .await
}

/// Takes the mark away.
pub(super) async fn undelete(kv: &Kv<'_>, path: &str, fields: &Data) -> Result<Response, ApiError> {
    let numbers = numbers(fields)?;
    change_versions(kv, path, |metadata, _| {
        for_each(metadata, &numbers, |_, version| {
            if !version.destroyed {
                version.deleted = None;
            }
        });
    })
    .await
}

/// Removes the data of the named versions for good.
pub(super) async fn destroy(kv: &Kv<'_>, path: &str, fields: &Data) -> Result<Response, ApiError> {
    let numbers = numbers(fields)?;
    change_versions(kv, path, |metadata, txn| {
        for_each(metadata, &numbers, |number, version| {
            if !version.destroyed {
                version.destroyed = true;
                txn.delete(&version_key(path, number));
            }
        });
    })
    .await
}

/// 204 whether or not anything is there to change.
async fn change_versions(
    kv: &Kv<'_>,
    path: &str,
    mut change: impl FnMut(&mut Metadata, &mut Txn<'_>),
) -> Result<Response, ApiError> {
    kv.change(path, |metadata, txn| {
        if let Some(metadata) = metadata {
            let before = metadata.versions.clone();
            change(metadata, txn);
            if metadata.versions != before {
                metadata.updated = wall::now();
            }
        }
        Ok(())
    })
    .await?;
    Ok(Response::no_content())
}

fn for_each(metadata: &mut Metadata, numbers: &[u64], mut change: impl FnMut(u64, &mut Version)) {
    for number in numbers {
        if let Some(version) = metadata.versions.get_mut(number) {
            change(*number, version);
        }
    }
}

fn mark_deleted(version: &mut Version, now: Timestamp) {
    if version.is_readable(now) {
        version.deleted = Some(now);
    }
}

fn numbers(fields: &Data) -> Result<Vec<u64>, ApiError> {
    let one = fields.value("versions").filter(|v| v.is_number()).map(|v| vec![v.to_string()]);
    let texts = one.map_or_else(|| fields.strings("versions"), |one| Ok(Some(one)))?.unwrap_or_default();
    if texts.is_empty() {
        return Err(ApiError::invalid("No version number provided"));
    }
    texts
        .iter()
        .map(|text| text.parse().map_err(|_| ApiError::invalid(format!("{text:?} is not a version"))))
        .collect()
}

/// Shown beside a version in the metadata of a secret.
pub(super) fn describe_all(metadata: &Metadata) -> Value {
    let describe = |(number, version): (&u64, &Version)| (number.to_string(), json!(version.describe()));
    Value::Object(metadata.versions.iter().map(describe).collect())
}
