//! Static roles: users that exist already and whose passwords the hub changes on time.

use serde::{Deserialize, Serialize};

use super::paths::Place;
use crate::error::ApiError;
use crate::storage::Stored;

/// A static role.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct StaticRole {
    /// The user, fixed.
    pub username: String,
}

pub(super) const KEYS: &str = "static-role/";

/// The key of a static role.
pub fn key(name: &str) -> String {
    format!("{KEYS}{name}")
}

/// Reads a static role.
pub fn read(place: &Place<'_>, name: &str) -> Result<Option<Stored<StaticRole>>, ApiError> {
    Ok(place.storage.get(&key(name))?)
}
