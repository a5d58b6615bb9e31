//! Who watches what at one upstream, and the loop that keeps its one watch connection.
//!
//! What must hold: a watch whose guard was dropped hears nothing more; a loss is told once, and a subscription each
//! time that it stands again; a connection that breaks soon after it came about is not retried in a hot loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::AnswerKind;
use holdfast_core::time::{doubling, jittered};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::provider::{Sink, WatchGuard};
use crate::reference::ObjectKey;

/// A session that lived so long was no failure: the next one may begin at once.
const STEADY: Duration = Duration::from_secs(10);
/// The pause after a session that was steady; a loss is followed within 100 ms by a new subscription.
const SOON: Duration = Duration::from_millis(50);
/// The first pause after one that was not, doubling to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// One of the watches of an upstream, unique in its process's life.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct WatchId(u64);

/// A watch.
#[derive(Clone)]
pub(crate) struct Subscription {
    /// Its name.
    pub(crate) id: WatchId,
    /// What is watched.
    pub(crate) object: ObjectKey,
    /// Who wants to know.
    pub(crate) sink: Arc<dyn Sink>,
}

struct Entry {
    subscription: Subscription,
    told_lost: bool,
}

#[derive(Default)]
struct Set {
    next: u64,
    entries: BTreeMap<WatchId, Entry>,
}

/// The watches of one upstream.
pub(crate) struct Subscriptions {
    set: Mutex<Set>,
    version: watch::Sender<u64>,
}

impl Subscriptions {
    /// None yet.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { set: Mutex::default(), version: watch::Sender::new(0) })
    }

    /// Adds a watch that stands until the guard is dropped.
    pub(crate) fn add(self: &Arc<Self>, object: &ObjectKey, sink: Arc<dyn Sink>) -> WatchGuard {
        let mut set = self.set.lock();
        set.next += 1;
        let id = WatchId(set.next);
        let subscription = Subscription { id, object: object.clone(), sink };
        set.entries.insert(id, Entry { subscription, told_lost: false });
        drop(set);
        self.version.send_modify(|version| *version += 1);
        WatchGuard::new(Registered { id, of: Arc::clone(self) })
    }

    /// All watches, oldest first.
    pub(crate) fn all(&self) -> Vec<Subscription> {
        self.set.lock().entries.values().map(|entry| entry.subscription.clone()).collect()
    }

    /// One watch, unless it has ended.
    pub(crate) fn one(&self, id: WatchId) -> Option<Subscription> {
        self.set.lock().entries.get(&id).map(|entry| entry.subscription.clone())
    }

    /// Tells a watch that it stands.
    pub(crate) fn subscribed(&self, id: WatchId) {
        let entry = self.set.lock().entries.get_mut(&id).map(|entry| {
            entry.told_lost = false;
            Arc::clone(&entry.subscription.sink)
        });
        if let Some(sink) = entry {
            sink.subscribed();
        }
    }

    /// Tells a watch that it is broken, unless it knows.
    pub(crate) fn lost(&self, id: WatchId, kind: AnswerKind) {
        let entry = self.set.lock().entries.get_mut(&id).and_then(|entry| {
            let new = !std::mem::replace(&mut entry.told_lost, true);
            new.then(|| Arc::clone(&entry.subscription.sink))
        });
        if let Some(sink) = entry {
            sink.lost(kind);
        }
    }

    /// Tells all watches that they are broken.
    pub(crate) fn all_lost(&self, kind: AnswerKind) {
        for subscription in self.all() {
            self.lost(subscription.id, kind);
        }
    }

    /// Tells when the set changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Waits until there is a watch.
    async fn some(&self) {
        let mut changes = self.changes();
        while self.set.lock().entries.is_empty() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Runs one session after another while there are watches. A session ends with the kind of its loss.
pub(crate) async fn keep<F, Fut>(upstream: &str, subscriptions: &Subscriptions, mut session: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = AnswerKind>,
{
    let mut failures = 0;
    loop {
        subscriptions.some().await;
        let began = Instant::now();
        let kind = session().await;
        failures = if began.elapsed() >= STEADY { 0 } else { failures + 1 };
        tracing::debug!(upstream, %kind, failures, "a watch connection ended");
        subscriptions.all_lost(kind);
        // sleep: the pause of a back-off
        tokio::time::sleep(pause(failures, holdfast_ops::rand::unit())).await;
    }
}

/// The pause before the next session after so many that were not steady.
fn pause(failures: u32, unit: f64) -> Duration {
    match failures {
        0 => SOON.mul_f64(unit),
        n => jittered(doubling(FIRST_PAUSE, LAST_PAUSE, n - 1).mul_f64(0.75), 1.0 / 3.0, unit),
    }
}

struct Registered {
    id: WatchId,
    of: Arc<Subscriptions>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.of.set.lock().entries.remove(&self.id);
        self.of.version.send_modify(|version| *version += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Heard, Recorder, object};
    use super::*;
    use crate::config::Scheme;

    #[test]
    fn a_watch_hears_of_a_loss_once_and_of_each_subscription() {
        let subscriptions = Subscriptions::new();
        let recorder = Recorder::new();
        let guard = subscriptions.add(&object(Scheme::Etcd, "a"), recorder.clone());
        let id = subscriptions.all()[0].id;
        subscriptions.all_lost(AnswerKind::Unavailable);
        subscriptions.all_lost(AnswerKind::Unknown);
        subscriptions.subscribed(id);
        subscriptions.lost(id, AnswerKind::Unknown);
        let expected =
            [Heard::Lost(AnswerKind::Unavailable), Heard::Subscribed, Heard::Lost(AnswerKind::Unknown)];
        assert_eq!(recorder.heard(), expected);
        drop(guard);
        subscriptions.subscribed(id);
        assert_eq!(recorder.heard().len(), 3, "nothing after the guard");
        assert!(subscriptions.all().is_empty() && subscriptions.one(id).is_none());
    }

    #[test]
    fn pauses_double_within_their_bounds() {
        assert_eq!(pause(0, 1.0), SOON);
        let (low, high) = (pause(1, 0.0), pause(1, 1.0));
        assert!(
            low >= FIRST_PAUSE / 2 - Duration::from_micros(1)
                && high <= FIRST_PAUSE + Duration::from_micros(1)
        );
        assert!(pause(50, 1.0) <= LAST_PAUSE + Duration::from_micros(1));
        assert!(pause(50, 0.0) >= LAST_PAUSE / 2 - Duration::from_micros(1));
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_that_break_at_once_come_ever_slower_and_none_comes_without_a_watch() {
        let subscriptions = Subscriptions::new();
        let begun = Arc::new(Mutex::new(0));
        let recorder = Recorder::new();
        let guard = subscriptions.add(&object(Scheme::Etcd, "a"), recorder.clone());
        let counted = Arc::clone(&begun);
        let session = || {
            *counted.lock() += 1;
            std::future::ready(AnswerKind::Unavailable)
        };
        let running = keep("u", &subscriptions, session);
        assert!(tokio::time::timeout(Duration::from_secs(60), running).await.is_err());
        let first = *begun.lock();
        assert!((6..=11).contains(&first), "{first} sessions in a minute");
        drop(guard);
        let idle = keep("u", &subscriptions, || -> std::future::Ready<AnswerKind> { panic!("no watch") });
        assert!(tokio::time::timeout(Duration::from_secs(60), idle).await.is_err());
        assert_eq!(recorder.heard(), [Heard::Lost(AnswerKind::Unavailable)]);
    }
}
