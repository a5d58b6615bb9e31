//! Quotas stop clients with a 429, counted once for the whole cluster.

use std::time::Duration;

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::{leases, settled};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_counted_once_whatever_nodes_are_asked() {
    let cluster = Cluster::start(3).await;
    let root = cluster.api(cluster.active().await);
    root.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    root.put("sys/mounts/free", json!({"type": "kv"})).await.expect(204);
    root.put("kv/a", json!({"v": 1})).await.expect(204);
    root.put("free/a", json!({"v": 1})).await.expect(204);
    root.put("sys/quotas/rate-limit/kv", json!({"path": "kv/", "rate": 9, "interval": "1h"}))
        .await
        .expect(204);
    let shown = root.get("sys/quotas/rate-limit/kv").await.expect(200);
    assert_eq!((&shown.data()["rate"], &shown.data()["interval"]), (&json!(9.0), &json!(3600)));
    assert_eq!(root.list("sys/quotas/rate-limit").await.expect(200).data()["keys"], json!(["kv"]));
    for request in 0..9 {
        cluster.api(request % 3).get("kv/a").await.expect(200);
    }
    for index in 0..3 {
        let refused = cluster.api(index).get("kv/a").await;
        let after: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=3600).contains(&after), "{after}");
        refused.expect_error(429, "request path \"kv/a\": rate limit quota exceeded");
        // Before the token is looked at: an unknown one is no way around it.
        let unknown = cluster.nodes[index].api().with_token("hvs.unknown").get("kv/a").await;
        assert_eq!(unknown.status, 429);
        cluster.api(index).get("free/a").await.expect(200);
        cluster.nodes[index].api().get("sys/health?standbyok=true").await.expect(200);
    }
    root.put("sys/quotas/rate-limit/kv", json!({"path": "kv/", "rate": 0})).await.expect(400);
    root.delete("sys/quotas/rate-limit/kv").await.expect(204);
    cluster.api(1).get("kv/a").await.expect(200);

    // A window that ends lets the client go on.
    root.put("sys/quotas/rate-limit/kv", json!({"path": "kv/", "rate": 2, "interval": "2s"}))
        .await
        .expect(204);
    let mut refused = 0;
    for _ in 0..6 {
        refused += usize::from(root.get("kv/a").await.status == 429);
    }
    assert!(refused >= 1);
    eventually_async(Duration::from_secs(10), "the next window", || async {
        (root.get("kv/a").await.status == 200).then_some(())
    })
    .await;
    let metrics = root.get("sys/metrics?format=prometheus").await.expect(200);
    assert!(
        String::from_utf8_lossy(&metrics.bytes).contains("holdfast_hub_quota_rejected_total{kind=\"rate\"}")
    );
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_leases_is_never_exceeded() {
    let (cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let active = cluster.active().await;
    let root = cluster.api(active);
    root.setup_postgres(&database, "1h").await;
    root.put("sys/quotas/lease-count/db", json!({"path": "database/", "max_leases": 4})).await.expect(204);
    let asking = (0..12).map(|i| {
        let api = cluster.api(i % 3);
        async move { api.get("database/creds/app").await }
    });
    let replies = futures_util::future::join_all(asking).await;
    let (issued, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.status == 200);
    assert_eq!(issued.len(), 4, "{:?}", refused.iter().map(|r| &r.body).collect::<Vec<_>>());
    for reply in refused {
        assert!(reply.headers.contains_key("retry-after"));
        reply.expect_error(429, "lease count quota exceeded");
    }
    assert_eq!((database.users("v-").await.len(), leases(&root, "database/creds/").await.len()), (4, 4));
    let shown = root.get("sys/quotas/lease-count/db").await.expect(200);
    assert_eq!((&shown.data()["max_leases"], &shown.data()["counter"]), (&json!(4), &json!(4)));
    // A place that is given back can be taken, under another leader too.
    let lease = &issued[0].body["lease_id"];
    root.put("sys/leases/revoke", json!({"lease_id": lease, "sync": true})).await.expect(204);
    root.put("sys/step-down", json!({})).await.expect(204);
    let standby = cluster.api(active);
    let taken = || async { (standby.get("database/creds/app").await.status == 200).then_some(()) };
    eventually_async(PATIENCE, "one more login", taken).await;
    standby.get("database/creds/app").await.expect_error(429, "lease count quota exceeded");
    settled(&standby, &database, PATIENCE).await;
    cluster.check_logs(&[]);
}
