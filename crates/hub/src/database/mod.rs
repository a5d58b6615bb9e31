//! The database engine: short-lived logins, static roles, and the rotation of a connection's own password.

pub mod names;
mod paths;
mod role;
mod statics;

use std::sync::Arc;

use async_trait::async_trait;

use crate::error::ApiError;
use crate::logical::{Cx, Engine, Operation, Request, Response};
use crate::mount::MountEntry;
use paths::Place;

/// The engine behind every database mount.
pub fn engine() -> Arc<dyn Engine> {
    Arc::new(Database)
}

struct Database;

#[async_trait]
impl Engine for Database {
    async fn exists(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<bool, ApiError> {
        let place = Place::new(cx, mount);
        match request.rest.split_once('/') {
            Some(("roles", name)) => Ok(role::read(&place, name)?.is_some()),
            Some(("static-roles", name)) => Ok(statics::read(&place, name)?.is_some()),
            _ => Ok(true),
        }
    }

    fn audit_clear(&self) -> &'static [&'static str] {
        &[
            "db_name",
            "default_ttl",
            "max_ttl",
            "ttl",
            "rotation_period",
            "plugin_name",
            "allowed_roles",
            "role",
            "keys",
        ]
    }

    async fn handle(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
        let place = Place::new(cx, mount);
        let rest = request.rest.as_str();
        let (head, name) = rest.split_once('/').unwrap_or((rest, ""));
        if name.contains('/') {
            return Err(ApiError::unsupported_path());
        }
        match (head, request.operation) {
            ("roles", Operation::Patch) => Err(ApiError::unsupported_operation()),
            ("roles", _) => role::handle(&place, request, name).await,
            _ => Err(ApiError::unsupported_path()),
        }
    }
}
