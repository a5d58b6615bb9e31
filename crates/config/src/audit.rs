//! Audit: one JSON line for each name of each request, written by a thread of its own.
//!
//! What must hold: recording never waits; at most 10,000 lines wait for the sink; with `on_failure = "refuse"` no value is
//! given out whose line could not be taken, and no line that was taken is dropped.

mod line;
mod sink;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use holdfast_ops::Tasks;
use holdfast_ops::tasks::TaskHandle;
use parking_lot::{Condvar, Mutex};
use prometheus_client::metrics::counter::Counter;

pub use self::line::{Line, Message};

use self::sink::Sink;
use crate::config::{AuditSettings, AuditSink, OnAuditFailure};
use crate::problem::Problem;

/// Lines that wait for the sink, those that are being written included.
const QUEUE: usize = 10_000;
/// How long the thread gathers lines: a wake-up for each line would cost more than the line.
const GATHER: Duration = Duration::from_millis(5);
/// After so long a sink that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// No line can be taken now, and the configuration wants no answer without one.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("audit unavailable")]
pub struct AuditUnavailable;

/// The audit of one replica.
#[derive(Debug)]
pub struct Audit {
    node: String,
    shared: Arc<Shared>,
    thread: Mutex<Option<TaskHandle<()>>>,
}

/// What the callers and the thread share.
#[derive(Debug)]
struct Shared {
    rules: ArcSwap<AuditSettings>,
    queue: Mutex<Queue>,
    wake: Condvar,
    failing: AtomicBool,
    dropped: Counter,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    /// In `bytes`, and in the thread's hands.
    lines: usize,
    /// The sink that counts from now on.
    next: Option<Sink>,
    closing: bool,
}

/// What is wrong with the settings.
pub fn check(settings: &AuditSettings) -> Vec<Problem> {
    let mut problems = Vec::new();
    if settings.sink == AuditSink::File && settings.path.is_none() {
        problems.push(Problem::new("audit.path", "audit.path must be set with audit.sink = \"file\""));
    }
    if settings.max_size.get() == 0 {
        problems.push(Problem::new("audit.max_size", "audit.max_size must not be 0"));
    }
    problems
}

impl Audit {
    /// Opens the sink and starts the thread. `dropped` counts lines that were lost.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(settings: &AuditSettings, node: &str, tasks: &Tasks, dropped: Counter) -> io::Result<Self> {
        let sink = Sink::open(settings)?;
        let shared = Arc::new(Shared {
            rules: ArcSwap::from_pointee(settings.clone()),
            queue: Mutex::default(),
            wake: Condvar::new(),
            failing: AtomicBool::new(false),
            dropped,
        });
        let own = Arc::clone(&shared);
        let thread = tasks.spawn_thread("audit", move || own.run(sink))?;
        Ok(Self { node: node.to_owned(), shared, thread: Mutex::new(Some(thread)) })
    }

    /// Puts other settings in force. What was recorded before goes to the sink of before, as long as that takes it.
    ///
    /// # Errors
    /// When the new file cannot be opened; then nothing has changed.
    pub fn apply(&self, settings: &AuditSettings) -> io::Result<()> {
        let next = Sink::open(settings)?;
        let mut queue = self.shared.queue.lock();
        self.shared.rules.store(Arc::new(settings.clone()));
        queue.next = Some(next);
        self.shared.wake.notify_one();
        Ok(())
    }

    /// Whether deliveries are to be recorded.
    pub fn deliveries(&self) -> bool {
        let rules = self.shared.rules.load();
        rules.deliveries && rules.sink != AuditSink::Off
    }

    /// To be asked before a value is given out.
    ///
    /// # Errors
    /// With `on_failure = "refuse"`, while the sink fails or the queue is full.
    pub fn ready(&self) -> Result<(), AuditUnavailable> {
        let rules = self.shared.rules.load();
        if rules.on_failure == OnAuditFailure::Continue || rules.sink == AuditSink::Off {
            return Ok(());
        }
        let full = || self.shared.queue.lock().lines >= QUEUE;
        if self.shared.failing.load(Ordering::Acquire) || full() { Err(AuditUnavailable) } else { Ok(()) }
    }

    /// Takes a line. With `on_failure = "continue"` one that cannot be taken is dropped and counted.
    ///
    /// # Errors
    /// With `on_failure = "refuse"`, when the queue is full: the value must not be given out.
    pub fn record(&self, line: &Line<'_>) -> Result<(), AuditUnavailable> {
        let rules = self.shared.rules.load();
        if rules.sink == AuditSink::Off || (line.message == Message::Deliver && !rules.deliveries) {
            return Ok(());
        }
        let mut text = Vec::with_capacity(512);
        line.encode(&self.node, &mut text);
        let mut queue = self.shared.queue.lock();
        if queue.lines >= QUEUE {
            drop(queue);
            self.shared.dropped.inc();
            let refuse = rules.on_failure == OnAuditFailure::Refuse;
            return if refuse { Err(AuditUnavailable) } else { Ok(()) };
        }
        let idle = queue.bytes.is_empty();
        queue.bytes.extend_from_slice(&text);
        queue.lines += 1;
        let hurry = queue.lines == QUEUE / 2;
        drop(queue);
        if idle || hurry {
            self.shared.wake.notify_one();
        }
        Ok(())
    }

    /// Writes what was recorded and ends the thread; once is enough. Afterwards lines are only counted.
    ///
    /// # Errors
    /// When the sink did not take everything by the deadline.
    pub async fn close(&self, deadline: Duration) -> Result<(), AuditUnavailable> {
        self.shared.queue.lock().closing = true;
        self.shared.wake.notify_one();
        let thread = self.thread.lock().take();
        let Some(thread) = thread else { return Ok(()) };
        let ended = tokio::time::timeout(deadline, thread.join()).await.is_ok();
        let mut queue = self.shared.queue.lock();
        let lost = std::mem::replace(&mut queue.lines, QUEUE);
        drop(queue);
        if ended && lost == 0 {
            return Ok(());
        }
        tracing::warn!(lines = lost, "audit lines could not be written before the end");
        Err(AuditUnavailable)
    }
}

impl Drop for Audit {
    /// The thread ends with what it has, when nobody waited for it.
    fn drop(&mut self) {
        self.shared.queue.lock().closing = true;
        self.shared.wake.notify_one();
    }
}

impl Shared {
    /// The thread.
    fn run(&self, mut sink: Sink) {
        let mut batch = Vec::new();
        loop {
            let (next, closing) = self.gather(&mut batch);
            let failed = sink.write(&batch).err();
            self.tell(failed.as_ref().map(|failed| &failed.error));
            let written = failed.map_or(batch.len(), |failed| failed.written);
            self.settle(&mut batch, written);
            if let Some(next) = next {
                // What the former sink began it cannot end, and another one must not.
                if sink.is_torn() {
                    let rest = batch.iter().position(|byte| *byte == b'\n').map_or(batch.len(), |at| at + 1);
                    self.dropped.inc();
                    self.settle(&mut batch, rest);
                }
                sink = next;
            } else if closing {
                return;
            } else if !batch.is_empty() {
                self.after_failure(&mut sink, &mut batch);
            }
        }
    }

    /// Waits for something to do and takes all lines that came; the sink that comes next, and whether it is the end.
    fn gather(&self, batch: &mut Vec<u8>) -> (Option<Sink>, bool) {
        let mut queue = self.queue.lock();
        if batch.is_empty() {
            while queue.bytes.is_empty() && queue.next.is_none() && !queue.closing {
                self.wake.wait(&mut queue);
            }
            if queue.next.is_none() && !queue.closing && queue.lines < QUEUE / 2 {
                self.wake.wait_for(&mut queue, GATHER);
            }
            std::mem::swap(batch, &mut queue.bytes);
        } else {
            batch.append(&mut queue.bytes);
        }
        (queue.next.take(), queue.closing)
    }

    /// Keeps what the sink did not take for a later try, or gives it up.
    fn after_failure(&self, sink: &mut Sink, batch: &mut Vec<u8>) {
        if self.rules.load().on_failure == OnAuditFailure::Refuse {
            let mut queue = self.queue.lock();
            if queue.next.is_none() && !queue.closing {
                self.wake.wait_for(&mut queue, RETRY);
            }
            return;
        }
        sink.give_up();
        self.dropped.inc_by(u64::try_from(newlines(batch)).unwrap_or(u64::MAX));
        let all = batch.len();
        self.settle(batch, all);
    }

    /// So many bytes of the batch are owed no more.
    fn settle(&self, batch: &mut Vec<u8>, bytes: usize) {
        let lines = newlines(batch.get(..bytes).unwrap_or(batch));
        batch.drain(..bytes.min(batch.len()));
        let mut queue = self.queue.lock();
        queue.lines = queue.lines.saturating_sub(lines);
    }

    /// Says how the sink does, when that changed.
    fn tell(&self, error: Option<&io::Error>) {
        let was = self.failing.swap(error.is_some(), Ordering::AcqRel);
        match error {
            Some(error) if !was => tracing::warn!(%error, "audit lines cannot be written"),
            None if was => tracing::info!("audit lines are written again"),
            _ => {}
        }
    }
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
#[path = "audit/audit_tests.rs"]
mod tests;
