//! Runs statements as one transaction that ends by the deadline, or never happened.
//!
//! All statements go out as one message, so that a transaction costs two round trips. A failure before `COMMIT` is
//! sent is definite whatever becomes of the connection, because the server rolls back what it was not told to commit;
//! only from there on can the effect be unknown.

use std::pin::pin;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::types::{ToSql, Type};

use super::connect::{Connection, Connector};
use super::contention::{Locks, first_shared};
use super::{PostgresDriver, errors};
use crate::backoff;
use crate::driver::Call;
use crate::error::{DriverError, Reason};
use crate::pool::Lease;

/// How long a statement that was asked to end may take to do so before its connection is thrown away.
const SETTLE: Duration = Duration::from_secs(1);

/// How an attempt ended, if not well.
enum Failed {
    /// Rolled back by the server because of what others did; worth another try.
    Conflict(DriverError),
    /// The connection had died while idle; nothing was tried.
    Stale(DriverError),
    /// For good.
    Final(DriverError),
}

impl PostgresDriver {
    /// Runs `statements` in one transaction, again when it met a conflict.
    pub(super) async fn transaction(
        &self,
        call: &Call,
        statements: &[String],
        kind: i64,
    ) -> Result<(), DriverError> {
        let (mut attempt, mut stale) = (0, 0);
        let shared = first_shared(statements);
        loop {
            let locks = self.contention.locks(kind, attempt, shared);
            match self.attempt(call, statements, locks).await {
                Ok(()) => return Ok(()),
                Err(Failed::Final(error)) => return Err(error),
                // Each failure of this sort uses up one idle connection, so this ends.
                Err(Failed::Stale(error)) if stale > 256 => return Err(error),
                Err(Failed::Stale(_)) => stale += 1,
                Err(Failed::Conflict(error)) if attempt >= backoff::RETRIES => return Err(error),
                Err(Failed::Conflict(_)) => {
                    self.contention.met(kind);
                    self.pool.run(call, tokio::time::sleep(backoff::delay(attempt))).await?;
                    attempt += 1;
                }
            }
        }
    }

    async fn attempt(&self, call: &Call, statements: &[String], locks: Locks) -> Result<(), Failed> {
        let mut lease = self.pool.take(call).await.map_err(Failed::Final)?;
        let sql = transaction_text(call, statements, locks);
        let reused = lease.is_reused();
        let conn = lease.conn().map_err(Failed::Final)?;
        if let Err(failed) = self.body(call, conn, sql.expose_secret()).await {
            let failed = match failed {
                Failed::Final(e) if reused && e.reason() == Reason::Lost => Failed::Stale(e),
                other => other,
            };
            roll_back(lease).await;
            return Err(failed);
        }
        // The last moment at which nothing has happened yet.
        if let Err(error) = call.check() {
            roll_back(lease).await;
            return Err(Failed::Final(error));
        }
        let committed = tokio::time::timeout_at(call.deadline, conn.client.batch_execute("COMMIT")).await;
        match committed {
            Ok(Ok(())) => {
                lease.give_back();
                Ok(())
            }
            Ok(Err(e)) if errors::is_conflict(&e) => {
                roll_back(lease).await;
                Err(Failed::Conflict(errors::statement(&e)))
            }
            Ok(Err(e)) if errors::is_orderly(&e) => {
                roll_back(lease).await;
                Err(Failed::Final(errors::statement(&e)))
            }
            Ok(Err(e)) => Err(Failed::Final(errors::statement(&e).with_unknown_effect())),
            Err(_) => Err(Failed::Final(DriverError::deadline().with_unknown_effect())),
        }
    }

    /// Everything before `COMMIT`. Ends the statement in the server when the call ends first.
    async fn body(&self, call: &Call, conn: &Connection, sql: &str) -> Result<(), Failed> {
        let mut work = pin!(conn.client.batch_execute(sql));
        match self.pool.run(call, work.as_mut()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) if errors::is_conflict(&e) => Err(Failed::Conflict(errors::statement(&e))),
            Ok(Err(e)) => Err(Failed::Final(errors::statement(&e))),
            Err(error) => {
                conn.cancel_statement().await;
                // Whether it settles or not only decides if the connection can be kept.
                let _ = tokio::time::timeout(SETTLE, work).await;
                Err(Failed::Final(error))
            }
        }
    }

    /// The first column of what a query returns, as text.
    pub(super) async fn texts(
        &self,
        call: &Call,
        sql: &str,
        parameters: &[&str],
    ) -> Result<Vec<String>, DriverError> {
        let parameters: Vec<(&(dyn ToSql + Sync), Type)> =
            parameters.iter().map(|p| (p as &(dyn ToSql + Sync), Type::TEXT)).collect();
        loop {
            let mut lease = self.pool.take(call).await?;
            let reused = lease.is_reused();
            let found = self.query(call, lease.conn()?, sql, &parameters).await;
            match found {
                Ok(texts) => {
                    lease.give_back();
                    return Ok(texts);
                }
                // The connection had died while idle.
                Err(error) if error.reason() == Reason::Lost && reused => {}
                Err(error) => {
                    if matches!(error.reason(), Reason::Statement | Reason::Denied) {
                        lease.give_back();
                    }
                    return Err(error);
                }
            }
        }
    }

    async fn query(
        &self,
        call: &Call,
        conn: &Connection,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<String>, DriverError> {
        match self.pool.run(call, conn.client.query_typed(sql, parameters)).await {
            Ok(Ok(rows)) => {
                let texts: Result<_, _> = rows.iter().map(|row| row.try_get::<_, String>(0)).collect();
                texts.map_err(|e| errors::statement(&e))
            }
            Ok(Err(e)) => Err(errors::statement(&e)),
            Err(error) => {
                conn.cancel_statement().await;
                Err(error)
            }
        }
    }
}

fn transaction_text(call: &Call, statements: &[String], locks: Locks) -> SecretString {
    let timeout = call.left().as_millis().max(1);
    let mut sql = format!(
        "BEGIN; SET LOCAL statement_timeout = {timeout}; SET LOCAL TimeZone = 'UTC'; \
         SET LOCAL standard_conforming_strings = on"
    );
    if let Some(key) = locks.at_start {
        sql.push_str(&take(key));
    }
    for (place, statement) in statements.iter().enumerate() {
        if let Some((_, key)) = locks.before.filter(|(before, _)| *before == place) {
            sql.push_str(&take(key));
        }
        // The new line ends a comment that the statement may end in.
        sql.push_str(";\n");
        sql.push_str(statement);
    }
    sql.push('\n');
    sql.into()
}

fn take(key: i64) -> String {
    format!("; SELECT pg_catalog.pg_advisory_xact_lock({key})")
}

/// Rolls back and keeps the connection if that goes well; closing it has the same effect.
async fn roll_back(mut lease: Lease<Connector>) {
    let Ok(conn) = lease.conn() else { return };
    let done = tokio::time::timeout(SETTLE, conn.client.batch_execute("ROLLBACK")).await;
    if matches!(done, Ok(Ok(()))) {
        lease.give_back();
    }
}
