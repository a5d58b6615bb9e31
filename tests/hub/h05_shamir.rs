//! Shares open the seal, enough of them and only the right ones.

use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Node, Options, PATIENCE, Seal};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn any_three_of_five_shares_open_the_seal() {
    let options = Options { nodes: 1, seal: Seal::Shamir(5, 3), ..Options::default() };
    let mut cluster = Cluster::start_with(options).await;
    assert_eq!(cluster.keys.len(), 5);
    for picks in [[0, 1, 2], [4, 2, 0], [3, 4, 1]] {
        restart(&mut cluster.nodes[0]).await;
        let api = cluster.nodes[0].api();
        let mut last = json!(null);
        for (given, pick) in picks.iter().enumerate() {
            assert_eq!(api.get("sys/seal-status").await.body["progress"], given);
            last = api.put("sys/unseal", json!({"key": cluster.keys[*pick]})).await.expect(200).body;
        }
        assert_eq!(last["sealed"], false);
        eventually_async(PATIENCE, "active again", || async { (api.health().await? == 200).then_some(()) })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_and_missing_shares_do_not() {
    let options = Options { nodes: 1, seal: Seal::Shamir(5, 3), ..Options::default() };
    let mut cluster = Cluster::start_with(options).await;
    restart(&mut cluster.nodes[0]).await;
    let api = cluster.nodes[0].api();
    let unseal = async |key: &str| api.put("sys/unseal", json!({"key": key})).await;

    unseal(&cluster.keys[0]).await.expect(200);
    let again = unseal(&cluster.keys[0]).await.expect(200);
    assert_eq!(again.body["progress"], 1, "the same share twice counts once");
    unseal(&cluster.keys[1]).await.expect(200);
    let reset = api.put("sys/unseal", json!({"reset": true})).await.expect(200);
    assert_eq!((&reset.body["progress"], &reset.body["sealed"]), (&json!(0), &json!(true)));

    // A share with one byte changed is a share of another secret.
    let mut bytes = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, &cluster.keys[2]).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    let forged = hex::encode(bytes);
    unseal(&cluster.keys[0]).await.expect(200);
    unseal(&cluster.keys[1]).await.expect(200);
    unseal(&forged).await.expect_error(400, "unseal failed, invalid key");
    assert_eq!(api.get("sys/seal-status").await.body["progress"], 0);

    let missing = api.put("sys/unseal", json!({})).await;
    missing.expect_error(400, "'key' must be specified in request body as JSON, or 'reset' set to true");
    unseal("!!").await.expect_error(400, "'key' must be a valid hex or base64 string");
    api.get("sys/mounts").await.expect_error(503, "Vault is sealed");
    api.put("sys/init", json!({})).await.expect_error(400, "Vault is already initialized");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_seal_configurations_are_refused() {
    let cluster = Cluster::prepare(Options { seal: Seal::Shamir(1, 1), ..Options::default() });
    let mut node =
        Node::prepare(cluster.dir(), 0, &Options { seal: Seal::Shamir(1, 1), ..Options::default() }, &[]);
    node.start();
    node.wait_listening().await;
    for (shares, threshold) in [(0, 1), (1, 2), (5, 1), (256, 3), (3, 0)] {
        let body = json!({"secret_shares": shares, "secret_threshold": threshold});
        let reply = node.api().put("sys/init", body).await.expect(400);
        assert!(reply.errors()[0].starts_with("invalid seal configuration: "), "{:?}", reply.errors());
    }
    let reply = node
        .api()
        .put("sys/init", json!({"secret_shares": 1, "secret_threshold": 1, "pgp_keys": ["x"]}))
        .await;
    reply.expect_error(400, "PGP keys are not supported");
    assert_eq!(node.api().get("sys/init").await.expect(200).body, json!({"initialized": false}));
}

async fn restart(node: &mut Node) {
    node.kill();
    node.start();
    node.wait_listening().await;
    assert_eq!(node.api().get("sys/seal-status").await.body["sealed"], true);
}
