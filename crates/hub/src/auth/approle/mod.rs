//! The login method `approle`: a role id that names a role, and a secret id that proves it.
//!
//! Secret ids are found by their MAC below the role's own uuid, so that what is left of a deleted role can never
//! open a new one of the same name.

mod login;
mod role;
mod secret;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;

use crate::auth::params;
use crate::auth::token::Token;
use crate::error::ApiError;
use crate::logical::{Cx, Engine, Operation, Request, Response};
use crate::mount::MountEntry;
use crate::storage::Storage;

/// The engine of the mount type `approle`.
pub fn engine() -> Arc<dyn Engine> {
    Arc::new(AppRole)
}

struct AppRole;

/// What the handlers of one request work with.
struct Place<'a> {
    cx: &'a Cx,
    mount: &'a MountEntry,
    request: &'a Request,
    /// The mount's own part of the store.
    storage: Storage,
}

#[async_trait]
impl Engine for AppRole {
    fn unauthenticated(&self, operation: Operation, rest: &str) -> bool {
        operation == Operation::Write && rest == "login"
    }

    async fn exists(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<bool, ApiError> {
        match request.rest.strip_prefix("role/") {
            Some(name) if !name.contains('/') => {
                Ok(role::read(&mount.storage(&cx.storage), &name.to_lowercase())?.is_some())
            }
            _ => Ok(true),
        }
    }

    async fn may_renew(&self, cx: &Cx, mount: &MountEntry, token: &Token) -> Result<bool, ApiError> {
        let Some(name) = token.meta.get(login::ROLE_NAME) else { return Ok(true) };
        Ok(role::read(&mount.storage(&cx.storage), name)?.is_some())
    }

    fn audit_clear(&self) -> &'static [&'static str] {
        &[
            "bind_secret_id",
            "secret_id_ttl",
            "secret_id_num_uses",
            "secret_id_bound_cidrs",
            "token_policies",
            "token_ttl",
            "token_max_ttl",
            "token_period",
            "token_num_uses",
            "token_bound_cidrs",
            "token_type",
            "token_explicit_max_ttl",
            "token_no_default_policy",
            "cidr_list",
            "keys",
            "creation_time",
            "expiration_time",
            "last_updated_time",
        ]
    }

    fn fields(&self, _mount: &MountEntry, rest: &str) -> Option<Vec<&'static str>> {
        let rest = rest.strip_prefix("role/")?;
        match rest.split_once('/') {
            None => Some([&role::FIELDS[..], &params::FIELDS, &["role_name"]].concat()),
            Some((_, "secret-id" | "custom-secret-id")) => {
                Some([&secret::FIELDS[..], &["role_name"]].concat())
            }
            Some(_) => None,
        }
    }

    async fn handle(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
        let place = Place { cx, mount, request, storage: mount.live_storage(&cx.storage) };
        let rest = request.rest.as_str();
        if rest == "login" {
            return match request.operation {
                Operation::Write => login::handle(&place).await,
                _ => Err(ApiError::unsupported_operation()),
            };
        }
        let Some(rest) = rest.strip_prefix("role") else { return Err(ApiError::unsupported_path()) };
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        match rest.split_once('/') {
            None if rest.is_empty() => role::list(&place),
            None => role::handle(&place, &params::name(rest)?).await,
            Some((name, "role-id")) => role::handle_id(&place, &params::name(name)?).await,
            Some((name, below)) => secret::handle(&place, &params::name(name)?, below).await,
        }
    }

    async fn unmounted(&self, cx: &Cx, mount: &MountEntry) -> Result<(), ApiError> {
        cx.hub.tokens.revoke_made_by(cx, &mount.path).await
    }
}
