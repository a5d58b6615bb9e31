//! A watch: every change of some names, as long as the application asks for the next one.
//!
//! What must hold: nothing runs while the application does not ask, so that what was handed over is exactly what it
//! took; asking again after an unfinished call loses nothing; a closed client ends its watches.

mod connection;
mod lane;
mod opening;

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::select_all;
use holdfast_core::{AnswerKind, Wall};

use super::error::Error;
use super::shared::Shared;
use super::value::Value;
use lane::{Lane, Step};

/// The most names of one stream.
pub(super) const NAMES_PER_STREAM: usize = 1000;

/// What a watch tells.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A value: the current one at the beginning and after each reconnect, and each change. Nothing older than what
    /// the client handed over before.
    Update(Value),
    /// The replica confirmed the value that was handed over last. Nothing changed but its date.
    Fresh {
        /// The name.
        name: Arc<str>,
        /// The new date of its value.
        resolved_at: Wall,
        /// The endpoint that said so.
        endpoint: Arc<str>,
    },
    /// A name has no value, or none for this caller. It stays watched.
    Error {
        /// The name.
        name: Arc<str>,
        /// Why.
        kind: AnswerKind,
        /// For people.
        message: Arc<str>,
        /// The endpoint that said so.
        endpoint: Arc<str>,
    },
    /// The state of the watch changed.
    State(State),
    /// Two replicas have run different configurations for more than 30 s.
    ConfigDiffers {
        /// The endpoints, and the digests of their configurations.
        between: [(Arc<str>, Arc<str>); 2],
    },
    /// The client was closed. Nothing follows.
    Closed,
}

/// Whether changes arrive.
#[derive(Clone, Debug)]
pub enum State {
    /// They do.
    Live {
        /// The endpoint that sends them; that of the first stream, where there are several.
        endpoint: Arc<str>,
    },
    /// The connection is gone and another one is being made; the values handed over stay the newest known.
    Reconnecting {
        /// Since when, by this machine's clock.
        since: Wall,
        /// What happened last.
        error: Option<Error>,
    },
    /// The replicas refuse this caller; it is tried again, ever more slowly.
    Refused {
        /// Why.
        error: Error,
    },
}

impl State {
    /// How bad it is, for a watch of several streams.
    const fn rank(&self) -> u8 {
        match self {
            Self::Live { .. } => 0,
            Self::Reconnecting { .. } => 1,
            Self::Refused { .. } => 2,
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Live { endpoint: a }, Self::Live { endpoint: b }) => a == b,
            (Self::Refused { error: a }, Self::Refused { error: b }) => a.answer_kind() == b.answer_kind(),
            (a, b) => a.rank() == b.rank(),
        }
    }
}

/// A watch of some names. See [`Watch::next`].
pub struct Watch {
    shared: Arc<Shared>,
    lanes: Vec<Lane>,
    told: Option<State>,
    told_difference: u64,
    ended: bool,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch [{} streams, {:?}]", self.lanes.len(), self.told)
    }
}

impl Watch {
    pub(super) fn new(shared: Arc<Shared>, names: &[Arc<str>]) -> Self {
        let mut seen = std::collections::HashSet::new();
        let unique: Vec<_> = names.iter().filter(|name| seen.insert(Arc::clone(name))).cloned().collect();
        let lanes = unique.chunks(NAMES_PER_STREAM);
        let lanes = lanes.map(|names| Lane::new(Arc::clone(&shared), names.to_vec())).collect();
        Self { shared, lanes, told: None, told_difference: 0, ended: false }
    }

    /// The next event; none after [`Event::Closed`].
    ///
    /// What an [`Event::Update`] holds counts as taken once this returns it. Dropping the call before it returns is
    /// safe at any time and loses nothing. While nobody calls it, nothing is read: a watch that is not asked for a long
    /// time is cut by the server and catches up at the next call.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let mut closed = self.shared.closed.subscribe();
        loop {
            if let Some(event) = self.difference() {
                return Some(event);
            }
            let deadline = self.difference_deadline();
            let clock = self.shared.clock;
            let step = tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => None,
                step = any(&mut self.lanes) => Some(step),
                () = clock.sleep_until(deadline) => continue,
            };
            match step {
                None => {
                    self.ended = true;
                    self.lanes.clear();
                    return Some(Event::Closed);
                }
                Some((_, Step::Event(event))) => return Some(event),
                Some((lane, Step::Split(names))) => self.split(lane, names),
                Some((_, Step::State)) => {
                    if let Some(state) = self.state() {
                        return Some(Event::State(state));
                    }
                }
            }
        }
    }

    /// The state as it was told last; none before the first.
    pub fn state_now(&self) -> Option<&State> {
        self.told.as_ref()
    }

    /// The state of all streams together, if it is news.
    fn state(&mut self) -> Option<State> {
        let mut states = self.lanes.iter().map(Lane::state);
        let first = states.next()??;
        let worst = states.flatten().fold(first, |worst, state| match (&worst, &state) {
            (State::Reconnecting { since: a, .. }, State::Reconnecting { since: b, .. }) if b < a => state,
            _ if state.rank() > worst.rank() => state,
            _ => worst,
        });
        if self.told.as_ref().is_some_and(|told| told.is_like(&worst)) {
            return None;
        }
        self.told = Some(worst.clone());
        Some(worst)
    }

    /// A difference of configurations that was not told yet.
    fn difference(&mut self) -> Option<Event> {
        let confirmed = self.shared.divergence.lock().confirmed(self.shared.clock.now())?;
        if confirmed.episode <= self.told_difference {
            return None;
        }
        self.told_difference = confirmed.episode;
        let between = confirmed.between.map(|(endpoint, digest)| (self.shared.name(endpoint), digest));
        Some(Event::ConfigDiffers { between })
    }

    fn difference_deadline(&self) -> Option<holdfast_core::Mono> {
        let divergence = self.shared.divergence.lock();
        divergence.deadline().filter(|_| divergence.episode() > self.told_difference)
    }

    /// Goes on with several streams, since the names do not fit one address.
    fn split(&mut self, lane: usize, parts: Vec<Vec<Arc<str>>>) {
        if lane < self.lanes.len() {
            let old = self.lanes.swap_remove(lane);
            self.lanes.extend(old.split(parts));
        }
    }
}

/// The first step that any of the lanes makes.
async fn any(lanes: &mut [Lane]) -> (usize, Step) {
    if lanes.is_empty() {
        return std::future::pending().await;
    }
    let steps = lanes.iter_mut().map(|lane| lane.next().boxed());
    let (step, lane, _) = select_all(steps).await;
    (lane, step)
}

#[cfg(test)]
mod tests;
