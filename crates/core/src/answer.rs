//! How asking for a value can fail, as the config server's frozen wire API names it.
//!
//! Five kinds are authoritative: every replica would give the same answer, so a client does not ask another one.

use std::fmt;

/// The kind of a failure.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum AnswerKind {
    /// There is no such thing.
    NotFound,
    /// The caller, or the replica towards its upstream, may not.
    PermissionDenied,
    /// No usable credential came.
    Unauthenticated,
    /// Something that is needed is not there now.
    Unavailable,
    /// A limit was reached.
    RateLimited,
    /// The request or the stored thing is malformed.
    Invalid,
    /// None of these.
    Unknown,
}

impl AnswerKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::NotFound,
        Self::PermissionDenied,
        Self::Unauthenticated,
        Self::Unavailable,
        Self::RateLimited,
        Self::Invalid,
        Self::Unknown,
    ];

    /// Its name on the wire and in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::PermissionDenied => "permission_denied",
            Self::Unauthenticated => "unauthenticated",
            Self::Unavailable => "unavailable",
            Self::RateLimited => "rate_limited",
            Self::Invalid => "invalid",
            Self::Unknown => "unknown",
        }
    }

    /// The kind of this name; [`AnswerKind::Unknown`] for a name that a later version may have added.
    pub fn from_label(text: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.label() == text).unwrap_or(Self::Unknown)
    }

    /// The HTTP status that tells of it.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::NotFound => 404,
            Self::PermissionDenied => 403,
            Self::Unauthenticated => 401,
            Self::Unavailable => 503,
            Self::RateLimited => 429,
            Self::Invalid => 400,
            Self::Unknown => 500,
        }
    }

    /// Whether every replica would answer alike.
    pub const fn is_authoritative(self) -> bool {
        !matches!(self, Self::Unavailable | Self::Unknown)
    }
}

impl fmt::Display for AnswerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_what_they_name() {
        for kind in AnswerKind::ALL {
            assert_eq!(AnswerKind::from_label(kind.label()), kind);
        }
        assert_eq!(AnswerKind::from_label("teapot"), AnswerKind::Unknown);
    }

    #[test]
    fn five_kinds_are_authoritative() {
        let kinds = AnswerKind::ALL.into_iter().filter(|kind| kind.is_authoritative());
        assert_eq!(kinds.count(), 5);
    }
}
