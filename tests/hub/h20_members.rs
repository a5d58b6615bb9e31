//! Nodes come, go and come back.

use std::time::Duration;

use holdfast_tests::api::Api;
use holdfast_tests::cli::Cli;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Node, Options, PATIENCE, Seal};
use holdfast_tests::spoke::{Relay, entry, owned};
use serde_json::json;

/// What is promised within a second, on a machine that does other things too.
const SOON: Duration = Duration::from_secs(5);

/// Names and votes of the members as one node tells them.
async fn peers(api: &Api) -> Vec<(String, bool)> {
    let reply = api.get("sys/storage/raft/configuration").await;
    let servers = reply.body["data"]["config"]["servers"].as_array().cloned().unwrap_or_default();
    let mut peers: Vec<_> =
        servers.iter().map(|s| (s["node_id"].as_str().unwrap().to_owned(), s["voter"] == true)).collect();
    peers.sort();
    peers
}

async fn wait_peers(api: &Api, deadline: Duration, expected: &[&str]) {
    let expected: Vec<_> = expected.iter().map(|name| ((*name).to_owned(), true)).collect();
    eventually_async(deadline, &format!("the members are {expected:?}"), || async {
        (peers(api).await == expected).then_some(())
    })
    .await;
}

async fn check_removed(node: &Node, root: &str) {
    let api = node.api();
    let gone = || async { (api.health().await? == 530).then_some(()) };
    eventually_async(SOON, "the removed node knows it", gone).await;
    let health = api.get("sys/health").await.expect(530);
    assert_eq!(health.body["removed_from_cluster"], true);
    api.get("sys/health?removedcode=299").await.expect(299);
    for path in ["kv/a", "sys/leader", "sys/seal-status", "sys/mounts", "no/where"] {
        api.with_token(root).get(path).await.expect_error(503, "node was removed from the cluster");
    }
}

async fn rejoin(node: &Node, leader: &str) -> holdfast_tests::cli::Ended {
    Cli::new(&node.url()).run(&format!("operator raft rejoin {leader} -yes")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fourth_node_joins_an_old_one_goes_and_comes_back_by_one_command() {
    let mut cluster = Cluster::start(3).await;
    let active = cluster.active().await;
    let root = cluster.root.clone();
    cluster.api(active).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    cluster.api(active).put("kv/a", json!({"v": "kept"})).await.expect(204);
    let gone = cluster.others(active)[0];
    let relay = Relay::set_up(&cluster).await;
    let mut spoke = relay.join(&cluster, "spoke-1").await;
    cluster.add_node(3).await;
    wait_peers(&cluster.api(active), PATIENCE, &["n0", "n1", "n2", "n3"]).await;
    assert_eq!(cluster.api(3).get("kv/a").await.expect(200).text("v"), "kept");

    // Demoted, it is a member without a vote; promoted, it votes.
    cluster.api(3).put("sys/storage/raft/demote", json!({"server_id": "n3"})).await.expect(204);
    assert!(peers(&cluster.api(active)).await.contains(&("n3".into(), false)));
    cluster.api(3).put("sys/storage/raft/promote", json!({"server_id": "n3"})).await.expect(204);
    wait_peers(&cluster.api(active), SOON, &["n0", "n1", "n2", "n3"]).await;

    // A standby goes, told through another standby.
    let places = [gone, active].map(|node| relay.address(&cluster, node));
    spoke.start(&places.join(","), &[]);
    owned(&cluster, "spoke-1", gone).await;
    let stays: Vec<usize> = (0..4).filter(|i| *i != gone).collect();
    let names: Vec<String> = stays.iter().map(|i| format!("n{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let gone_id = format!("n{gone}");
    let remove = json!({"server_id": gone_id});
    cluster.api(3).put("sys/storage/raft/remove-peer", remove).await.expect(204);
    for index in &stays {
        wait_peers(&cluster.api(*index), SOON, &names).await;
    }
    check_removed(&cluster.nodes[gone], &root).await;
    // Its streams end: the spoke is elsewhere, and comes no more to the node that is none.
    let moved = || async { (entry(&cluster, active, "spoke-1").await?["node_id"] != gone_id).then_some(()) };
    eventually_async(PATIENCE, "the spoke has moved", moved).await;
    eventually_async(SOON, "it takes no spokes", || async { (!relay.listens(&cluster, gone)).then_some(()) })
        .await;
    cluster.api(active).put("kv/a", json!({"v": "newer"})).await.expect(204);

    let leader = cluster.nodes[active].url();
    let cli = Cli::new(&cluster.nodes[gone].url());
    let refused = cli.run(&format!("operator raft rejoin {leader}")).await.expect(1);
    assert!(refused.err.contains("--yes"), "{}", refused.err);
    rejoin(&cluster.nodes[gone], &leader).await.expect(0);
    wait_peers(&cluster.api(active), PATIENCE, &["n0", "n1", "n2", "n3"]).await;
    let api = cluster.api(gone);
    let serves = || async { (api.health().await? == 429).then_some(()) };
    eventually_async(PATIENCE, "the node serves again", serves).await;
    assert_eq!(api.get("kv/a").await.expect(200).text("v"), "newer");
    let names = json!([{"server_id": "n9"}, {}]);
    for body in names.as_array().unwrap() {
        assert_eq!(api.put("sys/storage/raft/remove-peer", body.clone()).await.status, 400);
    }
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_active_node_hands_over_before_it_goes() {
    let cluster = Cluster::start(3).await;
    let active = cluster.active().await;
    let others = cluster.others(active);
    let api = cluster.api(others[0]);
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    let remove = json!({"server_id": format!("n{active}")});
    api.put("sys/storage/raft/remove-peer", remove).await.expect(204);
    let names: Vec<String> = others.iter().map(|i| format!("n{i}")).collect();
    wait_peers(&api, SOON, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    api.put("kv/a", json!({"v": 1})).await.expect(204);
    check_removed(&cluster.nodes[active], &cluster.root).await;
    rejoin(&cluster.nodes[active], &cluster.nodes[others[1]].url()).await.expect(0);
    wait_peers(&api, PATIENCE, &["n0", "n1", "n2"]).await;
    let back = cluster.api(active);
    eventually_async(PATIENCE, "the node serves again", || async {
        (back.get("kv/a").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_when_it_was_removed_rejoins_by_the_same_command() {
    let mut cluster = Cluster::start(3).await;
    let active = cluster.active().await;
    let gone = cluster.others(active)[0];
    let leader = cluster.nodes[active].url();
    // A member does not wipe itself, whoever asks.
    let refused = rejoin(&cluster.nodes[gone], &leader).await.expect(2);
    assert!(refused.err.contains("still a member"), "{}", refused.err);
    cluster.api(gone).get("sys/mounts").await.expect(200);

    cluster.nodes[gone].kill();
    let remove = json!({"server_id": format!("n{gone}")});
    cluster.api(active).put("sys/storage/raft/remove-peer", remove).await.expect(204);
    cluster.api(active).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    cluster.nodes[gone].start();
    cluster.nodes[gone].wait_listening().await;
    // It may not have heard of it yet: its disk says that it is a member.
    rejoin(&cluster.nodes[gone], &leader).await.expect(0);
    wait_peers(&cluster.api(active), PATIENCE, &["n0", "n1", "n2"]).await;
    let api = cluster.api(gone);
    eventually_async(PATIENCE, "the node serves again", || async {
        (api.get("sys/mounts/kv").await.status == 200).then_some(())
    })
    .await;
    // Its new self survives a restart.
    cluster.nodes[gone].kill();
    cluster.nodes[gone].start();
    cluster.nodes[gone].wait_listening().await;
    let serves = || async { (api.health().await? == 429).then_some(()) };
    eventually_async(PATIENCE, "the node serves after a restart", serves).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shamir_sealed_node_rejoins_and_takes_its_shares_again() {
    let mut cluster = Cluster::start_with(Options { seal: Seal::Shamir(3, 2), ..Options::default() }).await;
    let active = cluster.active().await;
    let gone = cluster.others(active)[0];
    let leader = cluster.nodes[active].url();
    cluster.nodes[gone].kill();
    let remove = json!({"server_id": format!("n{gone}")});
    cluster.api(active).put("sys/storage/raft/remove-peer", remove).await.expect(204);
    cluster.nodes[gone].start();
    cluster.nodes[gone].wait_listening().await;
    let refused = rejoin(&cluster.nodes[gone], &leader).await.expect(2);
    assert!(refused.err.contains("unseal the node first"), "{}", refused.err);
    cluster.unseal(&cluster.nodes[gone]).await;
    rejoin(&cluster.nodes[gone], &leader).await.expect(0);
    cluster.unseal(&cluster.nodes[gone]).await;
    wait_peers(&cluster.api(active), PATIENCE, &["n0", "n1", "n2"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_other_clusters_stay_what_they_are() {
    let (here, there) = (Cluster::start(1).await, Cluster::start(1).await);
    let url = there.nodes[0].url();
    for rejoin in [false, true] {
        let body = json!({"leader_api_addr": url, "rejoin": rejoin});
        let refused = here.nodes[0].api().put("sys/storage/raft/join", body).await.expect(400);
        assert!(refused.errors()[0].starts_with("node belongs to cluster "), "{:?}", refused.errors());
    }
    here.api(0).get("sys/mounts").await.expect(200);
    here.nodes[0].api().put("sys/init", json!({})).await.expect_error(400, "Vault is already initialized");
    here.api(0).put("sys/storage/raft/remove-peer", json!({"server_id": "n0"})).await.expect(400);
}
