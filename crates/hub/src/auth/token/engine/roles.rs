//! `auth/token/roles/`: what tokens may be made of, for callers with fewer rights than the tokens.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::auth::params::{TokenKind, name, networks, texts, uses};
use crate::auth::token::create::clean_policies;
use crate::error::ApiError;
use crate::logical::{Cx, Data, Operation, Request, Response};

const PREFIX: &str = "token/role/";

/// What a client may write.
pub(super) const FIELDS: [&str; 15] = [
    "allowed_policies",
    "disallowed_policies",
    "orphan",
    "renewable",
    "token_period",
    "period",
    "token_explicit_max_ttl",
    "explicit_max_ttl",
    "path_suffix",
    "token_type",
    "token_num_uses",
    "token_bound_cidrs",
    "bound_cidrs",
    "token_no_default_policy",
    "role_name",
];

/// A token role. Times are in seconds, 0 for none.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Role {
    /// Tokens may have any of these, whatever the caller has; empty for the caller's.
    pub allowed_policies: Vec<String>,
    /// Tokens must not have any of these.
    pub disallowed_policies: Vec<String>,
    /// Tokens have no parent.
    pub orphan: bool,
    /// Each renewal gives this much.
    pub period: u64,
    /// Tokens can be renewed.
    pub renewable: bool,
    /// No renewal goes beyond.
    pub explicit_max_ttl: u64,
    /// Added to the path of the tokens.
    pub path_suffix: String,
    /// The type of the tokens.
    pub kind: TokenKind,
    /// Uses; 0 for unlimited.
    pub num_uses: i64,
    /// Networks from which tokens may be used.
    pub bound_cidrs: Vec<IpNet>,
    /// Leaves `default` out.
    pub no_default_policy: bool,
}

impl Default for Role {
    fn default() -> Self {
        Self {
            allowed_policies: Vec::new(),
            disallowed_policies: Vec::new(),
            orphan: false,
            period: 0,
            renewable: true,
            explicit_max_ttl: 0,
            path_suffix: String::new(),
            kind: TokenKind::DefaultService,
            num_uses: 0,
            bound_cidrs: Vec::new(),
            no_default_policy: false,
        }
    }
}

impl Role {
    fn update(&mut self, data: &Data) -> Result<(), ApiError> {
        let named = |long: &'static str, short: &'static str| if data.has(long) { long } else { short };
        if let Some(policies) = data.strings("allowed_policies")? {
            self.allowed_policies = clean_policies(&policies, false);
        }
        if let Some(policies) = data.strings("disallowed_policies")? {
            self.disallowed_policies = clean_policies(&policies, false);
        }
        if let Some(orphan) = data.bool("orphan")? {
            self.orphan = orphan;
        }
        if let Some(renewable) = data.bool("renewable")? {
            self.renewable = renewable;
        }
        if let Some(period) = data.duration(named("token_period", "period"))? {
            self.period = period.as_secs();
        }
        if let Some(ttl) = data.duration(named("token_explicit_max_ttl", "explicit_max_ttl"))? {
            self.explicit_max_ttl = ttl.as_secs();
        }
        if let Some(suffix) = data.string("path_suffix")? {
            self.path_suffix = suffix_of(&suffix)?;
        }
        if let Some(kind) = data.string("token_type")?.filter(|kind| !kind.is_empty()) {
            self.kind = TokenKind::named(&kind)?;
        }
        if let Some(uses) = uses(data, "token_num_uses")? {
            self.num_uses = uses;
        }
        if let Some(cidrs) = networks(data, named("token_bound_cidrs", "bound_cidrs"))? {
            self.bound_cidrs = cidrs;
        }
        if let Some(bare) = data.bool("token_no_default_policy")? {
            self.no_default_policy = bare;
        }
        self.check()
    }

    fn check(&self) -> Result<(), ApiError> {
        if self.explicit_max_ttl > 0 && self.period > self.explicit_max_ttl {
            return Err(ApiError::invalid("'token_period' cannot be greater than 'token_explicit_max_ttl'"));
        }
        if self.kind == TokenKind::Batch
            && (self.period > 0 || self.explicit_max_ttl > 0 || self.num_uses > 0)
        {
            return Err(ApiError::invalid(
                "'token_type' cannot be 'batch' when a period, an explicit maximum or a number of uses is set",
            ));
        }
        Ok(())
    }

    fn shown(&self, name: &str) -> Map<String, Value> {
        Map::from_iter([
            ("name".to_owned(), Value::from(name)),
            ("allowed_policies".to_owned(), self.allowed_policies.clone().into()),
            ("disallowed_policies".to_owned(), self.disallowed_policies.clone().into()),
            ("orphan".to_owned(), self.orphan.into()),
            ("path_suffix".to_owned(), self.path_suffix.clone().into()),
            ("renewable".to_owned(), self.renewable.into()),
            ("period".to_owned(), self.period.into()),
            ("explicit_max_ttl".to_owned(), self.explicit_max_ttl.into()),
            ("token_period".to_owned(), self.period.into()),
            ("token_explicit_max_ttl".to_owned(), self.explicit_max_ttl.into()),
            ("token_type".to_owned(), self.kind.name().into()),
            ("token_num_uses".to_owned(), self.num_uses.into()),
            ("token_bound_cidrs".to_owned(), texts(&self.bound_cidrs)),
            ("token_no_default_policy".to_owned(), self.no_default_policy.into()),
        ])
    }
}

fn suffix_of(text: &str) -> Result<String, ApiError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    if !text.chars().all(fits) || text.split('/').any(|segment| segment == "..") {
        return Err(ApiError::invalid("'path_suffix' holds a character that is not possible"));
    }
    Ok(text.trim_matches('/').to_owned())
}

/// The role with this name.
pub(super) fn read(cx: &Cx, name: &str) -> Result<Option<Role>, ApiError> {
    Ok(cx.storage.get(&format!("{PREFIX}{name}"))?.map(|stored| stored.value))
}

pub(super) fn exists(cx: &Cx, name: &str) -> Result<bool, ApiError> {
    Ok(read(cx, &name.to_lowercase())?.is_some())
}

/// Answers `auth/token/roles/<rest>`.
pub(super) async fn handle(cx: &Cx, request: &Request, rest: &str) -> Result<Response, ApiError> {
    if request.operation == Operation::List && rest.is_empty() {
        let (after, limit) = request.page()?;
        let keys = cx.storage.list(PREFIX, after.as_deref(), limit)?;
        return if keys.is_empty() { Err(ApiError::missing()) } else { Ok(Response::keys(keys, None)) };
    }
    let name = name(rest)?;
    let key = format!("{PREFIX}{name}");
    match request.operation {
        Operation::Read => {
            let role = read(cx, &name)?.ok_or_else(ApiError::missing)?;
            Ok(Response::data(role.shown(&name)))
        }
        Operation::Write => {
            write(cx, &key, &request.data).await?;
            Ok(Response::no_content())
        }
        Operation::Delete => {
            cx.storage.delete(&key).await?;
            Ok(Response::no_content())
        }
        Operation::List | Operation::Patch => Err(ApiError::unsupported_operation()),
    }
}

async fn write(cx: &Cx, key: &str, data: &Data) -> Result<(), ApiError> {
    let stored = cx.storage.get::<Role>(key)?;
    let mut txn = cx.storage.txn();
    let mut role = match stored {
        Some(stored) => {
            txn.require_version(key, stored.version);
            stored.value
        }
        None => {
            txn.require_absent(key);
            Role::default()
        }
    };
    role.update(data)?;
    txn.put(key, &role)?;
    txn.commit().await?;
    Ok(())
}
