//! What the cluster says of itself, through every node, while nodes die and leadership moves.

use std::time::Duration;

use holdfast_tests::api::Api;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options};
use serde_json::{Value, json};

/// What is promised within a second, on a machine that does other things too.
const SOON: Duration = Duration::from_secs(5);

/// The node that the raft configuration names as the leader.
async fn leader(api: &Api) -> Option<String> {
    let reply = api.get("sys/storage/raft/configuration").await;
    let servers = reply.body["data"]["config"]["servers"].as_array()?.clone();
    let leaders: Vec<&Value> = servers.iter().filter(|server| server["leader"] == true).collect();
    (leaders.len() == 1).then(|| leaders[0]["node_id"].as_str().unwrap().to_owned())
}

/// How many forwarded requests the node got an answer to.
async fn answered(api: &Api) -> u64 {
    let text = String::from_utf8(api.get("sys/metrics").await.expect(200).bytes).unwrap();
    let name = "holdfast_hub_forwarded_requests_total{outcome=\"answered\"} ";
    text.lines().find_map(|line| line.strip_prefix(name)).map_or(0, |n| n.parse().unwrap())
}

/// Which nodes are up, and which one is active, as one node tells.
async fn status(api: &Api) -> Vec<(String, bool, bool)> {
    let reply = api.get("sys/ha-status").await;
    let nodes = reply.body["data"]["nodes"].as_array().cloned().unwrap_or_default();
    let node = |node: &Value| {
        let name = node["hostname"].as_str().unwrap().to_owned();
        (name, node["reachable"] == true, node["active_node"] == true)
    };
    let mut all: Vec<_> = nodes.iter().map(node).collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_tells_who_leads_and_who_is_there_and_asks_the_active_one() {
    let mut cluster = Cluster::start_with(Options::calm()).await;
    let first = cluster.active().await;
    cluster.api(first).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    // Reads, too, are answered by the active node.
    for standby in cluster.others(first) {
        let api = cluster.api(standby);
        let before = answered(&api).await;
        for path in ["kv", "sys/mounts", "nowhere/x"] {
            api.get(path).await;
        }
        assert_eq!(answered(&api).await, before + 3);
        api.get("sys/leader").await.expect(200);
        assert_eq!(answered(&api).await, before + 3, "what it knows itself it answers itself");
    }
    assert_eq!(answered(&cluster.api(first)).await, 0);

    cluster.api(cluster.others(first)[0]).put("sys/step-down", json!({})).await.expect(204);
    let second = eventually_async(SOON * 6, "another node is active", || async {
        let now = cluster.active().await;
        (now != first).then_some(now)
    })
    .await;
    let name = cluster.nodes[second].id.clone();
    for index in 0..3 {
        let api = cluster.api(index);
        let told = || async { (leader(&api).await.as_ref() == Some(&name)).then_some(()) };
        eventually_async(SOON, "the configuration names the new leader", told).await;
    }

    let gone = cluster.others(second)[0];
    let expected = |reachable: bool| {
        let of = |i: usize| (cluster.nodes[i].id.clone(), i != gone || reachable, i == second);
        (0..3).map(of).collect::<Vec<_>>()
    };
    let (up, down) = (expected(true), expected(false));
    let stays = cluster.others(second)[1];
    let (apis, killed) = ([cluster.api(second), cluster.api(stays)], &mut cluster.nodes[gone]);
    for api in &apis {
        eventually_async(SOON, "all are there", || async { (status(api).await == up).then_some(()) }).await;
    }
    killed.kill();
    for api in &apis {
        let seen = || async { (status(api).await == down).then_some(()) };
        eventually_async(SOON * 3, "the dead node is told as unreachable", seen).await;
    }
    cluster.check_logs(&[]);
}
