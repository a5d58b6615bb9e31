//! Why the config server's client could not be made, or could not give a value.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{AnswerKind, Kind};

use super::decode::{BadReference, DecodeError};

/// Why a [`Client`](super::Client) could not be made. No request was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Both fields are set, and which one is meant cannot be known.
    #[error("set exactly one of endpoint and endpoints")]
    Both,
    /// Neither field is set.
    #[error("no endpoint")]
    None,
    /// Some entries cannot be used; all of them are listed.
    #[error("{}", listed(.0))]
    Endpoints(Vec<EndpointProblem>),
    /// The token, or the name of the program, cannot be sent.
    #[error("{0} holds characters that no header can carry")]
    Header(&'static str),
    /// A client certificate without its key, or a key without its certificate.
    #[error("a client certificate needs both its file and the file of its key")]
    HalfIdentity,
    /// A certificate or key file cannot be used.
    #[error("cannot use {file} for TLS")]
    Tls {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// One entry of the list of endpoints that cannot be used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EndpointProblem {
    /// Its place, from 1.
    pub position: usize,
    /// How many entries there are.
    pub count: usize,
    /// What is wrong.
    pub fault: EndpointFault,
}

/// What is wrong with an entry.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum EndpointFault {
    /// It cannot be read.
    Bad {
        /// As given, without a password.
        text: String,
        /// Why.
        reason: &'static str,
    },
    /// It means the same as an entry before it, whose place this is.
    Repeats(usize),
}

impl fmt::Display for EndpointProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, count, fault } = self;
        match fault {
            EndpointFault::Bad { text, reason } => {
                write!(f, "endpoint {position} of {count} \"{text}\": {reason}")
            }
            EndpointFault::Repeats(earlier) => {
                write!(f, "endpoint {position} of {count} repeats endpoint {earlier}")
            }
        }
    }
}

fn listed(problems: &[EndpointProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Why there is no value. Cheap to clone.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A replica refused, in the words of the API.
    #[error("{endpoint}: {kind}: {message}")]
    Refused {
        /// The endpoint that said so.
        endpoint: Arc<str>,
        /// The kind, as the replica gave it.
        kind: AnswerKind,
        /// For people.
        message: Arc<str>,
        /// How long the replica asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// No replica gave an answer of the API; this is what the last one did.
    #[error("{endpoint}: {reason}")]
    Unreachable {
        /// The endpoint.
        endpoint: Arc<str>,
        /// What happened.
        reason: Arc<str>,
    },
    /// The deadline passed.
    #[error("no answer within {}", humantime(.0))]
    Deadline(Duration),
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
    /// The reference is refused; nothing was sent.
    #[error(transparent)]
    Reference(#[from] BadReference),
    /// The value came, and cannot be decoded as asked.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl Error {
    /// As which of the API's kinds it counts.
    pub const fn answer_kind(&self) -> AnswerKind {
        match self {
            Self::Refused { kind, .. } => *kind,
            Self::Unreachable { .. } | Self::Deadline(_) | Self::Closed => AnswerKind::Unavailable,
            Self::Reference(_) | Self::Decode(_) => AnswerKind::Invalid,
        }
    }

    /// The class of the failure.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Refused { kind, .. } => match kind {
                AnswerKind::NotFound => Kind::NotFound,
                AnswerKind::PermissionDenied => Kind::Denied,
                AnswerKind::Unauthenticated => Kind::Unauthenticated,
                AnswerKind::Unavailable => Kind::Unavailable,
                AnswerKind::RateLimited => Kind::RateLimited,
                AnswerKind::Invalid => Kind::Invalid,
                AnswerKind::Unknown => Kind::Internal,
            },
            Self::Unreachable { .. } | Self::Closed => Kind::Unavailable,
            Self::Deadline(_) => Kind::Timeout,
            Self::Reference(_) => Kind::Invalid,
            Self::Decode(_) => Kind::Corrupt,
        }
    }

    /// How long the replica asks to be left alone.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

fn humantime(duration: &Duration) -> String {
    format!("{}ms", duration.as_millis())
}
