//! AppRole and userpass through a standby, with the texts that clients match.

use holdfast_tests::api::Api;
use holdfast_tests::hub::Cluster;
use serde_json::json;

/// Two nodes, the standby's API as root and without a token.
async fn start() -> (Cluster, Api, Api) {
    let cluster = Cluster::start(3).await;
    let standby = cluster.others(cluster.active().await)[0];
    let (root, open) = (cluster.api(standby), cluster.nodes[standby].api());
    root.put("sys/policies/acl/app", json!({"policy": "path \"kv/*\" { capabilities = [\"read\"] }"}))
        .await
        .expect(204);
    (cluster, root, open)
}

#[tokio::test(flavor = "multi_thread")]
async fn approle_logs_in_and_refuses_with_one_text() {
    let (cluster, root, open) = start().await;
    root.put("sys/auth/approle", json!({"type": "approle"})).await.expect(204);
    let role = json!({"token_policies": "app", "token_ttl": "10m", "token_max_ttl": "1h", "secret_id_num_uses": 2,
        "secret_id_ttl": "10m"});
    root.put("auth/approle/role/web", role).await.expect(204);
    let role_id = root.get("auth/approle/role/web/role-id").await.expect(200).text("role_id");
    let made = root.put("auth/approle/role/web/secret-id", json!({"metadata": "{\"host\": \"a\"}"})).await;
    let made = made.expect(200);
    let secret_id = made.text("secret_id");
    assert_eq!(
        (made.data()["secret_id_num_uses"].as_u64(), made.data()["secret_id_ttl"].as_u64()),
        (Some(2), Some(600))
    );

    let login = async |role: &str, secret: &str| {
        open.put("auth/approle/login", json!({"role_id": role, "secret_id": secret})).await
    };
    let reply = login(&role_id, &secret_id).await.expect(200);
    let auth = &reply.body["auth"];
    assert_eq!((&auth["policies"], &auth["lease_duration"]), (&json!(["app", "default"]), &json!(600)));
    assert_eq!((&auth["renewable"], &auth["token_type"]), (&json!(true), &json!("service")));
    let own = open.with_token(auth["client_token"].as_str().unwrap());
    own.get("auth/token/lookup-self").await.expect(200);
    own.get("kv/x").await;
    let renewed = own.put("auth/token/renew-self", json!({"increment": "2h"})).await.expect(200);
    assert!(renewed.body["auth"]["lease_duration"].as_u64().unwrap() <= 3600);

    let wrong = "invalid role or secret ID";
    login(&role_id, "no-such-secret").await.expect_error(400, wrong);
    login("no-such-role", &secret_id).await.expect_error(400, wrong);
    login(&role_id, &secret_id).await.expect(200);
    login(&role_id, &secret_id).await.expect_error(400, wrong);
    open.put("auth/approle/login", json!({"secret_id": "x"})).await.expect_error(400, "missing role_id");
    open.put("auth/approle/login", json!({"role_id": role_id})).await.expect_error(400, "missing secret_id");

    let second = root.put("auth/approle/role/web/secret-id", json!({})).await.expect(200);
    let (secret, accessor) = (second.text("secret_id"), second.text("secret_id_accessor"));
    let found =
        root.put("auth/approle/role/web/secret-id/lookup", json!({"secret_id": secret})).await.expect(200);
    assert_eq!(found.text("secret_id_accessor"), accessor);
    root.put("auth/approle/role/web/secret-id-accessor/destroy", json!({"secret_id_accessor": accessor}))
        .await
        .expect(204);
    login(&role_id, &secret).await.expect_error(400, wrong);
    let own = json!({"secret_id": "my-own-secret-id"});
    root.put("auth/approle/role/web/custom-secret-id", own).await.expect(200);
    login(&role_id, "my-own-secret-id").await.expect(200);

    let bound = json!({"token_policies": "app", "secret_id_bound_cidrs": "192.0.2.0/24"});
    root.put("auth/approle/role/bound", bound).await.expect(204);
    let id = root.get("auth/approle/role/bound/role-id").await.expect(200).text("role_id");
    let secret = root.put("auth/approle/role/bound/secret-id", json!({})).await.expect(200).text("secret_id");
    let refused = login(&id, &secret).await;
    assert!(matches!(refused.status, 400 | 403), "{}", refused.body);
    root.delete("auth/approle/role/web").await.expect(204);
    login(&role_id, "my-own-secret-id").await.expect_error(400, wrong);
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn userpass_logs_in_and_refuses_with_one_text() {
    let (cluster, root, open) = start().await;
    root.put("sys/auth/userpass", json!({"type": "userpass"})).await.expect(204);
    let ann = json!({"password": "s3cret-of-ann", "token_policies": ["app"], "token_ttl": "5m"});
    root.put("auth/userpass/users/ann", ann).await.expect(204);
    let login = async |name: &str, password: &str| {
        open.put(&format!("auth/userpass/login/{name}"), json!({"password": password})).await
    };
    let reply = login("ann", "s3cret-of-ann").await.expect(200);
    let auth = &reply.body["auth"];
    assert_eq!(
        (&auth["policies"], &auth["metadata"]["username"]),
        (&json!(["app", "default"]), &json!("ann"))
    );
    assert_eq!(auth["lease_duration"], 300);
    let token = auth["client_token"].as_str().unwrap();
    assert_eq!(
        open.with_token(token).get("auth/token/lookup-self").await.expect(200).text("display_name"),
        "userpass-ann"
    );

    let wrong = "invalid username or password";
    login("ann", "wrong").await.expect_error(400, wrong);
    login("nobody", "wrong").await.expect_error(400, wrong);
    open.put("auth/userpass/login/ann", json!({})).await.expect(400);
    let shown = root.get("auth/userpass/users/ann").await.expect(200);
    assert!(!String::from_utf8_lossy(&shown.bytes).contains("s3cret-of-ann"));
    assert!(shown.data()["password"].is_null());
    root.put("auth/userpass/users/ann/password", json!({"password": "another-one"})).await.expect(204);
    login("ann", "s3cret-of-ann").await.expect_error(400, wrong);
    login("ann", "another-one").await.expect(200);
    assert_eq!(root.list("auth/userpass/users").await.expect(200).data()["keys"], json!(["ann"]));
    root.delete("auth/userpass/users/ann").await.expect(204);
    login("ann", "another-one").await.expect_error(400, wrong);
    root.delete("sys/auth/userpass").await.expect(204);
    open.with_token(token).get("auth/token/lookup-self").await.expect_error(403, "permission denied");
    cluster.check_logs(&[]);
}
