//! The cells of all bindings: outcomes of objects go in, records on the board come out.
//!
//! What must hold: an outcome of an object reaches exactly the bindings that belong to it at that moment, each with one
//! publish; a replica is told ready only after the board shows why; a binding that goes on keeps its cell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::freshness::{Cell, Effect, Event, Failure, Outcome, Rules, Served};
use holdfast_core::readiness::{self, Answer, Readiness};
use holdfast_core::time::earliest;
use holdfast_core::{AnswerKind, Mono, Now, Wall};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::ObjectId;
use crate::binding::fragment;
use crate::binding::{Binding, BindingRules};
use crate::clock::Clock;
use crate::config::OnAbsent;
use crate::fanout::board::Board;
use crate::lkg::{self, Kept, Records};
use crate::reference::Reference;
use crate::value::Value;

/// One warning about a clock that was set back stands for all the cells that notice it, some only at their next poll.
const STEP_WARNING: Duration = Duration::from_secs(600);

/// All cells, behind one lock that is never held across an await.
pub(super) struct Cells {
    board: Arc<Board>,
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
    ready: watch::Sender<Answer>,
    /// The timer has to look again.
    due: Notify,
}

struct Inner {
    bound: BTreeMap<Arc<str>, Bound>,
    members: BTreeMap<ObjectId, BTreeSet<Arc<str>>>,
    deadlines: BTreeSet<(Mono, Arc<str>)>,
    readiness: Readiness<Arc<str>>,
    /// What a file kept and no outcome has decided about yet.
    kept: Records,
    warned: Option<Mono>,
    tally: Tally,
}

/// What became of what a file kept.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    /// Values that served.
    pub used: u64,
    /// Values that a definite answer made void.
    pub discarded: u64,
}

struct Bound {
    cell: Cell<Value>,
    reference: Reference,
    rules: BindingRules,
    ref_digest: [u8; 32],
    deadline: Option<Mono>,
}

/// A binding and the object that it belongs to.
pub(super) type Assigned<'a> = (&'a Binding, ObjectId);

impl Cells {
    /// No bindings yet. Each of `first`, with whether it is required, holds the replica back until it has settled.
    pub(super) fn new(
        board: Arc<Board>,
        clock: Arc<dyn Clock>,
        priming: Duration,
        first: impl IntoIterator<Item = (Arc<str>, bool)>,
    ) -> Self {
        let readiness = Readiness::new(clock.now().mono.after(priming), first);
        let ready = watch::Sender::new(readiness.answer());
        let inner = Inner {
            bound: BTreeMap::new(),
            members: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            readiness,
            kept: BTreeMap::new(),
            warned: None,
            tally: Tally::default(),
        };
        Self { board, clock, inner: Mutex::new(inner), ready, due: Notify::new() }
    }

    /// What probes are answered, from now on.
    pub(super) fn readiness(&self) -> watch::Receiver<Answer> {
        self.ready.subscribe()
    }

    /// Makes the bindings exactly these. Those that were there before keep their cells, whatever object they belong to now.
    pub(super) fn assign<'a>(&self, bindings: impl IntoIterator<Item = Assigned<'a>>) {
        let mut inner = self.inner.lock();
        let mut before = std::mem::take(&mut inner.bound);
        inner.members.clear();
        let mut rebound = Vec::new();
        for (binding, object) in bindings {
            let name = Arc::clone(&binding.name);
            inner.members.entry(object).or_default().insert(Arc::clone(&name));
            let bound = match before.remove(&name) {
                Some(bound) => {
                    rebound.push((Arc::clone(&name), bound.reference != binding.reference));
                    Bound { cell: bound.cell, deadline: bound.deadline, ..Bound::new(binding) }
                }
                None => Bound::new(binding),
            };
            inner.bound.insert(name, bound);
        }
        for (name, gone) in before {
            inner.deadlines.retain(|(_, of)| *of != name);
            inner.kept.remove(&name);
            drop(gone);
        }
        self.board.set_names(inner.bound.keys().map(|name| &**name));
        for (name, other) in rebound {
            let rules = inner.bound.get(&name).map(|bound| rules(&bound.rules)).unwrap_or_default();
            self.feed(&mut inner, &name, Event::Rules(rules));
            if other {
                inner.kept.remove(&name);
                self.feed(&mut inner, &name, Event::Rebound);
            }
        }
    }

    /// Tells the readiness which bindings there are now, and which of them are required.
    pub(super) fn expect(&self, bindings: BTreeMap<Arc<str>, bool>) {
        self.ready(&mut self.inner.lock(), readiness::Event::Applied(bindings));
    }

    /// Hands values from the file to their cells, before the first attempt.
    pub(super) fn restore(&self, kept: Records) {
        let mut inner = self.inner.lock();
        for (name, kept) in kept {
            let fits = inner.bound.get(&name).is_some_and(|bound| {
                bound.rules.persist && bound.ref_digest == kept.ref_digest && !bound.cell.state().settled
            });
            if fits {
                let (value, resolved_at) = (kept.value.clone(), kept.resolved_at);
                inner.kept.insert(Arc::clone(&name), kept);
                self.feed(&mut inner, &name, Event::Restore { value, resolved_at });
            }
        }
    }

    /// What became of what the file kept.
    pub(super) fn tally(&self) -> Tally {
        self.inner.lock().tally
    }

    /// An attempt for an object ended that began then. Returns when another must begin to confirm an absence.
    pub(super) fn settle(&self, object: ObjectId, began: Now, outcome: &Outcome<Value>) -> Option<Mono> {
        let mut inner = self.inner.lock();
        let names = inner.members.get(&object).cloned().unwrap_or_default();
        let mut confirm = None;
        for name in names {
            let Some(bound) = inner.bound.get(&name) else { continue };
            let outcome = bound.cut(outcome);
            confirm = earliest(confirm, self.feed(&mut inner, &name, Event::Attempt { began, outcome }));
        }
        confirm
    }

    /// The replica goes down: probes are answered so at once.
    pub(super) fn drain(&self) {
        self.ready(&mut self.inner.lock(), readiness::Event::Drain);
    }

    /// Runs what time brings: values that expire or become too old, and the end of priming.
    pub(super) async fn drive(&self) {
        loop {
            let at = {
                let inner = self.inner.lock();
                earliest(inner.deadlines.first().map(|(at, _)| *at), inner.readiness.next_deadline())
            };
            match at {
                Some(at) if at <= self.clock.now().mono => self.tick(),
                Some(at) => {
                    let wait = self.clock.now().mono.until(at);
                    let _ = tokio::time::timeout(wait, self.due.notified()).await;
                }
                None => self.due.notified().await,
            }
        }
    }

    fn tick(&self) {
        let mut inner = self.inner.lock();
        let now = self.clock.now().mono;
        while let Some((_, name)) = inner.deadlines.first().filter(|(at, _)| *at <= now).cloned() {
            self.feed(&mut inner, &name, Event::Tick);
            // A cell that still names the same instant would keep this loop busy.
            inner.deadlines.retain(|(at, of)| *at > now || *of != name);
        }
        self.ready(&mut inner, readiness::Event::Tick);
    }

    /// Gives one event to one cell and does what it asks.
    fn feed(&self, inner: &mut Inner, name: &Arc<str>, event: Event<Value>) -> Option<Mono> {
        let now = self.clock.now();
        let bound = inner.bound.get_mut(name)?;
        let mut effects = Vec::new();
        bound.cell.on(now, event, &mut effects);
        let deadline = bound.cell.next_deadline();
        if deadline != bound.deadline {
            let former = std::mem::replace(&mut bound.deadline, deadline);
            if let Some(at) = former {
                inner.deadlines.remove(&(at, Arc::clone(name)));
            }
            if let Some(at) = deadline {
                inner.deadlines.insert((at, Arc::clone(name)));
                self.due.notify_one();
            }
        }
        let mut confirm = None;
        for effect in effects {
            match effect {
                Effect::Publish { visible } => self.publish(inner, name, visible),
                Effect::ConfirmAbsence(at) => confirm = Some(at),
                Effect::UseRestored => {
                    inner.kept.remove(name);
                    inner.tally.used += 1;
                }
                Effect::DiscardRestored => {
                    inner.kept.remove(name);
                    inner.tally.discarded += 1;
                }
                Effect::ClockSteppedBack => inner.stepped_back(now),
            }
        }
        confirm
    }

    fn publish(&self, inner: &mut Inner, name: &Arc<str>, visible: bool) {
        let Some(bound) = inner.bound.get(name) else { return };
        let state = bound.cell.state();
        let (settled, servable) = (state.settled, matches!(state.served, Served::Value { .. }));
        self.board.publish(name, state.clone(), visible);
        self.ready(inner, readiness::Event::Published { name: Arc::clone(name), settled, servable });
    }

    fn ready(&self, inner: &mut Inner, event: readiness::Event<Arc<str>>) {
        let mut effects = Vec::new();
        inner.readiness.on(self.clock.now().mono, event, &mut effects);
        for effect in effects {
            match effect {
                readiness::Effect::Answer(answer) => drop(self.ready.send_replace(answer)),
                readiness::Effect::SettleRest => {
                    let open = inner.bound.iter().filter(|(_, bound)| !bound.cell.state().settled);
                    let open: Vec<_> = open.map(|(name, _)| Arc::clone(name)).collect();
                    tracing::info!(
                        bindings = open.len(),
                        "the priming deadline passed; what is open settles as unavailable"
                    );
                    for name in open {
                        self.feed(inner, &name, Event::PrimingOver);
                    }
                }
            }
        }
    }
}

impl lkg::Source for Cells {
    /// Every value that may be kept, and what still waits for a first outcome.
    fn records(&self) -> Records {
        let inner = self.inner.lock();
        let held = inner.bound.iter().filter_map(|(name, bound)| Some((Arc::clone(name), bound.kept()?)));
        let mut all = inner.kept.clone();
        all.extend(held);
        all
    }

    fn changes(&self) -> u64 {
        self.board.seq().get()
    }
}

impl Inner {
    fn stepped_back(&mut self, now: Now) {
        if self.warned.is_none_or(|at| now.mono.since(at) > STEP_WARNING) {
            tracing::warn!(
                "the wall clock was set back by more than a minute; dates of values go back with it"
            );
            self.warned = Some(now.mono);
        }
    }
}

impl Bound {
    fn new(binding: &Binding) -> Self {
        Self {
            cell: Cell::new(rules(&binding.rules)),
            reference: binding.reference.clone(),
            rules: binding.rules,
            ref_digest: *binding.ref_digest.bytes(),
            deadline: None,
        }
    }

    /// What an object's outcome means for this binding.
    fn cut(&self, outcome: &Outcome<Value>) -> Outcome<Value> {
        let Outcome::Value { value, passed } = outcome else { return outcome.clone() };
        let cut = match &self.reference.fragment {
            Some(fragment) => fragment::cut(fragment, value),
            None => Ok(Some(value.clone())),
        };
        match cut {
            Err(failure) => Outcome::Error(failure),
            Ok(None) => Outcome::Absent,
            Ok(Some(value)) if value.bytes.len() > self.rules.max_value_bytes => {
                Outcome::Error(Failure::of(AnswerKind::Invalid))
            }
            Ok(Some(mut value)) => {
                value.sensitive = self.rules.sensitive.unwrap_or(value.sensitive);
                Outcome::Value { value, passed: *passed }
            }
        }
    }

    /// What a file may keep of it. A leased value ends with its lease, and the lease with the process that renews it.
    fn kept(&self) -> Option<Kept> {
        let state = self.cell.state();
        let value = state.value.as_ref().filter(|value| self.rules.persist && value.not_after.is_none())?;
        let resolved_at: Wall = state.resolved_at?;
        Some(Kept { value: value.clone(), resolved_at, ref_digest: self.ref_digest })
    }
}

fn rules(rules: &BindingRules) -> Rules {
    Rules { max_stale: rules.max_stale, on_absent_drop: rules.on_absent == OnAbsent::Drop }
}
