//! Owned tasks: every task of a daemon has a name, an owner that can cancel it, and someone who notices a panic.
//!
//! What must hold: a task that panics takes its whole tree down. The panic is logged as ERROR, the root's token is
//! cancelled, and [`Tasks::failure`] tells the process to exit with a code that is not zero. A daemon that limps
//! on without one of its tasks is worse than one that its supervisor starts again.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// A group of tasks with one cancellation token. Clones are the same group; a [`Tasks::child`] ends with its parent.
#[derive(Clone, Debug)]
pub struct Tasks {
    name: Arc<str>,
    token: CancellationToken,
    /// This group's tracker first, then those of its ancestors: waiting for a parent waits for its children.
    trackers: Arc<[TaskTracker]>,
    root: Arc<Root>,
}

/// What all groups of a tree share.
#[derive(Debug)]
struct Root {
    token: CancellationToken,
    failed: watch::Sender<Option<Failure>>,
    next: AtomicU64,
    live: Mutex<BTreeMap<u64, Live>>,
}

#[derive(Debug)]
struct Live {
    name: String,
    /// None for a thread, which cannot be aborted.
    abort: Option<AbortHandle>,
}

/// A task panicked.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("task {task} panicked: {panic}")]
pub struct Failure {
    /// The group and the task, as `group/task`.
    pub task: String,
    /// The text of the panic.
    pub panic: String,
}

/// Some tasks were still running when the deadline passed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("still running after {after:?}: {}", tasks.join(", "))]
pub struct Unfinished {
    /// How long was waited.
    pub after: Duration,
    /// The names of the tasks, as `group/task`.
    pub tasks: Vec<String>,
}

/// The result of a task, for who wants to wait for it. Dropping it leaves the task running: its group owns it.
#[derive(Debug)]
pub struct TaskHandle<T> {
    result: oneshot::Receiver<T>,
    abort: Option<AbortHandle>,
}

impl<T> TaskHandle<T> {
    /// Waits for the result; `None` when the task panicked, was aborted, or gave up on cancellation.
    pub async fn join(self) -> Option<T> {
        self.result.await.ok()
    }

    /// Waits for the result without giving the handle up, so that a `select!` may look again; to be asked once more only
    /// when it was dropped before it was ready.
    pub async fn wait(&mut self) -> Option<T> {
        (&mut self.result).await.ok()
    }

    /// Stops the task at its next await. Has no effect on a thread or on blocking work that has begun.
    pub fn abort(&self) {
        if let Some(abort) = &self.abort {
            abort.abort();
        }
    }
}

impl Tasks {
    /// A new tree of tasks with its root group.
    pub fn new(name: &str) -> Self {
        let token = CancellationToken::new();
        let root = Root {
            token: token.clone(),
            failed: watch::Sender::new(None),
            next: AtomicU64::new(0),
            live: Mutex::new(BTreeMap::new()),
        };
        Self { name: Arc::from(name), token, trackers: Arc::new([TaskTracker::new()]), root: Arc::new(root) }
    }

    /// A group that can be cancelled and waited for by itself, and that ends with this one.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        let trackers = std::iter::once(TaskTracker::new()).chain(self.trackers.iter().cloned()).collect();
        Self {
            name: Arc::from(format!("{}/{name}", self.name)),
            token: self.token.child_token(),
            trackers,
            root: Arc::clone(&self.root),
        }
    }

    /// Starts a task. It must watch [`Tasks::cancelled`] itself and finish what it owes before it returns.
    pub fn spawn<F>(&self, name: impl Into<Cow<'static, str>>, future: F) -> TaskHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let entry = self.enter(&name.into());
        let (id, root) = (entry.id, Arc::clone(&self.root));
        let (send, result) = oneshot::channel();
        #[allow(clippy::disallowed_methods, reason = "this is the owner that all others must use")]
        let handle = tokio::spawn(async move {
            match AssertUnwindSafe(future).catch_unwind().await {
                // Nobody waiting for the result is fine.
                Ok(value) => drop(send.send(value)),
                Err(panic) => entry.fail(panic.as_ref()),
            }
        });
        let abort = handle.abort_handle();
        if let Some(live) = root.live.lock().get_mut(&id) {
            live.abort = Some(abort.clone());
        }
        TaskHandle { result, abort: Some(abort) }
    }

    /// Starts a task that is dropped at its next await once the group is cancelled: for work that owes nothing.
    pub fn spawn_until_cancelled<F>(&self, name: impl Into<Cow<'static, str>>, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let token = self.token.clone();
        self.spawn(name, async move {
            token.run_until_cancelled(future).await;
        });
    }

    /// Runs blocking work on the runtime's pool for it; the result comes through the handle.
    pub fn spawn_blocking<F, T>(&self, name: impl Into<Cow<'static, str>>, work: F) -> TaskHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let entry = self.enter(&name.into());
        let (send, result) = oneshot::channel();
        #[allow(clippy::disallowed_methods, reason = "this is the owner that all others must use")]
        tokio::task::spawn_blocking(move || entry.run(work, send));
        TaskHandle { result, abort: None }
    }

    /// Starts a thread of its own, for work that blocks as long as the process lives (a database writer).
    ///
    /// # Errors
    /// When the system refuses another thread.
    pub fn spawn_thread<F, T>(&self, name: &'static str, work: F) -> std::io::Result<TaskHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let entry = self.enter(name);
        let (send, result) = oneshot::channel();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || entry.run(work, send))?;
        Ok(TaskHandle { result, abort: None })
    }

    /// Tells this group and its children to end.
    pub fn cancel(&self) {
        self.token.cancel();
    }

    /// Whether the group was told to end.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Resolves when the group is told to end.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.token.cancelled()
    }

    /// The group's token, for libraries that take one.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Waits until all tasks of this group and its children have ended, at most for `deadline`.
    ///
    /// # Errors
    /// Names the tasks that had not ended; they go on running until [`Tasks::abort`].
    pub async fn wait(&self, deadline: Duration) -> Result<(), Unfinished> {
        let Some(own) = self.trackers.first() else { return Ok(()) };
        own.close();
        let ended = tokio::time::timeout(deadline, own.wait()).await;
        // A group may be used again after it was waited for.
        own.reopen();
        ended.map_err(|_| Unfinished { after: deadline, tasks: self.running() })
    }

    /// Cancels, waits for at most `deadline`, and aborts what then still runs.
    ///
    /// # Errors
    /// Names the tasks that had to be aborted.
    pub async fn stop(&self, deadline: Duration) -> Result<(), Unfinished> {
        self.cancel();
        self.wait(deadline).await.inspect_err(|_| self.abort())
    }

    /// Aborts all tasks of this group and its children at their next await. Threads and blocking work go on.
    pub fn abort(&self) {
        for live in self.root.live.lock().values().filter(|live| self.owns(&live.name)) {
            if let Some(abort) = &live.abort {
                abort.abort();
            }
        }
    }

    /// The names of the running tasks of this group and its children.
    pub fn running(&self) -> Vec<String> {
        self.root.live.lock().values().filter(|live| self.owns(&live.name)).map(|l| l.name.clone()).collect()
    }

    /// The first panic of the whole tree, if there was one.
    pub fn failure(&self) -> Option<Failure> {
        self.root.failed.borrow().clone()
    }

    /// Resolves with the first panic of the whole tree.
    pub async fn failed(&self) -> Failure {
        let mut watch = self.root.failed.subscribe();
        loop {
            if let Some(failure) = watch.borrow_and_update().clone() {
                return failure;
            }
            if watch.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn owns(&self, task: &str) -> bool {
        task.strip_prefix(&*self.name).is_some_and(|rest| rest.starts_with('/'))
    }

    fn enter(&self, task: &str) -> Entry {
        let id = self.root.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}/{task}", self.name);
        self.root.live.lock().insert(id, Live { name: name.clone(), abort: None });
        let tokens = self.trackers.iter().map(TaskTracker::token).collect();
        Entry { id, name, root: Arc::clone(&self.root), _tokens: tokens }
    }
}

/// A task's place in its tree, held while it runs.
struct Entry {
    id: u64,
    name: String,
    root: Arc<Root>,
    _tokens: Vec<TaskTrackerToken>,
}

impl Entry {
    fn run<T>(self, work: impl FnOnce() -> T, send: oneshot::Sender<T>) {
        match std::panic::catch_unwind(AssertUnwindSafe(work)) {
            // Nobody waiting for the result is fine.
            Ok(value) => drop(send.send(value)),
            Err(panic) => self.fail(panic.as_ref()),
        }
    }

    fn fail(&self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let panic = text.unwrap_or_else(|| "no text".to_owned());
        tracing::error!(task = %self.name, panic, "a task panicked; this process goes down");
        let failure = Failure { task: self.name.clone(), panic };
        self.root.failed.send_modify(|first| {
            first.get_or_insert(failure);
        });
        self.root.token.cancel();
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.root.live.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_task_gives_its_result_and_leaves_the_list() {
        let tasks = Tasks::new("hub");
        assert_eq!(tasks.spawn("answer", async { 42 }).join().await, Some(42));
        assert_eq!(tasks.spawn_blocking("sum", || 1 + 1).join().await, Some(2));
        assert_eq!(tasks.spawn_thread("writer", || 3).unwrap().join().await, Some(3));
        tasks.wait(SOON).await.unwrap();
        assert!(tasks.running().is_empty());
        assert_eq!(tasks.failure(), None);
    }

    #[tokio::test]
    async fn a_panic_cancels_the_whole_tree_and_is_seen() {
        let tasks = Tasks::new("hub");
        let sibling = tasks.child("api");
        let waits = sibling.clone();
        sibling.spawn("accept", async move { waits.cancelled().await });
        tasks.child("store").spawn("writer", async { panic!("disk on fire") });
        let failure = tokio::time::timeout(SOON, tasks.failed()).await.unwrap();
        assert_eq!(failure, Failure { task: "hub/store/writer".into(), panic: "disk on fire".into() });
        tasks.wait(SOON).await.unwrap();
        assert!(sibling.is_cancelled());
    }

    #[tokio::test]
    async fn panics_of_threads_and_blocking_work_are_seen_too() {
        for blocking in [true, false] {
            let tasks = Tasks::new("hub");
            if blocking {
                tasks.spawn_blocking("hash", || panic!("{}", "text"));
            } else {
                tasks.spawn_thread("hash", || panic!("{}", "text")).unwrap();
            }
            let failure = tokio::time::timeout(SOON, tasks.failed()).await.unwrap();
            assert_eq!(failure.panic, "text");
        }
    }

    #[tokio::test]
    async fn a_child_ends_alone_and_its_parent_waits_for_it() {
        let tasks = Tasks::new("hub");
        let child = tasks.child("conn");
        let waits = child.clone();
        child.spawn("serve", async move { waits.cancelled().await });
        let unfinished = tasks.wait(Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(unfinished.tasks, ["hub/conn/serve"]);
        child.cancel();
        tasks.wait(SOON).await.unwrap();
        assert!(!tasks.is_cancelled());
    }

    #[tokio::test]
    async fn stop_aborts_what_does_not_listen() {
        let tasks = Tasks::new("hub");
        let deaf = tasks.spawn("deaf", std::future::pending::<()>());
        tasks.spawn_until_cancelled("polite", std::future::pending::<()>());
        let unfinished = tasks.stop(Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(unfinished.tasks, ["hub/deaf"]);
        assert_eq!(deaf.join().await, None);
        tasks.wait(SOON).await.unwrap();
        assert_eq!(tasks.failure(), None, "an abort is no panic");
    }

    #[tokio::test]
    async fn a_group_does_not_own_another_whose_name_it_begins() {
        let tasks = Tasks::new("hub");
        let (a, b) = (tasks.child("conn"), tasks.child("conn2"));
        b.spawn_until_cancelled("serve", std::future::pending::<()>());
        assert!(a.running().is_empty());
        b.stop(SOON).await.unwrap();
    }
}
