//! Roles: what a login yields and what its secret ids are like.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::Place;
use crate::auth::params::{TokenParams, networks, texts, uses};
use crate::auth::token::barrier_error;
use crate::barrier::MacPurpose;
use crate::error::ApiError;
use crate::logical::{Data, Operation, Response};
use crate::storage::{Storage, Stored};

const PREFIX: &str = "role/";

/// What a client may write, beside the parameters of tokens.
pub(super) const FIELDS: [&str; 7] = [
    "role_id",
    "bind_secret_id",
    "secret_id_ttl",
    "secret_id_num_uses",
    "secret_id_bound_cidrs",
    "bound_cidr_list",
    "local_secret_ids",
];

/// A role.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Role {
    /// Names its secret ids in the store; changes never.
    pub uuid: Uuid,
    /// What clients log in with.
    pub role_id: String,
    /// Whether a login needs a secret id.
    pub bind_secret_id: bool,
    /// Seconds that a secret id lives; 0 for ever.
    pub secret_id_ttl: u64,
    /// Logins with one secret id; 0 for unlimited.
    pub secret_id_num_uses: i64,
    /// Networks from which secret ids may be used; empty for any.
    pub secret_id_bound_cidrs: Vec<IpNet>,
    /// What the tokens are like.
    pub params: TokenParams,
}

impl Role {
    fn fresh() -> Self {
        Self {
            uuid: Uuid::new_v4(),
            role_id: Uuid::new_v4().to_string(),
            bind_secret_id: true,
            secret_id_ttl: 0,
            secret_id_num_uses: 0,
            secret_id_bound_cidrs: Vec::new(),
            params: TokenParams::default(),
        }
    }

    fn update(&mut self, data: &Data) -> Result<(), ApiError> {
        if let Some(role_id) = data.string("role_id")?.filter(|id| !id.is_empty()) {
            self.role_id = role_id;
        }
        if let Some(bind) = data.bool("bind_secret_id")? {
            self.bind_secret_id = bind;
        }
        if let Some(ttl) = data.duration("secret_id_ttl")? {
            self.secret_id_ttl = ttl.as_secs();
        }
        if let Some(uses) = uses(data, "secret_id_num_uses")? {
            self.secret_id_num_uses = uses;
        }
        let cidrs =
            if data.has("secret_id_bound_cidrs") { "secret_id_bound_cidrs" } else { "bound_cidr_list" };
        if let Some(cidrs) = networks(data, cidrs)? {
            self.secret_id_bound_cidrs = cidrs;
        }
        self.params.update(data)?;
        if !self.bind_secret_id && self.secret_id_bound_cidrs.is_empty() && !self.params.is_bound() {
            return Err(ApiError::invalid("at least one constraint should be enabled on the role"));
        }
        Ok(())
    }

    fn shown(&self) -> Map<String, Value> {
        let mut out = Map::from_iter([
            ("bind_secret_id".to_owned(), Value::from(self.bind_secret_id)),
            ("secret_id_ttl".to_owned(), self.secret_id_ttl.into()),
            ("secret_id_num_uses".to_owned(), self.secret_id_num_uses.into()),
            ("secret_id_bound_cidrs".to_owned(), texts(&self.secret_id_bound_cidrs)),
            ("local_secret_ids".to_owned(), false.into()),
        ]);
        self.params.render(&mut out);
        out
    }
}

/// Where the name of the role with this role id stands.
fn id_key(storage: &Storage, role_id: &str) -> Result<String, ApiError> {
    let mac = storage.barrier().mac(MacPurpose::Lookup, role_id.as_bytes()).map_err(barrier_error)?;
    Ok(format!("role-id/{}", hex::encode(mac)))
}

/// The role with this name.
pub(super) fn read(storage: &Storage, name: &str) -> Result<Option<Stored<Role>>, ApiError> {
    Ok(storage.get(&key(name))?)
}

/// The role with this role id, and its name.
pub(super) fn by_id(storage: &Storage, role_id: &str) -> Result<Option<(String, Role)>, ApiError> {
    let Some(name) = storage.get::<String>(&id_key(storage, role_id)?)? else { return Ok(None) };
    Ok(read(storage, &name.value)?.map(|stored| (name.value, stored.value)))
}

/// The key of a role's record.
pub(super) fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Answers a list of `role/`.
pub(super) fn list(place: &Place<'_>) -> Result<Response, ApiError> {
    if place.request.operation != Operation::List {
        return Err(ApiError::unsupported_operation());
    }
    let (after, limit) = place.request.page()?;
    let keys = place.storage.list(PREFIX, after.as_deref(), limit)?;
    if keys.is_empty() { Err(ApiError::missing()) } else { Ok(Response::keys(keys, None)) }
}

/// Answers `role/<name>`.
pub(super) async fn handle(place: &Place<'_>, name: &str) -> Result<Response, ApiError> {
    match place.request.operation {
        Operation::Read => {
            let role = read(&place.storage, name)?.ok_or_else(ApiError::missing)?;
            Ok(Response::data(role.value.shown()))
        }
        Operation::Write => {
            write(place, name, Role::fresh).await?;
            Ok(Response::no_content())
        }
        Operation::Delete => {
            delete(place, name).await?;
            Ok(Response::no_content())
        }
        Operation::List | Operation::Patch => Err(ApiError::unsupported_operation()),
    }
}

/// Answers `role/<name>/role-id`.
pub(super) async fn handle_id(place: &Place<'_>, name: &str) -> Result<Response, ApiError> {
    let role = read(&place.storage, name)?.ok_or_else(ApiError::missing)?;
    match place.request.operation {
        Operation::Read => {
            let id = Value::from(role.value.role_id);
            Ok(Response::data(Map::from_iter([("role_id".to_owned(), id)])))
        }
        Operation::Write => {
            place.request.data.required("role_id", "missing role_id")?;
            write(place, name, Role::fresh).await?;
            Ok(Response::no_content())
        }
        _ => Err(ApiError::unsupported_operation()),
    }
}

/// Creates or changes a role and the index of its role id in one batch.
async fn write(place: &Place<'_>, name: &str, fresh: fn() -> Role) -> Result<(), ApiError> {
    let key = key(name);
    let stored = read(&place.storage, name)?;
    let mut txn = place.storage.txn();
    match &stored {
        Some(stored) => txn.require_version(&key, stored.version),
        None => txn.require_absent(&key),
    }
    let old = stored.map(|stored| stored.value);
    let old_id = old.as_ref().map(|role| role.role_id.clone());
    let mut role = old.unwrap_or_else(fresh);
    role.update(&place.request.data)?;
    if old_id.as_deref() != Some(role.role_id.as_str()) {
        let index = id_key(&place.storage, &role.role_id)?;
        if place.storage.get::<String>(&index)?.is_some() {
            return Err(ApiError::invalid("role_id already in use"));
        }
        txn.require_absent(&index);
        txn.put(&index, name)?;
        if let Some(old_id) = old_id {
            txn.delete(&id_key(&place.storage, &old_id)?);
        }
    }
    txn.put(&key, &role)?;
    txn.commit().await?;
    Ok(())
}

async fn delete(place: &Place<'_>, name: &str) -> Result<(), ApiError> {
    let Some(stored) = read(&place.storage, name)? else { return Ok(()) };
    let mut txn = place.storage.txn();
    txn.require_version(&key(name), stored.version);
    txn.delete(&key(name));
    txn.delete(&id_key(&place.storage, &stored.value.role_id)?);
    txn.commit().await?;
    super::secret::forget_all(place, &stored.value).await
}
