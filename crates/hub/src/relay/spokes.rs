//! What a node has of spokes: the streams that end here, and while it is active, who owns every other one.
//!
//! The shell of [`holdfast_core::ownership`]. What must hold: machines are fed and their effects done under one lock,
//! so that effects keep their order; nothing under that lock waits. The map of routes stands beside it, so that a
//! command to a stream of this node asks nothing else.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::SpokeName;
use holdfast_core::ownership::announcer::{self, Announcer};
use holdfast_core::ownership::registry::{self, Registry, Report, Ticket};
use holdfast_core::ownership::{Claim, Lookup, NodeName, Seq, SpokeSet, Stamp, Superseded};
use holdfast_core::retry::Active;
use holdfast_core::{Mono, Term};
use holdfast_ops::tasks::TaskHandle;
use holdfast_ops::{MonoClock, Tasks};
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::{Notify, oneshot, watch};
use tonic::Status;

use super::calls::Calls;
use super::metrics::{Announced, RelayMetrics};
use super::settings::{RelaySettings, STALE};
use super::stream::{End, Stream};
use crate::cluster::Cluster;

/// How long a stream whose spoke is moving may finish what is under way; with the last words inside a second.
const FINISH: Duration = Duration::from_millis(600);
/// The same for a stream that this node itself sent away: longer than a second, so that a node which ends in order makes
/// no request fail. Nothing new goes that way by then, and it is as long as such a node waits for its streams.
const FINISH_SENT_AWAY: Duration = Duration::from_secs(8);
/// How long last words may take.
const LAST_WORDS: Duration = Duration::from_millis(250);
/// How often the membership and the gauges are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Spokes that wait to be told of to the leases.
type Returned = Box<dyn Fn(&SpokeName) + Send + Sync>;

/// What [`Spokes`] is made from.
pub struct Parts {
    /// The configuration.
    pub settings: RelaySettings,
    /// The own cluster address.
    pub address: String,
    /// Leadership and membership.
    pub cluster: Arc<dyn Cluster>,
    /// What is counted.
    pub metrics: RelayMetrics,
    /// The owner of all streams.
    pub tasks: Tasks,
}

/// The spokes as one unsealed node knows them.
pub struct Spokes {
    me: Weak<Self>,
    /// The own name.
    pub own: NodeName,
    /// The configuration.
    pub settings: RelaySettings,
    /// The own cluster address.
    pub address: String,
    /// Leadership and membership.
    pub cluster: Arc<dyn Cluster>,
    /// What is counted.
    pub metrics: RelayMetrics,
    /// The owner of all streams.
    pub tasks: Tasks,
    /// New with every unseal.
    pub boot: [u8; 16],
    clock: MonoClock,
    routes: RwLock<HashMap<SpokeName, Arc<Stream>>>,
    machines: Mutex<Machines>,
    /// A deadline may have moved.
    moved: Notify,
    /// Commands that wait for a way have to look again.
    looks: watch::Sender<u64>,
    calls: OnceLock<Calls>,
    returned: OnceLock<Returned>,
    /// Where spokes may dial the other nodes.
    endpoints: Mutex<BTreeMap<NodeName, String>>,
    /// Where spokes may dial, as the active node said last.
    everywhere: Mutex<Vec<String>>,
    listener_errors: Mutex<BTreeMap<NodeName, String>>,
    draining: AtomicBool,
}

/// What is decided under the one lock.
struct Machines {
    registry: Registry,
    announcer: Announcer,
    /// Every stream of this node that did not end yet, admitted or not.
    live: HashMap<(SpokeName, Stamp), Arc<Stream>>,
    answers: HashMap<Ticket, oneshot::Sender<registry::Reply>>,
    sends: HashMap<Seq, TaskHandle<()>>,
    tickets: u64,
}

impl Spokes {
    /// Nothing connected, nothing known.
    pub fn new(parts: Parts) -> Arc<Self> {
        let Parts { settings, address, cluster, metrics, tasks } = parts;
        let own = NodeName::new(&cluster.node().0);
        let interval = settings.announce_interval.get();
        let timing =
            registry::Timing { interval, alive_for: settings.alive_within(), ..registry::Timing::default() };
        let since_1970 = u64::try_from(crate::wall::now_unix()).unwrap_or(0).saturating_mul(1000);
        let announcing = announcer::Timing { interval, ..announcer::Timing::default() };
        let machines = Machines {
            registry: Registry::new(timing, own.clone()),
            announcer: Announcer::new(announcing, own.clone(), Seq::new(since_1970)),
            live: HashMap::new(),
            answers: HashMap::new(),
            sends: HashMap::new(),
            tickets: 0,
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            own,
            settings,
            address,
            cluster,
            metrics,
            tasks,
            boot: holdfast_ops::rand::bytes(),
            clock: MonoClock::new(),
            routes: RwLock::default(),
            machines: Mutex::new(machines),
            moved: Notify::new(),
            looks: watch::Sender::new(0),
            calls: OnceLock::new(),
            returned: OnceLock::new(),
            endpoints: Mutex::default(),
            everywhere: Mutex::default(),
            listener_errors: Mutex::default(),
            draining: AtomicBool::new(false),
        })
    }

    /// Says how other nodes are called, and who is told of a spoke that came back; once, before [`Spokes::run`].
    pub fn connect(&self, calls: Calls, returned: Returned) {
        drop(self.calls.set(calls));
        drop(self.returned.set(returned));
    }

    /// The way to the other nodes; none in a cluster that was never wired.
    pub fn calls(&self) -> Option<&Calls> {
        self.calls.get()
    }

    /// Now.
    pub fn now(&self) -> Mono {
        self.clock.now()
    }

    /// Follows the cluster and the clock until the node seals.
    pub async fn run(self: Arc<Self>) {
        let mut views = self.cluster.watch();
        let mut every = tokio::time::interval(LOOK);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let due = self.next_deadline();
            tokio::select! {
                changed = views.changed() => match changed {
                    Ok(()) => self.look(),
                    Err(_) => return,
                },
                // Nothing but the deadline is new.
                () = self.moved.notified() => {}
                () = self.clock.sleep_until(due) => self.tick(),
                _ = every.tick() => {
                    self.look();
                    self.measure();
                }
            }
        }
    }

    fn tick(&self) {
        let mut machines = self.machines.lock();
        self.feed(&mut machines, registry::Event::Tick);
        self.feed_announcer(&mut machines, announcer::Event::Tick);
    }

    /// The stream of a spoke on this node.
    pub fn local(&self, spoke: &SpokeName) -> Option<Arc<Stream>> {
        self.routes.read().get(spoke).cloned()
    }

    /// Every stream on this node that takes commands.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        self.routes.read().values().cloned().collect()
    }

    /// Every stream on this node that has not ended.
    pub fn live_streams(&self) -> Vec<Arc<Stream>> {
        self.machines.lock().live.values().cloned().collect()
    }

    /// How many streams on this node have not ended, those that take nothing new too.
    pub fn open_streams(&self) -> usize {
        self.machines.lock().live.len()
    }

    /// What is known of the way to a spoke.
    pub fn lookup(&self, spoke: &SpokeName) -> Lookup {
        self.machines.lock().registry.lookup(self.now(), spoke)
    }

    /// Tells when a command that waits has to look again.
    pub fn looks(&self) -> watch::Receiver<u64> {
        self.looks.subscribe()
    }

    /// Reads the registry.
    pub fn with_registry<T>(&self, read: impl FnOnce(&Registry, Mono) -> T) -> T {
        let machines = self.machines.lock();
        read(&machines.registry, self.clock.now())
    }

    /// Whether a message of `term` is to be obeyed.
    ///
    /// # Errors
    /// The highest term seen, when that is higher.
    pub fn admit(&self, term: Term) -> Result<(), Term> {
        self.machines.lock().registry.admit(term)
    }

    /// The cluster address of a member.
    pub fn address_of(&self, node: &NodeName) -> Option<String> {
        let members = self.cluster.members();
        members.into_iter().find(|m| m.node.0 == node.as_str()).map(|m| m.address.cluster)
    }

    /// The member with this cluster address.
    pub fn node_at(&self, address: &str) -> Option<NodeName> {
        let members = self.cluster.members();
        members.into_iter().find(|m| m.address.cluster == address).map(|m| NodeName::new(&m.node.0))
    }

    /// The cluster address of the node that leads, as far as this one knows; empty when it knows of none.
    pub fn leader_address(&self) -> String {
        self.cluster.view().leader.map(|leader| leader.address.cluster).unwrap_or_default()
    }

    /// Whether this node sends its spokes away.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Takes no more streams.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// A node said where spokes dial it, and whether its listener is down.
    pub fn note(&self, node: &NodeName, endpoint: &str, listener_error: &str) {
        set(&mut self.endpoints.lock(), node, endpoint);
        set(&mut self.listener_errors.lock(), node, listener_error);
    }

    /// The active node said where spokes dial it, and where they may dial at all.
    pub fn note_cluster(&self, active: &NodeName, endpoint: &str, all: Vec<String>) {
        set(&mut self.endpoints.lock(), active, endpoint);
        // An active node knows that itself; what is said of a former one's time would be passed on for ever.
        if self.cluster.view().active.is_none() {
            *self.everywhere.lock() = all;
        }
    }

    /// Forgets what nodes said that are members no more, and while this node is active, what another one passed on.
    fn keep_members(&self, members: &BTreeSet<NodeName>, active: bool) {
        let is_member = |node: &NodeName| *node == self.own || members.contains(node);
        self.endpoints.lock().retain(|node, _| is_member(node));
        self.listener_errors.lock().retain(|node, _| is_member(node));
        if active {
            self.everywhere.lock().clear();
        }
    }

    /// Where spokes dial a node, as it said.
    pub fn endpoint_of(&self, node: &NodeName) -> Option<String> {
        if *node == self.own {
            return self.settings.advertise.clone();
        }
        self.endpoints.lock().get(node).cloned()
    }

    /// Every place where spokes may dial, as the nodes said.
    pub fn endpoints(&self) -> Vec<String> {
        let (told, everywhere) = (self.endpoints.lock(), self.everywhere.lock());
        let all: BTreeSet<_> =
            self.settings.advertise.iter().chain(told.values()).chain(everywhere.iter()).cloned().collect();
        all.into_iter().collect()
    }

    /// Why the listener of a node is down, as it said; empty when it listens.
    pub fn listener_error(&self, node: &NodeName) -> String {
        self.listener_errors.lock().get(node).cloned().unwrap_or_default()
    }

    fn next_deadline(&self) -> Option<Mono> {
        let machines = self.machines.lock();
        let (a, b) = (machines.registry.next_deadline(), machines.announcer.next_deadline());
        [a, b].into_iter().flatten().min()
    }

    fn measure(&self) {
        let now = self.now();
        let streams = self.streams();
        let stale = streams.iter().filter(|stream| stream.seen_age(now) > STALE).count();
        let known = self.with_registry(|r, now| r.active().map_or(0, |_| r.entries(now).count()));
        let gauge = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.metrics.streams.set(gauge(streams.len()));
        self.metrics.stale.set(gauge(stale));
        self.metrics.registry_entries.set(gauge(known));
    }
}

fn set(map: &mut BTreeMap<NodeName, String>, node: &NodeName, text: &str) {
    if text.is_empty() {
        map.remove(node);
    } else {
        map.insert(node.clone(), text.to_owned());
    }
}

/// Own streams.
impl Spokes {
    /// Puts a new stream to the table. Afterwards it is admitted, or was told why not and ended.
    ///
    /// # Errors
    /// When there is a stream with the very same stamp already.
    pub fn open(&self, stream: &Arc<Stream>) -> Result<(), Status> {
        let key = (stream.spoke.clone(), stream.stamp);
        let now = self.now();
        let claim = Claim {
            spoke: stream.spoke.clone(),
            stamp: stream.stamp,
            connected_age: now.since(stream.connected),
            seen_age: Duration::ZERO,
            cert_not_after: stream.cert_not_after(),
        };
        let mut machines = self.machines.lock();
        if machines.live.contains_key(&key) {
            return Err(Status::already_exists("this dial of the spoke has a stream already"));
        }
        machines.live.insert(key, Arc::clone(stream));
        self.feed(&mut machines, registry::Event::Opened(claim));
        Ok(())
    }

    /// A heartbeat came.
    pub fn heard(&self, stream: &Stream) {
        let event = registry::Event::Heard(stream.spoke.clone(), stream.stamp);
        self.feed(&mut self.machines.lock(), event);
    }

    /// The certificate of a stream was renewed in place.
    pub fn renewed(&self, stream: &Stream, not_after: i64) {
        stream.set_cert_not_after(not_after);
        let event = registry::Event::Renewed(stream.spoke.clone(), stream.stamp, not_after);
        self.feed(&mut self.machines.lock(), event);
    }

    /// A stream takes no commands any more: its spoke said goodbye, or this node ends it.
    pub fn unroute(&self, stream: &Stream) {
        stream.leave();
        let mut machines = self.machines.lock();
        self.remove_route(&stream.spoke, stream.stamp);
        self.feed(&mut machines, registry::Event::Closed(stream.spoke.clone(), stream.stamp));
    }

    /// A stream ended. For one that was replaced, nothing but that.
    pub fn closed(&self, stream: &Stream) {
        self.unroute(stream);
        self.machines.lock().live.remove(&(stream.spoke.clone(), stream.stamp));
    }

    /// Ends a stream of this node with a status.
    pub fn end(&self, stream: &Arc<Stream>, status: Status) {
        self.unroute(stream);
        stream.end(End::Told(status));
        let stream = Arc::clone(stream);
        self.tasks.spawn_until_cancelled("cut", async move { stream.cut_after(LAST_WORDS).await });
    }

    fn remove_route(&self, spoke: &SpokeName, stamp: Stamp) {
        let mut routes = self.routes.write();
        if routes.get(spoke).is_some_and(|held| held.stamp == stamp) {
            routes.remove(spoke);
        }
    }

    /// Ends a stream that lost against another one.
    fn supersede(&self, machines: &Machines, lost: &Superseded) {
        let Some(stream) = machines.live.get(&(lost.spoke.clone(), lost.stamp)).cloned() else { return };
        self.metrics.superseded.inc();
        self.remove_route(&lost.spoke, lost.stamp);
        stream.leave();
        stream.tell(Frame::Superseded(proto::Superseded {
            by_epoch: lost.by.epoch.into_inner(),
            by_boot_id: Bytes::copy_from_slice(lost.by.boot.as_bytes()),
            alive: lost.alive,
        }));
        let moving = lost.by.boot == lost.stamp.boot;
        let finish = if stream.is_sent_away() { FINISH_SENT_AWAY } else { FINISH };
        self.tasks.spawn_until_cancelled("supersede", async move {
            if moving {
                drop(tokio::time::timeout(finish, stream.idle()).await);
            }
            stream.end(End::Superseded { moving });
            stream.cut_after(LAST_WORDS).await;
        });
    }
}

/// Other nodes.
impl Spokes {
    /// Takes the set that another node announced.
    pub async fn announced(&self, set: SpokeSet) -> Option<registry::Reply> {
        let answer = {
            let (send, answer) = oneshot::channel();
            let mut machines = self.machines.lock();
            machines.tickets = machines.tickets.wrapping_add(1);
            let ticket = Ticket::new(machines.tickets);
            machines.answers.insert(ticket, send);
            self.feed(&mut machines, registry::Event::Announced(ticket, set));
            machines.answers.remove(&ticket);
            answer
        };
        answer.await.ok()
    }

    /// The own set, for a pull.
    pub fn own_set(&self, term: Term) -> SpokeSet {
        let mut machines = self.machines.lock();
        let seq = machines.announcer.next_seq();
        let spokes = machines.registry.own_streams(self.now());
        SpokeSet { term, node: self.own.clone(), seq, spokes }
    }

    /// The active node said that these streams have to end.
    pub fn told(&self, term: Term, ended: Vec<Superseded>) {
        self.feed(&mut self.machines.lock(), registry::Event::Told(term, ended));
    }

    /// Feeds the registry.
    pub fn tell_registry(&self, event: registry::Event) {
        self.feed(&mut self.machines.lock(), event);
    }

    /// Brings the machines up to date with the cluster.
    pub fn look(&self) {
        let view = self.cluster.view();
        let members: BTreeSet<_> =
            self.cluster.members().iter().map(|member| NodeName::new(&member.node.0)).collect();
        self.keep_members(&members, view.active.is_some());
        let leader = view.leader.as_ref();
        let (active, term) = match (view.active, leader) {
            (Some(term), _) => (Active::Here, term),
            (None, Some(leader)) if leader.node.0 != self.own.as_str() => {
                (Active::Peer(NodeName::new(&leader.node.0)), leader.term)
            }
            _ => (Active::Unknown, Term::default()),
        };
        let mut machines = self.machines.lock();
        self.feed(&mut machines, registry::Event::Members(members));
        let role = match view.active {
            Some(term) => registry::Event::Activated(term),
            None => registry::Event::Deactivated,
        };
        self.feed(&mut machines, role);
        self.feed_announcer(&mut machines, announcer::Event::Active(active, term));
    }

    fn feed(&self, machines: &mut MutexGuard<'_, Machines>, event: registry::Event) {
        let mut effects = Vec::new();
        machines.registry.on(self.now(), event, &mut effects);
        for effect in effects {
            self.perform(machines, effect);
        }
        self.moved.notify_one();
    }

    fn perform(&self, machines: &mut MutexGuard<'_, Machines>, effect: registry::Effect) {
        use registry::Effect;
        match effect {
            Effect::Admit(spoke, stamp) => {
                if let Some(stream) = machines.live.get(&(spoke.clone(), stamp)) {
                    self.routes.write().insert(spoke, Arc::clone(stream));
                }
            }
            Effect::End(lost) => self.supersede(machines, &lost),
            Effect::Tell(node, term, lost) => self.tell(node, term, lost),
            Effect::Pull(node, term) => self.pull(node, term),
            Effect::Answer(ticket, reply) => {
                if let Some(answer) = machines.answers.remove(&ticket) {
                    drop(answer.send(reply));
                }
            }
            Effect::Announce(trigger) => {
                self.feed_announcer(machines, announcer::Event::Changed(trigger));
            }
            Effect::Wake(_) => self.looks.send_modify(|n| *n = n.wrapping_add(1)),
            Effect::Report(report) => self.report(&report),
        }
    }

    fn feed_announcer(&self, machines: &mut MutexGuard<'_, Machines>, event: announcer::Event) {
        let mut effects = Vec::new();
        machines.announcer.on(self.now(), event, &mut effects);
        for effect in effects {
            match effect {
                announcer::Effect::Send { to, term, seq, trigger } => {
                    self.metrics.announce.get_or_create(&Announced { trigger: trigger.into() }).inc();
                    let spokes = machines.registry.own_streams(self.now());
                    let set = SpokeSet { term, node: self.own.clone(), seq, spokes };
                    let Some(me) = self.me.upgrade() else { continue };
                    let task = self.tasks.spawn("announce", async move { me.announce(to, set).await });
                    machines.sends.insert(seq, task);
                }
                announcer::Effect::GiveUp(seq) => {
                    if let Some(task) = machines.sends.remove(&seq) {
                        task.abort();
                    }
                }
            }
        }
        self.moved.notify_one();
    }

    async fn announce(self: Arc<Self>, to: NodeName, set: SpokeSet) {
        let (seq, cancelled) = (set.seq, self.tasks.token());
        let outcome = match (self.calls(), self.address_of(&to)) {
            (Some(calls), Some(address)) => {
                let sent = cancelled.run_until_cancelled(calls.announce(&self, &to, &address, set)).await;
                sent.unwrap_or(announcer::Outcome::Failed)
            }
            _ => announcer::Outcome::Failed,
        };
        let mut machines = self.machines.lock();
        machines.sends.remove(&seq);
        self.feed_announcer(&mut machines, announcer::Event::Ended(seq, outcome));
    }

    fn tell(&self, node: NodeName, term: Term, lost: Vec<Superseded>) {
        let Some(me) = self.me.upgrade() else { return };
        self.tasks.spawn_until_cancelled("tell", async move {
            let (Some(calls), Some(address)) = (me.calls(), me.address_of(&node)) else { return };
            if let Err(error) = calls.end_streams(&address, term, &lost).await {
                tracing::debug!(peer = %node, %error, "telling a node of superseded streams failed");
            }
        });
    }

    fn pull(&self, node: NodeName, term: Term) {
        let Some(me) = self.me.upgrade() else { return };
        self.tasks.spawn_until_cancelled("pull", async move {
            let set = match (me.calls(), me.address_of(&node)) {
                (Some(calls), Some(address)) => calls.pull(&me, &node, &address, term).await,
                _ => None,
            };
            me.tell_registry(registry::Event::Pulled(node, term, set));
        });
    }

    fn report(&self, report: &Report) {
        match report {
            Report::Owned(spoke, node, stamp) => {
                tracing::info!(%spoke, owner = %node, epoch = stamp.epoch.into_inner(), "a spoke has an owner");
                if let Some(returned) = self.returned.get() {
                    returned(spoke);
                }
            }
            Report::Lost(spoke, node, cause) => {
                if *cause == registry::Cause::Expired {
                    self.metrics.registry_expired.inc();
                }
                tracing::info!(%spoke, owner = %node, ?cause, "a spoke has no owner");
            }
            Report::Conflict(spoke, node) => {
                self.metrics.ownership_conflict.inc();
                tracing::warn!(%spoke, peer = %node, "two nodes claim the same dial of a spoke");
            }
            Report::TwoDaemons(spoke) => {
                tracing::error!("two daemons use the identity of spoke {spoke}");
            }
            Report::Primed(after, complete) => {
                self.metrics.prime_seconds.observe(after.as_secs_f64());
                tracing::info!(after_ms = after.as_millis(), complete, "the streams of all nodes are known");
            }
        }
    }
}
