//! N replicas with clocks that differ and step, an upstream that is slow, loses, refuses and pauses, and clients that move
//! between replicas. Named invariants, checked after each step: `no-backward-value`, `ready-iff-settled`,
//! `resume-complete`, `one-answer-one-request`; and, after a quiet time, `never-stuck-stale`.

mod client;
mod replica;
mod upstream;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use client::{Client, Frame, Said};
use replica::{Replica, Shown};
use upstream::{Mood, Upstream};

use crate::failover::{self, End, Ended, EndpointId, Standing, Step, StreamId, Verdict, Walk};
use crate::freshness::{Offer, Served};
use crate::stream::{Next, Reason, Rules, Seq, Stream};
use crate::time::Spread;
use crate::{Mono, Wall};

const NAMES: usize = 4;
const CLIENTS: usize = 3;
/// The day on which the world begins.
const DAY: i64 = 1_700_000_000_000;
const HOUR: i64 = 3_600_000;

/// The name of the invariant that broke.
type Breach = &'static str;
type LinkId = (usize, StreamId);
/// The process and the number up to which everything was written.
type ResumeId = Option<(u64, Seq)>;

/// What a wrong variant gets wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Plant {
    None,
    /// The client delivers whatever comes.
    NoWatermark,
    /// The client begins its marks anew with each stream.
    MarksForgotten,
    /// Order counts only below the mark.
    OneSidedBand,
    /// A wrong clock raises the mark.
    FutureRaises,
    /// What is behind is dropped, and a date alone does not bring it back.
    NothingHeld,
    /// The client stays with a replica that is behind.
    StaysBehind,
    /// A failed attempt dates the value anew.
    FailuresRenewDates,
    /// A value is dated by the arrival of the answer.
    DatedByArrival,
    /// Only visible changes reach the board.
    OnlyChangesPublished,
    /// "Absent" is nothing to say.
    AbsentIsSilence,
    /// An attempt may end without an outcome.
    SilentEnd,
    /// Every frame carries an id.
    IdsEverywhere,
    /// An id counts for any process.
    IdsOfOthers,
    /// A resumed stream is taken for the sequel of any other one.
    ResumeFromAny,
    /// A refusal that every replica would give is asked of each.
    RefusalsMoveOn,
}

/// What the clocks and the network are like.
#[derive(Clone, Copy, Debug)]
struct Climate {
    /// By how much a replica's clock may be off.
    skew: Duration,
    /// One clock is set back and forth by an hour.
    stepping: bool,
    /// The deadline of an attempt.
    timeout: Duration,
    /// Attempts take up to their deadline.
    slow: bool,
    /// Values carry an order.
    ordered: bool,
    /// Good clocks, quick answers, ordered values: nothing ever goes back.
    strict: bool,
}

impl Climate {
    fn of(seed: u64) -> Self {
        let good = Self {
            // Twice this and the deadline of an attempt are less than the band.
            skew: Duration::from_millis(200),
            timeout: Duration::from_millis(500),
            stepping: false,
            slow: false,
            ordered: true,
            strict: true,
        };
        let timeout = Duration::from_secs(10);
        let plain = Self { strict: false, ordered: (seed / 4).is_multiple_of(2), timeout, ..good };
        match seed % 4 {
            0 => good,
            1 => Self { slow: true, ..plain },
            2 => Self { slow: true, skew: Duration::from_secs(20), ..plain },
            _ => Self { stepping: true, skew: Duration::from_secs(2), ..plain },
        }
    }
}

fn wall(now: Mono, skew: i64) -> Wall {
    let micros = i64::try_from(now.as_nanos() / 1000).unwrap();
    Wall::from_micros((DAY + skew) * 1000 + micros)
}

/// A connection that a stream comes by.
struct Link {
    replica: usize,
    boot: u64,
    frames: VecDeque<(Mono, Frame, ResumeId)>,
}

struct World {
    now: Mono,
    spread: Spread,
    climate: Climate,
    plant: Plant,
    quiet: bool,
    upstream: Upstream,
    replicas: Vec<Replica>,
    clients: Vec<Client>,
    links: BTreeMap<LinkId, Link>,
    /// Subscriptions and answers to reads under way.
    opening: Vec<(Mono, LinkId, EndpointId)>,
    answers: Vec<(Mono, usize, Said)>,
}

impl World {
    fn new(seed: u64, plant: Plant) -> Self {
        let mut spread = Spread::new(seed);
        let climate = Climate::of(seed);
        let count = 2 + spread.below(2) as usize;
        let most = climate.skew.as_millis() as i64;
        let replicas =
            (0..count).map(|_| Replica::new(spread.below(2 * most as u64) as i64 - most)).collect();
        let clients =
            (0..CLIENTS).map(|_| Client::new(count, spread.below(4000) as i64 - 2000, &mut spread)).collect();
        let mut world = Self {
            now: Mono::ZERO,
            spread,
            climate,
            plant,
            quiet: false,
            upstream: Upstream::new(),
            replicas,
            clients,
            links: BTreeMap::new(),
            opening: Vec::new(),
            answers: Vec::new(),
        };
        for replica in 0..count {
            world.replicas[replica].start(Mono::ZERO, climate, &mut world.spread);
        }
        for client in 0..CLIENTS {
            world.tell(client, failover::Event::Begin);
        }
        world
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.spread.below(one_in) == 0
    }

    fn pick(&mut self, count: usize) -> usize {
        self.spread.below(count as u64) as usize
    }

    /// Something happens to the upstream, a replica or a connection.
    fn disturb(&mut self) {
        let replica = self.pick(self.replicas.len());
        let now = self.now;
        match self.spread.below(14) {
            0..4 => {
                let name = self.pick(NAMES);
                self.write(name);
            }
            4 => {
                let moods = [Mood::Down, Mood::Throttled, Mood::Denied, Mood::LoggedOut, Mood::Odd];
                self.upstream.mood = moods[self.pick(moods.len())];
            }
            5..8 => self.upstream.mood = Mood::Up,
            8 => {
                let name = self.pick(NAMES);
                self.upstream.absent[name] = !self.upstream.absent[name];
            }
            9 => {
                self.cut(replica);
                self.replicas[replica].kill();
            }
            10 if !self.replicas[replica].alive => {
                self.replicas[replica].start(now, self.climate, &mut self.spread)
            }
            11 => {
                let pause = Duration::from_millis(self.spread.below(20_000));
                self.replicas[replica].paused = now.after(pause);
            }
            12 => self.cut(replica),
            13 => self.set_clock(replica),
            _ => {}
        }
    }

    fn write(&mut self, name: usize) {
        self.upstream.write(self.now, name);
        for replica in 0..self.replicas.len() {
            if !self.chance(3) {
                self.replicas[replica].push(self.now, name);
            }
        }
    }

    fn set_clock(&mut self, replica: usize) {
        let most = self.climate.skew.as_millis() as i64;
        if self.climate.stepping && replica == 0 {
            self.replicas[0].skew = [-HOUR, 0, HOUR][self.pick(3)];
        } else {
            self.replicas[replica].skew = self.spread.below(2 * most as u64) as i64 - most;
        }
    }

    /// Cuts the streams of a replica; what is on its way is lost.
    fn cut(&mut self, replica: usize) {
        let cut: Vec<_> =
            self.links.iter().filter(|(_, link)| link.replica == replica).map(|(id, _)| *id).collect();
        for id in cut {
            self.lose(id);
        }
    }

    fn lose(&mut self, (client, stream): LinkId) {
        if let Some(link) = self.links.remove(&(client, stream)) {
            self.replicas[link.replica].streams.remove(&(client, stream));
        }
        self.clients[client].closed(stream);
        self.tell(client, failover::Event::Ended(stream, End::Lost));
    }

    fn tell(&mut self, client: usize, event: failover::Event) {
        let mut out = Vec::new();
        self.clients[client].streams.on(self.now, event, &mut out);
        for effect in out {
            match effect {
                failover::Effect::Open(stream, endpoint) => {
                    let at = self.now.after(Duration::from_millis(1 + self.spread.below(50)));
                    self.opening.push((at, (client, stream), endpoint));
                }
                failover::Effect::Close(stream) => {
                    if let Some(link) = self.links.remove(&(client, stream)) {
                        self.replicas[link.replica].streams.remove(&(client, stream));
                    }
                    self.clients[client].closed(stream);
                }
                failover::Effect::Show(_) => {}
            }
        }
    }

    fn subscribe(&mut self, (client, stream): LinkId, endpoint: EndpointId) {
        let replica = &mut self.replicas[endpoint.index()];
        let end = match replica.serves(self.now) {
            false => Some(End::Lost),
            true if !self.quiet && self.spread.below(20) == 0 => Some(End::Refused { retry_after: None }),
            true => None,
        };
        if let Some(end) = end {
            return self.tell(client, failover::Event::Ended(stream, end));
        }
        let rules = Rules { redate: Duration::from_secs(60), fresh: true };
        let mut machine = Stream::new(rules, [true; NAMES], Seq::new(replica.seq));
        let any = self.plant == Plant::IdsOfOthers;
        if let Some((_, seen)) = self.clients[client].last_id.filter(|(boot, _)| any || *boot == replica.boot)
        {
            machine.resume(seen, |name| replica.board[name].view());
        }
        replica.streams.insert((client, stream), machine);
        let link = Link { replica: endpoint.index(), boot: replica.boot, frames: VecDeque::new() };
        self.links.insert((client, stream), link);
        self.clients[client].opened(stream, self.plant);
        self.tell(client, failover::Event::Opened(stream));
    }

    /// Replicas write what is due on their streams.
    fn pump(&mut self) {
        for (id, link) in &mut self.links {
            let replica = &mut self.replicas[link.replica];
            if !replica.serves(self.now) {
                continue;
            }
            let Some(stream) = replica.streams.get_mut(id) else { continue };
            if self.spread.below(30) == 0 {
                stream.beat();
            }
            let rarely = if stream.is_synced() { 200 } else { 10 };
            if !self.quiet && self.spread.below(rarely) == 0 {
                let within = Duration::from_secs(2 * self.spread.below(2));
                stream.go_away(Reason::Draining, within);
            }
            let last = link.frames.back().map_or(self.now, |(at, ..)| *at);
            let at = last.max(self.now.after(Duration::from_millis(self.spread.below(100))));
            let most = if self.quiet { 6 } else { 2 };
            for _ in 0..1 + self.spread.below(most) {
                let followed = Seq::new(replica.seq);
                let next = stream.next(followed, |name| (replica.board[name].view(), ()));
                let (frame, id) = match next {
                    Next::Name { index, id, .. } => {
                        (Frame::Entry(said(&replica.board[index], index, self.climate)), id)
                    }
                    Next::Synced(seq) => (Frame::Synced, Some(seq)),
                    Next::Fresh(dates) => (Frame::Fresh(dates), None),
                    Next::GoAway(_, within) => (Frame::GoAway(within), None),
                    Next::Heartbeat => continue,
                    _ => break,
                };
                let id = if self.plant == Plant::IdsEverywhere { Some(followed) } else { id };
                link.frames.push_back((at, frame, id.map(|seq| (replica.boot, seq))));
            }
        }
    }

    /// Frames reach their clients.
    fn arrive(&mut self) -> Result<(), Breach> {
        for id in self.links.keys().copied().collect::<Vec<_>>() {
            while let Some(link) = self.links.get_mut(&id) {
                let Some((_, frame, resume)) = link.frames.pop_front_if(|(at, ..)| *at <= self.now) else {
                    break;
                };
                let replica = &self.replicas[link.replica];
                let from = (link.boot, &replica.changes);
                let judge = (&self.upstream, self.climate, self.plant);
                let told = self.clients[id.0].take(self.now, id.1, (frame, resume), from, judge)?;
                for event in told {
                    self.tell(id.0, event);
                }
            }
        }
        Ok(())
    }

    /// One read, whose attempts take no time, but whose answer may be late.
    fn read(&mut self) -> Result<(), Breach> {
        let (client, name, now) = (self.pick(CLIENTS), self.pick(NAMES), self.now);
        let (mut walk, mut endpoint) = Walk::begin(&mut self.clients[client].endpoints, now);
        let mut asked = Vec::new();
        loop {
            if asked.contains(&endpoint) {
                return Err("one-answer-one-request");
            }
            asked.push(endpoint);
            let replica = &self.replicas[endpoint.index()];
            let mut ended = match (replica.alive, replica.board.get(name).map(|shown| shown.state.served)) {
                (true, Some(Served::Value { .. })) if replica.paused <= now => {
                    let said = said(&replica.board[name], name, self.climate);
                    if self.spread.below(4) == 0 {
                        let at = now.after(Duration::from_millis(self.spread.below(2000)));
                        self.answers.push((at, client, said));
                        Ended::Answered
                    } else {
                        let judge = (&self.upstream, self.climate, self.plant);
                        let taken = self.clients[client].answered(now, said, judge)?;
                        if taken { Ended::Answered } else { Ended::Behind }
                    }
                }
                (true, Some(Served::Refused(kind, _))) if replica.paused <= now => Ended::Refused(kind),
                (true, _) => Ended::TimedOut,
                (false, _) => Ended::Unreachable,
            };
            let refused = matches!(ended, Ended::Refused(kind) if kind.is_authoritative());
            if refused && self.plant == Plant::RefusalsMoveOn {
                ended = Ended::Broken;
            }
            match walk.ended(&mut self.clients[client].endpoints, now, ended) {
                Step::Try(_) if refused => return Err("one-answer-one-request"),
                Step::Try(next) => endpoint = next,
                Step::Done(Verdict::Failed | Verdict::Behind) if asked.len() < self.replicas.len() => {
                    return Err("one-answer-one-request");
                }
                Step::Done(_) => return Ok(()),
            }
        }
    }

    fn step(&mut self, by: Duration) -> Result<(), Breach> {
        self.now = self.now.after(by);
        let mode = (self.climate, self.plant, self.quiet);
        for replica in &mut self.replicas {
            replica.run(self.now, &self.upstream, mode, &mut self.spread)?;
        }
        for (_, id, endpoint) in self.opening.extract_if(.., |(at, ..)| *at <= self.now).collect::<Vec<_>>() {
            self.subscribe(id, endpoint);
        }
        self.pump();
        self.arrive()?;
        for (_, client, said) in self.answers.extract_if(.., |(at, ..)| *at <= self.now).collect::<Vec<_>>() {
            self.clients[client].answered(self.now, said, (&self.upstream, self.climate, self.plant))?;
        }
        for client in 0..CLIENTS {
            self.tell(client, failover::Event::Tick);
        }
        Ok(())
    }

    fn calm(&mut self) {
        (self.quiet, self.upstream.mood, self.upstream.absent) = (true, Mood::Up, [false; NAMES]);
        // Steps are longer from here on, and answers later.
        (self.climate.strict, self.climate.timeout) = (false, Duration::from_secs(10));
        for replica in 0..self.replicas.len() {
            self.replicas[replica].paused = self.now;
            if !self.replicas[replica].alive {
                self.replicas[replica].start(self.now, self.climate, &mut self.spread);
            }
        }
    }

    fn never_stuck(&self) -> Result<(), Breach> {
        for name in 0..NAMES {
            let truth = self.upstream.truth(name);
            let fresh = self.replicas.iter().all(|replica| {
                let state = &replica.board[name].state;
                let value = state.value.as_ref().map(|value| value.0);
                let age = state.resolved_at.map(|date| wall(self.now, replica.skew).since(date));
                (state.served, value) == (Served::Value { stale: None }, Some(truth))
                    && age.is_some_and(|age| age < Duration::from_secs(60))
            });
            let newest = self.clients.iter().all(|client| {
                client.watched[name] == Some(truth) && client.streams.standing() == Standing::Live
            });
            if !fresh || !newest {
                return Err("never-stuck-stale");
            }
        }
        Ok(())
    }
}

fn said(shown: &Shown, name: usize, climate: Climate) -> Said {
    let value = match (shown.state.served, &shown.state.value) {
        (Served::Value { .. }, Some(value)) => {
            let order = climate.ordered.then_some(value.0 as u64);
            Some((value.clone(), Offer { resolved_at: shown.state.resolved_at, order, epoch: None }))
        }
        _ => None,
    };
    Said { name, seq: shown.seq, value, confirmed: shown.confirmed }
}

fn run(seed: u64, plant: Plant) -> Result<(), Breach> {
    let mut world = World::new(seed, plant);
    for _ in 0..2500 {
        if world.chance(6) {
            world.disturb();
        }
        for _ in 0..world.spread.below(4) {
            world.read()?;
        }
        let by = Duration::from_millis(1 + world.spread.below(400));
        world.step(by)?;
    }
    world.calm();
    // Long enough for the longest pauses, and for a client to find the replica whose clock is right.
    for step in 0..1200 {
        // A last value of each name, and reads while not every replica has it.
        if (400..800).contains(&step) && step % 100 == 0 {
            world.write(step / 100 - 4);
        }
        if (400..800).contains(&step) && step % 100 < 8 {
            (0..6).try_for_each(|_| world.read())?;
        }
        world.step(Duration::from_secs(2))?;
    }
    world.never_stuck()
}

#[test]
fn no_client_goes_back_and_nobody_stays_behind() {
    let broken: Vec<_> = crate::soak::seeds(60)
        .filter_map(|seed| run(seed, Plant::None).err().map(|name| (seed, name)))
        .collect();
    assert_eq!(broken, []);
}

#[test]
fn wrong_fleets_are_caught() {
    for (plant, climate, name) in [
        (Plant::NoWatermark, 0, "no-backward-value"),
        (Plant::MarksForgotten, 0, "no-backward-value"),
        (Plant::OneSidedBand, 0, "no-backward-value"),
        (Plant::FailuresRenewDates, 0, "no-backward-value"),
        (Plant::DatedByArrival, 1, "no-backward-value"),
        (Plant::FutureRaises, 3, "never-stuck-stale"),
        (Plant::StaysBehind, 3, "never-stuck-stale"),
        (Plant::NothingHeld, 2, "never-stuck-stale"),
        (Plant::OnlyChangesPublished, 0, "never-stuck-stale"),
        (Plant::SilentEnd, 0, "never-stuck-stale"),
        (Plant::AbsentIsSilence, 0, "ready-iff-settled"),
        (Plant::IdsEverywhere, 0, "resume-complete"),
        (Plant::IdsOfOthers, 0, "resume-complete"),
        (Plant::ResumeFromAny, 2, "resume-complete"),
        (Plant::RefusalsMoveOn, 0, "one-answer-one-request"),
    ] {
        let caught = (0..40).any(|nth| run(4 * nth + climate, plant) == Err(name));
        assert!(caught, "{plant:?} does not break {name}");
    }
}
