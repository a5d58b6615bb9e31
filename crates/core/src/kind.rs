//! What sort of failure an error is, independent of where it arose.
//!
//! One classification picks the HTTP status, the metric label, the retry class and the exit code, so that these
//! can never disagree.

use std::fmt;

/// The class of an error.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// The input was wrong; sending it again cannot help.
    Invalid,
    /// No usable credentials came with the request.
    Unauthenticated,
    /// The credentials do not allow this.
    Denied,
    /// What was asked for does not exist.
    NotFound,
    /// The state changed underneath, or the thing exists already.
    Conflict,
    /// Another node leads; the request did not start here.
    NotLeader,
    /// A quota or a bound was reached.
    RateLimited,
    /// Something that is needed is not there now.
    Unavailable,
    /// The deadline passed; whether it took effect is not known.
    Timeout,
    /// Stored or received bytes failed their check.
    Corrupt,
    /// A fault of this program.
    Internal,
}

impl Kind {
    /// The HTTP status that tells a client of this class.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthenticated | Self::Denied => 403,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::RateLimited => 429,
            Self::NotLeader | Self::Unavailable | Self::Timeout => 503,
            Self::Corrupt | Self::Internal => 500,
        }
    }

    /// The value of a metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unauthenticated => "unauthenticated",
            Self::Denied => "denied",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::NotLeader => "not_leader",
            Self::RateLimited => "rate_limited",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }

    /// Whether the work provably did not start, so that the same request may be sent elsewhere at once.
    pub const fn did_not_start(self) -> bool {
        matches!(self, Self::NotLeader | Self::RateLimited)
    }

    /// The exit code of a command-line program that ends for this reason.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Invalid => 1,
            _ => 2,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_that_did_not_start_may_be_sent_elsewhere() {
        assert!(Kind::NotLeader.did_not_start());
        assert!(!Kind::Timeout.did_not_start());
        assert!(!Kind::Unavailable.did_not_start());
    }
}
