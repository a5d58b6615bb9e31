//! Which leases are revoked when, by how many workers, and what becomes of those that cannot be.
//!
//! The store keeps the time-ordered index; this machine reads what is due from it, page by page, and holds only
//! that. What must hold: at most one revocation of a lease runs at a time, explicit or due, and a second caller
//! gets the first one's outcome; a failure is recorded before the lease is tried again; "could not be tried" uses
//! up no attempt; one configuration never uses more than half of its connections for revocation, and never holds
//! the others up. Each event costs O(log n) of the leases that are loaded.

mod queue;
mod reader;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use queue::Queue;
use reader::Reader;

use crate::time::{Spread, doubling, earliest, jittered};
use crate::{Mono, Term};

/// The times and bounds of a [`LeaseQueue`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many revocations run at once on this node; 200 (1-10000).
    pub workers: usize,
    /// The connections of a configuration that said nothing else; 16. Half of them revoke.
    pub connections: usize,
    /// How many retries follow the first attempt before a lease is irrevocable; 6.
    pub retries: u32,
    /// The time before the first retry, doubling, +-50 %; 10 s.
    pub retry: Duration,
    /// The time between two attempts on an irrevocable lease; 1 day.
    pub irrevocable_retry: Duration,
    /// The pause after "could not be tried", doubling; 1 s.
    pub pause: Duration,
    /// The longest pause; 60 s.
    pub pause_ceiling: Duration,
    /// How many leases a read of the index returns at most; 1000.
    pub page: usize,
    /// How many leases of one configuration are held in memory; more stay in the store meanwhile; 50000.
    pub loaded: usize,
    /// How often the index is read from its beginning, as a backstop; 5 min.
    pub rewind_every: Duration,
    /// The pause after the store refused to delete or to record; 1 s.
    pub store_pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            workers: 200,
            connections: 16,
            retries: 6,
            retry: Duration::from_secs(10),
            irrevocable_retry: Duration::from_secs(86_400),
            pause: Duration::from_secs(1),
            pause_ceiling: Duration::from_secs(60),
            page: 1000,
            loaded: 50_000,
            rewind_every: Duration::from_secs(300),
            store_pause: Duration::from_secs(1),
        }
    }
}

/// A lease as the store's index tells it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Due<I, Q> {
    /// Its id.
    pub id: I,
    /// Its place in the index: the expiry, or the next attempt.
    pub due: Mono,
    /// Its mount and database configuration.
    pub queue: Q,
    /// How many attempts have failed.
    pub failures: u32,
}

/// Someone who asked for a revocation and waits for its outcome.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Waiter(u64);

impl Waiter {
    /// Wraps a number, unique among those who wait.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }
}

/// How one attempt ended.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Attempt {
    /// The user is gone; one that never was is gone too.
    Removed,
    /// The database refused, or the attempt took too long.
    Failed,
    /// No further attempt can help.
    Unrecoverable,
    /// It was not tried: spoke offline or busy, owner unreachable, no connection, leadership lost.
    NotTried,
}

/// What one who waits is told.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Answer {
    /// The user and the lease are gone.
    Revoked,
    /// The attempt failed; the queue goes on with it.
    Failed,
    /// It could not be tried; the queue goes on with it.
    NotTried,
}

/// What the shell tells a [`LeaseQueue`]. `I` is a lease id, `Q` a mount and database configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event<I, Q> {
    /// This node's gate opened for `term`.
    Began {
        /// The term.
        term: Term,
    },
    /// The gate closed. What waits is forgotten. What runs is remembered until it ends, so that a gate that opens
    /// again does not start it a second time; the shell should cancel it.
    Ended,
    /// The answer to [`Effect::Read`].
    Page {
        /// The leases, in the order of the index.
        leases: Vec<Due<I, Q>>,
        /// Whether more are due by now.
        more: bool,
        /// When the first lease that is not due yet will be.
        next: Option<Mono>,
    },
    /// A read failed; it is repeated after a pause.
    PageFailed,
    /// A lease was put into the index at this place. To be told from every applied entry that puts or moves a
    /// lease, not from the answer to the one who wrote it: that one may have given up waiting.
    Scheduled {
        /// Its due time.
        due: Mono,
    },
    /// Someone asks to revoke a lease now. The shell has made it due in the store before, so that the wish
    /// survives this node.
    Asked {
        /// The lease, as the store holds it.
        lease: Due<I, Q>,
        /// Who waits, if anyone.
        waiter: Option<Waiter>,
    },
    /// The lease was renewed: it is not due any more. Ignored while [`LeaseQueue::is_revoking`].
    Renewed {
        /// The lease.
        id: I,
    },
    /// The lease is gone from the store by another way.
    Gone {
        /// The lease.
        id: I,
    },
    /// An [`Effect::Start`] ended. Each start is told exactly once, whatever became of the gate meanwhile.
    Finished {
        /// The lease.
        id: I,
        /// How.
        attempt: Attempt,
    },
    /// An [`Effect::Delete`] or an [`Effect::Record`] ended. Each is told exactly once.
    Stored {
        /// The lease.
        id: I,
        /// Whether it was applied; `false` too when that is not known.
        applied: bool,
    },
    /// The executor of a queue is back: what waits for it starts at once.
    ExecutorBack {
        /// The queue.
        queue: Q,
    },
    /// The configuration of a queue is gone, and nothing refers to it any more: it is forgotten once nothing of it
    /// runs.
    Retired {
        /// The queue.
        queue: Q,
    },
    /// How many connections a configuration has.
    Connections {
        /// The queue.
        queue: Q,
        /// Its connections.
        connections: usize,
    },
    /// Time passed.
    Tick,
}

/// What the shell must do, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect<I, Q> {
    /// Read the leases that are due by now, behind this place of the index, at most so many.
    Read {
        /// The last lease already read; `None`: from the beginning.
        after: Option<(Mono, I)>,
        /// At most so many.
        limit: usize,
    },
    /// Revoke the lease: remove its user. Ends, in bounded time, with [`Event::Finished`].
    Start {
        /// The lease.
        id: I,
        /// The term, which the executor and the store check.
        term: Term,
    },
    /// Delete the lease and its indexes, on condition of the term; answer with [`Event::Stored`].
    Delete {
        /// The lease.
        id: I,
        /// The condition.
        term: Term,
    },
    /// Record the failure and move the lease in the index, on condition of the term; answer with
    /// [`Event::Stored`].
    Record {
        /// The lease.
        id: I,
        /// The condition.
        term: Term,
        /// How many attempts have failed.
        failures: u32,
        /// The time of the next attempt, its new place in the index.
        due: Mono,
        /// Whether it is listed as irrevocable.
        irrevocable: bool,
    },
    /// Tell one who waits.
    Answer(Waiter, Answer),
    /// The executor of this queue could not be tried; the next try is at this instant.
    Parked(Q, Mono),
}

#[derive(Clone, Debug)]
struct Lease<Q> {
    queue: Q,
    failures: u32,
    step: Step,
    /// Its id stands in the queue of due leases.
    queued: bool,
    waiters: Vec<Waiter>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Due,
    Urgent,
    /// An attempt runs; it holds a worker.
    Running,
    /// The user is gone, the lease is being deleted; it holds its worker, so that a slow store slows us down.
    Deleting,
    /// The failure is being recorded, with the next attempt at this instant.
    Recording(Mono),
}

/// The revocations of one node.
#[derive(Clone, Debug)]
pub struct LeaseQueue<I, Q> {
    limits: Limits,
    spread: Spread,
    term: Option<Term>,
    leases: BTreeMap<I, Lease<Q>>,
    queues: BTreeMap<Q, Queue<I>>,
    round: VecDeque<Q>,
    parked: BTreeSet<(Mono, Q)>,
    running: usize,
    reader: Reader<I>,
    /// What was deleted or moved while a page was under way: the page may still tell of its old place.
    settled: BTreeSet<I>,
}

impl<I: Clone + Ord, Q: Clone + Ord> LeaseQueue<I, Q> {
    /// Idle until its node's gate opens; `spread` gives the jitter.
    pub const fn new(limits: Limits, spread: Spread) -> Self {
        Self {
            limits,
            spread,
            term: None,
            leases: BTreeMap::new(),
            queues: BTreeMap::new(),
            round: VecDeque::new(),
            parked: BTreeSet::new(),
            running: 0,
            reader: Reader::new(limits.rewind_every),
            settled: BTreeSet::new(),
        }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event<I, Q>, out: &mut Vec<Effect<I, Q>>) {
        match event {
            Event::Began { term } => self.began(now, term, out),
            Event::Ended => self.end(out),
            Event::Connections { queue, connections } => self.connections(queue, connections),
            Event::Retired { queue } => self.retired(queue),
            Event::Finished { id, attempt } => self.finished(now, id, attempt, out),
            Event::Stored { id, applied } => self.stored(now, id, applied, out),
            _ if self.term.is_none() => self.refuse(&event, out),
            Event::Page { leases, more, next } => self.page(now, leases, more, next),
            Event::PageFailed => {
                self.settled.clear();
                self.reader.page(now, None, false, Some(now.after(self.limits.store_pause)));
            }
            Event::Scheduled { due } => self.reader.scheduled(due),
            Event::Asked { lease, waiter } => self.asked(lease, waiter),
            Event::Renewed { id } if !self.is_revoking(&id) => self.forget(now, &id),
            Event::Gone { id } => self.gone(now, &id, out),
            Event::ExecutorBack { queue } => self.executor_back(&queue),
            Event::Renewed { .. } | Event::Tick => {}
        }
        self.unpark(now);
        self.start(out);
        self.read(now, out);
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Mono> {
        earliest(self.reader.deadline(), self.parked.first().map(|(at, _)| *at))
    }

    /// Whether a revocation of this lease runs or was asked for: it cannot be renewed any more.
    pub fn is_revoking(&self, id: &I) -> bool {
        self.leases.get(id).is_some_and(|lease| lease.step != Step::Due)
    }

    /// How many leases are in memory.
    pub fn loaded(&self) -> usize {
        self.leases.len()
    }

    /// How many queues are known.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// How many workers are busy.
    pub const fn running(&self) -> usize {
        self.running
    }

    fn began(&mut self, now: Mono, term: Term, out: &mut Vec<Effect<I, Q>>) {
        self.end(out);
        self.term = Some(term);
        self.reader.begin(now);
    }

    fn end(&mut self, out: &mut Vec<Effect<I, Q>>) {
        let waiters = self.leases.values_mut().flat_map(|lease| lease.waiters.drain(..));
        out.extend(waiters.map(|waiter| Effect::Answer(waiter, Answer::NotTried)));
        self.leases.retain(|_, lease| !matches!(lease.step, Step::Due | Step::Urgent));
        self.term = None;
        self.round.clear();
        self.parked.clear();
        self.settled.clear();
        self.reader.end();
        for queue in self.queues.values_mut() {
            *queue = Queue { running: queue.running, ..Queue::new(queue.limit) };
        }
        for lease in self.leases.values_mut() {
            lease.queued = false;
            if let Some(queue) = self.queues.get_mut(&lease.queue) {
                queue.loaded = queue.loaded.saturating_add(1);
            }
        }
    }

    /// Without a term nobody may revoke; one who waits is told so.
    fn refuse(&self, event: &Event<I, Q>, out: &mut Vec<Effect<I, Q>>) {
        if let Event::Asked { waiter: Some(waiter), .. } = event {
            out.push(Effect::Answer(*waiter, Answer::NotTried));
        }
    }

    fn connections(&mut self, queue: Q, connections: usize) {
        let limit = (connections / 2).max(1);
        self.queues.entry(queue.clone()).or_insert_with(|| Queue::new(limit)).limit = limit;
        self.enlist(&queue);
    }

    fn retired(&mut self, name: Q) {
        if let Some(queue) = self.queues.get_mut(&name) {
            queue.retired = true;
            self.drop_retired(&name);
        }
    }

    fn drop_retired(&mut self, name: &Q) {
        let over = |queue: &Queue<I>| queue.retired && queue.loaded == 0 && queue.running == 0;
        if self.queues.get(name).is_some_and(over)
            && let Some(until) = self.queues.remove(name).and_then(|queue| queue.parked)
        {
            self.parked.remove(&(until, name.clone()));
        }
    }

    fn page(&mut self, now: Mono, leases: Vec<Due<I, Q>>, more: bool, next: Option<Mono>) {
        let last = leases.last().map(|lease| (lease.due, lease.id.clone()));
        let settled = std::mem::take(&mut self.settled);
        for lease in leases.into_iter().filter(|lease| !settled.contains(&lease.id)) {
            let full = self.queues.get(&lease.queue).is_some_and(|queue| queue.loaded >= self.limits.loaded);
            if full && let Some(queue) = self.queues.get_mut(&lease.queue) {
                queue.skipped = true;
                continue;
            }
            self.insert(lease, Step::Due, None);
        }
        self.reader.page(now, last, more, next);
    }

    fn asked(&mut self, due: Due<I, Q>, waiter: Option<Waiter>) {
        let Some(lease) = self.leases.get_mut(&due.id) else {
            self.insert(due, Step::Urgent, waiter);
            return;
        };
        lease.waiters.extend(waiter);
        if lease.step == Step::Due {
            lease.step = Step::Urgent;
            let name = lease.queue.clone();
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.urgent.push_back(due.id);
            }
            self.enlist(&name);
        }
    }

    fn insert(&mut self, due: Due<I, Q>, step: Step, waiter: Option<Waiter>) {
        let Due { id, queue: name, failures, .. } = due;
        if self.leases.contains_key(&id) {
            return;
        }
        let limit = (self.limits.connections / 2).max(1);
        let queue = self.queues.entry(name.clone()).or_insert_with(|| Queue::new(limit));
        queue.loaded = queue.loaded.saturating_add(1);
        let place = if step == Step::Urgent { &mut queue.urgent } else { &mut queue.due };
        place.push_back(id.clone());
        let (queued, waiters) = (step == Step::Due, waiter.into_iter().collect());
        self.leases.insert(id, Lease { queue: name.clone(), failures, step, queued, waiters });
        self.enlist(&name);
    }

    fn finished(&mut self, now: Mono, id: I, attempt: Attempt, out: &mut Vec<Effect<I, Q>>) {
        let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.step == Step::Running) else {
            return;
        };
        let name = lease.queue.clone();
        let Some(term) = self.term else {
            // The gate closed meanwhile: whoever leads next finds the lease in the store.
            self.release(&name);
            self.forget(now, &id);
            return;
        };
        if attempt == Attempt::Removed {
            lease.step = Step::Deleting;
            self.answered(&name);
            out.push(Effect::Delete { id, term });
            return;
        }
        let waiters = std::mem::take(&mut lease.waiters);
        if attempt == Attempt::NotTried {
            lease.step = Step::Due;
            let queued = std::mem::replace(&mut lease.queued, true);
            self.release(&name);
            self.park(now, &name, (!queued).then_some(id), out);
            out.extend(waiters.into_iter().map(|waiter| Effect::Answer(waiter, Answer::NotTried)));
            return;
        }
        lease.failures = lease.failures.saturating_add(1);
        let failures = lease.failures;
        let irrevocable = attempt == Attempt::Unrecoverable || failures > self.limits.retries;
        let due = now.after(self.retry_after(failures, irrevocable));
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.step = Step::Recording(due);
        }
        self.release(&name);
        self.answered(&name);
        out.push(Effect::Record { id, term, failures, due, irrevocable });
        out.extend(waiters.into_iter().map(|waiter| Effect::Answer(waiter, Answer::Failed)));
    }

    fn retry_after(&mut self, failures: u32, irrevocable: bool) -> Duration {
        if irrevocable {
            return self.limits.irrevocable_retry;
        }
        let base = doubling(self.limits.retry, self.limits.irrevocable_retry, failures.saturating_sub(1));
        jittered(base, 0.5, self.spread.unit())
    }

    fn stored(&mut self, now: Mono, id: I, applied: bool, out: &mut Vec<Effect<I, Q>>) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let answer = match lease.step {
            Step::Deleting if applied => Answer::Revoked,
            Step::Recording(due) => {
                if applied {
                    self.reader.scheduled(due);
                }
                // Someone asked again while the failure was being recorded.
                Answer::Failed
            }
            Step::Deleting => Answer::NotTried,
            Step::Due | Step::Urgent | Step::Running => return,
        };
        if lease.step == Step::Deleting {
            let name = lease.queue.clone();
            self.release(&name);
        }
        if !applied {
            self.reader.rewind(now.after(self.limits.store_pause));
        }
        self.dismiss(now, &id, answer, out);
    }

    fn gone(&mut self, now: Mono, id: &I, out: &mut Vec<Effect<I, Q>>) {
        let waiting = self.leases.get(id).is_some_and(|lease| matches!(lease.step, Step::Due | Step::Urgent));
        if waiting {
            self.dismiss(now, id, Answer::Revoked, out);
        }
    }

    /// The executor answered, whatever it said: it can be tried.
    fn answered(&mut self, name: &Q) {
        self.executor_back(name);
    }

    fn executor_back(&mut self, name: &Q) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        queue.pauses = 0;
        if let Some(until) = queue.parked.take() {
            self.parked.remove(&(until, name.clone()));
        }
        self.enlist(name);
    }

    fn park(&mut self, now: Mono, name: &Q, id: Option<I>, out: &mut Vec<Effect<I, Q>>) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        if let Some(id) = id {
            queue.due.push_front(id);
        }
        // Others that ran beside this one tell the same thing once more; only the first one lengthens the pause.
        if queue.parked.is_some() {
            return;
        }
        let pause = doubling(self.limits.pause, self.limits.pause_ceiling, queue.pauses);
        queue.pauses = queue.pauses.saturating_add(1);
        let until = now.after(jittered(pause, 0.2, self.spread.unit()).min(self.limits.pause_ceiling));
        queue.parked = Some(until);
        self.parked.insert((until, name.clone()));
        out.push(Effect::Parked(name.clone(), until));
    }

    fn unpark(&mut self, now: Mono) {
        while let Some((until, name)) = self.parked.first().cloned().filter(|(at, _)| *at <= now) {
            self.parked.remove(&(until, name.clone()));
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.parked = None;
            }
            self.enlist(&name);
        }
    }

    /// One lease of each queue in turn, while there are workers.
    fn start(&mut self, out: &mut Vec<Effect<I, Q>>) {
        let Some(term) = self.term else { return };
        while self.running < self.limits.workers {
            let Some(name) = self.round.pop_front() else { return };
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.in_round = false;
            }
            if let Some(id) = self.next_of(&name) {
                self.running = self.running.saturating_add(1);
                out.push(Effect::Start { id, term });
            }
            self.enlist(&name);
        }
    }

    fn next_of(&mut self, name: &Q) -> Option<I> {
        let queue = self.queues.get_mut(name)?;
        while queue.has_room() {
            let (id, from_due) = queue.pop()?;
            let Some(lease) = self.leases.get_mut(&id) else { continue };
            lease.queued &= !from_due;
            if matches!(lease.step, Step::Due | Step::Urgent) {
                lease.step = Step::Running;
                queue.running = queue.running.saturating_add(1);
                return Some(id);
            }
        }
        None
    }

    fn enlist(&mut self, name: &Q) {
        if let Some(queue) = self.queues.get_mut(name).filter(|queue| !queue.in_round && queue.has_room()) {
            queue.in_round = true;
            self.round.push_back(name.clone());
        }
    }

    fn release(&mut self, name: &Q) {
        self.running = self.running.saturating_sub(1);
        if let Some(queue) = self.queues.get_mut(name) {
            queue.running = queue.running.saturating_sub(1);
        }
        self.enlist(name);
    }

    fn dismiss(&mut self, now: Mono, id: &I, answer: Answer, out: &mut Vec<Effect<I, Q>>) {
        let waiters = self.leases.get_mut(id).map(|lease| std::mem::take(&mut lease.waiters));
        out.extend(waiters.into_iter().flatten().map(|waiter| Effect::Answer(waiter, answer)));
        self.forget(now, id);
    }

    fn forget(&mut self, now: Mono, id: &I) {
        let Some(lease) = self.leases.remove(id) else { return };
        if self.reader.in_flight() {
            self.settled.insert(id.clone());
        }
        let Some(queue) = self.queues.get_mut(&lease.queue) else { return };
        queue.loaded = queue.loaded.saturating_sub(1);
        if queue.skipped && queue.loaded <= self.limits.loaded / 2 {
            queue.skipped = false;
            self.reader.rewind(now);
        }
        self.drop_retired(&lease.queue);
    }

    fn read(&mut self, now: Mono, out: &mut Vec<Effect<I, Q>>) {
        if let Some(after) = self.reader.poll(now) {
            out.push(Effect::Read { after, limit: self.limits.page });
        }
    }
}

#[cfg(test)]
mod tests;
