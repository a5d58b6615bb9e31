//! The log of consensus: entries and the vote in SQLite, recent entries in memory too.
//!
//! What must hold: an entry or a vote is acknowledged only once it is durable; there are no holes; entries that
//! the state still depends on are not purged before the state itself is durable.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{AnyError, EntryPayload, LogState, OptionalSend, RaftLogReader, StorageIOError};
use parking_lot::{Mutex, RwLock};
use rusqlite::{Connection, OptionalExtension as _};

use super::db::{self, OpenError};
use super::health::Health;
use super::state::StateHandle;
use super::types::{Command, Entry, LogId, StorageError, TypeConfig, Vote};
use super::writer::{Change, Done, Job, LOG, LogRow, LogWriter, sql};

/// Bounds of the entries in memory, by number and by encoded bytes.
const CACHE_ENTRIES: usize = 20_000;
const CACHE_BYTES: usize = 32 << 20;
/// The most encoded bytes that one message to a follower carries, unless a single entry is larger.
const MESSAGE_BYTES: usize = 2 << 20;

/// The log. Clones share it.
#[derive(Clone)]
pub(super) struct LogStore {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    writer: LogWriter,
    reader: Mutex<Connection>,
    cache: RwLock<Cache>,
    vote: Mutex<Option<Vote>>,
    /// The newest committed index that the library named; for display.
    committed: AtomicU64,
    state: StateHandle,
}

#[derive(Default)]
struct Cache {
    entries: VecDeque<(Entry, usize)>,
    bytes: usize,
    last: Option<LogId>,
    purged: Option<LogId>,
    /// The newest term that began in this log, and the index at which it did.
    began: Option<(u64, u64)>,
    /// The newest proposal of this process that reached the log.
    proposed: u64,
    origin: u64,
}

impl Cache {
    fn first(&self) -> Option<u64> {
        self.entries.front().map(|(entry, _)| entry.log_id.index)
    }

    fn push(&mut self, entry: Entry, size: usize) {
        let id = entry.log_id;
        if self.began.is_none_or(|(term, _)| term < id.leader_id.term) {
            self.began = Some((id.leader_id.term, id.index));
        }
        if let EntryPayload::Normal(Command::Group { origin, number, .. }) = &entry.payload
            && *origin == self.origin
        {
            self.proposed = self.proposed.max(*number);
        }
        self.last = Some(id);
        self.bytes += size;
        self.entries.push_back((entry, size));
        while self.entries.len() > CACHE_ENTRIES || (self.bytes > CACHE_BYTES && self.entries.len() > 1) {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        if let Some((_, size)) = self.entries.pop_front() {
            self.bytes -= size;
        }
    }

    fn truncate(&mut self, from: u64) {
        while self.entries.back().is_some_and(|(entry, _)| entry.log_id.index >= from) {
            if let Some((_, size)) = self.entries.pop_back() {
                self.bytes -= size;
            }
        }
        self.began = self.began.filter(|(_, at)| *at < from);
    }

    /// The entries of `start..end`, when all that exist of them are in memory.
    fn range(&self, start: u64, end: u64) -> Option<Vec<Entry>> {
        let end = end.min(self.last.map_or(0, |last| last.index + 1));
        let start = start.max(self.purged.map_or(0, |purged| purged.index + 1));
        if start >= end {
            return Some(Vec::new());
        }
        let first = self.first().filter(|first| *first <= start)?;
        let (skip, take) = (usize::try_from(start - first).ok()?, usize::try_from(end - start).ok()?);
        Some(self.entries.iter().skip(skip).take(take).map(|(entry, _)| entry.clone()).collect())
    }
}

impl LogStore {
    /// Opens the log at `path`, checking every entry. The second part is the body of the writer's thread.
    pub(super) fn open(
        path: &Path,
        origin: u64,
        state: StateHandle,
        health: Arc<Health>,
    ) -> Result<(Self, impl FnOnce() + Send + 'static), OpenError> {
        let connection = db::open(path, &LOG)?;
        let mut cache = Cache { origin, purged: read_meta(&connection, path, "purged")?, ..Cache::default() };
        load(&connection, path, &mut cache)?;
        let own: Option<u64> = read_meta(&connection, path, "node")?;
        let mut vote: Option<Vote> = read_meta(&connection, path, "vote")?;
        if let Some(vote) = vote.as_mut().filter(|vote| own.is_some() && vote.leader_id.voted_for == own) {
            // The library would go on leading in the term of the process before, with a state that may lack what
            // that one acknowledged. A process that wants to lead wins a term of its own.
            vote.committed = false;
        }
        let reader = db::reader(path).map_err(|error| OpenError::database(path, error))?;
        let (writer, thread) = LogWriter::new(path.to_owned(), connection, health);
        let shared = Shared {
            path: path.to_owned(),
            writer,
            reader: Mutex::new(reader),
            cache: RwLock::new(cache),
            vote: Mutex::new(vote),
            committed: AtomicU64::new(0),
            state,
        };
        Ok((Self { shared: Arc::new(shared) }, thread))
    }

    /// The number of this node, once it has one.
    pub(super) fn node_id(&self) -> Result<Option<u64>, OpenError> {
        read_meta(&self.shared.reader.lock(), &self.shared.path, "node")
    }

    /// Records the number of this node; `false` when the log is closed.
    pub(super) async fn set_node_id(&self, id: u64) -> bool {
        match db::seal(&id) {
            Ok(value) => self.shared.writer.write(vec![Change::Meta("node", value)]).await,
            Err(_) => false,
        }
    }

    /// The index at which `term` began here.
    pub(super) fn began(&self, term: u64) -> Option<u64> {
        self.shared.cache.read().began.filter(|(newest, _)| *newest == term).map(|(_, at)| at)
    }

    /// The newest proposal of this process that reached the log, whatever became of it.
    pub(super) fn proposed(&self) -> u64 {
        self.shared.cache.read().proposed
    }

    /// The last entry.
    pub(super) fn last(&self) -> Option<LogId> {
        self.shared.cache.read().last
    }

    /// The newest committed index.
    pub(super) fn committed(&self) -> u64 {
        self.shared.committed.load(Ordering::Relaxed)
    }

    /// Ends the writer once what waits is written.
    pub(super) async fn close(&self) {
        self.shared.writer.close().await;
    }

    /// How many commits, and so syncs, the log made.
    pub(super) fn commits(&self) -> u64 {
        self.shared.writer.commits()
    }

    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        db::bytes(&self.shared.path)
    }

    #[allow(
        clippy::result_large_err,
        reason = "the library's error type; made only when the file is damaged"
    )]
    fn read_disk(&self, start: u64, end: u64, max_bytes: usize) -> Result<Vec<Entry>, StorageError> {
        let read = || -> rusqlite::Result<Result<Vec<Entry>, u64>> {
            let reader = self.shared.reader.lock();
            let mut select = reader
                .prepare_cached("SELECT at, sum, entry FROM log WHERE at >= ?1 AND at < ?2 ORDER BY at")?;
            let mut rows = select.query([sql(start), sql(end)])?;
            let (mut entries, mut bytes) = (Vec::new(), 0);
            while let Some(row) = rows.next()? {
                let (at, sum): (i64, u32) = (row.get(0)?, row.get(1)?);
                let encoded = row.get_ref(2)?.as_blob()?;
                bytes += encoded.len();
                if bytes > max_bytes && !entries.is_empty() {
                    break;
                }
                match decode(sum, encoded) {
                    Some(entry) => entries.push(entry),
                    None => return Ok(Err(u64::try_from(at).unwrap_or(0))),
                }
            }
            Ok(Ok(entries))
        };
        match read() {
            Ok(Ok(entries)) => Ok(entries),
            Ok(Err(at)) => {
                let what =
                    io::Error::other(format!("{} is damaged at entry {at}", self.shared.path.display()));
                Err(StorageIOError::read_log_at_index(at, AnyError::new(&what)).into())
            }
            Err(error) => Err(StorageIOError::read_logs(AnyError::new(&error)).into()),
        }
    }

    async fn write(&self, changes: Vec<Change>) -> Result<(), StorageError> {
        if self.shared.writer.write(changes).await { Ok(()) } else { Err(closed()) }
    }
}

fn closed() -> StorageError {
    StorageIOError::write_logs(AnyError::error("the store is closed")).into()
}

fn encoding(error: &postcard::Error) -> StorageError {
    StorageIOError::write_logs(AnyError::new(error)).into()
}

fn decode(sum: u32, encoded: &[u8]) -> Option<Entry> {
    (db::checksum(encoded) == sum).then(|| postcard::from_bytes(encoded).ok()).flatten()
}

fn load(connection: &Connection, path: &Path, cache: &mut Cache) -> Result<(), OpenError> {
    let database = |error| OpenError::database(path, error);
    let mut select = connection.prepare("SELECT at, sum, entry FROM log ORDER BY at").map_err(database)?;
    let mut rows = select.query([]).map_err(database)?;
    let mut expected = cache.purged.map(|purged| purged.index + 1);
    cache.last = cache.purged;
    while let Some(row) = rows.next().map_err(database)? {
        let at: i64 = row.get(0).map_err(database)?;
        let at = u64::try_from(at).unwrap_or(0);
        let sum = row.get(1).map_err(database)?;
        let value = row.get_ref(2).map_err(database)?;
        let encoded = value.as_blob().map_err(|error| OpenError::damaged(path, error))?;
        let entry = decode(sum, encoded)
            .ok_or_else(|| OpenError::damaged(path, format!("entry {at} fails its checksum")))?;
        if entry.log_id.index != at || expected.is_some_and(|expected| expected != at) {
            return Err(OpenError::damaged(path, format!("entry {at} is out of place")));
        }
        expected = Some(at + 1);
        cache.push(entry, encoded.len());
    }
    Ok(())
}

fn read_meta<T: serde::de::DeserializeOwned>(
    connection: &Connection,
    path: &Path,
    name: &str,
) -> Result<Option<T>, OpenError> {
    let value: Option<Vec<u8>> = connection
        .query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get(0))
        .optional()
        .map_err(|error| OpenError::database(path, error))?;
    value
        .map(|sealed| {
            db::unseal(&sealed)
                .ok_or_else(|| OpenError::damaged(path, format!("record {name} fails its checksum")))
        })
        .transpose()
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(at) => *at,
        Bound::Excluded(at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(at) => at.saturating_add(1),
        Bound::Excluded(at) => *at,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        let (start, end) = bounds(&range);
        let cached = self.shared.cache.read().range(start, end);
        match cached {
            Some(entries) => Ok(entries),
            None => self.read_disk(start, end, usize::MAX),
        }
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, StorageError> {
        {
            let cache = self.shared.cache.read();
            if let Some(first) = cache.first().filter(|first| *first <= start) {
                let skip = usize::try_from(start - first).unwrap_or(usize::MAX);
                let (mut entries, mut bytes) = (Vec::new(), 0);
                for (entry, size) in cache.entries.iter().skip(skip) {
                    bytes += size;
                    let full = bytes > MESSAGE_BYTES && !entries.is_empty();
                    if full || entry.log_id.index >= end {
                        break;
                    }
                    entries.push(entry.clone());
                }
                return Ok(entries);
            }
        }
        self.read_disk(start, end, MESSAGE_BYTES)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError> {
        let cache = self.shared.cache.read();
        Ok(LogState { last_purged_log_id: cache.purged, last_log_id: cache.last })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let value = db::seal(vote).map_err(|error| encoding(&error))?;
        self.write(vec![Change::Meta("vote", value)]).await?;
        *self.shared.vote.lock() = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(*self.shared.vote.lock())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let index = committed.map_or(0, |committed| committed.index);
        self.shared.committed.fetch_max(index, Ordering::Relaxed);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<TypeConfig>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut rows = Vec::new();
        {
            let mut cache = self.shared.cache.write();
            for entry in entries {
                let encoded = postcard::to_stdvec(&entry).map_err(|error| encoding(&error))?;
                let at = entry.log_id.index;
                cache.push(entry, encoded.len());
                rows.push(LogRow { at, entry: encoded });
            }
        }
        let job = Job { changes: vec![Change::Append(rows)], done: Done::Library(callback) };
        if self.shared.writer.send(job).await { Ok(()) } else { Err(closed()) }
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        {
            let mut cache = self.shared.cache.write();
            cache.truncate(log_id.index);
            cache.last = None;
        }
        self.write(vec![Change::Truncate(log_id.index)]).await?;
        let kept = self.shared.cache.read().entries.back().map(|(entry, _)| entry.log_id);
        let last = match kept {
            Some(last) => Some(last),
            None => self.read_disk(log_id.index.saturating_sub(1), log_id.index, 1)?.pop().map(|e| e.log_id),
        };
        let mut cache = self.shared.cache.write();
        cache.last = last.or(cache.purged);
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        if !self.shared.state.make_durable(log_id.index).await {
            return Err(closed());
        }
        let value = db::seal(&log_id).map_err(|error| encoding(&error))?;
        self.write(vec![Change::Purge(log_id.index), Change::Meta("purged", value)]).await?;
        let mut cache = self.shared.cache.write();
        cache.purged = Some(log_id);
        cache.last = cache.last.max(Some(log_id));
        while cache.first().is_some_and(|first| first <= log_id.index) {
            cache.pop_front();
        }
        Ok(())
    }
}
