//! P-07 and P-09: what many leases cost at a takeover and when they end together.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::Login;
use serde_json::json;
use tokio::task::JoinSet;

use super::creds;
use crate::load::{closed_loop, percentile};
use crate::report::{Row, ms};

/// A role whose user costs the database nothing, so that leases can be made by the thousand.
async fn cheap_role(cluster: &Cluster, database: &PostgresServer, ttl: &str) {
    let api = cluster.api(cluster.active().await);
    creds::setup(&api, database).await;
    let nothing = json!({"db_name": "pg", "creation_statements": "SELECT 1", "revocation_statements": "SELECT 1",
        "default_ttl": ttl, "max_ttl": "24h"});
    api.put("database/roles/cheap", nothing).await.expect(204);
}

async fn make(cluster: &Cluster, count: usize) {
    let api = cluster.api(cluster.active().await);
    let left = Arc::new(AtomicUsize::new(count));
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let (api, left) = (api.clone(), left.clone());
        tasks.spawn(async move {
            while left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok() {
                while Login::issue(&api, "database/creds/cheap").await.is_none() {}
            }
        });
    }
    tasks.join_all().await;
}

async fn first_login_after_kill(cluster: &mut Cluster) -> Duration {
    let active = cluster.active().await;
    let api = cluster.api(cluster.others(active)[0]);
    let killed = Instant::now();
    cluster.nodes[active].kill();
    eventually_async(PATIENCE, "a login", || Login::issue(&api, creds::GROUP)).await;
    let took = killed.elapsed();
    cluster.nodes[active].start();
    cluster.nodes[active].wait_listening().await;
    cluster.wait_complete().await;
    took
}

/// P-07.
pub async fn takeover(count: usize, rounds: usize) -> Vec<Row> {
    let (mut cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    cheap_role(&cluster, &database, "12h").await;
    let mut medians = Vec::new();
    for fill in [0, count] {
        make(&cluster, fill).await;
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.push(first_login_after_kill(&mut cluster).await);
        }
        times.sort();
        medians.push(percentile(&times, 50.0));
    }
    let ratio = medians[1].as_secs_f64() / medians[0].as_secs_f64();
    vec![Row::new(
        "P-07",
        &format!("takeover with {count} leases"),
        format!("first login p50 {}", ms(medians[1])),
        format!("without leases p50 {}: {ratio:.2} x", ms(medians[0])),
        "<= 1.3 x",
        ratio <= 1.3,
    )]
}

/// P-09.
pub async fn due_at_once(count: usize) -> Vec<Row> {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    // Long enough that none ends while the last ones are made.
    let ttl = Duration::from_secs(20 + count as u64 / 100);
    cheap_role(&cluster, &database, &format!("{}s", ttl.as_secs())).await;
    let api = cluster.api(0);
    let probe = |time: Duration| {
        let api = api.clone();
        closed_loop(2, time, move |_, _| {
            let api = api.clone();
            async move { Login::issue(&api, creds::GROUP).await.is_some() }
        })
    };
    let quiet = probe(Duration::from_secs(10)).await;
    let begun = Instant::now();
    make(&cluster, count).await;
    tokio::time::sleep(ttl.saturating_sub(begun.elapsed())).await;
    let busy = probe(begun.elapsed().max(Duration::from_secs(10))).await;
    let ratio = busy.percentile(99.0).as_secs_f64() / quiet.percentile(99.0).as_secs_f64();
    vec![Row::new(
        "P-09",
        &format!("{count} leases end together, logins going on"),
        format!("p99 {}, {} failed", ms(busy.percentile(99.0)), busy.failed),
        format!("quiet p99 {}: {ratio:.2} x", ms(quiet.percentile(99.0))),
        "<= 3 x",
        ratio <= 3.0 && busy.failed == 0,
    )]
}
