//! The interface of a mount type.

use std::sync::Arc;

use async_trait::async_trait;
use holdfast_core::Term;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Operation, Request, Response};
use crate::auth::token::Token;
use crate::error::ApiError;
use crate::hub::Hub;
use crate::mount::MountEntry;
use crate::storage::Storage;

/// What a handler works with: the hub's services and a view of the store that is fenced by the term under which
/// the request was let in.
#[derive(Clone)]
pub struct Cx {
    /// The services of this node.
    pub hub: Arc<Hub>,
    /// The whole store, fenced.
    pub storage: Storage,
    /// The term under which the work was let in.
    pub term: Term,
    /// When the answer is no longer wanted.
    pub deadline: Instant,
    /// Cancelled when the client is gone or leadership is lost.
    pub cancel: CancellationToken,
}

/// A mount type: secrets engine, login method or system backend.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Whether the path (inside the mount) is open to callers without a token.
    fn unauthenticated(&self, _operation: Operation, _rest: &str) -> bool {
        false
    }

    /// Whether any valid token may ask for the path (inside the mount), whatever its policies and without a use of it
    /// being counted: the handler shows what the token can see.
    fn any_token(&self, _rest: &str) -> bool {
        false
    }

    /// Limits how often a client may ask here, beside the quotas of the cluster: 429 when it asks too often.
    fn check_rate(&self, _hub: &Hub, _request: &Request) -> Result<(), ApiError> {
        Ok(())
    }

    /// Whether the path (inside the mount) needs the `sudo` capability beside the operation's own.
    fn sudo(&self, _rest: &str) -> bool {
        false
    }

    /// Whether a read of the path (inside the mount) makes something, such as a login, so that it must not be
    /// repeated when its answer is lost.
    fn read_has_effect(&self, _rest: &str) -> bool {
        false
    }

    /// Whether a token that a login through this mount made may still be renewed: whom it was made for is still there.
    async fn may_renew(&self, _cx: &Cx, _mount: &MountEntry, _token: &Token) -> Result<bool, ApiError> {
        Ok(true)
    }

    /// Whether what a write addresses is there: then it needs `update`, else `create`.
    async fn exists(&self, _cx: &Cx, _mount: &MountEntry, _request: &Request) -> Result<bool, ApiError> {
        Ok(true)
    }

    /// Field names of requests and answers that audit lines show in clear.
    fn audit_clear(&self) -> &'static [&'static str] {
        &[]
    }

    /// The fields that a write of the path (inside the mount) knows, where it knows them all: others are told of in a
    /// warning. Parts of the path count as known, since clients send them in the body as well.
    fn fields(&self, _mount: &MountEntry, _rest: &str) -> Option<Vec<&'static str>> {
        None
    }

    /// Answers a request.
    async fn handle(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError>;

    /// Called when the mount is removed, after its leases are revoked and before its storage is deleted.
    async fn unmounted(&self, _cx: &Cx, _mount: &MountEntry) -> Result<(), ApiError> {
        Ok(())
    }
}
