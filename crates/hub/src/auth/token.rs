//! Tokens: who a caller is and what policies apply.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::storage::Storage;

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
    /// Seconds asked for at creation.
    pub creation_ttl: u64,
    /// Unix seconds; none for a root token.
    pub expires: Option<i64>,
    /// Unix seconds of the last renewal.
    pub renewed: Option<i64>,
    /// Seconds from creation beyond which no renewal goes; 0 for none.
    pub explicit_max_ttl: u64,
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
}

/// The token store.
pub struct Tokens {
    storage: Storage,
}

impl Tokens {
    /// Over the whole store.
    pub fn new(storage: Storage) -> Self {
        Self { storage }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }
}
