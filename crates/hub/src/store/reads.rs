//! Reading the applied state: a few read-only connections with prepared statements, called in place.
//!
//! A read takes microseconds and never waits for the writer.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::db::{self, OpenError};
use super::{ReadError, Versioned};

const READERS: usize = 8;
const FIRST_KEY: &str = "SELECT key FROM kv WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT 1";

/// The read side of the state.
pub(super) struct Readers {
    connections: Vec<Mutex<Connection>>,
    next: AtomicUsize,
}

impl Readers {
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let open = || db::reader(path).map(Mutex::new).map_err(|error| OpenError::database(path, error));
        let connections = (0..READERS).map(|_| open()).collect::<Result<_, _>>()?;
        Ok(Self { connections, next: AtomicUsize::new(0) })
    }

    pub(super) fn read(&self, key: &str) -> Result<Option<Versioned>, ReadError> {
        let connection = self.pick()?;
        let mut select =
            connection.prepare_cached("SELECT value, version FROM kv WHERE key = ?1").map_err(failed)?;
        select
            .query_row([key.as_bytes()], |row| {
                Ok(Versioned { value: row.get(0)?, version: version(row.get(1)?) })
            })
            .optional()
            .map_err(failed)
    }

    pub(super) fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Versioned)>, ReadError> {
        let connection = self.pick()?;
        let mut select = connection
            .prepare_cached(
                "SELECT key, value, version FROM kv WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3",
            )
            .map_err(failed)?;
        let (start, end) = range(prefix, after);
        let rows = select
            .query_map(params![start, end, sql_limit(limit)], |row| {
                let found = Versioned { value: row.get(1)?, version: version(row.get(2)?) };
                Ok((text(row.get(0)?), found))
            })
            .map_err(failed)?;
        rows.collect::<Result<_, _>>().map_err(failed)
    }

    pub(super) fn scan_keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, ReadError> {
        let connection = self.pick()?;
        let mut select = connection
            .prepare_cached("SELECT key FROM kv WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3")
            .map_err(failed)?;
        let (start, end) = range(prefix, after);
        let rows = select
            .query_map(params![start, end, sql_limit(limit)], |row| row.get(0).map(text))
            .map_err(failed)?;
        rows.collect::<Result<_, _>>().map_err(failed)
    }

    /// One seek for each name: what lies below a folder is skipped, not scanned.
    pub(super) fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, ReadError> {
        let connection = self.pick()?;
        let mut select = connection.prepare_cached(FIRST_KEY).map_err(failed)?;
        let (_, end) = range(prefix, None);
        let mut start = match after {
            Some(name) => past(prefix, name),
            None => prefix.as_bytes().to_vec(),
        };
        let mut names = Vec::new();
        while names.len() < limit {
            let found: Option<Vec<u8>> =
                select.query_row(params![start, end], |row| row.get(0)).optional().map_err(failed)?;
            let Some(key) = found.map(text) else { break };
            let rest = key.strip_prefix(prefix).unwrap_or(&key);
            let name = match rest.split_once('/') {
                Some((folder, _)) => format!("{folder}/"),
                None => rest.to_owned(),
            };
            start = past(prefix, &name);
            if !name.is_empty() && after.is_none_or(|after| name.as_str() > after) {
                names.push(name);
            }
        }
        Ok(names)
    }

    pub(super) fn count(&self, prefix: &str) -> Result<u64, ReadError> {
        let connection = self.pick()?;
        let mut select = connection
            .prepare_cached("SELECT count(*) FROM kv WHERE key >= ?1 AND key < ?2")
            .map_err(failed)?;
        let (start, end) = range(prefix, None);
        select.query_row(params![start, end], |row| row.get(0)).map(version).map_err(failed)
    }

    fn pick(&self) -> Result<MutexGuard<'_, Connection>, ReadError> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let mut all = self.connections.iter().cycle().skip(turn % READERS).take(READERS);
        let first = all.next().ok_or(ReadError::Closed)?;
        if let Some(free) = first.try_lock() {
            return Ok(free);
        }
        Ok(all.find_map(Mutex::try_lock).unwrap_or_else(|| first.lock()))
    }
}

fn failed(error: rusqlite::Error) -> ReadError {
    ReadError::Database(Box::new(error))
}

fn version(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Keys are written as text; a byte that is none shows as such.
fn text(key: Vec<u8>) -> String {
    String::from_utf8(key).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The half-open range of the keys that start with `prefix` and sort after `after`.
fn range(prefix: &str, after: Option<&str>) -> (Vec<u8>, Vec<u8>) {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        // The last byte of a text is never 0xFF.
        Some(last) => *last += 1,
        None => end.push(0xFF),
    }
    let start = match after {
        Some(after) if after >= prefix => [after.as_bytes(), &[0]].concat(),
        _ => prefix.as_bytes().to_vec(),
    };
    (start, end)
}

/// The first key after everything that shows as `name` below `prefix`.
fn past(prefix: &str, name: &str) -> Vec<u8> {
    match name.strip_suffix('/') {
        // '0' follows '/'.
        Some(folder) => [prefix.as_bytes(), folder.as_bytes(), b"0"].concat(),
        None => [prefix.as_bytes(), name.as_bytes(), &[0]].concat(),
    }
}
