//! The daemons, and the streams between them and the nodes: half-open ones too.

use std::time::Duration;

use holdfast_core::SpokeName;
use holdfast_core::epoch::Dialer;
use holdfast_core::epoch::dialer::{Effect, End, Event, Setup, Timing};
use holdfast_core::ownership::registry;
use holdfast_core::ownership::{BootId, Claim, Stamp};
use holdfast_core::time::Spread;
use holdfast_core::{Epoch, Mono};

use super::{AHEAD, EPOCH_GROWS, Happening, Plant, World};

/// A stream, as both sides and the wire have it.
#[derive(Clone, Copy, Debug)]
pub struct Conn {
    pub daemon: usize,
    pub life: u32,
    pub node: usize,
    pub node_life: u32,
    /// Whether anything still passes.
    pub linked: bool,
}

pub struct Daemon {
    pub name: SpokeName,
    boot: BootId,
    pub life: u32,
    pub dialer: Dialer,
    addresses: Vec<String>,
    /// The session file.
    file: Epoch,
    dialled: Epoch,
    ticks: Option<Mono>,
}

impl Daemon {
    pub fn new(id: u8, name: u8, members: usize, spread: &mut Spread) -> Self {
        let text = format!("spoke-{name}");
        let Ok(name) = SpokeName::parse(&text) else { panic!("{text}") };
        let addresses: Vec<_> = if spread.below(2) == 0 {
            vec!["balancer".to_owned()]
        } else {
            (0..members).map(|node| node.to_string()).collect()
        };
        let file = Epoch::new(1000 + u64::from(id) * spread.below(50));
        let dialer = Dialer::new(setup(&addresses, BootId::default(), file, 0));
        let boot = BootId::default();
        Self { name, boot, life: 0, dialer, addresses, file, dialled: Epoch::new(0), ticks: None }
    }

    pub const fn stamp(&self, epoch: Epoch) -> Stamp {
        Stamp { epoch, boot: self.boot }
    }
}

fn setup(addresses: &[String], boot: BootId, last: Epoch, seed: u64) -> Setup {
    Setup { timing: Timing::default(), addresses: addresses.to_vec(), boot, last, once: false, seed }
}

impl World {
    /// Starts a daemon, after a crash if it runs.
    pub fn start_daemon(&mut self, d: usize) {
        let mut boot = [d as u8; 16];
        boot[..8].copy_from_slice(&self.spread.bits().to_be_bytes());
        let seed = self.spread.bits();
        let daemon = &mut self.daemons[d];
        let gone = daemon.life;
        daemon.life += 1;
        (daemon.boot, daemon.ticks) = (BootId::new(boot), None);
        daemon.dialer = Dialer::new(setup(&daemon.addresses, daemon.boot, daemon.file, seed));
        let own = self.conns.iter().filter(|(_, conn)| conn.daemon == d && conn.life == gone);
        for key in own.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.unlink(&key);
        }
        self.dialer(d, Event::Start);
    }

    pub fn dialer(&mut self, d: usize, event: Event) {
        let (now, mut out) = (self.now, Vec::new());
        self.daemons[d].dialer.on(now, event, &mut out);
        for effect in out {
            self.dialer_effect(d, effect);
        }
        let daemon = &mut self.daemons[d];
        let Some(at) = daemon.dialer.next_deadline() else { return };
        if daemon.ticks.is_none_or(|planned| at < planned) {
            daemon.ticks = Some(at);
            let life = daemon.life;
            self.at(at.max(now), Happening::DaemonTick { daemon: d, life });
        }
    }

    pub fn daemon_tick(&mut self, d: usize, life: u32) {
        if self.daemons[d].life != life {
            return;
        }
        self.daemons[d].ticks = None;
        self.dialer(d, Event::Tick);
        let late = self.daemons[d].dialer.next_deadline().is_some_and(|at| at < self.now);
        if late {
            self.fail(AHEAD);
        }
    }

    fn dialer_effect(&mut self, d: usize, effect: Effect) {
        let life = self.daemons[d].life;
        match effect {
            Effect::Persist(epoch) => {
                if self.plant != Plant::ForgetEpoch {
                    self.daemons[d].file = epoch;
                }
                let delay = self.millis(5);
                self.later(delay, Happening::Persisted { daemon: d, life, epoch });
            }
            Effect::Dial(epoch, address) => self.dial(d, epoch, address),
            Effect::Close(epoch, _) => {
                let key = (self.daemons[d].name.clone(), self.daemons[d].stamp(epoch));
                self.unlink(&key);
            }
            Effect::Abandon(_) | Effect::Report(_) | Effect::Exit(_) => {}
        }
    }

    fn dial(&mut self, d: usize, epoch: Epoch, address: String) {
        let daemon = &mut self.daemons[d];
        let life = daemon.life;
        if epoch <= std::mem::replace(&mut daemon.dialled, epoch) {
            self.fail(EPOCH_GROWS);
        }
        let up: Vec<_> = (0..self.nodes.len()).filter(|node| self.nodes[*node].up).collect();
        let node = match address.parse() {
            Ok(node) => Some(node),
            Err(_) if up.is_empty() => None,
            Err(_) => Some(up[self.spread.below(up.len() as u64) as usize]),
        };
        let reached = node.filter(|node: &usize| self.nodes[*node].up && !self.chance(12));
        let Some(node) = reached else {
            let delay = self.millis(1500);
            self.later(delay, Happening::EndAtSpoke { daemon: d, life, epoch, end: End::Failed });
            return;
        };
        let delay = self.delay().min(Duration::from_secs(4));
        self.later(delay, Happening::Arrive { daemon: d, life, epoch, node });
    }

    pub fn persisted(&mut self, d: usize, life: u32, epoch: Epoch) {
        if self.daemons[d].life == life {
            self.dialer(d, Event::Persisted(epoch, true));
        }
    }

    /// A dial's hello reaches a node.
    pub fn arrive(&mut self, d: usize, life: u32, epoch: Epoch, node: usize) {
        let fail = |end| Happening::EndAtSpoke { daemon: d, life, epoch, end };
        if self.daemons[d].life != life {
            return;
        }
        if !self.nodes[node].up {
            self.later(Duration::from_millis(1), fail(End::Failed));
            return;
        }
        if self.pinned && self.nodes[node].registry.active().is_none() {
            let leader = self.nodes[node].believes.filter(|leader| *leader != node);
            let end = leader.map_or(End::Failed, |leader| End::Redirected(leader.to_string()));
            self.later(Duration::from_millis(1), fail(end));
            return;
        }
        let (spoke, stamp) = (self.daemons[d].name.clone(), self.daemons[d].stamp(epoch));
        let node_life = self.nodes[node].life;
        let conn = Conn { daemon: d, life, node, node_life, linked: true };
        self.conns.insert((spoke.clone(), stamp), conn);
        let zero = Duration::ZERO;
        let claim =
            Claim { spoke: spoke.clone(), stamp, connected_age: zero, seen_age: zero, cert_not_after: 0 };
        self.later(Duration::from_secs(15), Happening::Heartbeat { spoke, stamp });
        self.registry(node, registry::Event::Opened(claim));
    }

    pub fn welcome(&mut self, spoke: &SpokeName, stamp: Stamp) {
        let Some(conn) = self.conns.get(&(spoke.clone(), stamp)).copied() else { return };
        let happening = Happening::Opened { daemon: conn.daemon, life: conn.life, epoch: stamp.epoch };
        if conn.linked {
            let delay = self.delay().min(Duration::from_millis(500));
            self.later(delay, happening);
        }
    }

    pub fn opened(&mut self, d: usize, life: u32, epoch: Epoch) {
        if self.daemons[d].life == life {
            let told = (0..self.nodes.len()).map(|node| node.to_string()).collect();
            let told = if self.daemons[d].addresses.len() == 1 { Vec::new() } else { told };
            self.dialer(d, Event::Opened(epoch, told));
        }
    }

    pub fn end_at_spoke(&mut self, d: usize, life: u32, epoch: Epoch, end: End) {
        if self.daemons[d].life == life {
            self.dialer(d, Event::Ended(epoch, end));
        }
    }

    pub fn end_at_node(&mut self, node: usize, life: u32, spoke: SpokeName, stamp: Stamp) {
        if self.nodes[node].life == life && self.nodes[node].up {
            self.nodes[node].streams.remove(&(spoke.clone(), stamp));
            self.registry(node, registry::Event::Closed(spoke, stamp));
        }
    }

    /// The node ends a stream: says why, and closes.
    pub fn cut_stream(&mut self, key: &(SpokeName, Stamp), end: End) {
        let Some(conn) = self.conns.remove(key) else { return };
        let (d, life, epoch) = (conn.daemon, conn.life, key.1.epoch);
        let delay = if conn.linked { self.delay().min(Duration::from_secs(1)) } else { self.millis(20_000) };
        let end = if conn.linked { end } else { End::Failed };
        self.later(delay, Happening::EndAtSpoke { daemon: d, life, epoch, end });
    }

    /// The spoke's side is gone; the node sees it at once, or when its keepalive fails.
    fn unlink(&mut self, key: &(SpokeName, Stamp)) {
        let Some(conn) = self.conns.remove(key) else { return };
        let delay = if self.chance(3) { self.millis(20_000) } else { self.millis(5) };
        let (spoke, stamp) = key.clone();
        self.later(delay, Happening::EndAtNode { node: conn.node, life: conn.node_life, spoke, stamp });
    }

    /// Nothing passes any more, and each side notices in its own time.
    pub fn break_stream(&mut self) {
        let linked: Vec<_> =
            self.conns.iter().filter(|(_, conn)| conn.linked).map(|(key, _)| key.clone()).collect();
        if linked.is_empty() {
            return;
        }
        let key = linked[self.spread.below(linked.len() as u64) as usize].clone();
        let Some(conn) = self.conns.get_mut(&key) else { return };
        conn.linked = false;
        let conn = *conn;
        let (spoke, stamp) = key;
        let (here, there) = (self.millis(20_000), self.millis(20_000));
        self.later(here, Happening::EndAtNode { node: conn.node, life: conn.node_life, spoke, stamp });
        let (daemon, life, epoch) = (conn.daemon, conn.life, stamp.epoch);
        self.later(there, Happening::EndAtSpoke { daemon, life, epoch, end: End::Failed });
    }

    /// A node died: its spokes see a reset, or nothing until their keepalive fails.
    pub fn lose_streams(&mut self, node: usize) {
        let lost: Vec<_> =
            self.conns.iter().filter(|(_, conn)| conn.node == node).map(|(key, _)| key.clone()).collect();
        for key in lost {
            let Some(conn) = self.conns.remove(&key) else { continue };
            let delay = if self.chance(3) { self.millis(20_000) } else { self.millis(5) };
            let (daemon, life, epoch) = (conn.daemon, conn.life, key.1.epoch);
            self.later(delay, Happening::EndAtSpoke { daemon, life, epoch, end: End::Failed });
        }
    }

    pub fn drain_node(&mut self, node: usize) {
        let streams: Vec<_> = self.nodes[node].streams.iter().cloned().collect();
        for key in streams {
            let Some(conn) = self.conns.get(&key).filter(|conn| conn.linked).copied() else { continue };
            let delay = self.delay();
            let (daemon, life, epoch) = (conn.daemon, conn.life, key.1.epoch);
            self.later(delay, Happening::Drain { daemon, life, epoch });
        }
    }

    pub fn drain(&mut self, d: usize, life: u32, epoch: Epoch) {
        if self.daemons[d].life == life {
            let to = self.spread.below(2 * self.nodes.len() as u64) as usize;
            let to = (to < self.nodes.len()).then(|| to.to_string());
            self.dialer(d, Event::Drain(epoch, to));
        }
    }

    pub fn heartbeat(&mut self, spoke: SpokeName, stamp: Stamp) {
        let Some(conn) = self.conns.get(&(spoke.clone(), stamp)).filter(|conn| conn.linked).copied() else {
            return;
        };
        self.later(Duration::from_secs(15), Happening::Heartbeat { spoke: spoke.clone(), stamp });
        let node = &self.nodes[conn.node];
        if node.life == conn.node_life && node.up && node.paused_until(self.now).is_none() {
            self.registry(conn.node, registry::Event::Heard(spoke, stamp));
        }
    }
}
