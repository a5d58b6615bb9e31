//! What Redis's refusals mean: the first word of an error is its code.

use holdfast_core::AnswerKind;
use holdfast_core::freshness::Failure;
use redis::{ErrorKind, RedisError};

/// How a refusal shows.
pub(super) fn failure(error: &RedisError) -> Failure {
    match error.code() {
        Some(code) => of_code(code, error.detail().unwrap_or_default()),
        None => Failure::of(match error.kind() {
            ErrorKind::Io => AnswerKind::Unavailable,
            ErrorKind::AuthenticationFailed => return Failure::own_login(),
            ErrorKind::Parse => AnswerKind::Unavailable,
            // Before version 6, which this provider needs.
            ErrorKind::RESP3NotSupported => AnswerKind::Unknown,
            _ => AnswerKind::Unknown,
        }),
    }
}

/// Whether the connection is of no more use, or another server may do better.
pub(super) fn is_of_server(failure: &Failure) -> bool {
    failure.kind == AnswerKind::Unavailable
}

fn of_code(code: &str, detail: &str) -> Failure {
    Failure::of(match code {
        "NOAUTH" | "WRONGPASS" => return Failure::own_login(),
        // A password where the server knows none, or the plain error of servers that have only one.
        "ERR" if detail.contains("AUTH") || detail.contains("invalid password") => {
            return Failure::own_login();
        }
        "NOPERM" => AnswerKind::PermissionDenied,
        "LOADING" | "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "BUSY" => AnswerKind::Unavailable,
        "WRONGTYPE" => AnswerKind::Invalid,
        _ => AnswerKind::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_show_as_the_table_says() {
        use AnswerKind::{Invalid, PermissionDenied, Unavailable, Unknown};
        for (code, detail, expected) in [
            ("NOAUTH", "Authentication required.", Failure::own_login()),
            ("WRONGPASS", "invalid username-password pair", Failure::own_login()),
            ("ERR", "AUTH <password> called without any password configured", Failure::own_login()),
            ("NOPERM", "this user has no permissions", Failure::of(PermissionDenied)),
            ("LOADING", "Redis is loading the dataset in memory", Failure::of(Unavailable)),
            ("CLUSTERDOWN", "Hash slot not served", Failure::of(Unavailable)),
            ("MASTERDOWN", "Link with MASTER is down", Failure::of(Unavailable)),
            ("WRONGTYPE", "Operation against a key", Failure::of(Invalid)),
            ("MOVED", "3999 127.0.0.1:6381", Failure::of(Unknown)),
            ("ERR", "unknown command", Failure::of(Unknown)),
        ] {
            assert_eq!(of_code(code, detail), expected, "{code} {detail}");
        }
    }
}
