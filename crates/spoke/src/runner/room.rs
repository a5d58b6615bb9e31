//! Who may run now and who waits: a limit for all and one for each database.
//!
//! The first in the queue whose database has room goes next, so that the commands of a slow database wait for it
//! without holding up those of another.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Load;

/// Places for commands. Clones are the same room.
#[derive(Clone, Debug)]
pub(super) struct Room(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    of: HashMap<String, usize>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    database: String,
    pool: usize,
    grant: oneshot::Sender<Place>,
}

/// A place at which a command runs; leaving it lets the next one in.
#[derive(Debug)]
pub(super) struct Place {
    room: Room,
    database: String,
}

/// A command's way to its place.
#[derive(Debug)]
pub(super) enum Entry {
    /// There was one.
    Now(Place),
    /// It waits for one.
    Later(oneshot::Receiver<Place>),
}

impl Entry {
    /// The place, once there is one.
    pub(super) async fn turn(self) -> Option<Place> {
        match self {
            Self::Now(place) => Some(place),
            Self::Later(grant) => grant.await.ok(),
        }
    }
}

impl State {
    fn admit(&mut self, limit: usize, database: &str, pool: usize) -> bool {
        let of = self.of.get(database).copied().unwrap_or(0);
        if self.running >= limit || of >= pool {
            return false;
        }
        self.running += 1;
        *self.of.entry(database.to_owned()).or_default() += 1;
        true
    }

    fn left(&mut self, database: &str) {
        self.running = self.running.saturating_sub(1);
        if let Some(of) = self.of.get_mut(database) {
            *of = of.saturating_sub(1);
            if *of == 0 {
                self.of.remove(database);
            }
        }
    }

    /// Takes the next one that may run out of the queue.
    fn next(&mut self, limit: usize) -> Option<Waiting> {
        self.waiting.retain(|waiting| !waiting.grant.is_closed());
        for index in 0..self.waiting.len() {
            let Some((database, pool)) = self.waiting.get(index).map(|w| (w.database.clone(), w.pool)) else {
                break;
            };
            if self.admit(limit, &database, pool) {
                return self.waiting.remove(index);
            }
        }
        None
    }
}

impl Room {
    pub(super) fn new(limit: usize) -> Self {
        Self(Arc::new(Shared { limit: limit.max(1), state: Mutex::default() }))
    }

    /// A place, or a place in the queue; `None` when that is full too.
    pub(super) fn enter(&self, database: &str, pool: usize) -> Option<Entry> {
        let mut state = self.0.state.lock();
        if state.admit(self.0.limit, database, pool) {
            drop(state);
            return Some(Entry::Now(Place { room: self.clone(), database: database.to_owned() }));
        }
        state.waiting.retain(|waiting| !waiting.grant.is_closed());
        if state.waiting.len() >= self.0.limit.saturating_mul(2) {
            return None;
        }
        let (grant, granted) = oneshot::channel();
        state.waiting.push_back(Waiting { database: database.to_owned(), pool, grant });
        Some(Entry::Later(granted))
    }

    pub(super) fn load(&self) -> Load {
        let state = self.0.state.lock();
        let queued = state.waiting.iter().filter(|waiting| !waiting.grant.is_closed()).count();
        Load { running: state.running, queued }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.room.0.state.lock();
        state.left(&self.database);
        let next = state.next(self.room.0.limit);
        // Not under the lock: when nobody waits for the grant any more, dropping it comes here again.
        drop(state);
        if let Some(Waiting { database, grant, .. }) = next {
            let _ = grant.send(Self { room: self.room.clone(), database });
        }
    }
}
