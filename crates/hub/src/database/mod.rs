//! The database engine: short-lived logins, static roles, and the rotation of a connection's own password.

mod config;
pub mod connection;
mod creation;
pub mod creds;
pub mod instances;
pub mod intent;
pub mod names;
pub mod passwords;
pub mod paths;
pub mod removal;
pub mod role;
pub mod root;
pub mod rotation;
mod statics;
pub mod sweep;
pub mod ttl;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;

use crate::error::ApiError;
use crate::lease::record::Queue;
use crate::lease::{Mailbox, Running};
use crate::logical::{Cx, Engine, Operation, Request, Response};
use crate::mount::MountEntry;
use crate::storage::{Storage, StorageError};
use instances::Instances;
pub use paths::Place;

/// What this node holds for its databases. All of it is derived: the records are in the store.
#[derive(Default)]
pub struct Databases {
    /// The drivers.
    pub instances: Instances,
    /// What creations tell the sweeper.
    pub sweeper: Mailbox<sweep::Note>,
    /// The times and bounds of the sweeper.
    pub sweep_limits: holdfast_core::intent::Limits,
    /// Passwords that are being changed.
    pub rotating: Running<String>,
}

impl Databases {
    /// A spoke told that it made a user for whom nobody waits any more: its removal need not wait either.
    pub fn late_user(&self, storage: &Storage, key: holdfast_dbdriver::IdempotencyKey) {
        let key = holdfast_core::intent::Key::new(u128::from_be_bytes(*key.as_bytes()));
        if let Ok(Some(found)) = intent::read(storage, key)
            && found.value.state == holdfast_core::intent::State::Open
        {
            self.sweeper.send(sweep::note(key, &found.value, crate::lease::Wall::now()));
        }
    }

    /// Forgets a deleted configuration, and its driver, once nothing refers to it any more. Says whether it is gone.
    pub async fn collect(&self, storage: &Storage, queue: &Queue) -> Result<bool, StorageError> {
        let gone = connection::collect(storage, queue).await?;
        if gone {
            self.instances.retire(&queue.config_id);
        }
        Ok(gone)
    }
}

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
            Some(("config", name)) => Ok(connection::by_name(&place, name)?.is_some()),
            Some(("static-roles", name)) => Ok(statics::read(&place, name)?.is_some()),
            _ => Ok(true),
        }
    }

    /// A login: who did not get the answer does not know of it, and another request would make another one.
    fn read_has_effect(&self, rest: &str) -> bool {
        rest.starts_with("creds/")
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

    fn fields(&self, _mount: &MountEntry, rest: &str) -> Option<Vec<&'static str>> {
        let (head, _) = rest.split_once('/')?;
        let own = match head {
            "config" => &holdfast_dbdriver::CONFIG_FIELDS[..],
            "roles" => &role::FIELDS,
            "static-roles" => &statics::FIELDS,
            _ => return None,
        };
        Some([own, &["name"]].concat())
    }

    async fn handle(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
        let place = Place::new(cx, mount);
        let rest = request.rest.as_str();
        let (head, name) = rest.split_once('/').unwrap_or((rest, ""));
        if name.contains('/') {
            return Err(ApiError::unsupported_path());
        }
        let write = request.operation == Operation::Write;
        match head {
            "config" => config::handle(&place, request, name).await,
            "roles" => role::handle(&place, request, name).await,
            "static-roles" => statics::handle(&place, request, name).await,
            "creds" => creds::handle(&place, request, name).await,
            _ if name.is_empty() => Err(ApiError::unsupported_path()),
            "static-creds" if request.operation == Operation::Read => statics::credentials(&place, name),
            "reset" if write => config::reset(&place, name),
            "rotate-root" if write => root::rotate(&place, name).await,
            "rotate-role" if write => statics::rotate(&place, name).await,
            "static-creds" | "reset" | "rotate-root" | "rotate-role" => {
                Err(ApiError::unsupported_operation())
            }
            _ => Err(ApiError::unsupported_path()),
        }
    }

    /// What the mount's leases, intents and static roles need lies outside its own part of the store and goes with
    /// the last of them; here its configurations lose their names, and its static roles end.
    async fn unmounted(&self, cx: &Cx, mount: &MountEntry) -> Result<(), ApiError> {
        let place = Place::new(cx, mount);
        for name in place.storage.scan_keys(statics::KEYS, None, usize::MAX)? {
            let name = name.strip_prefix(statics::KEYS).unwrap_or(&name);
            statics::remove(&cx.hub, &cx.storage, &mount.uuid, name).await?;
        }
        for name in place.storage.scan_keys(connection::NAMES, None, usize::MAX)? {
            let name = name.strip_prefix(connection::NAMES).unwrap_or(&name);
            config::delete(&place, name).await?;
        }
        Ok(())
    }
}
