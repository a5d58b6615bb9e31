//! Opening the store's SQLite files: settings, format version, structural check.
//!
//! What must hold: a file that is damaged, of another kind or written by a newer version refuses to open, and the
//! error names it. One connection writes to a file; all others only read.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The format that this program writes.
pub(super) const FORMAT: i32 = 1;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A file or folder cannot be used.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The database refused.
    #[error("cannot open {}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// The file was written by a newer version.
    #[error("{} has format {found}; this version reads up to {FORMAT}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format version.
        found: i32,
    },
    /// The file fails its checks.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        what: String,
    },
    /// The rest of the node could not be started.
    #[error("cannot start consensus")]
    Start(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl OpenError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn database(path: &Path, source: rusqlite::Error) -> Self {
        Self::Database { path: path.to_owned(), source }
    }

    pub(super) fn damaged(path: &Path, what: impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.to_string() }
    }
}

/// One kind of file.
pub(super) struct Schema {
    /// Marks the kind of file in its header.
    pub application_id: i32,
    /// The tables.
    pub tables: &'static str,
    /// `FULL` syncs every commit; `NORMAL` syncs at checkpoints.
    pub synchronous: &'static str,
    /// Pages of the write-ahead log before SQLite checkpoints by itself; 0 never.
    pub autocheckpoint: u32,
}

/// Opens the one connection that writes, and checks the file.
pub(super) fn open(path: &Path, schema: &Schema) -> Result<Connection, OpenError> {
    let connection = connect(path, schema).map_err(|error| OpenError::database(path, error))?;
    let found: i32 = pragma(&connection, path, "user_version")?;
    let kind: i32 = pragma(&connection, path, "application_id")?;
    if found > FORMAT {
        return Err(OpenError::Newer { path: path.to_owned(), found });
    }
    if found == 0 && kind == 0 {
        create(&connection, schema).map_err(|error| OpenError::database(path, error))?;
        sync_folder(path.parent().unwrap_or(path))?;
    } else if kind != schema.application_id {
        return Err(OpenError::damaged(path, "it is not a file of this kind"));
    }
    let verdict: String = pragma(&connection, path, "quick_check(1)")?;
    if verdict != "ok" {
        return Err(OpenError::damaged(path, verdict));
    }
    Ok(connection)
}

/// Opens the writing connection without checks: for going on after a failed write.
pub(super) fn connect(path: &Path, schema: &Schema) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", schema.synchronous)?;
    connection.pragma_update(None, "wal_autocheckpoint", schema.autocheckpoint)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// Opens a connection that only reads.
pub(super) fn reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

fn create(connection: &Connection, schema: &Schema) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE; {}; PRAGMA application_id = {}; PRAGMA user_version = {FORMAT}; COMMIT;",
        schema.tables, schema.application_id
    ))
}

fn pragma<T: rusqlite::types::FromSql>(
    connection: &Connection,
    path: &Path,
    name: &str,
) -> Result<T, OpenError> {
    let read = connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0));
    read.map_err(|error| OpenError::database(path, error))
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(folder: &Path) -> Result<(), OpenError> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(|error| OpenError::io(folder, error))
}

/// Bytes of a database with its side files.
pub(super) fn bytes(path: &Path) -> u64 {
    let side = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        fs::metadata(PathBuf::from(name)).map_or(0, |meta| meta.len())
    };
    side("") + side("-wal")
}

/// Encodes a record with its checksum in front.
pub(super) fn seal<T: Serialize>(record: &T) -> Result<Vec<u8>, postcard::Error> {
    let body = postcard::to_stdvec(record)?;
    let mut sealed = Vec::with_capacity(body.len() + 4);
    sealed.extend_from_slice(&checksum(&body).to_le_bytes());
    sealed.extend_from_slice(&body);
    Ok(sealed)
}

/// Checks and decodes what [`seal`] made.
pub(super) fn unseal<T: DeserializeOwned>(sealed: &[u8]) -> Option<T> {
    let (sum, body) = sealed.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*sum) != checksum(body) {
        return None;
    }
    postcard::from_bytes(body).ok()
}

/// CRC-32, against bits that rot; authenticity is the barrier's business.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::state::STATE;
    use crate::store::writer::LOG;

    #[test]
    fn the_log_is_synced_with_every_commit_and_both_files_have_a_write_ahead_log() {
        let folder = tempfile::tempdir().unwrap();
        for (schema, name, synchronous) in [(&LOG, "log.db", 2), (&STATE, "state.db", 1)] {
            let path = folder.path().join(name);
            let connection = open(&path, schema).unwrap();
            assert_eq!(pragma::<String>(&connection, &path, "journal_mode").unwrap(), "wal");
            assert_eq!(pragma::<i32>(&connection, &path, "synchronous").unwrap(), synchronous, "{name}");
            // What goes on after a failed write keeps the same promise.
            let again = connect(&path, schema).unwrap();
            assert_eq!(pragma::<i32>(&again, &path, "synchronous").unwrap(), synchronous, "{name}");
            assert!(
                reader(&path).unwrap().execute_batch("DELETE FROM meta").is_err(),
                "readers cannot write"
            );
        }
    }

    #[test]
    fn a_newer_or_foreign_file_refuses_to_open_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.db");
        drop(open(&path, &LOG).unwrap());
        let foreign = open(&path, &STATE).unwrap_err();
        assert!(matches!(foreign, OpenError::Damaged { .. }) && foreign.to_string().contains("log.db"));
        connect(&path, &LOG).unwrap().pragma_update(None, "user_version", FORMAT + 1).unwrap();
        let newer = open(&path, &LOG).unwrap_err();
        assert!(matches!(newer, OpenError::Newer { .. }) && newer.to_string().contains("log.db"));
    }

    #[test]
    fn a_sealed_record_notices_every_flipped_bit() {
        let sealed = seal(&(7u64, "text")).unwrap();
        assert_eq!(unseal::<(u64, String)>(&sealed), Some((7, "text".to_owned())));
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unseal::<(u64, String)>(&damaged), None, "bit {bit}");
        }
    }
}
