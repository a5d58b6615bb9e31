//! The mount `sys/`: each family of paths is a file of its own, found by the first segment of the path.

mod audit;
mod cluster;
mod leases;
pub mod metrics;
mod mounts;
mod password_policies;
mod policies;
mod quotas;
mod snapshot;
mod ui_mounts;
mod wrapping;

use std::sync::Arc;

use async_trait::async_trait;

use crate::error::ApiError;
use crate::logical::{Cx, Engine, Operation, Request, Response};
use crate::mount::MountEntry;
use crate::mount::change::Family;

/// The engine of the mount type `system`.
pub fn engine() -> Arc<dyn Engine> {
    Arc::new(Sys)
}

struct Sys;

/// The first segment of a path and what follows it.
fn split(path: &str) -> (&str, &str) {
    path.split_once('/').unwrap_or((path, ""))
}

#[async_trait]
impl Engine for Sys {
    fn unauthenticated(&self, _operation: Operation, rest: &str) -> bool {
        match split(rest) {
            ("wrapping", rest) => wrapping::unauthenticated(rest),
            _ => false,
        }
    }

    fn any_token(&self, rest: &str) -> bool {
        rest.strip_prefix("internal/").is_some_and(ui_mounts::any_token)
    }

    fn sudo(&self, rest: &str) -> bool {
        match split(rest) {
            ("auth", named) => !named.is_empty(),
            // The other name of a login method needs no less.
            ("mounts", named) => split(named).0 == "auth",
            ("audit" | "audit-hash" | "seal" | "step-down" | "revoke-prefix" | "revoke-force", _) => true,
            ("leases", rest) => leases::sudo(rest),
            _ => false,
        }
    }

    /// What is unwrapped is gone afterwards.
    fn read_has_effect(&self, rest: &str) -> bool {
        matches!(rest, "wrapping/unwrap" | "wrapping/wrap")
    }

    fn audit_clear(&self) -> &'static [&'static str] {
        &["type", "description", "path", "default_lease_ttl", "max_lease_ttl", "name", "lease_id", "keys"]
    }

    fn fields(&self, _mount: &MountEntry, rest: &str) -> Option<Vec<&'static str>> {
        match split(rest) {
            ("mounts" | "auth", named) if named.ends_with("/tune") => Some(mounts::TUNING.to_vec()),
            _ => None,
        }
    }

    async fn handle(&self, cx: &Cx, _mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
        let (family, rest) = split(&request.rest);
        match family {
            "mounts" => mounts::handle(cx, Family::Secret, rest, request).await,
            "auth" => mounts::handle(cx, Family::Auth, rest, request).await,
            "audit" => audit::handle(cx, rest, request).await,
            "audit-hash" => audit::handle_hash(cx, rest, request),
            "policies" => match split(rest) {
                ("password", rest) => password_policies::handle(cx, rest, request).await,
                ("acl", rest) => policies::handle(cx, policies::Family::Acl, rest, request).await,
                _ => Err(ApiError::unsupported_path()),
            },
            "policy" => policies::handle(cx, policies::Family::Legacy, rest, request).await,
            "capabilities" => policies::handle_capabilities(cx, policies::Whose::Token, request),
            "capabilities-self" => policies::handle_capabilities(cx, policies::Whose::Own, request),
            "capabilities-accessor" => policies::handle_capabilities(cx, policies::Whose::Accessor, request),
            "wrapping" => wrapping::handle(cx, rest, request).await,
            "quotas" => quotas::handle(cx, rest, request).await,
            "internal" => ui_mounts::handle(cx, rest, request),
            "leases" => leases::handle(cx, rest, request).await,
            "renew" | "revoke" | "revoke-prefix" | "revoke-force" => {
                leases::handle(cx, &request.rest, request).await
            }
            "metrics" => metrics::handle(&cx.hub, request),
            "step-down" => cluster::handle_step_down(cx, request).await,
            "ha-status" => cluster::handle_ha_status(cx, request),
            "storage" => match split(rest) {
                ("raft", rest) if snapshot::serves(rest) => snapshot::handle(cx, rest, request).await,
                ("raft", rest) => cluster::handle_raft(cx, rest, request).await,
                _ => Err(ApiError::unsupported_path()),
            },
            _ => Err(ApiError::unsupported_path()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwrapping_is_no_read_that_may_be_repeated() {
        let sys = engine();
        assert!(sys.read_has_effect("wrapping/unwrap") && !sys.read_has_effect("wrapping/lookup"));
        let database = crate::database::engine();
        assert!(database.read_has_effect("creds/r") && !database.read_has_effect("static-creds/r"));
    }

    #[test]
    fn login_methods_need_sudo_by_either_of_their_names() {
        let sys = engine();
        for path in ["auth/x", "auth/x/tune", "mounts/auth/x", "mounts/auth/x/tune", "mounts/auth"] {
            assert!(sys.sudo(path), "{path}");
        }
        for path in ["auth", "mounts", "mounts/authority", "mounts/kv/tune"] {
            assert!(!sys.sudo(path), "{path}");
        }
    }
}
