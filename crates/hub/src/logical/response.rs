//! What a handler answers, before it becomes an envelope.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use secrecy::SecretString;
use serde::Serialize;
use serde_json::{Map, Value};

/// The answer of a handler.
#[derive(Debug)]
pub struct Response {
    /// Overrides the status that the body implies.
    pub status: Option<u16>,
    /// What is sent.
    pub body: Body,
}

/// What is sent.
pub enum Body {
    /// Nothing: 204 unless the status says otherwise.
    Empty,
    /// The envelope with its eight keys.
    Logical(Box<Logical>),
    /// JSON as it is, without the envelope.
    Json(Value),
    /// Other bytes.
    Bytes {
        /// The content type.
        content_type: &'static str,
        /// The bytes.
        bytes: Bytes,
    },
    /// A file that is streamed and removed afterwards.
    File {
        /// The content type.
        content_type: &'static str,
        /// An open temporary file, positioned at its start.
        file: std::fs::File,
    },
}

/// The content of an envelope.
#[derive(Default)]
pub struct Logical {
    /// The lease that stands behind the data.
    pub lease: Option<LeaseTicket>,
    /// The data.
    pub data: Option<Map<String, Value>>,
    /// A login's or a token creation's result.
    pub auth: Option<Box<AuthGrant>>,
    /// Set by the pipeline when the answer was wrapped.
    pub wrap_info: Option<WrapInfo>,
    /// Things that the client should know.
    pub warnings: Vec<String>,
    /// Whether the members of `data` also appear beside it, as `sys` maps and lists do.
    pub mirror: bool,
}

/// A lease in an answer.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LeaseTicket {
    /// The lease id; empty for a renewable answer without a lease.
    pub id: String,
    /// Seconds.
    pub duration: u64,
    /// Whether it can be renewed.
    pub renewable: bool,
}

/// A token in an answer.
#[derive(Clone, Debug)]
pub struct AuthGrant {
    /// The token's text.
    pub client_token: SecretString,
    /// Its accessor; empty for a batch token.
    pub accessor: String,
    /// All policies.
    pub policies: Vec<String>,
    /// Policies that come from the token itself.
    pub token_policies: Vec<String>,
    /// What the login method noted.
    pub metadata: BTreeMap<String, String>,
    /// Seconds; 0 for never.
    pub lease_duration: u64,
    /// Whether it can be renewed.
    pub renewable: bool,
    /// `service` or `batch`.
    pub token_type: &'static str,
    /// Whether it has no parent.
    pub orphan: bool,
    /// Uses left; 0 for unlimited.
    pub num_uses: i64,
}

/// Where a wrapped answer can be fetched.
#[derive(Clone, Serialize)]
pub struct WrapInfo {
    /// The wrapping token.
    pub token: String,
    /// Its accessor.
    pub accessor: String,
    /// Seconds.
    pub ttl: u64,
    /// RFC 3339 with nanoseconds.
    pub creation_time: String,
    /// The path whose answer was wrapped.
    pub creation_path: String,
    /// The accessor of a wrapped token; empty when something else was wrapped.
    pub wrapped_accessor: String,
}

/// Values of answers are secrets: only names are shown.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Logical(logical) => logical.fmt(f),
            Self::Json(_) => f.write_str("Json(..)"),
            Self::Bytes { content_type, .. } => write!(f, "Bytes({content_type})"),
            Self::File { content_type, .. } => write!(f, "File({content_type})"),
        }
    }
}

impl fmt::Debug for Logical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logical")
            .field("lease", &self.lease)
            .field("data", &self.data.as_ref().map(|data| data.keys().collect::<Vec<_>>()))
            .field("auth", &self.auth)
            .field("wrap_info", &self.wrap_info)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WrapInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrapInfo")
            .field("accessor", &self.accessor)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

impl Response {
    /// 204.
    pub fn no_content() -> Self {
        Self { status: None, body: Body::Empty }
    }

    /// An empty answer with a status.
    pub fn empty(status: u16) -> Self {
        Self { status: Some(status), body: Body::Empty }
    }

    /// 200 with data.
    pub fn data(data: Map<String, Value>) -> Self {
        Logical { data: Some(data), ..Logical::default() }.into()
    }

    /// 200 with data whose members also appear at the top.
    pub fn mirrored(data: Map<String, Value>) -> Self {
        Logical { data: Some(data), mirror: true, ..Logical::default() }.into()
    }

    /// 200 with `keys`, and `key_info` when there is any.
    pub fn keys(keys: Vec<String>, info: Option<Map<String, Value>>) -> Self {
        let mut data = Map::from_iter([("keys".to_owned(), Value::from(keys))]);
        if let Some(info) = info {
            data.insert("key_info".to_owned(), Value::Object(info));
        }
        Self::data(data)
    }

    /// JSON without an envelope.
    pub fn json(status: u16, value: Value) -> Self {
        Self { status: Some(status), body: Body::Json(value) }
    }

    /// Adds a warning; an empty answer becomes an envelope that carries it.
    #[must_use]
    pub fn warn(mut self, text: impl Into<String>) -> Self {
        if matches!(self.body, Body::Empty) {
            self = Logical::default().into();
        }
        if let Body::Logical(logical) = &mut self.body {
            logical.warnings.push(text.into());
        }
        self
    }
}

impl From<Logical> for Response {
    fn from(logical: Logical) -> Self {
        Self { status: None, body: Body::Logical(Box::new(logical)) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_secret_is_shown_for_debugging() {
        let data = json!({"password": "hidden"});
        let map = data.as_object().cloned().unwrap();
        let wrap = WrapInfo {
            token: "hidden".into(),
            accessor: "a".into(),
            ttl: 1,
            creation_time: String::new(),
            creation_path: String::new(),
            wrapped_accessor: String::new(),
        };
        let mut answer = Logical { data: Some(map.clone()), wrap_info: Some(wrap), ..Logical::default() };
        answer.warnings.push("seen".into());
        let shown = format!("{:?} {:?}", Response::from(answer), Response::json(200, data));
        assert!(shown.contains("password") && shown.contains("seen") && !shown.contains("hidden"), "{shown}");
        let shown = format!("{:?}", crate::logical::Data::new(map));
        assert!(shown.contains("password") && !shown.contains("hidden"), "{shown}");
    }
}
