//! What is secret of a cluster, what a sealed node does, and how a node gets in.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Node, Options, PATIENCE, Seal};
use serde_json::json;
use tokio::net::TcpStream;

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

fn holds(path: &Path, wanted: &[u8]) -> bool {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_life_of_a_sealed_cluster() {
    let env = vec![("HOLDFAST_LOG".to_owned(), "debug".to_owned())];
    let mut cluster = Cluster::start_with(Options { seal: Seal::Shamir(3, 2), env, ..Options::calm() }).await;
    let active = cluster.active().await;
    let api = cluster.api(active);
    api.get("sys/policies/acl/default").await.expect(200);
    api.put("sys/mounts/team-secrets", json!({"type": "kv"})).await.expect(204);
    api.put("team-secrets/payroll", json!({"v": "the-value-5f2c"})).await.expect(204);
    let made = api.put("auth/token/create", json!({"ttl": "1h"})).await.expect(200);
    let token = made.body["auth"]["client_token"].as_str().unwrap().to_owned();

    secrets_are_nowhere(&cluster, &token);
    nobody_joins_without_the_root_key(&cluster, active).await;
    a_sealed_node_takes_no_part(&mut cluster, active).await;
    a_node_unseals_from_its_own_disk(&mut cluster).await;
    assert_eq!(cluster.api(0).get("team-secrets/payroll").await.expect(200).text("v"), "the-value-5f2c");
    cluster.check_logs(&[]);
}

/// Shares, root token and tokens were told once; values are sealed; paths are not.
fn secrets_are_nowhere(cluster: &Cluster, token: &str) {
    let mut secrets: Vec<Vec<u8>> =
        [&cluster.root, token, "the-value-5f2c"].map(|t| t.as_bytes().to_vec()).into();
    // The part behind the prefix alone would do, too.
    secrets.push(token.trim_start_matches("hvs.").as_bytes().to_vec());
    for key in &cluster.keys {
        let bytes = BASE64.decode(key).unwrap();
        secrets.extend([key.as_bytes().to_vec(), hex::encode(&bytes).into_bytes(), bytes]);
    }
    let places = files(cluster.dir());
    assert!(places.len() > 10);
    for place in &places {
        for secret in &secrets {
            assert!(!holds(place, secret), "{place:?} holds a secret in clear");
        }
    }
    let clear = |text: &str| places.iter().any(|place| holds(place, text.as_bytes()));
    assert!(clear("sys/mounts/team-secrets/") && clear("/payroll"), "paths are in clear");
}

/// The challenge is for who can open it, and for the node that asked.
async fn nobody_joins_without_the_root_key(cluster: &Cluster, active: usize) {
    let api = cluster.nodes[active].api();
    let path = |step: &str| format!("sys/storage/raft/bootstrap/{step}");
    let asked = api.put(&path("challenge"), json!({"server_id": "stranger"})).await.expect(200);
    assert!(asked.data()["challenge"].is_string(), "{}", asked.body);
    let answer = |id: &str, answer: &str| json!({"server_id": id, "answer": answer, "cluster_addr": "127.0.0.1:1", "api_addr": "http://127.0.0.1:1"});
    let challenge = asked.text("challenge");
    for body in [
        answer("stranger", &BASE64.encode([7; 32])),
        // Now that it was answered wrongly it cannot be tried again.
        answer("stranger", &challenge),
        answer("nobody-asked", &BASE64.encode([7; 32])),
    ] {
        let refused = api.put(&path("answer"), body).await.expect(400);
        assert!(refused.body.get("data").is_none_or(serde_json::Value::is_null), "{}", refused.body);
    }
    let told = cluster.api(active).get("sys/storage/raft/configuration").await.expect(200);
    assert_eq!(told.data()["config"]["servers"].as_array().unwrap().len(), 3);
}

async fn a_sealed_node_takes_no_part(cluster: &mut Cluster, active: usize) {
    let sealed = cluster.others(active)[0];
    cluster.api(sealed).put("sys/seal", json!({})).await.expect(204);
    let (node, root) = (&cluster.nodes[sealed], cluster.api(sealed));
    let closed = || async { TcpStream::connect(("127.0.0.1", node.cluster_port)).await.err().map(drop) };
    eventually_async(PATIENCE, "its cluster port is closed", closed).await;
    for path in [
        "team-secrets/payroll",
        "sys/mounts",
        "auth/token/lookup-self",
        "sys/leader",
        "sys/metrics",
        "no/where",
        "sys/ha-status",
    ] {
        let refused = root.get(path).await;
        assert_eq!(refused.headers["retry-after"], "1", "{path}");
        refused.expect_error(503, "Vault is sealed");
    }
    let join = root.put("sys/storage/raft/bootstrap/challenge", json!({"server_id": "x"})).await;
    join.expect_error(503, "Vault is sealed");
    root.get("sys/health?sealedcode=299").await.expect(299);
    assert_eq!(root.get("sys/seal-status").await.expect(200).body["sealed"], true);
    assert_eq!(root.get("sys/init").await.expect(200).body["initialized"], true);
    root.put("sys/unseal", json!({"reset": true})).await.expect(200);
    // It counts neither as a follower nor as a vote: with one more away nobody is active.
    let third = *cluster.others(active).iter().find(|index| **index != sealed).unwrap();
    cluster.nodes[third].kill();
    let api = cluster.nodes[active].api();
    let alone = || async { (api.health().await? == 429).then_some(()) };
    eventually_async(PATIENCE, "the last unsealed node is not active", alone).await;
    cluster.unseal(&cluster.nodes[sealed]).await;
    let leads = || async { (cluster.nodes[sealed].api().health().await? != 503).then_some(()) };
    eventually_async(PATIENCE, "it is unsealed", leads).await;
    let index = cluster.active().await;
    cluster.api(index).put("team-secrets/other", json!({"v": 1})).await.expect(204);
}

async fn a_node_unseals_from_its_own_disk(cluster: &mut Cluster) {
    cluster.nodes.iter_mut().for_each(Node::kill);
    cluster.nodes[0].start();
    cluster.nodes[0].wait_listening().await;
    let api = cluster.nodes[0].api();
    api.get("sys/health").await.expect(503);
    // The others are away: nobody to ask.
    cluster.unseal(&cluster.nodes[0]).await;
    assert_eq!(api.get("sys/seal-status").await.expect(200).body["sealed"], false);
    let standby = || async { (api.health().await? == 429).then_some(()) };
    eventually_async(PATIENCE, "it is an unsealed standby", standby).await;
    for node in &mut cluster.nodes[1..] {
        node.start();
        node.wait_listening().await;
    }
    for node in &cluster.nodes[1..] {
        cluster.unseal(node).await;
    }
    cluster.wait_complete().await;
}
