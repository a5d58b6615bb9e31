//! One audit device: a thread that writes lines, and what its callers know of it.
//!
//! A device that does not answer in time is skipped from then on, so that it delays nobody again; it is back as
//! soon as its thread gets through. A device that refuses is skipped too and tried once a second. The thread opens its
//! file when it starts, so that a node says that it cannot record before it has to, and ends with its group of tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use holdfast_ops::Tasks;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::entry::DeviceEntry;
use super::file::Sink;
use crate::metrics::{ByDevice, DeviceState, Metrics};

/// Lines that wait for the thread; a full queue counts as not answering.
const QUEUE: usize = 256;
/// Lines in one write.
const GATHER: usize = 64;
/// How long a device that refused is left alone.
const RETRY: Duration = Duration::from_secs(1);

/// A line on its way, with where to say whether it was taken.
struct Line {
    bytes: Bytes,
    taken: oneshot::Sender<bool>,
}

struct State {
    state: DeviceState,
    /// When it may be tried again after it refused.
    retry_at: Instant,
    /// Lines handed over and not yet answered.
    pending: usize,
}

/// What the thread and the callers share.
struct Shared {
    path: String,
    file: String,
    state: Mutex<State>,
    reopen: AtomicBool,
    metrics: Metrics,
}

/// The way to the thread; empty once that was told to end.
type Queue = Arc<Mutex<Option<mpsc::Sender<Line>>>>;

/// A running device. Dropping it ends its thread once that has written what it has, and so does the end of the group
/// that owns the thread.
pub(super) struct Device {
    entry: DeviceEntry,
    queue: Queue,
    shared: Arc<Shared>,
    ended: CancellationToken,
}

impl Device {
    /// Starts the thread. A device whose thread cannot be started takes no entries.
    pub(super) fn start(entry: DeviceEntry, tasks: &Tasks, metrics: Metrics) -> Arc<Self> {
        let state = State { state: DeviceState::Working, retry_at: Instant::now(), pending: 0 };
        metrics.audit_devices.get_or_create(&ByDevice { state: DeviceState::Working }).inc();
        let shared = Arc::new(Shared {
            path: entry.path.clone(),
            file: entry.options.file_path.clone(),
            state: Mutex::new(state),
            reopen: AtomicBool::new(false),
            metrics,
        });
        let (queue, lines) = mpsc::channel(QUEUE);
        let (sink, thread_shared) = (Sink::new(&entry), Arc::clone(&shared));
        if let Err(error) = tasks.spawn_thread("audit", move || run(lines, sink, &thread_shared)) {
            tracing::error!(device = %entry.path, %error, "the audit device has no thread");
        }
        let queue = Arc::new(Mutex::new(Some(queue)));
        let ended = tasks.token().child_token();
        let (told, last) = (ended.clone(), Arc::clone(&queue));
        // Without its sender the thread ends behind the last line.
        tasks.spawn("audit-end", async move {
            told.cancelled().await;
            drop(last.lock().take());
        });
        Arc::new(Self { entry, queue, shared, ended })
    }

    /// Its configuration.
    pub(super) fn entry(&self) -> &DeviceEntry {
        &self.entry
    }

    /// Makes the next write open the file anew.
    pub(super) fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Release);
    }

    /// Hands a line over, unless the device is being skipped.
    pub(super) fn offer(&self, bytes: Bytes) -> Option<oneshot::Receiver<bool>> {
        let mut state = self.shared.state.lock();
        match state.state {
            DeviceState::Working => {}
            DeviceState::Failed if Instant::now() >= state.retry_at => {
                state.retry_at = Instant::now() + RETRY;
            }
            DeviceState::Failed | DeviceState::Blocked => return None,
        }
        let (taken, answer) = oneshot::channel();
        // The device is being disabled, or the node goes down.
        let queue = self.queue.lock().clone()?;
        match queue.try_send(Line { bytes, taken }) {
            Ok(()) => {
                state.pending += 1;
                Some(answer)
            }
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.shared.blocked(&mut state);
                None
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                self.shared.change(&mut state, DeviceState::Failed);
                None
            }
        }
    }

    /// It did not answer in time. Nothing is said of a device that got through in the same moment.
    pub(super) fn overdue(&self) {
        let mut state = self.shared.state.lock();
        if state.pending > 0 {
            self.shared.blocked(&mut state);
        }
    }

    /// What it did last.
    pub(super) fn state(&self) -> DeviceState {
        self.shared.state.lock().state
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.ended.cancel();
        let state = self.shared.state.lock();
        self.shared.metrics.audit_devices.get_or_create(&ByDevice { state: state.state }).dec();
    }
}

impl Shared {
    /// Whether that is news.
    fn change(&self, held: &mut State, state: DeviceState) -> bool {
        if held.state == state {
            return false;
        }
        self.metrics.audit_devices.get_or_create(&ByDevice { state: held.state }).dec();
        self.metrics.audit_devices.get_or_create(&ByDevice { state }).inc();
        held.state = state;
        true
    }

    fn blocked(&self, held: &mut State) {
        if self.change(held, DeviceState::Blocked) {
            tracing::warn!(device = %self.path, file = %self.file, "the audit device does not answer");
        }
    }

    /// What came of opening the file before there was anything to write.
    fn opened(&self, outcome: &std::io::Result<()>) {
        let Err(error) = outcome else { return };
        let mut state = self.state.lock();
        state.retry_at = Instant::now() + RETRY;
        self.change(&mut state, DeviceState::Failed);
        tracing::error!(device = %self.path, file = %self.file, %error,
            "the audit file cannot be opened; without another device this node can answer no request");
    }

    fn answered(&self, lines: usize, outcome: &std::io::Result<()>) {
        let mut state = self.state.lock();
        state.pending = state.pending.saturating_sub(lines);
        match outcome {
            Ok(()) => {
                if self.change(&mut state, DeviceState::Working) {
                    tracing::info!(device = %self.path, "the audit device works again");
                }
            }
            Err(error) => {
                state.retry_at = Instant::now() + RETRY;
                if self.change(&mut state, DeviceState::Failed) {
                    tracing::warn!(device = %self.path, file = %self.file, %error, "writing an audit entry failed");
                }
            }
        }
    }
}

fn run(mut lines: mpsc::Receiver<Line>, mut sink: Sink, shared: &Shared) {
    shared.opened(&sink.open());
    while let Some(first) = lines.blocking_recv() {
        let mut batch = vec![first];
        while batch.len() < GATHER
            && let Ok(next) = lines.try_recv()
        {
            batch.push(next);
        }
        if shared.reopen.swap(false, Ordering::AcqRel) {
            sink.close();
        }
        let outcome = sink.write(batch.iter().map(|line| &*line.bytes));
        shared.answered(batch.len(), &outcome);
        for line in batch {
            // A caller that gave up waiting is not told.
            let _ = line.taken.send(outcome.is_ok());
        }
    }
}
