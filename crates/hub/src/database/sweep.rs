//! The sweeper of the active node: the shell of [`holdfast_core::intent::Sweeper`].
//!
//! Every intent past its deadline becomes the removal of its user, until that succeeds. The records are in the
//! store; what is held here is read again by the next active node.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Term;
use holdfast_core::intent::sweeping::{Effect, Event};
use holdfast_core::intent::{Batch, Key, State, Sweeper, Written};
use holdfast_core::time::Spread;
use holdfast_ops::Tasks;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::intent::{self, INTENTS, Intent, With};
use super::removal;
use crate::hub::Hub;
use crate::lease::Wall;
use crate::lease::record::Queue;
use crate::metrics::{ByIntent, IntentState, SweepOutcome, Swept};
use crate::storage::{Storage, StorageError};

/// How long after its deadline an intent is swept that nobody entrusted to the sweeper.
pub const SWEEP_AFTER: Duration = Duration::from_secs(5);
/// Intents that one read of the store returns.
const PAGE: usize = 500;
/// How often all intents are read again, in case a note was lost.
const RELOAD: Duration = Duration::from_secs(60);

/// What a creation tells the sweeper.
#[derive(Clone, Debug)]
pub struct Note {
    /// A spoke that has a stream again; the rest says nothing then.
    back: Option<String>,
    key: Key,
    /// Gone, or where and since when it is.
    at: Option<(Queue, Wall)>,
    /// From when on it is the sweeper's.
    pub due: Wall,
}

impl Note {
    /// The same, due now.
    pub fn now(self) -> Self {
        Self { due: Wall::now(), ..self }
    }

    /// The intent is gone.
    pub fn gone(key: Key) -> Self {
        Self { back: None, key, at: None, due: Wall::default() }
    }

    /// A spoke has a stream again.
    pub fn back(spoke: &str) -> Self {
        Self { back: Some(spoke.to_owned()), ..Self::gone(Key::new(0)) }
    }
}

/// An open intent, which is the sweeper's from `due` on.
pub fn note(key: Key, intent: &Intent, due: Wall) -> Note {
    Note { back: None, key, at: Some((intent.queue(), intent.opened)), due }
}

/// The sweeper and what it needs.
struct Shell {
    hub: Arc<Hub>,
    storage: Storage,
    tasks: Tasks,
    machine: Sweeper<Queue>,
    done: mpsc::Sender<Event<Queue>>,
    /// Whose removal was tried and failed.
    suspects: BTreeSet<Key>,
}

/// Runs until `cancel`.
pub async fn run(hub: Arc<Hub>, term: Term, tasks: Tasks, cancel: CancellationToken) {
    let seed = u64::from_le_bytes(holdfast_ops::rand::bytes());
    let limits = hub.leases.databases().sweep_limits;
    // Writes and removals under way are bounded by the machine, so this never fills for long.
    let (done, mut ended) = mpsc::channel(limits.at_once * 4);
    let storage = hub.storage.fenced(term);
    let mailbox = Arc::clone(&hub);
    let machine = Sweeper::new(limits, Spread::new(seed));
    let mut shell = Shell { hub, storage, tasks, machine, done, suspects: BTreeSet::new() };
    let mailbox = &mailbox.leases.databases().sweeper;
    shell.on(Event::Began { term });
    let mut reload = tokio::time::interval(RELOAD);
    reload.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    reload.reset();
    loop {
        let wake = shell.machine.next_deadline();
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            Some(event) = ended.recv() => shell.on(event),
            (notes, lost) = mailbox.take() => {
                notes.into_iter().for_each(|note| shell.note(note));
                if lost {
                    shell.load();
                }
            }
            () = sleep_until(wake.map(Wall::from_mono)) => shell.on(Event::Tick),
            _ = reload.tick() => shell.load(),
        }
        shell.show();
    }
}

/// Sleeps until an instant of the leases' clock; for ever without one.
pub async fn sleep_until(at: Option<Wall>) {
    match at {
        // One more, since instants are cut to milliseconds.
        Some(at) => tokio::time::sleep(Wall::now().until(at) + Duration::from_millis(1)).await,
        None => std::future::pending().await,
    }
}

impl Shell {
    fn on(&mut self, event: Event<Queue>) {
        match event {
            Event::Removed { key, gone: false, .. } => drop(self.suspects.insert(key)),
            Event::Removed { key, .. } | Event::Gone { key } => drop(self.suspects.remove(&key)),
            _ => {}
        }
        let mut effects = Vec::new();
        self.machine.on(Wall::now().mono(), event, &mut effects);
        for effect in effects {
            self.perform(effect);
        }
    }

    fn note(&mut self, note: Note) {
        if let Some(spoke) = note.back {
            return self.back(&spoke);
        }
        let Note { key, at, due, .. } = note;
        self.on(match at {
            None => Event::Gone { key },
            Some((executor, opened)) => {
                Event::Known { key, state: State::Open, due: due.mono(), opened: opened.mono(), executor }
            }
        });
    }

    /// The users that could not be removed while the spoke was away are tried at once.
    fn back(&mut self, spoke: &str) {
        let suspects =
            self.suspects.iter().filter_map(|key| intent::read(&self.storage, *key).ok().flatten());
        let queues: BTreeSet<_> = suspects.map(|found| found.value.queue()).collect();
        for queue in queues {
            let connection = super::connection::by_queue(&self.storage, &queue).ok().flatten();
            if connection.is_some_and(|found| found.value.config.spoke_name == spoke) {
                self.on(Event::ExecutorBack { executor: queue });
            }
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Load(_) => self.load(),
            Effect::Reread(key) => self.reread(key),
            Effect::Write(batch) => {
                let (hub, storage, done) = (Arc::clone(&self.hub), self.storage.clone(), self.done.clone());
                self.tasks.spawn("write", async move {
                    let written = write(&hub, &storage, batch).await;
                    // The receiver is gone when the term is over.
                    drop(done.send(Event::Written { batch, written }).await);
                });
            }
            Effect::Remove(key, term) => {
                let (hub, storage, done) = (Arc::clone(&self.hub), self.storage.clone(), self.done.clone());
                let cancel = self.tasks.token();
                self.tasks.spawn("remove", async move {
                    let gone = remove(&hub, &storage, term, key, cancel).await;
                    drop(done.send(Event::Removed { key, term, gone }).await);
                });
            }
            Effect::ReportOld(key, age) => self.report(key, age),
        }
    }

    /// Reads every intent, page by page. There are few: each lives for seconds unless its database is away.
    fn load(&mut self) {
        let mut after: Option<String> = None;
        loop {
            let page = match self.storage.scan::<Intent>(INTENTS, after.as_deref(), PAGE) {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "reading the intents failed");
                    return;
                }
            };
            let Some((last, _)) = page.last() else { return };
            after = Some(last.clone());
            for (key, intent) in page {
                if let Some(key) = key.strip_prefix(INTENTS).and_then(intent::parse_key) {
                    self.known(key, &intent.value);
                }
            }
        }
    }

    fn known(&mut self, key: Key, intent: &Intent) {
        let due = intent.deadline.after(SWEEP_AFTER).mono();
        let (state, opened, executor) = (intent.state, intent.opened.mono(), intent.queue());
        self.on(Event::Known { key, state, due, opened, executor });
    }

    fn reread(&mut self, key: Key) {
        match intent::read(&self.storage, key) {
            Ok(Some(found)) => self.known(key, &found.value),
            Ok(None) => self.on(Event::Gone { key }),
            // The next round reads it again.
            Err(_) => {}
        }
    }

    fn report(&self, key: Key, age: Duration) {
        let found = intent::read(&self.storage, key).ok().flatten();
        let login = found.as_ref().map(|found| &found.value.login);
        tracing::error!(
            username = login.map(|l| l.username.as_str()),
            config = login.map(|l| l.config.as_str()),
            age_seconds = age.as_secs(),
            "a database user that belongs to no lease could not be removed yet; it is tried again"
        );
    }

    fn show(&self) {
        let states = [IntentState::Open, IntentState::Sweep, IntentState::Verify];
        for (state, count) in states.into_iter().zip(self.machine.counts()) {
            let gauge = self.hub.metrics.intents.get_or_create(&ByIntent { state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.hub.metrics.orphan_suspects.set(i64::try_from(self.suspects.len()).unwrap_or(i64::MAX));
    }
}

async fn write(hub: &Hub, storage: &Storage, batch: Batch) -> Written {
    let result = async {
        let Some(found) = intent::read(storage, batch.key)? else { return Ok(Written::Refused) };
        if Some(found.value.state) != batch.from {
            return Ok(Written::Refused);
        }
        let login = found.value.login.clone();
        intent::advance(storage, batch, &found, With::Nothing, |_| ()).await?;
        if batch.to == holdfast_core::intent::Next::Nothing {
            hub.leases.collect(storage, &login.queue()).await?;
        }
        Ok::<_, StorageError>(Written::Applied)
    };
    result.await.unwrap_or_else(|error| intent::written(&error))
}

/// Removes the user of an intent; says whether it is gone. Bounded by the configuration's timeout.
async fn remove(hub: &Hub, storage: &Storage, term: Term, key: Key, cancel: CancellationToken) -> bool {
    let outcome = match intent::read(storage, key) {
        Ok(Some(found)) => removal::remove(hub, storage, term, &found.value.login, cancel).await,
        // The record is gone; the write that follows finds that out.
        Ok(None) => return true,
        Err(error) => Err(removal::NotRemoved::Store(error)),
    };
    let label = if outcome.is_ok() { SweepOutcome::Removed } else { SweepOutcome::Failed };
    hub.metrics.swept.get_or_create(&Swept { outcome: label }).inc();
    match outcome {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(error = %error, "removing the user of an intent failed; it is tried again");
            false
        }
    }
}
