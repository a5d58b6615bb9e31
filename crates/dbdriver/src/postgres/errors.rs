//! From what PostgreSQL says to what a caller can decide by.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::DbError;

use crate::error::{DriverError, Reason};

/// An error of a statement, which rolled the transaction back.
pub(super) fn statement(error: &Error) -> DriverError {
    match error.as_db_error() {
        Some(db) => from_server(db, statement_reason(db)),
        None => {
            DriverError::new(Reason::Lost, format!("the connection to the database broke: {}", chain(error)))
        }
    }
}

/// An error of opening a connection.
pub(super) fn connecting(error: &Error) -> DriverError {
    match error.as_db_error() {
        Some(db) => from_server(db, connect_reason(db)),
        None => {
            DriverError::new(Reason::Unreachable, format!("no connection to the database: {}", chain(error)))
        }
    }
}

fn statement_reason(db: &DbError) -> Reason {
    match db.code().code() {
        "42501" => Reason::Denied,
        "42710" => Reason::Exists,
        "2BP01" => Reason::Dependent,
        "57014" => Reason::Deadline,
        code if code.starts_with("08") || matches!(code, "57P01" | "57P02" | "57P03" | "57P05") => {
            Reason::Lost
        }
        _ => Reason::Statement,
    }
}

fn connect_reason(db: &DbError) -> Reason {
    match db.code().code() {
        code if code.starts_with("53") => Reason::Busy,
        code if code.starts_with("57") || code.starts_with("08") => Reason::Unreachable,
        _ => Reason::Login,
    }
}

fn from_server(db: &DbError, reason: Reason) -> DriverError {
    let code = db.code().code();
    let mut text = format!("{}: {}", db.severity(), db.message());
    // What blocks a DROP is only in the detail.
    if let Some(detail) = db.detail().filter(|_| reason == Reason::Dependent) {
        text.push_str(": ");
        text.push_str(&detail.replace('\n', "; "));
    }
    text.push_str(&format!(" (SQLSTATE {code})"));
    DriverError::new(reason, text).with_sqlstate(code)
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

/// Whether another try of the same transaction may well succeed.
pub(super) fn is_conflict(error: &Error) -> bool {
    error.as_db_error().is_some_and(|db| match db.code().code() {
        "40001" | "40P01" => true,
        // The message may be translated; the place in the server's source is not.
        "XX000" => {
            db.message().contains("tuple concurrently")
                || matches!(db.routine(), Some("simple_heap_update" | "simple_heap_delete"))
        }
        _ => false,
    })
}

/// Whether a commit that failed with this can have taken hold: only what the server says in an orderly way is sure.
pub(super) fn is_orderly(error: &Error) -> bool {
    error.as_db_error().is_some_and(|db| {
        let code = db.code().code();
        db.severity() == "ERROR" || !(code.starts_with("57P") || code.starts_with("08"))
    })
}

/// In a statement that sets a password, these codes are those of password rules.
pub(super) fn about_password(error: &DriverError) -> DriverError {
    match (error.reason(), error.sqlstate()) {
        (Reason::Statement, Some(code @ ("22023" | "28P01" | "23514"))) => {
            DriverError::new(Reason::Policy, error.client_text()).with_sqlstate(code)
        }
        _ => error.clone(),
    }
}

/// "Does not exist" means the user only when its name is in the text.
pub(super) fn about_user(error: DriverError, username: &str) -> DriverError {
    let names_user = error.client_text().contains(username);
    match (error.reason(), error.sqlstate()) {
        (Reason::Statement, Some(code @ "42704")) if names_user => {
            DriverError::new(Reason::Missing, error.client_text()).with_sqlstate(code)
        }
        (Reason::Exists, Some(code)) if !names_user => {
            DriverError::new(Reason::Statement, error.client_text()).with_sqlstate(code)
        }
        _ => error,
    }
}
