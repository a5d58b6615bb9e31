//! The applied state: one SQLite file, one thread that writes it, and the library's view of both.
//!
//! What must hold: a run of entries is applied in one transaction together with the index it reaches; hooks run
//! after that and before the writers are answered. The state is not synced at every commit: after a power cut it
//! may be a little behind, and the log, which is only purged up to what was synced, brings it forward again.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_ops::Tasks;
use openraft::storage::RaftStateMachine;
use openraft::{AnyError, OptionalSend, RaftSnapshotBuilder, Snapshot, StorageIOError};
use parking_lot::{Mutex, RwLock};
use rusqlite::{Connection, TransactionBehavior, params};
use tokio::io::AsyncSeekExt as _;
use tokio::sync::{mpsc, oneshot};

use super::AppliedHook;
use super::apply::{self, Changed, Head};
use super::db::{self, OpenError, Schema};
use super::health::Health;
use super::image::{self, Image, ImageError};
use super::reads::Readers;
use super::types::{Entry, LogId, Membership, Reply, SnapshotMeta, StorageError, TypeConfig};

pub(super) const STATE: Schema = Schema {
    application_id: 0x4846_5354,
    tables: "CREATE TABLE kv (key BLOB PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL) STRICT;
             CREATE TABLE staged (key BLOB PRIMARY KEY, value BLOB NOT NULL) STRICT;
             CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID",
    synchronous: "NORMAL",
    autocheckpoint: 0,
};

/// Bytes of the write-ahead log after which the thread checkpoints, once it has answered.
const CHECKPOINT_BYTES: u64 = 8 << 20;
const QUEUE: usize = 64;
/// Pause before an image is tried again.
const IMAGE_RETRY: Duration = Duration::from_secs(5);

/// Told, on the state's thread, that everything up to an index is applied.
pub(super) type AppliedListener = Box<dyn Fn(u64) + Send + Sync>;

enum Job {
    Apply(Vec<Entry>, oneshot::Sender<Vec<Reply>>),
    Install(PathBuf, Box<SnapshotMeta>, oneshot::Sender<Result<(), ImageError>>),
    Checkpoint(oneshot::Sender<()>),
    Close,
}

/// The state. Clones share it.
#[derive(Clone)]
pub(super) struct StateHandle {
    shared: Arc<Shared>,
    /// Not shared with the thread: it ends when the last handle is gone.
    jobs: mpsc::Sender<Job>,
}

struct Shared {
    path: PathBuf,
    images: PathBuf,
    readers: Readers,
    hooks: RwLock<Vec<AppliedHook>>,
    listener: Mutex<Option<AppliedListener>>,
    head: RwLock<Head>,
    durable: AtomicU64,
    current: Mutex<Option<(SnapshotMeta, PathBuf)>>,
    tasks: Tasks,
}

impl StateHandle {
    /// Opens the state in `folder` and starts its thread.
    pub(super) fn open(folder: &Path, health: Arc<Health>, tasks: &Tasks) -> Result<Self, OpenError> {
        let path = folder.join("state.db");
        let images = folder.join("images");
        fs::create_dir_all(&images).map_err(|error| OpenError::io(&images, error))?;
        let connection = db::open(&path, &STATE)?;
        let head =
            Head::read(&connection).map_err(|error| OpenError::damaged(&path, error))?.unwrap_or_default();
        let current = newest_image(&images)?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let durable = head.applied.map_or(0, |applied| applied.index);
        let shared = Arc::new(Shared {
            readers: Readers::open(&path)?,
            path,
            images,
            hooks: RwLock::default(),
            listener: Mutex::default(),
            head: RwLock::new(head),
            // What was read at opening may not be synced; the first checkpoint makes it so.
            durable: AtomicU64::new(0),
            current: Mutex::new(current),
            tasks: tasks.clone(),
        });
        tracing::debug!(applied = durable, "opened the state");
        let thread = Writer { shared: Arc::clone(&shared), connection: Some(connection), health };
        tasks
            .spawn_thread("store-state", move || thread.run(queue))
            .map_err(|error| OpenError::Start(Box::new(error)))?;
        Ok(Self { shared, jobs })
    }

    pub(super) fn readers(&self) -> &Readers {
        &self.shared.readers
    }

    pub(super) fn head(&self) -> Head {
        self.shared.head.read().clone()
    }

    pub(super) fn applied(&self) -> Option<LogId> {
        self.shared.head.read().applied
    }

    pub(super) fn add_hook(&self, hook: AppliedHook) {
        self.shared.hooks.write().push(hook);
    }

    pub(super) fn listen(&self, listener: AppliedListener) {
        *self.shared.listener.lock() = Some(listener);
    }

    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        let image = self.shared.current.lock().as_ref().map(|(_, path)| path.clone());
        db::bytes(&self.shared.path)
            + image.and_then(|path| fs::metadata(path).ok()).map_or(0, |meta| meta.len())
    }

    /// Returns once everything that is applied up to `index` survives a power cut; `false` when the state closed.
    pub(super) async fn make_durable(&self, index: u64) -> bool {
        if self.shared.durable.load(Ordering::Acquire) >= index {
            return true;
        }
        let (done, durable) = oneshot::channel();
        self.jobs.send(Job::Checkpoint(done)).await.is_ok() && durable.await.is_ok()
    }

    /// Writes an image of the applied state to `path`.
    pub(super) async fn save_image(&self, path: PathBuf) -> Result<Head, ImageError> {
        let state = self.shared.path.clone();
        let written = self.shared.tasks.spawn_blocking("store-image", move || {
            let mut connection = db::reader(&state).map_err(ImageError::State)?;
            image::write(&mut connection, &path)
        });
        let closed = || ImageError::State(rusqlite::Error::InvalidQuery);
        written.join().await.unwrap_or_else(|| Err(closed()))
    }

    /// Ends the thread once what waits is done.
    pub(super) async fn close(&self) {
        drop(self.jobs.send(Job::Close).await);
        self.jobs.closed().await;
    }

    async fn build(&self) -> Result<(SnapshotMeta, PathBuf), ImageError> {
        let id = format!("image-{}", holdfast_ops::rand::hex(8));
        let path = self.shared.images.join(format!("{id}.hfi"));
        let head = self.save_image(path.clone()).await?;
        let meta =
            SnapshotMeta { last_log_id: head.applied, last_membership: head.membership, snapshot_id: id };
        self.replace_image(meta.clone(), path.clone());
        Ok((meta, path))
    }

    fn replace_image(&self, meta: SnapshotMeta, path: PathBuf) {
        let before = self.shared.current.lock().replace((meta, path.clone()));
        if let Some((_, old)) = before
            && old != path
        {
            drop(fs::remove_file(old));
        }
    }

    fn incoming(&self) -> PathBuf {
        self.shared.images.join("incoming.part")
    }
}

/// The image that the last run left; others are remains of a crash.
fn newest_image(folder: &Path) -> Result<Option<(SnapshotMeta, PathBuf)>, OpenError> {
    let mut newest: Option<(SnapshotMeta, PathBuf)> = None;
    let entries = fs::read_dir(folder).map_err(|error| OpenError::io(folder, error))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|end| end != "hfi") {
            drop(fs::remove_file(&path));
            continue;
        }
        let (head, _) = image::verify(&path).map_err(|error| OpenError::damaged(&path, error))?;
        let id = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let meta =
            SnapshotMeta { last_log_id: head.applied, last_membership: head.membership, snapshot_id: id };
        match &newest {
            Some((kept, _)) if kept.last_log_id >= meta.last_log_id => drop(fs::remove_file(&path)),
            _ => {
                if let Some((_, older)) = newest.replace((meta, path)) {
                    drop(fs::remove_file(older));
                }
            }
        }
    }
    Ok(newest)
}

struct Writer {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    health: Arc<Health>,
}

impl Writer {
    fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        while let Some(job) = queue.blocking_recv() {
            let done = match job {
                Job::Apply(entries, reply) => self.apply(&entries, reply),
                Job::Install(path, meta, reply) => self.install(&path, &meta, reply),
                Job::Checkpoint(reply) => self.checkpoint().map(|()| _ = reply.send(())),
                Job::Close => {
                    self.checkpoint();
                    return;
                }
            };
            if done.is_none() {
                return;
            }
            if queue.is_empty() && self.wal_bytes() > CHECKPOINT_BYTES && self.checkpoint().is_none() {
                return;
            }
        }
    }

    fn apply(&mut self, entries: &[Entry], reply: oneshot::Sender<Vec<Reply>>) -> Option<()> {
        let before = self.shared.head.read().clone();
        let (head, changed, replies) = self.persist("state", |connection| {
            let (mut head, mut changed) = (before.clone(), Changed::default());
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let replies = apply::entries(&transaction, &mut head, entries, &mut changed)?;
            transaction.commit()?;
            Ok((head, changed, replies))
        })?;
        self.publish(head, &changed);
        drop(reply.send(replies));
        Some(())
    }

    fn install(
        &mut self,
        path: &Path,
        meta: &SnapshotMeta,
        reply: oneshot::Sender<Result<(), ImageError>>,
    ) -> Option<()> {
        if let Err(error) = image::verify(path) {
            drop(reply.send(Err(error)));
            return Some(());
        }
        let installed = self.persist("state", |connection| match replace(connection, path, meta) {
            Ok(head) => Ok(Ok(head)),
            Err(ImageError::State(error)) => Err(error),
            Err(error) => Ok(Err(error)),
        })?;
        match installed {
            Ok(head) => {
                self.publish(head, &Changed { everything: true, ..Changed::default() });
                // The library drops its log up to here as soon as it is told.
                self.checkpoint()?;
                drop(reply.send(Ok(())));
            }
            Err(error) => drop(reply.send(Err(error))),
        }
        Some(())
    }

    fn publish(&self, head: Head, changed: &Changed) {
        let index = head.applied.map_or(0, |applied| applied.index);
        *self.shared.head.write() = head;
        if changed.everything || !changed.keys.is_empty() {
            let keys = if changed.everything { &Default::default() } else { &changed.keys };
            let hooks = self.shared.hooks.read().clone();
            hooks.iter().for_each(|hook| hook(keys));
        }
        if let Some(listener) = self.shared.listener.lock().as_ref() {
            listener(index);
        }
    }

    fn checkpoint(&mut self) -> Option<()> {
        let index = self.shared.head.read().applied.map_or(0, |applied| applied.index);
        let path = self.shared.path.clone();
        self.persist("state", |connection| {
            connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
            sync(&path).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
        })?;
        self.shared.durable.fetch_max(index, Ordering::AcqRel);
        Some(())
    }

    fn persist<T>(
        &mut self,
        what: &'static str,
        mut write: impl FnMut(&mut Connection) -> rusqlite::Result<T>,
    ) -> Option<T> {
        let (connection, path) = (&mut self.connection, &self.shared.path);
        self.health.persist(what, || {
            let mut open = match connection.take() {
                Some(open) => open,
                None => db::connect(path, &STATE)?,
            };
            let value = write(&mut open)?;
            *connection = Some(open);
            Ok::<_, rusqlite::Error>(value)
        })
    }

    fn wal_bytes(&self) -> u64 {
        fs::metadata(wal(&self.shared.path)).map_or(0, |meta| meta.len())
    }
}

fn wal(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

fn sync(path: &Path) -> std::io::Result<()> {
    match File::open(wal(path)) {
        Ok(file) => file.sync_data()?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    File::open(path)?.sync_data()
}

fn replace(connection: &mut Connection, path: &Path, meta: &SnapshotMeta) -> Result<Head, ImageError> {
    let state = ImageError::State;
    let mut image = Image::open(path)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(state)?;
    transaction.execute_batch("DELETE FROM kv; DELETE FROM staged").map_err(state)?;
    while let Some(row) = image.next_row()? {
        let version = i64::try_from(row.version).unwrap_or(i64::MAX);
        if row.staged {
            transaction
                .prepare_cached("INSERT INTO staged (key, value) VALUES (?1, ?2)")
                .and_then(|mut insert| insert.execute(params![row.key, row.value]))
                .map_err(state)?;
        } else {
            transaction
                .prepare_cached("INSERT INTO kv (key, version, value) VALUES (?1, ?2, ?3)")
                .and_then(|mut insert| insert.execute(params![row.key, version, row.value]))
                .map_err(state)?;
        }
    }
    let mut head = image.head.clone();
    head.applied = meta.last_log_id;
    head.take_membership(meta.last_membership.clone());
    head.write(&transaction).map_err(state)?;
    transaction.commit().map_err(state)?;
    Ok(head)
}

fn closed() -> StorageError {
    StorageIOError::write_state_machine(AnyError::error("the store is closed")).into()
}

fn snapshot_error(error: &ImageError) -> StorageError {
    StorageIOError::read_snapshot(None, AnyError::new(error)).into()
}

/// Makes `path` the durable content of `file`, which is mostly that very file.
async fn own_file(file: &mut tokio::fs::File, path: &Path) -> std::io::Result<()> {
    file.sync_all().await?;
    let (given, named) = (file.metadata().await?, tokio::fs::metadata(path).await?);
    if (given.dev(), given.ino()) == (named.dev(), named.ino()) {
        return Ok(());
    }
    file.rewind().await?;
    let mut own = tokio::fs::File::create(path).await?;
    tokio::io::copy(file, &mut own).await?;
    own.sync_all().await
}

async fn open_file(path: &Path) -> Result<Box<tokio::fs::File>, StorageError> {
    let opened = tokio::fs::File::open(path).await;
    opened.map(Box::new).map_err(|error| StorageIOError::read_snapshot(None, AnyError::new(&error)).into())
}

impl RaftSnapshotBuilder<TypeConfig> for StateHandle {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, StorageError> {
        // The log up to here may be purged once this returns.
        if !self.make_durable(self.applied().map_or(0, |applied| applied.index)).await {
            return Err(closed());
        }
        let mut warned = false;
        loop {
            match self.build().await {
                Ok((meta, path)) => return Ok(Snapshot { meta, snapshot: open_file(&path).await? }),
                // The library would take the error for the end of the node; without an image only the log grows.
                Err(error @ ImageError::Io { .. }) if !self.shared.tasks.is_cancelled() => {
                    if !warned {
                        tracing::warn!(%error, "cannot write a state image; trying again every 5 s");
                        warned = true;
                    }
                    tokio::time::sleep(IMAGE_RETRY).await;
                }
                Err(error) => return Err(snapshot_error(&error)),
            }
        }
    }
}

impl RaftStateMachine<TypeConfig> for StateHandle {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), StorageError> {
        let head = self.head();
        Ok((head.applied, head.membership))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Reply>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let (reply, replies) = oneshot::channel();
        let job = Job::Apply(entries.into_iter().collect(), reply);
        self.jobs.send(job).await.map_err(|_| closed())?;
        replies.await.map_err(|_| closed())
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<tokio::fs::File>, StorageError> {
        let opened = tokio::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(self.incoming())
            .await;
        opened
            .map(Box::new)
            .map_err(|error| StorageIOError::write_snapshot(None, AnyError::new(&error)).into())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        mut snapshot: Box<tokio::fs::File>,
    ) -> Result<(), StorageError> {
        let keep = |error: std::io::Error| -> StorageError {
            StorageIOError::write_snapshot(None, AnyError::new(&error)).into()
        };
        own_file(&mut snapshot, &self.incoming()).await.map_err(keep)?;
        // The name comes from a peer.
        let id = &meta.snapshot_id;
        if !id.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
            return Err(keep(std::io::ErrorKind::InvalidInput.into()));
        }
        let path = self.shared.images.join(format!("{id}.hfi"));
        tokio::fs::rename(self.incoming(), &path).await.map_err(keep)?;
        let (reply, installed) = oneshot::channel();
        let job = Job::Install(path.clone(), Box::new(meta.clone()), reply);
        self.jobs.send(job).await.map_err(|_| closed())?;
        installed.await.map_err(|_| closed())?.map_err(|error| snapshot_error(&error))?;
        self.replace_image(meta.clone(), path);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<TypeConfig>>, StorageError> {
        let current = self.shared.current.lock().clone();
        match current {
            Some((meta, path)) => Ok(Some(Snapshot { meta, snapshot: open_file(&path).await? })),
            None => Ok(None),
        }
    }
}
