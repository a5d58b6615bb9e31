//! What etcd's refusals mean. Its own texts are looked at where the code alone does not tell.

use std::error::Error as _;

use holdfast_core::AnswerKind;
use holdfast_core::freshness::Failure;
use tonic::{Code, Status};

/// What may help against a refusal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Remedy {
    /// A new token.
    LogIn,
    /// Another member.
    Elsewhere,
    /// Nothing.
    Nothing,
}

/// What may help.
pub(super) fn remedy(status: &Status) -> Remedy {
    if is_old_login(status.code(), status.message()) {
        return Remedy::LogIn;
    }
    match failure(status) {
        Failure { kind: AnswerKind::Unavailable, own_login: false, .. } => Remedy::Elsewhere,
        _ => Remedy::Nothing,
    }
}

/// How a refusal shows.
pub(super) fn failure(status: &Status) -> Failure {
    if is_login(status.code(), status.message()) {
        return Failure::own_login();
    }
    Failure::of(match status.code() {
        Code::PermissionDenied => AnswerKind::PermissionDenied,
        Code::ResourceExhausted => AnswerKind::RateLimited,
        Code::DeadlineExceeded
        | Code::Unavailable
        | Code::Cancelled
        | Code::Internal
        | Code::Aborted
        | Code::DataLoss => AnswerKind::Unavailable,
        // Made here from an error of the connection, not said by etcd.
        Code::Unknown if status.source().is_some() => AnswerKind::Unavailable,
        _ => AnswerKind::Unknown,
    })
}

/// How the refusal of one watch on a stream shows; there is only its text.
pub(super) fn of_reason(reason: &str) -> Failure {
    if is_login(Code::Ok, reason) {
        Failure::own_login()
    } else if reason.contains("permission denied") {
        Failure::of(AnswerKind::PermissionDenied)
    } else {
        Failure::of(AnswerKind::Unavailable)
    }
}

/// A token that was good once.
fn is_old_login(code: Code, text: &str) -> bool {
    code == Code::Unauthenticated || text.contains("invalid auth token") || text.contains("auth store is old")
}

fn is_login(code: Code, text: &str) -> bool {
    is_old_login(code, text) || text.contains("authentication failed") || text.contains("user name is empty")
}

/// etcd runs without logins, so that there is nothing to log in to.
pub(super) fn is_auth_off(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.message().contains("authentication is not enabled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_show_as_the_table_says() {
        use AnswerKind::{PermissionDenied, RateLimited, Unavailable, Unknown};
        let table = [
            (Code::PermissionDenied, "etcdserver: permission denied", PermissionDenied, Remedy::Nothing),
            (Code::ResourceExhausted, "etcdserver: too many requests", RateLimited, Remedy::Nothing),
            (Code::DeadlineExceeded, "context deadline exceeded", Unavailable, Remedy::Elsewhere),
            (Code::Unavailable, "etcdserver: no leader", Unavailable, Remedy::Elsewhere),
            (Code::Internal, "", Unavailable, Remedy::Elsewhere),
            (Code::InvalidArgument, "etcdserver: key is not provided", Unknown, Remedy::Nothing),
            (Code::Unimplemented, "unknown service", Unknown, Remedy::Nothing),
        ];
        for (code, text, kind, remedies) in table {
            let status = Status::new(code, text);
            assert_eq!((failure(&status), remedy(&status)), (Failure::of(kind), remedies), "{text}");
        }
    }

    #[test]
    fn a_refused_login_is_the_replicas_own() {
        let table = [
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                Remedy::Nothing,
            ),
            (Code::InvalidArgument, "etcdserver: user name is empty", Remedy::Nothing),
            (Code::Unauthenticated, "etcdserver: invalid auth token", Remedy::LogIn),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", Remedy::LogIn),
        ];
        for (code, text, remedies) in table {
            let status = Status::new(code, text);
            assert_eq!((failure(&status), remedy(&status)), (Failure::own_login(), remedies), "{text}");
        }
        assert_eq!(of_reason("etcdserver: permission denied"), Failure::of(AnswerKind::PermissionDenied));
        assert_eq!(of_reason("etcdserver: user name is empty"), Failure::own_login());
    }
}
