//! `metadata`: what is known of a secret beside its data, and the settings of its own.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::config::max_versions;
use super::record::{Metadata, duration_text};
use super::{Kv, data, version_key};
use crate::error::ApiError;
use crate::logical::{Data, Response};
use crate::wall::{self, rfc3339};

/// Bounds of the notes on a secret: members, and bytes of a name and of a value.
const MAX_NOTES: usize = 64;
const MAX_NAME: usize = 128;
const MAX_VALUE: usize = 512;

pub(super) fn read(kv: &Kv<'_>, path: &str) -> Result<Response, ApiError> {
    let metadata = kv.metadata(path)?.ok_or_else(ApiError::missing)?.value;
    Ok(Response::data(Map::from_iter([
        ("cas_required".to_owned(), json!(metadata.cas_required)),
        ("created_time".to_owned(), json!(rfc3339(metadata.created))),
        ("current_version".to_owned(), json!(metadata.current)),
        ("custom_metadata".to_owned(), metadata.describe_custom()),
        ("delete_version_after".to_owned(), json!(duration_text(metadata.delete_version_after))),
        ("max_versions".to_owned(), json!(metadata.max_versions)),
        ("oldest_version".to_owned(), json!(metadata.oldest)),
        ("updated_time".to_owned(), json!(rfc3339(metadata.updated))),
        ("versions".to_owned(), data::describe_all(&metadata)),
    ])))
}

/// Sets what the fields name; makes the secret, without a version, when it is new.
pub(super) async fn write(kv: &Kv<'_>, path: &str, fields: &Data) -> Result<Response, ApiError> {
    let custom = match fields.value("custom_metadata") {
        None => None,
        Some(Value::Object(map)) => Some(notes(map)?),
        Some(_) => return Err(ApiError::invalid("custom_metadata must be an object of strings")),
    };
    kv.change(path, |metadata, _| {
        let metadata = metadata.get_or_insert_with(|| Metadata::new(wall::now()));
        apply(metadata, fields)?;
        metadata.custom = custom.clone().unwrap_or_else(|| std::mem::take(&mut metadata.custom));
        Ok(())
    })
    .await?;
    Ok(Response::no_content())
}

/// As a write, but notes are merged, null takes one away or sets a field back, and the secret must be there.
pub(super) async fn patch(kv: &Kv<'_>, path: &str, fields: &Data) -> Result<Response, ApiError> {
    let patch = match fields.as_map().get("custom_metadata") {
        None => Some(Map::new()),
        Some(Value::Null) => None,
        Some(Value::Object(map)) => Some(map.clone()),
        Some(_) => return Err(ApiError::invalid("custom_metadata must be an object of strings")),
    };
    kv.change(path, |metadata, _| {
        let metadata = metadata.as_mut().ok_or_else(ApiError::missing)?;
        apply(metadata, fields)?;
        reset(metadata, fields);
        metadata.custom = match &patch {
            Some(patch) => merged(&metadata.custom, patch)?,
            None => BTreeMap::new(),
        };
        Ok(())
    })
    .await?;
    Ok(Response::no_content())
}

/// Removes the secret with all its versions.
pub(super) async fn delete(kv: &Kv<'_>, path: &str) -> Result<Response, ApiError> {
    kv.change(path, |metadata, txn| {
        if let Some(gone) = metadata.take() {
            gone.versions.keys().for_each(|number| txn.delete(&version_key(path, *number)));
        }
        Ok(())
    })
    .await?;
    Ok(Response::no_content())
}

fn apply(metadata: &mut Metadata, fields: &Data) -> Result<(), ApiError> {
    metadata.max_versions = max_versions(fields)?.unwrap_or(metadata.max_versions);
    metadata.cas_required = fields.bool("cas_required")?.unwrap_or(metadata.cas_required);
    let life = fields.seconds("delete_version_after")?;
    metadata.delete_version_after = life.unwrap_or(metadata.delete_version_after);
    metadata.updated = wall::now();
    Ok(())
}

/// Sets back what the patch names with null.
fn reset(metadata: &mut Metadata, fields: &Data) {
    let is_null = |field: &str| fields.as_map().get(field).is_some_and(Value::is_null);
    if is_null("max_versions") {
        metadata.max_versions = 0;
    }
    if is_null("cas_required") {
        metadata.cas_required = false;
    }
    if is_null("delete_version_after") {
        metadata.delete_version_after = 0;
    }
}

fn merged(
    old: &BTreeMap<String, String>,
    patch: &Map<String, Value>,
) -> Result<BTreeMap<String, String>, ApiError> {
    let mut map: Map<String, Value> = old.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    for (name, value) in patch {
        match value {
            Value::Null => map.remove(name),
            value => map.insert(name.clone(), value.clone()),
        };
    }
    notes(&map)
}

fn notes(map: &Map<String, Value>) -> Result<BTreeMap<String, String>, ApiError> {
    let refuse = |why: String| Err(ApiError::invalid(format!("custom_metadata validation failed: {why}")));
    if map.len() > MAX_NOTES {
        return refuse(format!("{} keys, at most {MAX_NOTES} are allowed", map.len()));
    }
    let mut notes = BTreeMap::new();
    for (name, value) in map {
        let Value::String(text) = value else {
            return refuse(format!("the value of {name:?} is not a string"));
        };
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return refuse(format!("keys have 1 to {MAX_NAME} printable bytes"));
        }
        if text.len() > MAX_VALUE {
            return refuse(format!("the value of {name:?} is longer than {MAX_VALUE} bytes"));
        }
        notes.insert(name.clone(), text.clone());
    }
    Ok(notes)
}
