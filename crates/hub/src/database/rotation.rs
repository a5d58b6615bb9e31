//! Rotation of static roles: write-ahead record, then the database, then the new state.
//!
//! What must hold: a password that the database may have accepted is in the store before it is sent; there is one
//! such record a role; the queue is an index of the store ordered by time, read each second by the active node; a
//! database that does not answer holds up the roles of no other.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use holdfast_core::Term;
use holdfast_dbdriver::{Call, Change, DriverError, UpdateUser};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::instances::Instance;
use super::statics::{self, StaticRole};
use super::{connection, passwords, paths};
use crate::error::ApiError;
use crate::hub::Hub;
use crate::lease::Wall;
use crate::storage::{Storage, StorageError, Stored, Txn};

const DUE: &str = "dbrotate/due/";
const RECORDS: &str = "dbrotate/record/";
const TICK: Duration = Duration::from_secs(1);
/// A rotation that failed is tried again after this time.
const AGAIN: Duration = Duration::from_secs(10);
/// Rotations at once; the rest of the queue waits.
const AT_ONCE: usize = 64;
/// Rotations at once of the roles of one connection.
const AT_ONCE_EACH: usize = 8;
/// Entries of the index that one read returns: few, since most of the time nothing is due, then more.
const PAGES: [usize; 3] = [32, 1000, 10_000];
/// How often another password is tried when the database's rules refuse one.
const CANDIDATES: u32 = 3;
/// A role is late when its rotation is due for longer than this.
const LATE: Duration = Duration::from_secs(5);

/// The write-ahead record: a password that the database may have by now.
#[derive(Clone, Deserialize, Serialize)]
pub struct Candidate {
    /// The password.
    pub password: String,
    /// When it was made.
    pub at: Wall,
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Candidate").field("at", &self.at).finish_non_exhaustive()
    }
}

/// A place in the index of rotations.
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
struct Entry {
    mount_uuid: String,
    name: String,
    /// Empty in an index of before there were places per connection.
    #[serde(default)]
    config_id: String,
}

/// Why a rotation did not come to its end.
#[derive(Debug)]
pub enum Failed {
    /// Something that was needed before the database was touched.
    Before(ApiError),
    /// The store, before or after the database was touched.
    Store(ApiError),
    /// The database.
    Driver(DriverError),
}

impl Failed {
    /// Whether the database provably kept the old password.
    pub fn is_definite(&self) -> bool {
        match self {
            Self::Before(_) => true,
            Self::Store(_) => false,
            Self::Driver(error) => error.is_definite(),
        }
    }

    /// What a client is told.
    pub fn into_api(self) -> ApiError {
        match self {
            Self::Before(error) | Self::Store(error) => error,
            Self::Driver(error) => paths::driver_error(&error),
        }
    }
}

impl From<StorageError> for Failed {
    fn from(error: StorageError) -> Self {
        Self::Store(error.into())
    }
}

/// What a rotation works with. Its caller holds the role's lock.
pub struct Rotation<'a> {
    /// The services.
    pub hub: &'a Hub,
    /// The whole store, fenced.
    pub storage: &'a Storage,
    /// The term.
    pub term: Term,
    /// Ends it.
    pub cancel: &'a CancellationToken,
}

/// The name of a role's lock.
pub fn lock(mount_uuid: &str, name: &str) -> String {
    format!("static/{mount_uuid}/{name}")
}

fn due_key(role: &StaticRole) -> String {
    format!("{DUE}{}/{}/{}", role.due.key(), role.mount_uuid, role.name)
}

fn record_key(mount_uuid: &str, name: &str) -> String {
    format!("{RECORDS}{mount_uuid}/{name}")
}

/// Puts a role into the index.
pub fn insert(txn: &mut Txn<'_>, role: &StaticRole) -> Result<(), StorageError> {
    let entry = Entry {
        mount_uuid: role.mount_uuid.clone(),
        name: role.name.clone(),
        config_id: role.config_id.clone(),
    };
    txn.put(&due_key(role), &entry)
}

/// Replaces a role and its place in the index; refused when it changed since it was read.
pub fn replace(
    txn: &mut Txn<'_>,
    before: &Stored<StaticRole>,
    role: &StaticRole,
) -> Result<(), StorageError> {
    txn.require_version(&role.key(), before.version);
    txn.put(&role.key(), role)?;
    if before.value.due != role.due {
        txn.delete(&due_key(&before.value));
        insert(txn, role)?;
    }
    Ok(())
}

/// Takes a role out of the index, and its record with it.
pub fn remove(txn: &mut Txn<'_>, role: &StaticRole) {
    txn.delete(&due_key(role));
    txn.delete(&record_key(&role.mount_uuid, &role.name));
}

impl Rotation<'_> {
    /// Changes the password of a role now.
    pub async fn rotate(&self, mount_uuid: &str, name: &str) -> Result<(), Failed> {
        let role = statics::read_record(self.storage, mount_uuid, name)?;
        let role = role.ok_or_else(|| Failed::Before(ApiError::invalid(format!("unknown role: {name}"))))?;
        let instance = self.instance(&role.value)?;
        let left_over = self.storage.get::<Candidate>(&record_key(mount_uuid, name))?;
        if let Some(candidate) = left_over {
            let password = candidate.value.password.into();
            // The record of a rotation that did not come to its end: the database may have taken it.
            let call = self.call(&instance);
            let works = instance.driver().verify_password(&call, &role.value.username, &password).await;
            if works.map_err(Failed::Driver)? {
                return self.commit(&role, &password).await;
            }
            match self.change(&instance, &role.value, &password).await {
                Err(error) if error.refused_by_policy() => {}
                Err(error) => return Err(Failed::Driver(error)),
                Ok(()) => return self.commit(&role, &password).await,
            }
        }
        self.rotate_anew(&role, &instance).await
    }

    async fn rotate_anew(&self, role: &Stored<StaticRole>, instance: &Instance) -> Result<(), Failed> {
        let mut role = role.clone();
        let mut tries = 1;
        loop {
            let policy = self.policy(&role.value)?;
            let password = passwords::generate(self.storage, &policy).map_err(Failed::Before)?;
            role = self.record(&role, &password).await?;
            match self.change(instance, &role.value, &password).await {
                Ok(()) => return self.commit(&role, &password).await,
                Err(error) if error.refused_by_policy() && tries < CANDIDATES => tries += 1,
                Err(error) => return Err(Failed::Driver(error)),
            }
        }
    }

    /// Writes the candidate down, in place of one that the database refused, and makes the role due, so that a
    /// crash from here on is found by the queue.
    async fn record(
        &self,
        before: &Stored<StaticRole>,
        password: &SecretString,
    ) -> Result<Stored<StaticRole>, Failed> {
        let now = Wall::now();
        let mut role = before.value.clone();
        role.due = role.due.min(now);
        let mut txn = self.storage.txn();
        replace(&mut txn, before, &role)?;
        let candidate = Candidate { password: statics::kept(password), at: now };
        txn.put(&record_key(&role.mount_uuid, &role.name), &candidate)?;
        let version = txn.commit().await?.version;
        Ok(Stored { value: role, version })
    }

    async fn change(
        &self,
        instance: &Instance,
        role: &StaticRole,
        password: &SecretString,
    ) -> Result<(), DriverError> {
        let update = UpdateUser {
            username: role.username.clone(),
            change: Change::Password(password.clone()),
            statements: role.rotation_statements.clone(),
        };
        instance.update_user(&self.call(instance), &update).await
    }

    async fn commit(&self, before: &Stored<StaticRole>, password: &SecretString) -> Result<(), Failed> {
        let now = Wall::now();
        let mut role = before.value.clone();
        role.password = statics::kept(password);
        role.rotated = Some(now);
        role.due = now.after_secs(role.rotation_period);
        let mut txn = self.storage.txn();
        replace(&mut txn, before, &role)?;
        txn.delete(&record_key(&role.mount_uuid, &role.name));
        txn.commit().await?;
        Ok(())
    }

    /// Moves a role that could not be rotated to its next try.
    async fn postpone(&self, mount_uuid: &str, name: &str) -> Result<(), StorageError> {
        let Some(before) = statics::read_record(self.storage, mount_uuid, name)? else { return Ok(()) };
        let mut role = before.value.clone();
        role.due = Wall::now().after(AGAIN);
        let mut txn = self.storage.txn();
        replace(&mut txn, &before, &role)?;
        txn.commit().await.map(drop)
    }

    fn instance(&self, role: &StaticRole) -> Result<Arc<Instance>, Failed> {
        let found = connection::by_queue(self.storage, &role.queue())?.ok_or_else(|| {
            let text = format!("failed to find entry for connection with name: {:?}", role.db_name);
            Failed::Before(ApiError::failed(text))
        })?;
        let instances = &self.hub.leases.databases().instances;
        instances.acquire(self.term, &self.hub.metrics, &found).map_err(Failed::Driver)
    }

    fn policy(&self, role: &StaticRole) -> Result<String, Failed> {
        if let Some(policy) = role.credential_config.get("password_policy") {
            return Ok(policy.clone());
        }
        let found = connection::by_queue(self.storage, &role.queue())?;
        Ok(found.map(|c| c.value.config.password_policy).unwrap_or_default())
    }

    fn call(&self, instance: &Instance) -> Call {
        Call::new(tokio::time::Instant::now() + instance.timeout, self.cancel.child_token())
    }
}

/// Rotates what is due and recovers what a former active node left half-done, until `cancel`.
pub async fn run(hub: Arc<Hub>, term: Term, cancel: CancellationToken) {
    let storage = hub.storage.fenced(term);
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut running = FuturesUnordered::new();
    let mut queue = Queue::default();
    loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            Some((entry, done)) = running.next() => queue.ended(entry, done),
            _ = tick.tick() => {
                for entry in queue.due(&storage) {
                    running.push(rotate_due(&hub, &storage, term, &cancel, entry));
                }
                hub.metrics.static_overdue.set(i64::try_from(queue.overdue(&storage)).unwrap_or(i64::MAX));
            }
        }
    }
}

/// The rotations of the active node.
#[derive(Default)]
struct Queue {
    /// Being rotated.
    busy: HashSet<Entry>,
    /// How many of these belong to a connection.
    busy_of: HashMap<String, usize>,
    /// Due for too long without having been tried, at the last look.
    late: HashSet<Entry>,
    /// Tried, and to be tried again.
    failing: HashSet<Entry>,
}

impl Queue {
    /// What is to be rotated now, what is due longest first.
    fn due(&mut self, storage: &Storage) -> Vec<Entry> {
        let now = Wall::now();
        let mut begun = Vec::new();
        let mut after: Option<String> = None;
        self.late.clear();
        for limit in PAGES {
            let page = storage.scan::<Entry>(DUE, after.as_deref(), limit).unwrap_or_default();
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (key, entry) in page {
                let Some(at) = time_of(&key).filter(|at| *at <= now) else { return begun };
                if at.after(LATE) <= now {
                    self.late.insert(entry.value.clone());
                }
                begun.extend(self.begin(entry.value));
            }
        }
        begun
    }

    /// Takes a role for rotation if it has room; those that run already still stand at the front of the index.
    fn begin(&mut self, entry: Entry) -> Option<Entry> {
        let of_connection = self.busy_of.get(&entry.config_id).copied().unwrap_or_default();
        if self.busy.len() >= AT_ONCE || of_connection >= AT_ONCE_EACH || !self.busy.insert(entry.clone()) {
            return None;
        }
        self.busy_of.insert(entry.config_id.clone(), of_connection.saturating_add(1));
        Some(entry)
    }

    fn ended(&mut self, entry: Entry, done: bool) {
        self.busy.remove(&entry);
        if let Some(count) = self.busy_of.get_mut(&entry.config_id) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.busy_of.remove(&entry.config_id);
            }
        }
        if done {
            self.failing.remove(&entry);
        } else {
            self.failing.insert(entry);
        }
    }

    /// How many roles should have had another password for a while.
    fn overdue(&mut self, storage: &Storage) -> usize {
        let now = Wall::now();
        let Self { failing, late, .. } = self;
        // One that was deleted, or rotated by hand, is none of them any more.
        failing.retain(|entry| {
            let role = statics::read_record(storage, &entry.mount_uuid, &entry.name).ok().flatten();
            let Some(role) = role.map(|role| role.value) else { return false };
            let due = role.rotated.map_or_else(Wall::default, |at| at.after_secs(role.rotation_period));
            if due.after(LATE) <= now {
                late.insert(entry.clone());
            }
            due <= now
        });
        late.len()
    }
}

/// The time of a key of the index.
fn time_of(key: &str) -> Option<Wall> {
    Wall::from_key(key.strip_prefix(DUE)?.split_once('/')?.0)
}

/// Rotates a role if it is still due. Says whether nothing is left to do.
async fn rotate_due(
    hub: &Hub,
    storage: &Storage,
    term: Term,
    cancel: &CancellationToken,
    entry: Entry,
) -> (Entry, bool) {
    let Entry { mount_uuid, name, .. } = &entry;
    let _held = hub.leases.databases().rotating.take(&lock(mount_uuid, name)).await;
    // It may have been rotated by hand while this waited.
    let still_due = matches!(
        statics::read_record(storage, mount_uuid, name),
        Ok(Some(role)) if role.value.due <= Wall::now()
    );
    if !still_due {
        return (entry, true);
    }
    let rotation = Rotation { hub, storage, term, cancel };
    let Err(failed) = rotation.rotate(mount_uuid, name).await else { return (entry, true) };
    if !cancel.is_cancelled() {
        let error = failed.into_api();
        tracing::warn!(role = %name, error = %error, "rotating a static role failed; it is tried again in 10 s");
        if let Err(error) = rotation.postpone(mount_uuid, name).await {
            tracing::debug!(error = %error, "the next try of a rotation could not be recorded");
        }
    }
    (entry, false)
}
