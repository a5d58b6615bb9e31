//! `file:`: files and directories below the upstream's roots.
//!
//! What must hold: content decides, never size or time; a value that looks half written is read once more before it is
//! given; a file system that hangs holds one thread for each object, not one for each attempt.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::AnswerKind;
use holdfast_core::freshness::Outcome;
use holdfast_ops::Tasks;
use parking_lot::Mutex;

use self::read::Missing;
use self::watch::Directories;
use super::{BuildError, content};
use crate::config::UpstreamSettings;
use crate::provider::{Fetched, Pace, Provider, Sink, WatchGuard};
use crate::reference::ObjectKey;
use crate::value::Value;

mod read;
#[cfg(test)]
mod tests;
pub(crate) mod watch;

/// How long changes gather before they are told.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// When something that looks half written is read again.
const SETTLE: Duration = Duration::from_millis(50);
/// How often the watch shows that it lives, and looks anew at which directories matter.
const PULSE: Duration = Duration::from_secs(15);
/// How often a file is read whatever inotify says.
const REREAD: Duration = Duration::from_secs(30);

/// Reads below its roots.
pub struct Files {
    roots: Arc<[PathBuf]>,
    tasks: Tasks,
    directories: Arc<Directories>,
    /// Objects of which a reading has not come back.
    reading: Arc<Mutex<BTreeSet<ObjectKey>>>,
}

impl Files {
    /// From `[upstream.NAME]`.
    ///
    /// # Errors
    /// Without roots.
    pub fn new(name: &str, settings: &UpstreamSettings, tasks: &Tasks) -> Result<Self, BuildError> {
        if settings.roots.is_empty() {
            return Err(BuildError::setting(name, "roots", "give at least one directory"));
        }
        Ok(Self {
            roots: settings.roots.clone().into(),
            tasks: tasks.child("file"),
            directories: Arc::default(),
            reading: Arc::default(),
        })
    }

    /// A relative path starts at the first root.
    fn path(&self, object: &ObjectKey) -> PathBuf {
        let path = Path::new(&object.path);
        self.roots.first().map_or_else(|| path.to_owned(), |root| root.join(path))
    }

    async fn read(&self, object: &ObjectKey) -> Result<Vec<u8>, Missing> {
        if !self.reading.lock().insert(object.clone()) {
            return Err(Missing::Failed(AnswerKind::Unavailable));
        }
        let (reading, key) = (Arc::clone(&self.reading), object.clone());
        let (roots, path) = (Arc::clone(&self.roots), self.path(object));
        let handle = self.tasks.spawn_blocking("read", move || {
            let result = match is_directory(&key) {
                true => read::directory(&roots, &path),
                false => read::file(&roots, &path),
            };
            reading.lock().remove(&key);
            result
        });
        handle.join().await.unwrap_or(Err(Missing::Failed(AnswerKind::Unavailable)))
    }
}

fn is_directory(object: &ObjectKey) -> bool {
    object.path.ends_with('/')
}

#[async_trait]
impl Provider for Files {
    async fn fetch(&self, object: &ObjectKey, held: Option<&Value>) -> Fetched {
        let mut result = self.read(object).await;
        let held = held.map_or(0, |value| value.bytes.len());
        if result.as_ref().is_ok_and(|bytes| bytes.is_empty() || bytes.len() < held) {
            tokio::time::sleep(SETTLE).await;
            result = self.read(object).await;
        }
        match result {
            Ok(bytes) => content::hashed(bytes, false).into(),
            Err(Missing::Absent) => Outcome::Absent.into(),
            Err(Missing::Failed(kind)) => content::failed(kind).into(),
        }
    }

    fn watch(&self, object: &ObjectKey, sink: Arc<dyn Sink>) -> Option<WatchGuard> {
        let debounce =
            object.options.get("debounce").and_then(|text| text.parse::<holdfast_ops::Duration>().ok());
        let debounce = debounce.map_or(DEBOUNCE, holdfast_ops::Duration::get);
        let (path, tasks) = (self.path(object), self.tasks.child("watch"));
        let work = follow(Arc::clone(&self.directories), path, is_directory(object), debounce, sink);
        tasks.spawn_until_cancelled("follow", work);
        Some(WatchGuard::new(tasks.token().drop_guard()))
    }

    fn pace(&self) -> Pace {
        Pace { reread: Some(REREAD), shared_fate: false, ..Pace::default() }
    }
}

async fn follow(
    directories: Arc<Directories>,
    path: PathBuf,
    is_directory: bool,
    debounce: Duration,
    sink: Arc<dyn Sink>,
) {
    let Ok(mut subscription) = directories.subscribe() else {
        // No inotify instance is left: reading every 30 s has to do, and the engine asks for a watch again.
        return sink.lost(AnswerKind::Unavailable);
    };
    if subscription.aim(&path, is_directory).is_err() {
        tracing::info!("a directory cannot be watched; changes there are found by reading only");
    }
    sink.subscribed();
    let dirty = Arc::clone(&subscription.dirty);
    loop {
        let changed = tokio::time::timeout(PULSE, dirty.notified()).await.is_ok();
        if changed {
            quiet(&dirty, debounce).await;
        }
        // Links may lead elsewhere now.
        let _ = subscription.aim(&path, is_directory);
        if changed { sink.changed() } else { sink.alive() }
    }
}

/// Waits until nothing happened for `debounce`, at most ten times as long.
async fn quiet(dirty: &tokio::sync::Notify, debounce: Duration) {
    for _ in 0..10 {
        if tokio::time::timeout(debounce, dirty.notified()).await.is_err() {
            return;
        }
    }
}
