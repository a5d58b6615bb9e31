//! What PostgreSQL's error codes mean.

use holdfast_core::AnswerKind;
use holdfast_core::freshness::Failure;
use tokio_postgres::Error;

/// How an error shows.
pub(super) fn failure(error: &Error) -> Failure {
    match error.code() {
        Some(code) => of_code(code.code()),
        // Not said by the server: the connection, or the way to one.
        None => Failure::of(AnswerKind::Unavailable),
    }
}

fn of_code(code: &str) -> Failure {
    Failure::of(match code {
        "42501" => AnswerKind::PermissionDenied,
        // No such table or column, or nothing that can be compared with or made to what it should be.
        "42P01" | "42703" | "42883" | "42846" => AnswerKind::Invalid,
        _ if code.starts_with("28") => return Failure::own_login(),
        // Data that cannot be read as what it should be, such as a key that is no number.
        _ if code.starts_with("22") => AnswerKind::Invalid,
        // Connections, resources, what an operator does, the system, the server itself.
        _ if ["08", "53", "57", "58", "XX"].iter().any(|class| code.starts_with(class)) => {
            AnswerKind::Unavailable
        }
        _ => AnswerKind::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_show_as_the_table_says() {
        use AnswerKind::{Invalid, PermissionDenied, Unavailable, Unknown};
        for code in ["28P01", "28000"] {
            assert_eq!(of_code(code), Failure::own_login(), "{code}");
        }
        for (code, kind) in [
            ("42501", PermissionDenied),
            ("53300", Unavailable),
            ("57P03", Unavailable),
            ("57P01", Unavailable),
            ("08006", Unavailable),
            ("42P01", Invalid),
            ("42703", Invalid),
            ("22P02", Invalid),
            ("3D000", Unknown),
            ("42601", Unknown),
        ] {
            assert_eq!(of_code(code), Failure::of(kind), "{code}");
        }
    }
}
