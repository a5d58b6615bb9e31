//! Answers handed over by a token that opens them once, on whatever node.

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::settled;
use serde_json::{Value, json};

const USED: &str = "wrapping token is not valid or does not exist";

#[tokio::test(flavor = "multi_thread")]
async fn a_wrapped_login_is_opened_once_through_any_node() {
    let (cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let active = cluster.active().await;
    cluster.api(active).setup_postgres(&database, "1h").await;
    for index in 0..3 {
        let wrapped =
            cluster.api(index).with_header("X-Vault-Wrap-TTL", "5m").get("database/creds/app").await;
        let wrapped = wrapped.expect(200);
        let info = wrapped.body["wrap_info"].clone();
        assert_eq!((&wrapped.body["data"], &wrapped.body["auth"]), (&Value::Null, &Value::Null));
        assert_eq!(wrapped.body["lease_id"], "");
        assert_eq!((&info["ttl"], &info["creation_path"]), (&json!(300), &json!("database/creds/app")));
        assert!(info["creation_time"].as_str().unwrap().contains('T'));
        let token = info["token"].as_str().unwrap();

        let open = cluster.nodes[(index + 1) % 3].api();
        let looked = open.put("sys/wrapping/lookup", json!({"token": token})).await.expect(200);
        assert_eq!(looked.text("creation_path"), "database/creds/app");
        open.with_token(token).get("cubbyhole/response").await.expect(403);
        let opened = open.with_token(token).put("sys/wrapping/unwrap", json!({})).await.expect(200);
        assert!(opened.body["lease_id"].as_str().unwrap().starts_with("database/creds/app/"));
        assert!(database.can_log_in(&opened.text("username"), &opened.text("password")).await);
        for again in 0..3 {
            let api = cluster.nodes[again].api();
            api.put("sys/wrapping/unwrap", json!({"token": token})).await.expect_error(400, USED);
            api.with_token(token).put("sys/wrapping/unwrap", json!({})).await.expect_error(400, USED);
        }
        cluster
            .api(index)
            .put("sys/leases/renew", json!({"lease_id": opened.body["lease_id"]}))
            .await
            .expect(200);
    }
    settled(&cluster.api(active), &database, PATIENCE).await;
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_callers_on_three_nodes_one_opens_it() {
    let cluster = Cluster::start(3).await;
    let root = cluster.api(cluster.active().await).with_header("X-Vault-Wrap-TTL", "60");
    for _ in 0..5 {
        let wrapped = root.put("sys/wrapping/wrap", json!({"a": "b"})).await.expect(200);
        let token = wrapped.body["wrap_info"]["token"].as_str().unwrap().to_owned();
        let callers = (0..9).map(|caller| {
            let (api, token) = (cluster.nodes[caller % 3].api(), token.clone());
            async move { api.put("sys/wrapping/unwrap", json!({"token": token})).await }
        });
        let replies = futures_util::future::join_all(callers).await;
        let (won, lost): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.status == 200);
        assert_eq!(won.len(), 1);
        assert_eq!(won[0].data(), &json!({"a": "b"}));
        lost.into_iter().for_each(|reply| reply.expect_error(400, USED));
    }
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lives_of_wrapped_answers_are_bounded() {
    let cluster = Cluster::start(1).await;
    let root = cluster.api(0);
    for bad in ["0.5s", "x", "-1", "999999h"] {
        let reply = root.with_header("X-Vault-Wrap-TTL", bad).put("sys/wrapping/wrap", json!({"a": 1})).await;
        assert_eq!(reply.status, 400, "{bad}: {}", reply.body);
    }
    let wrap = root
        .with_header("X-Vault-Wrap-TTL", "1s")
        .put("sys/wrapping/wrap", json!({"a": 1}))
        .await
        .expect(200);
    let token = wrap.body["wrap_info"]["token"].clone();
    let ended = || async {
        (cluster.nodes[0].api().put("sys/wrapping/lookup", json!({"token": token})).await.status == 400)
            .then_some(())
    };
    eventually_async(PATIENCE, "the wrapping token has ended", ended).await;
    cluster.nodes[0].api().put("sys/wrapping/unwrap", json!({"token": token})).await.expect_error(400, USED);

    // A policy can demand that answers be wrapped, within its own bounds.
    root.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    root.put("kv/a", json!({"v": 1})).await.expect(204);
    let policy = "path \"kv/a\" {\n capabilities = [\"read\"]\n min_wrapping_ttl = \"10s\"\n max_wrapping_ttl = \"60s\"\n}";
    root.put("sys/policies/acl/w", json!({"policy": policy})).await.expect(204);
    let made = root.put("auth/token/create", json!({"policies": ["w"]})).await.expect(200);
    let own = root.with_token(made.body["auth"]["client_token"].as_str().unwrap());
    assert_ne!(own.get("kv/a").await.status, 200);
    assert_ne!(own.with_header("X-Vault-Wrap-TTL", "5s").get("kv/a").await.status, 200);
    assert_ne!(own.with_header("X-Vault-Wrap-TTL", "2m").get("kv/a").await.status, 200);
    own.with_header("X-Vault-Wrap-TTL", "30s").get("kv/a").await.expect(200);
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cubbyhole_belongs_to_one_token_and_dies_with_it() {
    let cluster = Cluster::start(3).await;
    let root = cluster.api(cluster.active().await);
    let made = root.put("auth/token/create", json!({"ttl": "1h"})).await.expect(200);
    let token = made.body["auth"]["client_token"].as_str().unwrap().to_owned();
    for index in 0..3 {
        let own = cluster.nodes[index].api().with_token(&token);
        own.put(&format!("cubbyhole/n{index}"), json!({"v": index})).await.expect(204);
        let other = cluster.nodes[(index + 1) % 3].api().with_token(&token);
        assert_eq!(other.get(&format!("cubbyhole/n{index}")).await.expect(200).data()["v"], index);
        cluster.api(index).get(&format!("cubbyhole/n{index}")).await.expect_missing();
    }
    root.put("auth/token/revoke", json!({"token": token})).await.expect(204);
    root.with_token(&token).get("cubbyhole/n0").await.expect_error(403, "permission denied");
    cluster.check_logs(&[]);
}
