//! Tells what happens to the nodes while the platform runs, and starts a lost one again.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use holdfast_client::Client;
use tokio::time::{Instant, sleep};

use super::nodes::{Node, Nodes};
use crate::output::Printer;

/// How long a lost node stays away: long enough to see that the others go on without it.
const ABSENCE: Duration = Duration::from_secs(10);

/// Watches until the caller stops it.
pub async fn run(nodes: &mut Nodes, print: Printer) -> Result<()> {
    let origin = Instant::now();
    let clients = nodes.iter().map(probe).collect::<Result<Vec<_>>>()?;
    let mut watch = Watch { origin, clients, active: None, lost_at: None, away: BTreeMap::new(), print };
    loop {
        watch.look_at_processes(nodes)?;
        watch.look_for_active(nodes).await;
        sleep(Duration::from_millis(50)).await;
    }
}

fn probe(node: &Node) -> Result<Client> {
    Ok(Client::builder().addresses([node.api()]).timeout(Duration::from_millis(300)).build()?)
}

struct Watch {
    origin: Instant,
    clients: Vec<Client>,
    active: Option<usize>,
    lost_at: Option<Instant>,
    away: BTreeMap<usize, Instant>,
    print: Printer,
}

impl Watch {
    fn tell(&self, text: &str) {
        self.print.progress(format!("[{:8.2} s] {text}", self.origin.elapsed().as_secs_f64()));
    }

    fn look_at_processes(&mut self, nodes: &mut Nodes) -> Result<()> {
        let mut ended = Vec::new();
        for (index, node) in nodes.iter_mut().enumerate() {
            if let Some(status) = node.ended() {
                ended.push((index, format!("{} ended ({status})", node.id)));
            }
        }
        for (index, text) in ended {
            self.tell(&text);
            self.away.insert(index, Instant::now());
            if self.active == Some(index) {
                self.active = None;
                self.lost_at = Some(Instant::now());
            }
        }
        let due = |since: &Instant| since.elapsed() >= ABSENCE;
        let back: Vec<usize> =
            self.away.iter().filter(|(_, since)| due(since)).map(|(index, _)| *index).collect();
        for index in back {
            self.away.remove(&index);
            nodes.start(index)?;
            let id = nodes.iter().nth(index).map(|n| n.id.clone()).unwrap_or_default();
            self.tell(&format!("{id} is started again"));
        }
        Ok(())
    }

    async fn look_for_active(&mut self, nodes: &Nodes) {
        // The one that was active last is asked first: at rest that is the only question.
        let order = self.active.into_iter().chain(0..self.clients.len());
        for index in order {
            let (Some(client), Some(node)) = (self.clients.get(index), nodes.iter().nth(index)) else {
                continue;
            };
            if node.pid().is_some() && client.read("sys/health").await.is_ok() {
                self.found(index, &node.id);
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
}
