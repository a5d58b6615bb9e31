//! Nodes die, freeze and step down while clients ask for logins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use holdfast_tests::api::Api;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::{Login, settled};
use serde_json::json;
use tokio::task::JoinSet;

/// The sweeper looks again a minute after it removed a user.
const QUIET: Duration = Duration::from_secs(150);

/// A new leader serves as soon as it is elected, by its own count: within 50 ms, and ten times that where the machine
/// does other things too.
async fn gate_opened_soon(api: &Api) {
    let opened = |bound: &str| format!("holdfast_hub_gate_open_seconds_bucket{{le=\"{bound}\"}}");
    let (soon, all) = (api.metric(&opened("0.5")).await, api.metric(&opened("+Inf")).await);
    assert!(all >= 1, "the new leader was elected");
    assert_eq!(soon, all, "serving began later than half a second after an election");
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_flow_again_after_the_active_node_is_killed() {
    let (mut cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let active = cluster.active().await;
    cluster.api(active).setup_postgres(&database, "1h").await;
    let before = Login::issue(&cluster.api(active), "database/creds/app").await.expect("a login");

    cluster.nodes[active].kill();
    let survivors = cluster.others(active);
    let started = Instant::now();
    let api = cluster.api(survivors[0]);
    let login =
        eventually_async(PATIENCE, "a login through a survivor", || Login::issue(&api, "database/creds/app"))
            .await;
    println!("first login {:?} after the kill", started.elapsed());
    assert!(login.works(&database).await);
    assert!(before.works(&database).await, "a login of the former leader stays");
    let other = cluster.api(survivors[1]);
    other.put("sys/leases/revoke", json!({"lease_id": before.lease, "sync": true})).await.expect(204);
    assert!(!before.works(&database).await, "the new leader revokes what the old one issued");

    gate_opened_soon(&cluster.api(cluster.active().await)).await;

    cluster.nodes[active].start();
    cluster.nodes[active].wait_listening().await;
    cluster.wait_complete().await;
    let back = cluster.api(active);
    assert!(
        Login::issue(&back, "database/creds/app")
            .await
            .expect("through the returned node")
            .works(&database)
            .await
    );
    settled(&back, &database, QUIET).await;
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_does_not_lead_on_when_it_thaws() {
    let (mut cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let active = cluster.active().await;
    cluster.api(active).setup_postgres(&database, "1h").await;
    cluster.nodes[active].pause();
    let survivors = cluster.others(active);
    let api = cluster.api(survivors[0]);
    eventually_async(PATIENCE, "a login through a survivor", || Login::issue(&api, "database/creds/app"))
        .await;
    cluster.nodes[active].resume();
    // Whatever it answers from now on, it must not be "active" in a term that ended.
    let thawed = cluster.nodes[active].api();
    let follows = || async { (thawed.health().await? == 429).then_some(()) };
    eventually_async(PATIENCE, "the thawed node follows", follows).await;
    let leader = |index: usize| {
        let api = cluster.api(index);
        async move { api.get("sys/leader").await.body["leader_address"].clone() }
    };
    let (a, b) = (leader(survivors[0]).await, leader(active).await);
    assert_eq!(a, b, "both name the same leader");
    settled(&cluster.api(active), &database, QUIET).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_down_under_writers_loses_nothing() {
    let cluster = Arc::new(Cluster::start(3).await);
    let active = cluster.active().await;
    cluster.api(active).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    let (stop, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut writers = JoinSet::new();
    for writer in 0..32 {
        let (stop, failed, api) = (stop.clone(), failed.clone(), cluster.api(writer % 3));
        writers.spawn(async move {
            let mut written = Vec::new();
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let key = format!("kv/w{writer}-{n}");
                match api.put(&key, json!({"n": n})).await.status {
                    204 => written.push(key),
                    503 => {}
                    _ => {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            written
        });
    }
    for _ in 0..3 {
        let index = cluster.active().await;
        let started = Instant::now();
        cluster.api(cluster.others(index)[0]).put("sys/step-down", json!({})).await.expect(204);
        println!("step-down answered after {:?}", started.elapsed());
        let moved = || async { (cluster.active().await != index).then_some(()) };
        eventually_async(PATIENCE, "another node is active", moved).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut total = 0;
    for key in writers.join_all().await.into_iter().flatten() {
        cluster.api(total % 3).get(&key).await.expect(200);
        total += 1;
    }
    assert_eq!(failed.load(Ordering::Relaxed), 0, "no answer but 204 and 503");
    assert!(total > 50, "only {total} writes were acknowledged");
    cluster.check_logs(&[]);
}
