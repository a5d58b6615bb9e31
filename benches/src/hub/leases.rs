//! P-07 and P-09: what many leases cost at a takeover and when they end together.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::Login;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::creds;
use super::failover::caught_up;
use crate::load::{closed_loop_until, percentile};
use crate::report::{Row, ms};

/// What a probe goes on until.
type Ending<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A role whose user costs the database nothing, so that leases can be made by the thousand.
async fn cheap_role(cluster: &Cluster, database: &PostgresServer, ttl: &str) {
    let api = cluster.api(cluster.active().await);
    creds::setup(&api, database).await;
    api.put("database/roles/cheap", cheap(ttl)).await.expect(204);
}

fn cheap(ttl: &str) -> Value {
    json!({"db_name": "pg", "creation_statements": "SELECT 1", "revocation_statements": "SELECT 1",
        "default_ttl": ttl, "max_ttl": "24h"})
}

async fn make(cluster: &Cluster, count: usize) {
    let api = cluster.api(cluster.active().await);
    let left = Arc::new(AtomicUsize::new(count));
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let (api, left) = (api.clone(), left.clone());
        tasks.spawn(async move {
            while left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok() {
                while Login::issue(&api, "database/creds/cheap").await.is_none() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
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
    caught_up(cluster).await;
    took
}

/// P-07.
pub async fn takeover(count: usize, rounds: usize) -> Vec<Row> {
    let (mut cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    cheap_role(&cluster, &database, "12h").await;
    let mut medians = Vec::new();
    for fill in [0, count] {
        let begun = Instant::now();
        make(&cluster, fill).await;
        caught_up(&cluster).await;
        eprintln!("P-07: {fill} leases made in {:.0?}", begun.elapsed());
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.push(first_login_after_kill(&mut cluster).await);
            eprintln!("P-07 with {fill} leases: first login after {}", ms(*times.last().unwrap()));
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

/// Makes leases that all end at about `end`: while they are made, the role's time to live shrinks.
async fn make_due_at(cluster: &Cluster, count: usize, end: Instant) {
    let api = cluster.api(cluster.active().await);
    let shrink = async {
        loop {
            let left = end.saturating_duration_since(Instant::now()).as_secs();
            assert!(left > 5, "the leases were not made in time: give them longer");
            api.put("database/roles/cheap", cheap(&format!("{left}s"))).await.expect(204);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::select! {
        () = make(cluster, count) => {}
        () = shrink => {}
    }
}

/// P-09.
pub async fn due_at_once(count: usize) -> Vec<Row> {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    cheap_role(&cluster, &database, "1h").await;
    let api = cluster.api(0);
    let probe = |end| {
        let api = api.clone();
        closed_loop_until(2, end, move |_, _| {
            let api = api.clone();
            async move { Login::issue(&api, creds::GROUP).await.is_some() }
        })
    };
    let revoked = || async { api.metric("holdfast_hub_revoke_total{outcome=\"revoked\"}").await };
    let quiet = probe(Box::pin(tokio::time::sleep(Duration::from_secs(10))) as Ending<'_>).await;
    let begun = Instant::now();
    // Long enough that none ends while the last ones are made.
    let end = begun + Duration::from_secs(15 + count as u64 / 100);
    make_due_at(&cluster, count, end).await;
    eprintln!("P-09: {count} leases made in {:.0?}", begun.elapsed());
    assert_eq!(revoked().await, 0, "none ended before all were made");
    eventually_async(PATIENCE + (end - begun), "the first lease ends", || async {
        (revoked().await > 0).then_some(())
    })
    .await;
    let due = Instant::now();
    let busy = probe(Box::pin(async {
        eventually_async(Duration::from_secs(600), "all leases are revoked", || async {
            // Each look is a request beside those that are measured.
            tokio::time::sleep(Duration::from_millis(100)).await;
            (revoked().await >= count as u64).then_some(())
        })
        .await;
    }) as Ending<'_>)
    .await;
    let took = due.elapsed().as_secs_f64();
    let ratio = busy.percentile(99.0).as_secs_f64() / quiet.percentile(99.0).as_secs_f64();
    vec![Row::new(
        "P-09",
        &format!("{count} leases end together, logins going on"),
        format!(
            "p99 {}, {} failed, {:.0}/s; all revoked in {took:.1} s",
            ms(busy.percentile(99.0)),
            busy.failed,
            busy.rate()
        ),
        format!("quiet p99 {}, {:.0}/s: {ratio:.2} x", ms(quiet.percentile(99.0)), quiet.rate()),
        "<= 3 x",
        ratio <= 3.0 && busy.failed == 0,
    )]
}
