//! Policies through the API: what a caller may do where, on every node.

use holdfast_tests::hub::Cluster;
use serde_json::json;

/// The policies of the table.
const POLICIES: [(&str, &str); 5] = [
    (
        "base",
        r#"
        path "secret/*" { capabilities = ["read", "list"] }
        path "secret/team/*" { capabilities = ["create", "read", "update", "delete", "list"] }
        path "secret/team/locked" { capabilities = ["deny"] }
        path "secret/+/shared" { capabilities = ["read"] }
        path "secret/+/+/deep" { capabilities = ["update"] }
        path "plus/+/shared/*" { capabilities = ["list"] }
        path "kv/one" { capabilities = ["read"] }
        path "kv/list" { capabilities = ["list"] }
        path "kv/pre*" { capabilities = ["patch"] }
        "#,
    ),
    (
        "more",
        r#"
        path "kv/one" { capabilities = ["update", "sudo"] }
        path "secret/team/*" { capabilities = ["patch"] }
        path "secret/*" { capabilities = ["scan"] }
        "#,
    ),
    (
        "ban",
        "path \"kv/one\" { capabilities = [\"deny\"] }\npath \"secret/team/*\" { capabilities = [\"deny\", \"read\"] }",
    ),
    ("all", r#"path "*" { capabilities = ["create", "read", "update", "patch", "delete", "list", "sudo"] }"#),
    ("json", r#"{"path": {"json/+/x": {"capabilities": ["read", "create"]}}}"#),
];

/// Policies of a token, a path, and what `sys/capabilities` says of it.
const TABLE: [(&[&str], &str, &[&str]); 36] = [
    (&["base"], "secret/x", &["list", "read"]),
    (&["base"], "secret/", &["list", "read"]),
    (&["base"], "secret", &["deny"]),
    (&["base"], "secrets/x", &["deny"]),
    (&["base"], "secret/team/x", &["create", "delete", "list", "read", "update"]),
    (&["base"], "secret/team/", &["create", "delete", "list", "read", "update"]),
    (&["base"], "secret/team/locked", &["deny"]),
    (&["base"], "secret/team/locked/x", &["create", "delete", "list", "read", "update"]),
    (&["base"], "secret/team/shared", &["create", "delete", "list", "read", "update"]),
    (&["base"], "secret/other/shared", &["read"]),
    (&["base"], "secret/other/sharedx", &["list", "read"]),
    (&["base"], "secret/a/b/deep", &["update"]),
    (&["base"], "secret/a/b/c/deep", &["list", "read"]),
    (&["base"], "plus/other/shared/x/y", &["list"]),
    (&["base"], "plus/other/sharedx", &["deny"]),
    (&["base"], "plus/a/b/shared/x", &["deny"]),
    (&["base"], "kv/one", &["read"]),
    (&["base"], "kv/one/x", &["deny"]),
    (&["base"], "kv/list/", &["list"]),
    (&["base"], "kv/prefix", &["patch"]),
    (&["base"], "kv/pre", &["patch"]),
    (&["base"], "kv/pr", &["deny"]),
    (&["base", "more"], "kv/one", &["read", "sudo", "update"]),
    (&["base", "more"], "secret/team/x", &["create", "delete", "list", "patch", "read", "update"]),
    (&["base", "more"], "secret/x", &["list", "read", "scan"]),
    (&["more"], "secret/x", &["scan"]),
    (&["base", "ban"], "kv/one", &["deny"]),
    (&["base", "ban"], "secret/team/x", &["deny"]),
    (&["ban", "base", "more"], "secret/x", &["list", "read", "scan"]),
    (&["all"], "anything/at/all", &["create", "delete", "list", "patch", "read", "sudo", "update"]),
    (&["all", "base"], "secret/x", &["list", "read"]),
    (&["all", "base"], "other", &["create", "delete", "list", "patch", "read", "sudo", "update"]),
    (&["json"], "json/a/x", &["create", "read"]),
    (&["json"], "json/a/b/x", &["deny"]),
    (&["default"], "auth/token/lookup-self", &["read", "update"]),
    (&["unknown"], "secret/x", &["deny"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_policies_holds_through_every_node() {
    let cluster = Cluster::start(3).await;
    let root = cluster.api(cluster.active().await);
    for (name, text) in POLICIES {
        root.put(&format!("sys/policies/acl/{name}"), json!({"policy": text})).await.expect(204);
    }
    for (row, (policies, path, expected)) in TABLE.iter().enumerate() {
        let body = json!({"policies": policies, "no_default_policy": true, "ttl": "1h"});
        let made = root.put("auth/token/create", body).await.expect(200);
        let token = made.body["auth"]["client_token"].as_str().unwrap();
        let index = row % 3;
        let asked =
            cluster.api(index).put("sys/capabilities", json!({"token": token, "paths": [path]})).await;
        assert_eq!(asked.expect(200).data()[path], json!(expected), "{policies:?} on {path}");
        let own = cluster.nodes[index].api().with_token(token);
        // The token itself may only ask where its policies let it.
        if policies.contains(&"all") {
            let asked = own.put("sys/capabilities-self", json!({"paths": [path]})).await.expect(200);
            assert_eq!(asked.body["capabilities"], json!(expected), "{policies:?} on {path}");
        }
    }
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn capabilities_are_what_requests_are_judged_by() {
    let cluster = Cluster::start(3).await;
    let active = cluster.active().await;
    let root = cluster.api(active);
    root.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    root.put("kv/old", json!({"v": 1})).await.expect(204);
    let policy = r#"
        path "kv/new*" { capabilities = ["create"] }
        path "kv/old" { capabilities = ["update"] }
        path "kv" { capabilities = ["list"] }
        path "kv/checked" {
            capabilities = ["create", "update"]
            allowed_parameters = { "a" = ["1", "2"], "b" = [] }
            required_parameters = ["a"]
        }
        path "kv/barred" {
            capabilities = ["create", "update"]
            denied_parameters = { "c" = [] }
        }
    "#;
    root.put("sys/policies/acl/p", json!({"policy": policy})).await.expect(204);
    let token = root.put("auth/token/create", json!({"policies": ["p"]})).await.expect(200);
    let token = token.body["auth"]["client_token"].as_str().unwrap().to_owned();
    for index in 0..3 {
        let api = cluster.nodes[index].api().with_token(&token);
        let denied = "permission denied";
        let fresh = format!("kv/new{index}");
        api.put(&fresh, json!({"v": 1})).await.expect(204);
        api.put(&fresh, json!({"v": 2})).await.expect_error(403, denied);
        api.get(&fresh).await.expect_error(403, denied);
        api.put("kv/old", json!({"v": 2})).await.expect(204);
        api.delete("kv/old").await.expect_error(403, denied);
        api.list("kv").await.expect(200);
        api.put("kv/checked", json!({"a": "1", "b": "any"})).await.expect(204);
        api.put("kv/checked", json!({"a": "3"})).await.expect_error(403, denied);
        api.put("kv/checked", json!({"b": "any"})).await.expect_error(403, denied);
        api.put("kv/checked", json!({"a": "1", "z": "x"})).await.expect_error(403, denied);
        api.put("kv/barred", json!({"a": "1"})).await.expect(204);
        api.put("kv/barred", json!({"c": "1"})).await.expect_error(403, denied);
        api.get("sys/mounts").await.expect_error(403, denied);
    }
    // A change of the policy holds for tokens that exist, on every node.
    root.put("sys/policies/acl/p", json!({"policy": "path \"kv/old\" { capabilities = [\"read\"] }"}))
        .await
        .expect(204);
    for index in 0..3 {
        let api = cluster.nodes[index].api().with_token(&token);
        api.get("kv/old").await.expect(200);
        api.put("kv/old", json!({"v": 2})).await.expect_error(403, "permission denied");
    }
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_understood_is_refused() {
    let cluster = Cluster::start(1).await;
    let root = cluster.api(0);
    for text in [
        "path \"a\" { capabilities = [\"read\"] }\nrule \"x\" {}",
        "path \"a\" { capabilities = [\"fly\"] }",
        "path \"a\" { capabilities = [\"read\"]\n allowed_params = {} }",
        "path \"a\" { policy = 7 }",
        "path \"a\" {",
        "name = \"x\"",
        "{\"path\": {\"a\": {\"caps\": []}}}",
    ] {
        let reply = root.put("sys/policies/acl/bad", json!({"policy": text})).await;
        assert_eq!(reply.status, 400, "{text}: {}", reply.body);
    }
    root.get("sys/policies/acl/bad").await.expect(404);
    let reply =
        root.put("sys/policies/acl/root", json!({"policy": "path \"a\" { capabilities = [\"read\"] }"}));
    assert_eq!(reply.await.status, 400);
    assert_eq!(root.delete("sys/policies/acl/root").await.status, 400);
    assert_eq!(root.delete("sys/policies/acl/default").await.status, 400);
    let own = "path \"auth/token/lookup-self\" { capabilities = [\"read\"] }";
    root.put("sys/policies/acl/default", json!({"policy": own})).await.expect(204);
    assert_eq!(root.get("sys/policies/acl/default").await.expect(200).text("policy"), own);
    let listed = root.list("sys/policies/acl").await.expect(200);
    assert_eq!(listed.data()["keys"], json!(["default", "root"]));
    cluster.check_logs(&[]);
}
