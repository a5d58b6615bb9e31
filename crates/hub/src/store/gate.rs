//! The shell of the leadership gate: feeds [`Leadership`] from consensus and performs its effects.
//!
//! What must hold: everyone who wants to know who is active asks [`Gate::view`], which judges at the moment of
//! the call. Acknowledgements count from the moment their message was sent, by our own clock.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_core::leadership::{Effect, Event, Leadership, Reason};
use holdfast_core::{LogIndex, Mono, Term};
use holdfast_ops::clock::MonoClock;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::{mpsc, watch};

use super::health::{Health, Report};
use super::timing::RaftTiming;
use super::types::{Membership, Peer};
use crate::cluster::{Leader, View};

/// Where the store reports what an operator may want to measure.
pub trait StoreObserver: Send + Sync + 'static {
    /// A batch was committed and applied.
    fn committed(&self, _took: std::time::Duration) {}
    /// The gate opened, this long after the election was won.
    fn gate_opened(&self, _term: Term, _after: std::time::Duration) {}
    /// This node saw a new term.
    fn term_changed(&self, _term: Term) {}
    /// This node won an election.
    fn elected(&self, _term: Term) {}
    /// This node became active, or stopped being so.
    fn active(&self, _active: bool) {}
}

/// Observes nothing.
pub struct NoObserver;

impl StoreObserver for NoObserver {}

/// What a follower knows of its leader at first hand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub leader: u64,
    pub term: u64,
    pub at: Mono,
}

#[derive(Default)]
struct Facts {
    own: Option<u64>,
    elected: Option<Mono>,
    active_since: Option<i64>,
    heard: Option<Heard>,
    /// What a peer said of the leader: second hand.
    told: Option<Heard>,
    removed: bool,
    committed: u64,
    applied: u64,
    membership: Arc<Membership>,
    acks: HashMap<u64, Mono>,
    acks_term: u64,
}

/// The gate of one node.
pub(super) struct Gate {
    clock: MonoClock,
    timing: RaftTiming,
    machine: Mutex<Leadership>,
    /// Whether this node is the only voter.
    alone: AtomicBool,
    facts: RwLock<Facts>,
    view: watch::Sender<View>,
    handover: mpsc::Sender<Term>,
    health: Arc<Health>,
    observer: Arc<dyn StoreObserver>,
}

impl Gate {
    /// A closed gate; the receiver is told of terms that this node must hand over.
    pub(super) fn new(
        timing: RaftTiming,
        health: Arc<Health>,
        observer: Arc<dyn StoreObserver>,
    ) -> (Arc<Self>, mpsc::Receiver<Term>) {
        let (handover, terms) = mpsc::channel(4);
        let gate = Arc::new(Self {
            clock: MonoClock::new(),
            timing,
            machine: Mutex::new(Leadership::new(timing.gate())),
            alone: AtomicBool::new(false),
            facts: RwLock::default(),
            view: watch::Sender::new(View { storage_healthy: true, ..View::default() }),
            handover,
            health: Arc::clone(&health),
            observer,
        });
        let listener = Arc::downgrade(&gate);
        health.listen(Box::new(move |report| {
            if let Some(gate) = listener.upgrade() {
                gate.feed(match report {
                    Report::Failed => Event::StoreFailed,
                    Report::StillFailing => Event::StoreTested { healthy: false },
                    Report::Recovered => Event::StoreTested { healthy: true },
                });
            }
        }));
        (gate, terms)
    }

    pub(super) fn now(&self) -> Mono {
        self.clock.now()
    }

    pub(super) fn set_own(&self, id: u64) {
        self.facts.write().own = Some(id);
        self.see_whether_alone();
    }

    /// The machine, up to date: a node alone needs nobody to go on, so a heartbeat that is late on a busy machine
    /// must not cost it its term.
    fn machine(&self) -> MutexGuard<'_, Leadership> {
        let mut machine = self.machine.lock();
        if self.alone.load(Ordering::Relaxed) {
            machine.renew_alone(self.now());
        }
        machine
    }

    fn see_whether_alone(&self) {
        let alone = {
            let facts = self.facts.read();
            let mut voters = facts.membership.membership().voter_ids();
            voters.next().is_some_and(|voter| Some(voter) == facts.own) && voters.next().is_none()
        };
        self.alone.store(alone, Ordering::Relaxed);
    }

    /// Whether this node may act at this instant, and in which term.
    pub(super) fn active(&self) -> Option<Term> {
        self.machine().active(self.now())
    }

    pub(super) fn leading(&self) -> Option<Term> {
        self.machine().leading()
    }

    pub(super) fn store_healthy(&self) -> bool {
        self.machine().store_healthy()
    }

    pub(super) fn removed(&self) -> bool {
        self.facts.read().removed
    }

    pub(super) fn next_deadline(&self) -> Option<Mono> {
        self.machine().next_deadline()
    }

    pub(super) fn watch(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    pub(super) fn membership(&self) -> Arc<Membership> {
        Arc::clone(&self.facts.read().membership)
    }

    /// What was last heard of a leader at first hand.
    pub(super) fn heard(&self) -> Option<Heard> {
        self.facts.read().heard
    }

    /// Takes one event and performs what follows from it.
    pub(super) fn feed(&self, event: Event) {
        let mut effects = Vec::new();
        self.machine().on(self.now(), event, &mut effects);
        for effect in &effects {
            self.perform(*effect);
        }
        if !effects.is_empty() {
            self.publish();
        }
    }

    /// This node won `term`, whose first entry is `entry`.
    pub(super) fn elected(&self, term: Term, entry: LogIndex) {
        if self.leading() == Some(term) {
            return;
        }
        self.facts.write().elected = Some(self.now());
        self.observer.elected(term);
        self.feed(Event::Elected { term, entry });
        self.renew();
    }

    pub(super) fn applied(&self, index: u64) {
        self.facts.write().applied = index;
        self.feed(Event::Applied { index: LogIndex::new(index) });
    }

    pub(super) fn committed(&self, index: u64) {
        let mut facts = self.facts.write();
        facts.committed = facts.committed.max(index);
    }

    /// `member` acknowledged, in `term`, a message that was sent at `sent`.
    pub(super) fn acknowledged(&self, member: u64, term: u64, sent: Mono) {
        {
            let mut facts = self.facts.write();
            if facts.acks_term != term {
                facts.acks_term = term;
                facts.acks.clear();
            }
            let slot = facts.acks.entry(member).or_insert(sent);
            *slot = (*slot).max(sent);
        }
        self.renew();
    }

    /// Judges whether a quorum's newest acknowledgements moved the end of this node's tenure.
    pub(super) fn renew(&self) {
        let Some(term) = self.leading() else { return };
        let now = self.now();
        let sent = {
            let facts = self.facts.read();
            let Some(own) = facts.own else { return };
            let acks = (facts.acks_term == term.into_inner()).then_some(&facts.acks);
            quorum(&facts.membership, |id| if id == own { Some(now) } else { acks?.get(&id).copied() })
        };
        if let Some(sent) = sent {
            self.feed(Event::Acknowledged { term, sent });
        }
    }

    /// A leader's message was accepted.
    pub(super) fn hear(&self, leader: u64, term: u64) {
        let heard = Heard { leader, term, at: self.now() };
        let before = self.facts.write().heard.replace(heard);
        let stale = before.is_none_or(|before| {
            (before.leader, before.term) != (leader, term) || heard.at.since(before.at) > self.timing.lease()
        });
        if stale {
            self.publish();
        }
    }

    /// A peer said who leads, `age_ms` after it knew.
    pub(super) fn told(&self, leader: u64, term: u64, age_ms: u64) {
        let now = self.now();
        let at = Mono::from_nanos(now.as_nanos().saturating_sub(age_ms.saturating_mul(1_000_000)));
        let mut facts = self.facts.write();
        let newer = facts.told.is_none_or(|told| (told.term, told.at) < (term, at));
        if newer && facts.own != Some(leader) {
            let changed =
                facts.told.replace(Heard { leader, term, at }).is_none_or(|told| told.leader != leader);
            drop(facts);
            if changed {
                self.publish();
            }
        }
    }

    pub(super) fn set_membership(&self, membership: Arc<Membership>) {
        {
            let mut facts = self.facts.write();
            if facts.own.is_some_and(|own| membership.membership().get_node(&own).is_some()) {
                facts.removed = false;
            }
            facts.membership = membership;
        }
        self.see_whether_alone();
        self.renew();
        self.publish();
    }

    /// A newer membership than the one known here does not have this node.
    pub(super) fn set_removed(&self) {
        let before = std::mem::replace(&mut self.facts.write().removed, true);
        if !before {
            tracing::warn!("this node was removed from the cluster");
            self.publish();
        }
    }

    pub(super) fn term_changed(&self, term: Term) {
        self.observer.term_changed(term);
        self.publish();
    }

    pub(super) fn batch_committed(&self, took: std::time::Duration) {
        self.observer.committed(took);
    }

    /// The view at this instant.
    pub(super) fn view(&self) -> View {
        let now = self.now();
        let (active, storage_healthy) = {
            let machine = self.machine();
            (machine.active(now), machine.store_healthy())
        };
        let facts = self.facts.read();
        let active = active.filter(|_| !facts.removed);
        View {
            active,
            active_since: active.and(facts.active_since),
            leader: if facts.removed { None } else { self.leader(&facts, active, now) },
            storage_healthy,
            removed: facts.removed,
            committed_index: facts.committed.max(facts.applied),
            applied_index: facts.applied,
        }
    }

    /// Whether this node won an election so lately that its gate may still be about to open.
    pub(super) fn settling(&self) -> bool {
        let elected = self.facts.read().elected;
        let lately = elected.is_some_and(|at| self.now().since(at) < self.timing.election_max());
        lately && self.leading().is_some()
    }

    /// How long ago a live leader was known here: at first hand, or because this node is it.
    pub(super) fn leader_age(&self) -> Option<(Heard, u64)> {
        let now = self.now();
        let active = self.machine().active(now);
        let facts = self.facts.read();
        let heard = match (active, facts.own) {
            (Some(term), Some(own)) => Heard { leader: own, term: term.into_inner(), at: now },
            _ => facts.heard?,
        };
        Some((heard, u64::try_from(now.since(heard.at).as_millis()).unwrap_or(u64::MAX)))
    }

    fn leader(&self, facts: &Facts, active: Option<Term>, now: Mono) -> Option<Leader> {
        let known = |id: u64, term: Term| {
            let peer = facts.membership.membership().get_node(&id)?;
            Some(Leader { node: peer.name.clone(), address: peer.address.clone(), term })
        };
        if let Some(term) = active {
            return known(facts.own?, term);
        }
        let fresh = |heard: &&Heard| {
            now.since(heard.at) < self.timing.election_max() && Some(heard.leader) != facts.own
        };
        let heard = facts.heard.as_ref().filter(fresh);
        let told = facts.told.as_ref().filter(fresh);
        let best = match (heard, told) {
            (Some(heard), Some(told)) if told.term > heard.term => told,
            (Some(heard), _) => heard,
            (None, told) => told?,
        };
        known(best.leader, Term::new(best.term))
    }

    fn perform(&self, effect: Effect) {
        match effect {
            Effect::OpenGate(term) => {
                let after = {
                    let mut facts = self.facts.write();
                    facts.active_since = Some(unix_now());
                    facts.elected.map(|elected| self.now().since(elected)).unwrap_or_default()
                };
                self.observer.gate_opened(term, after);
                self.observer.active(true);
                tracing::info!(
                    term = term.into_inner(),
                    after_ms = after.as_secs_f64() * 1e3,
                    "this node is active"
                );
            }
            Effect::CloseGate(term, reason) => {
                self.observer.active(false);
                match reason {
                    Reason::StepDown | Reason::Lost => {
                        tracing::info!(term = term.into_inner(), ?reason, "this node is no longer active")
                    }
                    _ => tracing::warn!(term = term.into_inner(), ?reason, "this node is no longer active"),
                }
            }
            // A full queue holds the same wish already.
            Effect::HandOver(term) => drop(self.handover.try_send(term)),
            // The writer that failed has said so.
            Effect::ReportStore(false) => {}
            Effect::ReportStore(true) => tracing::info!("the store can be written again"),
            Effect::TestWrite => self.health.test(),
        }
    }

    /// Tells watchers when something other than an index changed.
    pub(super) fn publish(&self) {
        let view = self.view();
        self.view.send_if_modified(|before| {
            let same = View { committed_index: 0, applied_index: 0, ..before.clone() }
                == View { committed_index: 0, applied_index: 0, ..view.clone() };
            *before = view;
            !same
        });
    }
}

/// The newest instant since which a majority of every voter set has answered.
fn quorum(membership: &Membership, answered: impl Fn(u64) -> Option<Mono>) -> Option<Mono> {
    let sets: &Vec<BTreeSet<u64>> = membership.membership().get_joint_config();
    let of_set = |set: &BTreeSet<u64>| {
        let mut instants: Vec<_> = set.iter().filter_map(|id| answered(*id)).collect();
        instants.sort_unstable_by(|a, b| b.cmp(a));
        instants.get(set.len() / 2).copied()
    };
    let all: Option<Vec<_>> = sets.iter().filter(|set| !set.is_empty()).map(of_set).collect();
    all?.into_iter().min()
}

/// The member named so.
pub(super) fn find<'a>(membership: &'a Membership, name: &str) -> Option<(u64, &'a Peer)> {
    membership.nodes().find(|(_, peer)| peer.name.0 == name).map(|(id, peer)| (*id, peer))
}

fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
