//! Bootstrap tokens: what a spoke has before it has a certificate.

use holdfast_net::enrol::{self, BootstrapToken};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use holdfast_core::{Kind, SpokeName};

use super::ca::DAY;
use super::record::{PLACEHOLDER, TOKENS, restored, stored};
use crate::error::ApiError;
use crate::logical::{Cx, Data, Operation, Request, Response};
use crate::mount::MountEntry;
use crate::storage::Storage;
use crate::wall;

/// How often a token is drawn whose id is taken.
const DRAWS: usize = 8;

/// What a token may be used for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Usage {
    /// The hub's description is signed with it.
    Signing,
    /// It authenticates a request for a certificate.
    Authentication,
}

/// A token as it is stored.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct TokenRecord {
    #[serde(serialize_with = "stored", deserialize_with = "restored")]
    secret: SecretString,
    /// When it ends, in seconds since 1970; 0 for never.
    pub expiration_unix: i64,
    /// The one name it may be used for; empty for any.
    pub allowed_spoke_name: String,
    /// For people.
    pub description: String,
    /// What it may be used for.
    pub usages: Vec<Usage>,
    /// When it was made, in seconds since 1970.
    pub created_unix: i64,
    /// How many certificates it may get; 0 for any number.
    pub max_uses: u64,
    /// How many it got.
    pub uses: u64,
}

/// A token that was looked up for a caller who has not proved anything yet.
pub struct Found {
    /// The record; one that nobody has the secret of when there is no such token.
    pub record: TokenRecord,
    /// The version of the stored record, when there is one.
    version: Option<u64>,
    id: String,
}

impl TokenRecord {
    /// A record that no caller's token fits, of the size of a real one.
    pub fn placeholder(token: &BootstrapToken) -> Self {
        Self {
            secret: SecretString::from(token.secret()),
            expiration_unix: 1,
            allowed_spoke_name: String::new(),
            description: String::new(),
            usages: vec![Usage::Signing, Usage::Authentication],
            created_unix: 0,
            max_uses: 0,
            uses: 0,
        }
    }

    /// What is shown of it: everything but the secret.
    fn shown(&self, now: i64) -> Map<String, Value> {
        let fields = json!({
            "expiration_unix": self.expiration_unix,
            "allowed_spoke_name": self.allowed_spoke_name,
            "description": self.description,
            "usages": self.usages,
            "created_unix": self.created_unix,
            "max_uses": self.max_uses,
            "uses": self.uses,
            "expired": self.is_expired(now),
        });
        fields.as_object().cloned().unwrap_or_default()
    }

    fn is_expired(&self, now: i64) -> bool {
        self.expiration_unix != 0 && self.expiration_unix <= now
    }
}

impl Found {
    /// Looks a token up. One that is there and one that is not take the same work: one look at the index, one record
    /// read and decrypted.
    pub fn look_up(storage: &Storage, id: &str) -> Result<Self, ApiError> {
        // What is no id at all is looked for too, as one that cannot be there.
        let id = if enrol::is_id(id) { id } else { "------" };
        let key = format!("{TOKENS}{id}");
        let there = storage.scan_keys(&key, None, 1)?.first() == Some(&key);
        let read = storage.get::<TokenRecord>(if there { &key } else { PLACEHOLDER });
        // A record that cannot be read is as good as none; a store that cannot be read is a failure of the hub.
        let found = match read {
            Err(error) if error.kind() != Kind::Corrupt => return Err(error.into()),
            read => read.unwrap_or_default(),
        };
        let version = found.as_ref().filter(|_| there).map(|found| found.version);
        let record = found.map(|found| found.value);
        let record = record.unwrap_or_else(|| TokenRecord::placeholder(&BootstrapToken::random()));
        Ok(Self { record, version, id: id.to_owned() })
    }

    /// Whether the token may be used for this now. Every question is asked, whatever the others say.
    pub fn allows(&self, usage: Usage) -> bool {
        let there = self.version.is_some();
        let alive = !self.record.is_expired(wall::now_unix());
        let meant = self.record.usages.contains(&usage);
        let left = self.record.max_uses == 0 || self.record.uses < self.record.max_uses;
        there & alive & meant & left
    }

    /// Whether the caller has the secret and may use the token for this name.
    pub fn proves(&self, secret: &str, spoke: &str) -> bool {
        let known = enrol::same(secret, self.record.secret.expose_secret());
        let allowed = &self.record.allowed_spoke_name;
        known & (allowed.is_empty() | (allowed == spoke))
    }

    /// Signs the hub's description.
    pub fn sign(&self, payload: &str) -> String {
        enrol::sign(&self.id, self.record.secret.expose_secret(), payload)
    }

    /// Counts one use in a transaction that fails when somebody else was faster.
    pub fn count_use(&self, txn: &mut crate::storage::Txn<'_>) -> Result<(), ApiError> {
        let key = format!("{TOKENS}{}", self.id);
        let version = self.version.ok_or_else(refused)?;
        txn.require_version(&key, version);
        let record = TokenRecord { uses: self.record.uses.saturating_add(1), ..self.record.clone() };
        Ok(txn.put(&key, &record)?)
    }
}

/// The one answer to every fault of a token on an open path.
pub fn refused() -> ApiError {
    ApiError::invalid("token unknown or expired")
}

/// `bootstrap-tokens` and `bootstrap-tokens/<id>`.
pub async fn handle(cx: &Cx, mount: &MountEntry, request: &Request, id: &str) -> Result<Response, ApiError> {
    match (id, request.operation) {
        ("", Operation::Write) => create(cx, mount, &request.data).await,
        ("", Operation::List) => list(cx, request),
        ("", _) => Err(ApiError::unsupported_operation()),
        (_, Operation::Read) => read(cx, id),
        (_, Operation::Delete) => {
            if enrol::is_id(id) {
                cx.storage.delete(&format!("{TOKENS}{id}")).await?;
            }
            Ok(Response::no_content())
        }
        _ => Err(ApiError::unsupported_operation()),
    }
}

async fn create(cx: &Cx, mount: &MountEntry, data: &Data) -> Result<Response, ApiError> {
    create_drawn(cx, mount, data, BootstrapToken::random).await
}

/// Makes a token of those that are drawn. Ids are short: among thousands of tokens one is drawn that is there already.
pub(super) async fn create_drawn(
    cx: &Cx,
    mount: &MountEntry,
    data: &Data,
    draw: impl Fn() -> BootstrapToken,
) -> Result<Response, ApiError> {
    let mut token = draw();
    for _ in 1..DRAWS {
        if cx.storage.get::<Value>(&format!("{TOKENS}{}", token.id())).is_ok_and(|there| there.is_none()) {
            break;
        }
        token = draw();
    }
    let record = parse(&token, data, wall::now_unix())?;
    let key = format!("{TOKENS}{}", token.id());
    let mut txn = cx.storage.txn();
    mount.require_mounted(&mut txn);
    txn.require_absent(&key);
    txn.put(&key, &record)?;
    if cx.storage.get::<TokenRecord>(PLACEHOLDER)?.is_none() {
        txn.put(PLACEHOLDER, &TokenRecord::placeholder(&BootstrapToken::random()))?;
    }
    txn.commit().await?;
    let fields = json!({
        "id": token.id(),
        "token": token.text().as_str(),
        "expiration_unix": record.expiration_unix,
        "allowed_spoke_name": record.allowed_spoke_name,
        "usages": record.usages,
    });
    let data = fields.as_object().cloned().unwrap_or_default();
    Ok(Response::data(data).warn("the token is shown once and cannot be read again"))
}

fn parse(token: &BootstrapToken, data: &Data, now: i64) -> Result<TokenRecord, ApiError> {
    let expiration_unix = match data.seconds("ttl")?.unwrap_or(0) {
        0 => now.saturating_add(DAY),
        ttl if ttl < 0 => 0,
        ttl => now.saturating_add(ttl),
    };
    let allowed_spoke_name = data.string("allowed_spoke_name")?.unwrap_or_default();
    if !allowed_spoke_name.is_empty() {
        let parsed = allowed_spoke_name.parse::<SpokeName>();
        parsed.map_err(|error| ApiError::invalid(format!("allowed_{error}")))?;
    }
    let max_uses = u64::try_from(data.int("max_uses")?.unwrap_or(0))
        .map_err(|_| ApiError::invalid("max_uses must not be negative"))?;
    Ok(TokenRecord {
        secret: SecretString::from(token.secret()),
        expiration_unix,
        allowed_spoke_name,
        description: data.string("description")?.unwrap_or_default(),
        usages: usages(data)?,
        created_unix: now,
        max_uses,
        uses: 0,
    })
}

fn usages(data: &Data) -> Result<Vec<Usage>, ApiError> {
    let named = data.strings("usages")?.unwrap_or_default();
    if named.is_empty() {
        return Ok(vec![Usage::Signing, Usage::Authentication]);
    }
    let usage = |name: &String| match name.as_str() {
        "signing" => Ok(Usage::Signing),
        "authentication" => Ok(Usage::Authentication),
        _ => Err(ApiError::invalid(format!("unknown usage {name:?}: use signing, authentication"))),
    };
    named.iter().map(usage).collect()
}

fn list(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    let (after, limit) = request.page()?;
    let keys = cx.storage.list(TOKENS, after.as_deref(), limit)?;
    if keys.is_empty() {
        return Err(ApiError::missing());
    }
    let now = wall::now_unix();
    let info = |id: &String| {
        let shown = match cx.storage.get::<TokenRecord>(&format!("{TOKENS}{id}")) {
            Ok(Some(found)) => Value::Object(found.value.shown(now)),
            _ => json!({ "error": "unreadable" }),
        };
        (id.clone(), shown)
    };
    let info = keys.iter().map(info).collect();
    Ok(Response::keys(keys, Some(info)))
}

fn read(cx: &Cx, id: &str) -> Result<Response, ApiError> {
    if !enrol::is_id(id) {
        return Err(ApiError::missing());
    }
    let found = cx.storage.get::<TokenRecord>(&format!("{TOKENS}{id}"))?.ok_or_else(ApiError::missing)?;
    let mut data = found.value.shown(wall::now_unix());
    data.insert("id".to_owned(), json!(id));
    Ok(Response::data(data))
}
