//! Nodes with a key file come back by themselves, and the key file is guarded.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use holdfast_tests::hub::{Cluster, Node, Options};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_a_key_file_comes_back_without_an_operator() {
    let mut cluster = Cluster::start(3).await;
    let active = cluster.active().await;
    cluster.api(active).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    cluster.api(active).put("kv/a", json!({"v": "kept"})).await.expect(204);
    cluster.nodes.iter_mut().for_each(Node::kill);
    cluster.nodes.iter_mut().for_each(Node::start);
    for node in &mut cluster.nodes {
        node.wait_listening().await;
    }
    cluster.wait_complete().await;
    for index in 0..3 {
        assert_eq!(cluster.api(index).get("kv/a").await.expect(200).text("v"), "kept");
    }
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_file_that_others_may_read_is_refused() {
    let cluster = Cluster::prepare(Options::default());
    let key = cluster.dir().join("seal.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let mut node = Node::prepare(cluster.dir(), 0, &Options::default(), &[]);
    node.start();
    assert_eq!(node.process().wait(Duration::from_secs(30)).code(), Some(64));
    assert!(node.log().contains("seal.key"), "the file is named: {}", node.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn init_of_a_key_file_seal_gives_recovery_keys() {
    let cluster = Cluster::prepare(Options::default());
    let mut node = Node::prepare(cluster.dir(), 0, &Options::default(), &[]);
    node.start();
    node.wait_listening().await;
    let refused = node.api().put("sys/init", json!({"secret_shares": 5, "secret_threshold": 3})).await;
    refused.expect_error(400, "parameters secret_shares not applicable to seal type keyfile");
    let body = json!({"recovery_shares": 3, "recovery_threshold": 2});
    let reply = node.api().put("sys/init", body).await.expect(200);
    assert_eq!(reply.body["recovery_keys"].as_array().unwrap().len(), 3);
    assert_eq!(reply.body["recovery_keys_base64"].as_array().unwrap().len(), 3);
    assert!(reply.body["root_token"].as_str().unwrap().starts_with("hvs."));
}
