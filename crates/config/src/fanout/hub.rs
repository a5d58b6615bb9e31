//! The hub of all streams: which stream follows which name, who is told of a change, when hearts beat and rights end.
//!
//! What must hold: one task follows the board, whatever the number of streams, and marks only those that follow the name that
//! changed; a stream is woken by what is due on it and by its own beat, by nothing else; what a reload, the end of an identity
//! or of the process means reaches every stream, also one that begins in the same moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use arc_swap::ArcSwap;
use holdfast_core::freshness::Served;
use holdfast_core::stream::{End, Reason, Rules, Seq, Stream, View};
use holdfast_core::time::jittered;
use holdfast_core::{Mono, Wall};
use holdfast_net::serve::{Connection, Cut};
use holdfast_ops::{MonoClock, Tasks};
use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

use super::board::{Board, Change, Entry, Record};
use super::resume::{Boot, Domain, NameSet};
use super::stream::{FrameCounters, StreamBody};
use crate::clock::wall;
use crate::metrics::{Meters, ReasonLabel, StreamEnd};

/// Steps of the wheel in one turn: streams beat in so many groups.
const STEPS: usize = 128;
/// Streams judged before others get their turn.
const AT_ONCE: usize = 64;
/// When a credential within its leeway is judged again.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest notice before a stream ends of age.
const NOTICE: Duration = Duration::from_secs(30);

/// How streams behave; a change counts from the next beat, change or stream on.
#[derive(Clone, Copy, Debug)]
pub struct HubSettings {
    /// Time between two heartbeats; 15 s.
    pub heartbeat: Duration,
    /// How long a stream may take nothing while something is due; 30 s.
    pub write_stall: Duration,
    /// The longest life of a stream, spread by 20 %.
    pub max_age: Option<Duration>,
    /// How much newer the date of an unchanged value must be to be told again; 60 s.
    pub redate: Duration,
}

/// What a caller may see, and for how long that is known.
#[derive(Clone, Debug)]
pub struct Rights {
    /// For each name of the stream.
    pub allowed: Vec<bool>,
    /// When the caller's credential ends.
    pub expires: Option<Wall>,
}

/// Whose stream it is.
pub trait Holder: Send + Sync + 'static {
    /// Judges the caller anew by what is configured now; none when it is no longer known.
    fn judge(&self, names: &[Box<[u8]>], now: Wall) -> Option<Rights>;

    /// A state was handed to the socket.
    fn delivered(&self, name: &[u8], record: Option<&Record>) {
        let _ = (name, record);
    }

    /// The stream is over.
    fn ended(&self, why: StreamEnd, frames: u64, lasted: Duration);
}

/// What a stream shall be.
pub struct Subscription {
    /// Its names, each once, in the order of the request.
    pub names: Vec<Box<[u8]>>,
    /// The rights as they were judged.
    pub rights: Rights,
    /// The generation by which they were judged.
    pub judged: u64,
    /// Whose it is.
    pub holder: Arc<dyn Holder>,
    /// The id of the last frame that the client saw.
    pub last_event_id: Option<Vec<u8>>,
    /// Whether dates alone come as dates.
    pub fresh: bool,
    /// The longest `data:` line, in bytes.
    pub max_frame: usize,
    /// Cuts the stream alone, where its connection has others.
    pub cut: Option<Cut>,
    /// Its connection, which knows whether its peer stopped reading.
    pub connection: Option<Arc<Connection>>,
}

/// All streams of a replica; clones are the same hub.
#[derive(Clone)]
pub struct Hub(Arc<Shared>);

pub(super) struct Shared {
    pub(super) board: Arc<Board>,
    pub(super) meters: Meters,
    pub(super) frames: FrameCounters,
    boot: Boot,
    settings: ArcSwap<HubSettings>,
    generation: AtomicU64,
    followed: AtomicU64,
    next: AtomicU64,
    topics: Mutex<HashMap<Box<[u8]>, Followers>>,
    streams: Mutex<BTreeMap<u64, Arc<Open>>>,
    wheel: Mutex<Wheel>,
    turns: Notify,
    leaving: Mutex<Option<Leave>>,
}

/// The streams that follow a name, each with the name's place in it.
type Followers = BTreeMap<u64, (Arc<Open>, usize)>;

#[derive(Clone, Copy)]
enum Leave {
    Told(Duration),
    Ended,
}

/// One open stream, as the hub and its body share it.
pub(super) struct Open {
    id: u64,
    slot: usize,
    pub(super) names: Vec<Box<[u8]>>,
    pub(super) holder: Arc<dyn Holder>,
    pub(super) max_frame: usize,
    cut: Option<Cut>,
    connection: Option<Arc<Connection>>,
    begun: Mono,
    /// When it is told to move, and when it ends of age.
    age: Option<(Mono, Mono)>,
    pub(super) inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) machine: Stream,
    pub(super) domain: Domain,
    pub(super) waker: Option<Waker>,
    /// Since when what is due has not been taken, where the hub has to watch that.
    waiting: Option<Mono>,
    /// Whether the wheel looks after `waiting`.
    watched: bool,
    expires: Option<Wall>,
    pub(super) frames: u64,
    why: Option<StreamEnd>,
}

struct Wheel {
    slots: Vec<BTreeMap<u64, Arc<Open>>>,
    at: usize,
    expiries: BTreeMap<(Wall, u64), Arc<Open>>,
    stalls: BTreeMap<(Mono, u64), Arc<Open>>,
}

/// What a step of the wheel brings.
struct Due {
    /// Whose heart beats.
    beating: Vec<Arc<Open>>,
    /// Whose credential has ended.
    expired: Vec<Arc<Open>>,
    /// Whose stall is to be looked at.
    stalled: Vec<Arc<Open>>,
}

/// What a stream sees of a name, and what it writes of it.
pub(super) type Look = Option<(Arc<Entry>, Arc<Record>)>;

impl Hub {
    /// A hub over a board; its tasks end with `tasks`.
    pub fn start(
        board: Arc<Board>,
        boot: Boot,
        settings: HubSettings,
        meters: Meters,
        tasks: &Tasks,
    ) -> Self {
        let changes = board.follow();
        let followed = AtomicU64::new(board.seq().get());
        let shared = Arc::new(Shared {
            board,
            frames: FrameCounters::new(&meters),
            meters,
            boot,
            settings: ArcSwap::from_pointee(settings),
            generation: AtomicU64::new(1),
            followed,
            next: AtomicU64::new(0),
            topics: Mutex::default(),
            streams: Mutex::default(),
            wheel: Mutex::new(Wheel::new()),
            turns: Notify::new(),
            leaving: Mutex::new(None),
        });
        tasks.spawn_until_cancelled("follow", follow(Arc::clone(&shared), changes));
        tasks.spawn_until_cancelled("wheel", turn(Arc::clone(&shared)));
        Self(shared)
    }

    /// The number of the configuration that rights are judged by.
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// How many streams are open.
    pub fn open(&self) -> usize {
        self.0.streams.lock().len()
    }

    /// Changes how streams behave.
    pub fn set(&self, settings: HubSettings) {
        self.0.settings.store(Arc::new(settings));
    }

    /// Begins a stream; it is over when its body is dropped.
    pub fn subscribe(&self, asked: Subscription) -> StreamBody {
        let (shared, settings) = (&self.0, **self.0.settings.load());
        let (resume, judged, rules) = (
            asked.last_event_id.clone(),
            asked.judged,
            Rules { redate: settings.redate, fresh: asked.fresh },
        );
        let rights = asked.rights.clone();
        let open = shared.new_stream(asked, &settings, rules);
        shared.admit(&open);
        let body = StreamBody::new(Arc::clone(shared), Arc::clone(&open));
        shared.register(&open);
        {
            let mut inner = open.inner.lock();
            // Only now, since all that is published from here on is marked.
            inner.machine = Stream::new(rules, rights.allowed.iter().copied(), shared.board.seq());
            if let Some(seen) = resume.and_then(|id| inner.domain.read(&id)) {
                inner.machine.resume(seen, |index| shared.view(&open, index));
            }
        }
        if self.generation() != judged {
            shared.rejudge(&open, wall());
        }
        shared.apply_leave(&open);
        body
    }

    /// Another configuration counts: every stream is judged by it. The board and whatever judges must have it already.
    pub async fn applied(&self, generation: u64) {
        self.0.generation.store(generation, Ordering::Release);
        let all: Vec<_> = self.0.streams.lock().values().cloned().collect();
        for (count, open) in all.iter().enumerate() {
            self.0.rejudge(open, wall());
            if count % AT_ONCE == AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Tells every stream, open or to come, that its client should move; all are served on.
    pub fn tell_to_go(&self, within: Duration) {
        self.0.leave(Leave::Told(within));
    }

    /// Cuts the streams that are still open, with their connections where they have them for themselves.
    pub fn cut(&self) {
        for open in self.0.streams.lock().values() {
            match (&open.cut, &open.connection) {
                (Some(cut), _) => cut.now(),
                (None, Some(connection)) => connection.cut().now(),
                (None, None) => {}
            }
        }
    }

    /// Judges every stream anew by what counts already, since time passed a date that matters.
    pub async fn judge_again(&self) {
        self.applied(self.generation()).await;
    }

    /// Ends every stream, open or to come, in order.
    pub fn end(&self) {
        self.0.leave(Leave::Ended);
    }
}

impl Shared {
    pub(super) fn followed(&self) -> Seq {
        Seq::new(self.followed.load(Ordering::Acquire))
    }

    pub(super) fn look(&self, open: &Open, index: usize) -> (View, Look) {
        let name = open.names.get(index).and_then(|name| std::str::from_utf8(name).ok());
        match name.and_then(|name| self.board.get(name)) {
            None => (View::Unbound, None),
            Some(entry) => {
                let record = entry.load();
                (view(&record), Some((entry, record)))
            }
        }
    }

    fn view(&self, open: &Open, index: usize) -> View {
        self.look(open, index).0
    }

    fn new_stream(&self, asked: Subscription, settings: &HubSettings, rules: Rules) -> Arc<Open> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let slot = holdfast_ops::rand::unit() * STEPS as f64;
        let begun = MonoClock.now();
        let age = settings.max_age.map(|age| {
            let age = jittered(age, 0.2, holdfast_ops::rand::unit());
            (begun.after(age.saturating_sub(NOTICE.min(age / 10))), begun.after(age))
        });
        let names = asked.names.iter().map(|name| &**name).zip(asked.rights.allowed.iter().copied());
        let domain = Domain { boot: self.boot, generation: asked.judged, set: NameSet::of(names) };
        let inner = Inner {
            machine: Stream::new(rules, asked.rights.allowed.iter().copied(), Seq::default()),
            domain,
            waker: None,
            waiting: None,
            watched: false,
            expires: asked.rights.expires,
            frames: 0,
            why: None,
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number below STEPS")]
        let slot = (slot as usize).min(STEPS - 1);
        Arc::new(Open {
            id,
            slot,
            names: asked.names,
            holder: asked.holder,
            max_frame: asked.max_frame,
            cut: asked.cut,
            connection: asked.connection,
            begun,
            age,
            inner: Mutex::new(inner),
        })
    }

    fn admit(&self, open: &Arc<Open>) {
        let mut streams = self.streams.lock();
        streams.insert(open.id, Arc::clone(open));
        self.meters.streams.set(i64::try_from(streams.len()).unwrap_or(i64::MAX));
    }

    fn register(&self, open: &Arc<Open>) {
        {
            let mut topics = self.topics.lock();
            for (index, name) in open.names.iter().enumerate() {
                topics.entry(name.clone()).or_default().insert(open.id, (Arc::clone(open), index));
            }
        }
        let expires = open.inner.lock().expires;
        let mut wheel = self.wheel.lock();
        if let Some(slot) = wheel.slots.get_mut(open.slot) {
            slot.insert(open.id, Arc::clone(open));
        }
        if let Some(at) = expires {
            wheel.expiries.insert((at, open.id), Arc::clone(open));
        }
        drop(wheel);
        self.turns.notify_one();
    }

    /// Forgets a stream whose body is gone.
    pub(super) fn remove(&self, open: &Open) {
        let (why, frames, expires) = {
            let inner = open.inner.lock();
            (inner.why, inner.frames, inner.expires)
        };
        {
            let mut topics = self.topics.lock();
            for name in &open.names {
                let empty = topics.get_mut(name).is_some_and(|streams| {
                    streams.remove(&open.id);
                    streams.is_empty()
                });
                if empty {
                    topics.remove(name);
                }
            }
        }
        {
            let mut wheel = self.wheel.lock();
            if let Some(slot) = wheel.slots.get_mut(open.slot) {
                slot.remove(&open.id);
            }
            if let Some(at) = expires {
                wheel.expiries.remove(&(at, open.id));
            }
        }
        let left = {
            let mut streams = self.streams.lock();
            if streams.remove(&open.id).is_none() {
                return;
            }
            streams.len()
        };
        self.meters.streams.set(i64::try_from(left).unwrap_or(i64::MAX));
        let stalled = open.connection.as_ref().is_some_and(|connection| connection.is_stalled());
        let why = why.unwrap_or(if stalled { StreamEnd::Slow } else { StreamEnd::Client });
        self.meters.streams_closed.get_or_create(&ReasonLabel { reason: why }).inc();
        open.holder.ended(why, frames, MonoClock.since(open.begun));
    }

    /// Marks a change on the streams that follow its name.
    fn publish(&self, name: &str) {
        let view = self.board.get(name).map_or(View::Unbound, |entry| view(&entry.load()));
        let mut woken = Vec::new();
        if let Some(streams) = self.topics.lock().get(name.as_bytes()) {
            for (open, index) in streams.values() {
                let mut inner = open.inner.lock();
                if inner.machine.mark(*index, view) {
                    woken.extend(inner.waker.take());
                }
            }
        }
        // Outside of the lock, since a body that is woken may begin or end streams.
        woken.into_iter().for_each(Waker::wake);
    }

    fn apply(&self, change: &Change) {
        self.publish(change.entry.name());
        self.followed.fetch_max(change.seq.get(), Ordering::AcqRel);
    }

    /// Looks at everything, since announcements were lost.
    fn catch_up(&self) {
        let seq = self.board.seq();
        let names: Vec<_> = self.topics.lock().keys().cloned().collect();
        for name in names.iter().filter_map(|name| std::str::from_utf8(name).ok()) {
            self.publish(name);
        }
        self.followed.fetch_max(seq.get(), Ordering::AcqRel);
    }

    /// Judges one stream by what is configured now. Under its lock, so that the later judgement stands.
    fn rejudge(&self, open: &Arc<Open>, now: Wall) {
        let generation = self.generation.load(Ordering::Acquire);
        let mut inner = open.inner.lock();
        let before = inner.expires;
        match open.holder.judge(&open.names, now) {
            None => {
                inner.machine.end(End::Unauthenticated);
                inner.why = Some(StreamEnd::Unauthenticated);
                inner.expires = None;
            }
            Some(rights) => {
                let allowed = |index: usize| rights.allowed.get(index).copied().unwrap_or(false);
                inner.machine.rejudge(allowed, |index| self.view(open, index));
                let names = open.names.iter().map(|name| &**name).zip(rights.allowed.iter().copied());
                inner.domain = Domain { boot: self.boot, generation, set: NameSet::of(names) };
                inner.expires = rights.expires;
            }
        }
        let (after, waker) = (inner.expires, inner.waker.take());
        drop(inner);
        if before != after {
            let mut wheel = self.wheel.lock();
            if let Some(at) = before {
                wheel.expiries.remove(&(at, open.id));
            }
            if let Some(at) = after {
                wheel.expiries.insert((at, open.id), Arc::clone(open));
            }
        }
        waker.into_iter().for_each(Waker::wake);
    }

    /// A credential that counts on past its end, within its leeway, is judged again soon.
    fn look_again(&self, open: Arc<Open>, now: Wall) {
        let past = open.inner.lock().expires.is_some_and(|at| at <= now);
        if past && self.streams.lock().contains_key(&open.id) {
            self.wheel.lock().expiries.insert((now.after(AGAIN), open.id), open);
        }
    }

    fn leave(&self, how: Leave) {
        *self.leaving.lock() = Some(how);
        let all: Vec<_> = self.streams.lock().values().cloned().collect();
        for open in all {
            self.apply_leave(&open);
        }
    }

    fn apply_leave(&self, open: &Open) {
        let Some(how) = *self.leaving.lock() else { return };
        let mut inner = open.inner.lock();
        match how {
            Leave::Told(within) => inner.machine.go_away(Reason::Draining, within),
            Leave::Ended => {
                inner.machine.end(End::Now);
                inner.why.get_or_insert(StreamEnd::Draining);
            }
        }
        let waker = inner.waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }

    /// One step of the wheel.
    fn step(&self, now: Mono, wall: Wall) {
        let Due { beating, expired, stalled } = self.wheel.lock().step(now, wall);
        for open in beating {
            open.beat(now);
        }
        for open in expired {
            self.rejudge(&open, wall);
            self.look_again(open, wall);
        }
        let limit = self.settings.load().write_stall;
        for open in stalled {
            if let Some(at) = open.look_for_stall(now, limit) {
                self.wheel.lock().stalls.insert((at, open.id), open);
            }
        }
    }

    /// Something was handed to a stream's connection; where the hub has to see that it is taken, it looks later.
    pub(super) fn handed(&self, open: &Arc<Open>, inner: &mut Inner, now: Mono) {
        if open.cut.is_none() {
            return;
        }
        inner.waiting = Some(now);
        if !std::mem::replace(&mut inner.watched, true) {
            let at = now.after(self.settings.load().write_stall);
            self.wheel.lock().stalls.insert((at, open.id), Arc::clone(open));
        }
    }
}

impl Open {
    fn beat(&self, now: Mono) {
        let mut inner = self.inner.lock();
        inner.machine.beat();
        if let Some((told, end)) = self.age {
            if now >= end {
                inner.machine.end(End::Now);
                inner.why.get_or_insert(StreamEnd::MaxAge);
            } else if now >= told {
                inner.machine.go_away(Reason::MaxAge, now.until(end));
            }
        }
        let waker = inner.waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Cuts the stream when what is due was not taken for so long; else when to look again.
    fn look_for_stall(&self, now: Mono, limit: Duration) -> Option<Mono> {
        let mut inner = self.inner.lock();
        let Some(since) = inner.waiting else {
            inner.watched = false;
            return None;
        };
        let at = since.after(limit);
        if at > now {
            return Some(at);
        }
        inner.watched = false;
        inner.why.get_or_insert(StreamEnd::Slow);
        drop(inner);
        if let Some(cut) = &self.cut {
            cut.now();
        }
        None
    }
}

impl Inner {
    /// Everything was taken.
    pub(super) const fn taken(&mut self) {
        self.waiting = None;
    }
}

impl Wheel {
    fn new() -> Self {
        Self {
            slots: (0..STEPS).map(|_| BTreeMap::new()).collect(),
            at: 0,
            expiries: BTreeMap::new(),
            stalls: BTreeMap::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.slots.iter().all(BTreeMap::is_empty)
    }

    fn step(&mut self, now: Mono, wall: Wall) -> Due {
        let beating = self.slots.get(self.at).map(|slot| slot.values().cloned().collect());
        self.at = (self.at + 1) % STEPS;
        let rest = self.expiries.split_off(&(wall, u64::MAX));
        let expired = std::mem::replace(&mut self.expiries, rest).into_values().collect();
        let rest = self.stalls.split_off(&(now, u64::MAX));
        let stalled = std::mem::replace(&mut self.stalls, rest).into_values().collect();
        Due { beating: beating.unwrap_or_default(), expired, stalled }
    }
}

fn view(record: &Record) -> View {
    View::Bound {
        seq: record.seq,
        resolved_at: record.state.resolved_at,
        confirmed: matches!(record.state.served, Served::Value { stale: None }),
    }
}

async fn follow(shared: Arc<Shared>, mut changes: broadcast::Receiver<Change>) {
    loop {
        match changes.recv().await {
            Ok(change) => shared.apply(&change),
            Err(RecvError::Lagged(_)) => shared.catch_up(),
            Err(RecvError::Closed) => return,
        }
    }
}

/// Turns the wheel while there are streams, a little faster than the heartbeat, so that no gap is longer than that.
async fn turn(shared: Arc<Shared>) {
    loop {
        let mut next = Instant::now();
        while !shared.wheel.lock().is_empty() {
            let turn = shared.settings.load().heartbeat * 63 / 64;
            next += turn / u32::try_from(STEPS).unwrap_or(u32::MAX);
            if next + turn < Instant::now() {
                // The process was stopped for a while; beats that were missed are not made up for.
                next = Instant::now();
            }
            tokio::time::sleep_until(next).await;
            shared.step(MonoClock.now(), wall());
        }
        shared.turns.notified().await;
    }
}
