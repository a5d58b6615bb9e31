//! Secret ids.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::Place;
use super::role::{self, Role};
use crate::auth::params::{networks, texts, uses};
use crate::auth::token::{after, barrier_error};
use crate::barrier::MacPurpose;
use crate::error::ApiError;
use crate::logical::{Data, Operation, Response};
use crate::storage::{Storage, Stored, Txn};
use crate::wall;

/// Expired secret ids that are removed when a new one is made.
const SWEEP: usize = 32;
const DUE: &str = "due/";

/// What is known of a secret id. Its text is not part of it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct SecretId {
    /// Names it to those who must not know it.
    pub accessor: String,
    /// Logins left; 0 for unlimited.
    pub num_uses: i64,
    /// Seconds given at creation; 0 for ever.
    pub ttl: u64,
    /// Unix seconds.
    pub created: i64,
    /// Unix seconds of the last login or change.
    pub updated: i64,
    /// Unix seconds; none for ever.
    pub expires: Option<i64>,
    /// What the tokens carry.
    pub metadata: BTreeMap<String, String>,
    /// Networks from which it may be used; empty for the role's.
    pub cidr_list: Vec<IpNet>,
    /// Networks from which its tokens may be used; empty for the role's.
    pub token_bound_cidrs: Vec<IpNet>,
}

/// What a client may write to make one.
pub(super) const FIELDS: [&str; 6] =
    ["secret_id", "metadata", "cidr_list", "token_bound_cidrs", "num_uses", "ttl"];

impl SecretId {
    /// Whether it has not expired at `now`.
    pub(super) fn is_alive(&self, now: i64) -> bool {
        self.expires.is_none_or(|at| at > now)
    }

    fn shown(&self) -> Map<String, Value> {
        let time = |at: i64| Value::from(wall::rfc3339_unix(at));
        let metadata: Map<String, Value> =
            self.metadata.iter().map(|(name, value)| (name.clone(), Value::from(value.clone()))).collect();
        Map::from_iter([
            ("secret_id_accessor".to_owned(), Value::from(self.accessor.clone())),
            ("secret_id_num_uses".to_owned(), self.num_uses.into()),
            ("secret_id_ttl".to_owned(), self.ttl.into()),
            ("creation_time".to_owned(), time(self.created)),
            ("last_updated_time".to_owned(), time(self.updated)),
            // Clients read the first year of the calendar as "never".
            ("expiration_time".to_owned(), self.expires.map_or("0001-01-01T00:00:00Z".into(), time)),
            ("metadata".to_owned(), Value::Object(metadata)),
            ("cidr_list".to_owned(), texts(&self.cidr_list)),
            ("token_bound_cidrs".to_owned(), texts(&self.token_bound_cidrs)),
        ])
    }
}

/// Where a secret id of a role lies.
#[derive(Clone, Debug)]
pub(super) struct Key {
    role: Uuid,
    mac: String,
}

impl Key {
    /// The key of the secret id with this text.
    pub(super) fn of(storage: &Storage, role: &Role, text: &str) -> Result<Self, ApiError> {
        let mac = storage.barrier().mac(MacPurpose::Lookup, text.as_bytes()).map_err(barrier_error)?;
        Ok(Self { role: role.uuid, mac: hex::encode(mac) })
    }

    /// The key of its record.
    pub(super) fn record(&self) -> String {
        format!("{}{}", records(&self.role), self.mac)
    }

    fn due(&self, at: i64) -> String {
        format!("{DUE}{:016x}/{}/{}", at.max(0), self.role, self.mac)
    }

    /// Adds the removal of the secret id and its indexes.
    pub(super) fn remove(&self, txn: &mut Txn<'_>, secret: &SecretId) {
        txn.delete(&self.record());
        txn.delete(&accessor_key(&self.role, &secret.accessor));
        if let Some(at) = secret.expires {
            txn.delete(&self.due(at));
        }
    }
}

fn records(role: &Uuid) -> String {
    format!("secret/{role}/")
}

fn accessors(role: &Uuid) -> String {
    format!("accessor/{role}/")
}

fn accessor_key(role: &Uuid, accessor: &str) -> String {
    format!("{}{accessor}", accessors(role))
}

/// The secret id at a key, unless it expired.
pub(super) fn read(place: &Place<'_>, key: &Key) -> Result<Option<Stored<SecretId>>, ApiError> {
    let stored = place.storage.get::<SecretId>(&key.record())?;
    Ok(stored.filter(|stored| stored.value.is_alive(place.cx.hub.tokens.now())))
}

/// Answers `role/<name>/<below>` for all that is about secret ids.
pub(super) async fn handle(place: &Place<'_>, name: &str, below: &str) -> Result<Response, ApiError> {
    use Operation::{Delete, List, Write};
    let operation = place.request.operation;
    if !matches!(
        below,
        "secret-id"
            | "secret-id/"
            | "custom-secret-id"
            | "secret-id/lookup"
            | "secret-id/destroy"
            | "secret-id-accessor/lookup"
            | "secret-id-accessor/destroy"
    ) {
        return Err(ApiError::unsupported_path());
    }
    let role = role::read(&place.storage, name)?;
    let role = role.ok_or_else(|| ApiError::invalid(format!("role {name:?} does not exist")))?.value;
    match (below, operation) {
        ("secret-id" | "secret-id/", List) => list(place, &role),
        ("secret-id", Write) => create(place, name, &role, Uuid::new_v4().to_string()).await,
        ("custom-secret-id", Write) => {
            let text = place.request.data.required("secret_id", "missing secret_id")?;
            create(place, name, &role, text).await
        }
        ("secret-id/lookup", Write) => {
            let found = read(place, &by_text(place, &role)?)?;
            // Clients tell "no such secret id" by the empty answer.
            Ok(found.map_or_else(Response::no_content, |stored| Response::data(stored.value.shown())))
        }
        ("secret-id/destroy", Write | Delete) => destroy(place, &by_text(place, &role)?).await,
        ("secret-id-accessor/lookup", Write) => {
            let found = read(place, &by_accessor(place, &role)?)?.ok_or_else(ApiError::missing)?;
            Ok(Response::data(found.value.shown()))
        }
        ("secret-id-accessor/destroy", Write | Delete) => destroy(place, &by_accessor(place, &role)?).await,
        _ => Err(ApiError::unsupported_operation()),
    }
}

fn list(place: &Place<'_>, role: &Role) -> Result<Response, ApiError> {
    let (after, limit) = place.request.page()?;
    let keys = place.storage.list(&accessors(&role.uuid), after.as_deref(), limit)?;
    if keys.is_empty() { Err(ApiError::missing()) } else { Ok(Response::keys(keys, None)) }
}

fn by_text(place: &Place<'_>, role: &Role) -> Result<Key, ApiError> {
    let text = place.request.data.required("secret_id", "missing secret_id")?;
    Key::of(&place.storage, role, &text)
}

fn by_accessor(place: &Place<'_>, role: &Role) -> Result<Key, ApiError> {
    let accessor = place.request.data.required("secret_id_accessor", "missing secret_id_accessor")?;
    // Only what was made here can be found; other text never becomes part of a key.
    let accessor = accessor.parse::<Uuid>().map_err(|_| ApiError::missing())?.to_string();
    let found = place.storage.get::<String>(&accessor_key(&role.uuid, &accessor))?;
    let mac = found.ok_or_else(ApiError::missing)?.value;
    Ok(Key { role: role.uuid, mac })
}

async fn destroy(place: &Place<'_>, key: &Key) -> Result<Response, ApiError> {
    if let Some(stored) = place.storage.get::<SecretId>(&key.record())? {
        let mut txn = place.storage.txn();
        key.remove(&mut txn, &stored.value);
        txn.commit().await?;
    }
    Ok(Response::no_content())
}

async fn create(place: &Place<'_>, name: &str, role: &Role, text: String) -> Result<Response, ApiError> {
    if !role.bind_secret_id {
        return Err(ApiError::invalid("bind_secret_id is not set on the role"));
    }
    let secret = draft(place, role)?;
    let key = Key::of(&place.storage, role, &text)?;
    if read(place, &key)?.is_some() {
        return Err(ApiError::invalid("SecretID is already registered"));
    }
    sweep(place).await?;
    let mut txn = place.storage.txn();
    txn.require_present(&role::key(name));
    txn.require_absent(&key.record());
    txn.put(&key.record(), &secret)?;
    txn.put(&accessor_key(&role.uuid, &secret.accessor), &key.mac)?;
    if let Some(at) = secret.expires {
        txn.put(&key.due(at), &())?;
    }
    txn.commit().await?;
    Ok(Response::data(Map::from_iter([
        ("secret_id".to_owned(), Value::from(text)),
        ("secret_id_accessor".to_owned(), secret.accessor.into()),
        ("secret_id_ttl".to_owned(), secret.ttl.into()),
        ("secret_id_num_uses".to_owned(), secret.num_uses.into()),
    ])))
}

fn draft(place: &Place<'_>, role: &Role) -> Result<SecretId, ApiError> {
    let data = &place.request.data;
    let num_uses = uses(data, "num_uses")?.unwrap_or(role.secret_id_num_uses);
    if role.secret_id_num_uses > 0 && (num_uses == 0 || num_uses > role.secret_id_num_uses) {
        return Err(ApiError::invalid("num_uses cannot be higher than the role's secret_id_num_uses"));
    }
    let ttl = data.duration("ttl")?.map_or(role.secret_id_ttl, |ttl| ttl.as_secs());
    if role.secret_id_ttl > 0 && (ttl == 0 || ttl > role.secret_id_ttl) {
        return Err(ApiError::invalid("ttl cannot be longer than the role's secret_id_ttl"));
    }
    let cidr_list = networks(data, "cidr_list")?.unwrap_or_default();
    within("cidr_list", &cidr_list, &role.secret_id_bound_cidrs)?;
    let token_bound_cidrs = networks(data, "token_bound_cidrs")?.unwrap_or_default();
    within("token_bound_cidrs", &token_bound_cidrs, role.params.bound_cidrs())?;
    let now = place.cx.hub.tokens.now();
    Ok(SecretId {
        accessor: Uuid::new_v4().to_string(),
        num_uses,
        ttl,
        created: now,
        updated: now,
        expires: (ttl > 0).then(|| after(now, ttl)),
        metadata: metadata(data)?,
        cidr_list,
        token_bound_cidrs,
    })
}

fn within(field: &str, asked: &[IpNet], limit: &[IpNet]) -> Result<(), ApiError> {
    let outside = |net: &&IpNet| !limit.iter().any(|wide| wide.contains(*net));
    match asked.iter().find(outside) {
        Some(net) if !limit.is_empty() => {
            Err(ApiError::invalid(format!("{field}: {net} is not a subset of the role's networks")))
        }
        _ => Ok(()),
    }
}

/// An object of texts, or such an object as JSON text.
fn metadata(data: &Data) -> Result<BTreeMap<String, String>, ApiError> {
    match data.value("metadata") {
        Some(Value::String(text)) if text.is_empty() => Ok(BTreeMap::new()),
        Some(Value::String(text)) => serde_json::from_str(text)
            .map_err(|_| ApiError::invalid("metadata must be a JSON object of strings")),
        _ => Ok(data.string_map("metadata")?.unwrap_or_default()),
    }
}

/// Removes some of the secret ids that expired.
async fn sweep(place: &Place<'_>) -> Result<(), ApiError> {
    let now = place.cx.hub.tokens.now();
    for due in place.storage.scan_keys(DUE, None, SWEEP)? {
        let mut parts = due.strip_prefix(DUE).unwrap_or_default().split('/');
        let (Some(at), Some(role), Some(mac)) = (parts.next(), parts.next(), parts.next()) else { continue };
        if i64::from_str_radix(at, 16).is_ok_and(|at| at > now) {
            return Ok(());
        }
        let mut txn = place.storage.txn();
        txn.delete(&due);
        if let Ok(role) = role.parse::<Uuid>() {
            let key = Key { role, mac: mac.to_owned() };
            let stored = place.storage.get::<SecretId>(&key.record())?;
            if let Some(stored) = stored.filter(|stored| !stored.value.is_alive(now)) {
                key.remove(&mut txn, &stored.value);
            }
        }
        txn.commit().await?;
    }
    Ok(())
}

/// Removes all secret ids of a role that was deleted.
pub(super) async fn forget_all(place: &Place<'_>, role: &Role) -> Result<(), ApiError> {
    place.storage.delete_prefix(&records(&role.uuid)).await?;
    place.storage.delete_prefix(&accessors(&role.uuid)).await?;
    Ok(())
}
