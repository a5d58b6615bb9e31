//! P-01 and P-02: how long logins stop when the active node dies or steps down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use holdfast_tests::api::Api;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::Login;
use serde_json::json;
use tokio::task::JoinSet;

use super::creds;
use crate::etcd::{Etcd, EtcdApi, put};
use crate::load::percentile;
use crate::report::{Row, ms};

/// When the loss happened, and each probe's end and outcome.
struct Probe {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Vec<(Instant, bool)>>,
}

impl Probe {
    /// Asks every 10 ms through each API; a slow answer does not hold up the next question.
    fn start(apis: Vec<Api>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for api in apis {
            let stop = stop.clone();
            tasks.spawn(async move {
                let mut asked = JoinSet::new();
                while !stop.load(Ordering::Relaxed) {
                    let api = api.clone();
                    asked.spawn(async move {
                        let issued = Login::issue(&api, creds::GROUP).await.is_some();
                        (Instant::now(), issued)
                    });
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                asked.join_all().await
            });
        }
        Self { stop, tasks }
    }

    /// All answers in order of their end.
    async fn finish(self) -> Vec<(Instant, bool)> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all: Vec<_> = self.tasks.join_all().await.into_iter().flatten().collect();
        all.sort_by_key(|(at, _)| *at);
        all
    }
}

async fn rig() -> (Cluster, PostgresServer) {
    let (cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let active = cluster.active().await;
    creds::setup(&cluster.api(active), &database).await;
    (cluster, database)
}

/// P-01.
pub async fn kill(rounds: usize) -> Vec<Row> {
    let (mut cluster, _database) = rig().await;
    let mut ours = Vec::new();
    for round in 0..rounds {
        let active = cluster.active().await;
        let apis = cluster.others(active).into_iter().map(|i| cluster.api(i)).collect();
        let killed = Instant::now();
        cluster.nodes[active].kill();
        let probe = Probe::start(apis);
        let survivor = cluster.api(cluster.others(active)[0]);
        while Login::issue(&survivor, creds::GROUP).await.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let answers = probe.finish().await;
        let first = answers.iter().find(|(_, issued)| *issued).map(|(at, _)| at.duration_since(killed));
        ours.push(first.unwrap_or(killed.elapsed()));
        eprintln!("P-01 {}/{rounds}: first login after {}", round + 1, ms(*ours.last().unwrap()));
        cluster.nodes[active].start();
        cluster.nodes[active].wait_listening().await;
        cluster.wait_complete().await;
        caught_up(&cluster).await;
    }
    drop(cluster);
    let theirs = etcd_kill(rounds.min(8)).await;
    ours.sort();
    let (p50, p95, max) = (percentile(&ours, 50.0), percentile(&ours, 95.0), percentile(&ours, 100.0));
    let kept = p95 <= Duration::from_millis(1500)
        && max <= Duration::from_secs(3)
        && p50 <= percentile(&theirs, 50.0);
    vec![Row::new(
        "P-01",
        "kill -9 of the active node, a login asked for every 10 ms through both survivors",
        format!("first login p50 {} p95 {} max {}, {} rounds", ms(p50), ms(p95), ms(max), ours.len()),
        format!("etcd first put p50 {}, {} rounds", ms(percentile(&theirs, 50.0)), theirs.len()),
        "p95 <= 1.5 s, max <= 3 s, p50 <= etcd's",
        kept,
    )]
}

/// Waits until every node has applied what the active one had committed: the next loss then finds a whole cluster.
pub async fn caught_up(cluster: &Cluster) {
    let index = |i: usize, field: &'static str| async move {
        cluster.api(i).get("sys/leader").await.body[field].as_u64().unwrap_or_default()
    };
    let committed = index(cluster.active().await, "raft_committed_index").await;
    for i in 0..cluster.nodes.len() {
        eventually_async(PATIENCE, "a node catches up", || async {
            (index(i, "raft_applied_index").await >= committed).then_some(())
        })
        .await;
    }
}

async fn etcd_kill(rounds: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    for round in 0..rounds {
        let mut etcd = Etcd::start().await;
        let leader = etcd.leader().await;
        let survivor = (leader + 1) % 3;
        let killed = Instant::now();
        etcd.kill(leader);
        // As on our side: a question every 10 ms, and a slow answer does not hold up the next.
        let api = EtcdApi::new(etcd.url(survivor));
        let mut asked = JoinSet::new();
        let took = loop {
            let api = api.clone();
            asked.spawn(async move { put(&api, "after", "1").await.then(|| killed.elapsed()) });
            tokio::time::sleep(Duration::from_millis(10)).await;
            let mut answered = std::iter::from_fn(|| asked.try_join_next());
            if let Some(took) = answered.find_map(|answer| answer.ok().flatten()) {
                break took;
            }
        };
        times.push(took);
        eprintln!("P-01 etcd {}/{rounds}: first put after {}", round + 1, ms(took));
    }
    times.sort();
    times
}

/// P-02.
pub async fn step_down(rounds: usize) -> Vec<Row> {
    let (cluster, _database) = rig().await;
    let (mut gaps, mut failed) = (Vec::new(), 0);
    for round in 0..rounds {
        let active = cluster.active().await;
        let probe = Probe::start(cluster.others(active).into_iter().map(|i| cluster.api(i)).collect());
        tokio::time::sleep(Duration::from_millis(300)).await;
        let begun = Instant::now();
        cluster.api(active).put("sys/step-down", json!({})).await.expect(204);
        while cluster.active().await == active && begun.elapsed() < Duration::from_secs(10) {}
        tokio::time::sleep(Duration::from_millis(500)).await;
        let answers = probe.finish().await;
        failed += answers.iter().filter(|(_, issued)| !issued).count();
        let good: Vec<_> = answers.iter().filter(|(_, issued)| *issued).map(|(at, _)| *at).collect();
        gaps.push(good.windows(2).map(|w| w[1] - w[0]).max().unwrap_or_default());
        eprintln!("P-02 {}/{rounds}: longest gap {}", round + 1, ms(*gaps.last().unwrap()));
        // A node that stepped down does not stand for ten seconds; the next round needs a full choice.
        tokio::time::sleep(Duration::from_secs(11)).await;
    }
    gaps.sort();
    let (p50, p95) = (percentile(&gaps, 50.0), percentile(&gaps, 95.0));
    vec![Row::new(
        "P-02",
        "step-down, the same probe",
        format!("longest gap p50 {} p95 {}, {failed} failed, {} rounds", ms(p50), ms(p95), gaps.len()),
        "-".into(),
        "p95 <= 700 ms, no failed request",
        p95 <= Duration::from_millis(700) && failed == 0,
    )]
}
