//! From what MySQL and MariaDB say to what a caller can decide by.

use mysql_async::{Error, ServerError};

use crate::error::{DriverError, Reason};

/// User or password is wrong.
pub(super) const ACCESS_DENIED: u16 = 1045;
/// The same, from a way to log in that takes no password.
pub(super) const ACCESS_DENIED_PLAIN: u16 = 1698;
/// The login is good, but not for this database.
pub(super) const DATABASE_DENIED: u16 = 1044;

/// An error of a statement.
pub(super) fn statement(error: &Error) -> DriverError {
    match error {
        Error::Server(server) => from_server(server, statement_reason(server)),
        Error::Io(_) | Error::Driver(_) => {
            DriverError::new(Reason::Lost, format!("the connection to the database broke: {}", plain(error)))
        }
        Error::Other(_) | Error::Url(_) => DriverError::new(Reason::Internal, plain(error)),
    }
}

/// An error of opening a connection.
pub(super) fn connecting(error: &Error) -> DriverError {
    match error {
        Error::Server(server) => from_server(server, connect_reason(server)),
        Error::Url(_) => DriverError::invalid(plain(error)),
        _ => {
            DriverError::new(Reason::Unreachable, format!("no connection to the database: {}", plain(error)))
        }
    }
}

fn statement_reason(error: &ServerError) -> Reason {
    match error.code {
        // Rights on a database, a command, a table, a column, or in general.
        1044 | 1045 | 1142 | 1143 | 1227 | 1410 => Reason::Denied,
        // The server goes down, or killed this session.
        1053 | 1079 | 1927 | 3169 | 4031 => Reason::Lost,
        // The statement was interrupted.
        1317 | 1969 | 3024 => Reason::Deadline,
        _ => Reason::Statement,
    }
}

fn connect_reason(error: &ServerError) -> Reason {
    match error.code {
        // Too many connections, in all or of this user.
        1040 | 1203 | 1226 => Reason::Busy,
        // This host is blocked for a while, or the server goes down.
        1053 | 1129 => Reason::Unreachable,
        _ => Reason::Login,
    }
}

fn from_server(error: &ServerError, reason: Reason) -> DriverError {
    DriverError::new(reason, format!("Error {} ({}): {}", error.code, error.state, error.message))
        .with_sqlstate(error.state.clone())
        .with_native_code(error.code)
}

fn plain(error: &Error) -> String {
    match error {
        Error::Io(io) => io.to_string(),
        Error::Driver(driver) => driver.to_string(),
        other => other.to_string(),
    }
}

/// A lock was not to be had, or there was a deadlock: another try may well succeed.
pub(super) fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::Server(server) if matches!(server.code, 1205 | 1213))
}

/// The statement cannot be prepared; it has to go as text.
pub(super) fn cannot_be_prepared(error: &Error) -> bool {
    matches!(error, Error::Server(server) if server.code == 1295)
}

/// 1819 is what password rules answer, whichever plugin holds them; 1827 a password that is no hash.
pub(super) fn about_password(error: &DriverError) -> DriverError {
    match error.native_code() {
        Some(code @ (1819 | 1827)) => {
            let policy = DriverError::new(Reason::Policy, error.client_text()).with_native_code(code);
            error.sqlstate().map_or_else(|| policy.clone(), |state| policy.clone().with_sqlstate(state))
        }
        _ => error.clone(),
    }
}
