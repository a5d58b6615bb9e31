//! The `token_*` fields that every login method has: what the tokens of a role or user shall be.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::token::create::clean_policies;
use super::token::{NewToken, Token, TokenType, in_networks};
use crate::error::ApiError;
use crate::logical::{AuthGrant, Cx, Data, Logical, Response};
use crate::mount::{LeaseTtls, MountEntry};
use crate::storage::Txn;

/// What sort of token is made.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenKind {
    /// As the mount says: a service token.
    #[default]
    Default,
    /// A service token unless the client asks for a batch token.
    DefaultService,
    /// A batch token unless the client asks for a service token.
    DefaultBatch,
    /// Always a service token.
    Service,
    /// Always a batch token.
    Batch,
}

impl TokenKind {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Default, "default"),
        (Self::DefaultService, "default-service"),
        (Self::DefaultBatch, "default-batch"),
        (Self::Service, "service"),
        (Self::Batch, "batch"),
    ];

    /// The kind with this name.
    pub fn named(name: &str) -> Result<Self, ApiError> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind);
        found.ok_or_else(|| ApiError::invalid(format!("invalid 'token_type' value {name:?}")))
    }

    /// The name in answers.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("default", |(_, name)| name)
    }

    /// The type of the token when the client asks for `asked`.
    pub fn choose(self, asked: Option<TokenType>) -> TokenType {
        match self {
            Self::Service => TokenType::Service,
            Self::Batch => TokenType::Batch,
            Self::Default | Self::DefaultService => asked.unwrap_or(TokenType::Service),
            Self::DefaultBatch => asked.unwrap_or(TokenType::Batch),
        }
    }
}

/// What the tokens of a role or user shall be. Times are in seconds, 0 for the mount's.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct TokenParams {
    policies: Vec<String>,
    ttl: u64,
    max_ttl: u64,
    period: u64,
    explicit_max_ttl: u64,
    num_uses: i64,
    bound_cidrs: Vec<IpNet>,
    kind: TokenKind,
    no_default_policy: bool,
}

/// The fields that [`TokenParams::update`] takes over.
pub const FIELDS: [&str; 14] = [
    "token_policies",
    "policies",
    "token_ttl",
    "ttl",
    "token_max_ttl",
    "max_ttl",
    "token_period",
    "period",
    "token_explicit_max_ttl",
    "token_num_uses",
    "token_bound_cidrs",
    "bound_cidrs",
    "token_type",
    "token_no_default_policy",
];

impl TokenParams {
    /// Takes over the fields that are given, under their own or their older short names.
    pub fn update(&mut self, data: &Data) -> Result<(), ApiError> {
        let named = |long: &'static str, short: &'static str| if data.has(long) { long } else { short };
        if let Some(policies) = data.strings(named("token_policies", "policies"))? {
            self.policies = clean_policies(&policies, false);
        }
        for (field, long, short) in [
            (&mut self.ttl, "token_ttl", "ttl"),
            (&mut self.max_ttl, "token_max_ttl", "max_ttl"),
            (&mut self.period, "token_period", "period"),
            (&mut self.explicit_max_ttl, "token_explicit_max_ttl", "token_explicit_max_ttl"),
        ] {
            if let Some(duration) = data.duration(named(long, short))? {
                *field = duration.as_secs();
            }
        }
        if let Some(uses) = uses(data, "token_num_uses")? {
            self.num_uses = uses;
        }
        if let Some(cidrs) = networks(data, named("token_bound_cidrs", "bound_cidrs"))? {
            self.bound_cidrs = cidrs;
        }
        if let Some(kind) = data.string("token_type")?.filter(|kind| !kind.is_empty()) {
            self.kind = TokenKind::named(&kind)?;
        }
        if let Some(bare) = data.bool("token_no_default_policy")? {
            self.no_default_policy = bare;
        }
        self.check()
    }

    fn check(&self) -> Result<(), ApiError> {
        if self.policies.iter().any(|policy| policy == "root") {
            return Err(ApiError::invalid("login methods cannot hand out the root policy"));
        }
        if self.max_ttl > 0 && self.ttl > self.max_ttl {
            return Err(ApiError::invalid("'token_ttl' cannot be greater than 'token_max_ttl'"));
        }
        if self.kind.choose(None) == TokenType::Batch {
            if self.num_uses != 0 {
                return Err(ApiError::invalid("'token_type' cannot be 'batch' when set to limit uses"));
            }
            if self.period != 0 {
                return Err(ApiError::invalid("'token_type' cannot be 'batch' when a period is set"));
            }
        }
        Ok(())
    }

    /// Adds the fields to an answer.
    pub fn render(&self, out: &mut Map<String, Value>) {
        out.extend([
            ("token_policies".to_owned(), Value::from(self.policies.clone())),
            ("token_ttl".to_owned(), self.ttl.into()),
            ("token_max_ttl".to_owned(), self.max_ttl.into()),
            ("token_period".to_owned(), self.period.into()),
            ("token_explicit_max_ttl".to_owned(), self.explicit_max_ttl.into()),
            ("token_num_uses".to_owned(), self.num_uses.into()),
            ("token_bound_cidrs".to_owned(), texts(&self.bound_cidrs)),
            ("token_type".to_owned(), self.kind.name().into()),
            ("token_no_default_policy".to_owned(), self.no_default_policy.into()),
        ]);
    }

    /// The policies by name.
    pub fn policies(&self) -> &[String] {
        &self.policies
    }

    /// Networks from which the tokens may be used.
    pub fn bound_cidrs(&self) -> &[IpNet] {
        &self.bound_cidrs
    }

    /// Whether the tokens may be used from some networks only.
    pub fn is_bound(&self) -> bool {
        !self.bound_cidrs.is_empty()
    }

    /// Whether a login may come from this address.
    pub fn allows_from(&self, remote: IpAddr) -> bool {
        in_networks(&self.bound_cidrs, remote)
    }

    /// Makes the token of a login and answers with it.
    pub async fn log_in(
        &self,
        cx: &Cx,
        mount: &MountEntry,
        path: &str,
        login: Login,
    ) -> Result<Response, ApiError> {
        let system = cx.hub.mounts.ttls(mount);
        let max = if self.max_ttl > 0 { self.max_ttl.min(system.max) } else { system.max };
        let default = system.default.min(max);
        let new = NewToken {
            token_type: self.kind.choose(None),
            policies: self.policies.clone(),
            no_default_policy: self.no_default_policy,
            display_name: login.display_name,
            meta: login.metadata,
            num_uses: self.num_uses,
            ttl: self.ttl,
            explicit_max_ttl: self.explicit_max_ttl,
            period: self.period,
            bound_cidrs: if login.bound_cidrs.is_empty() {
                self.bound_cidrs.clone()
            } else {
                login.bound_cidrs
            },
            ..NewToken::orphan(path, LeaseTtls { default, max })
        };
        let mounted = |txn: &mut Txn<'_>, _: &Token| {
            mount.require_mounted(txn);
            Ok(())
        };
        let created = cx.hub.tokens.create_with(&cx.storage, new, mounted).await?;
        let auth: AuthGrant = created.grant;
        let answer = Logical { auth: Some(Box::new(auth)), warnings: created.warnings, ..Logical::default() };
        Ok(answer.into())
    }
}

/// What a login method knows of a login.
#[derive(Debug, Default)]
pub struct Login {
    /// For people.
    pub display_name: String,
    /// What the token and the answer carry.
    pub metadata: BTreeMap<String, String>,
    /// Networks in place of the role's.
    pub bound_cidrs: Vec<IpNet>,
}

/// A count of uses; 0 for no limit.
pub fn uses(data: &Data, key: &str) -> Result<Option<i64>, ApiError> {
    match data.int(key)? {
        Some(uses) if uses < 0 => Err(ApiError::invalid(format!("{key} cannot be negative"))),
        uses => Ok(uses),
    }
}

/// A list of networks; a plain address is a network of one.
pub fn networks(data: &Data, key: &str) -> Result<Option<Vec<IpNet>>, ApiError> {
    let Some(texts) = data.strings(key)? else { return Ok(None) };
    let parsed = texts.iter().map(|text| {
        let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        net.map_err(|_| ApiError::invalid(format!("{key}: {text:?} is not an address or network")))
    });
    parsed.collect::<Result<_, _>>().map(Some)
}

/// Networks as clients are shown them.
pub fn texts(networks: &[IpNet]) -> Value {
    networks.iter().map(IpNet::to_string).collect()
}

/// A name in a path: no slash, no control character, not empty; in lower case.
pub fn name(text: &str) -> Result<String, ApiError> {
    if text.is_empty() || text.contains('/') || text.chars().any(char::is_control) {
        return Err(ApiError::unsupported_path());
    }
    Ok(text.to_lowercase())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn data(value: Value) -> Data {
        Data::new(value.as_object().unwrap().clone())
    }

    #[test]
    fn fields_have_long_and_short_names() {
        let mut params = TokenParams::default();
        params.update(&data(json!({"policies": "b, A", "ttl": "1m", "bound_cidrs": "10.0.0.1"}))).unwrap();
        params.update(&data(json!({"token_max_ttl": 120, "token_type": "batch"}))).unwrap();
        let mut shown = Map::new();
        params.render(&mut shown);
        assert_eq!(shown["token_policies"], json!(["a", "b"]));
        assert_eq!(shown["token_bound_cidrs"], json!(["10.0.0.1/32"]));
        assert_eq!((&shown["token_ttl"], &shown["token_max_ttl"]), (&json!(60), &json!(120)));
        assert_eq!(shown["token_type"], "batch");
        assert!(params.allows_from("10.0.0.1".parse().unwrap()));
        assert!(params.allows_from("::ffff:10.0.0.1".parse().unwrap()));
        assert!(!params.allows_from("10.0.0.2".parse().unwrap()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in [
            json!({"token_policies": "root"}),
            json!({"token_ttl": 60, "token_max_ttl": 30}),
            json!({"token_type": "bad"}),
            json!({"token_type": "batch", "token_num_uses": 1}),
            json!({"token_num_uses": -1}),
            json!({"token_bound_cidrs": "10.0.0.0/33"}),
            json!({"token_ttl": -1}),
        ] {
            assert_eq!(TokenParams::default().update(&data(bad)).unwrap_err().status(), 400);
        }
    }
}
