//! Who belongs to the cluster, and how that changes: always on the leader, one change at a time.
//!
//! What must hold: a number is never given to a second node. A node that comes back without its log comes back as
//! another member, because its old self may have promised votes and entries that it has forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::leadership::stepdown::Outcome;
use openraft::ChangeMembers;
use openraft::error::{ChangeMembershipError, ClientWriteError, RaftError};
use tokio::sync::{MutexGuard, oneshot};
use tokio::time::timeout;

use super::core::Core;
use super::gate::find;
use super::rpc::{self, Change, Method, To};
use super::stepdown::Ask;
use super::types::{Peer, Raft};
use crate::cluster::{ClusterError, NodeAddress, NodeName};

/// How long a change, or the wait for the one before it, may take.
const CHANGE: Duration = Duration::from_secs(10);
/// A learner is promoted when it was within this many entries of the end ...
const CLOSE: u64 = 1000;
/// ... for this long.
const CLOSE_FOR: Duration = Duration::from_secs(1);
/// How long a node that handed over looks for its successor.
const SUCCESSOR: Duration = Duration::from_secs(5);
/// A step-down answers within this.
const STEP_DOWN: Duration = Duration::from_secs(2);

type Result<T> = std::result::Result<T, ClusterError>;

async fn begin(core: &Core) -> Result<(MutexGuard<'_, ()>, &Raft)> {
    let guard = timeout(CHANGE, core.changing.lock()).await.map_err(|_| ClusterError::Busy)?;
    if core.gate.active().is_none() {
        return Err(ClusterError::NotLeader);
    }
    let raft = core.raft().ok_or(ClusterError::NotLeader)?;
    Ok((guard, raft))
}

async fn change(raft: &Raft, changes: ChangeMembers<u64, Peer>, retain: bool) -> Result<()> {
    let done = timeout(CHANGE, raft.change_membership(changes, retain)).await;
    match done.map_err(|_| ClusterError::Timeout)? {
        Ok(_) => Ok(()),
        Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => Err(ClusterError::NotLeader),
        Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(
            ChangeMembershipError::InProgress(_),
        ))) => Err(ClusterError::Busy),
        Err(error) => Err(ClusterError::Internal(Box::new(error))),
    }
}

/// Adds a node as a learner, or gives a member a new address.
pub(super) async fn add(core: &Core, name: NodeName, address: NodeAddress, non_voter: bool) -> Result<()> {
    let (_guard, raft) = begin(core).await?;
    let membership = core.gate.membership();
    if let Some((id, peer)) = find(&membership, &name.0) {
        let voter = membership.membership().voter_ids().any(|voter| voter == id);
        if !voter && peer.address == address && peer.non_voter == non_voter {
            return Ok(());
        }
        if name == core.name {
            return Err(ClusterError::Invalid("this is the name of the leader".into()));
        }
        drop_member(core, raft, id, voter).await?;
    }
    let head = core.state.head();
    let known = core.gate.membership().nodes().map(|(id, _)| *id).max().unwrap_or(0);
    let id = head.top_member.max(known) + 1;
    tracing::info!(node = %name, id, address = %address.cluster, non_voter, "adding a member");
    let peer = Peer { name, address, non_voter };
    change(raft, ChangeMembers::AddNodes(BTreeMap::from([(id, peer)])), true).await
}

/// Removes a node; the leader hands over first and lets its successor do it.
pub(super) async fn remove(core: &Arc<Core>, name: &NodeName) -> Result<()> {
    if *name == core.name {
        return hand_over(core, Change::Remove(name.clone())).await;
    }
    let (_guard, raft) = begin(core).await?;
    let (id, voter) = member(core, name)?;
    tracing::info!(node = %name, id, "removing a member");
    drop_member(core, raft, id, voter).await
}

/// Makes a learner a voter.
pub(super) async fn promote(core: &Core, name: &NodeName) -> Result<()> {
    let (_guard, raft) = begin(core).await?;
    let (id, voter) = member(core, name)?;
    if voter {
        return Ok(());
    }
    mark(core, raft, id, false).await?;
    change(raft, ChangeMembers::AddVoterIds(BTreeSet::from([id])), true).await
}

/// Makes a voter a learner that stays one.
pub(super) async fn demote(core: &Arc<Core>, name: &NodeName) -> Result<()> {
    if *name == core.name {
        return hand_over(core, Change::Demote(name.clone())).await;
    }
    let (_guard, raft) = begin(core).await?;
    let (id, voter) = member(core, name)?;
    mark(core, raft, id, true).await?;
    if !voter {
        return Ok(());
    }
    change(raft, ChangeMembers::RemoveVoters(BTreeSet::from([id])), true).await
}

fn member(core: &Core, name: &NodeName) -> Result<(u64, bool)> {
    let membership = core.gate.membership();
    let (id, _) = find(&membership, &name.0).ok_or_else(|| ClusterError::UnknownMember(name.0.clone()))?;
    Ok((id, membership.membership().voter_ids().any(|voter| voter == id)))
}

async fn drop_member(core: &Core, raft: &Raft, id: u64, voter: bool) -> Result<()> {
    if !voter {
        return change(raft, ChangeMembers::RemoveNodes(BTreeSet::from([id])), false).await;
    }
    if core.gate.membership().membership().voter_ids().count() <= 1 {
        return Err(ClusterError::Invalid("the last voter cannot be removed".into()));
    }
    change(raft, ChangeMembers::RemoveVoters(BTreeSet::from([id])), false).await
}

/// Records whether a member is to stay a learner.
async fn mark(core: &Core, raft: &Raft, id: u64, non_voter: bool) -> Result<()> {
    let membership = core.gate.membership();
    let Some(peer) = membership.membership().get_node(&id).filter(|peer| peer.non_voter != non_voter) else {
        return Ok(());
    };
    let peer = Peer { non_voter, ..peer.clone() };
    change(raft, ChangeMembers::SetNodes(BTreeMap::from([(id, peer)])), true).await
}

/// Hands leadership over; returns once this node is no longer active.
pub(super) async fn step_down(core: &Core) -> Result<Outcome> {
    if core.gate.leading().is_none() {
        return Err(ClusterError::NotLeader);
    }
    let (answer, outcome) = oneshot::channel();
    core.step_down.send(Ask { answer }).await.map_err(|_| ClusterError::NotLeader)?;
    timeout(STEP_DOWN, outcome).await.map_err(|_| ClusterError::Timeout)?.map_err(|_| ClusterError::NotLeader)
}

async fn hand_over(core: &Arc<Core>, change: Change) -> Result<()> {
    match step_down(core).await? {
        Outcome::Relieved => {}
        Outcome::Alone => return Err(ClusterError::Invalid("the last voter cannot be removed".into())),
        Outcome::NobodyTookOver => return Err(ClusterError::Timeout),
    }
    let mut views = core.gate.watch();
    let leader = timeout(SUCCESSOR, views.wait_for(|view| view.leader.is_some()))
        .await
        .map_err(|_| ClusterError::Timeout)?
        .map_err(|_| ClusterError::NotLeader)?
        .leader
        .clone()
        .ok_or(ClusterError::NotLeader)?;
    let membership = core.gate.membership();
    let (id, peer) = find(&membership, &leader.node.0).ok_or(ClusterError::NotLeader)?;
    let own = core.own().ok_or(ClusterError::NotLeader)?;
    // The successor's gate may take a moment to open.
    let deadline = tokio::time::Instant::now() + SUCCESSOR;
    loop {
        let sent: std::result::Result<(), _> =
            rpc::call_within(&core.pool, own, &To::new(id, peer), Method::Change, &change, CHANGE).await;
        match sent {
            Ok(()) => return Ok(()),
            Err(error) if tokio::time::Instant::now() >= deadline => {
                return Err(ClusterError::Internal(Box::new(error)));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// On the active node: promotes learners that have caught up, and records addresses that have changed.
pub(super) fn tend(core: &Arc<Core>) {
    let (Some(own), true) = (core.own(), core.gate.active().is_some()) else {
        core.caught_up.lock().clear();
        return;
    };
    let membership = core.gate.membership();
    let voters: BTreeSet<u64> = membership.membership().voter_ids().collect();
    let ready = membership
        .nodes()
        .filter(|(id, peer)| !peer.non_voter && !voters.contains(id))
        .filter(|(id, _)| has_caught_up(core, **id))
        .map(|(id, _)| *id)
        .next();
    let moved = membership.nodes().find_map(|(id, peer)| {
        let address = if *id == own { core.address.clone() } else { core.peers.address(*id)? };
        (address != peer.address).then(|| (*id, Peer { address, ..peer.clone() }))
    });
    if ready.is_none() && moved.is_none() {
        return;
    }
    let core = Arc::clone(core);
    core.clone().tasks.spawn_until_cancelled("store-tend", async move {
        // Somebody else's change comes first; this one is looked at again at the next beat.
        let (Ok(_guard), Some(raft)) = (core.changing.try_lock(), core.raft()) else { return };
        let (id, what, wanted) = match (moved, ready) {
            (Some(moved), _) => (moved.0, "address", ChangeMembers::SetNodes(BTreeMap::from([moved]))),
            (None, Some(id)) => (id, "vote", ChangeMembers::AddVoterIds(BTreeSet::from([id]))),
            (None, None) => return,
        };
        tracing::info!(id, what, "changing the membership");
        if let Err(error) = change(raft, wanted, true).await {
            tracing::debug!(%error, "the membership was not changed");
        }
    });
}

/// Whether a learner that holds the log up to `held` is near its end. One that holds nothing never is.
const fn is_close(held: u64, last: u64) -> bool {
    held != 0 && last.saturating_sub(held) <= CLOSE
}

fn has_caught_up(core: &Core, id: u64) -> bool {
    let Some(raft) = core.raft() else { return false };
    let metrics = raft.metrics().borrow().clone();
    let held =
        metrics.replication.and_then(|all| all.get(&id).copied().flatten()).map_or(0, |held| held.index);
    let last = core.log.last().map_or(0, |last| last.index);
    let now = core.gate.now();
    let mut caught_up = core.caught_up.lock();
    if !is_close(held, last) {
        caught_up.remove(&id);
        return false;
    }
    now.since(*caught_up.entry(id).or_insert(now)) >= CLOSE_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learner_is_close_within_a_thousand_entries() {
        assert!(is_close(1, 1001) && is_close(5000, 5000) && is_close(7, 3));
        assert!(!is_close(1, 1002) && !is_close(0, 0) && !is_close(0, 10));
    }
}
