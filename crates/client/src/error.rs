//! Why a request did not yield an answer.

use holdfast_core::Kind;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// An address cannot be used.
    #[error("the address {address:?} is not a URL with http or https")]
    Address {
        /// The address as given.
        address: String,
    },
    /// A certificate or key file cannot be used.
    #[error("cannot use {file:?} for TLS")]
    Tls {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No endpoint took the request.
    #[error("no endpoint answered: {}", tried.join("; "))]
    Unreachable {
        /// Each endpoint with the reason.
        tried: Vec<String>,
    },
    /// The connection broke after the request was sent; it may have taken effect.
    #[error(
        "the connection to {endpoint} broke after the request was sent; whether it took effect is not known"
    )]
    OutcomeUnknown {
        /// The endpoint.
        endpoint: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server refused.
    #[error("{method} {path}: status {status}{}", texts(errors))]
    Status {
        /// The verb.
        method: String,
        /// The path.
        path: String,
        /// The status.
        status: u16,
        /// The texts of the answer.
        errors: Vec<String>,
        /// The whole body, when it was JSON.
        body: Option<Box<serde_json::Value>>,
    },
    /// The answer is not what the API promises.
    #[error("the answer of {endpoint} is not JSON")]
    Answer {
        /// The endpoint.
        endpoint: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file could not be read or written.
    #[error("cannot read or write {file:?}")]
    File {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl ClientError {
    /// The class of the failure.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Address { .. } | Self::Tls { .. } | Self::File { .. } => Kind::Invalid,
            Self::Unreachable { .. } => Kind::Unavailable,
            Self::OutcomeUnknown { .. } => Kind::Timeout,
            Self::Answer { .. } => Kind::Corrupt,
            Self::Status { status, .. } => match status {
                403 => Kind::Denied,
                404 => Kind::NotFound,
                409 => Kind::Conflict,
                429 => Kind::RateLimited,
                503 => Kind::Unavailable,
                400..=499 => Kind::Invalid,
                _ => Kind::Internal,
            },
        }
    }

    /// The status of the server's refusal.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

fn texts(errors: &[String]) -> String {
    errors.iter().map(|e| format!("\n  * {e}")).collect()
}
