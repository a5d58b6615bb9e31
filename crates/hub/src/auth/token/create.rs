//! Making tokens.

use std::collections::BTreeMap;

use secrecy::SecretString;
use zeroize::Zeroizing;

use super::{Token, TokenType, Tokens, after, keys, text};
use crate::error::ApiError;
use crate::logical::{AuthGrant, Cx};
use crate::mount::LeaseTtls;
use crate::storage::{Storage, Txn};

/// What a new token shall be. Whether the caller may ask for it is the caller's business.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// A text chosen by the caller; random when none.
    pub text: Option<SecretString>,
    /// `service` or `batch`.
    pub token_type: TokenType,
    /// Policies by name; cleaned up and completed by `default`.
    pub policies: Vec<String>,
    /// Leaves `default` out.
    pub no_default_policy: bool,
    /// The path that makes it.
    pub path: String,
    /// For people.
    pub display_name: String,
    /// What the creator notes.
    pub meta: BTreeMap<String, String>,
    /// Uses; 0 for unlimited.
    pub num_uses: i64,
    /// Seconds; 0 for the default of `limits`.
    pub ttl: u64,
    /// The limits of the mount or role.
    pub limits: LeaseTtls,
    /// Seconds; 0 for none.
    pub explicit_max_ttl: u64,
    /// Seconds; 0 for not periodic.
    pub period: u64,
    /// Whether it can be renewed.
    pub renewable: bool,
    /// The parent; none for an orphan.
    pub parent: Option<Token>,
    /// The token role that makes it.
    pub role: String,
    /// Networks from which it may be used.
    pub bound_cidrs: Vec<ipnet::IpNet>,
}

impl NewToken {
    /// A renewable orphan service token without policies, made by `path` under `limits`.
    pub fn orphan(path: impl Into<String>, limits: LeaseTtls) -> Self {
        Self {
            text: None,
            token_type: TokenType::Service,
            policies: Vec::new(),
            no_default_policy: false,
            path: path.into(),
            display_name: String::new(),
            meta: BTreeMap::new(),
            num_uses: 0,
            ttl: 0,
            limits,
            explicit_max_ttl: 0,
            period: 0,
            renewable: true,
            parent: None,
            role: String::new(),
            bound_cidrs: Vec::new(),
        }
    }

    /// A root token is one that asks for no end and holds the `root` policy.
    fn never_expires(&self, policies: &[String]) -> bool {
        self.ttl == 0
            && self.period == 0
            && self.explicit_max_ttl == 0
            && self.token_type == TokenType::Service
            && policies.iter().any(|policy| policy == "root")
    }

    /// The seconds given, and the cap on the life from creation.
    fn granted_ttl(&self, warnings: &mut Vec<String>) -> (u64, u64) {
        let mut explicit = self.explicit_max_ttl;
        let max = self.limits.max;
        if explicit > max {
            explicit = max;
            warnings.push(format!("explicit_max_ttl is over the maximum; it is capped to {max} seconds"));
        }
        let asked = match (self.period, self.ttl) {
            (0, 0) => self.limits.default,
            (0, ttl) => ttl,
            (period, _) => period,
        };
        let cap = if explicit > 0 { explicit.min(max) } else { max };
        if asked > cap && (self.ttl > 0 || self.period > 0) {
            warnings
                .push(format!("TTL of {asked} seconds is over the maximum; it is capped to {cap} seconds"));
        }
        (asked.min(cap), explicit)
    }
}

/// A token that was made.
#[derive(Debug)]
pub struct Created {
    /// What the client gets.
    pub grant: AuthGrant,
    /// The record.
    pub token: Token,
    /// What the client should know.
    pub warnings: Vec<String>,
}

impl Tokens {
    /// Makes a token.
    pub async fn create(&self, cx: &Cx, new: NewToken) -> Result<Created, ApiError> {
        self.create_with(&cx.storage, new, |_, _| Ok(())).await
    }

    /// Makes a token and, in the same batch, what `more` adds.
    pub(crate) async fn create_with(
        &self,
        storage: &Storage,
        new: NewToken,
        more: impl FnOnce(&mut Txn<'_>, &Token) -> Result<(), ApiError> + Send,
    ) -> Result<Created, ApiError> {
        let mut warnings = Vec::new();
        let mut token = self.draft(&new, &mut warnings);
        if token.token_type == TokenType::Batch {
            let text = text::seal_batch(storage.barrier(), &token)?;
            token.id = Self::id_of(storage, &text)?;
            return Ok(Created { grant: grant(&token, &text), token, warnings });
        }
        let text = match &new.text {
            Some(fixed) => Zeroizing::new(secrecy::ExposeSecret::expose_secret(fixed).to_owned()),
            None => text::service()?,
        };
        token.id = Self::id_of(storage, &text)?;
        token.accessor = text::accessor()?;
        let mut txn = storage.txn();
        put_new(&mut txn, &token)?;
        if let Some(parent) = &new.parent {
            Self::require_live(&mut txn, parent);
        }
        more(&mut txn, &token)?;
        txn.commit().await.map_err(|error| refused(error, &new))?;
        Ok(Created { grant: grant(&token, &text), token, warnings })
    }

    /// Makes the root token of a new cluster, with a text of the operator's choice when there is one.
    pub async fn create_root(
        &self,
        storage: &Storage,
        fixed_text: Option<&str>,
    ) -> Result<SecretString, ApiError> {
        let new = NewToken {
            text: fixed_text.map(SecretString::from),
            policies: vec!["root".into()],
            display_name: "root".into(),
            renewable: false,
            ..NewToken::orphan("auth/token/root", LeaseTtls::default())
        };
        Ok(self.create_with(storage, new, |_, _| Ok(())).await?.grant.client_token)
    }

    fn draft(&self, new: &NewToken, warnings: &mut Vec<String>) -> Token {
        let now = self.now();
        let policies = clean_policies(&new.policies, !new.no_default_policy);
        let never = new.never_expires(&policies);
        let (ttl, explicit) = if never { (0, 0) } else { new.granted_ttl(warnings) };
        Token {
            token_type: new.token_type,
            path: new.path.clone(),
            display_name: new.display_name.clone(),
            meta: new.meta.clone(),
            num_uses: new.num_uses.max(0),
            created: now,
            creation_ttl: ttl,
            expires: (!never).then(|| after(now, ttl)),
            explicit_max_ttl: explicit,
            max_ttl: if never { 0 } else { new.limits.max },
            period: new.period.min(new.limits.max),
            renewable: new.renewable && !never && new.token_type == TokenType::Service,
            parent: new.parent.as_ref().map(|parent| parent.id.clone()),
            role: new.role.clone(),
            bound_cidrs: new.bound_cidrs.clone(),
            policies,
            ..Token::default()
        }
    }
}

/// Trimmed, lower case, sorted, without duplicates; `default` is added unless `root` stands there.
pub fn clean_policies(names: &[String], add_default: bool) -> Vec<String> {
    let mut out: Vec<String> =
        names.iter().map(|name| name.trim().to_lowercase()).filter(|name| !name.is_empty()).collect();
    if add_default && !out.iter().any(|name| name == "root") {
        out.push("default".into());
    }
    out.sort();
    out.dedup();
    out
}

fn put_new(txn: &mut Txn<'_>, token: &Token) -> Result<(), ApiError> {
    let record = keys::id(&token.id);
    txn.require_absent(&record);
    txn.put(&record, token)?;
    txn.put(&keys::accessor(&token.accessor), &token.id)?;
    if let Some(parent) = &token.parent {
        txn.put(&keys::child(parent, &token.id), &())?;
    }
    if let Some(at) = token.expires {
        txn.put(&keys::expiry(at, &token.id), &())?;
    }
    Ok(())
}

/// A refused condition means that the parent is going, or that the chosen text is taken.
fn refused(error: crate::storage::StorageError, new: &NewToken) -> ApiError {
    if !error.is_conflict() {
        return error.into();
    }
    if new.text.is_some() {
        return ApiError::invalid("cannot create a token with a duplicate ID");
    }
    if new.parent.is_some() { ApiError::denied() } else { error.into() }
}

/// What the client gets for a token with this text.
pub(super) fn grant(token: &Token, text: &str) -> AuthGrant {
    AuthGrant {
        client_token: SecretString::from(text),
        accessor: token.accessor.clone(),
        policies: token.policies.clone(),
        token_policies: token.policies.clone(),
        metadata: token.meta.clone(),
        lease_duration: token.creation_ttl,
        renewable: token.renewable,
        token_type: token.token_type.name(),
        orphan: token.parent.is_none(),
        num_uses: token.num_uses.max(0),
    }
}
