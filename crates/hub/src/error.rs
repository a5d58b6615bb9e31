//! What a client is told when a request fails.
//!
//! An [`ApiError`] carries the status and the text that clients match, apart from the cause, which goes to the
//! log and never to the client.

use std::error::Error as StdError;
use std::fmt;

use holdfast_core::Kind;
use serde_json::{Map, Value};

/// The cause of an [`ApiError`], for the log.
pub type Cause = Box<dyn StdError + Send + Sync>;

/// A failed request: status, texts for the client, and the cause for the log.
#[derive(Debug)]
pub struct ApiError {
    kind: Kind,
    status: u16,
    errors: Vec<String>,
    /// Members that accompany the errors in the body, where a path promises them.
    pub data: Option<Map<String, Value>>,
    /// Warnings that accompany the errors.
    pub warnings: Vec<String>,
    /// Seconds for the `Retry-After` header.
    pub retry_after: Option<u32>,
    cause: Option<Cause>,
}

impl ApiError {
    const INTERNAL: &str = "internal error";

    /// An error of a kind with its default status.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self::with_status(kind, kind.http_status(), text)
    }

    /// An error whose status differs from its kind's default.
    pub fn with_status(kind: Kind, status: u16, text: impl Into<String>) -> Self {
        let text = text.into();
        let errors = if text.is_empty() { Vec::new() } else { vec![text] };
        Self { kind, status, errors, data: None, warnings: Vec::new(), retry_after: None, cause: None }
    }

    /// 400: the input was wrong.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, text)
    }

    /// 403 `permission denied`: one text for every refusal, so that a caller learns nothing from it.
    pub fn denied() -> Self {
        Self::new(Kind::Denied, "permission denied")
    }

    /// 404 with an empty error list: the value or list is not there.
    pub fn missing() -> Self {
        Self::new(Kind::NotFound, "")
    }

    /// 404: no mount serves the path.
    pub fn no_route(path: &str) -> Self {
        Self::new(Kind::NotFound, format!("no handler for route {path:?}. route entry not found."))
    }

    /// 404: the mount has no such path.
    pub fn unsupported_path() -> Self {
        Self::new(Kind::NotFound, "unsupported path")
    }

    /// 405: the path exists but not for this verb.
    pub fn unsupported_operation() -> Self {
        Self::with_status(Kind::Invalid, 405, "unsupported operation")
    }

    /// 413: the body is over the limit.
    pub fn body_too_large() -> Self {
        Self::with_status(Kind::Invalid, 413, "http: request body too large")
    }

    /// 413: what would have to be stored is over the limit of one entry.
    pub fn entry_too_large() -> Self {
        Self::with_status(Kind::Invalid, 413, "entry too large")
    }

    /// 429 with `Retry-After`.
    pub fn rate_limited(text: impl Into<String>, retry_after: u32) -> Self {
        Self { retry_after: Some(retry_after.max(1)), ..Self::new(Kind::RateLimited, text) }
    }

    /// 503 `Vault is sealed`.
    pub fn sealed() -> Self {
        Self::unavailable("Vault is sealed")
    }

    /// 503: there is no active node now.
    pub fn no_leader() -> Self {
        Self { retry_after: Some(1), ..Self::new(Kind::NotLeader, "no active Vault instance found") }
    }

    /// 503: the request may or may not have taken effect.
    pub fn outcome_unknown() -> Self {
        Self { retry_after: Some(1), ..Self::new(Kind::Timeout, "request outcome unknown") }
    }

    /// 503 with `Retry-After: 1`.
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self { retry_after: Some(1), ..Self::new(Kind::Unavailable, text) }
    }

    /// 500 `internal error`; the cause is for the log only.
    pub fn internal(cause: impl Into<Cause>) -> Self {
        Self { cause: Some(cause.into()), ..Self::new(Kind::Internal, Self::INTERNAL) }
    }

    /// 500 with a text that clients may see, such as a driver's scrubbed message.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::new(Kind::Internal, text)
    }

    /// Whether the client was told what failed, so that it is not a fault of this node.
    pub fn is_told(&self) -> bool {
        self.cause.is_none() && self.to_string() != Self::INTERNAL
    }

    /// Adds the cause for the log.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Into<Cause>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Adds body members beside the errors.
    #[must_use]
    pub fn with_data(mut self, data: Map<String, Value>) -> Self {
        self.data = Some(data);
        self
    }

    /// The class of the failure.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The texts for the client.
    pub fn errors(&self) -> &[String] {
        &self.errors
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errors.first() {
            Some(text) => f.write_str(text),
            None => write!(f, "status {}", self.status),
        }
    }
}

impl StdError for ApiError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|c| c as &(dyn StdError + 'static))
    }
}
