//! The shape of answers, whatever node gives them.

use holdfast_tests::hub::Cluster;
use serde_json::{Value, json};

const ENVELOPE: [&str; 8] =
    ["auth", "data", "lease_duration", "lease_id", "renewable", "request_id", "warnings", "wrap_info"];

#[tokio::test(flavor = "multi_thread")]
async fn answers_have_one_shape_through_every_node() {
    let cluster = Cluster::start(3).await;
    let active = cluster.active().await;
    cluster.api(active).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    for index in 0..3 {
        let api = cluster.api(index);
        let path = format!("kv/n{index}");
        api.put(&path, json!({"a": 1})).await.expect(204);
        api.send("POST", &path, Some(json!({"a": 2}))).await.expect(204);

        let reply = api.get(&path).await.expect(200);
        let keys: Vec<_> = reply.body.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ENVELOPE);
        assert_eq!(reply.headers["content-type"], "application/json");
        assert_eq!(reply.headers["cache-control"], "no-store");
        assert!(reply.headers.get("strict-transport-security").is_none(), "only under TLS");
        assert_eq!((reply.data(), &reply.body["auth"]), (&json!({"a": 2}), &Value::Null));

        let missing = api.get("kv/none").await.expect(404);
        assert_eq!(missing.bytes.trim_ascii(), br#"{"errors":[]}"#);
        assert_eq!(missing.headers["content-type"], "application/json");
        let (listed, asked) = (api.list("kv").await.expect(200), api.get("kv?list=true").await.expect(200));
        assert_eq!(listed.data(), asked.data());
        api.get("kv?list=maybe").await.expect(400);
        api.get("kv/empty/?list=true").await.expect(404);
    }
    let api = cluster.api(0);
    let keys = api.list("kv").await.data()["keys"].clone();
    assert_eq!(keys, json!(["n0", "n1", "n2"]));
    assert_eq!(api.get("kv?list=true&after=n0&limit=1").await.data()["keys"], json!(["n1"]));
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_told_apart_and_change_nothing() {
    let cluster = Cluster::start(3).await;
    let active = cluster.active().await;
    cluster.api(active).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    for index in [active, cluster.others(active)[0]] {
        let api = cluster.api(index);
        for body in ["{", "[]", "\"x\"", "1", "nul", "{\"a\": }"] {
            let reply = api.try_send("PUT", "kv/bad", Some(body.into())).await.unwrap();
            reply.expect_error(400, "error parsing JSON");
        }
        let big = json!({"a": "x".repeat(33 << 20)}).to_string().into_bytes();
        // The server may answer and close before it read everything: both are a refusal.
        if let Ok(reply) = api.try_send("PUT", "kv/bad", Some(big)).await {
            reply.expect_error(413, "http: request body too large");
        }
        let reply = api.send("PATCH", "kv/bad", Some(json!({}))).await.expect(415);
        assert!(reply.errors()[0].starts_with("PATCH requires Content-Type of application/merge-patch+json"));
        api.get("kv/a/../b").await;
        api.get("kv/bad").await.expect(404);
        api.get("nowhere/x").await.expect(404);
        let reply = api.with_token("hvs.unknown").get("nowhere/x").await;
        reply.expect_error(403, "permission denied");
        api.with_token("hvs.unknown").get("kv/x").await.expect_error(403, "permission denied");
        let reply = api.with_header("X-Vault-Namespace", "team").get("kv/bad").await;
        assert_eq!(reply.status, 404);
        api.with_header("X-Vault-Namespace", "root").get("kv").await.expect(404);
    }
    cluster.check_logs(&[]);
}
