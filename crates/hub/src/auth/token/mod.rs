//! Tokens: who a caller is and what policies apply.
//!
//! A service token is one record, found by the MAC of its text, beside four indexes: by accessor, by parent, by
//! expiry time, and its cubbyhole and leases elsewhere. The accessor's index entry doubles as the sign of life: it
//! goes in the same batch that marks the record as revoking, so whatever is created on behalf of a token puts
//! "the accessor entry is there" into its batch ([`Tokens::require_live`]) and cannot outlive it.

pub mod create;
pub mod engine;
pub mod expiry;
pub mod renew;
pub mod revoke;
#[cfg(test)]
mod tests;
pub mod text;
mod uses;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, Ordering};

use serde::{Deserialize, Serialize};

pub use create::{Created, NewToken};
pub use uses::check_leased;

use crate::barrier::MacPurpose;
use crate::error::ApiError;
use crate::lease::Wall;
use crate::storage::{Storage, Stored, Txn};

/// The longest text that is looked at as a token, in bytes.
const MAX_TEXT: usize = 64 << 10;

/// Whether a token has a record of its own.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenType {
    /// A record in the store; can be renewed, revoked and have children.
    #[default]
    Service,
    /// All facts are in the token's own sealed text; creates and revokes nothing.
    Batch,
}

impl TokenType {
    /// The name in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Batch => "batch",
        }
    }
}

/// What is known of a token. Its text is not part of it: records are found by the text's MAC.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Token {
    /// Hex of the MAC of its text: the record's key.
    pub id: String,
    /// 24 base62 characters; empty for a batch token.
    pub accessor: String,
    /// `service` or `batch`.
    pub token_type: TokenType,
    /// Policies by name, sorted.
    pub policies: Vec<String>,
    /// The path that made it.
    pub path: String,
    /// For people.
    pub display_name: String,
    /// What its creator noted.
    pub meta: BTreeMap<String, String>,
    /// Uses left; 0 means unlimited, -1 used up.
    pub num_uses: i64,
    /// Unix seconds.
    pub created: i64,
    /// Seconds given at creation.
    pub creation_ttl: u64,
    /// Unix seconds; none for a root token.
    pub expires: Option<i64>,
    /// Unix seconds of the last renewal.
    pub renewed: Option<i64>,
    /// Seconds from creation beyond which no renewal goes; 0 for none.
    pub explicit_max_ttl: u64,
    /// Seconds from creation beyond which a token without a period is not renewed, as its mount or role had it
    /// at creation; 0 for none.
    pub max_ttl: u64,
    /// Seconds that each renewal gives; 0 for not periodic.
    pub period: u64,
    /// Whether it can be renewed.
    pub renewable: bool,
    /// The parent's id; none for an orphan.
    pub parent: Option<String>,
    /// The token role that made it.
    pub role: String,
    /// Networks from which it may be used; empty for any.
    pub bound_cidrs: Vec<ipnet::IpNet>,
    /// Set before the cascade of a revocation starts: callers are refused from then on.
    pub revoking: bool,
    /// Set with `revoking` when the children are to become orphans instead of being revoked.
    pub spare_children: bool,
}

impl Token {
    /// Whether the `root` policy is among its policies.
    pub fn is_root(&self) -> bool {
        self.policies.iter().any(|policy| policy == "root")
    }

    /// Seconds left at `now`; 0 for a token that does not expire.
    pub fn ttl(&self, now: i64) -> u64 {
        self.expires.map_or(0, |at| u64::try_from(at.saturating_sub(now)).unwrap_or(0))
    }

    /// Whether callers may use it at `now`.
    fn is_alive(&self, now: i64) -> bool {
        !self.revoking && self.num_uses >= 0 && self.expires.is_none_or(|at| at > now)
    }
}

/// Where a token's records lie.
pub(crate) mod keys {
    /// The record.
    pub fn id(id: &str) -> String {
        format!("token/id/{id}")
    }

    /// Accessor to id; also the sign of life.
    pub fn accessor(accessor: &str) -> String {
        format!("token/accessor/{accessor}")
    }

    /// All children of a parent.
    pub fn children(parent: &str) -> String {
        format!("token/child/{parent}/")
    }

    /// One child of a parent.
    pub fn child(parent: &str, child: &str) -> String {
        format!("token/child/{parent}/{child}")
    }

    /// The time-ordered index of work: at `unix` seconds the token is looked at.
    pub fn expiry(unix: i64, id: &str) -> String {
        format!("{EXPIRY}{:016x}/{id}", unix.max(0))
    }

    /// The prefix of the time-ordered index.
    pub const EXPIRY: &str = "token/expiry/";

    /// What the token keeps for itself.
    pub fn cubbyhole(id: &str) -> String {
        format!("cubbyhole/{id}/")
    }
}

/// The token store.
pub struct Tokens {
    storage: Storage,
    /// Seconds by which tests move the clock.
    skew: AtomicI64,
}

impl Tokens {
    /// Over the whole store.
    pub fn new(storage: Storage) -> Self {
        Self { storage, skew: AtomicI64::new(0) }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Unix seconds as this store sees them: of the clock of leases, which never goes back on this node, so that a
    /// token ends with its leases.
    pub fn now(&self) -> i64 {
        Wall::now().millis().div_euclid(1000).saturating_add(self.skew.load(Ordering::Relaxed))
    }

    /// Moves the clock of this store.
    #[cfg(test)]
    pub fn advance(&self, seconds: i64) {
        self.skew.fetch_add(seconds, Ordering::Relaxed);
    }

    /// The token with this text; none when it is unknown, expired, used up or being revoked.
    pub fn lookup(&self, storage: &Storage, text: &str) -> Result<Option<Token>, ApiError> {
        if text.is_empty() || text.len() > MAX_TEXT {
            return Ok(None);
        }
        if let Some(token) = text::open_batch(storage.barrier(), text)? {
            return self.live_batch(storage, token);
        }
        let id = Self::id_of(storage, text)?;
        Ok(self.record(storage, &id)?.map(|stored| stored.value).filter(|token| token.is_alive(self.now())))
    }

    /// The token with this accessor; none when it is unknown, expired, used up or being revoked.
    pub fn lookup_accessor(&self, storage: &Storage, accessor: &str) -> Result<Option<Token>, ApiError> {
        if !text::is_accessor(accessor) {
            return Ok(None);
        }
        let Some(id) = storage.get::<String>(&keys::accessor(accessor))? else { return Ok(None) };
        let found = self.record(storage, &id.value)?.map(|stored| stored.value);
        Ok(found.filter(|token| token.is_alive(self.now())))
    }

    /// The accessors of all tokens, in order after `after`.
    pub fn accessors(
        &self,
        storage: &Storage,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, ApiError> {
        Ok(storage.list("token/accessor/", after, limit)?)
    }

    /// Whether the token may be used from this address.
    pub fn allowed_from(token: &Token, remote: IpAddr) -> bool {
        in_networks(&token.bound_cidrs, remote)
    }

    /// Seconds that the token can live at most from `now` on, renewals included; none when nothing bounds it.
    pub fn longest_life(token: &Token, now: i64) -> Option<u64> {
        let until = if token.explicit_max_ttl > 0 {
            Some(after(token.created, token.explicit_max_ttl))
        } else if token.renewable {
            None
        } else {
            token.expires
        };
        until.map(|at| u64::try_from(at.saturating_sub(now)).unwrap_or(0))
    }

    /// Makes a transaction depend on the token being alive when it is applied: it is then not marked as revoking,
    /// and what the transaction creates will be found by a later revocation. Batch tokens cannot be revoked.
    pub fn require_live(txn: &mut Txn<'_>, token: &Token) {
        if !token.accessor.is_empty() {
            txn.require_present(&keys::accessor(&token.accessor));
        }
    }

    /// The token whose end ends the leases made on behalf of `token`: a batch token has no record to revoke, so they
    /// belong to the token that made it. 403 when that is gone.
    pub fn owner_of_leases(&self, storage: &Storage, token: &Token) -> Result<Token, ApiError> {
        match &token.parent {
            Some(parent) if token.token_type == TokenType::Batch => {
                let parent = self.record(storage, parent)?.map(|stored| stored.value);
                parent.filter(|parent| parent.is_alive(self.now())).ok_or_else(ApiError::denied)
            }
            _ => Ok(token.clone()),
        }
    }

    /// Hex of the MAC of a token's text.
    pub fn id_of(storage: &Storage, text: &str) -> Result<String, ApiError> {
        let mac = storage.barrier().mac(MacPurpose::Token, text.as_bytes()).map_err(barrier_error)?;
        Ok(hex::encode(mac))
    }

    pub(super) fn record(&self, storage: &Storage, id: &str) -> Result<Option<Stored<Token>>, ApiError> {
        Ok(storage.get(&keys::id(id))?)
    }

    /// A batch token lives no longer than the token that made it.
    fn live_batch(&self, storage: &Storage, token: Token) -> Result<Option<Token>, ApiError> {
        let now = self.now();
        if !token.is_alive(now) {
            return Ok(None);
        }
        let Some(parent) = &token.parent else { return Ok(Some(token)) };
        let parent = self.record(storage, parent)?.map(|stored| stored.value);
        Ok(parent.filter(|p| p.is_alive(now)).map(|_| token))
    }
}

/// Whether an address lies in one of the networks, or there are none.
pub(crate) fn in_networks(networks: &[ipnet::IpNet], remote: IpAddr) -> bool {
    networks.is_empty() || networks.iter().any(|net| net.contains(&remote.to_canonical()))
}

/// Unix seconds `seconds` after `from`.
pub(crate) fn after(from: i64, seconds: u64) -> i64 {
    from.saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX))
}

pub(crate) fn barrier_error(error: crate::barrier::BarrierError) -> ApiError {
    match error {
        crate::barrier::BarrierError::Sealed => ApiError::sealed(),
        other => ApiError::internal(other),
    }
}
