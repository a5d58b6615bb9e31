//! The revocations of the active node: the shell of [`holdfast_core::leasequeue::LeaseQueue`].
//!
//! What is due comes in pages from the store's time-ordered index, first what is due longest. What is held here is
//! read again by the next active node. A lease is held (see [`super::running`]) from before its user is removed
//! until the outcome is in the store.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::leasequeue::{Answer, Attempt, Due, Effect, Event, LeaseQueue, Limits, Waiter};
use holdfast_core::time::Spread;
use holdfast_core::{Mono, Term};
use holdfast_ops::Tasks;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::clock::Wall;
use super::id::LeaseId;
use super::index::{self, DuePage};
use super::mailbox::{Mail, Outcome};
use super::record::{Queue, short};
use super::running::Guard;
use crate::database::{connection, removal, sweep::sleep_until};
use crate::hub::Hub;
use crate::metrics::{RevokeOutcome, Revoked};
use crate::storage::{Storage, StorageError};

/// How often a lease that changes under our hands is read again.
const TRIES: u32 = 8;
/// The longest pause of a queue whose database cannot be reached; with its spread it stays below a minute.
const PAUSE_CEILING: Duration = Duration::from_secs(50);

/// How an attempt ended.
struct Attempted {
    id: LeaseId,
    queue: Option<Queue>,
    attempt: Attempt,
    /// Why it failed.
    error: String,
    guard: Guard<LeaseId>,
}

/// What tasks tell the loop.
enum Done {
    Page(Result<DuePage, StorageError>, Vec<(Queue, usize)>),
    Attempted(Box<Attempted>),
    Stored { id: LeaseId, applied: bool, again: Option<Wall> },
}

struct Shell {
    hub: Arc<Hub>,
    storage: Storage,
    tasks: Tasks,
    machine: LeaseQueue<LeaseId, Queue>,
    done: mpsc::Sender<Done>,
    /// Leases whose outcome is on its way to the store, with the error to record.
    held: HashMap<LeaseId, (Guard<LeaseId>, String)>,
    waiters: HashMap<Waiter, oneshot::Sender<Outcome>>,
    next_waiter: u64,
    /// Queues whose connections are known.
    known: HashSet<Queue>,
    /// Why the attempt that is being told to the machine did not succeed.
    reason: String,
}

/// Runs until `cancel`.
pub async fn run(hub: Arc<Hub>, term: Term, tasks: Tasks, cancel: CancellationToken) {
    let workers = hub.leases.settings().revoke_workers.clamp(1, 10_000);
    let limits = Limits { workers, pause_ceiling: PAUSE_CEILING, ..Limits::default() };
    let seed = u64::from_le_bytes(holdfast_ops::rand::bytes());
    // Each worker has at most one message under way, and there is one reader.
    let (done, mut ended) = mpsc::channel(workers + 1);
    let mut shell = Shell {
        storage: hub.storage.fenced(term),
        hub: Arc::clone(&hub),
        tasks,
        machine: LeaseQueue::new(limits, Spread::new(seed)),
        done,
        held: HashMap::new(),
        waiters: HashMap::new(),
        next_waiter: 0,
        known: HashSet::new(),
        reason: String::new(),
    };
    shell.on(Event::Began { term });
    loop {
        let wake = shell.machine.next_deadline().map(Wall::from_mono);
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            Some(done) = ended.recv() => shell.done(done),
            (mail, lost) = hub.leases.mailbox.take() => {
                mail.into_iter().for_each(|mail| shell.mail(mail));
                if lost {
                    shell.on(Event::Scheduled { due: Mono::ZERO });
                }
            }
            () = sleep_until(wake) => shell.on(Event::Tick),
        }
    }
    "leadership was lost".clone_into(&mut shell.reason);
    shell.on(Event::Ended);
}

impl Shell {
    fn on(&mut self, event: Event<LeaseId, Queue>) {
        let mut effects = Vec::new();
        self.machine.on(Wall::now().mono(), event, &mut effects);
        for effect in effects {
            self.perform(effect);
        }
    }

    fn mail(&mut self, mail: Mail) {
        match mail {
            Mail::Due(due) => self.on(Event::Scheduled { due: due.mono() }),
            Mail::Renewed(id, due) => {
                self.on(Event::Renewed { id });
                self.on(Event::Scheduled { due: due.mono() });
            }
            Mail::Gone(id) => self.on(Event::Gone { id }),
            Mail::Connections(queue, connections) => {
                self.known.insert(queue.clone());
                self.on(Event::Connections { queue, connections });
            }
            Mail::Retired(queue) => {
                self.known.remove(&queue);
                self.hub.leases.waiting.lock().remove(&queue);
                self.on(Event::Retired { queue });
            }
            Mail::Back(queue) => {
                self.hub.leases.waiting.lock().remove(&queue);
                self.on(Event::ExecutorBack { queue });
            }
            Mail::Revoke(id, answer) => self.asked(id, answer),
        }
    }

    fn asked(&mut self, id: LeaseId, answer: oneshot::Sender<Outcome>) {
        let lease = match index::read(&self.storage, &id) {
            Ok(Some(lease)) => lease.value,
            Ok(None) => {
                drop(answer.send(Outcome::Gone));
                return;
            }
            Err(error) => {
                drop(answer.send(Outcome::NotTried(error.to_string())));
                return;
            }
        };
        let queue = lease.login.queue();
        let unknown = !self.known.contains(&queue);
        for (queue, connections) in connections(&self.storage, unknown.then_some(&queue)) {
            self.known.insert(queue.clone());
            self.on(Event::Connections { queue, connections });
        }
        self.next_waiter = self.next_waiter.wrapping_add(1);
        let waiter = Waiter::new(self.next_waiter);
        self.waiters.insert(waiter, answer);
        let due = Due { id, due: lease.due.mono(), queue, failures: lease.revocation.attempts };
        self.on(Event::Asked { lease: due, waiter: Some(waiter) });
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Page(Err(error), _) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "reading what is due failed");
                self.on(Event::PageFailed);
            }
            Done::Page(Ok(page), connections) => {
                for (queue, connections) in connections {
                    if self.known.insert(queue.clone()) {
                        self.on(Event::Connections { queue, connections });
                    }
                }
                let leases = page.leases.into_iter().map(|(due, id, entry)| Due {
                    id,
                    due: due.mono(),
                    queue: entry.queue,
                    failures: entry.attempts,
                });
                let (leases, next) = (leases.collect(), page.next.map(Wall::mono));
                self.on(Event::Page { leases, more: page.more, next });
            }
            Done::Attempted(attempted) => self.attempted(*attempted),
            Done::Stored { id, applied, again } => {
                self.held.remove(&id);
                self.on(Event::Stored { id, applied });
                if let Some(due) = again {
                    self.on(Event::Scheduled { due: due.mono() });
                }
            }
        }
    }

    fn attempted(&mut self, attempted: Attempted) {
        let Attempted { id, queue, attempt, error, guard } = attempted;
        if let Some(queue) = queue {
            let mut waiting = self.hub.leases.waiting.lock();
            match attempt {
                // What is not known any more is gone, with all that was known of it.
                Attempt::NotTried if self.known.contains(&queue) => {
                    drop(waiting.insert(queue, error.clone()))
                }
                _ => drop(waiting.remove(&queue)),
            }
        }
        let label = match attempt {
            Attempt::Removed => RevokeOutcome::Revoked,
            Attempt::Failed => RevokeOutcome::Failed,
            Attempt::Unrecoverable => RevokeOutcome::Irrevocable,
            Attempt::NotTried => RevokeOutcome::Deferred,
        };
        self.hub.metrics.revoke.get_or_create(&Revoked { outcome: label }).inc();
        self.reason.clone_from(&error);
        if attempt != Attempt::NotTried {
            self.held.insert(id.clone(), (guard, error));
        }
        self.on(Event::Finished { id, attempt });
    }

    fn perform(&mut self, effect: Effect<LeaseId, Queue>) {
        match effect {
            Effect::Read { after, limit } => self.read(after, limit),
            Effect::Start { id, term } => self.start(id, term),
            Effect::Delete { id, .. } => {
                let (hub, storage, done) = (Arc::clone(&self.hub), self.storage.clone(), self.done.clone());
                self.tasks.spawn("delete", async move {
                    let (applied, again) = delete(&hub, &storage, &id).await;
                    drop(done.send(Done::Stored { id, applied, again }).await);
                });
            }
            Effect::Record { id, failures, due, irrevocable, .. } => {
                let (storage, done) = (self.storage.clone(), self.done.clone());
                let error = self.held.get(&id).map(|(_, error)| error.clone()).unwrap_or_default();
                let due = Wall::from_mono(due);
                self.tasks.spawn("record", async move {
                    let applied = record(&storage, &id, failures, due, irrevocable, &error).await;
                    drop(done.send(Done::Stored { id, applied, again: None }).await);
                });
            }
            Effect::Answer(waiter, answer) => {
                let Some(sender) = self.waiters.remove(&waiter) else { return };
                let outcome = match answer {
                    Answer::Revoked => Outcome::Gone,
                    Answer::Failed => Outcome::Failed(self.reason.clone()),
                    Answer::NotTried => Outcome::NotTried(self.reason.clone()),
                };
                // Whoever asked may have gone away.
                drop(sender.send(outcome));
            }
            Effect::Parked(queue, until) => {
                let pause = Wall::now().until(Wall::from_mono(until));
                tracing::debug!(config = %queue.config_id, pause_ms = pause.as_secs_f64() * 1e3, reason = %self.reason, "revocations wait");
            }
        }
    }

    fn read(&self, after: Option<(Mono, LeaseId)>, limit: usize) {
        let (storage, done) = (self.storage.clone(), self.done.clone());
        let after = after.map(|(due, id)| (Wall::from_mono(due), id));
        self.tasks.spawn_blocking("read", move || {
            let page = index::due_page(&storage, Wall::now(), after.as_ref(), limit);
            let queues: HashSet<_> =
                page.iter().flat_map(|page| &page.leases).map(|(_, _, entry)| &entry.queue).collect();
            let connections = connections(&storage, queues);
            drop(done.blocking_send(Done::Page(page, connections)));
        });
    }

    fn start(&self, id: LeaseId, term: Term) {
        let (hub, storage, done) = (Arc::clone(&self.hub), self.storage.clone(), self.done.clone());
        let cancel = self.tasks.token();
        self.tasks.spawn("revoke", async move {
            let attempted = attempt(&hub, &storage, term, id, cancel).await;
            drop(done.send(Done::Attempted(Box::new(attempted))).await);
        });
    }
}

/// How many connections the configurations of queues have.
fn connections<'a>(storage: &Storage, queues: impl IntoIterator<Item = &'a Queue>) -> Vec<(Queue, usize)> {
    let known = |queue: &Queue| {
        let found = connection::by_queue(storage, queue).ok().flatten()?;
        let connections = usize::try_from(found.value.config.max_open_connections).unwrap_or(1);
        Some((queue.clone(), connections))
    };
    queues.into_iter().filter_map(known).collect()
}

/// One attempt to remove the user of a lease. A lease that is gone, or was renewed in time, has nothing to remove.
async fn attempt(
    hub: &Hub,
    storage: &Storage,
    term: Term,
    id: LeaseId,
    cancel: CancellationToken,
) -> Attempted {
    let guard = hub.leases.running.take(&id).await;
    let nothing = |attempt, error, guard| Attempted { id: id.clone(), queue: None, attempt, error, guard };
    let lease = match index::read(storage, &id) {
        Ok(Some(lease)) => lease.value,
        Ok(None) => return nothing(Attempt::Removed, String::new(), guard),
        Err(error) => return nothing(Attempt::NotTried, error.to_string(), guard),
    };
    if lease.due > Wall::now() {
        return nothing(Attempt::Removed, String::new(), guard);
    }
    let removed = removal::remove(hub, storage, term, &lease.login, cancel.clone()).await;
    let (attempt, error) = match removed {
        Ok(()) => (Attempt::Removed, String::new()),
        // Being told to stop is no failure of the database.
        Err(error) if error.is_not_tried() || cancel.is_cancelled() => (Attempt::NotTried, error.text()),
        Err(error) if error.is_final() => (Attempt::Unrecoverable, error.text()),
        Err(error) => (Attempt::Failed, error.text()),
    };
    Attempted { id, queue: Some(lease.login.queue()), attempt, error: short(&error), guard }
}

/// Deletes a lease whose user is gone. Says whether that is in the store, and when a lease that was renewed instead
/// will be due.
async fn delete(hub: &Hub, storage: &Storage, id: &LeaseId) -> (bool, Option<Wall>) {
    for _ in 0..TRIES {
        let lease = match index::read(storage, id) {
            Ok(Some(lease)) => lease,
            Ok(None) => return (true, None),
            Err(_) => return (false, None),
        };
        if lease.value.due > Wall::now() {
            return (true, Some(lease.value.due));
        }
        let mut txn = storage.txn();
        index::remove(&mut txn, &lease);
        match txn.commit().await {
            Ok(_) => {
                // A deleted configuration goes with its last lease; if this fails, the next change finds it.
                let queue = lease.value.login.queue();
                drop(hub.leases.collect(storage, &queue).await);
                return (true, None);
            }
            Err(error) if error.is_conflict() => {}
            Err(_) => return (false, None),
        }
    }
    (false, None)
}

/// Records a failed attempt and when the next one is due.
async fn record(
    storage: &Storage,
    id: &LeaseId,
    failures: u32,
    due: Wall,
    irrevocable: bool,
    error: &str,
) -> bool {
    for _ in 0..TRIES {
        let before = match index::read(storage, id) {
            Ok(Some(lease)) => lease,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let mut lease = before.value.clone();
        lease.due = due;
        lease.revocation.attempts = failures;
        lease.revocation.irrevocable = irrevocable;
        lease.revocation.error = short(error);
        if irrevocable && !before.value.revocation.irrevocable {
            tracing::error!(lease = %id, error, "a lease cannot be revoked; it is tried again once a day");
        }
        let mut txn = storage.txn();
        let put = index::replace(&mut txn, &before, &lease);
        match (put, txn.commit().await) {
            (Ok(()), Ok(_)) => return true,
            (Ok(()), Err(error)) if error.is_conflict() => {}
            _ => return false,
        }
    }
    false
}
