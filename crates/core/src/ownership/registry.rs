//! Who owns the stream of each spoke.
//!
//! What must hold: one owner a spoke; own and foreign streams obey the same table, so a dead stream of this node never
//! shadows a live one elsewhere; a set changes entries of its sender alone, except where a claim in it wins; an entry
//! goes only if spoke, node and stamp are the ones meant.
//!
//! Own streams stay through every change of role. What other nodes said is held only while this node is active.

mod entry;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::announcer::Trigger;
use super::{Claim, NodeName, Seq, SpokeSet, Stamp, Superseded, Verdict, judge};
use crate::SpokeName;
use crate::time::earliest;
use crate::{Mono, Term};
pub use entry::{Entry, Peer};
use entry::{Heard, Held};

/// The times of a [`Registry`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The announce interval; 5 s. What a node said counts for three of them.
    pub interval: Duration,
    /// How long a node that became active waits for all members' sets; 1 s.
    pub priming: Duration,
    /// How long a silent stream still counts as alive: keepalive interval and timeout, 20 s.
    pub alive_for: Duration,
    /// How long after it was last known a spoke counts as seen lately; 15 s.
    pub lately: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            priming: Duration::from_secs(1),
            alive_for: Duration::from_secs(20),
            lately: Duration::from_secs(15),
        }
    }
}

/// Names an announce whose sender waits for the answer.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Ticket(u64);

impl Ticket {
    /// Wraps a number, unique among the announces that are not answered yet.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }
}

/// What the shell tells a [`Registry`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// The members of the cluster, this node with them.
    Members(BTreeSet<NodeName>),
    /// This node became active in this term.
    Activated(Term),
    /// It is active no more.
    Deactivated,
    /// A spoke's stream said hello on this node.
    Opened(Claim),
    /// A frame came on an own stream. Once for each heartbeat is enough.
    Heard(SpokeName, Stamp),
    /// An own stream's certificate was renewed in place.
    Renewed(SpokeName, Stamp, i64),
    /// An own stream is gone. For one that is not the installed one, nothing.
    Closed(SpokeName, Stamp),
    /// A node announced its set and waits for an answer.
    Announced(Ticket, SpokeSet),
    /// A node answered the pull of this term, or none came.
    Pulled(NodeName, Term, Option<SpokeSet>),
    /// The active node of this term says that these own streams have to end, in an answer or by a call.
    Told(Term, Vec<Superseded>),
    /// Ask every member for its set now.
    Pull,
    /// A node has no such stream: forget this very claim.
    Forget(SpokeName, NodeName, Stamp),
    /// A call to this node's cluster port was answered, or none could be made.
    Reached(NodeName, bool),
    /// Time passed.
    Tick,
}

/// The answer to an announce.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply {
    /// Taken, or older than what is known and ignored.
    Taken {
        /// These streams of the sender have to end.
        superseded: Vec<Superseded>,
        /// The highest number known of the sender. Above its own when its clock went back between two lives: then it
        /// lifts its counter and sends again.
        newest: Seq,
    },
    /// This node is not active.
    NotActive,
    /// This node has seen a higher term.
    StaleTerm(Term),
}

/// Why an entry went.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Cause {
    /// Its node no longer names it, or its stream ended here.
    Dropped,
    /// Its node was silent for three intervals.
    Expired,
    /// Its node had no such stream when it was asked to use it.
    Forgotten,
    /// It was silent, and another daemon dialled.
    Silent,
}

/// Something for the log and the metrics.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Report {
    /// A spoke has a new owner, or a new stream on the same.
    Owned(SpokeName, NodeName, Stamp),
    /// A spoke has no owner.
    Lost(SpokeName, NodeName, Cause),
    /// A node claimed the very dial that another holds; it was not believed.
    Conflict(SpokeName, NodeName),
    /// ERROR: two daemons use the identity of this spoke.
    TwoDaemons(SpokeName),
    /// The priming ended after this long, and whether every member answered.
    Primed(Duration, bool),
}

/// What the shell must do, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Install this stream. Comes before the end of the one that it replaces.
    Admit(SpokeName, Stamp),
    /// Say `superseded` on this own stream, and end it within 1 s; its waiters fail as reconnected. For a stream that
    /// was not admitted: refuse it the same way. It is out of the registry already.
    End(Superseded),
    /// Have this node end these streams, by a call of the given term. Not repeated: a loss is healed when the node's
    /// next announce is answered.
    Tell(NodeName, Term, Vec<Superseded>),
    /// Ask this node for its set, within 300 ms while commands wait for it, and answer with [`Event::Pulled`].
    Pull(NodeName, Term),
    /// Answer this announce.
    Answer(Ticket, Reply),
    /// The own streams changed: tell the announcer.
    Announce(Trigger),
    /// Have the commands of this spoke look again; without a name, all commands.
    Wake(Option<SpokeName>),
    /// For the log and the metrics.
    Report(Report),
}

/// What is known of the way to a spoke.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Lookup {
    /// The stream is here.
    Local(Stamp),
    /// It is at this node.
    Remote(NodeName, Stamp),
    /// Not all members have told their streams yet.
    Priming,
    /// Nobody has it; and whether somebody had lately.
    Unknown {
        /// Whether the spoke was known within the last 15 s.
        lately: bool,
    },
    /// It is not here, and this node is not active.
    NotActive,
}

#[derive(Clone, Debug)]
struct Reign {
    term: Term,
    since: Mono,
    /// Whose sets the priming waits for.
    awaited: Option<BTreeSet<NodeName>>,
    /// Pulls under way.
    pulling: BTreeSet<NodeName>,
}

/// The registry of one node.
#[derive(Clone, Debug)]
pub struct Registry {
    timing: Timing,
    own: NodeName,
    members: BTreeSet<NodeName>,
    /// The highest term seen.
    seen: Term,
    reign: Option<Reign>,
    held: BTreeMap<SpokeName, Held>,
    heard: BTreeMap<NodeName, Heard>,
    unreachable: BTreeSet<NodeName>,
    /// When spokes that nobody holds were known last.
    gone: BTreeMap<SpokeName, Mono>,
}

impl Registry {
    /// A node that is not active and has no streams.
    pub const fn new(timing: Timing, own: NodeName) -> Self {
        Self {
            timing,
            own,
            members: BTreeSet::new(),
            seen: Term::new(0),
            reign: None,
            held: BTreeMap::new(),
            heard: BTreeMap::new(),
            unreachable: BTreeSet::new(),
            gone: BTreeMap::new(),
        }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event, out: &mut Vec<Effect>) {
        self.expire(now, out);
        match event {
            Event::Members(members) => self.members_are(members, out),
            Event::Activated(term) => self.activated(now, term, out),
            Event::Deactivated => self.deactivated(out),
            Event::Opened(claim) => self.opened(now, claim, out),
            Event::Heard(spoke, stamp) => self.touch(now, &spoke, stamp),
            Event::Renewed(spoke, stamp, not_after) => self.renewed(&spoke, stamp, not_after, out),
            Event::Closed(spoke, stamp) => self.closed(now, &spoke, stamp, out),
            Event::Announced(ticket, set) => self.announced(now, ticket, set, out),
            Event::Pulled(node, term, set) => self.pulled(now, &node, term, set, out),
            Event::Told(term, ended) => self.told(now, term, ended, out),
            Event::Pull => self.pull(out),
            Event::Forget(spoke, node, stamp) => {
                self.remove(now, &spoke, &node, stamp, Cause::Forgotten, out);
            }
            Event::Reached(node, true) => {
                self.unreachable.remove(&node);
            }
            Event::Reached(node, false) => {
                self.unreachable.insert(node);
            }
            Event::Tick => {}
        }
        self.end_priming(now, out);
    }

    /// Whether a message that carries `term` is to be obeyed; an older one than any seen is not, and the answer to it
    /// is `stale_term` with the term returned.
    ///
    /// # Errors
    /// The highest term seen, when `term` is below it.
    pub fn admit(&mut self, term: Term) -> Result<(), Term> {
        if !term.may_act_on(self.seen) {
            return Err(self.seen);
        }
        self.seen = term;
        Ok(())
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Mono> {
        let reign = self.reign.as_ref()?;
        let priming = reign.awaited.as_ref().map(|_| reign.since.after(self.timing.priming));
        // One nanosecond more: an announce counts for three intervals, to their very end.
        let expiry = self.heard.values().map(|heard| heard.at.after(self.lifetime())).min();
        earliest(priming, expiry.map(|at| at.after(Duration::from_nanos(1))))
    }

    /// What is known of the way to `spoke`.
    pub fn lookup(&self, now: Mono, spoke: &SpokeName) -> Lookup {
        let held = self.held.get(spoke);
        match held {
            Some(held) if held.owner == self.own => return Lookup::Local(held.claim.stamp),
            _ if self.reign.is_none() => return Lookup::NotActive,
            Some(held) if !self.expired(now, &held.owner) => {
                return Lookup::Remote(held.owner.clone(), held.claim.stamp);
            }
            _ => {}
        }
        if self.priming() {
            return Lookup::Priming;
        }
        let lately = |gone: &Mono| now.since(*gone) <= self.timing.lately;
        Lookup::Unknown { lately: held.is_some() || self.gone.get(spoke).is_some_and(lately) }
    }

    /// The own streams as claims of this moment, for a set.
    pub fn own_streams(&self, now: Mono) -> Vec<Claim> {
        self.held.values().filter(|held| held.owner == self.own).map(|held| held.claim_at(now)).collect()
    }

    /// Whether sets of members are still waited for after this node became active.
    pub fn priming(&self) -> bool {
        self.reign.as_ref().is_some_and(|reign| reign.awaited.is_some())
    }

    /// The term in which this node is active.
    pub fn active(&self) -> Option<Term> {
        self.reign.as_ref().map(|reign| reign.term)
    }

    /// The highest term seen.
    pub const fn seen_term(&self) -> Term {
        self.seen
    }

    /// Every stream that is known, for views; sorted by name.
    pub fn entries(&self, now: Mono) -> impl Iterator<Item = Entry<'_>> {
        let known = self.held.values().filter(move |held| !self.expired(now, &held.owner));
        known.map(move |held| Entry {
            claim: held.claim_at(now),
            node: &held.owner,
            reachable: !self.unreachable.contains(&held.owner),
        })
    }

    /// Every member, for views; sorted by name.
    pub fn peers(&self, now: Mono) -> impl Iterator<Item = Peer<'_>> {
        self.members.iter().map(move |node| {
            let own = *node == self.own;
            let last_announce = self.heard.get(node).map(|heard| now.since(heard.at));
            let heard = own || last_announce.is_some_and(|age| age <= self.lifetime());
            Peer {
                node,
                own,
                spokes: self.held.values().filter(|held| held.owner == *node).count(),
                last_announce,
                reachable: heard && !self.unreachable.contains(node),
            }
        })
    }
}

/// Roles.
impl Registry {
    fn activated(&mut self, now: Mono, term: Term, out: &mut Vec<Effect>) {
        if self.admit(term).is_err() || self.active() == Some(term) {
            return;
        }
        self.clear();
        let awaited: BTreeSet<_> = self.members.iter().filter(|node| **node != self.own).cloned().collect();
        let reign = Reign { term, since: now, awaited: Some(awaited), pulling: BTreeSet::new() };
        self.reign = Some(reign);
        self.pull(out);
        out.push(Effect::Wake(None));
    }

    /// A member that is new is asked, one that is gone is not waited for.
    fn members_are(&mut self, members: BTreeSet<NodeName>, out: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.members, members);
        let Some(reign) = &mut self.reign else { return };
        if let Some(awaited) = &mut reign.awaited {
            awaited.retain(|node| self.members.contains(node));
        }
        reign.pulling.retain(|node| self.members.contains(node));
        for node in self.members.difference(&before).filter(|node| **node != self.own) {
            reign.pulling.insert(node.clone());
            out.push(Effect::Pull(node.clone(), reign.term));
        }
    }

    fn deactivated(&mut self, out: &mut Vec<Effect>) {
        if self.reign.take().is_some() {
            self.clear();
            out.push(Effect::Wake(None));
        }
    }

    fn clear(&mut self) {
        let own = &self.own;
        self.held.retain(|_, held| held.owner == *own);
        self.heard.clear();
        self.gone.clear();
        self.unreachable.clear();
    }

    fn pull(&mut self, out: &mut Vec<Effect>) {
        let Some(reign) = &mut self.reign else { return };
        for node in self.members.iter().filter(|node| **node != self.own) {
            if reign.pulling.insert(node.clone()) {
                out.push(Effect::Pull(node.clone(), reign.term));
            }
        }
    }

    fn end_priming(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let Some(reign) = &mut self.reign else { return };
        let Some(awaited) = &reign.awaited else { return };
        let took = now.since(reign.since);
        let complete = awaited.is_empty();
        if complete || took >= self.timing.priming {
            reign.awaited = None;
            out.extend([Effect::Report(Report::Primed(took, complete)), Effect::Wake(None)]);
        }
    }

    const fn lifetime(&self) -> Duration {
        self.timing.interval.saturating_mul(3)
    }

    fn expired(&self, now: Mono, owner: &NodeName) -> bool {
        let silent = |heard: &Heard| now.since(heard.at) > self.lifetime();
        *owner != self.own && self.heard.get(owner).is_none_or(silent)
    }

    fn expire(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let over: Vec<_> = self.heard.keys().filter(|node| self.expired(now, node)).cloned().collect();
        for node in over {
            self.heard.remove(&node);
            for (spoke, stamp) in self.of_node(&node) {
                self.remove(now, &spoke, &node, stamp, Cause::Expired, out);
            }
        }
        let lately = self.timing.lately;
        self.gone.retain(|_, gone| now.since(*gone) <= lately);
    }

    fn of_node(&self, node: &NodeName) -> Vec<(SpokeName, Stamp)> {
        let of_node = self.held.iter().filter(|(_, held)| held.owner == *node);
        of_node.map(|(spoke, held)| (spoke.clone(), held.claim.stamp)).collect()
    }
}

/// Own streams.
impl Registry {
    fn opened(&mut self, now: Mono, claim: Claim, out: &mut Vec<Effect>) {
        let (spoke, stamp, own) = (claim.spoke.clone(), claim.stamp, self.own.clone());
        // A second stream with the stamp of the first is no new dial; the first one stays.
        let again = self.held.get(&spoke).is_some_and(|held| held.claim.stamp == stamp && held.owner == own);
        let mut told = Vec::new();
        let admit = out.len();
        if again || !self.merge(now, &own, claim, &mut told, out) {
            let refused = told.pop().or_else(|| self.against(now, &spoke, stamp));
            out.extend(refused.map(Effect::End));
            return;
        }
        out.insert(admit, Effect::Admit(spoke, stamp));
        out.push(Effect::Announce(Trigger::Connect));
    }

    fn touch(&mut self, now: Mono, spoke: &SpokeName, stamp: Stamp) {
        let own = &self.own;
        let held = self.held.get_mut(spoke).filter(|held| held.owner == *own && held.claim.stamp == stamp);
        if let Some(held) = held {
            held.claim = held.claim_at(now);
            (held.at, held.claim.seen_age) = (now, Duration::ZERO);
        }
    }

    fn renewed(&mut self, spoke: &SpokeName, stamp: Stamp, not_after: i64, out: &mut Vec<Effect>) {
        let own = &self.own;
        let held = self.held.get_mut(spoke).filter(|held| held.owner == *own && held.claim.stamp == stamp);
        if let Some(held) = held {
            held.claim.cert_not_after = not_after;
            out.push(Effect::Announce(Trigger::Connect));
        }
    }

    fn closed(&mut self, now: Mono, spoke: &SpokeName, stamp: Stamp, out: &mut Vec<Effect>) {
        let own = self.own.clone();
        if self.remove(now, spoke, &own, stamp, Cause::Dropped, out) {
            out.push(Effect::Announce(Trigger::Drop));
        }
    }

    fn told(&mut self, now: Mono, term: Term, ended: Vec<Superseded>, out: &mut Vec<Effect>) {
        if self.admit(term).is_err() {
            return;
        }
        let own = self.own.clone();
        for superseded in ended {
            let (spoke, stamp) = (superseded.spoke.clone(), superseded.stamp);
            if self.remove(now, &spoke, &own, stamp, Cause::Dropped, out) {
                out.extend([Effect::End(superseded), Effect::Announce(Trigger::Drop)]);
            }
        }
    }
}

/// Sets of other nodes.
impl Registry {
    fn announced(&mut self, now: Mono, ticket: Ticket, set: SpokeSet, out: &mut Vec<Effect>) {
        let reply = match self.admit(set.term) {
            Err(seen) => Reply::StaleTerm(seen),
            Ok(()) if self.active() != Some(set.term) => Reply::NotActive,
            Ok(()) => {
                let (node, seq) = (set.node.clone(), set.seq);
                let superseded = self.take_set(now, set, out);
                Reply::Taken { superseded, newest: self.heard.get(&node).map_or(seq, |heard| heard.seq) }
            }
        };
        out.push(Effect::Answer(ticket, reply));
    }

    fn pulled(
        &mut self,
        now: Mono,
        node: &NodeName,
        term: Term,
        set: Option<SpokeSet>,
        out: &mut Vec<Effect>,
    ) {
        let Some(reign) = self.reign.as_mut().filter(|reign| reign.term == term) else { return };
        reign.pulling.remove(node);
        let Some(set) = set.filter(|set| set.node == *node) else { return };
        if let Some(awaited) = &mut reign.awaited {
            awaited.remove(node);
        }
        let told = self.take_set(now, set, out);
        if !told.is_empty() {
            out.push(Effect::Tell(node.clone(), term, told));
        }
    }

    /// Takes a whole set, unless it is older than what its node said already. Returns what its sender has to end.
    fn take_set(&mut self, now: Mono, set: SpokeSet, out: &mut Vec<Effect>) -> Vec<Superseded> {
        let SpokeSet { node, seq, spokes, .. } = set;
        let late = self.heard.get(&node).is_some_and(|heard| seq <= heard.seq);
        if node == self.own || late {
            return Vec::new();
        }
        self.heard.insert(node.clone(), Heard { at: now, seq });
        // An announce says as much as the answer to a pull.
        if let Some(awaited) = self.reign.as_mut().and_then(|reign| reign.awaited.as_mut()) {
            awaited.remove(&node);
        }
        let named: BTreeMap<_, _> = spokes.iter().map(|claim| (&claim.spoke, claim.stamp)).collect();
        for (spoke, stamp) in self.of_node(&node) {
            match named.get(&spoke) {
                None => drop(self.remove(now, &spoke, &node, stamp, Cause::Dropped, out)),
                // About its own streams a node is always right, even when it goes back to an older epoch.
                Some(named) if *named != stamp => drop(self.held.remove(&spoke)),
                Some(_) => {}
            }
        }
        let mut told = Vec::new();
        for claim in spokes {
            self.merge(now, &node, claim, &mut told, out);
        }
        told
    }

    /// Puts one claim to the table. What the claimant has to end is added to `told`. Says whether it was taken.
    fn merge(
        &mut self,
        now: Mono,
        node: &NodeName,
        claim: Claim,
        told: &mut Vec<Superseded>,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(held) = self.held.get(&claim.spoke) else {
            self.take(now, node, claim, out);
            return true;
        };
        let verdict = judge(held.claim.stamp, claim.stamp, held.owner == *node);
        if matches!(verdict, Verdict::TakeFromTwin | Verdict::RefuseTwin) {
            out.push(Effect::Report(Report::TwoDaemons(claim.spoke.clone())));
        }
        match verdict {
            Verdict::Take | Verdict::TakeFromTwin => self.supersede(now, node, claim, out),
            Verdict::Refresh => {
                self.held.insert(claim.spoke.clone(), Held { owner: node.clone(), claim, at: now });
            }
            Verdict::Conflict => {
                out.push(Effect::Report(Report::Conflict(claim.spoke, node.clone())));
                return false;
            }
            Verdict::Refuse | Verdict::RefuseTwin => {
                self.refuse(now, &claim, told, out);
                return false;
            }
        }
        true
    }

    fn take(&mut self, now: Mono, node: &NodeName, claim: Claim, out: &mut Vec<Effect>) {
        let (spoke, stamp) = (claim.spoke.clone(), claim.stamp);
        self.gone.remove(&spoke);
        self.held.insert(spoke.clone(), Held { owner: node.clone(), claim, at: now });
        let report = Report::Owned(spoke.clone(), node.clone(), stamp);
        out.extend([Effect::Report(report), Effect::Wake(Some(spoke))]);
    }

    /// The new one is installed before the old one is told to end.
    fn supersede(&mut self, now: Mono, node: &NodeName, claim: Claim, out: &mut Vec<Effect>) {
        let former = self.held.get(&claim.spoke).map(|held| (held.owner.clone(), held.claim.stamp));
        let (spoke, by) = (claim.spoke.clone(), claim.stamp);
        self.take(now, node, claim, out);
        if let Some((owner, stamp)) = former {
            self.end_former(&owner, node, Superseded { spoke, stamp, by, alive: true }, out);
        }
    }

    /// Has the owner of a stream end it. A node that claims a newer stream itself has ended its older one already.
    fn end_former(&self, owner: &NodeName, by: &NodeName, ended: Superseded, out: &mut Vec<Effect>) {
        if *owner == self.own {
            let announce = (by != owner).then_some(Effect::Announce(Trigger::Drop));
            out.push(Effect::End(ended));
            out.extend(announce);
        } else if let Some(term) = self.active().filter(|_| by != owner) {
            out.push(Effect::Tell(owner.clone(), term, vec![ended]));
        }
    }

    /// An older claim goes. If the held stream is silent, and another daemon dialled after it fell silent, that one
    /// goes as well, and the newcomer is told to come again with a higher epoch.
    fn refuse(&mut self, now: Mono, claim: &Claim, told: &mut Vec<Superseded>, out: &mut Vec<Effect>) {
        let Some(refused) = self.against(now, &claim.spoke, claim.stamp) else { return };
        let Some(held) = self.held.get(&claim.spoke) else { return };
        let rival = held.claim.stamp.boot != claim.stamp.boot;
        let dialled_after = claim.connected_age < held.claim_at(now).seen_age;
        let silent = rival && dialled_after && !refused.alive;
        told.push(Superseded { alive: !silent, ..refused });
        if silent {
            let (owner, stamp) = (held.owner.clone(), held.claim.stamp);
            let ended = Superseded { spoke: claim.spoke.clone(), stamp, by: claim.stamp, alive: true };
            self.remove(now, &claim.spoke, &owner, stamp, Cause::Silent, out);
            if owner == self.own {
                out.extend([Effect::End(ended), Effect::Announce(Trigger::Drop)]);
            } else if let Some(term) = self.active() {
                out.push(Effect::Tell(owner, term, vec![ended]));
            }
        }
    }

    /// What the loser against the held stream of `spoke` is told.
    fn against(&self, now: Mono, spoke: &SpokeName, stamp: Stamp) -> Option<Superseded> {
        let held = self.held.get(spoke)?;
        // The age of another node's stream is as old as its last set.
        let grace = if held.owner == self.own { Duration::ZERO } else { self.timing.interval };
        let alive = held.claim_at(now).seen_age <= self.timing.alive_for.saturating_add(grace);
        Some(Superseded { spoke: spoke.clone(), stamp, by: held.claim.stamp, alive })
    }

    /// Compare-and-forget.
    fn remove(
        &mut self,
        now: Mono,
        spoke: &SpokeName,
        node: &NodeName,
        stamp: Stamp,
        cause: Cause,
        out: &mut Vec<Effect>,
    ) -> bool {
        let meant = |held: &Held| held.owner == *node && held.claim.stamp == stamp;
        if !self.held.get(spoke).is_some_and(meant) {
            return false;
        }
        self.held.remove(spoke);
        self.gone.insert(spoke.clone(), now);
        let report = Report::Lost(spoke.clone(), node.clone(), cause);
        out.extend([Effect::Report(report), Effect::Wake(Some(spoke.clone()))]);
        true
    }
}

#[cfg(test)]
mod tests;
