//! The task of one object: it asks the upstream when the schedule says so, follows the watch, and keeps the lease.
//!
//! What must hold: one call at a time; every attempt ends in exactly one outcome for the cells, also one that hangs, that
//! the breaker refuses, or whose provider panics; an event that is older than what is held changes nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_core::freshness::{Failure, Outcome};
use holdfast_core::polling::{LeaseClock, LeaseDue, Schedule, ScheduleTiming};
use holdfast_core::time::{Spread, doubling, earliest};
use holdfast_core::{AnswerKind, Mono, Now};
use holdfast_ops::Tasks;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ObjectId;
use super::cells::Cells;
use super::gate::{Ended, Gate};
use super::mailbox::{Link, Mailbox};
use super::meter::Meter;
use crate::clock::Clock;
use crate::provider::{Fetched, Lease, WatchGuard};
use crate::reference::ObjectKey;
use crate::value::Value;

/// Over how long readings after a lost watch are spread; they must begin within 100 ms.
const LOST_SPREAD: Duration = Duration::from_millis(50);
/// The first pause before a watch whose task is gone is begun anew, and the longest.
const REWATCH: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long the first reading waits for the subscription, which must stand before it; a backend that is down is told by
/// the reading then.
const SUBSCRIBE: Duration = Duration::from_secs(1);
/// How long giving a lease back may take when the process ends.
const REVOKE: Duration = Duration::from_secs(2);

/// How an object is read, from its bindings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Plan {
    /// Time between two readings: the smallest of its bindings'.
    pub poll: Duration,
    /// The longest attempt: the largest of its bindings'.
    pub timeout: Duration,
}

/// What the engine tells an object while it runs.
#[derive(Default)]
pub(super) struct Control {
    inner: Mutex<(Option<Plan>, bool)>,
    changed: Notify,
    /// The process ends, so that leases may be given back.
    pub stopping: AtomicBool,
}

impl Control {
    /// Another plan; `read` asks for an attempt at once.
    pub(super) fn set(&self, plan: Plan, read: bool) {
        let mut inner = self.inner.lock();
        *inner = (Some(plan), inner.1 || read);
        drop(inner);
        self.changed.notify_one();
    }

    fn take(&self) -> (Option<Plan>, bool) {
        std::mem::take(&mut *self.inner.lock())
    }
}

/// What all objects share.
#[derive(Clone)]
pub(super) struct Shared {
    pub cells: Arc<Cells>,
    pub clock: Arc<dyn Clock>,
    pub meter: Arc<dyn Meter>,
}

/// One object.
pub(super) struct Object {
    id: ObjectId,
    key: Arc<ObjectKey>,
    gate: Arc<Gate>,
    shared: Shared,
    control: Arc<Control>,
    plan: Plan,
    spread: Spread,
    schedule: Schedule,
    failing: bool,
    /// A value came of what must not be asked for again by the clock.
    minted: bool,
    held: Option<Value>,
    /// The last definite answer and when it was asked for.
    last: Option<(Outcome<Value>, Now)>,
    /// When an absence has to be confirmed.
    confirm: Option<Mono>,
    lease: Option<Leased>,
    watch: Watching,
}

struct Leased {
    lease: Lease,
    clock: LeaseClock,
    /// The reading that replaces it was asked for.
    rereading: bool,
}

#[derive(Default)]
struct Watching {
    mailbox: Arc<Mailbox>,
    guard: Option<WatchGuard>,
    /// The subscription stands.
    live: bool,
    /// Until when the first reading waits for the subscription.
    wait: Option<Mono>,
    /// When its connection last showed a sign of life.
    sign: Mono,
    /// When a watch whose task is gone is begun anew.
    again: Option<Mono>,
    failures: u32,
    /// Came then, while a reading was under way, and is compared with it.
    event: Option<(Outcome<Value>, Now)>,
}

/// A call under way.
type Call = Pin<Box<dyn Future<Output = Done> + Send>>;

enum Done {
    /// With when it began.
    Fetched(Fetched, Now),
    Renewed(Result<Lease, AnswerKind>),
}

impl Object {
    pub(super) fn new(
        id: ObjectId,
        key: ObjectKey,
        gate: Arc<Gate>,
        shared: Shared,
        control: Arc<Control>,
        (plan, seed): (Plan, u64),
    ) -> Self {
        let mut spread = Spread::new(seed);
        let now = shared.clock.now().mono;
        let schedule = Schedule::new(now, Some(plan.poll), ScheduleTiming::default(), spread.unit());
        Self {
            id,
            key: Arc::new(key),
            gate,
            shared,
            control,
            plan,
            spread,
            schedule,
            failing: false,
            minted: false,
            held: None,
            last: None,
            confirm: None,
            lease: None,
            watch: Watching::default(),
        }
    }

    /// Runs until the group is told to end.
    pub(super) async fn run(mut self, tasks: Tasks) {
        let mut closings = self.gate.closings();
        let control = Arc::clone(&self.control);
        let mailbox = Arc::clone(&self.watch.mailbox);
        self.begin_watch();
        self.watch.wait = self.watch.guard.as_ref().map(|_| self.now().after(SUBSCRIBE));
        let mut call: Option<Call> = None;
        loop {
            if call.is_none() {
                call = self.due();
            }
            let wake = self.next_deadline(call.is_some());
            tokio::select! {
                () = tasks.cancelled() => break,
                done = under_way(&mut call) => {
                    call = None;
                    self.done(done);
                }
                () = mailbox.arrived() => self.told(call.is_some()),
                () = control.changed.notified() => self.replan(),
                Ok(()) = closings.changed() => self.recover(),
                () = sleep_until(&*self.shared.clock, wake) => self.watch_over(),
            }
        }
        drop(call);
        self.end().await;
    }

    fn now(&self) -> Mono {
        self.shared.clock.now().mono
    }

    fn next_deadline(&self, calling: bool) -> Option<Mono> {
        let idle = self.watch.guard.as_ref().map(|_| self.watch.sign.after(self.gate.upstream.watch_idle));
        let watch = earliest(idle, self.watch.again);
        if calling {
            // Nothing else begins before it ended.
            return watch;
        }
        let lease = self.lease.as_ref().and_then(Leased::next);
        earliest(earliest(self.reading_due(), lease), watch)
    }

    fn reading_due(&self) -> Option<Mono> {
        self.schedule.next().map(|at| at.max(self.watch.wait.unwrap_or(at)))
    }

    /// The call that is due now, if one is.
    fn due(&mut self) -> Option<Call> {
        let now = self.now();
        if let Some(leased) = &mut self.lease {
            match leased.clock.due() {
                LeaseDue::Renew(at) if at <= now => return Some(self.renewal()),
                LeaseDue::Reread(at) if at <= now && !leased.rereading => {
                    leased.rereading = true;
                    self.schedule.hasten(now);
                }
                _ => {}
            }
        }
        let due = self.reading_due().is_some_and(|at| at <= now);
        (due && self.schedule.begin()).then(|| {
            self.watch.wait = None;
            self.attempt()
        })
    }

    fn attempt(&self) -> Call {
        let (gate, key, held) = (Arc::clone(&self.gate), Arc::clone(&self.key), self.held.clone());
        let (id, timeout, meter, clock) =
            (self.id, self.plan.timeout, Arc::clone(&self.shared.meter), Arc::clone(&self.shared.clock));
        Box::pin(async move {
            let fetch = async {
                // Once it is its turn; how long it waited for that does not count.
                let began = clock.now();
                (gate.provider.fetch(&key, held.as_ref()).await, began)
            };
            let ended = gate.call(id, timeout, fetch, |(fetched, _)| kind(&fetched.outcome)).await;
            let now = clock.now();
            let (fetched, began, took) = match ended {
                Ended::Answer((fetched, began)) => (fetched, began, Some(now.mono.since(began.mono))),
                Ended::Refused => (failed(AnswerKind::Unavailable), now, None),
                Ended::TimedOut => (failed(AnswerKind::Unavailable), now, Some(timeout)),
                Ended::Panicked => (failed(AnswerKind::Unknown), now, None),
            };
            meter.attempt(key.scheme, (&fetched.outcome).into(), took);
            Done::Fetched(fetched, began)
        })
    }

    fn renewal(&self) -> Call {
        let (gate, id, timeout) = (Arc::clone(&self.gate), self.id, self.plan.timeout);
        let lease = self.lease.as_ref().map(|leased| Lease {
            // A renewal asks for what was granted first, not for what was left of it.
            ttl: leased.clock.asked(),
            ..leased.lease.clone()
        });
        Box::pin(async move {
            let Some(lease) = lease else { return Done::Renewed(Err(AnswerKind::Invalid)) };
            let renew = gate.provider.renew(&lease);
            let ended = gate.call(id, timeout, renew, |result| result.as_ref().err().copied()).await;
            Done::Renewed(match ended {
                Ended::Answer(result) => result,
                Ended::Refused | Ended::TimedOut => Err(AnswerKind::Unavailable),
                Ended::Panicked => Err(AnswerKind::Unknown),
            })
        })
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Fetched(fetched, began) => self.fetched(fetched, began),
            Done::Renewed(result) => self.renewed(result),
        }
    }

    fn fetched(&mut self, fetched: Fetched, began: Now) {
        let now = self.shared.clock.now();
        let Fetched { mut outcome, lease } = fetched;
        if let Outcome::Value { value, .. } = &mut outcome {
            if let Some(lease) = &lease {
                value.not_after = value.not_after.or(Some(now.wall.after(lease.ttl)));
            }
            self.lease = lease.map(|lease| Leased {
                clock: LeaseClock::granted(now.mono, lease.ttl, lease.renewable),
                lease,
                rereading: false,
            });
            self.minted = self.gate.provider.mints(&self.key);
        }
        self.pace(now.mono);
        let unit = self.spread.unit();
        self.schedule.ended(now.mono, failure(&outcome).as_ref(), unit);
        self.conclude(outcome, began);
        match self.watch.event.take() {
            Some((event, came)) if is_comparable(&event, self.held.as_ref()) => self.event(event, came),
            // It may be what the reading found, or newer: only another one tells.
            Some(_) => self.schedule.hasten(now.mono),
            None => {}
        }
    }

    fn renewed(&mut self, result: Result<Lease, AnswerKind>) {
        let now = self.shared.clock.now();
        let unit = self.spread.unit();
        let Some(leased) = &mut self.lease else { return };
        match result {
            Ok(lease) => {
                leased.clock.renewed(now.mono, lease.ttl, lease.renewable);
                let end = now.wall.after(lease.ttl);
                leased.lease = Lease { id: leased.lease.id.clone(), ..lease };
                if let Some(mut value) = self.held.clone() {
                    value.not_after = Some(end);
                    self.conclude(Outcome::Value { value, passed: None }, now);
                }
            }
            Err(kind) => leased.clock.renewal_failed(now.mono, kind, unit),
        }
    }

    /// Hands one outcome to the cells and remembers it.
    fn conclude(&mut self, outcome: Outcome<Value>, began: Now) {
        let now = self.now();
        let asked = self.shared.cells.settle(self.id, began, &outcome);
        // An absence that was seen once more before its time is still to be confirmed.
        self.confirm = asked.or(self.confirm.filter(|at| *at > now && failure(&outcome).is_none()));
        if let Some(at) = self.confirm {
            self.schedule.hasten(at);
        }
        self.failing = matches!(outcome, Outcome::Error(_));
        match &outcome {
            Outcome::Value { value, .. } => self.held = Some(value.clone()),
            Outcome::Absent => self.held = None,
            Outcome::Error(_) => return,
        }
        self.last = Some((outcome, began));
    }

    /// An outcome that no call of ours brought: the next reading is due as after one that did.
    fn pushed(&mut self, outcome: Outcome<Value>, came: Now) {
        let (now, unit) = (self.now(), self.spread.unit());
        if self.schedule.begin() {
            self.schedule.ended(now, failure(&outcome).as_ref(), unit);
            self.conclude(outcome, came);
        }
    }

    fn event(&mut self, event: Outcome<Value>, came: Now) {
        if !is_older(&event, self.held.as_ref()) {
            self.shared.meter.attempt(self.key.scheme, (&event).into(), None);
            self.pushed(event, came);
        }
    }

    /// Looks at what the watch reported.
    fn told(&mut self, calling: bool) {
        let Some(post) = self.watch.mailbox.take() else { return };
        let came = self.shared.clock.now();
        let now = came.mono;
        self.watch.sign = now;
        let first = post.link.is_some() && self.watch.wait.take().is_some();
        match post.link {
            Some(Link::Up) => {
                (self.watch.live, self.watch.failures, self.watch.event) = (true, 0, None);
                self.pace(now);
            }
            Some(Link::Down(kind)) => {
                tracing::debug!(scheme = self.key.scheme.name(), %kind, "a watch was lost");
                self.lost(now, first);
            }
            Some(Link::Gone) => {
                let (shortest, ceiling) = REWATCH;
                self.watch.guard = None;
                self.watch.again = Some(now.after(doubling(shortest, ceiling, self.watch.failures)));
                self.watch.failures = self.watch.failures.saturating_add(1);
                self.lost(now, first);
            }
            None => {}
        }
        // The very first reading keeps its place in the spread of all.
        if post.read && !first {
            self.schedule.hasten(now);
        }
        let reading = calling || self.schedule.next().is_some_and(|at| at <= now);
        match post.event {
            Some(event) if calling => self.watch.event = Some((event, came)),
            Some(event) if !reading => self.event(event, came),
            None if post.confirmed && !reading && !self.failing => {
                if let Some((last, _)) = self.last.clone() {
                    self.pushed(last, came);
                }
            }
            _ => {}
        }
    }

    /// The watch reports nothing for now. What never was read keeps its place in the spread of all.
    fn lost(&mut self, now: Mono, first: bool) {
        (self.watch.live, self.watch.event) = (false, None);
        self.pace(now);
        if !first {
            let wait = LOST_SPREAD.mul_f64(self.spread.unit());
            self.schedule.hasten(now.after(wait));
        }
    }

    /// The interval that suits what is known: none under a lease, the confirmation's behind a watch.
    fn pace(&mut self, now: Mono) {
        let pace = self.gate.provider.pace();
        let every = if self.lease.is_some() || self.minted {
            None
        } else if self.watch.live {
            let confirm = self.gate.upstream.confirm;
            Some(pace.reread.map_or(confirm, |reread| reread.min(confirm)))
        } else {
            Some(self.plan.poll)
        };
        let unit = self.spread.unit();
        self.schedule.set_every(now, every, unit);
    }

    fn replan(&mut self) {
        let (plan, read) = self.control.take();
        let now = self.now();
        self.plan = plan.unwrap_or(self.plan);
        self.pace(now);
        let leased = self.lease.is_some() || self.minted;
        match self.last.clone().filter(|_| leased && !self.failing) {
            // Asking again would make another credential: what is held serves the bindings that joined.
            Some((last, began)) if read => self.conclude(last, began),
            _ if read => self.schedule.hasten(now),
            _ => {}
        }
    }

    fn recover(&mut self) {
        if self.failing {
            let (now, unit) = (self.now(), self.spread.unit());
            self.schedule.recover(now, unit);
        }
    }

    fn begin_watch(&mut self) {
        let now = self.now();
        (self.watch.sign, self.watch.again) = (now, None);
        let sink = self.watch.mailbox.sink();
        self.watch.guard = self.gate.provider.watch(&self.key, sink);
        if self.watch.guard.is_none() {
            self.watch.mailbox.close();
        }
    }

    /// Begins a watch anew whose connection is silent for too long, or whose task is gone.
    fn watch_over(&mut self) {
        let now = self.now();
        let idle = self.gate.upstream.watch_idle;
        if self.watch.guard.is_some() && now.since(self.watch.sign) >= idle {
            tracing::info!(upstream = %self.gate.upstream.name, "a watch was silent for too long; it begins anew");
            self.begin_watch();
            self.lost(now, false);
        } else if self.watch.again.is_some_and(|at| at <= now) {
            self.begin_watch();
        }
    }

    async fn end(mut self) {
        self.watch.guard = None;
        let stopping = self.control.stopping.load(Ordering::Relaxed);
        let revoke = stopping && self.gate.upstream.settings.revoke_on_exit;
        if let Some(leased) = self.lease.take().filter(|_| revoke) {
            let _ = tokio::time::timeout(REVOKE, self.gate.provider.revoke(&leased.lease)).await;
        }
    }
}

impl Leased {
    fn next(&self) -> Option<Mono> {
        match self.clock.due() {
            LeaseDue::Renew(at) => Some(at),
            LeaseDue::Reread(at) => (!self.rereading).then_some(at),
        }
    }
}

fn kind(outcome: &Outcome<Value>) -> Option<AnswerKind> {
    failure(outcome).map(|failure| failure.kind)
}

fn failure(outcome: &Outcome<Value>) -> Option<Failure> {
    match outcome {
        Outcome::Error(failure) => Some(*failure),
        Outcome::Value { .. } | Outcome::Absent => None,
    }
}

fn failed(kind: AnswerKind) -> Fetched {
    Outcome::Error(Failure::of(kind)).into()
}

/// The revisions of an event and of what is held, when one can be told to be newer.
fn revisions(event: &Outcome<Value>, held: Option<&Value>) -> Option<(u64, u64)> {
    let (Outcome::Value { value, .. }, Some(held)) = (event, held) else { return None };
    value.order.zip(held.order).filter(|_| value.epoch == held.epoch)
}

fn is_comparable(event: &Outcome<Value>, held: Option<&Value>) -> bool {
    revisions(event, held).is_some()
}

fn is_older(event: &Outcome<Value>, held: Option<&Value>) -> bool {
    revisions(event, held).is_some_and(|(event, held)| event < held)
}

async fn under_way(call: &mut Option<Call>) -> Done {
    match call {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}

/// Waits until `at`, for ever with none.
pub(super) async fn sleep_until(clock: &dyn Clock, at: Option<Mono>) {
    match at {
        Some(at) => tokio::time::sleep(clock.now().mono.until(at)).await,
        None => std::future::pending().await,
    }
}
