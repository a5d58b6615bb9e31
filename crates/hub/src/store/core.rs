//! What the parts of a node's consensus share, and the two tasks that keep them going.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use holdfast_core::leadership::Event;
use holdfast_core::{LogIndex, Mono, Term};
use holdfast_net::cluster::PeerPool;
use holdfast_ops::Tasks;
use openraft::ServerState;
use openraft::metrics::RaftServerMetrics;
use tokio::sync::{Mutex, mpsc};

use super::db::OpenError;
use super::elector::Elector;
use super::gate::Gate;
use super::health::Health;
use super::log::LogStore;
use super::members;
use super::network::Network;
use super::peers::{self, Peers};
use super::propose::Waiting;
use super::rpc::Status;
use super::state::StateHandle;
use super::stepdown::Ask;
use super::timing::RaftTiming;
use super::types::{Peer, Raft};
use crate::cluster::{NodeAddress, NodeName};

/// What the parts of a node's consensus share.
pub(super) struct Core {
    pub name: NodeName,
    pub address: NodeAddress,
    pub timing: RaftTiming,
    /// Names this process in its proposals.
    pub origin: u64,
    pub folder: PathBuf,
    pub tasks: Tasks,
    pub pool: PeerPool,
    pub health: Arc<Health>,
    pub gate: Arc<Gate>,
    pub log: LogStore,
    pub state: StateHandle,
    pub peers: Arc<Peers>,
    pub elector: Elector,
    pub proposals: mpsc::Sender<Waiting>,
    pub step_down: mpsc::Sender<Ask>,
    /// Held by whoever changes the membership: one change at a time.
    pub changing: Mutex<()>,
    /// Since when each learner has been close to the end of the log.
    pub caught_up: parking_lot::Mutex<HashMap<u64, Mono>>,
    pub running: OnceLock<Running>,
    /// Held while the library is started.
    pub starting: Mutex<()>,
    /// Whether heartbeats are held back: a hand-over is under way.
    pub quiet: AtomicBool,
}

/// The library, once this node has a number.
pub(super) struct Running {
    pub id: u64,
    pub raft: Raft,
}

impl Core {
    pub(super) fn own(&self) -> Option<u64> {
        self.running.get().map(|running| running.id)
    }

    pub(super) fn raft(&self) -> Option<&Raft> {
        self.running.get().map(|running| &running.raft)
    }

    pub(super) fn peer(&self) -> Peer {
        Peer { name: self.name.clone(), address: self.address.clone(), non_voter: false }
    }

    /// What this node says of itself.
    pub(super) fn status(&self) -> Status {
        let term = self.raft().map_or(0, |raft| raft.server_metrics().borrow().vote.leader_id.term);
        let heard = self.gate.leader_age();
        Status {
            id: self.own().unwrap_or(0),
            name: self.name.clone(),
            address: self.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            term,
            last: self.log.last(),
            membership: self.gate.membership().log_id().map(|id| id.index),
            leader: heard.map(|(heard, age)| (heard.leader, age)),
            leader_term: heard.map_or(0, |(heard, _)| heard.term),
            store_healthy: self.gate.store_healthy(),
            electing: self.elector.voted_within(self.gate.now(), self.timing.lease())
                || self.elector.may_have_forgotten(self.gate.now(), self.timing.lease())
                || self.gate.settling(),
        }
    }

    /// Starts the library as member `id`, unless it runs.
    pub(super) async fn start(self: &Arc<Self>, id: u64) -> Result<(), OpenError> {
        let _guard = self.starting.lock().await;
        if self.running.get().is_some() {
            return Ok(());
        }
        let stored = self.log.node_id()?;
        if stored.is_none() && !self.log.set_node_id(id).await {
            return Err(OpenError::Start("the store is closed".into()));
        }
        let id = stored.unwrap_or(id);
        self.gate.set_own(id);
        self.elector.begin(self.gate.now(), id, self.timing);
        let config = self.timing.library().validate().map_err(|error| OpenError::Start(Box::new(error)))?;
        let network = Network {
            own: id,
            pool: self.pool.clone(),
            gate: Arc::clone(&self.gate),
            peers: Arc::clone(&self.peers),
        };
        let raft = Raft::new(id, Arc::new(config), network, self.log.clone(), self.state.clone())
            .await
            .map_err(|error| OpenError::Start(Box::new(error)))?;
        // Cannot be set: the guard is held and it was empty.
        drop(self.running.set(Running { id, raft }));
        self.tasks.spawn_until_cancelled("store-follow", follow(Arc::clone(self)));
        Ok(())
    }
}

/// Carries changes of leadership and membership from the library to the gate and the elector.
async fn follow(core: Arc<Core>) {
    let Some(running) = core.running.get() else { return };
    let mut metrics = running.raft.server_metrics();
    let mut before: Option<RaftServerMetrics<u64, Peer>> = None;
    loop {
        let now = metrics.borrow_and_update().clone();
        take(&core, running.id, before.as_ref(), &now);
        before = Some(now);
        if metrics.changed().await.is_err() {
            return;
        }
    }
}

type Metrics = RaftServerMetrics<u64, Peer>;

fn take(core: &Arc<Core>, own: u64, before: Option<&Metrics>, now: &Metrics) {
    if before.is_none_or(|before| before.membership_config != now.membership_config) {
        core.gate.set_membership(Arc::clone(&now.membership_config));
        core.elector.voters(core.gate.now(), &now.membership_config);
    }
    let term = Term::new(now.vote.leader_id.term);
    let leads = now.state == ServerState::Leader && now.current_leader == Some(own);
    match core.gate.leading() {
        Some(led) if !leads || led != term => core.gate.feed(Event::Lost { term: led }),
        _ => {}
    }
    if leads && let Some(entry) = core.log.began(term.into_inner()) {
        if core.gate.leading() != Some(term) {
            // A hand-over of an earlier term says nothing about this one.
            core.quiet.store(false, Ordering::Relaxed);
        }
        core.gate.elected(term, LogIndex::new(entry));
    }
    let old_term = before.map_or(0, |before| before.vote.leader_id.term);
    if old_term != term.into_inner() {
        core.gate.term_changed(term);
    }
}

/// The heartbeat of the node: messages to followers, pings, and a look at what has expired.
pub(super) async fn beat(core: Arc<Core>) {
    let mut ticks = tokio::time::interval(core.timing.heartbeat());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        if let Some(running) = core.running.get() {
            let raft = &running.raft;
            // Once more what `follow` has seen: nothing may hang on one change that was seen too early.
            let metrics = raft.server_metrics().borrow().clone();
            take(&core, running.id, Some(&metrics), &metrics);
            let quiet = core.quiet.load(Ordering::Relaxed);
            if core.gate.leading().is_some() && !quiet {
                // An error means that the library has ended; the gate closes by itself then.
                drop(raft.trigger().heartbeat().await);
            }
        }
        peers::ping_all(&core);
        core.gate.renew();
        core.gate.publish();
        members::tend(&core);
    }
}

/// Tells the gate when something of it expires, at once rather than at the next beat.
pub(super) async fn expire(core: Arc<Core>) {
    let beat = core.timing.heartbeat();
    loop {
        let due = core.gate.next_deadline().map(|at| core.gate.now().until(at));
        tokio::time::sleep(due.unwrap_or(beat).clamp(Duration::from_millis(1), beat)).await;
        core.gate.feed(Event::Tick);
    }
}
