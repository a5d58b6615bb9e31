//! Pings: each node asks each other member for its status every heartbeat.
//!
//! They say who is reachable, tell the elector whether it hears a quorum, tell a node that is cut off from the log
//! who leads, and tell a removed node that it was removed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Mono;
use parking_lot::Mutex;

use super::core::Core;
use super::rpc::{self, Method, Pong, RAFT_ALPN, Status, To, Tolerant};
use super::types::LogId;
use crate::cluster::NodeAddress;

/// How long a ping may take.
const PING: Duration = Duration::from_secs(1);
/// After how long a silence a connection is made anew: a path that came back is not waited for.
const STALE: Duration = Duration::from_secs(1);

/// What is known of one peer.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub status: Status,
    /// When the ping that it answered last was sent.
    pub sent: Mono,
}

/// What is known of all peers.
#[derive(Default)]
pub(super) struct Peers {
    table: Mutex<HashMap<u64, Slot>>,
}

#[derive(Default)]
struct Slot {
    known: Option<Known>,
    /// Where it said last that it is reached, in a ping of its own, and when it came.
    says: Option<(NodeAddress, Mono)>,
    asking: bool,
    failing_since: Option<Mono>,
    /// Whether it was said that the peer is away.
    said: bool,
}

/// What the end of a ping means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ended {
    /// The connection should be made anew.
    renew: bool,
    /// The peer has just come to count as away.
    gone: bool,
    /// The peer is back.
    back: bool,
}

impl Peers {
    pub(super) fn known(&self, id: u64) -> Option<Known> {
        self.table.lock().get(&id).and_then(|slot| slot.known.clone())
    }

    /// The end of the peer's log, as it said last.
    pub(super) fn last(&self, id: u64) -> Option<LogId> {
        self.table.lock().get(&id)?.known.as_ref()?.status.last
    }

    /// A ping of the peer came in: one that moved is heard of before it can be reached.
    pub(super) fn says(&self, id: u64, now: Mono, address: &NodeAddress) {
        self.table.lock().entry(id).or_default().says = Some((address.clone(), now));
    }

    /// Where the peer is, by what it said last.
    pub(super) fn address(&self, id: u64) -> Option<NodeAddress> {
        let table = self.table.lock();
        let slot = table.get(&id)?;
        let answered = slot.known.as_ref().map(|known| (&known.status.address, known.sent));
        let said = slot.says.as_ref().map(|(address, at)| (address, *at));
        answered.into_iter().chain(said).max_by_key(|(_, at)| *at).map(|(address, _)| address.clone())
    }

    fn begin(&self, id: u64) -> bool {
        !std::mem::replace(&mut self.table.lock().entry(id).or_default().asking, true)
    }

    /// Notes the end of a ping.
    fn end(&self, id: u64, now: Mono, answer: Option<Known>) -> Ended {
        let mut table = self.table.lock();
        let slot = table.entry(id).or_default();
        slot.asking = false;
        if let Some(known) = answer {
            (slot.known, slot.failing_since) = (Some(known), None);
            return Ended { back: std::mem::take(&mut slot.said), ..Ended::default() };
        }
        let since = *slot.failing_since.get_or_insert(now);
        let renew = now.since(since) >= STALE;
        let gone = renew && !slot.said;
        if renew {
            (slot.failing_since, slot.said) = (Some(now), true);
        }
        Ended { renew, gone, back: false }
    }

    fn retain(&self, members: impl Fn(u64) -> bool) {
        self.table.lock().retain(|id, _| members(*id));
    }
}

/// Pings every other member once; the answers arrive by themselves.
pub(super) fn ping_all(core: &Arc<Core>) {
    let Some(own) = core.own() else { return };
    let membership = core.gate.membership();
    core.peers.retain(|id| membership.membership().get_node(&id).is_some());
    for (id, peer) in membership.nodes().filter(|(id, _)| **id != own) {
        if !core.peers.begin(*id) {
            continue;
        }
        let (core, to) = (Arc::clone(core), To::new(*id, peer));
        core.clone().tasks.spawn_until_cancelled("store-ping", async move {
            ping(&core, own, &to).await;
        });
    }
}

async fn ping(core: &Arc<Core>, own: u64, to: &To) {
    let sent = core.gate.now();
    let status = Tolerant(core.status());
    let answer: Result<Tolerant<Pong>, _> =
        rpc::call_within(&core.pool, own, to, Method::Ping, &status, PING).await;
    match answer {
        Ok(Tolerant(pong)) => {
            let known = Known { status: pong.status.clone(), sent };
            if core.peers.end(to.id, core.gate.now(), Some(known)).back {
                tracing::info!(peer = %to.name, "a member answers again");
            }
            heard(core, &pong, sent);
        }
        Err(error) => {
            tracing::debug!(peer = %to.name, %error, "a ping failed");
            let ended = core.peers.end(to.id, core.gate.now(), None);
            if ended.gone {
                tracing::warn!(peer = %to.name, %error, "a member does not answer");
            }
            if ended.renew {
                core.pool.close(&to.address, Some(RAFT_ALPN));
            }
        }
    }
}

fn heard(core: &Arc<Core>, pong: &Pong, sent: Mono) {
    let status = &pong.status;
    core.elector.heard(status.id, sent);
    let membership = core.gate.membership();
    if !pong.member && status.membership > membership.log_id().map(|id| id.index) {
        core.gate.set_removed();
    }
    if let Some((leader, age)) = status.leader {
        core.gate.told(leader, status.leader_term, age);
    }
}
