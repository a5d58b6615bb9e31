//! Roles: what a login of a kind may do and how long it lasts.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::paths::{Place, check_name};
use crate::error::ApiError;
use crate::logical::{Data, Operation, Request, Response};
use crate::storage::Stored;

/// A role.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Role {
    /// The connection configuration by name.
    pub db_name: String,
    /// How a user is made.
    pub creation_statements: Vec<String>,
    /// How a user is removed; empty for the driver's own way.
    pub revocation_statements: Vec<String>,
    /// How a user's end of validity is moved; empty for the driver's own way.
    pub renew_statements: Vec<String>,
    /// What undoes a half-done creation.
    pub rollback_statements: Vec<String>,
    /// Seconds; 0 for the mount's.
    pub default_ttl: u64,
    /// Seconds; 0 for the mount's.
    pub max_ttl: u64,
    /// What `credential_config` said.
    pub credential_config: std::collections::BTreeMap<String, String>,
}

const KEYS: &str = "role/";

/// What a client may write.
pub const FIELDS: [&str; 9] = [
    "db_name",
    "creation_statements",
    "revocation_statements",
    "renew_statements",
    "rollback_statements",
    "default_ttl",
    "max_ttl",
    "credential_type",
    "credential_config",
];

/// The key of a role in the mount's own part of the store.
pub fn key(name: &str) -> String {
    format!("{KEYS}{name}")
}

/// Reads a role.
pub fn read(place: &Place<'_>, name: &str) -> Result<Option<Stored<Role>>, ApiError> {
    Ok(place.storage.get(&key(name))?)
}

/// Answers `roles` and `roles/<name>`.
pub async fn handle(place: &Place<'_>, request: &Request, name: &str) -> Result<Response, ApiError> {
    match (request.operation, name) {
        (Operation::List, "") => place.list(request, KEYS),
        (_, "") => Err(ApiError::unsupported_operation()),
        (Operation::Read, _) => match read(place, name)? {
            Some(role) => Ok(Response::data(view(&role.value))),
            None => Err(ApiError::missing()),
        },
        (Operation::Write, _) => write(place, &request.data, name).await,
        (Operation::Delete, _) => {
            place.storage.delete(&key(name)).await?;
            Ok(Response::no_content())
        }
        (Operation::List | Operation::Patch, _) => Err(ApiError::unsupported_operation()),
    }
}

async fn write(place: &Place<'_>, data: &Data, name: &str) -> Result<Response, ApiError> {
    check_name(name)?;
    let stored = read(place, name)?;
    let mut role = stored.as_ref().map(|s| s.value.clone()).unwrap_or_default();
    merge(&mut role, data)?;
    if role.db_name.is_empty() {
        return Err(ApiError::invalid("database name is required"));
    }
    if role.max_ttl != 0 && role.default_ttl > role.max_ttl {
        return Err(ApiError::invalid("default_ttl exceeds max_ttl"));
    }
    let mut txn = place.storage.txn();
    // One name means one thing, whichever kind of role is asked for it.
    txn.require_absent(&super::statics::key(name));
    match &stored {
        Some(stored) => txn.require_version(&key(name), stored.version),
        None => txn.require_absent(&key(name)),
    }
    place.mount.require_mounted(&mut txn);
    txn.put(&key(name), &role)?;
    match txn.commit().await {
        Ok(_) => Ok(Response::no_content()),
        Err(error) if error.is_conflict() && super::statics::read(place, name)?.is_some() => {
            Err(ApiError::invalid(super::paths::UNIQUE_NAMES))
        }
        Err(error) => Err(error.into()),
    }
}

fn merge(role: &mut Role, data: &Data) -> Result<(), ApiError> {
    if let Some(name) = data.string("db_name")? {
        role.db_name = name;
    }
    for (field, target) in [
        ("creation_statements", &mut role.creation_statements),
        ("revocation_statements", &mut role.revocation_statements),
        ("renew_statements", &mut role.renew_statements),
        ("rollback_statements", &mut role.rollback_statements),
    ] {
        if let Some(list) = super::paths::statements(data, field)? {
            *target = list;
        }
    }
    for (field, target) in [("default_ttl", &mut role.default_ttl), ("max_ttl", &mut role.max_ttl)] {
        if let Some(ttl) = data.duration(field)? {
            *target = ttl.as_secs();
        }
    }
    check_credentials(data)?;
    if let Some(config) = data.string_map("credential_config")? {
        role.credential_config = config;
    }
    Ok(())
}

/// Refuses credentials other than passwords.
pub fn check_credentials(data: &Data) -> Result<(), ApiError> {
    let kind = data.string("credential_type")?.unwrap_or_default();
    if !matches!(kind.as_str(), "" | "password") {
        return Err(ApiError::invalid(format!("unsupported credential_type: {kind:?}")));
    }
    let config = data.string_map("credential_config")?.unwrap_or_default();
    match config.keys().find(|key| *key != "password_policy") {
        Some(other) => Err(ApiError::invalid(format!("unknown credential_config field {other:?}"))),
        None => Ok(()),
    }
}

fn view(role: &Role) -> Map<String, Value> {
    Map::from_iter([
        ("db_name".to_owned(), json!(role.db_name)),
        ("creation_statements".to_owned(), json!(role.creation_statements)),
        ("revocation_statements".to_owned(), json!(role.revocation_statements)),
        ("renew_statements".to_owned(), json!(role.renew_statements)),
        ("rollback_statements".to_owned(), json!(role.rollback_statements)),
        ("default_ttl".to_owned(), json!(role.default_ttl)),
        ("max_ttl".to_owned(), json!(role.max_ttl)),
        ("credential_type".to_owned(), json!("password")),
        ("credential_config".to_owned(), json!(role.credential_config)),
    ])
}
