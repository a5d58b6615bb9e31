//! Packets between nodes are dropped: who is cut off stops being active, and its return disturbs nobody.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::kubernetes::ApiServer;
use holdfast_tests::netns::Network;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::task::JoinSet;

/// The label that a Service selects by.
const LABEL: &str = "holdfast.dev/active";

/// Runs a scenario on a network of three hosts.
fn on_a_network<F: Future<Output = ()>>(scenario: impl FnOnce(Arc<Network>, Options) -> F) {
    let network = Arc::new(Network::enter(3));
    let extra = "metrics.unauthenticated = true".to_owned();
    let options = Options { network: Some(network.clone()), extra, ..Options::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(scenario(network, options));
}

/// Watches every node for the whole of a scenario: in which terms did which node say that it was active?
struct Witness {
    stop: Arc<AtomicBool>,
    watching: JoinSet<BTreeSet<(u64, usize)>>,
}

impl Witness {
    fn start(cluster: &Cluster) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut watching = JoinSet::new();
        for (index, node) in cluster.nodes.iter().enumerate() {
            let (api, stop) = (node.api(), stop.clone());
            watching.spawn(async move {
                let mut seen = BTreeSet::new();
                while !stop.load(Ordering::Relaxed) {
                    // Both numbers of one answer come from one view.
                    let reply = api.try_send("GET", "sys/metrics", None).await.unwrap();
                    let text = String::from_utf8(reply.bytes).unwrap();
                    let value = |name: &str| {
                        let line = text.lines().find(|l| l.starts_with(&format!("holdfast_hub_{name} ")));
                        line.and_then(|l| l.split(' ').nth(1)?.parse::<u64>().ok())
                    };
                    if value("active") == Some(1) {
                        seen.insert((value("term").unwrap(), index));
                    }
                    // sleep: often enough to see what lasts as long as an election, and no busy loop.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                seen
            });
        }
        Self { stop, watching }
    }

    /// Fails when two nodes were active in one term; returns how many terms there were.
    async fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let seen: BTreeSet<_> = self.watching.join_all().await.into_iter().flatten().collect();
        let terms: BTreeSet<u64> = seen.iter().map(|(term, _)| *term).collect();
        assert_eq!(terms.len(), seen.len(), "two nodes were active in one term: {seen:?}");
        terms.len()
    }
}

async fn term(cluster: &Cluster, index: usize) -> u64 {
    let text = cluster.api(index).get("sys/metrics?format=prometheus").await.expect(200).bytes;
    let text = String::from_utf8(text).unwrap();
    let line =
        text.lines().find(|l| l.starts_with("holdfast_hub_term")).expect("the term is a metric").to_owned();
    line.split_whitespace().next_back().unwrap().parse::<f64>().unwrap() as u64
}

#[test]
fn an_isolated_active_node_stops_being_active() {
    on_a_network(|network, mut options| async move {
        // The nodes reach it whatever is cut between them. Pods are named as the nodes are.
        let pods = ApiServer::start("10.77.0.254", &["n0", "n1", "n2"]).await;
        options.extra = format!("{}\n{}", options.extra, pods.config());
        let mut cluster = Cluster::start_with(options).await;
        let active = cluster.active().await;
        cluster.api(active).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
        let names: Vec<_> = cluster.nodes.iter().map(|node| node.id.clone()).collect();
        let selects = |node: usize| {
            (pods.selected(LABEL, "true") == [names[node].as_str()]
                && pods.selected(LABEL, "false").len() == 2)
                .then_some(())
        };
        let selected = async |node: usize| {
            let selects = || async { selects(node) };
            eventually_async(PATIENCE, "the active pod alone is selected", selects).await;
        };
        selected(active).await;
        let isolated = cluster.nodes[active].api();
        let witness = Witness::start(&cluster);
        network.isolate(active);
        let cut = Instant::now();
        let gone = || async { (isolated.health().await? != 200).then_some(()) };
        // The product promises one second; a shared machine gets three times that.
        eventually_async(Duration::from_secs(3), "the isolated node is not active", gone).await;
        println!("not active {:?} after the cut", cut.elapsed());
        let reply = isolated.get("sys/leader").await.expect(200);
        assert_eq!(reply.body["is_self"], false);
        let unlabelled = async || (pods.label(&names[active], LABEL)? == "false").then_some(());
        eventually_async(Duration::from_secs(3), "its pod is not selected", unlabelled).await;
        assert_eq!(isolated.metric("holdfast_hub_active").await, 0);
        let refused = cluster.api(active).put("kv/late", json!({"v": 1})).await;
        assert_eq!(refused.status, 503, "{}", refused.body);

        let others = cluster.others(active);
        let survivor = cluster.api(others[0]);
        let writes = || async { (survivor.put("kv/new", json!({"v": 1})).await.status == 204).then_some(()) };
        eventually_async(PATIENCE, "the majority takes writes", writes).await;
        let leader = cluster.active().await;
        selected(leader).await;
        let before = term(&cluster, leader).await;

        network.heal(active);
        let follows = || async { (isolated.health().await? == 429).then_some(()) };
        eventually_async(PATIENCE, "the returned node follows", follows).await;
        cluster.api(active).get("kv/new").await.expect(200);
        cluster.api(active).get("kv/late").await.expect(404);
        assert_eq!(cluster.active().await, leader, "the leader was not deposed");
        assert_eq!(term(&cluster, leader).await, before, "the term did not rise");
        assert!(witness.end().await >= 2, "the old leader and the new one were seen");

        // The kubelet replaced the token; whoever goes down takes its label along.
        pods.rotate("service-account-token-2");
        cluster.nodes[leader].process().signal(Signal::SIGTERM);
        assert_eq!(cluster.nodes[leader].process().wait(PATIENCE).code(), Some(0));
        let next = cluster.active().await;
        selected(next).await;
    });
}

#[test]
fn an_isolated_standby_never_raises_terms() {
    on_a_network(|network, options| async move {
        let cluster = Cluster::start_with(options).await;
        let active = cluster.active().await;
        cluster.api(active).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
        let standby = cluster.others(active)[0];
        let before = term(&cluster, active).await;
        network.isolate(standby);
        // Many election timeouts pass while the others write.
        let begun = Instant::now();
        let mut n = 0;
        while begun.elapsed() < Duration::from_secs(5) {
            cluster.api(active).put(&format!("kv/k{n}"), json!({"n": n})).await.expect(204);
            n += 1;
        }
        network.heal(standby);
        let api = cluster.api(standby);
        let caught_up = || async { (api.get(&format!("kv/k{}", n - 1)).await.status == 200).then_some(()) };
        eventually_async(PATIENCE, "the returned standby serves", caught_up).await;
        assert_eq!(cluster.active().await, active);
        assert_eq!(term(&cluster, active).await, before, "the term did not rise");
        cluster.check_logs(&[]);
    });
}
