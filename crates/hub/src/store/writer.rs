//! The one thread that writes the log: it takes all that waits and makes it durable with one commit.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openraft::storage::LogFlushed;
use rusqlite::{Connection, params};
use tokio::sync::{mpsc, oneshot};

use super::db::{self, Schema};
use super::health::Health;
use super::types::TypeConfig;

pub(super) const LOG: Schema = Schema {
    application_id: 0x4846_4C47,
    tables: "CREATE TABLE log (at INTEGER PRIMARY KEY, sum INTEGER NOT NULL, entry BLOB NOT NULL) STRICT;
             CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID",
    synchronous: "FULL",
    autocheckpoint: 4000,
};

/// How many jobs may wait. The library has one write under way at a time; ours are few.
const QUEUE: usize = 256;

/// One encoded entry.
pub(super) struct LogRow {
    pub at: u64,
    pub entry: Vec<u8>,
}

/// What a write changes.
pub(super) enum Change {
    Append(Vec<LogRow>),
    /// Removes this index and all after it.
    Truncate(u64),
    /// Removes this index and all before it.
    Purge(u64),
    Meta(&'static str, Vec<u8>),
}

/// Who is told when a write is durable.
pub(super) enum Done {
    /// Ends the writer.
    Close,
    Library(LogFlushed<TypeConfig>),
    Waiter(oneshot::Sender<()>),
}

pub(super) struct Job {
    pub changes: Vec<Change>,
    pub done: Done,
}

/// The sending side.
#[derive(Clone)]
pub(super) struct LogWriter {
    jobs: mpsc::Sender<Job>,
    commits: Arc<AtomicU64>,
}

impl LogWriter {
    /// A writer and the body of its thread.
    pub(super) fn new(
        path: PathBuf,
        connection: Connection,
        health: Arc<Health>,
    ) -> (Self, impl FnOnce() + Send + 'static) {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let commits = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&commits);
        (Self { jobs, commits }, move || run(path, connection, queue, &health, &counter))
    }

    /// Queues a write; `false` when the writer has ended.
    pub(super) async fn send(&self, job: Job) -> bool {
        self.jobs.send(job).await.is_ok()
    }

    /// Writes and waits until it is durable; `false` when the writer ended before that.
    pub(super) async fn write(&self, changes: Vec<Change>) -> bool {
        let (done, durable) = oneshot::channel();
        self.send(Job { changes, done: Done::Waiter(done) }).await && durable.await.is_ok()
    }

    /// Ends the writer once what waits is written.
    pub(super) async fn close(&self) {
        self.send(Job { changes: Vec::new(), done: Done::Close }).await;
        self.jobs.closed().await;
    }

    /// How many commits, and so syncs, there were.
    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }
}

fn run(
    path: PathBuf,
    connection: Connection,
    mut queue: mpsc::Receiver<Job>,
    health: &Health,
    commits: &AtomicU64,
) {
    let mut connection = Some(connection);
    while let Some(first) = queue.blocking_recv() {
        let mut jobs = vec![first];
        while jobs.len() < QUEUE
            && let Ok(next) = queue.try_recv()
        {
            jobs.push(next);
        }
        let durable = health.persist("log", || {
            let mut open = match connection.take() {
                Some(open) => open,
                None => db::connect(&path, &LOG)?,
            };
            // After a failed write the connection is not trusted any more: what the kernel still holds of it is
            // unknown.
            write(&mut open, &jobs)?;
            connection = Some(open);
            Ok::<_, rusqlite::Error>(())
        });
        if durable.is_none() {
            // Dropping the jobs tells the library and all who wait that nothing was written.
            return;
        }
        commits.fetch_add(1, Ordering::Relaxed);
        for job in jobs {
            match job.done {
                Done::Library(flushed) => flushed.log_io_completed(Ok(())),
                Done::Waiter(waiter) => _ = waiter.send(()),
                Done::Close => return,
            }
        }
    }
}

fn write(connection: &mut Connection, jobs: &[Job]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    for change in jobs.iter().flat_map(|job| &job.changes) {
        match change {
            Change::Append(rows) => append(&transaction, rows)?,
            Change::Truncate(from) => {
                transaction.prepare_cached("DELETE FROM log WHERE at >= ?1")?.execute([sql(*from)])?;
            }
            Change::Purge(upto) => {
                transaction.prepare_cached("DELETE FROM log WHERE at <= ?1")?.execute([sql(*upto)])?;
            }
            Change::Meta(name, value) => {
                transaction
                    .prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES (?1, ?2)")?
                    .execute(params![name, value])?;
            }
        }
    }
    transaction.commit()?;
    let appended = jobs.iter().flat_map(|job| &job.changes).filter_map(|change| match change {
        Change::Append(rows) => Some(rows),
        _ => None,
    });
    appended.flatten().try_for_each(|row| read_back(connection, row))
}

/// Makes sure that an entry is in the file as it was meant to be, before anybody counts on it.
fn read_back(connection: &Connection, row: &LogRow) -> rusqlite::Result<()> {
    let mut select = connection.prepare_cached("SELECT sum, entry FROM log WHERE at = ?1")?;
    let sound = select.query_row([sql(row.at)], |found| {
        let sum: u32 = found.get(0)?;
        Ok(sum == db::checksum(found.get_ref(1)?.as_blob().unwrap_or_default()))
    });
    match sound {
        Ok(true) => Ok(()),
        // A later change of the same batch took it away again.
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(()),
        Ok(false) => {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
            let text = format!("entry {} of the log is not what was written", row.at);
            Err(rusqlite::Error::SqliteFailure(code, Some(text)))
        }
        Err(error) => Err(error),
    }
}

fn append(transaction: &rusqlite::Transaction<'_>, rows: &[LogRow]) -> rusqlite::Result<()> {
    let mut insert =
        transaction.prepare_cached("INSERT OR REPLACE INTO log (at, sum, entry) VALUES (?1, ?2, ?3)")?;
    for row in rows {
        insert.execute(params![sql(row.at), db::checksum(&row.entry), row.entry])?;
    }
    Ok(())
}

/// Indexes stay far below the sign bit.
pub(super) fn sql(index: u64) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_cannot_be_read_back_is_not_acknowledged() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = db::open(&folder.path().join("log.db"), &LOG).unwrap();
        let job = |at| {
            let rows = vec![LogRow { at, entry: b"an entry".to_vec() }];
            [Job { changes: vec![Change::Append(rows)], done: Done::Close }]
        };
        write(&mut connection, &job(1)).unwrap();
        let damage = "CREATE TRIGGER damage AFTER INSERT ON log BEGIN
                      UPDATE log SET entry = x'00' WHERE at = NEW.at; END";
        connection.execute_batch(damage).unwrap();
        let refused = write(&mut connection, &job(2)).unwrap_err().to_string();
        assert!(refused.contains("entry 2"), "{refused}");
        connection.execute_batch("DROP TRIGGER damage").unwrap();
        write(&mut connection, &job(2)).unwrap();
    }
}
