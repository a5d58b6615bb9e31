//! The whole cluster stops and comes back: nothing is lost, and what ended meanwhile goes first.

use std::time::{Duration, Instant};

use holdfast_tests::api::CREATE_ROLE;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Node, Options, PATIENCE};
use holdfast_tests::oracle::{Login, settled};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_whole_cluster_loses_nothing_and_revokes_what_ended_meanwhile() {
    let (mut cluster, database) = (Cluster::start_with(Options::calm()).await, PostgresServer::start().await);
    let api = cluster.api(cluster.active().await);
    api.setup_postgres(&database, "1h").await;
    let short = json!({"db_name": "pg", "creation_statements": CREATE_ROLE, "default_ttl": "5s"});
    api.put("database/roles/short", short).await.expect(204);
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    for n in 0..50 {
        api.put(&format!("kv/k{n}"), json!({"n": n})).await.expect(204);
    }
    let (mut kept, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        kept.push(Login::issue(&api, "database/creds/app").await.expect("a login"));
    }
    for _ in 0..10 {
        ended.push(Login::issue(&api, "database/creds/short").await.expect("a login"));
    }
    let issued = Instant::now();
    cluster.nodes.iter_mut().for_each(Node::kill);
    assert!(ended[9].works(&database).await, "nobody revokes while the cluster is down");
    let over = || async { (issued.elapsed() > Duration::from_secs(6)).then_some(()) };
    eventually_async(PATIENCE, "the short leases end", over).await;

    cluster.nodes.iter_mut().for_each(Node::start);
    let back = Instant::now();
    for node in &mut cluster.nodes {
        node.wait_listening().await;
    }
    let api = cluster.api(cluster.active().await);
    println!("active {:?} after the start", back.elapsed());
    let gone = || async {
        for login in &ended {
            if login.works(&database).await {
                return None;
            }
        }
        Some(())
    };
    eventually_async(PATIENCE, "what ended meanwhile is revoked", gone).await;
    println!("revoked {:?} after the start", back.elapsed());
    for n in 0..50 {
        assert_eq!(api.get(&format!("kv/k{n}")).await.expect(200).data()["n"], n);
    }
    for login in &kept {
        assert!(login.works(&database).await, "a live lease is left alone");
        api.put("sys/leases/lookup", json!({"lease_id": login.lease})).await.expect(200);
    }
    cluster.wait_complete().await;
    settled(&api, &database, PATIENCE).await;
    cluster.check_logs(&[]);
}
