//! H-50 and H-57 with spokes: whoever leads, a stream on another node notices nothing of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::{Login, settled};
use holdfast_tests::spoke::{Relay, Spoke, add_remote, entry, epoch, owned, setup_remote};
use serde_json::Value;
use tokio::task::JoinSet;

/// How often each bootstrap token was used.
async fn token_uses(cluster: &Cluster, through: usize) -> Vec<(String, Value)> {
    let reply = cluster.api(through).list("relay/bootstrap-tokens").await.expect(200);
    let tokens = reply.data()["key_info"].as_object().unwrap().clone();
    tokens.into_iter().map(|(id, info)| (id, info["uses"].clone())).collect()
}

/// What a spoke has on disk to show who it is.
fn certificate(spoke: &Spoke) -> Vec<u8> {
    ["cert.pem", "key.pem"]
        .iter()
        .flat_map(|file| std::fs::read(spoke.credentials.join(file)).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_on_both_survivors_notice_nothing_of_the_active_nodes_death() {
    let (mut cluster, database) = (Cluster::start_with(Options::calm()).await, PostgresServer::start().await);
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    let survivors = cluster.others(active);
    let first = relay.spoke_on(&cluster, "spoke-1", survivors[0]).await;
    let second = relay.spoke_on(&cluster, "spoke-2", survivors[1]).await;
    setup_remote(&cluster, active, &database, "spoke-1", "1h").await;
    add_remote(&cluster, active, &database, "spoke-2", ("pg2", "app2", "1h")).await;
    let issued = Login::issue(&cluster.api(active), "database/creds/app").await.expect("a login");
    let (uses, certificates) =
        (token_uses(&cluster, active).await, [certificate(&first), certificate(&second)]);
    let mut before = Vec::new();
    for name in ["spoke-1", "spoke-2"] {
        before.push(entry(&cluster, active, name).await.expect("the spoke is listed"));
    }
    // Whoever dials now is refused, so every login below comes through a stream that was there before.
    relay.balancer.refuse();
    cluster.nodes[active].kill();

    for (through, path) in
        survivors.iter().flat_map(|node| [(*node, "database/creds/app"), (*node, "database/creds/app2")])
    {
        let api = cluster.api(through);
        let login =
            eventually_async(PATIENCE, "a login through a survivor", || Login::issue(&api, path)).await;
        assert!(login.works(&database).await);
    }
    let leader = cluster.active().await;
    let api = cluster.api(leader);
    let body = serde_json::json!({"lease_id": issued.lease, "sync": true});
    api.put("sys/leases/revoke", body).await.expect(204);
    assert!(!issued.works(&database).await, "what the former leader issued is revoked through its spoke");
    for (spoke, node) in before.iter().zip(&survivors) {
        let now = entry(&cluster, leader, spoke["name"].as_str().unwrap()).await.expect("still listed");
        for same in ["session_epoch", "cert_not_after"] {
            assert_eq!(now[same], spoke[same], "{same}");
        }
        let moved = now["connected_at_unix"].as_i64().unwrap() - spoke["connected_at_unix"].as_i64().unwrap();
        assert!(moved.abs() <= 2, "the stream began {moved} s later");
        assert_eq!(now["node_id"], cluster.nodes[*node].id.as_str());
        assert_eq!(now["node_is_active"], *node == leader);
    }
    assert_eq!(token_uses(&cluster, leader).await, uses);
    assert_eq!([certificate(&first), certificate(&second)], certificates);
    for node in &survivors {
        for name in ["sign_total{outcome=\"signed\"}", "enrol_total{outcome=\"signed\"}", "superseded_total"]
        {
            assert_eq!(cluster.api(*node).metric(&format!("holdfast_relay_{name}")).await, 0, "{name}");
        }
        assert_eq!(cluster.api(*node).metric("holdfast_relay_streams").await, 1);
    }
    let follower = cluster.api(survivors[usize::from(survivors[0] == leader)]);
    let told = || async {
        (follower.metric("holdfast_relay_announce_total{trigger=\"leader\"}").await > 0).then_some(())
    };
    eventually_async(PATIENCE, "the other survivor tells the new leader of its streams", told).await;
    settled(&api, &database, PATIENCE * 5).await;
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_down_under_clients_of_spokes_fails_nobody_and_moves_no_stream() {
    let cluster = Arc::new(Cluster::start_with(Options::calm()).await);
    let database = PostgresServer::start().await;
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    let standby = cluster.others(active)[0];
    let _spoke = relay.spoke_on(&cluster, "spoke-1", standby).await;
    setup_remote(&cluster, active, &database, "spoke-1", "1h").await;
    let before = epoch(&cluster, "spoke-1").await;
    let (stop, issued) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    for client in 0..4 {
        let (stop, issued, api) = (stop.clone(), issued.clone(), cluster.api(client % 3));
        clients.spawn(async move {
            let mut bad = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let reply = api.get("database/creds/app").await;
                match reply.status {
                    200 => drop(issued.fetch_add(1, Ordering::Relaxed)),
                    503 => {}
                    status => bad.push(format!("{status} {}", reply.body)),
                }
            }
            bad
        });
    }
    for _ in 0..3 {
        let (index, seen) = (cluster.active().await, issued.load(Ordering::Relaxed));
        let flows = || async { (issued.load(Ordering::Relaxed) > seen + 3).then_some(()) };
        eventually_async(PATIENCE, "logins flow", flows).await;
        cluster.api(index).put("sys/step-down", serde_json::json!({})).await.expect(204);
        let moved = || async { (cluster.active().await != index).then_some(()) };
        eventually_async(PATIENCE, "another node is active", moved).await;
    }
    let seen = issued.load(Ordering::Relaxed);
    let flows = || async { (issued.load(Ordering::Relaxed) > seen + 3).then_some(()) };
    eventually_async(PATIENCE, "logins flow at the end", flows).await;
    stop.store(true, Ordering::Relaxed);
    let bad: Vec<_> = clients.join_all().await.into_iter().flatten().collect();
    assert!(bad.is_empty(), "other answers than 200 and 503: {bad:?}");
    owned(&cluster, "spoke-1", standby).await;
    assert_eq!(epoch(&cluster, "spoke-1").await, before, "the spoke dialled again");
    settled(&cluster.api(cluster.active().await), &database, PATIENCE * 5).await;
    assert!(database.users("v-").await.len() >= issued.load(Ordering::Relaxed));
    cluster.check_logs(&[]);
}
