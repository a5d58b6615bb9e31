//! One hub node: its registry, its announcer, and the shell around them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_core::SpokeName;
use holdfast_core::epoch::dialer::End;
use holdfast_core::ownership::announcer::{self, Outcome, Trigger};
use holdfast_core::ownership::registry::{self, Reply, Report, Ticket};
use holdfast_core::ownership::{Announcer, NodeName, Registry, Seq, SpokeSet, Stamp, Superseded};
use holdfast_core::retry::Active;
use holdfast_core::time::Spread;
use holdfast_core::{Mono, Term};

use super::{AHEAD, Happening, Message, NEWER_KEPT, Plant, SERVES, VERY_CLAIM, World};

/// Who sent a message; an answer to an earlier life of a node is nobody's.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub node: usize,
    pub life: u32,
}

pub struct Node {
    pub name: NodeName,
    members: BTreeSet<NodeName>,
    /// What this node's clock is ahead by: no two clocks agree.
    offset: Duration,
    pub life: u32,
    pub up: bool,
    paused: Mono,
    pub registry: Registry,
    pub announcer: Announcer,
    pub streams: BTreeSet<(SpokeName, Stamp)>,
    /// The leader that it believes in.
    pub believes: Option<usize>,
    /// The announces that are being answered.
    tickets: BTreeMap<Ticket, (Sender, Seq, Term)>,
    /// The highest number that came from each node, and when the newest set did, in this reign.
    pub newest: BTreeMap<NodeName, (Seq, Mono)>,
    believed: BTreeMap<SpokeName, (NodeName, Stamp)>,
    pub ticks: Option<Mono>,
}

fn name_of(id: usize) -> NodeName {
    NodeName::new(&id.to_string())
}

fn registry_of(id: usize, plant: Plant) -> Registry {
    let mut timing = registry::Timing::default();
    if plant == Plant::NoExpiry {
        timing.interval = Duration::from_secs(3600);
    }
    Registry::new(timing, name_of(id))
}

impl Node {
    pub fn new(id: usize, members: usize, plant: Plant, spread: &mut Spread) -> Self {
        Self {
            name: name_of(id),
            members: (0..members).map(name_of).collect(),
            offset: Duration::from_secs(spread.below(5000)),
            life: 0,
            up: false,
            paused: Mono::ZERO,
            registry: registry_of(id, plant),
            announcer: Announcer::new(announcer::Timing::default(), name_of(id), Seq::new(0)),
            streams: BTreeSet::new(),
            believes: None,
            tickets: BTreeMap::new(),
            newest: BTreeMap::new(),
            believed: BTreeMap::new(),
            ticks: None,
        }
    }

    pub fn clock(&self, now: Mono) -> Mono {
        now.after(self.offset)
    }

    fn world_time(&self, at: Mono) -> Mono {
        Mono::ZERO.after(at.since(Mono::ZERO.after(self.offset)))
    }

    pub fn paused_until(&self, now: Mono) -> Option<Mono> {
        (now < self.paused).then_some(self.paused)
    }

    pub fn set(&mut self, now: Mono, term: Term, seq: Seq) -> SpokeSet {
        SpokeSet { term, node: self.name.clone(), seq, spokes: self.registry.own_streams(self.clock(now)) }
    }

    pub fn pause(&mut self, until: Mono) {
        self.paused = self.paused.max(until);
    }
}

fn index(name: &NodeName) -> usize {
    name.as_str().parse().unwrap_or(usize::MAX)
}

/// Lives and leaders.
impl World {
    pub fn start_node(&mut self, i: usize) {
        let (plant, now) = (self.plant, self.now);
        let node = &mut self.nodes[i];
        if node.up {
            return;
        }
        node.life += 1;
        node.up = true;
        node.registry = registry_of(i, plant);
        // The wall clock of a node: its monotonic one will do, since only this node's numbers are compared.
        let first = Seq::new(now.as_nanos() / 1_000_000);
        node.announcer = Announcer::new(announcer::Timing::default(), name_of(i), first);
        (node.believes, node.ticks) = (None, None);
        node.streams.clear();
        node.tickets.clear();
        node.believed.clear();
        let (members, life, term) = (node.members.clone(), node.life, self.term);
        self.registry(i, registry::Event::Members(members));
        let delay = self.millis(300);
        self.later(delay, Happening::Learn { node: i, life, term });
    }

    pub fn crash(&mut self, i: usize) {
        if !self.nodes[i].up {
            return;
        }
        self.nodes[i].up = false;
        self.nodes[i].streams.clear();
        self.lose_streams(i);
        // Their clients see the connection break.
        self.commands
            .values_mut()
            .filter(|command| command.node == i)
            .for_each(|command| command.over = true);
        let back = self.millis(20_000);
        self.later(back, Happening::Start { node: i });
        if self.leader == Some(i) {
            self.leader = None;
            let delay = self.millis(2000);
            self.later(delay, Happening::Elect);
        }
    }

    pub fn pause(&mut self, i: usize) {
        let length = self.millis(4000);
        self.nodes[i].pause(self.now.after(length));
        if self.leader == Some(i) && length > Duration::from_secs(1) {
            self.later(Duration::from_secs(1), Happening::Elect);
        }
    }

    /// One node at a time is active: what the other world proves is given here.
    pub fn elect(&mut self) {
        let able = |i: &usize| self.nodes[*i].up && self.nodes[*i].paused_until(self.now).is_none();
        let able: Vec<_> = (0..self.nodes.len()).filter(able).collect();
        if able.len() * 2 <= self.nodes.len() {
            self.later(Duration::from_millis(500), Happening::Elect);
            return;
        }
        let next = able[self.spread.below(able.len() as u64) as usize];
        if let Some(former) = self.leader.take() {
            self.registry(former, registry::Event::Deactivated);
            self.begin_reign(former);
            self.announcer(former, announcer::Event::Active(Active::Unknown, self.term));
            self.nodes[former].believes = None;
        }
        self.term = self.term.next();
        self.leader = Some(next);
        let term = self.term;
        self.nodes[next].believes = Some(next);
        self.begin_reign(next);
        self.announcer(next, announcer::Event::Active(Active::Here, term));
        self.registry(next, registry::Event::Activated(term));
        for i in (0..self.nodes.len()).filter(|i| *i != next) {
            let (delay, life) = (self.millis(900), self.nodes[i].life);
            self.later(delay, Happening::Learn { node: i, life, term });
        }
    }

    /// From here on a node believes in its own streams alone.
    fn begin_reign(&mut self, i: usize) {
        let now = self.now;
        let node = &mut self.nodes[i];
        node.newest.clear();
        let own = node.registry.own_streams(node.clock(now)).into_iter();
        node.believed = own.map(|claim| (claim.spoke, (node.name.clone(), claim.stamp))).collect();
    }

    pub fn learn(&mut self, i: usize, life: u32, term: Term) {
        if self.nodes[i].life != life || !self.nodes[i].up || term != self.term {
            return;
        }
        let Some(leader) = self.leader.filter(|leader| *leader != i) else { return };
        self.nodes[i].believes = Some(leader);
        self.announcer(i, announcer::Event::Active(Active::Peer(name_of(leader)), term));
    }
}

/// The shell.
impl World {
    pub fn node_tick(&mut self, i: usize, life: u32) {
        if self.nodes[i].life != life || !self.nodes[i].up {
            return;
        }
        self.nodes[i].ticks = None;
        self.registry(i, registry::Event::Tick);
        self.announcer(i, announcer::Event::Tick);
        let node = &self.nodes[i];
        let deadlines = [node.registry.next_deadline(), node.announcer.next_deadline()];
        if deadlines.into_iter().flatten().any(|at| at <= node.clock(self.now)) {
            self.fail(AHEAD);
        }
    }

    fn schedule(&mut self, i: usize) {
        let node = &self.nodes[i];
        let deadlines = [node.registry.next_deadline(), node.announcer.next_deadline()];
        let Some(at) = deadlines.into_iter().flatten().min() else { return };
        let (at, life) = (node.world_time(at).max(self.now), node.life);
        if node.ticks.is_none_or(|planned| at < planned) {
            self.nodes[i].ticks = Some(at);
            self.at(at, Happening::NodeTick { node: i, life });
        }
    }

    pub fn registry(&mut self, i: usize, event: registry::Event) {
        let mut out = Vec::new();
        let node = &mut self.nodes[i];
        let clock = node.clock(self.now);
        node.registry.on(clock, event, &mut out);
        for effect in out {
            self.registry_effect(i, effect);
        }
        self.schedule(i);
    }

    fn registry_effect(&mut self, i: usize, effect: registry::Effect) {
        match effect {
            registry::Effect::Admit(spoke, stamp) => {
                self.nodes[i].streams.insert((spoke.clone(), stamp));
                self.welcome(&spoke, stamp);
            }
            registry::Effect::End(ended) => self.end_stream(i, ended),
            registry::Effect::Tell(to, term, ended) => {
                self.done.superseded += 1;
                if self.plant != Plant::TellNobody {
                    self.send(i, index(&to), Message::Tell(term, ended));
                }
            }
            registry::Effect::Pull(to, term) => {
                let from = Sender { node: index(&to), life: self.nodes[index(&to)].life };
                let none = Message::Pulled(term, None);
                self.send(i, index(&to), Message::Pull(term));
                self.later(Duration::from_millis(300), Happening::Deliver { to: i, from, message: none });
            }
            registry::Effect::Answer(ticket, reply) => self.answer(i, ticket, reply),
            registry::Effect::Announce(trigger) => self.announcer(i, announcer::Event::Changed(trigger)),
            registry::Effect::Wake(spoke) => self.wake(i, spoke.as_ref()),
            registry::Effect::Report(report) => self.report(i, report),
        }
    }

    fn end_stream(&mut self, i: usize, ended: Superseded) {
        let key = (ended.spoke, ended.stamp);
        let keeps = self.plant == Plant::KeepOwn && self.leader == Some(i);
        if !keeps {
            self.nodes[i].streams.remove(&key);
        }
        let end = End::Superseded { by: ended.by, alive: ended.alive };
        self.cut_stream(&key, end);
    }

    fn answer(&mut self, i: usize, ticket: Ticket, reply: Reply) {
        let Some((to, seq, term)) = self.nodes[i].tickets.remove(&ticket) else { return };
        let (outcome, superseded) = match reply {
            Reply::Taken { superseded, newest } => (Outcome::Taken(newest), superseded),
            Reply::NotActive => {
                let leader = self.nodes[i].believes.filter(|leader| *leader != i);
                (Outcome::NotActive(leader.map(name_of)), Vec::new())
            }
            Reply::StaleTerm(seen) => (Outcome::StaleTerm(seen), Vec::new()),
        };
        let superseded = if self.plant == Plant::TellNobody { Vec::new() } else { superseded };
        if self.nodes[to.node].life == to.life {
            self.send(i, to.node, Message::Announced(seq, outcome, superseded, term));
        }
    }

    fn report(&mut self, i: usize, report: Report) {
        let own = &mut self.nodes[i];
        match report {
            Report::Owned(spoke, by, stamp) => {
                let before = own.believed.insert(spoke, (by.clone(), stamp));
                if before.is_some_and(|(node, held)| node != by && held > stamp) {
                    self.fail(NEWER_KEPT);
                }
            }
            Report::Lost(spoke, ..) => {
                own.believed.remove(&spoke);
            }
            Report::Conflict(..) | Report::TwoDaemons(_) | Report::Primed(..) => {}
        }
    }

    pub fn announcer(&mut self, i: usize, event: announcer::Event) {
        let mut out = Vec::new();
        let now = self.now;
        let node = &mut self.nodes[i];
        node.announcer.on(node.clock(now), event, &mut out);
        for effect in out {
            let announcer::Effect::Send { to, term, seq, trigger } = effect else { continue };
            if self.plant == Plant::NoTick && matches!(trigger, Trigger::Tick | Trigger::Retry) {
                continue;
            }
            let set = self.nodes[i].set(now, term, seq);
            let from = Sender { node: index(&to), life: self.nodes[index(&to)].life };
            let left = self.send(i, index(&to), Message::Announce(set));
            let failed = Message::Announced(seq, Outcome::Failed, Vec::new(), term);
            let timeout = if left { Duration::from_secs(10) } else { self.millis(2000) };
            self.later(timeout, Happening::Deliver { to: i, from, message: failed });
        }
        self.schedule(i);
    }

    pub fn deliver(&mut self, to: usize, from: Sender, message: Message) {
        if !self.nodes[to].up {
            return;
        }
        match message {
            Message::Announce(set) => {
                let ticket = Ticket::new(self.spread.bits());
                self.nodes[to].tickets.insert(ticket, (from, set.seq, set.term));
                self.take_set(to, &set.clone(), |set| registry::Event::Announced(ticket, set));
            }
            Message::Announced(seq, outcome, superseded, term) => {
                self.announcer(to, announcer::Event::Ended(seq, outcome));
                self.registry(to, registry::Event::Told(term, superseded));
            }
            Message::Pull(term) => {
                let now = self.now;
                let node = &mut self.nodes[to];
                if node.registry.admit(term).is_ok() {
                    let seq = node.announcer.next_seq();
                    let set = node.set(now, term, seq);
                    self.send(to, from.node, Message::Pulled(term, Some(set)));
                }
            }
            Message::Pulled(term, None) => {
                self.registry(to, registry::Event::Pulled(name_of(from.node), term, None));
            }
            Message::Pulled(term, Some(set)) => {
                let node = set.node.clone();
                self.take_set(to, &set, |set| registry::Event::Pulled(node, term, Some(set)));
            }
            Message::Tell(term, ended) => self.registry(to, registry::Event::Told(term, ended)),
            Message::Run(term, sent, spoke) => self.forwarded(to, from, term, sent, &spoke),
            Message::Ran(sent, outcome) => self.came_back(to, sent, outcome),
        }
    }

    /// Gives a set to a registry, and looks what became of what its sender had said before.
    fn take_set(&mut self, i: usize, set: &SpokeSet, event: impl FnOnce(SpokeSet) -> registry::Event) {
        let (now, from, seq) = (self.now, set.node.clone(), set.seq);
        let newest = self.nodes[i].newest.get(&from).copied();
        let before = self.said_by(i, &from);
        let mut set = set.clone();
        if self.plant == Plant::IgnoreSeq {
            set.seq = Seq::new(self.nodes[i].clock(now).as_nanos());
        }
        let counts = self.nodes[i].registry.active() == Some(set.term);
        let late = newest.is_some_and(|(newest, _)| seq <= newest);
        if counts && !late {
            self.nodes[i].newest.insert(from.clone(), (seq, now));
        }
        self.registry(i, event(set));
        if late && before != self.said_by(i, &from) {
            self.fail(NEWER_KEPT);
        }
    }

    fn said_by(&self, i: usize, from: &NodeName) -> BTreeSet<(SpokeName, Stamp)> {
        let node = &self.nodes[i];
        let entries = node.registry.entries(node.clock(self.now)).filter(|entry| entry.node == from);
        entries.map(|entry| (entry.claim.spoke, entry.claim.stamp)).collect()
    }

    /// A command found that `owner` has no such stream.
    pub fn forget(&mut self, i: usize, spoke: &SpokeName, owner: NodeName, stamp: Stamp) {
        let held = |world: &Self| {
            let node = &world.nodes[i];
            let found =
                node.registry.entries(node.clock(world.now)).find(|entry| entry.claim.spoke == *spoke);
            found.map(|entry| (entry.node.clone(), entry.claim.stamp))
        };
        let before = held(self);
        let (owner_now, stamp_now) = match before.clone() {
            Some(held) if self.plant == Plant::ForgetAny => held,
            _ => (owner.clone(), stamp),
        };
        self.registry(i, registry::Event::Forget(spoke.clone(), owner_now, stamp_now));
        if before.is_some_and(|before| before != (owner, stamp)) && held(self).is_none() {
            self.fail(VERY_CLAIM);
        }
    }

    /// When the newest word of `owner` came to node `i`.
    pub fn last_word(&self, i: usize, owner: &NodeName) -> Option<Mono> {
        self.nodes[i].newest.get(owner).map(|(_, at)| *at)
    }

    pub fn node_index(name: &NodeName) -> usize {
        index(name)
    }

    pub fn serve_or_fail(&mut self, served: bool) {
        if !served {
            self.fail(SERVES);
        }
    }
}
