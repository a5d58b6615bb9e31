//! Hub nodes, spokes and commands over a network that loses, delays, doubles and reorders, with partitions, pauses,
//! crashes, half-open streams, changes of leader, and two daemons of one identity.
//!
//! Named invariants: the constants below. `HOLDFAST_SEEDS=n` runs n seeds instead of the usual count,
//! `HOLDFAST_SOAK_ROUND=r` takes the r-th run of fresh ones and `HOLDFAST_SEED=s` replays one.

// The whole crate is a test: an index out of range or a panic is a failure that shows.
#![allow(clippy::indexing_slicing, clippy::panic)]

mod command;
mod node;
mod spoke;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use command::{Command, Outcome, Sent};
use holdfast_core::SpokeName;
use holdfast_core::epoch::dialer::End;
use holdfast_core::ownership::announcer;
use holdfast_core::ownership::{Lookup, SpokeSet, Stamp, Superseded};
use holdfast_core::time::Spread;
use holdfast_core::{Epoch, Mono, Term};
use node::{Node, Sender};
use spoke::{Conn, Daemon};

const ONE_OWNER: &str = "the active node believes in one owner of a spoke";
const NEWER_KEPT: &str = "a newer claim is never lost to a late older one";
const VERY_CLAIM: &str = "only the very claim that failed is forgotten";
const THREE_INTERVALS: &str = "what a node said counts for three intervals";
const NO_LOOP: &str = "a forwarded command is never forwarded again";
const TWO_SENDS: &str = "a command is sent at most twice";
const RUN_ONCE: &str = "a command runs at most once";
const ANSWERED: &str = "a command ends on its spoke's stream or with a typed error, in time";
const EPOCH_GROWS: &str = "the epoch grows with every dial of a spoke";
const AHEAD: &str = "a machine that was just ticked waits for something ahead";
const QUIET: &str = "after quiet the registry equals the open streams";
const SERVES: &str = "after quiet a command for every spoke succeeds";

/// A fault built in on purpose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Plant {
    None,
    /// Sets are taken in the order in which they come.
    IgnoreSeq,
    /// The active node does not end its own stream when a newer one is elsewhere.
    KeepOwn,
    /// Former owners are told nothing.
    TellNobody,
    /// An entry is forgotten whatever became of it meanwhile.
    ForgetAny,
    /// What a node said counts for ever.
    NoExpiry,
    /// A node that gets a forwarded command treats it like any other, whatever its term.
    ForwardAgain,
    /// A command whose answer was lost is taken for one that was not sent.
    ResendBroken,
    /// A command is resolved as often as it likes.
    ResolveForEver,
    /// The epoch is not written down.
    ForgetEpoch,
    /// Sets are sent on changes alone.
    NoTick,
}

/// A message between nodes.
#[derive(Clone, Debug)]
pub enum Message {
    Announce(SpokeSet),
    Announced(holdfast_core::ownership::Seq, announcer::Outcome, Vec<Superseded>, Term),
    Pull(Term),
    Pulled(Term, Option<SpokeSet>),
    Tell(Term, Vec<Superseded>),
    Run(Term, Sent, SpokeName),
    Ran(Sent, Outcome),
}

/// Something that happens at an instant.
#[derive(Clone, Debug)]
pub enum Happening {
    Deliver { to: usize, from: Sender, message: Message },
    NodeTick { node: usize, life: u32 },
    Learn { node: usize, life: u32, term: Term },
    DaemonTick { daemon: usize, life: u32 },
    Persisted { daemon: usize, life: u32, epoch: Epoch },
    Arrive { daemon: usize, life: u32, epoch: Epoch, node: usize },
    Opened { daemon: usize, life: u32, epoch: Epoch },
    EndAtSpoke { daemon: usize, life: u32, epoch: Epoch, end: End },
    EndAtNode { node: usize, life: u32, spoke: SpokeName, stamp: Stamp },
    Drain { daemon: usize, life: u32, epoch: Epoch },
    Heartbeat { spoke: SpokeName, stamp: Stamp },
    CommandTick { command: u64 },
    Overdue { command: u64 },
    Command,
    Elect,
    Crash { node: usize },
    Start { node: usize },
    Pause { node: usize },
    DrainNode { node: usize },
    BreakStream,
    Restart { daemon: usize },
    Partition,
    Calm,
    Check { last: bool },
}

pub struct World {
    pub now: Mono,
    pub spread: Spread,
    pub plant: Plant,
    queue: BinaryHeap<Reverse<(Mono, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    sequence: u64,
    pub nodes: Vec<Node>,
    pub daemons: Vec<Daemon>,
    pub conns: BTreeMap<(SpokeName, Stamp), Conn>,
    pub commands: BTreeMap<u64, Command>,
    pub term: Term,
    pub leader: Option<usize>,
    /// Links between nodes that are cut, one way.
    cut: BTreeSet<(usize, usize)>,
    /// Non-active nodes refuse spokes with a redirect.
    pub pinned: bool,
    pub rivals: bool,
    pub calm: bool,
    broken: Option<&'static str>,
    quiet: u32,
    pub done: Tally,
}

/// What happened, so that a world in which too little does is seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub local: u64,
    pub forwarded: u64,
    pub again: u64,
    pub refused: u64,
    pub superseded: u64,
}

const CHAOS: Duration = Duration::from_secs(90);
/// Longer than the pause of a daemon that met a rival.
const SETTLE: Duration = Duration::from_secs(160);
const CHECKS: u32 = 10;

impl World {
    fn new(seed: u64, plant: Plant) -> Self {
        let mut spread = Spread::new(seed);
        let members = if spread.below(4) == 0 { 5 } else { 3 };
        let rivals = plant == Plant::TellNobody || spread.below(3) == 0;
        let pinned = plant == Plant::None && spread.below(5) == 0;
        let nodes = (0..members).map(|id| Node::new(id, members, plant, &mut spread)).collect();
        let mut daemons: Vec<_> = (0..4).map(|id| Daemon::new(id, id, members, &mut spread)).collect();
        if rivals {
            daemons.push(Daemon::new(4, 0, members, &mut spread));
        }
        let count = daemons.len();
        let mut world = Self {
            now: Mono::ZERO,
            spread,
            plant,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            sequence: 0,
            nodes,
            daemons,
            conns: BTreeMap::new(),
            commands: BTreeMap::new(),
            term: Term::new(0),
            leader: None,
            cut: BTreeSet::new(),
            pinned,
            rivals,
            calm: false,
            broken: None,
            quiet: 0,
            done: Tally::default(),
        };
        (0..members).for_each(|node| world.start_node(node));
        (0..count).for_each(|daemon| world.start_daemon(daemon));
        world.elect();
        for _ in 0..500 {
            let at = Mono::from_millis(world.spread.below(CHAOS.as_millis() as u64));
            let happening = world.mishap();
            world.at(at, happening);
        }
        let calm = Mono::ZERO.after(CHAOS);
        world.at(calm, Happening::Calm);
        for n in 0..CHECKS {
            let at = calm.after(SETTLE + Duration::from_secs(u64::from(n)));
            world.at(at, Happening::Check { last: n + 1 == CHECKS });
        }
        world
    }

    fn mishap(&mut self) -> Happening {
        let node = self.spread.below(self.nodes.len() as u64) as usize;
        let daemon = self.spread.below(self.daemons.len() as u64) as usize;
        let kind = self.spread.below(100);
        // Weather in which a node stays cut off while its spokes do not notice.
        if self.plant == Plant::NoExpiry && (kind > 86 || (72..81).contains(&kind)) {
            return if kind == 99 { Happening::Partition } else { Happening::Command };
        }
        match kind {
            0..72 => Happening::Command,
            72..76 => Happening::BreakStream,
            76..81 => Happening::DrainNode { node },
            81..86 => Happening::Restart { daemon },
            86..90 => Happening::Partition,
            90..93 => Happening::Pause { node },
            93..97 => Happening::Elect,
            _ => Happening::Crash { node },
        }
    }

    pub fn at(&mut self, at: Mono, happening: Happening) {
        self.sequence += 1;
        self.happenings.insert(self.sequence, happening);
        self.queue.push(Reverse((at, self.sequence)));
    }

    pub fn later(&mut self, delay: Duration, happening: Happening) {
        self.at(self.now.after(delay), happening);
    }

    pub fn millis(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.spread.below(below))
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        !self.calm && self.spread.below(one_in) == 0
    }

    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        !self.nodes[to].up || self.cut.contains(&(from, to))
    }

    /// Between nodes: lost, doubled, late; orderly once it is calm. Says whether it left.
    pub fn send(&mut self, from: usize, to: usize, message: Message) -> bool {
        if self.is_cut(from, to) || self.chance(30) {
            return false;
        }
        let doubled = matches!(message, Message::Announce(_) | Message::Pulled(..) | Message::Tell(..));
        let life = self.nodes[from].life;
        let happening = Happening::Deliver { to, from: Sender { node: from, life }, message };
        if doubled && self.chance(20) {
            let delay = self.delay();
            self.later(delay, happening.clone());
        }
        let delay = self.delay();
        self.later(delay, happening);
        true
    }

    pub fn delay(&mut self) -> Duration {
        match self.spread.below(if self.calm { 100 } else { 120 }) {
            100..117 => self.millis(700),
            117.. => self.millis(9000),
            _ => Duration::from_micros(300 + self.spread.below(4000)),
        }
    }

    pub fn fail(&mut self, invariant: &'static str) {
        self.broken.get_or_insert(invariant);
    }

    fn run(mut self) -> Result<Tally, &'static str> {
        while let Some(Reverse((at, sequence))) = self.queue.pop() {
            self.now = at;
            let Some(happening) = self.happenings.remove(&sequence) else { continue };
            let last = matches!(happening, Happening::Check { last: true });
            self.happen(happening);
            self.check_owners();
            if let Some(invariant) = self.broken {
                return Err(invariant);
            }
            if last {
                break;
            }
        }
        // Two daemons that fight over one name have it in turns, so only they may be between two states.
        if self.quiet < if self.rivals { 1 } else { CHECKS } {
            return Err(QUIET);
        }
        Ok(self.done)
    }

    fn happen(&mut self, happening: Happening) {
        let target = match &happening {
            Happening::Deliver { to: node, .. }
            | Happening::NodeTick { node, .. }
            | Happening::Learn { node, .. }
            | Happening::EndAtNode { node, .. }
            | Happening::Arrive { node, .. } => Some(*node),
            _ => None,
        };
        if let Some(until) = target.and_then(|node| self.nodes[node].paused_until(self.now)) {
            // A paused process finds everything that came meanwhile when it goes on.
            self.at(until, happening);
            return;
        }
        match happening {
            Happening::Deliver { to, from, message } => self.deliver(to, from, message),
            Happening::NodeTick { node, life } => self.node_tick(node, life),
            Happening::Learn { node, life, term } => self.learn(node, life, term),
            Happening::DaemonTick { daemon, life } => self.daemon_tick(daemon, life),
            Happening::Persisted { daemon, life, epoch } => self.persisted(daemon, life, epoch),
            Happening::Arrive { daemon, life, epoch, node } => self.arrive(daemon, life, epoch, node),
            Happening::Opened { daemon, life, epoch } => self.opened(daemon, life, epoch),
            Happening::EndAtSpoke { daemon, life, epoch, end } => self.end_at_spoke(daemon, life, epoch, end),
            Happening::EndAtNode { node, life, spoke, stamp } => self.end_at_node(node, life, spoke, stamp),
            Happening::Drain { daemon, life, epoch } => self.drain(daemon, life, epoch),
            Happening::Heartbeat { spoke, stamp } => self.heartbeat(spoke, stamp),
            Happening::CommandTick { command } => self.command_tick(command),
            Happening::Overdue { command } => {
                if self.commands.get(&command).is_some_and(|command| !command.over) {
                    self.fail(ANSWERED);
                }
            }
            Happening::Command => {
                let daemon = self.spread.below(4) as usize;
                let spoke = self.daemons[daemon].name.clone();
                self.command(&spoke, false);
            }
            Happening::Elect => self.elect(),
            Happening::Crash { node } => self.crash(node),
            Happening::Start { node } => self.start_node(node),
            Happening::Pause { node } => self.pause(node),
            Happening::DrainNode { node } => self.drain_node(node),
            Happening::BreakStream => self.break_stream(),
            Happening::Restart { daemon } => self.start_daemon(daemon),
            Happening::Partition => self.partition(),
            Happening::Calm => {
                self.calm = true;
                self.cut.clear();
            }
            Happening::Check { last } => self.check(last),
        }
    }

    /// Blocks one direction, or all directions of one node, or heals everything.
    fn partition(&mut self) {
        let members = self.nodes.len();
        let one = self.spread.below(members as u64) as usize;
        let other = (one + 1) % members;
        self.cut = match self.spread.below(4) {
            0 => [(one, other)].into(),
            1 => (0..members).flat_map(|node| [(one, node), (node, one)]).collect(),
            _ => BTreeSet::new(),
        };
    }

    /// The node that is active, and awake.
    pub fn active(&self) -> Option<usize> {
        self.leader.filter(|leader| {
            let node = &self.nodes[*leader];
            node.up && node.registry.active() == Some(self.term) && node.paused_until(self.now).is_none()
        })
    }

    /// The streams that a node has installed are the ones that its registry calls local.
    fn check_owners(&mut self) {
        let now = self.now;
        let wrong = self.nodes.iter().any(|node| {
            let local = |(spoke, stamp): &(SpokeName, Stamp)| {
                node.registry.lookup(node.clock(now), spoke) == Lookup::Local(*stamp)
            };
            node.up && !node.streams.iter().all(local)
        });
        if wrong {
            self.fail(ONE_OWNER);
        }
    }

    fn check(&mut self, last: bool) {
        self.quiet = if self.is_quiet() { self.quiet + 1 } else { 0 };
        if last && !self.rivals {
            for daemon in 0..self.daemons.len() {
                let spoke = self.daemons[daemon].name.clone();
                self.command(&spoke, true);
            }
        }
    }

    fn is_quiet(&self) -> bool {
        let Some(active) = self.active() else { return false };
        let registry = &self.nodes[active].registry;
        let clock = self.nodes[active].clock(self.now);
        let believed: BTreeSet<_> = registry
            .entries(clock)
            .map(|entry| (entry.node.to_string(), entry.claim.spoke, entry.claim.stamp))
            .collect();
        let streams = self.nodes.iter().flat_map(|node| {
            node.streams.iter().map(|(spoke, stamp)| (node.name.to_string(), spoke.clone(), *stamp))
        });
        let installed: BTreeSet<_> = streams.collect();
        let sessions = self.daemons.iter().filter_map(|daemon| {
            let (epoch, _) = daemon.dialer.session()?;
            Some((daemon.name.clone(), daemon.stamp(epoch)))
        });
        let sessions: BTreeSet<_> = sessions.collect();
        let held = installed.iter().map(|(_, spoke, stamp)| (spoke.clone(), *stamp)).collect();
        let names: BTreeSet<_> = sessions.iter().map(|(name, _)| name.clone()).collect();
        believed == installed && sessions == held && names.len() == 4
    }
}

fn run(seed: u64, plant: Plant) -> Result<Tally, &'static str> {
    World::new(seed, plant).run()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

#[test]
fn the_invariants_hold_in_every_world() {
    let seeds = match number("HOLDFAST_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let count = number("HOLDFAST_SEEDS").unwrap_or(40);
            let first = count.saturating_mul(number("HOLDFAST_SOAK_ROUND").unwrap_or(0));
            first..first.saturating_add(count)
        }
    };
    let mut sum = Tally::default();
    for seed in seeds.clone() {
        match run(seed, Plant::None) {
            Ok(tally) => sum.add(tally),
            Err(invariant) => panic!("seed {seed} broke: {invariant} (replay with HOLDFAST_SEED={seed})"),
        }
    }
    let worlds = seeds.end - seeds.start;
    println!("{worlds} worlds, {sum:?}");
    if worlds >= 10 {
        assert!(sum.local > 20 * worlds && sum.forwarded > 40 * worlds, "too little happened");
        assert!(sum.again > worlds && sum.refused > worlds && sum.superseded > worlds, "too little happened");
    }
}

/// A planted fault must be caught, by the invariant that names it, within some worlds.
fn caught(plant: Plant, by: &'static str) {
    let seeds = match number("HOLDFAST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..300,
    };
    let found = seeds.into_iter().find_map(|seed| run(seed, plant).err().map(|invariant| (seed, invariant)));
    let Some((seed, invariant)) = found else { panic!("{plant:?} was not caught") };
    println!("{plant:?} caught with seed {seed}: {invariant}");
    assert_eq!(invariant, by, "{plant:?}, seed {seed}");
}

#[test]
fn sets_without_an_order_are_caught() {
    caught(Plant::IgnoreSeq, NEWER_KEPT);
}

#[test]
fn an_own_stream_that_outlives_a_newer_one_is_caught() {
    caught(Plant::KeepOwn, ONE_OWNER);
}

#[test]
fn former_owners_that_are_not_told_are_caught() {
    caught(Plant::TellNobody, QUIET);
}

#[test]
fn forgetting_without_comparing_is_caught() {
    caught(Plant::ForgetAny, VERY_CLAIM);
}

#[test]
fn entries_that_never_expire_are_caught() {
    caught(Plant::NoExpiry, THREE_INTERVALS);
}

#[test]
fn forwarding_again_is_caught() {
    caught(Plant::ForwardAgain, NO_LOOP);
}

#[test]
fn sending_again_what_may_have_run_is_caught() {
    caught(Plant::ResendBroken, RUN_ONCE);
}

#[test]
fn resolving_for_ever_is_caught() {
    caught(Plant::ResolveForEver, TWO_SENDS);
}

#[test]
fn an_epoch_that_is_not_written_down_is_caught() {
    caught(Plant::ForgetEpoch, EPOCH_GROWS);
}

#[test]
fn announcing_on_changes_alone_is_caught() {
    caught(Plant::NoTick, QUIET);
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.local += other.local;
        self.forwarded += other.forwarded;
        self.again += other.again;
        self.refused += other.refused;
        self.superseded += other.superseded;
    }
}
