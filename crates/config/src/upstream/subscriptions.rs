//! Who watches what at one upstream, and the loop that keeps its one watch connection.
//!
//! What must hold: a watch whose guard was dropped hears nothing more; a loss is told once, and a subscription each
//! time that it stands again; a connection that breaks soon after it came about is not retried in a hot loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome};
use holdfast_core::time::{doubling, jittered};
use holdfast_ops::Tasks;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::provider::{Sink, WatchGuard};
use crate::reference::ObjectKey;
use crate::value::Value;

/// A session that lived so long was no failure: the next one may begin at once.
const STEADY: Duration = Duration::from_secs(10);
/// The pause after a session that was steady; a loss is followed within 100 ms by a new subscription.
const SOON: Duration = Duration::from_millis(50);
/// The first pause after one that was not, doubling to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// How long an upstream may ask to be left alone.
const LONGEST_TOLD: Duration = Duration::from_secs(300);
/// When what was refused is asked for again.
const REFUSED: Duration = Duration::from_secs(60);

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

    /// The watches of a path.
    pub(crate) fn of_path(&self, path: &str) -> Vec<Subscription> {
        let mut all = self.all();
        all.retain(|subscription| subscription.object.path == path);
        all
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

/// The pauses between sessions.
#[derive(Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after a session that lived so long; `unit` is random.
    fn after(&mut self, lived: Duration, unit: f64) -> Duration {
        self.failures = if lived >= STEADY { 0 } else { self.failures.saturating_add(1) };
        match self.failures {
            0 => SOON.mul_f64(unit),
            n => jittered(doubling(FIRST_PAUSE, LAST_PAUSE, n - 1).mul_f64(0.75), 1.0 / 3.0, unit),
        }
    }
}

/// Runs one session after another while there are watches. A session ends with the kind of its loss.
pub(crate) async fn keep<F, Fut>(upstream: &str, subscriptions: &Subscriptions, mut session: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = AnswerKind>,
{
    let mut backoff = Backoff::default();
    loop {
        subscriptions.some().await;
        let began = Instant::now();
        let kind = session().await;
        let pause = backoff.after(began.elapsed(), holdfast_ops::rand::unit());
        tracing::debug!(upstream, %kind, ?pause, "a watch connection ended");
        subscriptions.all_lost(kind);
        // sleep: the pause of a back-off
        tokio::time::sleep(pause).await;
    }
}

/// Watches one object by sessions of its own, where the protocol has a call for each watch. A session ends with its
/// failure; what the upstream refuses is not asked for again soon.
pub(crate) fn keep_alone<F, Fut>(tasks: &Tasks, sink: Arc<dyn Sink>, mut session: F) -> WatchGuard
where
    F: FnMut(Arc<dyn Sink>) -> Fut + Send + 'static,
    Fut: Future<Output = Failure> + Send + 'static,
{
    let own = tasks.child("watch");
    own.spawn_until_cancelled("session", async move {
        let told = Arc::new(LossOnce { sink, lost: AtomicBool::new(false) });
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            let failure = session(Arc::clone(&told) as Arc<dyn Sink>).await;
            told.lost(failure.kind);
            let unit = holdfast_ops::rand::unit();
            let pause = backoff.after(began.elapsed(), unit);
            let least = match failure.kind {
                _ if failure.own_login => FIRST_PAUSE,
                AnswerKind::Unavailable | AnswerKind::Unknown => Duration::ZERO,
                AnswerKind::RateLimited => {
                    failure.retry_after.unwrap_or_default().clamp(LAST_PAUSE, LONGEST_TOLD)
                }
                _ => jittered(REFUSED, 0.2, unit),
            };
            // sleep: the pause of a back-off
            tokio::time::sleep(pause.max(least)).await;
        }
    });
    WatchGuard::new(CancelOnDrop(own))
}

struct CancelOnDrop(Tasks);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Passes a loss on once for each subscription.
struct LossOnce {
    sink: Arc<dyn Sink>,
    lost: AtomicBool,
}

impl Sink for LossOnce {
    fn subscribed(&self) {
        self.lost.store(false, Ordering::Relaxed);
        self.sink.subscribed();
    }

    fn changed(&self) {
        self.sink.changed();
    }

    fn event(&self, outcome: Outcome<Value>) {
        self.sink.event(outcome);
    }

    fn alive(&self) {
        self.sink.alive();
    }

    fn confirmed(&self) {
        self.sink.confirmed();
    }

    fn lost(&self, kind: AnswerKind) {
        if !self.lost.swap(true, Ordering::Relaxed) {
            self.sink.lost(kind);
        }
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
    fn pauses_double_within_their_bounds_and_a_steady_session_ends_that() {
        let near = |pause: Duration, bound: Duration| pause.abs_diff(bound) < Duration::from_micros(1);
        let (mut low, mut high) = (Backoff::default(), Backoff::default());
        assert!(near(low.after(Duration::ZERO, 0.0), FIRST_PAUSE / 2));
        assert!(near(high.after(Duration::ZERO, 1.0), FIRST_PAUSE));
        assert!(near(high.after(Duration::ZERO, 1.0), FIRST_PAUSE * 2));
        for _ in 0..50 {
            high.after(Duration::ZERO, 1.0);
        }
        assert!(near(high.after(Duration::ZERO, 1.0), LAST_PAUSE));
        assert_eq!(high.after(STEADY, 1.0), SOON);
        assert!(near(high.after(Duration::ZERO, 1.0), FIRST_PAUSE));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_left_alone_and_what_breaks_is_not() {
        for (kind, expected) in [(AnswerKind::PermissionDenied, 9..=13), (AnswerKind::Unavailable, 24..=45)] {
            let tasks = Tasks::new("test");
            let (recorder, begun) = (Recorder::new(), Arc::new(Mutex::new(0)));
            let counted = Arc::clone(&begun);
            let guard = keep_alone(&tasks, recorder.clone(), move |sink| {
                *counted.lock() += 1;
                sink.subscribed();
                std::future::ready(Failure::of(kind))
            });
            tokio::time::advance(Duration::ZERO).await;
            for _ in 0..600 {
                tokio::time::advance(Duration::from_secs(1)).await;
                tokio::task::yield_now().await;
            }
            let begun = *begun.lock();
            assert!(expected.contains(&begun), "{kind}: {begun} sessions in ten minutes");
            assert_eq!(recorder.count(&Heard::Lost(kind)), recorder.count(&Heard::Subscribed));
            drop(guard);
            tasks.wait(Duration::from_secs(5)).await.unwrap();
        }
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
