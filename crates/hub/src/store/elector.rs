//! When this node stands for election.
//!
//! The library has no pre-vote, draws its random wait once and looks at it only at its ticks; so its own elections
//! are off and this task stands instead. What must hold: the silence before a node stands lies between the
//! configured bounds; a node that does not hear a quorum never stands; and before it raises the term it asks
//! the others whether they miss a leader too. So a node that was cut off never deposes a healthy leader.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use holdfast_core::leadership::standing::{Effect, Event, Standing, Veto};
use holdfast_core::{MemberId, Mono, Term};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::core::Core;
use super::rpc::{self, Method, Pong, To, Tolerant};
use super::timing::RaftTiming;
use super::types::{LogId, Membership, Raft};

/// How long the others have to say whether they miss a leader.
const PRE_VOTE: Duration = Duration::from_millis(150);
/// Pause between attempts of a node that was told to stand.
const TOLD_RETRY: Duration = Duration::from_millis(300);
/// For how long it goes on trying.
const TOLD_FOR: Duration = Duration::from_secs(2);
/// The longest sleep between two looks at the clock.
const LOOK: Duration = Duration::from_millis(500);

/// The right to stand, and the clock of it.
pub(super) struct Elector {
    state: Mutex<State>,
    wake: Notify,
}

struct State {
    /// When this process began to take part.
    born: Mono,
    standing: Option<Standing>,
    vetoes: BTreeSet<Veto>,
    /// The silence is counted from here at the earliest.
    since: Mono,
    /// The term whose leader asked this node to stand, and when.
    told: Option<(Term, Mono)>,
    /// When this node last voted for another.
    voted: Mono,
}

impl Elector {
    pub(super) fn new(now: Mono) -> Self {
        let state = State {
            born: now,
            standing: None,
            vetoes: BTreeSet::new(),
            since: now,
            told: None,
            voted: Mono::ZERO,
        };
        Self { state: Mutex::new(state), wake: Notify::new() }
    }

    /// This node is `own` now.
    pub(super) fn begin(&self, now: Mono, own: u64, timing: RaftTiming) {
        let mut state = self.state.lock();
        let mut standing = Standing::new(timing.standing(), MemberId::new(own));
        for veto in state.vetoes.clone() {
            standing.on(now, Event::Veto(veto, true), &mut Vec::new());
        }
        state.standing = Some(standing);
    }

    fn feed(&self, now: Mono, event: Event) {
        let mut effects = Vec::new();
        {
            let mut state = self.state.lock();
            if let Some(standing) = &mut state.standing {
                standing.on(now, event, &mut effects);
            }
            if effects.contains(&Effect::Elections(true)) {
                // Whoever has just come back first listens for a leader.
                state.since = now;
            }
        }
        if !effects.is_empty() {
            self.wake.notify_one();
        }
    }

    pub(super) fn tick(&self, now: Mono) {
        self.feed(now, Event::Tick);
    }

    pub(super) fn heard(&self, id: u64, sent: Mono) {
        self.feed(MonoNow::now(), Event::Heard { member: MemberId::new(id), sent });
    }

    pub(super) fn voters(&self, now: Mono, membership: &Membership) {
        let sets = membership.membership().get_joint_config();
        let sets = sets.iter().map(|set| set.iter().copied().map(MemberId::new).collect()).collect();
        self.feed(now, Event::Voters(sets));
    }

    pub(super) fn veto(&self, now: Mono, veto: Veto, on: bool) {
        {
            let mut state = self.state.lock();
            if on {
                state.vetoes.insert(veto);
            } else {
                state.vetoes.remove(&veto);
            }
        }
        self.feed(now, Event::Veto(veto, on));
    }

    /// A vote was granted to another: the candidate gets its time.
    pub(super) fn granted(&self, now: Mono) {
        let mut state = self.state.lock();
        (state.since, state.voted) = (now, now);
    }

    /// Whether this node voted for another within `window`.
    pub(super) fn voted_within(&self, now: Mono, window: Duration) -> bool {
        let voted = self.state.lock().voted;
        voted != Mono::ZERO && now.since(voted) < window
    }

    /// Whether the leader may still count on an answer that this node gave before it was restarted: it has forgotten
    /// when it last heard a leader, so it votes for nobody until that promise has surely ended.
    pub(super) fn may_have_forgotten(&self, now: Mono, lease: Duration) -> bool {
        now < self.state.lock().born.after(lease)
    }

    /// The silence starts again.
    fn restart(&self, now: Mono) {
        self.state.lock().since = now;
    }

    /// The leader of `term` asks this node to follow it.
    pub(super) fn stand(&self, now: Mono, term: Term) {
        self.state.lock().told = Some((term, now));
        self.wake.notify_one();
    }

    pub(super) fn may_stand(&self) -> bool {
        self.state.lock().standing.as_ref().is_some_and(Standing::may_stand)
    }

    pub(super) fn hears_anyone(&self, now: Mono) -> bool {
        self.state.lock().standing.as_ref().is_some_and(|standing| standing.hears_anyone(now))
    }
}

/// The clock, for events that carry no instant of their own.
struct MonoNow;

impl MonoNow {
    fn now() -> Mono {
        holdfast_ops::clock::MonoClock::new().now()
    }
}

/// Stands when it is time, until the node closes.
pub(super) async fn run(core: Arc<Core>) {
    let mut wait = random_wait(core.timing);
    let (mut in_vain, mut tried) = (0u32, Mono::ZERO);
    loop {
        let now = core.gate.now();
        core.elector.tick(now);
        if let Some(raft) = core.raft() {
            if told(&core, raft, now).await {
                sleep(&core, TOLD_RETRY).await;
                continue;
            }
            let due = due(&core, wait);
            if now >= due && eligible(&core, raft) {
                if pre_vote(&core, raft).await {
                    tracing::info!(node = %core.name, "standing for election");
                    elect(&core, raft).await;
                } else {
                    tracing::debug!(node = %core.name, "the others would not vote for this node now");
                }
                core.elector.restart(core.gate.now());
                in_vain =
                    if core.gate.heard().is_some_and(|heard| heard.at > tried) { 0 } else { in_vain + 1 };
                tried = core.gate.now();
                // Where elections take longer than the wait between them, waiting longer is what ends them.
                let longer = 1.0 + f64::from(in_vain.min(4)) / 2.0;
                wait = random_wait(core.timing).mul_f64(longer).min(core.timing.election_max());
            } else if now < due {
                sleep(&core, now.until(due).min(LOOK)).await;
                continue;
            }
        }
        sleep(&core, core.timing.heartbeat() / 2).await;
    }
}

async fn sleep(core: &Core, pause: Duration) {
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = core.elector.wake.notified() => {}
    }
}

/// A fresh draw for every silence: two nodes that collide once do not go on colliding.
fn random_wait(timing: RaftTiming) -> Duration {
    let (min, max) = timing.random_wait();
    let unit = f64::from(u32::from_le_bytes(holdfast_ops::rand::bytes())) / f64::from(u32::MAX);
    min + max.saturating_sub(min).mul_f64(unit)
}

fn due(core: &Core, wait: Duration) -> Mono {
    let (since, born) = {
        let state = core.elector.state.lock();
        (state.since, state.born)
    };
    let membership = core.gate.membership();
    if membership.membership().voter_ids().count() == 1 {
        return Mono::ZERO;
    }
    match core.gate.heard() {
        Some(heard) if heard.at >= since => heard.at.after(core.timing.lease() + wait),
        // Right after a start or a return there may be a leader that has not spoken yet.
        _ => since.after(wait.max(core.timing.heartbeat() * 3)).max(born.after(core.timing.lease())),
    }
}

fn eligible(core: &Core, raft: &Raft) -> bool {
    core.elector.may_stand() && able(core, raft)
}

/// Whether this node could lead, its right to stand of its own accord apart.
fn able(core: &Core, raft: &Raft) -> bool {
    let metrics = raft.server_metrics().borrow().clone();
    let voter = metrics.membership_config.membership().voter_ids().any(|id| id == metrics.id);
    voter
        && metrics.state != openraft::ServerState::Leader
        && core.gate.store_healthy()
        && !core.gate.removed()
        && !core.elector.state.lock().vetoes.contains(&Veto::Stopping)
}

async fn told(core: &Core, raft: &Raft, now: Mono) -> bool {
    let (told, voted) = {
        let state = core.elector.state.lock();
        (state.told, state.voted)
    };
    let Some((term, since)) = told else { return false };
    let metrics = raft.server_metrics().borrow().clone();
    let newest = metrics.vote.leader_id.term;
    let over = now >= since.after(TOLD_FOR)
        || voted >= since
        || metrics.state == openraft::ServerState::Leader
        || (newest > term.into_inner() && metrics.vote.committed)
        // A node that has just handed over itself stays out of elections, but does not refuse its successor.
        || !able(core, raft);
    if over {
        core.elector.state.lock().told = None;
        return false;
    }
    elect(core, raft).await;
    true
}

async fn elect(core: &Core, raft: &Raft) {
    if let Err(error) = raft.trigger().elect().await {
        tracing::debug!(%error, "consensus takes no election");
    }
    core.elector.restart(core.gate.now());
}

/// Whether a quorum of the voters misses a leader and would not prefer its own log. Ends with the first quorum: what
/// the first ones said is old by the time that a silent one is given up.
async fn pre_vote(core: &Arc<Core>, raft: &Raft) -> bool {
    let Some(own) = core.own() else { return false };
    let membership = core.gate.membership();
    let (last, before) = (core.log.last(), standpoint(core, raft));
    let voters: BTreeSet<u64> = membership.membership().voter_ids().collect();
    let status = Tolerant(core.status());
    let mut asked: FuturesUnordered<_> = voters
        .iter()
        .filter(|id| **id != own)
        .filter_map(|id| Some(To::new(*id, membership.membership().get_node(id)?)))
        .map(|to| {
            let (core, status) = (Arc::clone(core), &status);
            async move {
                let Tolerant(pong): Tolerant<Pong> =
                    rpc::call_within(&core.pool, own, &to, Method::Ping, status, PRE_VOTE).await.ok()?;
                would_vote(&pong, last, before.0, core.timing.lease()).then_some(to.id)
            }
        })
        .collect();
    let sets = membership.membership().get_joint_config();
    let mut willing = BTreeSet::from([own]);
    loop {
        if sets.iter().all(|set| set.intersection(&willing).count() * 2 > set.len()) {
            // Another one may have been faster meanwhile.
            return standpoint(core, raft) == before;
        }
        match asked.next().await {
            Some(answer) => willing.extend(answer),
            None => return false,
        }
    }
}

/// The newest term, and when the leader was last heard or a vote granted.
fn standpoint(core: &Core, raft: &Raft) -> (u64, Option<Mono>, Mono) {
    let term = raft.server_metrics().borrow().vote.leader_id.term;
    (term, core.gate.heard().map(|heard| heard.at), core.elector.state.lock().since)
}

fn would_vote(pong: &Pong, last: Option<LogId>, term: u64, lease: Duration) -> bool {
    let status = &pong.status;
    let lease = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
    let served = status.leader.is_some_and(|(_, age)| age <= lease) && status.leader_term >= term;
    !served && !status.electing && status.store_healthy && status.last <= last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_just_started_votes_for_nobody_within_one_lease() {
        let (born, lease) = (Mono::from_nanos(5_000_000_000), Duration::from_millis(400));
        let elector = Elector::new(born);
        assert!(elector.may_have_forgotten(born, lease));
        assert!(elector.may_have_forgotten(born.after(Duration::from_millis(399)), lease));
        assert!(!elector.may_have_forgotten(born.after(lease), lease));
    }
}
