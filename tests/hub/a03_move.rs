//! A member comes back at another address.

use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_comes_back_elsewhere_is_found_again() {
    let mut cluster = Cluster::start(3).await;
    let active = cluster.active().await;
    cluster.api(active).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    let moved = cluster.others(active)[0];
    cluster.nodes[moved].kill();
    cluster.api(active).put("kv/meanwhile", json!({"v": 1})).await.expect(204);
    let before = cluster.nodes[moved].cluster_port;
    cluster.nodes[moved].move_cluster_port();
    let after = cluster.nodes[moved].cluster_port;
    assert_ne!(before, after);
    cluster.nodes[moved].start();
    cluster.nodes[moved].wait_listening().await;

    let recorded = || async {
        let reply = cluster.api(active).get("sys/storage/raft/configuration").await.expect(200);
        let servers = reply.data()["config"]["servers"].as_array()?.clone();
        let own = servers.iter().find(|server| server["node_id"] == cluster.nodes[moved].id)?;
        (own["address"] == format!("127.0.0.1:{after}") && own["voter"] == true).then_some(())
    };
    eventually_async(PATIENCE, "the new address is recorded", recorded).await;
    let api = cluster.api(moved);
    let serves = || async { (api.get("kv/meanwhile").await.status == 200).then_some(()) };
    eventually_async(PATIENCE, "it serves", serves).await;
    // Its vote counts: with it and one more there is a leader without the third.
    cluster.nodes[active].kill();
    let writes = || async { (api.put("kv/after", json!({"v": 1})).await.status == 204).then_some(()) };
    eventually_async(PATIENCE, "two of three lead on", writes).await;
    cluster.check_logs(&[]);
}
