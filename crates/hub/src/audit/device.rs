//! One audit device: a thread that writes lines, and what its callers know of it.
//!
//! A device that does not answer in time is skipped from then on, so that it delays nobody again; it is back as
//! soon as its thread gets through. A device that refuses is skipped too and tried once a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use holdfast_ops::Tasks;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

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
    state: Mutex<State>,
    reopen: AtomicBool,
    metrics: Metrics,
}

/// A running device. Dropping it ends its thread once that has written what it has.
pub(super) struct Device {
    entry: DeviceEntry,
    queue: mpsc::Sender<Line>,
    shared: Arc<Shared>,
}

impl Device {
    /// Starts the thread. A device whose thread cannot be started takes no entries.
    pub(super) fn start(entry: DeviceEntry, tasks: &Tasks, metrics: Metrics) -> Arc<Self> {
        let state = State { state: DeviceState::Working, retry_at: Instant::now(), pending: 0 };
        metrics.audit_devices.get_or_create(&ByDevice { state: DeviceState::Working }).inc();
        let shared = Arc::new(Shared {
            path: entry.path.clone(),
            state: Mutex::new(state),
            reopen: AtomicBool::new(false),
            metrics,
        });
        let (queue, lines) = mpsc::channel(QUEUE);
        let (sink, thread_shared) = (Sink::new(&entry), Arc::clone(&shared));
        if let Err(error) = tasks.spawn_thread("audit", move || run(lines, sink, &thread_shared)) {
            tracing::error!(device = %entry.path, %error, "the audit device has no thread");
        }
        Arc::new(Self { entry, queue, shared })
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
        match self.queue.try_send(Line { bytes, taken }) {
            Ok(()) => {
                state.pending += 1;
                Some(answer)
            }
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.shared.change(&mut state, DeviceState::Blocked);
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
            self.shared.change(&mut state, DeviceState::Blocked);
        }
    }

    #[cfg(test)]
    pub(super) fn state(&self) -> DeviceState {
        self.shared.state.lock().state
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let state = self.shared.state.lock();
        self.shared.metrics.audit_devices.get_or_create(&ByDevice { state: state.state }).dec();
    }
}

impl Shared {
    fn change(&self, held: &mut State, state: DeviceState) {
        if held.state == state {
            return;
        }
        match state {
            DeviceState::Working => tracing::info!(device = %self.path, "the audit device works again"),
            DeviceState::Blocked => tracing::warn!(device = %self.path, "the audit device does not answer"),
            DeviceState::Failed => tracing::warn!(device = %self.path, "the audit device refuses entries"),
        }
        self.metrics.audit_devices.get_or_create(&ByDevice { state: held.state }).dec();
        self.metrics.audit_devices.get_or_create(&ByDevice { state }).inc();
        held.state = state;
    }

    fn answered(&self, lines: usize, outcome: &std::io::Result<()>) {
        let mut state = self.state.lock();
        state.pending = state.pending.saturating_sub(lines);
        match outcome {
            Ok(()) => self.change(&mut state, DeviceState::Working),
            Err(error) => {
                if state.state != DeviceState::Failed {
                    tracing::warn!(device = %self.path, %error, "writing an audit entry failed");
                }
                state.retry_at = Instant::now() + RETRY;
                self.change(&mut state, DeviceState::Failed);
            }
        }
    }
}

fn run(mut lines: mpsc::Receiver<Line>, mut sink: Sink, shared: &Shared) {
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
