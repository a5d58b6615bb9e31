//! Removes a user, with every host entry of its name, and ends its sessions if wished.

use mysql_async::Value;

use super::MysqlDriver;
use crate::driver::{Call, DeleteUser};
use crate::error::{DriverError, Reason};
use crate::statement::{Dialect, Statements, Values};

const HOSTS: &str = "SELECT Host FROM mysql.user WHERE User = ?";
const SESSIONS: &str = "SELECT CAST(ID AS CHAR) FROM information_schema.PROCESSLIST WHERE USER = ?";

impl MysqlDriver {
    pub(super) async fn revoke(&self, call: &Call, user: &DeleteUser) -> Result<(), DriverError> {
        let own = Statements::parse(&user.statements, Dialect::Mysql)?;
        if own.is_empty() {
            self.drop_user(call, &user.username).await?;
        } else {
            let values = Values { username: &user.username, password: None, expiration: None };
            if let Err(failed) = self.run_all(call, &own.render(&values)).await {
                // Whoever removed the user first did what was asked; statements that name it fail then.
                let gone = failed.error.reason() == Reason::Statement
                    && self.hosts(call, &user.username).await?.is_empty();
                if !gone {
                    return Err(failed.error);
                }
            }
        }
        if user.terminate_sessions {
            self.end_sessions(call, &user.username).await?;
        }
        Ok(())
    }

    /// Drops every host entry of a name at once.
    pub(super) async fn drop_user(&self, call: &Call, username: &str) -> Result<(), DriverError> {
        let hosts = self.hosts(call, username).await?;
        let accounts = hosts.iter().map(|host| account(username, host)).collect::<Result<Vec<_>, _>>()?;
        if accounts.is_empty() {
            return Ok(());
        }
        let drop = format!("DROP USER IF EXISTS {}", accounts.join(", "));
        self.run_all(call, &[drop]).await.map_err(|failed| failed.error)
    }

    /// The host entries of a user name.
    pub(super) async fn hosts(&self, call: &Call, username: &str) -> Result<Vec<String>, DriverError> {
        self.texts(call, HOSTS, vec![Value::from(username)]).await
    }

    /// The driver's own way to change a password: of every host entry, in one statement.
    pub(super) async fn password_statement(
        &self,
        call: &Call,
        username: &str,
        password: &str,
    ) -> Result<String, DriverError> {
        let hosts = self.hosts(call, username).await?;
        if hosts.is_empty() {
            return Err(DriverError::new(Reason::Missing, format!("user '{username}' does not exist")));
        }
        let password = literal(password)?;
        let parts = hosts
            .iter()
            .map(|host| Ok(format!("{} IDENTIFIED BY {password}", account(username, host)?)))
            .collect::<Result<Vec<_>, DriverError>>()?;
        Ok(format!("ALTER USER {}", parts.join(", ")))
    }

    /// Only after the user can no longer log in, or sessions could come back.
    async fn end_sessions(&self, call: &Call, username: &str) -> Result<(), DriverError> {
        for session in self.texts(call, SESSIONS, vec![Value::from(username)]).await? {
            let ended = self.run_all(call, &[format!("KILL CONNECTION {session}")]).await;
            match ended {
                Ok(()) => {}
                // It ended by itself.
                Err(failed) if failed.error.native_code() == Some(1094) => {}
                Err(failed) => return Err(failed.error),
            }
        }
        Ok(())
    }
}

fn account(username: &str, host: &str) -> Result<String, DriverError> {
    Ok(format!("{}@{}", literal(username)?, literal(host)?))
}

/// A string that reads the same whether or not the server takes backslashes for escapes: it may hold none.
fn literal(text: &str) -> Result<String, DriverError> {
    if text.contains('\\') {
        return Err(DriverError::invalid("names and passwords may not contain a backslash"));
    }
    Ok(format!("'{}'", text.replace('\'', "''")))
}
