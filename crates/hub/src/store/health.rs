//! What a writer does when the disk refuses: it holds what it could not write and tries again when told to.
//!
//! The consensus library takes any storage error for the end of the node, so a full disk must never reach it: the
//! write stays unacknowledged, which is true, and this node cannot lead or vote meanwhile.

use parking_lot::{Condvar, Mutex};

/// What a held writer reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Report {
    /// A write failed.
    Failed,
    /// A repeated write failed again.
    StillFailing,
    /// All held writes went through.
    Recovered,
}

type Listener = Box<dyn Fn(Report) + Send + Sync>;

/// Shared by the writers of a node and its gate.
pub(super) struct Health {
    state: Mutex<State>,
    wake: Condvar,
    listener: Mutex<Option<Listener>>,
}

#[derive(Default)]
struct State {
    tests: u64,
    held: usize,
    closed: bool,
}

impl Health {
    pub(super) fn new() -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), listener: Mutex::new(None) }
    }

    pub(super) fn listen(&self, listener: Listener) {
        *self.listener.lock() = Some(listener);
    }

    /// Lets held writers try again.
    pub(super) fn test(&self) {
        self.state.lock().tests += 1;
        self.wake.notify_all();
    }

    /// Lets held writers give up.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_all();
    }

    /// Runs `write` until it succeeds; `None` when the node closes before that.
    pub(super) fn persist<T, E: std::fmt::Display>(
        &self,
        what: &'static str,
        mut write: impl FnMut() -> Result<T, E>,
    ) -> Option<T> {
        let first = match write() {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        self.state.lock().held += 1;
        tracing::error!(what, error = %first, "the store cannot be written; this node will not lead or vote");
        self.report(Report::Failed);
        loop {
            if !self.wait_for_test() {
                self.state.lock().held -= 1;
                return None;
            }
            match write() {
                Ok(value) => {
                    let left = {
                        let mut state = self.state.lock();
                        state.held -= 1;
                        state.held
                    };
                    if left == 0 {
                        self.report(Report::Recovered);
                    }
                    return Some(value);
                }
                Err(error) => {
                    tracing::debug!(what, %error, "the store still cannot be written");
                    self.report(Report::StillFailing);
                }
            }
        }
    }

    fn wait_for_test(&self) -> bool {
        let mut state = self.state.lock();
        let seen = state.tests;
        while !state.closed && state.tests == seen {
            self.wake.wait(&mut state);
        }
        !state.closed
    }

    fn report(&self, report: Report) {
        if let Some(listener) = self.listener.lock().as_ref() {
            listener(report);
        }
    }
}
