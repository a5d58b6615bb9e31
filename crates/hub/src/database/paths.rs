//! What the paths of a database mount share.

use serde_json::Value;

use crate::error::ApiError;
use crate::logical::{Cx, Data, Request, Response};
use crate::mount::MountEntry;
use crate::storage::{Storage, Stored};
use holdfast_dbdriver::{DriverError, Reason};
use std::sync::Arc;

use super::Databases;
use super::connection::Connection;
use super::instances::Instance;

/// Of a role and a static role with one name.
pub const UNIQUE_NAMES: &str = "Role and Static Role names must be unique";

/// One request's surroundings.
pub struct Place<'a> {
    /// The context.
    pub cx: &'a Cx,
    /// The mount.
    pub mount: &'a MountEntry,
    /// The mount's own part of the store, fenced.
    pub storage: Storage,
}

impl<'a> Place<'a> {
    /// The surroundings of a request to `mount`.
    pub fn new(cx: &'a Cx, mount: &'a MountEntry) -> Self {
        Self { cx, mount, storage: mount.storage(&cx.storage) }
    }

    /// The drivers of this node.
    pub fn databases(&self) -> &Databases {
        self.cx.hub.leases.databases()
    }

    /// The driver of a configuration.
    pub fn acquire(&self, connection: &Stored<Connection>) -> Result<Arc<Instance>, ApiError> {
        let cx = self.cx;
        let acquired = self.databases().instances.acquire(cx.term, &cx.hub.metrics, connection);
        acquired.map_err(|error| driver_error(&error))
    }

    /// A page of the names below `prefix`.
    pub fn list(&self, request: &Request, prefix: &str) -> Result<Response, ApiError> {
        let (after, limit) = request.page()?;
        let names = self.storage.list(prefix, after.as_deref(), limit)?;
        if names.is_empty() {
            return Err(ApiError::missing());
        }
        Ok(Response::keys(names, None))
    }
}

/// What a client is told of a failed driver call. What could not be tried is 503 with `Retry-After`, like a hub
/// without an active node: nothing happened, and the same request may succeed soon. What the database refused is 500.
pub fn driver_error(error: &DriverError) -> ApiError {
    let text = error.client_text();
    match error.reason() {
        // The driver went with leadership; a request that has changed nothing yet goes on at the next leader.
        Reason::Closed => ApiError::no_leader(),
        _ if error.could_not_be_tried() => ApiError::unavailable(text),
        Reason::Busy | Reason::Deadline | Reason::Cancelled => ApiError::unavailable(text),
        Reason::Invalid => ApiError::invalid(text),
        _ => ApiError::failed(text),
    }
}

/// Refuses names that would not be one segment of a path.
pub fn check_name(name: &str) -> Result<(), ApiError> {
    let fine = !name.is_empty() && !name.contains('/') && !name.chars().any(char::is_control);
    if fine { Ok(()) } else { Err(ApiError::invalid(format!("invalid name {name:?}"))) }
}

/// A list of statements; unlike other lists, a text is one statement, since statements contain commas.
pub fn statements(data: &Data, field: &str) -> Result<Option<Vec<String>>, ApiError> {
    let wrong = || ApiError::invalid(format!("field {field:?} must be a list of strings"));
    match data.value(field) {
        None => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(Some(Vec::new())),
        Some(Value::String(text)) => Ok(Some(vec![text.clone()])),
        Some(Value::Array(items)) => {
            let list: Result<Vec<_>, _> =
                items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect();
            Ok(Some(list?.into_iter().filter(|s| !s.trim().is_empty()).collect()))
        }
        Some(_) => Err(wrong()),
    }
}
