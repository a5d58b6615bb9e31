//! Wrapping: an answer is put away behind a token that fetches it once.
//!
//! The answer lies in the wrapping token's cubbyhole. Fetching deletes the answer and the token in one batch that
//! is conditional on the answer being there, so of any number of callers exactly one gets it.

mod answer;
pub mod cubbyhole;
#[cfg(test)]
mod tests;

use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};

use crate::auth::token::{NewToken, Token, Tokens};
use crate::error::ApiError;
use crate::logical::{Body, Cx, Logical, Response, WrapInfo};
use crate::mount::LeaseTtls;
use crate::policy::WRAPPING;
use crate::storage::Stored;
use crate::wall;
use answer::Answer;

/// What lies in the wrapping token's cubbyhole.
#[derive(Deserialize, Serialize)]
struct Wrapped {
    creation_time: String,
    creation_ttl: u64,
    creation_path: String,
    answer: Answer,
}

/// What is known of a wrapping token without using it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lookup {
    /// RFC 3339.
    pub creation_time: String,
    /// Seconds.
    pub creation_ttl: u64,
    /// The path whose answer was wrapped.
    pub creation_path: String,
}

/// Puts an answer away for `ttl` seconds; `path` is the request's. Answers without an envelope or JSON stay as they
/// are: there is nothing in them to protect.
pub async fn wrap(cx: &Cx, response: Response, ttl: u64, path: &str) -> Result<Response, ApiError> {
    if !matches!(response.body, Body::Logical(_) | Body::Json(_)) {
        return Ok(response);
    }
    let wrapped_accessor = match &response.body {
        Body::Logical(logical) => logical.auth.as_ref().map(|auth| auth.accessor.clone()),
        _ => None,
    };
    let wrapped = Wrapped {
        creation_time: wall::rfc3339(wall::now()),
        creation_ttl: ttl,
        creation_path: path.to_owned(),
        answer: Answer::from(response),
    };
    let limits = LeaseTtls { default: ttl, max: ttl };
    let new = NewToken {
        policies: vec![WRAPPING.to_owned()],
        no_default_policy: true,
        num_uses: 1,
        ttl,
        explicit_max_ttl: ttl,
        renewable: false,
        ..NewToken::orphan(path, limits)
    };
    let tokens = &cx.hub.tokens;
    let put = |txn: &mut crate::storage::Txn<'_>, token: &Token| Ok(txn.put(&key(token), &wrapped)?);
    let created = tokens.create_with(&cx.storage, new, put).await?;
    let info = WrapInfo {
        token: created.grant.client_token.expose_secret().to_owned(),
        accessor: created.token.accessor,
        ttl,
        creation_time: wrapped.creation_time,
        creation_path: wrapped.creation_path,
        wrapped_accessor: wrapped_accessor.unwrap_or_default(),
    };
    Ok(Logical { wrap_info: Some(info), ..Logical::default() }.into())
}

/// The answer behind a wrapping token, once.
pub async fn unwrap(cx: &Cx, text: &str) -> Result<Response, ApiError> {
    let (token, stored) = find(cx, text)?;
    let key = key(&token);
    let mut txn = cx.storage.txn();
    txn.require_version(&key, stored.version);
    txn.delete(&key);
    Tokens::remove_childless(&mut txn, &token);
    match txn.commit().await {
        Ok(_) => Ok(stored.value.answer.into()),
        Err(error) if error.is_conflict() => Err(invalid()),
        Err(error) => Err(error.into()),
    }
}

/// What is known of a wrapping token; does not use it up.
pub fn lookup(cx: &Cx, text: &str) -> Result<Lookup, ApiError> {
    let Wrapped { creation_time, creation_ttl, creation_path, .. } = find(cx, text)?.1.value;
    Ok(Lookup { creation_time, creation_ttl, creation_path })
}

fn find(cx: &Cx, text: &str) -> Result<(Token, Stored<Wrapped>), ApiError> {
    let token = cx.hub.tokens.lookup(&cx.storage, text)?.ok_or_else(invalid)?;
    if token.policies != [WRAPPING] {
        return Err(invalid());
    }
    let stored = cx.storage.get(&key(&token))?.ok_or_else(invalid)?;
    Ok((token, stored))
}

fn key(token: &Token) -> String {
    format!("cubbyhole/{}/response", token.id)
}

/// One text for everything that is wrong with a wrapping token.
fn invalid() -> ApiError {
    ApiError::invalid("wrapping token is not valid or does not exist")
}
