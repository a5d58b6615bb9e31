//! Tells what happens to nodes and spokes while the platform runs, and starts a lost one again.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use holdfast_client::Client;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::nodes::Node;
use super::platform::{Platform, Ready};
use super::process::Daemon;
use crate::output::Printer;

/// How long a lost process stays away: long enough to see that the others go on without it.
const ABSENCE: Duration = Duration::from_secs(10);
/// How often processes and the active node are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How often the hub is asked where the spokes are.
const ASK_SPOKES: Duration = Duration::from_millis(500);

/// Watches until the caller stops it.
pub async fn run(platform: &mut Platform, ready: &Ready, print: Printer) -> Result<()> {
    let now = Instant::now();
    let probe =
        |node: &Node| Client::builder().addresses([node.api()]).timeout(Duration::from_millis(300)).build();
    let mut watch = Watch {
        origin: now,
        probes: platform.nodes.iter().map(probe).collect::<Result<_, _>>()?,
        root: ready.access.client(&platform.nodes)?,
        active: None,
        lost_at: None,
        away: BTreeMap::new(),
        places: BTreeMap::new(),
        asked: now,
        print,
    };
    loop {
        if watch.look_at_processes(platform)? {
            platform.write_card(ready)?;
        }
        watch.look_for_active(platform).await;
        watch.look_for_spokes(platform).await;
        sleep(LOOK).await;
    }
}

struct Watch {
    origin: Instant,
    probes: Vec<Client>,
    root: Client,
    active: Option<usize>,
    lost_at: Option<Instant>,
    away: BTreeMap<String, Instant>,
    places: BTreeMap<String, String>,
    asked: Instant,
    print: Printer,
}

impl Watch {
    fn tell(&self, text: &str) {
        self.print.progress(format!("[{:8.2} s] {text}", self.origin.elapsed().as_secs_f64()));
    }

    /// Whether a process began or ended.
    fn look_at_processes(&mut self, platform: &mut Platform) -> Result<bool> {
        let active =
            self.active.and_then(|index| platform.nodes.iter().nth(index)).map(|n| n.id().to_owned());
        let mut changed = false;
        for daemon in platform.nodes.daemons().chain(platform.spokes.daemons()) {
            changed |= self.look_at(daemon, active.as_deref())?;
        }
        Ok(changed)
    }

    fn look_at(&mut self, daemon: &mut Daemon, active: Option<&str>) -> Result<bool> {
        if let Some(status) = daemon.ended() {
            self.tell(&format!("{} ended ({status})", daemon.id));
            self.away.insert(daemon.id.clone(), Instant::now());
            if active == Some(&daemon.id) {
                self.active = None;
                self.lost_at = Some(Instant::now());
            }
            return Ok(true);
        }
        if self.away.get(&daemon.id).is_none_or(|since| since.elapsed() < ABSENCE) {
            return Ok(false);
        }
        self.away.remove(&daemon.id);
        daemon.start()?;
        self.tell(&format!("{} is started again, as process {}", daemon.id, daemon.shown_pid()));
        Ok(true)
    }

    async fn look_for_active(&mut self, platform: &Platform) {
        // The one that was active last is asked first: at rest that is the only question.
        let order = self.active.into_iter().chain(0..self.probes.len());
        for index in order {
            let (Some(client), Some(node)) = (self.probes.get(index), platform.nodes.iter().nth(index))
            else {
                continue;
            };
            if node.daemon.pid().is_some() && client.read("sys/health").await.is_ok() {
                self.found(index, node.id());
                return;
            }
        }
        if self.active.take().is_some() {
            self.lost_at = Some(Instant::now());
            self.tell("no node is active");
        }
    }

    fn found(&mut self, index: usize, id: &str) {
        if self.active == Some(index) {
            return;
        }
        let after = self
            .lost_at
            .take()
            .map(|at| format!(", {:.2} s after the last one was lost", at.elapsed().as_secs_f64()));
        self.tell(&format!("{id} is active{}", after.unwrap_or_default()));
        self.active = Some(index);
    }

    /// Tells which node a spoke's stream ends on, whenever that changes.
    async fn look_for_spokes(&mut self, platform: &Platform) {
        if platform.spokes.len() == 0 || self.active.is_none() || self.asked.elapsed() < ASK_SPOKES {
            return;
        }
        self.asked = Instant::now();
        // Without a majority this takes as long as a request is held; nothing else is to be told then.
        let Ok(view) = self.root.read("relay/spokes").await else { return };
        let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        let entries = view.data().get("spokes").and_then(Value::as_array).into_iter().flatten();
        let now: BTreeMap<_, _> =
            entries.filter_map(|entry| Some((text(entry, "name")?, text(entry, "node_id")?))).collect();
        for (name, node) in &now {
            if self.places.get(name) != Some(node) {
                self.tell(&format!("{name} is connected to {node}"));
            }
        }
        for name in self.places.keys().filter(|name| !now.contains_key(*name)) {
            self.tell(&format!("{name} is not connected"));
        }
        self.places = now;
    }
}
