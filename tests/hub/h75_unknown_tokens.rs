//! Who has no rights learns nothing: the answers on what exists and on what does not are the same bytes.

use holdfast_tests::api::{Api, Reply};
use holdfast_tests::hub::Cluster;
use serde_json::json;

/// What a caller sees, but for the date.
fn seen(reply: &Reply) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let mut headers: Vec<_> = reply
        .headers
        .iter()
        .filter(|(name, _)| *name != http::header::DATE)
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()))
        .collect();
    headers.sort();
    (reply.status, headers, reply.bytes.clone())
}

async fn same_everywhere(api: &Api, who: &str) {
    let paths = [
        "kv/a",
        "kv/missing",
        "kv",
        "nowhere/a",
        "sys/mounts",
        "sys/nothing",
        "sys/policies/acl/default",
        "database/creds/app",
        "auth/token/accessors",
        "sys/storage/raft/configuration",
        "sys/leases/count",
        "identity/entity/id/x",
    ];
    let first = seen(&api.get("kv/a").await);
    assert_eq!(first.0, 403, "{who}");
    for method in ["GET", "PUT", "POST", "DELETE", "LIST"] {
        for path in paths {
            let reply =
                api.send(method, path, matches!(method, "PUT" | "POST").then(|| json!({"x": 1}))).await;
            assert_eq!(seen(&reply), first, "{who}: {method} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_without_rights_are_identical_on_what_exists_and_what_does_not() {
    let cluster = Cluster::start(2).await;
    let active = cluster.active().await;
    let root = cluster.api(active);
    root.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    root.put("kv/a", json!({"v": 1})).await.expect(204);
    root.put("sys/policies/acl/nothing", json!({"policy": "path \"other/x\" { capabilities = [\"read\"] }"}))
        .await
        .expect(204);
    let body = json!({"policies": ["nothing"], "no_default_policy": true});
    let poor = root.put("auth/token/create", body).await.expect(200);
    let poor = poor.body["auth"]["client_token"].as_str().unwrap().to_owned();
    let dead = root.put("auth/token/create", json!({"policies": ["root"]})).await.expect(200);
    let dead = dead.body["auth"]["client_token"].as_str().unwrap().to_owned();
    root.put("auth/token/revoke", json!({"token": dead})).await.expect(204);
    for node in &cluster.nodes {
        same_everywhere(&node.api(), "no token").await;
        same_everywhere(&node.api().with_token("hvs.abcdefghijklmnopqrstuvwx"), "an unknown token").await;
        same_everywhere(&node.api().with_token("gibberish"), "no token at all").await;
        same_everywhere(&node.api().with_token(&dead), "a revoked token").await;
        same_everywhere(&node.api().with_token(&poor), "a token without rights").await;
    }
    cluster.check_logs(&[]);
}
