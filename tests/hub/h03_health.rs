//! What `sys/health` says in each state, and how a query changes the code.

use std::time::Duration;

use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Node, Options, Seal};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn health_tells_each_state_and_takes_overrides() {
    let mut cluster = Cluster::start_with(Options { seal: Seal::Shamir(1, 1), ..Options::default() }).await;
    let active = cluster.active().await;
    let standby = cluster.others(active)[0];

    let api = cluster.nodes[active].api();
    let reply = api.get("sys/health").await.expect(200);
    let (initialized, sealed, standby_flag) =
        (&reply.body["initialized"], &reply.body["sealed"], &reply.body["standby"]);
    assert_eq!((initialized, sealed, standby_flag), (&json!(true), &json!(false), &json!(false)));
    assert_eq!(reply.body["replication_dr_mode"], "disabled");
    assert_eq!(reply.body["performance_standby"], false);
    assert_eq!(reply.body["storage_healthy"], true);
    assert!(reply.body["cluster_id"].as_str().is_some_and(|id| !id.is_empty()));
    api.get("sys/health?activecode=222").await.expect(222);
    api.get("sys/health?activecode=abc").await.expect(400);
    api.send("HEAD", "sys/health", None).await.expect(200);

    let api = cluster.nodes[standby].api();
    assert_eq!(api.get("sys/health").await.expect(429).body["standby"], true);
    api.get("sys/health?standbyok=true").await.expect(200);
    api.get("sys/health?perfstandbyok=true&activecode=299").await.expect(299);
    api.get("sys/health?standbycode=211&drsecondarycode=299&performancestandbycode=298").await.expect(211);
    assert!(api.send("HEAD", "sys/health", None).await.expect(429).bytes.is_empty());

    cluster.api(standby).put("sys/seal", json!({})).await.expect(204);
    let sealed = || async { (api.health().await? == 503).then_some(()) };
    eventually_async(Duration::from_secs(10), "the node is sealed", sealed).await;
    let reply = api.get("sys/health").await.expect(503);
    assert_eq!(reply.body["sealed"], true);
    assert!(reply.body.get("cluster_id").is_none_or(|id| id == "" || id.is_null()));
    api.get("sys/health?sealedcode=210").await.expect(210);
    cluster.check_logs(&[]);

    let mut fresh = Node::prepare(cluster.dir(), 9, &Options::default(), &[]);
    fresh.start();
    fresh.wait_listening().await;
    let reply = fresh.api().get("sys/health").await.expect(501);
    assert_eq!(reply.body["initialized"], false);
    fresh.api().get("sys/health?uninitcode=212").await.expect(212);
    drop(fresh);
    cluster.nodes.clear();
}
