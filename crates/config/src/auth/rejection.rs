//! Why a caller is not let in: the client learns one of two messages, the audit line learns which check failed.

use holdfast_core::AnswerKind;

use super::identity::Method;
use crate::label::label;

label! {
    /// The check that failed.
    Reason {
        /// The request holds nothing that this method looks at.
        NoCredential = "no_credential",
        /// The credential is an empty text.
        Empty = "empty",
        /// There is more than one, and they could differ.
        Ambiguous = "ambiguous",
        /// It cannot be read.
        Malformed = "malformed",
        /// No such token.
        UnknownToken = "unknown_token",
        /// The token is another subject's.
        WrongSubject = "wrong_subject",
        /// It has ended.
        Expired = "expired",
        /// It has not begun.
        NotYet = "not_yet",
        /// No key of this id, or none for this algorithm.
        UnknownKey = "unknown_key",
        /// The algorithm is not one of `auth.jwt.algorithms`.
        Algorithm = "algorithm",
        /// The signature does not fit.
        Signature = "signature",
        /// Another `iss`, or none.
        Issuer = "issuer",
        /// Another `aud`, or none.
        Audience = "audience",
        /// A claim that must be there is not.
        MissingClaim = "missing_claim",
        /// The credential names no subject.
        NoSubject = "no_subject",
        /// The identity is none of those that the method lets in.
        NotAllowed = "not_allowed",
        /// The method is not configured any more.
        Method = "method",
    }
}

impl Reason {
    /// Whether the caller is known, and refused as who it is.
    pub const fn forbids(self) -> bool {
        matches!(self, Self::NoSubject | Self::NotAllowed)
    }
}

/// What one method made of a request that it did not let in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// The method; none when the request was refused before any was asked.
    pub method: Option<Method>,
    /// The check that failed.
    pub reason: Reason,
}

/// A request that is not let in.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}", self.reason())]
pub struct Rejection {
    /// Whether the identity is known and refused: 403 and not 401.
    pub forbidden: bool,
    /// What each method that was asked said, in order.
    pub refusals: Vec<Refusal>,
}

impl Rejection {
    /// The kind and the message that the client gets.
    pub const fn answer(&self) -> (AnswerKind, &'static str) {
        if self.forbidden {
            (AnswerKind::PermissionDenied, "forbidden")
        } else {
            (AnswerKind::Unauthenticated, "unauthenticated")
        }
    }

    /// For the audit line alone: which checks failed, such as `mtls=no_credential,token=expired`.
    pub fn reason(&self) -> String {
        let shown = self.refusals.iter().map(|refusal| match refusal.method {
            Some(method) => format!("{}={}", method.label(), refusal.reason.label()),
            None => refusal.reason.label().to_owned(),
        });
        shown.collect::<Vec<_>>().join(",")
    }
}
