//! The mount type `relay`: its paths.

use std::sync::Arc;

use async_trait::async_trait;

use super::record::ALL;
use crate::error::ApiError;
use crate::logical::{Cx, Engine, Request, Response};
use crate::mount::MountEntry;

/// The engine behind the relay mount.
pub fn engine() -> Arc<dyn Engine> {
    Arc::new(RelayEngine)
}

struct RelayEngine;

#[async_trait]
impl Engine for RelayEngine {
    async fn handle(&self, _cx: &Cx, _mount: &MountEntry, _request: &Request) -> Result<Response, ApiError> {
        Err(ApiError::unsupported_path())
    }

    async fn unmounted(&self, cx: &Cx, _mount: &MountEntry) -> Result<(), ApiError> {
        Ok(cx.storage.delete_prefix(ALL).await?)
    }
}
