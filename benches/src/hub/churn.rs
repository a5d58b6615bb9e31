//! P-12: whether memory and store stay level through an hour in which everything comes and goes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use holdfast_spoke::daemon::Timing;
use holdfast_tests::api::Api;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::{self, Login};
use holdfast_tests::spoke::remote_config;
use serde_json::json;

use super::creds;
use crate::fleet::{self, Fleet, Member, wait_routable};
use crate::load::{Load, closed_loop_until};
use crate::report::{Row, ms};

/// How many spokes, how many clients, and the pause of each client between two of its turns.
const SPOKES: usize = 10;
const CLIENTS: usize = 8;
const PAUSE: Duration = Duration::from_millis(200);
/// How long a login and a token of the churn live, so that as many end as are made.
const TTL: &str = "60s";
/// How far the last quarter may lie above the second one.
const LEVEL: f64 = 1.10;

/// What all nodes together take.
#[derive(Clone, Copy)]
struct Sample {
    memory_kib: u64,
    store_kib: u64,
}

fn memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

fn size_kib(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let sizes = entries.filter_map(Result::ok).map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_kib(&entry.path()),
        Ok(meta) => meta.len() / 1024,
        Err(_) => 0,
    });
    sizes.sum()
}

fn sample(cluster: &mut Cluster) -> Sample {
    let nodes = cluster.nodes.iter_mut();
    let (memory, store): (Vec<_>, Vec<_>) =
        nodes.map(|node| (memory_kib(node.process().pid()), size_kib(&node.dir.join("data")))).unzip();
    Sample { memory_kib: memory.iter().sum(), store_kib: store.iter().sum() }
}

/// One turn of a client: a login directly and one through a spoke, some revoked early, writes, reads, deletions, tokens.
async fn turn(api: &Api, spoke: usize, round: usize) -> bool {
    let path = match round % 2 {
        0 => creds::GROUP.to_owned(),
        _ => format!("database/creds/spoke-{spoke}"),
    };
    let Some(login) = Login::issue(api, &path).await else { return false };
    let key = format!("kv/{}/{}", spoke, round % 200);
    let value = json!({"text": "x".repeat(100 + round % 900), "round": round});
    let mut calls = vec![("PUT", key.clone(), Some(value)), ("GET", key.clone(), None)];
    if round.is_multiple_of(3) {
        calls.push(("DELETE", key, None));
    }
    if round.is_multiple_of(4) {
        calls.push(("PUT", "sys/leases/revoke".to_owned(), Some(json!({"lease_id": login.lease}))));
    }
    if round.is_multiple_of(2) {
        calls.push((
            "PUT",
            "auth/token/create".to_owned(),
            Some(json!({"ttl": TTL, "policies": ["default"]})),
        ));
    }
    for (method, path, body) in calls {
        let body = body.map(|body| body.to_string().into_bytes());
        if !api.try_send(method, &path, body).await.is_ok_and(|reply| reply.status < 300) {
            return false;
        }
    }
    true
}

async fn set_up(api: &Api, database: &PostgresServer) {
    creds::setup(api, database).await;
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    let role = |db: &str| json!({"db_name": db, "default_ttl": TTL, "max_ttl": "5m", "creation_statements": creds::IN_GROUP});
    api.put("database/roles/group", role("pg")).await.expect(204);
    for spoke in (0..SPOKES).map(|i| format!("spoke-{i}")) {
        api.put(&format!("database/config/{spoke}"), remote_config(database, &spoke)).await.expect(204);
        api.put(&format!("database/roles/{spoke}"), role(&spoke)).await.expect(204);
    }
}

/// What happens besides the load until the time is over: samples, spokes that leave and come, leadership that moves.
/// The spokes run on until they are dropped.
async fn disturb(cluster: &mut Cluster, fleet: &Fleet, time: Duration) -> (Vec<Sample>, Vec<Option<Member>>) {
    let name = |i: usize| format!("spoke-{i}");
    let start = |i: usize| fleet.start(&name(i), &[i % 3, (i + 1) % 3, (i + 2) % 3], Timing::default());
    let mut members: Vec<Option<Member>> = (0..SPOKES).map(|i| Some(start(i))).collect();
    let (begun, mut samples) = (Instant::now(), Vec::new());
    // Five minutes of the hour between two leaders, a minute of it between two spokes.
    let step = (time / 360).max(Duration::from_secs(1));
    for tick in 0_usize.. {
        tokio::time::sleep(
            (step * u32::try_from(tick + 1).unwrap_or(u32::MAX)).saturating_sub(begun.elapsed()),
        )
        .await;
        if begun.elapsed() >= time {
            break;
        }
        samples.push(sample(cluster));
        if tick % 6 == 5 {
            let spoke = tick / 6 % SPOKES;
            if let Some(member) = members[spoke].take() {
                // Every other one without a word.
                if tick / 6 % 2 == 0 { member.stop().await } else { drop(member) }
            }
            members[spoke] = Some(start(spoke));
        }
        if tick % 30 == 29 {
            let active = cluster.active().await;
            let _ = cluster.api(active).try_send("PUT", "sys/step-down", None).await;
        }
        if tick % 30 == 0 {
            eprintln!("P-12 {:>5.0} s: {}", begun.elapsed().as_secs_f64(), text(samples[tick]));
        }
    }
    (samples, members)
}

fn text(sample: Sample) -> String {
    format!(
        "memory {:.1} MiB, store {:.1} MiB",
        sample.memory_kib as f64 / 1024.0,
        sample.store_kib as f64 / 1024.0
    )
}

/// The medians of the second and of the last quarter.
fn quarters(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> (f64, f64) {
    let median = |part: &[Sample]| {
        let mut values: Vec<_> = part.iter().map(&of).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or_default() as f64 / 1024.0
    };
    let quarter = samples.len() / 4;
    (median(&samples[quarter..2 * quarter]), median(&samples[3 * quarter..]))
}

fn rows(time: Duration, samples: &[Sample], load: &Load) -> Vec<Row> {
    let minutes = time.as_secs() / 60;
    let row = |what: &str, (second, last): (f64, f64)| {
        let ratio = last / second;
        Row::new(
            "P-12",
            &format!("{minutes} minutes of churn, three nodes, {SPOKES} spokes: {what} of all nodes"),
            format!(
                "last quarter {last:.1} MiB; {:.1} turns/s, {} failed, p99 {}",
                load.rate(),
                load.failed,
                ms(load.percentile(99.0))
            ),
            format!("second quarter {second:.1} MiB: {ratio:.2} x"),
            &format!("level: <= {LEVEL} x"),
            ratio <= LEVEL,
        )
    };
    vec![row("memory", quarters(samples, |s| s.memory_kib)), row("store", quarters(samples, |s| s.store_kib))]
}

/// P-12's hour of churn. After it everything is let expire, and no user may be left without a lease.
pub async fn level(time: Duration) -> Vec<Row> {
    let (mut cluster, database) = (fleet::cluster().await, PostgresServer::start().await);
    let names: Vec<_> = (0..SPOKES).map(|i| format!("spoke-{i}")).collect();
    let fleet = Fleet::enrol(&cluster, &names).await;
    {
        // Connections to databases behind spokes are verified when they are written.
        let active = cluster.active().await;
        let api = cluster.api(active);
        let members: Vec<_> =
            (0..SPOKES).map(|i| fleet.start(&names[i], &[i % 3], Timing::default())).collect();
        wait_routable(&api, SPOKES, None, PATIENCE).await;
        set_up(&api, &database).await;
        for member in members {
            member.stop().await;
        }
    }
    let apis: Arc<Vec<Api>> = Arc::new((0..3).map(|node| cluster.api(node)).collect());
    let (seen, turns) = (std::cell::RefCell::new(None), Arc::new(AtomicUsize::new(0)));
    let end = async { *seen.borrow_mut() = Some(disturb(&mut cluster, &fleet, time).await) };
    let load = closed_loop_until(CLIENTS, end, move |client, round| {
        let (apis, turns) = (apis.clone(), turns.clone());
        async move {
            tokio::time::sleep(PAUSE).await;
            let spoke = turns.fetch_add(1, Ordering::Relaxed) % SPOKES;
            turn(&apis[(client + round) % 3], spoke, round).await
        }
    })
    .await;
    // Until the end: what was made through them is revoked through them.
    let (samples, _members) = seen.into_inner().unwrap_or_default();
    let active = cluster.active().await;
    let api = cluster.api(active);
    eventually_async(PATIENCE * 10, "every login has ended", || async {
        oracle::leases(&api, "database/creds/").await.is_empty().then_some(())
    })
    .await;
    oracle::settled(&api, &database, PATIENCE * 4).await;
    cluster.check_logs(&[]);
    rows(time, &samples, &load)
}
