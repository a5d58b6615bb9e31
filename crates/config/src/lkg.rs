//! The last-known-good file: values with which a replica can serve while its upstreams are down at its start.
//!
//! What must hold: the file never outranks a definite answer, which the cells see to; nothing of it can be read without
//! the key, and nothing be changed unseen; a file that cannot be used is set aside with one ERROR and never stops a start.

mod format;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Mono, Wall};
use holdfast_ops::Tasks;
use parking_lot::Mutex;

pub use self::format::{Corrupt, MAX_FILE};
use crate::clock::Clock;
use crate::config::ConfigSettings;
use crate::load::key_file::{self, Key};
use crate::value::Value;

/// The name of the file in `lkg.dir`.
pub const FILE: &str = "last-known-good";
/// How often changes are written at most.
const AFTER_CHANGE: Duration = Duration::from_secs(5);
/// How often new dates are written.
const FOR_DATES: Duration = Duration::from_secs(300);

/// One value of the file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Kept {
    /// The value.
    pub value: Value,
    /// When the upstream last confirmed it.
    pub resolved_at: Wall,
    /// The digest of the reference that it came from.
    pub ref_digest: [u8; 32],
}

/// All values of the file, by the name of their binding.
pub type Records = BTreeMap<Arc<str>, Kept>;

/// What is to be kept, and the number of the last visible change.
pub trait Source: Send + Sync + 'static {
    /// Everything that should stand in the file now.
    fn records(&self) -> Records;
    /// A number that moves whenever a value changes.
    fn changes(&self) -> u64;
}

/// Reads and writes the file. Clones are the same.
#[derive(Clone)]
pub struct Keeper(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    key: Key,
    fleet: String,
    max_age: Duration,
    source: Arc<dyn Source>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    last: Mutex<Last>,
}

/// What was written last.
#[derive(Default)]
struct Last {
    records: Records,
    changes: Option<u64>,
    at: Mono,
    /// Whether the failure to write was told.
    failing: bool,
}

impl Keeper {
    /// As `lkg.` says; none when `lkg.dir` is not set, or, with one ERROR, when the key cannot be read.
    pub fn open(
        settings: &ConfigSettings,
        source: Arc<dyn Source>,
        clock: Arc<dyn Clock>,
        tasks: &Tasks,
    ) -> Option<Self> {
        let dir = settings.lkg.dir.clone()?;
        let file = settings.lkg.key_file.as_deref().unwrap_or(Path::new(""));
        let key = key_file::read(file).inspect_err(|error| {
            let error: &dyn std::error::Error = error;
            tracing::error!(error, "the key of the last-known-good file cannot be used; nothing is kept");
        });
        Some(Self(Arc::new(Inner {
            dir,
            key: key.ok()?,
            fleet: settings.fleet.id.clone(),
            max_age: settings.lkg.max_age.get(),
            source,
            clock,
            tasks: tasks.clone(),
            last: Mutex::default(),
        })))
    }

    /// What the file holds and may still be used. A file that cannot be used is moved aside.
    pub fn read(&self) -> Records {
        let path = self.0.dir.join(FILE);
        let sealed = match read_file(&path) {
            Ok(sealed) => sealed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Records::new(),
            Err(error) => {
                tracing::error!(%error, "the last-known-good file cannot be read");
                return Records::new();
            }
        };
        match format::open(&self.0.key, &self.0.fleet, &sealed) {
            Ok(records) => self.0.usable(records),
            Err(error) => {
                let aside = self.0.dir.join(format!("{FILE}.bad"));
                let moved = std::fs::rename(&path, &aside).is_ok();
                tracing::error!(%error, moved, "the last-known-good file cannot be used; it was set aside");
                Records::new()
            }
        }
    }

    /// Writes whenever it is time to, until it is dropped.
    pub async fn keep(self) {
        loop {
            tokio::time::sleep(AFTER_CHANGE).await;
            self.write_if_due().await;
        }
    }

    /// Writes now, whatever was written before.
    pub async fn write_last(&self) {
        let (records, changes) = (self.0.usable(self.0.source.records()), self.0.source.changes());
        self.write(records, changes).await;
    }

    async fn write_if_due(&self) {
        let now = self.0.clock.now().mono;
        let changes = self.0.source.changes();
        let (quiet, dated) = {
            let last = self.0.last.lock();
            (last.changes == Some(changes), now.since(last.at) < FOR_DATES)
        };
        if quiet && dated {
            return;
        }
        let records = self.0.usable(self.0.source.records());
        let same = {
            let mut last = self.0.last.lock();
            let same = last.changes.is_some() && is_same(&last.records, &records, dated);
            if same {
                last.changes = Some(changes);
            }
            same
        };
        if !same {
            self.write(records, changes).await;
        }
    }

    async fn write(&self, records: Records, changes: u64) {
        let inner = Arc::clone(&self.0);
        let work = move || {
            let written = inner.store(&records);
            let mut last = inner.last.lock();
            match written {
                Ok(()) => {
                    let at = inner.clock.now().mono;
                    *last = Last { records, changes: Some(changes), at, failing: false };
                }
                // Tried again in 5 s; told once.
                Err(error) if !std::mem::replace(&mut last.failing, true) => {
                    tracing::warn!(%error, "the last-known-good file cannot be written");
                }
                Err(_) => {}
            }
        };
        self.0.tasks.spawn_blocking("write-last-known-good", work).join().await;
    }
}

impl Inner {
    /// Without what is too old, and what has an end of its own.
    fn usable(&self, mut records: Records) -> Records {
        let now = self.clock.now().wall;
        records.retain(|_, kept| {
            let age = now.since(kept.resolved_at);
            kept.value.not_after.is_none() && age <= self.max_age
        });
        records
    }

    fn store(&self, records: &Records) -> io::Result<()> {
        let sealed = format::seal(&self.key, &self.fleet, records).map_err(io::Error::other)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let new = self.dir.join(format!("{FILE}.new"));
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&sealed)?;
        file.sync_all()?;
        std::fs::rename(&new, self.dir.join(FILE))?;
        File::open(&self.dir)?.sync_all()
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut sealed = Vec::new();
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut sealed)?;
    Ok(sealed)
}

/// Whether two sets hold the same values; their dates count unless `but_dates`.
fn is_same(a: &Records, b: &Records, but_dates: bool) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|((name, a), (other, b))| {
            let dates = but_dates || a.resolved_at == b.resolved_at;
            name == other && a.value == b.value && a.ref_digest == b.ref_digest && dates
        })
}
