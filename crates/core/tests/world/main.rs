//! Several hub nodes over a network that loses, delays, doubles and reorders, with pauses and with crashes at every
//! point where something is persisted.
//!
//! Named invariants: the constants below, checked after each step; the end state is checked after everything settled. `HOLDFAST_SEEDS=n`
//! runs n seeds instead of the usual count, `HOLDFAST_SOAK_ROUND=r` takes the r-th run of fresh ones and
//! `HOLDFAST_SEED=s` replays one; a failing run prints its seed.

// The whole crate is a test: an index out of range or a panic is a failure that shows.
#![allow(clippy::indexing_slicing, clippy::panic)]

mod database;
mod node;
mod raft;
mod store;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use database::{Ask, Database, Flight, Reply};
use holdfast_core::intent::{Batch, Key, Next, State, Written};
use holdfast_core::time::Spread;
use holdfast_core::{Mono, Term};
use node::Node;
use raft::Message;
use store::{Store, Write};

const ONE_ACTIVE: &str = "never two active nodes at one instant";
const ONE_GATE: &str = "at most one node opens its gate in a term";
const NO_OLD_WRITE: &str = "no write is applied for an old term";
const NO_ORPHAN: &str = "every user belongs to a lease or to an intent";
const LEASE_HAS_USER: &str = "a lease is written only for a user that exists";
const REVOKED_ONCE: &str = "a lease is never revoked twice at the same time";
const SETTLES: &str = "in the end due leases are revoked, intents are gone, and every user has a lease";
const SERVES: &str = "in the end one node is active";
const AHEAD: &str = "a machine that was just ticked waits for something ahead";

/// A fault built in on purpose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Plant {
    None,
    /// The gate does not look at the age of the acknowledgements.
    NoWindow,
    /// A node forgets in a crash which term it voted in.
    ForgetVote,
    /// A node votes right after its start, though it may have acknowledged a leader just before.
    VoteAfterStart,
    /// The store does not look at terms.
    NoTerms,
    /// The sweeper removes a user first and marks its intent then.
    NoMark,
    /// Users are removed once only.
    NoVerify,
    /// An explicit revocation does not ask whether another one runs.
    NoSingleFlight,
    /// A lease is deleted without regard to what became of its user.
    DeleteAnyway,
}

/// Something that happens at an instant.
#[derive(Clone, Debug)]
enum Happening {
    Deliver { to: usize, from: usize, message: Message },
    Tick { node: usize },
    Propose { from: usize, life: u32, number: u64, term: Term, write: Write },
    Decided { to: usize, life: u32, number: u64, written: Written },
    Ask { from: usize, node_life: u32, life: u32, number: u64, flight: Flight },
    Finish { number: u64, from: usize, node_life: u32, fails: bool },
    Reply { to: usize, life: u32, number: u64, reply: Reply },
    Applied { to: usize, life: u32, write: Write },
    Page { to: usize, life: u32, leases: Vec<(Mono, Key, u32)>, more: bool, next: Option<Mono> },
    Create,
    Revoke,
    StepDown,
    Crash { node: usize },
    Start { node: usize },
    Pause { node: usize },
    StoreFails { node: usize },
    StoreTested { node: usize, life: u32 },
    Partition,
    DatabaseRestart,
    DatabaseOffline(bool),
    Calm,
}

pub struct World {
    now: Mono,
    spread: Spread,
    plant: Plant,
    queue: BinaryHeap<Reverse<(Mono, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    sequence: u64,
    nodes: Vec<Node>,
    store: Store,
    database: Database,
    gates: BTreeMap<Term, usize>,
    /// Nodes that are cut off, and one link between two nodes that is.
    cut: BTreeSet<usize>,
    cut_link: BTreeSet<usize>,
    calm: bool,
    broken: Option<&'static str>,
    created: u64,
    revoked: u64,
}

const CHAOS: Duration = Duration::from_secs(40);
const SETTLE: Duration = Duration::from_secs(400);

impl World {
    fn new(seed: u64, plant: Plant) -> Self {
        let mut spread = Spread::new(seed);
        let members = if spread.below(4) == 0 { 5 } else { 3 };
        let nodes = (0..members).map(|id| Node::new(id, members, plant, &mut spread)).collect();
        let mut world = Self {
            now: Mono::ZERO,
            spread,
            plant,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            sequence: 0,
            nodes,
            store: Store::new(members, plant == Plant::NoTerms),
            database: Database::default(),
            gates: BTreeMap::new(),
            cut: BTreeSet::new(),
            cut_link: BTreeSet::new(),
            calm: false,
            broken: None,
            created: 0,
            revoked: 0,
        };
        for node in 0..members {
            world.start_node(node);
        }
        for _ in 0..300 {
            let at = world.chaos_time();
            let happening = world.mishap();
            world.at(at, happening);
        }
        world.at(Mono::ZERO.after(CHAOS), Happening::Calm);
        world
    }

    fn chaos_time(&mut self) -> Mono {
        Mono::from_millis(self.spread.below(CHAOS.as_millis() as u64))
    }

    fn mishap(&mut self) -> Happening {
        let node = self.spread.below(self.nodes.len() as u64) as usize;
        // Weather in which a planted fault that is rare otherwise shows soon.
        match self.plant {
            Plant::NoMark => return Happening::Create,
            Plant::VoteAfterStart => {
                return if self.spread.below(6) == 0 {
                    Happening::Partition
                } else {
                    Happening::Crash { node }
                };
            }
            _ => {}
        }
        match self.spread.below(100) {
            0..65 => Happening::Create,
            65..82 => Happening::Revoke,
            82..85 => Happening::Crash { node },
            85..90 => Happening::Pause { node },
            90..95 => Happening::Partition,
            95 => Happening::StepDown,
            96 => Happening::DatabaseRestart,
            97 if self.spread.below(2) == 0 => Happening::StoreFails { node },
            97 => Happening::DatabaseOffline(true),
            _ => Happening::DatabaseOffline(false),
        }
    }

    fn at(&mut self, at: Mono, happening: Happening) {
        self.sequence += 1;
        self.happenings.insert(self.sequence, happening);
        self.queue.push(Reverse((at, self.sequence)));
    }

    fn later(&mut self, delay: Duration, happening: Happening) {
        self.at(self.now.after(delay), happening);
    }

    /// Over the network: lost, doubled, late; orderly once it is calm.
    fn send(&mut self, from: usize, to: Option<usize>, happening: Happening) {
        if !self.calm {
            let cut = self.cut.contains(&from) || to.is_some_and(|to| self.cut.contains(&to));
            let link = [Some(from), to].iter().flatten().all(|end| self.cut_link.contains(end));
            let cut = cut || (link && to.is_some_and(|to| to != from));
            if cut || self.spread.below(40) == 0 {
                return;
            }
            let doubled = matches!(happening, Happening::Deliver { .. } | Happening::Propose { .. });
            if doubled && self.spread.below(30) == 0 {
                let delay = self.delay();
                self.later(delay, happening.clone());
            }
        }
        let delay = self.delay();
        self.later(delay, happening);
    }

    fn delay(&mut self) -> Duration {
        if self.plant == Plant::NoMark && !self.calm && self.spread.below(8) == 0 {
            return Duration::from_millis(self.spread.below(9000));
        }
        match self.spread.below(if self.calm { 100 } else { 120 }) {
            100..118 => Duration::from_millis(self.spread.below(500)),
            118.. => Duration::from_millis(self.spread.below(9000)),
            _ => Duration::from_micros(500 + self.spread.below(5000)),
        }
    }

    fn fail(&mut self, invariant: &'static str) {
        self.broken.get_or_insert(invariant);
    }

    fn run(mut self) -> Result<(u64, u64), &'static str> {
        let end = Mono::ZERO.after(CHAOS + SETTLE);
        while let Some(Reverse((at, sequence))) = self.queue.pop() {
            self.now = at;
            if at >= end || (self.calm && self.settled()) {
                break;
            }
            if let Some(happening) = self.happenings.remove(&sequence) {
                self.happen(happening);
            }
            let now = self.now;
            if self.nodes.iter().filter(|node| node.active(now).is_some()).count() > 1 {
                self.fail(ONE_ACTIVE);
            }
            if let Some(invariant) = self.broken {
                return Err(invariant);
            }
        }
        if !self.settled() {
            return Err(SETTLES);
        }
        if !self.nodes.iter().any(|node| node.active(self.now).is_some()) {
            return Err(SERVES);
        }
        Ok((self.created, self.revoked))
    }

    fn settled(&self) -> bool {
        self.store.intents.is_empty()
            && self.store.leases.is_empty()
            && self.database.users.is_empty()
            && self.database.flights.is_empty()
            && self.nodes.iter().any(|node| node.active(self.now).is_some())
    }

    fn happen(&mut self, happening: Happening) {
        let target = match &happening {
            Happening::Deliver { to, .. }
            | Happening::Decided { to, .. }
            | Happening::Reply { to, .. }
            | Happening::Page { to, .. }
            | Happening::Applied { to, .. }
            | Happening::Tick { node: to } => Some(*to),
            _ => None,
        };
        if let Some(until) = target.and_then(|to| self.nodes[to].paused_until(self.now)) {
            // A paused process finds everything that came meanwhile when it goes on.
            self.at(until, happening);
            return;
        }
        match happening {
            Happening::Deliver { to, from, message } => self.deliver(to, from, message),
            Happening::Tick { node } => self.tick(node),
            Happening::Propose { from, life, number, term, write } => {
                self.propose(from, life, number, term, write);
            }
            Happening::Decided { to, life, number, written } => self.decided(to, life, number, written),
            Happening::Ask { from, node_life, life, number, flight } => {
                self.begin(from, node_life, life, number, flight);
            }
            Happening::Finish { number, from, node_life, fails } => {
                self.finish(number, from, node_life, fails);
            }
            Happening::Reply { to, life, number, reply } => self.replied(to, life, number, reply),
            Happening::Page { to, life, leases, more, next } => self.page(to, life, leases, more, next),
            Happening::Applied { to, life, write } => self.applied(to, life, write),
            Happening::Create => self.create(),
            Happening::Revoke => self.revoke(),
            Happening::StepDown => self.step_down(),
            Happening::Crash { node } => self.crash(node),
            Happening::Start { node } => self.start_node(node),
            Happening::Pause { node } => {
                let length = Duration::from_millis(self.spread.below(2500));
                self.nodes[node].pause(self.now.after(length));
            }
            Happening::StoreFails { node } => self.store_fails(node),
            Happening::StoreTested { node, life } => self.store_tested(node, life),
            Happening::Partition => self.partition(),
            Happening::DatabaseRestart => self.database.restart(),
            Happening::DatabaseOffline(offline) => self.set_offline(offline),
            Happening::Calm => {
                self.calm = true;
                self.cut.clear();
                self.cut_link.clear();
                self.set_offline(false);
            }
        }
    }

    fn partition(&mut self) {
        let members = self.nodes.len() as u64;
        let (one, other) = (self.spread.below(members) as usize, self.spread.below(members) as usize);
        (self.cut, self.cut_link) = (BTreeSet::new(), BTreeSet::new());
        match self.spread.below(4) {
            0 if self.plant != Plant::VoteAfterStart => self.cut = [one].into(),
            0..=2 => self.cut_link = [one, other].into(),
            _ => {}
        }
    }

    fn propose(&mut self, from: usize, life: u32, number: u64, term: Term, write: Write) {
        let fine = self.store.accepts(term);
        let Some(written) = self.store.apply(self.now, term, write) else { return };
        if written == Written::Applied {
            self.at(self.now, Happening::Applied { to: from, life, write });
            if !fine {
                self.fail(NO_OLD_WRITE);
            }
            self.check_write(write);
        }
        self.send(from, Some(from), Happening::Decided { to: from, life, number, written });
    }

    fn check_write(&mut self, write: Write) {
        let key = match write {
            Write::Intent { batch: Batch { key, to: Next::Lease, .. }, .. } => {
                if !self.database.users.contains(&key) {
                    self.fail(LEASE_HAS_USER);
                }
                self.created += 1;
                key
            }
            Write::Intent { batch: Batch { key, .. }, .. } => key,
            Write::DeleteLease { key } => {
                self.revoked += 1;
                key
            }
            Write::Lead | Write::MoveLease { .. } => return,
        };
        self.check_owner(key);
    }

    fn check_owner(&mut self, key: Key) {
        let owned = self.store.leases.contains_key(&key) || self.store.intents.contains_key(&key);
        if self.database.users.contains(&key) && !owned {
            self.fail(NO_ORPHAN);
        }
    }

    fn begin(&mut self, from: usize, node_life: u32, life: u32, number: u64, flight: Flight) {
        if life != self.database.life {
            return;
        }
        match self.database.begin(self.now, number, flight) {
            Ok(()) => {
                let long = matches!(flight.ask, Ask::Make { .. }) && self.spread.below(25) == 0;
                let length = self.spread.below(if long && !self.calm { 50_000 } else { 800 });
                let fails = !self.calm && self.spread.below(8) == 0;
                let finish = Happening::Finish { number, from, node_life, fails };
                self.later(Duration::from_millis(length), finish);
            }
            Err(Ok(reply)) => {
                self.send(from, Some(from), Happening::Reply { to: from, life: node_life, number, reply });
            }
            Err(Err(invariant)) => self.fail(invariant),
        }
    }

    fn finish(&mut self, number: u64, from: usize, node_life: u32, fails: bool) {
        let Some((flight, reply)) = self.database.end(number, fails) else { return };
        self.check_owner(flight.key);
        self.send(from, Some(from), Happening::Reply { to: from, life: node_life, number, reply });
    }

    fn set_offline(&mut self, offline: bool) {
        let back = self.database.offline && !offline;
        self.database.offline = offline;
        if back {
            for node in 0..self.nodes.len() {
                self.executor_back(node);
            }
        }
    }

    /// An intent that is `Open`, as a creation left it.
    fn open_intents(&self) -> Vec<(Key, State, Mono, Mono)> {
        let each =
            |(key, intent): (&Key, &store::Intent)| (*key, intent.state, intent.deadline, intent.opened);
        self.store.intents.iter().map(each).collect()
    }
}

fn run(seed: u64, plant: Plant) -> Result<(u64, u64), &'static str> {
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
            let count = number("HOLDFAST_SEEDS").unwrap_or(24);
            let first = count.saturating_mul(number("HOLDFAST_SOAK_ROUND").unwrap_or(0));
            first..first.saturating_add(count)
        }
    };
    let (mut created, mut revoked) = (0, 0);
    for seed in seeds.clone() {
        match run(seed, Plant::None) {
            Ok((made, gone)) => (created, revoked) = (created + made, revoked + gone),
            Err(invariant) => panic!("seed {seed} broke: {invariant} (replay with HOLDFAST_SEED={seed})"),
        }
    }
    println!("{} worlds, {created} leases written, {revoked} revoked", seeds.end - seeds.start);
    assert!(seeds.end - seeds.start < 10 || created > 10 * (seeds.end - seeds.start), "too little happened");
    assert!(revoked > 0);
}

/// A planted fault must be caught, by the invariant that names it, within some worlds from seed `first` on.
fn caught(plant: Plant, by: &'static str, first: u64) {
    let seeds = match number("HOLDFAST_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + 400,
    };
    let found = seeds.into_iter().find_map(|seed| run(seed, plant).err().map(|invariant| (seed, invariant)));
    let Some((seed, invariant)) = found else { panic!("{plant:?} was not caught") };
    println!("{plant:?} caught with seed {seed}: {invariant}");
    assert_eq!(invariant, by, "{plant:?}, seed {seed}");
}

#[test]
fn a_gate_without_a_window_is_caught() {
    caught(Plant::NoWindow, ONE_ACTIVE, 0);
}

#[test]
fn a_vote_that_was_not_persisted_is_caught() {
    caught(Plant::ForgetVote, ONE_GATE, 0);
}

#[test]
fn voting_right_after_a_start_is_caught() {
    caught(Plant::VoteAfterStart, ONE_ACTIVE, 0);
}

#[test]
fn a_store_that_ignores_terms_is_caught() {
    caught(Plant::NoTerms, NO_OLD_WRITE, 0);
}

#[test]
fn sweeping_without_a_mark_is_caught() {
    caught(Plant::NoMark, LEASE_HAS_USER, 0);
}

#[test]
fn sweeping_without_a_second_look_is_caught() {
    caught(Plant::NoVerify, NO_ORPHAN, 0);
}

#[test]
fn revoking_without_single_flight_is_caught() {
    caught(Plant::NoSingleFlight, REVOKED_ONCE, 0);
}

#[test]
fn deleting_a_lease_whose_user_is_there_is_caught() {
    caught(Plant::DeleteAnyway, NO_ORPHAN, 0);
}
