//! P-08 and P-11: what hundreds of spokes cost, and how soon a new active node knows them all.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use holdfast_spoke::daemon::Timing;
use holdfast_tests::api::Api;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use serde_json::{Value, json};

use super::failover::caught_up;
use crate::fleet::{self, Fleet, Member, routable, wait_routable};
use crate::load::percentile;
use crate::report::{Row, ms};

/// How long a crowd may take to be where it should be; far more than what is measured.
const CROWD: Duration = Duration::from_secs(120);
/// Between two spokes that come one after another.
const PACE: Duration = Duration::from_millis(40);

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}-{i:04}")).collect()
}

/// Starts the spokes one after another, on two nodes in turn; each may dial the other nodes too.
async fn fill(fleet: &Fleet, names: &[String], on: [usize; 2], third: usize) -> Vec<Member> {
    let mut members = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let nodes = [on[i % 2], on[(i + 1) % 2], third];
        members.push(fleet.start(name, &nodes, Timing::default()));
        tokio::time::sleep(PACE).await;
    }
    members
}

/// Has a node become active by step-downs.
async fn lead(cluster: &Cluster, wanted: usize) {
    for _ in 0..10 {
        let active = cluster.active().await;
        if active == wanted {
            return;
        }
        cluster.api(active).put("sys/step-down", json!({})).await.expect(204);
        while cluster.active().await == active {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    panic!("the node does not become active");
}

/// From the last moment at which no survivor was active until the one that is can route to all spokes.
async fn known_after_kill(cluster: &mut Cluster, active: usize, count: usize) -> Duration {
    let survivors: Vec<Api> = cluster.others(active).into_iter().map(|i| cluster.api(i)).collect();
    cluster.nodes[active].kill();
    let (begun, api) = 'active: loop {
        let asked = Instant::now();
        for api in &survivors {
            if api.health().await == Some(200) {
                break 'active (asked, api);
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    loop {
        let counts = routable(api).await.unwrap_or_default();
        let dead = counts.get(&cluster.nodes[active].id).copied().unwrap_or(0);
        if dead == 0 && counts.values().sum::<usize>() == count {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < PATIENCE, "the new active node knows {counts:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// P-08.
pub async fn election(each: usize, rounds: usize) -> Vec<Row> {
    let mut cluster = fleet::cluster().await;
    let all = names("spoke", 2 * each);
    let fleet = Fleet::enrol(&cluster, &all).await;
    let active = cluster.active().await;
    let others = cluster.others(active);
    let _members = fill(&fleet, &all, [others[0], others[1]], active).await;
    wait_routable(&cluster.api(active), all.len(), None, CROWD).await;
    let mut times = Vec::new();
    for round in 0..rounds {
        // The spokes stay where they are; the node without any has to lead before it is killed.
        lead(&cluster, active).await;
        wait_routable(&cluster.api(active), all.len(), Some(&cluster.nodes[active].id), CROWD).await;
        caught_up(&cluster).await;
        // A node that stepped down does not stand for ten seconds.
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!(cluster.active().await, active, "leadership moved: measure again");
        times.push(known_after_kill(&mut cluster, active, all.len()).await);
        eprintln!("P-08 {}/{rounds}: all routable after {}", round + 1, ms(*times.last().unwrap()));
        cluster.nodes[active].start();
        cluster.nodes[active].wait_listening().await;
        cluster.wait_complete().await;
    }
    times.sort();
    let (p50, p95) = (percentile(&times, 50.0), percentile(&times, 95.0));
    vec![Row::new(
        "P-08",
        &format!("kill -9 of the active node, {each} spokes on each survivor"),
        format!("all routable p50 {} p95 {}, {rounds} rounds", ms(p50), ms(p95)),
        "from the last answer that no node is active".into(),
        "p95 < 300 ms",
        p95 < Duration::from_millis(300),
    )]
}

/// Resident memory of each node, in KiB.
fn resident(cluster: &mut Cluster) -> Vec<u64> {
    let resident = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    cluster.nodes.iter_mut().map(|node| resident(node.process().pid())).collect()
}

/// The most bytes of announces a second that one of the nodes sent during `time`.
async fn announced(apis: &[Api], time: impl Future<Output = ()>) -> f64 {
    let bytes = || async {
        let mut all = Vec::new();
        for api in apis {
            all.push(api.metric("holdfast_relay_announce_bytes_total").await);
        }
        all
    };
    let (before, begun) = (bytes().await, Instant::now());
    time.await;
    let took = begun.elapsed().as_secs_f64();
    let sent = bytes().await.into_iter().zip(before).map(|(after, before)| after - before).max();
    sent.unwrap_or(0) as f64 / took
}

/// When a node's log says that it learnt who owns each spoke, the last time.
fn owned_at(log: &str) -> BTreeMap<String, jiff::Timestamp> {
    let lines = log.lines().filter(|line| line.contains("a spoke has an owner"));
    let told = lines.filter_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        Some((line["spoke"].as_str()?.to_owned(), line["timestamp"].as_str()?.parse().ok()?))
    });
    told.collect()
}

/// Spokes that come one after another while the others are there: from the start of each daemon until the active
/// node knew where it is.
async fn newcomers(fleet: &Fleet, cluster: &Cluster, names: &[String], on: [usize; 2]) -> Vec<Duration> {
    let active = cluster.active().await;
    let api = cluster.api(active);
    let here = routable(&api).await.unwrap().values().sum::<usize>();
    // The pause before the first try is chance, not work.
    let at_once = Timing { first: Duration::from_millis(1), ..Timing::default() };
    let (mut members, mut started) = (Vec::new(), Vec::new());
    for (i, name) in names.iter().enumerate() {
        started.push(jiff::Timestamp::now());
        members.push(fleet.start(name, &[on[i % 2]], at_once));
        tokio::time::sleep(PACE).await;
    }
    wait_routable(&api, here + names.len(), None, CROWD).await;
    let known = owned_at(&cluster.nodes[active].log());
    let took = |(name, started): (&String, jiff::Timestamp)| {
        Duration::try_from(known[name].duration_since(started)).unwrap_or_default()
    };
    let mut times: Vec<_> = names.iter().zip(started).map(took).collect();
    times.sort();
    futures_util::future::join_all(members.into_iter().map(Member::stop)).await;
    wait_routable(&api, here, None, CROWD).await;
    times
}

/// P-11.
pub async fn crowd(count: usize, more: usize, quiet: Duration) -> Vec<Row> {
    let mut cluster = fleet::cluster().await;
    let (all, late) = (names("spoke", count), names("late", more));
    let fleet = Fleet::enrol(&cluster, &[all.clone(), late.clone()].concat()).await;
    let active = cluster.active().await;
    let api = cluster.api(active);
    let on: [usize; 2] = cluster.others(active).try_into().unwrap();
    let standbys = on.map(|i| cluster.api(i));
    tokio::time::sleep(quiet / 6).await;
    let before = resident(&mut cluster);
    let mut members = Vec::new();
    let filling = announced(&standbys, async {
        members = fill(&fleet, &all, on, active).await;
        wait_routable(&api, count, None, CROWD).await;
    })
    .await;
    tokio::time::sleep(quiet / 3).await;
    let after = resident(&mut cluster);
    let grown: Vec<_> = after.iter().zip(&before).map(|(a, b)| a.saturating_sub(*b)).collect();
    let memory = grown.iter().sum::<u64>() as f64 / count as f64;
    let steady = announced(&standbys, tokio::time::sleep(quiet)).await;
    let times = newcomers(&fleet, &cluster, &late, on).await;
    let storm = storm(&mut cluster, on[0], &api, count).await;
    assert_eq!(cluster.active().await, active, "leadership moved: measure again");
    drop(members);
    let (p50, p99) = (percentile(&times, 50.0), percentile(&times, 99.0));
    let what = |text: &str| format!("{count} spokes on two standbys: {text}");
    vec![
        Row::new(
            "P-11",
            &what("memory"),
            format!("{memory:.0} KiB a spoke, all three nodes together"),
            format!("before them: nodes of {} KiB", before.iter().max().unwrap_or(&0)),
            "<= 96 KiB each",
            memory <= 96.0,
        ),
        Row::new(
            "P-11",
            &what("announces"),
            format!("{:.1} KiB/s of the busier node", steady / 1024.0),
            format!(
                "{:.1} KiB/s while they come, {:.0} a second",
                filling / 1024.0,
                1.0 / PACE.as_secs_f64()
            ),
            "<= 32 KiB/s a node",
            steady <= 32.0 * 1024.0,
        ),
        Row::new(
            "P-11",
            &what("one more connects"),
            format!("from its start to routable p50 {} p99 {}, {more} of them", ms(p50), ms(p99)),
            "-".into(),
            "p99 <= 200 ms",
            p99 <= Duration::from_millis(200),
        ),
        Row::new(
            "P-11",
            &what("kill -9 of one of the two"),
            format!("all routable elsewhere after {}", ms(storm)),
            "-".into(),
            "<= 10 s",
            storm <= Duration::from_secs(10),
        ),
    ]
}

/// Kills a node and waits until its spokes are elsewhere.
async fn storm(cluster: &mut Cluster, node: usize, api: &Api, count: usize) -> Duration {
    let id = cluster.nodes[node].id.clone();
    cluster.nodes[node].kill();
    let killed = Instant::now();
    eventually_async(CROWD, "the spokes are elsewhere", || async {
        // A look at so many is work for the node that they come to know.
        tokio::time::sleep(Duration::from_millis(40)).await;
        let counts = routable(api).await?;
        (!counts.contains_key(&id) && counts.values().sum::<usize>() == count).then_some(())
    })
    .await;
    killed.elapsed()
}
