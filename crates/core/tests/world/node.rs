//! One node: its machines, and the shell that performs their effects in order.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::intent::{self, Batch, Creation, Key, Next, State, Sweeper, UserMade, Written};
use holdfast_core::intent::{creating, sweeping};
use holdfast_core::leadership::{
    self, Leadership, standing, standing::Standing, stepdown, stepdown::StepDown,
};
use holdfast_core::leasequeue::{self, Attempt, Due, LeaseQueue, Waiter};
use holdfast_core::time::Spread;
use holdfast_core::{LogIndex, MemberId, Mono, Term};

use crate::database::{Ask, Flight, Reply};
use crate::raft::{Raft, Role};
use crate::store::{Lease, Write};
use crate::{AHEAD, Happening, Plant, World};

/// What a reply is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wait {
    Lead(Term),
    Creation(Key),
    Sweep(Batch),
    Stored(Key),
    Asked(Key),
    Made(Key),
    Cleaned(Key),
    Swept(Key, Term),
    Revoked(Key),
    Nobody,
}

type Leases = LeaseQueue<Key, u8>;

pub struct Node {
    id: usize,
    members: usize,
    plant: Plant,
    /// Grows with each crash; what was meant for an earlier life is lost.
    pub life: u32,
    pub up: bool,
    paused: Mono,
    offset: Duration,
    seed: u64,
    pub raft: Raft,
    pub leadership: Leadership,
    pub standing: Standing,
    pub stepdown: StepDown,
    sweeper: Sweeper<u8>,
    leases: Leases,
    creations: BTreeMap<Key, Creation>,
    waits: BTreeMap<u64, (Wait, Mono)>,
    tick_at: Mono,
}

const EXECUTOR: u8 = 0;
const WRITE_TIMEOUT: Duration = Duration::from_millis(1500);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

impl Node {
    pub fn new(id: usize, members: usize, plant: Plant, spread: &mut Spread) -> Self {
        let offset = Duration::from_millis(spread.below(1_000_000));
        let mut node = Self {
            id,
            members,
            plant,
            life: 0,
            up: false,
            paused: Mono::ZERO,
            offset,
            seed: spread.bits(),
            raft: Raft::new(members),
            leadership: Leadership::new(leadership::Timing::default()),
            standing: Standing::new(standing::Timing::default(), MemberId::new(id as u64)),
            stepdown: StepDown::new(stepdown::Timing::default()),
            sweeper: Sweeper::new(intent::Limits::default(), Spread::new(0)),
            leases: Leases::new(leasequeue::Limits::default(), Spread::new(0)),
            creations: BTreeMap::new(),
            waits: BTreeMap::new(),
            tick_at: Mono::FAR,
        };
        node.reset();
        node
    }

    fn reset(&mut self) {
        let hour = Duration::from_secs(3600);
        let mut timing = leadership::Timing::default();
        if self.plant == Plant::NoWindow {
            timing.ack_window = hour;
        }
        let mut sweep = intent::Limits::default();
        if self.plant == Plant::NoVerify {
            sweep.verify_after = Duration::ZERO;
        }
        let limits = leasequeue::Limits {
            retry: Duration::from_secs(2),
            retries: 1000,
            page: 5,
            workers: 6,
            loaded: 20,
            ..leasequeue::Limits::default()
        };
        let own = MemberId::new(self.id as u64);
        let seed = self.seed.wrapping_add(u64::from(self.life));
        self.raft = Raft::new(self.members);
        self.leadership = Leadership::new(timing);
        self.standing = Standing::new(standing::Timing::default(), own);
        self.stepdown = StepDown::new(stepdown::Timing::default());
        self.sweeper = Sweeper::new(sweep, Spread::new(seed));
        self.leases = Leases::new(limits, Spread::new(seed));
        self.creations.clear();
        self.waits.clear();
        self.tick_at = Mono::FAR;
    }

    pub fn start(&mut self) {
        self.up = true;
    }

    pub fn crash(&mut self) -> bool {
        self.life += 1;
        self.reset();
        std::mem::replace(&mut self.up, false)
    }

    pub fn pause(&mut self, until: Mono) {
        self.paused = until;
    }

    pub fn paused_until(&self, now: Mono) -> Option<Mono> {
        Some(self.paused).filter(|until| *until > now && self.up)
    }

    pub fn active(&self, now: Mono) -> Option<Term> {
        self.leadership.active(self.clock(now)).filter(|_| self.up)
    }

    /// This node's clock at a world time.
    pub fn clock(&self, world: Mono) -> Mono {
        world.after(self.offset)
    }

    /// The world time of an instant of this node's clock.
    fn world(&self, clock: Mono) -> Mono {
        Mono::from_nanos(clock.as_nanos().saturating_sub(self.offset.as_nanos() as u64))
    }

    fn machines(&self) -> [Option<Mono>; 5] {
        [
            self.leadership.next_deadline(),
            self.standing.next_deadline(),
            self.stepdown.next_deadline(),
            self.sweeper.next_deadline(),
            self.leases.next_deadline(),
        ]
    }

    fn next_deadline(&self) -> Option<Mono> {
        let machines = self.machines();
        let creations = self.creations.values().filter_map(Creation::next_deadline);
        let clocks = machines.into_iter().flatten().chain(creations).map(|at| self.world(at));
        let waits = self.waits.values().map(|(_, until)| *until);
        let leads = matches!(self.raft.role, Role::Leader { .. });
        let election = (!leads).then_some(self.raft.election_at);
        clocks.chain(waits).chain(election).chain([self.raft.beat_at]).min()
    }
}

impl World {
    /// Makes sure that the node is woken in time, or a little late.
    pub fn schedule(&mut self, i: usize) {
        let Some(at) = self.nodes[i].next_deadline().filter(|_| self.nodes[i].up) else { return };
        let at = at.max(self.now).after(Duration::from_micros(1 + self.spread.below(3000)));
        if at < self.nodes[i].tick_at {
            self.nodes[i].tick_at = at;
            self.at(at, Happening::Tick { node: i });
        }
    }

    pub fn tick(&mut self, i: usize) {
        if !self.nodes[i].up || self.nodes[i].tick_at > self.now {
            return;
        }
        self.nodes[i].tick_at = Mono::FAR;
        self.tick_raft(i);
        self.gate(i, leadership::Event::Tick);
        self.standing(i, standing::Event::Tick);
        self.step(i, stepdown::Event::Tick);
        self.sweep(i, sweeping::Event::Tick);
        self.lease(i, leasequeue::Event::Tick);
        for key in self.nodes[i].creations.keys().copied().collect::<Vec<_>>() {
            self.creation(i, key, creating::Event::Tick);
        }
        self.time_out(i);
        let node = &self.nodes[i];
        if node.up && node.machines().into_iter().flatten().any(|at| at <= node.clock(self.now)) {
            self.fail(AHEAD);
        }
        self.schedule(i);
    }

    fn time_out(&mut self, i: usize) {
        let now = self.now;
        let late = self.nodes[i].waits.iter().filter(|(_, (_, until))| *until <= now);
        for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            let Some((wait, _)) = self.nodes[i].waits.remove(&number) else { continue };
            self.written(i, wait, Written::Unknown);
            self.answered(i, wait, None);
        }
    }

    /// Crashes now and then; asked wherever something is about to be persisted.
    pub fn stumbles(&mut self, i: usize) -> bool {
        let falls = !self.calm && self.spread.below(300) == 0;
        if falls {
            self.crash(i);
        }
        falls
    }

    pub fn write(&mut self, i: usize, term: Term, write: Write, wait: Wait) {
        if self.stumbles(i) {
            return;
        }
        let number = self.wait(i, wait, WRITE_TIMEOUT);
        let life = self.nodes[i].life;
        self.send(i, Some(i), Happening::Propose { from: i, life, number, term, write });
        // Now and then the node falls right after the proposal left.
        self.stumbles(i);
    }

    fn wait(&mut self, i: usize, wait: Wait, timeout: Duration) -> u64 {
        self.sequence += 1;
        let until = self.now.after(timeout);
        self.nodes[i].waits.insert(self.sequence, (wait, until));
        self.sequence
    }

    fn ask(&mut self, i: usize, key: Key, ask: Ask, term: Term, wait: Wait) {
        let number = self.wait(i, wait, CALL_TIMEOUT);
        let node_life = self.nodes[i].life;
        let now = self.nodes[i].clock(self.now);
        if !matches!(ask, Ask::Cancel) && !self.nodes[i].leadership.may_act(now, term) {
            let reply = Reply::NotTried;
            self.later(Duration::ZERO, Happening::Reply { to: i, life: node_life, number, reply });
            return;
        }
        let flight = Flight { key, ask, term };
        let life = self.database.life;
        self.send(i, None, Happening::Ask { from: i, node_life, life, number, flight });
    }

    pub fn decided(&mut self, i: usize, life: u32, number: u64, written: Written) {
        if self.nodes[i].life != life {
            return;
        }
        if let Some((wait, _)) = self.nodes[i].waits.remove(&number) {
            self.written(i, wait, written);
            self.schedule(i);
        }
    }

    fn written(&mut self, i: usize, wait: Wait, written: Written) {
        let applied = written == Written::Applied;
        match wait {
            Wait::Lead(term) if applied => {
                let index = LogIndex::new(term.into_inner());
                self.gate(i, leadership::Event::Applied { index });
            }
            Wait::Lead(term) if self.nodes[i].raft.role == (Role::Leader { term }) => {
                self.write(i, term, Write::Lead, wait);
            }
            Wait::Creation(key) => {
                if !self.calm && self.spread.below(12) == 0 {
                    self.creation(i, key, creating::Event::Abandoned);
                }
                self.creation(i, key, creating::Event::Written(written));
            }
            Wait::Sweep(batch) => self.sweep(i, sweeping::Event::Written { batch, written }),
            Wait::Stored(id) => self.lease(i, leasequeue::Event::Stored { id, applied }),
            Wait::Asked(key) if applied => self.asked(i, key),
            _ => {}
        }
    }

    /// What the sweeper and the queue learn from an applied entry, whether or not its proposer still waits for it.
    pub fn applied(&mut self, i: usize, life: u32, write: Write) {
        if self.nodes[i].life != life {
            return;
        }
        match write {
            Write::Intent { batch, .. } => self.follow(i, batch.key),
            Write::MoveLease { key, .. } => self.scheduled(i, key),
            Write::DeleteLease { .. } | Write::Lead => {}
        }
        self.schedule(i);
    }

    fn follow(&mut self, i: usize, key: Key) {
        match self.store.intents.get(&key).copied() {
            Some(intent) => self.known(i, key, intent.state, intent.deadline.after(Duration::from_secs(5))),
            None => self.sweep(i, sweeping::Event::Gone { key }),
        }
        self.scheduled(i, key);
    }

    fn scheduled(&mut self, i: usize, key: Key) {
        if let Some(lease) = self.store.leases.get(&key).copied() {
            let due = self.nodes[i].clock(lease.due);
            self.lease(i, leasequeue::Event::Scheduled { due });
        }
    }

    fn known(&mut self, i: usize, key: Key, state: State, due: Mono) {
        let due = self.nodes[i].clock(due);
        let opened = self.nodes[i].clock(self.now);
        self.sweep(i, sweeping::Event::Known { key, state, due, opened, executor: EXECUTOR });
    }

    pub fn replied(&mut self, i: usize, life: u32, number: u64, reply: Reply) {
        if self.nodes[i].life != life {
            return;
        }
        if let Some((wait, _)) = self.nodes[i].waits.remove(&number) {
            self.answered(i, wait, Some(reply));
            self.schedule(i);
        }
    }

    fn answered(&mut self, i: usize, wait: Wait, reply: Option<Reply>) {
        let done = reply == Some(Reply::Done);
        match wait {
            Wait::Made(key) => {
                let made = match reply {
                    Some(Reply::Done) => UserMade::Done,
                    Some(Reply::Failed | Reply::NotTried) => UserMade::Failed,
                    None => UserMade::Unknown,
                };
                self.creation(i, key, creating::Event::Made(made));
            }
            Wait::Cleaned(key) => self.creation(i, key, creating::Event::Removed(done)),
            Wait::Swept(key, term) => self.sweep(i, sweeping::Event::Removed { key, term, gone: done }),
            Wait::Revoked(id) => {
                let attempt = match reply {
                    Some(Reply::Done) => Attempt::Removed,
                    _ if self.plant == Plant::DeleteAnyway => Attempt::Removed,
                    Some(Reply::NotTried) => Attempt::NotTried,
                    Some(Reply::Failed) | None => Attempt::Failed,
                };
                self.lease(i, leasequeue::Event::Finished { id, attempt });
            }
            _ => {}
        }
    }

    pub fn opened(&mut self, i: usize, term: Term) {
        self.sweep(i, sweeping::Event::Began { term });
        self.lease(i, leasequeue::Event::Began { term });
    }

    pub fn closed(&mut self, i: usize) {
        self.sweep(i, sweeping::Event::Ended);
        self.lease(i, leasequeue::Event::Ended);
        for key in self.nodes[i].creations.keys().copied().collect::<Vec<_>>() {
            self.creation(i, key, creating::Event::TermOver);
        }
    }

    pub fn executor_back(&mut self, i: usize) {
        if self.nodes[i].up {
            self.sweep(i, sweeping::Event::ExecutorBack { executor: EXECUTOR });
            self.lease(i, leasequeue::Event::ExecutorBack { queue: EXECUTOR });
            self.schedule(i);
        }
    }

    pub fn create(&mut self) {
        let Some((i, term)) = self.active() else { return };
        let key = Key::new(u128::from(self.spread.bits()));
        let deadline = self.nodes[i].clock(self.now).after(Duration::from_secs(3));
        self.nodes[i].creations.insert(key, Creation::new(key, term, deadline));
        self.creation(i, key, creating::Event::Begin);
        self.schedule(i);
    }

    pub fn creation(&mut self, i: usize, key: Key, event: creating::Event) {
        let (now, life, mut out) = (self.nodes[i].clock(self.now), self.nodes[i].life, Vec::new());
        let Some(creation) = self.nodes[i].creations.get_mut(&key) else { return };
        creation.on(now, event, &mut out);
        let (over, term) = (creation.is_over(), creation.term());
        if over {
            self.nodes[i].creations.remove(&key);
        }
        for effect in out {
            if self.nodes[i].life != life {
                return;
            }
            match effect {
                creating::Effect::Write(batch) => self.write_intent(i, batch, Wait::Creation(key)),
                creating::Effect::MakeUser(key, deadline) => {
                    let deadline = self.nodes[i].world(deadline);
                    self.ask(i, key, Ask::Make { deadline }, term, Wait::Made(key));
                }
                creating::Effect::CancelUser(key) => self.ask(i, key, Ask::Cancel, term, Wait::Nobody),
                creating::Effect::RemoveUser(key) => self.ask(i, key, Ask::Remove, term, Wait::Cleaned(key)),
                creating::Effect::Audit(key) => {
                    let audited = self.spread.below(20) > 0;
                    self.creation(i, key, creating::Event::Audited(audited));
                }
                creating::Effect::RevokeLease(key) => self.revoke_now(i, term, key),
                creating::Effect::Entrust(key, at) => {
                    let at = self.nodes[i].world(at);
                    self.known(i, key, State::Open, at);
                }
                creating::Effect::Answer(_) => {}
            }
        }
    }

    fn write_intent(&mut self, i: usize, batch: Batch, wait: Wait) {
        let deadline = self.now.after(Duration::from_secs(3));
        let due = self.now.after(Duration::from_secs(2 + self.spread.below(20)));
        let mut batch = batch;
        if self.plant == Plant::NoMark && batch.from == Some(State::Sweep) {
            // The mark was never written: the record goes on from where it is.
            batch.from = Some(State::Open);
        }
        self.write(i, batch.term, Write::Intent { batch, deadline, due }, wait);
    }

    pub fn sweep(&mut self, i: usize, event: sweeping::Event<u8>) {
        let (now, life, mut out) = (self.nodes[i].clock(self.now), self.nodes[i].life, Vec::new());
        self.nodes[i].sweeper.on(now, event, &mut out);
        for effect in out {
            if self.nodes[i].life != life {
                return;
            }
            match effect {
                sweeping::Effect::Load(_) => {
                    for (key, state, deadline, _) in self.open_intents() {
                        self.known(i, key, state, deadline.after(Duration::from_secs(5)));
                    }
                }
                sweeping::Effect::Write(batch) => {
                    let mark = batch.to == Next::State(State::Sweep);
                    if self.plant == Plant::NoMark && mark {
                        let number = self.wait(i, Wait::Sweep(batch), WRITE_TIMEOUT);
                        let written = Written::Applied;
                        self.later(Duration::ZERO, Happening::Decided { to: i, life, number, written });
                    } else {
                        self.write_intent(i, batch, Wait::Sweep(batch));
                    }
                }
                sweeping::Effect::Remove(key, term) => {
                    self.ask(i, key, Ask::Remove, term, Wait::Swept(key, term));
                }
                sweeping::Effect::Reread(key) => self.follow(i, key),
                sweeping::Effect::ReportOld(..) => {}
            }
        }
    }

    pub fn revoke(&mut self) {
        let Some((i, term)) = self.active() else { return };
        let count = self.store.leases.len() as u64;
        let nth = self.spread.below(count.max(1)) as usize;
        if let Some(key) = self.store.leases.keys().nth(nth).copied() {
            self.revoke_now(i, term, key);
            self.schedule(i);
        }
    }

    fn revoke_now(&mut self, i: usize, term: Term, key: Key) {
        let write = Write::MoveLease { key, due: self.now, failures: None };
        self.write(i, term, write, Wait::Asked(key));
    }

    fn asked(&mut self, i: usize, key: Key) {
        let Some(Lease { due, failures }) = self.store.leases.get(&key).copied() else { return };
        let due = self.nodes[i].clock(due);
        if self.plant == Plant::NoSingleFlight
            && let Some(term) = self.nodes[i].active(self.now)
        {
            self.ask(i, key, Ask::Revoke, term, Wait::Nobody);
        }
        let lease = Due { id: key, due, queue: EXECUTOR, failures };
        self.lease(i, leasequeue::Event::Asked { lease, waiter: Some(Waiter::new(1)) });
    }

    pub fn page(
        &mut self,
        i: usize,
        life: u32,
        leases: Vec<(Mono, Key, u32)>,
        more: bool,
        next: Option<Mono>,
    ) {
        if self.nodes[i].life != life {
            return;
        }
        let node = &self.nodes[i];
        let due = |(at, id, failures)| Due { id, due: node.clock(at), queue: EXECUTOR, failures };
        let leases = leases.into_iter().map(due).collect();
        let next = next.map(|at| node.clock(at));
        self.lease(i, leasequeue::Event::Page { leases, more, next });
        self.schedule(i);
    }

    fn read(&mut self, i: usize, after: Option<(Mono, Key)>, limit: usize) {
        let after = after.map(|(at, key)| (self.nodes[i].world(at), key));
        let mut index: Vec<_> =
            self.store.leases.iter().map(|(key, lease)| (lease.due, *key, lease.failures)).collect();
        index.sort_unstable();
        let next = index.iter().map(|(at, ..)| *at).find(|at| *at > self.now);
        index.retain(|(at, key, _)| *at <= self.now && after.is_none_or(|after| (*at, *key) > after));
        let more = index.len() > limit;
        index.truncate(limit);
        let delay = Duration::from_millis(self.spread.below(50));
        let life = self.nodes[i].life;
        self.later(delay, Happening::Page { to: i, life, leases: index, more, next });
    }

    pub fn lease(&mut self, i: usize, event: leasequeue::Event<Key, u8>) {
        let (now, life, mut out) = (self.nodes[i].clock(self.now), self.nodes[i].life, Vec::new());
        self.nodes[i].leases.on(now, event, &mut out);
        for effect in out {
            if self.nodes[i].life != life {
                return;
            }
            match effect {
                leasequeue::Effect::Read { after, limit } => self.read(i, after, limit),
                leasequeue::Effect::Start { id, term } => {
                    self.ask(i, id, Ask::Revoke, term, Wait::Revoked(id));
                }
                leasequeue::Effect::Delete { id, term } => {
                    self.write(i, term, Write::DeleteLease { key: id }, Wait::Stored(id));
                }
                leasequeue::Effect::Record { id, term, failures, due, .. } => {
                    let due = self.nodes[i].world(due);
                    let write = Write::MoveLease { key: id, due, failures: Some(failures) };
                    self.write(i, term, write, Wait::Stored(id));
                }
                leasequeue::Effect::Answer(..) | leasequeue::Effect::Parked(..) => {}
            }
        }
    }
}
