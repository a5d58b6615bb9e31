//! Runs statements one after the other, and undoes what a failed creation left.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, Value};

use super::connect::{Connection, Connector};
use super::{MysqlDriver, errors};
use crate::backoff;
use crate::driver::Call;
use crate::error::{DriverError, Reason};
use crate::pool::Lease;

/// How long undoing may take after the deadline of the creation.
const UNDO: Duration = Duration::from_secs(4);

/// How a list of statements failed.
pub(super) struct Failed {
    pub(super) error: DriverError,
    /// Whether any statement was sent, so that something may be left.
    pub(super) started: bool,
}

impl From<DriverError> for Failed {
    fn from(error: DriverError) -> Self {
        Self { error, started: false }
    }
}

impl MysqlDriver {
    /// Runs statements in order on one connection.
    pub(super) async fn run_all(&self, call: &Call, statements: &[String]) -> Result<(), Failed> {
        let mut lease = self.ready(call).await?;
        for statement in statements {
            // Each statement commits by itself, so each is a last moment at which it has not happened.
            let done = match call.check() {
                Ok(()) => self.run_one(call, &mut lease, statement).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                if matches!(error.reason(), Reason::Statement | Reason::Denied) {
                    lease.give_back();
                }
                return Err(Failed { error, started: true });
            }
        }
        lease.give_back();
        Ok(())
    }

    /// A connection that answers; one that was idle may have died unnoticed.
    async fn ready(&self, call: &Call) -> Result<Lease<Connector>, DriverError> {
        loop {
            let mut lease = self.pool.take(call).await?;
            if !lease.is_reused() {
                return Ok(lease);
            }
            let alive = self.pool.run(call, lease.conn()?.conn()?.ping()).await?;
            if alive.is_ok() {
                return Ok(lease);
            }
        }
    }

    async fn run_one(&self, call: &Call, lease: &mut Lease<Connector>, sql: &str) -> Result<(), DriverError> {
        let mut attempt = 0;
        loop {
            let connection: &mut Connection = lease.conn()?;
            let session = connection.id();
            let done = self.pool.run(call, execute(connection.conn()?, sql)).await;
            match done {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(e)) if errors::is_conflict(&e) && attempt < backoff::RETRIES => {
                    self.pool.run(call, tokio::time::sleep(backoff::delay(attempt))).await?;
                    attempt += 1;
                }
                Ok(Err(e)) => {
                    let error = errors::statement(&e);
                    // A server that lost us may still be at work on the statement.
                    return Err(if error.reason() == Reason::Lost {
                        self.end(session, error).await
                    } else {
                        error
                    });
                }
                Err(error) => return Err(self.end(session, error).await),
            }
        }
    }

    /// Ends a session whose statement may still run: it must be over before anything it did can be undone.
    async fn end(&self, session: Option<u32>, error: DriverError) -> DriverError {
        let over = match session {
            Some(session) => self.connector.kill(session).await,
            None => false,
        };
        if over { error } else { error.with_unknown_effect() }
    }

    /// The first column of what a query returns, as text.
    pub(super) async fn texts(
        &self,
        call: &Call,
        sql: &str,
        values: Vec<Value>,
    ) -> Result<Vec<String>, DriverError> {
        let mut lease = self.ready(call).await?;
        let params = if values.is_empty() { Params::Empty } else { Params::Positional(values) };
        let found = self.pool.run(call, lease.conn()?.conn()?.exec::<String, _, _>(sql, params)).await?;
        match found {
            Ok(texts) => {
                lease.give_back();
                Ok(texts)
            }
            Err(e) => Err(errors::statement(&e)),
        }
    }

    /// Undoes a creation that failed half-way. The error that comes back says whether that is proven.
    pub(super) async fn undo(&self, error: DriverError, username: &str, rollback: &[String]) -> DriverError {
        // The deadline and the cancellation of the creation are what may have brought us here.
        let call = Call::within(UNDO);
        let own = match rollback.is_empty() {
            true => Ok(()),
            false => self.run_all(&call, rollback).await.map_err(|failed| failed.error),
        };
        let dropped = self.drop_user(&call, username).await;
        match own.and(dropped) {
            // A statement that may still run could finish after the user was dropped.
            Ok(()) => error,
            Err(undo) => {
                tracing::warn!(%undo, username, "a half-made user could not be removed at once");
                error.with_unknown_effect()
            }
        }
    }
}

/// Prepared first, which sends values and text apart on servers that log; text where that is not possible.
async fn execute(conn: &mut Conn, sql: &str) -> Result<(), mysql_async::Error> {
    match conn.exec_drop(sql, Params::Empty).await {
        Err(e) if errors::cannot_be_prepared(&e) => conn.query_drop(sql).await,
        other => other,
    }
}
