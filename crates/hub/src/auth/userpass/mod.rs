//! The login method `userpass`: names and passwords.

mod hash;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::auth::params::{self, Login, TokenParams};
use crate::auth::token::Token;
use crate::error::ApiError;
use crate::logical::{Cx, Engine, Operation, Request, Response};
use crate::mount::MountEntry;
use crate::storage::{Storage, Stored};
use hash::Hashing;

const PREFIX: &str = "user/";
/// Where a token's notes hold the user.
const USERNAME: &str = "username";

/// The engine of the mount type `userpass`.
pub fn engine() -> Arc<dyn Engine> {
    Arc::new(UserPass { hashing: Hashing::new() })
}

struct UserPass {
    hashing: Hashing,
}

/// A user.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct User {
    /// The password's hash with its parameters, as a PHC string.
    hash: String,
    params: TokenParams,
}

#[async_trait]
impl Engine for UserPass {
    fn unauthenticated(&self, operation: Operation, rest: &str) -> bool {
        operation == Operation::Write && rest.strip_prefix("login/").is_some_and(|name| !name.is_empty())
    }

    async fn exists(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<bool, ApiError> {
        match request.rest.strip_prefix("users/") {
            Some(name) if !name.contains('/') => {
                Ok(read(&mount.storage(&cx.storage), &name.to_lowercase())?.is_some())
            }
            _ => Ok(true),
        }
    }

    async fn may_renew(&self, cx: &Cx, mount: &MountEntry, token: &Token) -> Result<bool, ApiError> {
        let Some(name) = token.meta.get(USERNAME) else { return Ok(true) };
        Ok(read(&mount.storage(&cx.storage), name)?.is_some())
    }

    fn audit_clear(&self) -> &'static [&'static str] {
        &[
            "token_policies",
            "policies",
            "token_ttl",
            "token_max_ttl",
            "token_period",
            "token_num_uses",
            "token_bound_cidrs",
            "token_type",
            "token_explicit_max_ttl",
            "token_no_default_policy",
            "keys",
        ]
    }

    fn fields(&self, _mount: &MountEntry, rest: &str) -> Option<Vec<&'static str>> {
        rest.strip_prefix("users/")?;
        Some([&params::FIELDS[..], &["password", "username"]].concat())
    }

    async fn handle(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
        let storage = mount.live_storage(&cx.storage);
        let (head, tail) = request.rest.split_once('/').unwrap_or((&request.rest, ""));
        match (head, tail.split_once('/')) {
            ("users", None) if tail.is_empty() => list(&storage, request),
            ("users", None) => self.user(cx, &storage, request, &params::name(tail)?).await,
            ("users", Some((name, field @ ("password" | "policies")))) => {
                if request.operation != Operation::Write {
                    return Err(ApiError::unsupported_operation());
                }
                let name = params::name(name)?;
                if read(&storage, &name)?.is_none() {
                    return Err(ApiError::invalid("username does not exist"));
                }
                if field == "password" {
                    request.data.required("password", "missing password")?;
                }
                self.write(cx, &storage, request, &name).await
            }
            ("login", None) if !tail.is_empty() && request.operation == Operation::Write => {
                self.login(cx, mount, request, &tail.to_lowercase()).await
            }
            ("login", None) if !tail.is_empty() => Err(ApiError::unsupported_operation()),
            _ => Err(ApiError::unsupported_path()),
        }
    }

    async fn unmounted(&self, cx: &Cx, mount: &MountEntry) -> Result<(), ApiError> {
        cx.hub.tokens.revoke_made_by(cx, &mount.path).await
    }
}

impl UserPass {
    async fn user(
        &self,
        cx: &Cx,
        storage: &Storage,
        request: &Request,
        name: &str,
    ) -> Result<Response, ApiError> {
        match request.operation {
            Operation::Read => {
                let user = read(storage, name)?.ok_or_else(ApiError::missing)?.value;
                let mut shown = Map::from_iter([("policies".to_owned(), user.params.policies().into())]);
                user.params.render(&mut shown);
                Ok(Response::data(shown))
            }
            Operation::Write => self.write(cx, storage, request, name).await,
            Operation::Delete => {
                storage.delete(&key(name)).await?;
                Ok(Response::no_content())
            }
            Operation::List | Operation::Patch => Err(ApiError::unsupported_operation()),
        }
    }

    /// Creates or changes a user. The hash is made before the record is read, because it takes a while.
    async fn write(
        &self,
        cx: &Cx,
        storage: &Storage,
        request: &Request,
        name: &str,
    ) -> Result<Response, ApiError> {
        let hash = match password(request)? {
            Some(password) => Some(self.hashing.hash(password, cx.deadline).await?),
            None => None,
        };
        let key = key(name);
        let stored = read(storage, name)?;
        let mut txn = storage.txn();
        let mut user = match (stored, &hash) {
            (Some(Stored { value, version }), _) => {
                txn.require_version(&key, version);
                value
            }
            (None, None) => return Err(ApiError::invalid("missing password")),
            (None, Some(_)) => {
                txn.require_absent(&key);
                User::default()
            }
        };
        if let Some(hash) = hash {
            user.hash = hash;
        }
        user.params.update(&request.data)?;
        txn.put(&key, &user)?;
        txn.commit().await?;
        Ok(Response::no_content())
    }

    /// One text and one effort for an unknown user, a wrong password and a wrong address.
    async fn login(
        &self,
        cx: &Cx,
        mount: &MountEntry,
        request: &Request,
        name: &str,
    ) -> Result<Response, ApiError> {
        let password = password(request)?.ok_or_else(|| ApiError::invalid("missing password"))?;
        let user = read(&mount.storage(&cx.storage), name)?.map(|stored| stored.value);
        let hash = user.as_ref().map(|user| user.hash.clone());
        let right = self.hashing.verify(password, hash, cx.deadline).await?;
        match user {
            Some(user) if right && user.params.allows_from(request.remote) => {
                let method = mount.path.trim_matches('/');
                let method = method.strip_prefix("auth/").unwrap_or(method).replace('/', "-");
                let login = Login {
                    display_name: format!("{method}-{name}"),
                    metadata: BTreeMap::from([(USERNAME.to_owned(), name.to_owned())]),
                    ..Login::default()
                };
                user.params.log_in(cx, mount, &request.path, login).await
            }
            _ => Err(ApiError::invalid("invalid username or password")),
        }
    }
}

fn password(request: &Request) -> Result<Option<SecretString>, ApiError> {
    Ok(request.data.string("password")?.filter(|text| !text.is_empty()).map(SecretString::from))
}

fn list(storage: &Storage, request: &Request) -> Result<Response, ApiError> {
    if request.operation != Operation::List {
        return Err(ApiError::unsupported_operation());
    }
    let (after, limit) = request.page()?;
    let keys = storage.list(PREFIX, after.as_deref(), limit)?;
    if keys.is_empty() { Err(ApiError::missing()) } else { Ok(Response::keys(keys, None)) }
}

fn read(storage: &Storage, name: &str) -> Result<Option<Stored<User>>, ApiError> {
    Ok(storage.get(&key(name))?)
}

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}
