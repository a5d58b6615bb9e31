//! What is known of each key: running, finished or cancelled. Bounded in time and number.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Outcome;
use crate::driver::IdempotencyKey;
use crate::error::{DriverError, Reason};

/// How long an outcome or a cancelled key is kept.
pub(super) const KEPT: Duration = Duration::from_secs(600);
/// How many outcomes, and how many cancelled keys, are kept.
pub(super) const MOST: usize = 4096;

/// A creation that runs or is over.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) outcome: watch::Sender<Outcome>,
    pub(super) stop: CancellationToken,
}

impl Entry {
    pub(super) fn running(stop: CancellationToken) -> Self {
        Self { outcome: watch::Sender::new(None), stop }
    }
}

#[derive(Debug)]
struct Slot {
    entry: Entry,
    /// Callers that wait for the outcome.
    waiting: usize,
    done: bool,
}

/// Keys and what is known of them.
#[derive(Debug, Default)]
pub(super) struct Table {
    runs: HashMap<IdempotencyKey, Slot>,
    /// Finished keys, oldest first.
    finished: VecDeque<(Instant, IdempotencyKey)>,
    cancelled: HashMap<IdempotencyKey, Instant>,
    /// Cancelled keys, oldest first.
    cancelled_order: VecDeque<(Instant, IdempotencyKey)>,
}

impl Table {
    /// Forgets what is older than [`KEPT`].
    pub(super) fn expire(&mut self) {
        self.expire_at(Instant::now());
    }

    pub(super) fn expire_at(&mut self, now: Instant) {
        let Some(limit) = now.checked_sub(KEPT) else { return };
        while self.finished.front().is_some_and(|(at, _)| *at <= limit) {
            self.forget_finished();
        }
        while self.cancelled_order.front().is_some_and(|(at, _)| *at <= limit) {
            self.forget_cancelled();
        }
    }

    fn forget_finished(&mut self) -> bool {
        let Some((_, key)) = self.finished.pop_front() else { return false };
        self.runs.remove(&key);
        true
    }

    fn forget_cancelled(&mut self) {
        if let Some((at, key)) = self.cancelled_order.pop_front()
            && self.cancelled.get(&key) == Some(&at)
        {
            self.cancelled.remove(&key);
        }
    }

    pub(super) fn is_cancelled(&self, key: IdempotencyKey) -> bool {
        self.cancelled.contains_key(&key)
    }

    /// The run of a key, with one more caller that waits for it.
    pub(super) fn entry(&mut self, key: IdempotencyKey) -> Option<Entry> {
        let slot = self.runs.get_mut(&key)?;
        slot.waiting += 1;
        Some(slot.entry.clone())
    }

    /// A new run with one caller that waits for it.
    pub(super) fn insert(&mut self, key: IdempotencyKey, entry: Entry) -> Result<(), DriverError> {
        if self.runs.len() >= MOST && !self.forget_finished() {
            return Err(DriverError::new(Reason::Busy, "too many users are being created at once"));
        }
        self.runs.insert(key, Slot { entry, waiting: 1, done: false });
        Ok(())
    }

    pub(super) fn finished(&mut self, key: IdempotencyKey) {
        if let Some(slot) = self.runs.get_mut(&key)
            && !slot.done
        {
            slot.done = true;
            self.finished.push_back((Instant::now(), key));
        }
    }

    /// Forgets a run that had no outcome worth keeping.
    pub(super) fn remove(&mut self, key: IdempotencyKey) {
        self.runs.remove(&key);
    }

    /// A caller no longer waits. Whether a creation runs for which nobody waits any more.
    pub(super) fn left(&mut self, key: IdempotencyKey, entry: &Entry) -> bool {
        // A key that was never tried may have another run by now.
        let Some(slot) =
            self.runs.get_mut(&key).filter(|slot| slot.entry.outcome.same_channel(&entry.outcome))
        else {
            return false;
        };
        slot.waiting = slot.waiting.saturating_sub(1);
        slot.waiting == 0 && !slot.done
    }

    /// Marks a key as cancelled and stops its run. Returns where to wait for the end of a run that has not ended.
    pub(super) fn cancel(&mut self, key: IdempotencyKey) -> Option<watch::Receiver<Outcome>> {
        self.expire();
        if self.cancelled.len() >= MOST && !self.cancelled.contains_key(&key) {
            self.forget_cancelled();
        }
        let now = Instant::now();
        if self.cancelled.insert(key, now).is_some() {
            self.cancelled_order.retain(|(_, other)| *other != key);
        }
        self.cancelled_order.push_back((now, key));
        let slot = self.runs.get(&key).filter(|slot| !slot.done)?;
        slot.entry.stop.cancel();
        Some(slot.entry.outcome.subscribe())
    }

    #[cfg(test)]
    pub(super) fn waiting(&self, key: IdempotencyKey) -> usize {
        self.runs.get(&key).map_or(0, |slot| slot.waiting)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.runs.len(), self.cancelled.len())
    }
}
