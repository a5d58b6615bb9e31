//! The mount `auth/token/`.

mod create;
mod roles;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use holdfast_core::Kind;
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value};

use super::create::grant;
use super::{Token, TokenType};
use crate::auth::params;
use crate::error::ApiError;
use crate::logical::{Cx, Engine, Logical, Operation, Request, Response};
use crate::mount::MountEntry;
use crate::wall;

/// The engine of the mount type `token`.
pub fn engine() -> Arc<dyn Engine> {
    Arc::new(TokenEngine)
}

struct TokenEngine;

#[async_trait]
impl Engine for TokenEngine {
    fn sudo(&self, rest: &str) -> bool {
        matches!(rest, "revoke-orphan" | "accessors" | "accessors/")
    }

    async fn exists(&self, cx: &Cx, _mount: &MountEntry, request: &Request) -> Result<bool, ApiError> {
        match request.rest.strip_prefix("roles/") {
            Some(name) => roles::exists(cx, name),
            None => Ok(true),
        }
    }

    fn audit_clear(&self) -> &'static [&'static str] {
        &[
            "policies",
            "ttl",
            "explicit_max_ttl",
            "period",
            "num_uses",
            "renewable",
            "no_parent",
            "type",
            "display_name",
            "creation_time",
            "creation_ttl",
            "expire_time",
            "issue_time",
            "orphan",
            "path",
            "increment",
            "keys",
        ]
    }

    fn fields(&self, _mount: &MountEntry, rest: &str) -> Option<Vec<&'static str>> {
        match rest.split('/').next() {
            Some("roles") => Some(roles::FIELDS.to_vec()),
            Some("create" | "create-orphan") => Some(create::FIELDS.to_vec()),
            _ => None,
        }
    }

    async fn handle(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
        let (head, tail) = request.rest.split_once('/').unwrap_or((&request.rest, ""));
        let write = request.operation == Operation::Write;
        let look = write || request.operation == Operation::Read;
        match (head, tail) {
            ("create", "") if write => create::create(cx, mount, request, false).await,
            ("create-orphan", "") if write => create::create(cx, mount, request, true).await,
            ("create", role) if write => create::with_role(cx, mount, request, role).await,
            ("lookup", "") if look => lookup(cx, request),
            ("lookup-self", "") if look => {
                Ok(Response::data(shown(cx, caller(request)?, &caller_text(request))))
            }
            ("lookup-accessor", "") if look => Ok(Response::data(shown(cx, &by_accessor(cx, request)?, ""))),
            ("renew", "") if write => {
                let (token, text) = by_text(cx, request)?;
                renew(cx, request, &token, &text).await
            }
            ("renew-self", "") if write => renew(cx, request, caller(request)?, &caller_text(request)).await,
            ("renew-accessor", "") if write => renew(cx, request, &by_accessor(cx, request)?, "").await,
            ("revoke" | "revoke-self" | "revoke-accessor" | "revoke-orphan", "") if write => {
                revoke(cx, request, head).await
            }
            ("accessors", "") if request.operation == Operation::List => accessors(cx, request),
            ("roles", name) => roles::handle(cx, request, name).await,
            (
                "create" | "create-orphan" | "lookup" | "lookup-self" | "lookup-accessor" | "renew"
                | "renew-self" | "renew-accessor" | "revoke" | "revoke-self" | "revoke-accessor"
                | "revoke-orphan" | "accessors",
                "",
            ) => Err(ApiError::unsupported_operation()),
            _ => Err(ApiError::unsupported_path()),
        }
    }
}

/// The caller's token.
fn caller(request: &Request) -> Result<&Token, ApiError> {
    request.token.as_deref().ok_or_else(ApiError::denied)
}

fn caller_text(request: &Request) -> String {
    request.client_token.as_ref().map(|text| text.expose_secret().to_owned()).unwrap_or_default()
}

/// The token named in the body, with its text.
fn by_text(cx: &Cx, request: &Request) -> Result<(Token, String), ApiError> {
    let text = request.data.required("token", "missing token ID")?;
    let token = cx.hub.tokens.lookup(&cx.storage, &text)?;
    Ok((token.ok_or_else(|| ApiError::new(Kind::Denied, "bad token"))?, text))
}

fn by_accessor(cx: &Cx, request: &Request) -> Result<Token, ApiError> {
    let accessor = request.data.required("accessor", "missing accessor")?;
    let token = cx.hub.tokens.lookup_accessor(&cx.storage, &accessor)?;
    token.ok_or_else(|| ApiError::invalid("invalid accessor"))
}

fn lookup(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    if !request.data.has("token") {
        return Ok(Response::data(shown(cx, caller(request)?, &caller_text(request))));
    }
    let (token, text) = by_text(cx, request)?;
    Ok(Response::data(shown(cx, &token, &text)))
}

/// What a lookup shows. The text is known only to those who named the token by it.
fn shown(cx: &Cx, token: &Token, text: &str) -> Map<String, Value> {
    let time = |at: Option<i64>| at.map_or(Value::Null, |at| wall::rfc3339_unix(at).into());
    let meta = if token.meta.is_empty() {
        Value::Null
    } else {
        token.meta.iter().map(|(name, value)| (name.clone(), Value::from(value.clone()))).collect()
    };
    let mut out = Map::from_iter([
        ("accessor".to_owned(), Value::from(token.accessor.clone())),
        ("creation_time".to_owned(), token.created.into()),
        ("creation_ttl".to_owned(), token.creation_ttl.into()),
        ("display_name".to_owned(), token.display_name.clone().into()),
        ("entity_id".to_owned(), "".into()),
        ("expire_time".to_owned(), time(token.expires)),
        ("explicit_max_ttl".to_owned(), token.explicit_max_ttl.into()),
        ("id".to_owned(), text.into()),
        ("issue_time".to_owned(), time(Some(token.created))),
        ("meta".to_owned(), meta),
        ("num_uses".to_owned(), token.num_uses.max(0).into()),
        ("orphan".to_owned(), token.parent.is_none().into()),
        ("path".to_owned(), token.path.clone().into()),
        ("policies".to_owned(), token.policies.clone().into()),
        ("renewable".to_owned(), token.renewable.into()),
        ("ttl".to_owned(), token.ttl(cx.hub.tokens.now()).into()),
        ("type".to_owned(), token.token_type.name().into()),
    ]);
    if token.period > 0 {
        out.insert("period".to_owned(), token.period.into());
    }
    if !token.role.is_empty() {
        out.insert("role".to_owned(), token.role.clone().into());
    }
    if let Some(at) = token.renewed {
        out.insert("last_renewal".to_owned(), time(Some(at)));
        out.insert("last_renewal_time".to_owned(), at.into());
    }
    if !token.bound_cidrs.is_empty() {
        out.insert("bound_cidrs".to_owned(), params::texts(&token.bound_cidrs));
    }
    out
}

async fn renew(cx: &Cx, request: &Request, token: &Token, text: &str) -> Result<Response, ApiError> {
    let increment = request.data.duration("increment")?.unwrap_or_default().as_secs();
    check_login(cx, token).await?;
    let (token, warnings) = cx.hub.tokens.renew(cx, token, increment).await?;
    let mut auth = grant(&token, text);
    auth.lease_duration = token.ttl(cx.hub.tokens.now());
    Ok(Logical { auth: Some(Box::new(auth)), warnings, ..Logical::default() }.into())
}

/// A token of a login ends with whom it was made for: it is not renewed any more.
async fn check_login(cx: &Cx, token: &Token) -> Result<(), ApiError> {
    let Some(route) = cx.hub.mounts.route(&token.path)?.filter(|route| route.mount.is_auth()) else {
        // A mount that is removed takes its tokens along.
        return Ok(());
    };
    if route.engine.may_renew(cx, &route.mount, token).await? {
        return Ok(());
    }
    Err(ApiError::invalid("the role or user of this login does not exist any more; the token is not renewed"))
}

/// Revokes; a token that is gone already is no error where it was named by its text.
async fn revoke(cx: &Cx, request: &Request, how: &str) -> Result<Response, ApiError> {
    let token = match how {
        "revoke-self" => Some(caller(request)?.clone()),
        "revoke-accessor" => Some(by_accessor(cx, request)?),
        _ => {
            let text = request.data.required("token", "missing token ID")?;
            cx.hub.tokens.lookup(&cx.storage, &text)?
        }
    };
    let Some(token) = token else { return Ok(Response::no_content()) };
    if token.token_type == TokenType::Batch {
        return Err(ApiError::invalid("batch tokens cannot be revoked"));
    }
    if how == "revoke-orphan" {
        cx.hub.tokens.revoke_orphan(cx, &token.id).await?;
    } else {
        cx.hub.tokens.revoke_tree(cx, &token.id).await?;
    }
    Ok(Response::no_content())
}

fn accessors(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    let (after, limit) = request.page()?;
    let keys = cx.hub.tokens.accessors(&cx.storage, after.as_deref(), limit)?;
    if keys.is_empty() { Err(ApiError::missing()) } else { Ok(Response::keys(keys, None)) }
}
