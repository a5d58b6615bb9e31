//! Static roles: users that exist already and whose passwords the hub changes on time.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::paths::{Place, UNIQUE_NAMES, check_name, statements};
use super::rotation::{self, Rotation};
use super::{config, connection, names, role};
use crate::error::ApiError;
use crate::hub::Hub;
use crate::lease::Wall;
use crate::lease::record::Queue;
use crate::logical::{Data, Operation, Request, Response};
use crate::storage::{Storage, StorageError, Stored, Txn};

/// A password is not changed more often than this.
const SHORTEST_PERIOD: u64 = 5;
pub(super) const KEYS: &str = "static-role/";

/// What a client may write.
pub const FIELDS: [&str; 6] =
    ["username", "db_name", "rotation_period", "rotation_statements", "credential_type", "credential_config"];

/// A static role.
#[derive(Clone, Deserialize, Serialize)]
pub struct StaticRole {
    /// Its name.
    pub name: String,
    /// The unique id of its mount.
    pub mount_uuid: String,
    /// The connection configuration by name.
    pub db_name: String,
    /// The connection configuration's unique id.
    pub config_id: String,
    /// The user, fixed.
    pub username: String,
    /// Seconds between rotations.
    pub rotation_period: u64,
    /// How the password is changed; empty for the driver's own way.
    pub rotation_statements: Vec<String>,
    /// What `credential_config` said.
    pub credential_config: std::collections::BTreeMap<String, String>,
    /// The password in force; empty before the first rotation.
    pub password: String,
    /// When the password was last changed.
    pub rotated: Option<Wall>,
    /// Where it stands in the index of rotations.
    pub due: Wall,
}

impl std::fmt::Debug for StaticRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("StaticRole");
        shown.field("name", &self.name).field("mount_uuid", &self.mount_uuid).field("due", &self.due);
        shown.finish_non_exhaustive()
    }
}

impl StaticRole {
    /// The configuration that changes its password.
    pub fn queue(&self) -> Queue {
        Queue { mount_uuid: self.mount_uuid.clone(), config_id: self.config_id.clone() }
    }

    /// The key of its record in the whole store.
    pub fn key(&self) -> String {
        record_key(&self.mount_uuid, &self.name)
    }

    fn name_key(&self) -> String {
        names::key(&self.mount_uuid, &self.config_id, &self.username)
    }
}

/// The key of a static role in the mount's own part of the store.
pub fn key(name: &str) -> String {
    format!("{KEYS}{name}")
}

/// The key of a static role in the whole store.
pub fn record_key(mount_uuid: &str, name: &str) -> String {
    format!("logical/{mount_uuid}/{}", key(name))
}

/// Reads a static role.
pub fn read(place: &Place<'_>, name: &str) -> Result<Option<Stored<StaticRole>>, ApiError> {
    Ok(read_record(&place.cx.storage, &place.mount.uuid, name)?)
}

/// Reads a static role by its mount's unique id.
pub fn read_record(
    storage: &Storage,
    mount_uuid: &str,
    name: &str,
) -> Result<Option<Stored<StaticRole>>, StorageError> {
    storage.get(&record_key(mount_uuid, name))
}

/// Answers `static-roles` and `static-roles/<name>`.
pub async fn handle(place: &Place<'_>, request: &Request, name: &str) -> Result<Response, ApiError> {
    match (request.operation, name) {
        (Operation::List, "") => place.list(request, KEYS),
        (_, "") => Err(ApiError::unsupported_operation()),
        (Operation::Read, _) => match read(place, name)? {
            Some(role) => Ok(Response::data(view(&role.value))),
            None => Err(ApiError::missing()),
        },
        (Operation::Write, _) => write(place, &request.data, name).await,
        (Operation::Delete, _) => delete(place, name).await,
        _ => Err(ApiError::unsupported_operation()),
    }
}

/// Answers `static-creds/<name>`.
pub fn credentials(place: &Place<'_>, name: &str) -> Result<Response, ApiError> {
    let role = read(place, name)?.ok_or_else(|| ApiError::invalid(format!("unknown role: {name}")))?.value;
    let mut data = Map::from_iter([
        ("username".to_owned(), json!(role.username)),
        ("password".to_owned(), json!(role.password)),
        ("rotation_period".to_owned(), json!(role.rotation_period)),
    ]);
    let ends = role.rotated.map(|at| at.after_secs(role.rotation_period));
    data.insert("ttl".to_owned(), json!(ends.map_or(0, |at| Wall::now().secs_until(at))));
    data.insert("last_vault_rotation".to_owned(), shown(role.rotated));
    Ok(Response::data(data))
}

/// Answers `rotate-role/<name>`.
pub async fn rotate(place: &Place<'_>, name: &str) -> Result<Response, ApiError> {
    if read(place, name)?.is_none() {
        return Err(ApiError::invalid(format!("unknown role: {name}")));
    }
    let cx = place.cx;
    let rotation = Rotation { hub: &cx.hub, storage: &cx.storage, term: cx.term, cancel: &cx.cancel };
    let _held = place.databases().rotating.take(&rotation::lock(&place.mount.uuid, name)).await;
    rotation.rotate(&place.mount.uuid, name).await.map_err(rotation::Failed::into_api)?;
    Ok(Response::no_content())
}

async fn write(place: &Place<'_>, data: &Data, name: &str) -> Result<Response, ApiError> {
    check_name(name)?;
    let _held = place.databases().rotating.take(&rotation::lock(&place.mount.uuid, name)).await;
    match read(place, name)? {
        Some(stored) => update(place, data, stored).await,
        None => create(place, data, name).await,
    }
}

async fn update(place: &Place<'_>, data: &Data, before: Stored<StaticRole>) -> Result<Response, ApiError> {
    let mut role = before.value.clone();
    for (field, fixed) in [("username", &role.username), ("db_name", &role.db_name)] {
        if data.string(field)?.is_some_and(|value| value != *fixed) {
            return Err(ApiError::invalid(format!("cannot update static role {field}")));
        }
    }
    merge(&mut role, data)?;
    if let Some(rotated) = role.rotated {
        role.due = rotated.after_secs(role.rotation_period);
    }
    let mut txn = place.cx.storage.txn();
    rotation::replace(&mut txn, &before, &role)?;
    txn.commit().await?;
    Ok(Response::no_content())
}

async fn create(place: &Place<'_>, data: &Data, name: &str) -> Result<Response, ApiError> {
    let username = data.required("username", "username is a required field to create a static account")?;
    let db_name = data.required("db_name", "database name is required")?;
    let named = config::required(place, &db_name)?;
    if !named.connection.value.config.allows_role(name) {
        return Err(ApiError::failed(format!("{name:?} is not an allowed role")));
    }
    let mut role = StaticRole {
        name: name.to_owned(),
        mount_uuid: place.mount.uuid.clone(),
        db_name,
        config_id: named.connection.value.id.clone(),
        username,
        rotation_period: 0,
        rotation_statements: Vec::new(),
        credential_config: Default::default(),
        password: String::new(),
        rotated: None,
        due: Wall::now(),
    };
    merge(&mut role, data)?;
    insert(place, &role, &named).await?;
    let cx = place.cx;
    let rotation = Rotation { hub: &cx.hub, storage: &cx.storage, term: cx.term, cancel: &cx.cancel };
    match rotation.rotate(&place.mount.uuid, name).await {
        Ok(()) => Ok(Response::no_content()),
        Err(failed) => {
            // A role whose user was provably left as it was is not kept; else the queue finds out what happened.
            if failed.is_definite() {
                remove(&cx.hub, &cx.storage, &place.mount.uuid, name).await?;
            }
            Err(failed.into_api())
        }
    }
}

async fn insert(place: &Place<'_>, role: &StaticRole, named: &connection::Named) -> Result<(), ApiError> {
    let own = |key: String| format!("{}{key}", place.storage.prefix());
    let mut txn = place.cx.storage.txn();
    txn.require_absent(&own(role::key(&role.name)));
    txn.require_absent(&role.key());
    txn.require_absent(&role.name_key());
    place.mount.require_mounted(&mut txn);
    txn.require_version(&own(connection::pointer_key(&role.db_name)), named.pointer.version);
    txn.put(&role.key(), role)?;
    txn.put(&role.name_key(), &names::Holder::Static(role.name.clone()))?;
    rotation::insert(&mut txn, role)?;
    match txn.commit().await {
        Ok(_) => Ok(()),
        Err(error) if error.is_conflict() && role::read(place, &role.name)?.is_some() => {
            Err(ApiError::invalid(UNIQUE_NAMES))
        }
        Err(error) if super::intent::name_is_taken(&error, &role.name_key()) => {
            Err(ApiError::invalid(format!("the user {:?} is held by another role or lease", role.username)))
        }
        Err(error) => Err(error.into()),
    }
}

fn merge(role: &mut StaticRole, data: &Data) -> Result<(), ApiError> {
    if let Some(period) = data.duration("rotation_period")? {
        role.rotation_period = period.as_secs();
    }
    if role.rotation_period < SHORTEST_PERIOD {
        return Err(ApiError::invalid("rotation_period must be 5 seconds or more"));
    }
    if let Some(list) = statements(data, "rotation_statements")? {
        role.rotation_statements = list;
    }
    role::check_credentials(data)?;
    if let Some(config) = data.string_map("credential_config")? {
        role.credential_config = config;
    }
    Ok(())
}

async fn delete(place: &Place<'_>, name: &str) -> Result<Response, ApiError> {
    let _held = place.databases().rotating.take(&rotation::lock(&place.mount.uuid, name)).await;
    remove(&place.cx.hub, &place.cx.storage, &place.mount.uuid, name).await?;
    Ok(Response::no_content())
}

/// Removes a static role; its user stays as it is.
pub async fn remove(hub: &Hub, storage: &Storage, mount_uuid: &str, name: &str) -> Result<(), ApiError> {
    let Some(stored) = read_record(storage, mount_uuid, name)? else { return Ok(()) };
    let role = &stored.value;
    let mut txn: Txn<'_> = storage.txn();
    txn.require_version(&role.key(), stored.version);
    txn.delete(&role.key());
    txn.delete(&role.name_key());
    rotation::remove(&mut txn, role);
    txn.commit().await?;
    hub.leases.collect(storage, &role.queue()).await?;
    Ok(())
}

fn shown(at: Option<Wall>) -> Value {
    at.map_or(Value::Null, |at| json!(at.display()))
}

fn view(role: &StaticRole) -> Map<String, Value> {
    Map::from_iter([
        ("username".to_owned(), json!(role.username)),
        ("db_name".to_owned(), json!(role.db_name)),
        ("rotation_period".to_owned(), json!(role.rotation_period)),
        ("rotation_statements".to_owned(), json!(role.rotation_statements)),
        ("credential_type".to_owned(), json!("password")),
        ("credential_config".to_owned(), json!(role.credential_config)),
        ("last_vault_rotation".to_owned(), shown(role.rotated)),
    ])
}

/// The password as it is kept in the record.
pub fn kept(password: &SecretString) -> String {
    password.expose_secret().to_owned()
}
