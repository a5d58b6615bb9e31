//! The task of the active node that removes the users of intents which did not become leases.
//!
//! `Open` -> mark `Sweep` (from then on the lease can no longer be written) -> cancel and remove the user ->
//! mark `Verify` -> a minute later remove it again -> drop the record. Never gives up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Batch, Key, Next, State, Written};
use crate::time::{Spread, doubling, earliest, jittered};
use crate::{Mono, Term};

/// The times and bounds of a [`Sweeper`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many intents are worked on at once; 16.
    pub at_once: usize,
    /// The pause after the first failure, doubling, +-20 %; 1 s.
    pub pause: Duration,
    /// The longest pause; 60 s.
    pub pause_ceiling: Duration,
    /// The time between the two removals; 60 s.
    pub verify_after: Duration,
    /// How often every intent is read from the store again; 60 s. A record whose writing was given up may still
    /// have been written, and then only the store knows of it.
    pub reload_every: Duration,
    /// The age from which an intent is reported, and the time between two reports of it; 1 h.
    pub report_every: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            at_once: 16,
            pause: Duration::from_secs(1),
            pause_ceiling: Duration::from_secs(60),
            verify_after: Duration::from_secs(60),
            reload_every: Duration::from_secs(60),
            report_every: Duration::from_secs(3600),
        }
    }
}

/// What the shell tells a [`Sweeper`]. `X` names an executor: a database configuration or a spoke.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event<X> {
    /// This node's gate opened for `term`.
    Began {
        /// The term.
        term: Term,
    },
    /// The gate closed. Everything is forgotten; the records are in the store.
    Ended,
    /// An intent exists: read from the store after [`Effect::Load`] or [`Effect::Reread`], committed just now, or
    /// entrusted by its creation.
    Known {
        /// Its key.
        key: Key,
        /// The state of its record.
        state: State,
        /// From when an `Open` one may be swept.
        due: Mono,
        /// When it was opened, for reports.
        opened: Mono,
        /// Who removes its user.
        executor: X,
    },
    /// The record is gone: its lease was written, or its creation dropped it.
    Gone {
        /// Its key.
        key: Key,
    },
    /// An [`Effect::Write`] ended.
    Written {
        /// The batch.
        batch: Batch,
        /// How.
        written: Written,
    },
    /// An [`Effect::Remove`] ended.
    Removed {
        /// The intent.
        key: Key,
        /// The term in which the removal was started.
        term: Term,
        /// Whether the user is gone; one that never was is gone too.
        gone: bool,
    },
    /// An executor that could not be reached is back: what waits for it is tried at once.
    ExecutorBack {
        /// Which one.
        executor: X,
    },
    /// Time passed.
    Tick,
}

/// What the shell must do, in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Read every intent from the store, in pages, and tell each one as [`Event::Known`]. Comes again from time
    /// to time.
    Load(Term),
    /// Commit this batch and answer with [`Event::Written`].
    Write(Batch),
    /// Cancel the key at its executor, remove the user, answer with [`Event::Removed`] in any case and in
    /// bounded time.
    Remove(Key, Term),
    /// Read one record again; answer with [`Event::Known`] or [`Event::Gone`].
    Reread(Key),
    /// Log at ERROR that this intent is as old as that.
    ReportOld(Key, Duration),
}

#[derive(Clone, Debug)]
struct Intent<X> {
    state: State,
    executor: X,
    opened: Mono,
    report_at: Mono,
    failures: u32,
    /// A batch did not apply: the record has to be read before anything else.
    unsure: bool,
    step: Step,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// Nothing runs; the next step is due at this instant.
    Waiting(Mono),
    Writing,
    Removing,
}

/// The sweeper of one node.
#[derive(Clone, Debug)]
pub struct Sweeper<X> {
    limits: Limits,
    spread: Spread,
    term: Option<Term>,
    intents: BTreeMap<Key, Intent<X>>,
    by_executor: BTreeMap<X, BTreeSet<Key>>,
    wakes: BTreeSet<(Mono, Key)>,
    reports: BTreeSet<(Mono, Key)>,
    running: usize,
    reload_at: Mono,
}

impl<X: Clone + Ord> Sweeper<X> {
    /// Idle until its node's gate opens; `spread` gives the jitter.
    pub const fn new(limits: Limits, spread: Spread) -> Self {
        Self {
            limits,
            spread,
            term: None,
            intents: BTreeMap::new(),
            by_executor: BTreeMap::new(),
            wakes: BTreeSet::new(),
            reports: BTreeSet::new(),
            running: 0,
            reload_at: Mono::FAR,
        }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event<X>, out: &mut Vec<Effect>) {
        match event {
            Event::Began { term } => {
                self.forget_all();
                self.term = Some(term);
                self.reload_at = now;
            }
            Event::Ended => self.forget_all(),
            Event::Known { key, state, due, opened, executor } if self.term.is_some() => {
                self.known(now, key, state, due, opened, executor);
            }
            Event::Gone { key } => self.forget(key),
            Event::Written { batch, written } if self.term == Some(batch.term) => {
                self.written(now, batch, written, out);
            }
            Event::Removed { key, term, gone } if self.term == Some(term) => {
                self.removed(now, key, term, gone, out);
            }
            Event::ExecutorBack { executor } => self.executor_back(now, &executor),
            _ => {}
        }
        self.reload(now, out);
        self.start(now, out);
        self.report(now, out);
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Mono> {
        let free = self.running < self.limits.at_once;
        let wake = self.wakes.first().filter(|_| free).map(|(at, _)| *at);
        let reload = Some(self.reload_at).filter(|at| *at != Mono::FAR);
        earliest(earliest(wake, reload), self.reports.first().map(|(at, _)| *at))
    }

    /// How many intents are known, by state: open, sweep, verify.
    pub fn counts(&self) -> [usize; 3] {
        let count = |state| self.intents.values().filter(|intent| intent.state == state).count();
        [count(State::Open), count(State::Sweep), count(State::Verify)]
    }

    /// How many intents are being worked on.
    pub const fn running(&self) -> usize {
        self.running
    }

    fn known(&mut self, now: Mono, key: Key, state: State, due: Mono, opened: Mono, executor: X) {
        // Of a record in `Verify` it is not known when it came there: the whole minute counts from now.
        let due = match state {
            State::Open => due,
            State::Sweep => now,
            State::Verify => now.after(self.limits.verify_after),
        };
        if let Some(intent) = self.intents.get_mut(&key) {
            let Step::Waiting(at) = intent.step else { return };
            let news = intent.unsure || state > intent.state;
            // A record that was asked for is believed even when it says less than we thought.
            intent.state = if intent.unsure { state } else { intent.state.max(state) };
            intent.unsure = false;
            let sooner = intent.state == State::Open && intent.failures == 0 && due < at;
            if news || sooner {
                self.wait_until(key, due.max(now));
            }
            return;
        }
        let report_at = opened.after(self.limits.report_every);
        self.by_executor.entry(executor.clone()).or_default().insert(key);
        self.reports.insert((report_at, key));
        self.wakes.insert((due, key));
        let step = Step::Waiting(due);
        self.intents
            .insert(key, Intent { state, executor, opened, report_at, failures: 0, unsure: false, step });
    }

    fn reload(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if let Some(term) = self.term.filter(|_| self.reload_at <= now) {
            self.reload_at = now.after(self.limits.reload_every);
            out.push(Effect::Load(term));
        }
    }

    fn start(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let Some(term) = self.term else { return };
        while self.running < self.limits.at_once {
            let Some((_, key)) = self.wakes.first().copied().filter(|(at, _)| *at <= now) else { return };
            let Some(intent) = self.intents.get(&key) else { return };
            if intent.unsure {
                self.fail(now, key, out);
                continue;
            }
            if intent.state == State::Open {
                let batch = Batch::new(key, term, Some(State::Open), Next::State(State::Sweep));
                self.run(key, Step::Writing);
                out.push(Effect::Write(batch));
            } else {
                self.run(key, Step::Removing);
                out.push(Effect::Remove(key, term));
            }
        }
    }

    fn written(&mut self, now: Mono, batch: Batch, written: Written, out: &mut Vec<Effect>) {
        let Batch { key, term, from, .. } = batch;
        let ours = |intent: &&mut Intent<X>| intent.step == Step::Writing && from == Some(intent.state);
        let Some(intent) = self.intents.get_mut(&key).filter(ours) else { return };
        if written != Written::Applied {
            intent.unsure = true;
            self.fail(now, key, out);
            return;
        }
        match intent.state {
            State::Open => {
                intent.state = State::Sweep;
                intent.step = Step::Removing;
                out.push(Effect::Remove(key, term));
            }
            State::Sweep => {
                intent.state = State::Verify;
                intent.failures = 0;
                self.wait_until(key, now.after(self.limits.verify_after));
            }
            State::Verify => self.forget(key),
        }
    }

    fn removed(&mut self, now: Mono, key: Key, term: Term, gone: bool, out: &mut Vec<Effect>) {
        let Some(intent) = self.intents.get_mut(&key).filter(|intent| intent.step == Step::Removing) else {
            return;
        };
        if !gone {
            self.fail(now, key, out);
            return;
        }
        let to = match intent.state {
            State::Open | State::Sweep => Next::State(State::Verify),
            State::Verify => Next::Nothing,
        };
        intent.step = Step::Writing;
        out.push(Effect::Write(Batch::new(key, term, Some(intent.state), to)));
    }

    fn executor_back(&mut self, now: Mono, executor: &X) {
        let keys = self.by_executor.get(executor).into_iter().flatten().copied();
        let failed = |key: &Key| {
            self.intents
                .get(key)
                .is_some_and(|intent| intent.failures > 0 && matches!(intent.step, Step::Waiting(_)))
        };
        for key in keys.filter(failed).collect::<Vec<_>>() {
            if let Some(intent) = self.intents.get_mut(&key) {
                intent.failures = 0;
            }
            self.wait_until(key, now);
        }
    }

    /// Backs off; a record that may have changed is read meanwhile.
    fn fail(&mut self, now: Mono, key: Key, out: &mut Vec<Effect>) {
        let Some(intent) = self.intents.get_mut(&key) else { return };
        let pause = doubling(self.limits.pause, self.limits.pause_ceiling, intent.failures);
        intent.failures = intent.failures.saturating_add(1);
        if intent.unsure {
            out.push(Effect::Reread(key));
        }
        let pause = jittered(pause, 0.2, self.spread.unit()).min(self.limits.pause_ceiling);
        self.wait_until(key, now.after(pause));
    }

    fn wait_until(&mut self, key: Key, at: Mono) {
        let Some(intent) = self.intents.get_mut(&key) else { return };
        match std::mem::replace(&mut intent.step, Step::Waiting(at)) {
            Step::Waiting(before) => {
                self.wakes.remove(&(before, key));
            }
            Step::Writing | Step::Removing => self.running = self.running.saturating_sub(1),
        }
        self.wakes.insert((at, key));
    }

    fn run(&mut self, key: Key, step: Step) {
        let Some(intent) = self.intents.get_mut(&key) else { return };
        if let Step::Waiting(at) = std::mem::replace(&mut intent.step, step) {
            self.wakes.remove(&(at, key));
            self.running = self.running.saturating_add(1);
        }
    }

    fn report(&mut self, now: Mono, out: &mut Vec<Effect>) {
        while let Some((at, key)) = self.reports.first().copied().filter(|(at, _)| *at <= now) {
            self.reports.remove(&(at, key));
            let Some(intent) = self.intents.get_mut(&key) else { return };
            intent.report_at = now.after(self.limits.report_every);
            self.reports.insert((intent.report_at, key));
            out.push(Effect::ReportOld(key, now.since(intent.opened)));
        }
    }

    fn forget(&mut self, key: Key) {
        let Some(intent) = self.intents.remove(&key) else { return };
        self.reports.remove(&(intent.report_at, key));
        match intent.step {
            Step::Waiting(at) => {
                self.wakes.remove(&(at, key));
            }
            Step::Writing | Step::Removing => self.running = self.running.saturating_sub(1),
        }
        if let Some(keys) = self.by_executor.get_mut(&intent.executor) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_executor.remove(&intent.executor);
            }
        }
    }

    fn forget_all(&mut self) {
        self.term = None;
        self.reload_at = Mono::FAR;
        self.running = 0;
        self.intents.clear();
        self.by_executor.clear();
        self.wakes.clear();
        self.reports.clear();
    }
}

#[cfg(test)]
mod tests;
