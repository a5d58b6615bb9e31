//! A request after parsing and before it is routed to a mount.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Data;
use crate::auth::token::Token;

/// What a request wants done.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Operation {
    /// `GET`.
    Read,
    /// `LIST`, or `GET` with `list=true`.
    List,
    /// `PUT` or `POST`. Whether it is a create or an update is decided by [`super::Engine::exists`].
    Write,
    /// `PATCH` with a merge patch.
    Patch,
    /// `DELETE`.
    Delete,
}

impl Operation {
    /// The name in audit lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::List => "list",
            Self::Write => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// A UUID, in the answer and in both audit lines.
    pub id: String,
    /// What is wanted.
    pub operation: Operation,
    /// The whole path without `/v1/`; lists end with a slash.
    pub path: String,
    /// The prefix of the mount that serves it, with a trailing slash; filled by the router.
    pub mount: String,
    /// The path inside the mount; filled by the router.
    pub rest: String,
    /// The body's fields, or for reads the query's.
    pub data: Data,
    /// The query's fields.
    pub query: Vec<(String, String)>,
    /// The token's text, when one came.
    pub client_token: Option<secrecy::SecretString>,
    /// The token, once the pipeline looked it up.
    pub token: Option<Arc<Token>>,
    /// `X-Vault-Wrap-TTL` in seconds.
    pub wrap_ttl: Option<i64>,
    /// The uploaded file, for the paths whose body is not JSON; positioned at its start.
    pub upload: Option<Arc<std::fs::File>>,
    /// The client's address, also when the request was forwarded.
    pub remote: IpAddr,
    /// When the answer is no longer wanted.
    pub deadline: Instant,
    /// Cancelled when the client is gone.
    pub cancel: CancellationToken,
}

impl Request {
    /// The value of a query parameter.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The `after` and `limit` of a list; no limit means everything.
    pub fn page(&self) -> Result<(Option<String>, usize), crate::error::ApiError> {
        let field =
            |name: &str| self.query(name).map(str::to_owned).or(self.data.string(name).ok().flatten());
        let after = field("after").filter(|a| !a.is_empty());
        let limit = match field("limit").as_deref() {
            None | Some("") => usize::MAX,
            Some(text) => match text.parse::<i64>() {
                Ok(n) if n > 0 => usize::try_from(n).unwrap_or(usize::MAX),
                Ok(_) => usize::MAX,
                Err(_) => return Err(crate::error::ApiError::invalid("limit must be an integer")),
            },
        };
        Ok((after, limit))
    }
}
