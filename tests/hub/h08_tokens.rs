//! A tree of tokens falls with its root, and what its tokens had been lent goes with it.

use holdfast_tests::api::Api;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::{Login, leases, settled};
use serde_json::{Value, json};

/// The token that a call makes.
async fn token(api: &Api, path: &str, body: Value) -> String {
    api.put(path, body).await.expect(200).body["auth"]["client_token"].as_str().unwrap().to_owned()
}

const POLICY: &str = "path \"database/creds/app\" { capabilities = [\"read\"] }\n\
                      path \"auth/token/create*\" { capabilities = [\"update\", \"create\", \"sudo\"] }\n\
                      path \"auth/token/revoke*\" { capabilities = [\"update\", \"sudo\"] }";

#[tokio::test(flavor = "multi_thread")]
async fn revoking_a_token_takes_its_children_and_their_logins() {
    let (cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let active = cluster.active().await;
    let root = cluster.api(active);
    root.setup_postgres(&database, "1h").await;
    root.put("sys/policies/acl/app", json!({"policy": POLICY})).await.expect(204);
    let node = |i: usize| cluster.nodes[i % 3].api();

    // Two levels below the parent, each made through another node; an orphan and a stranger beside them.
    let make = json!({"policies": ["app"], "ttl": "1h"});
    let parent = token(&root, "auth/token/create", make.clone()).await;
    let stranger = token(&root, "auth/token/create", make.clone()).await;
    let mut tree = vec![parent.clone()];
    for i in 0..3 {
        let child = token(&node(i).with_token(&parent), "auth/token/create", make.clone()).await;
        let grandchild = token(&node(i + 1).with_token(&child), "auth/token/create", make.clone()).await;
        tree.extend([child, grandchild]);
    }
    let orphan = token(&node(1).with_token(&parent), "auth/token/create-orphan", make.clone()).await;
    let mut logins = Vec::new();
    for (i, token) in tree.iter().enumerate() {
        let login = Login::issue(&node(i).with_token(token), "database/creds/app").await.expect("a login");
        assert!(login.works(&database).await);
        logins.push(login);
    }
    let others = [
        Login::issue(&node(0).with_token(&orphan), "database/creds/app").await.expect("a login"),
        Login::issue(&node(1).with_token(&stranger), "database/creds/app").await.expect("a login"),
    ];
    assert_eq!(leases(&root, "database/creds/").await.len(), tree.len() + 2);

    let standby = cluster.api(cluster.others(active)[0]);
    standby.put("auth/token/revoke", json!({"token": parent})).await.expect(204);
    // The answer is there: from now on no node takes any of them, whatever the database still has to do.
    for (i, token) in tree.iter().enumerate() {
        for index in 0..3 {
            let api = cluster.nodes[index].api().with_token(token);
            let reply = api.get("auth/token/lookup-self").await;
            assert_eq!(reply.status, 403, "token {i} on node {index}: {}", reply.body);
            api.get("database/creds/app").await.expect_error(403, "permission denied");
        }
    }
    for login in &logins {
        eventually_async(PATIENCE, "the login is refused", || async {
            (!login.works(&database).await).then_some(())
        })
        .await;
        root.put("sys/leases/lookup", json!({"lease_id": login.lease}))
            .await
            .expect_error(400, "invalid lease");
    }
    for (token, login) in [&orphan, &stranger].into_iter().zip(&others) {
        assert!(login.works(&database).await, "others keep their logins");
        node(2).with_token(token).get("auth/token/lookup-self").await.expect(200);
    }
    settled(&root, &database, PATIENCE).await;
    assert_eq!(database.users("v-").await.len(), 2);
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn children_of_a_token_that_is_revoked_as_an_orphan_live_on() {
    let cluster = Cluster::start(1).await;
    let root = cluster.api(0);
    root.put("sys/policies/acl/app", json!({"policy": POLICY})).await.expect(204);
    let make = json!({"policies": ["app"], "ttl": "1h"});
    let parent = token(&root, "auth/token/create", make.clone()).await;
    let child = token(&root.with_token(&parent), "auth/token/create", make.clone()).await;
    root.put("auth/token/revoke-orphan", json!({"token": parent})).await.expect(204);
    root.with_token(&parent).get("auth/token/lookup-self").await.expect_error(403, "permission denied");
    let found = root.with_token(&child).get("auth/token/lookup-self").await.expect(200);
    assert_eq!(found.data()["orphan"], true);

    let refused = root.with_token(&child).put("auth/token/create", json!({"policies": ["root"]})).await;
    // The child may use sudo on this path, so the subset rule does not bind it; a token without sudo is bound.
    assert!(matches!(refused.status, 200 | 400), "{}", refused.body);
    let batch = json!({"policies": ["app"], "type": "batch", "ttl": "10m"});
    let batch = token(&root, "auth/token/create", batch).await;
    assert!(batch.starts_with("hvb."), "{batch}");
    assert_eq!(root.with_token(&batch).put("auth/token/create", json!({})).await.status, 400);
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lives_and_uses_of_tokens_run_out() {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    let root = cluster.api(0);
    root.setup_postgres(&database, "1h").await;
    root.put("sys/policies/acl/app", json!({"policy": POLICY})).await.expect(204);
    let narrow = "path \"auth/token/create\" { capabilities = [\"update\"] }";
    root.put("sys/policies/acl/narrow", json!({"policy": narrow})).await.expect(204);

    let twice = token(&root, "auth/token/create", json!({"policies": ["app"], "num_uses": 2})).await;
    let twice = root.with_token(twice);
    twice.get("auth/token/lookup-self").await.expect(200);
    let reply = twice.get("database/creds/app").await;
    assert_eq!(reply.status, 400, "the last use cannot ask for a lease: {}", reply.body);
    twice.get("auth/token/lookup-self").await.expect_error(403, "permission denied");
    assert_eq!(database.users("v-").await, [""; 0]);

    let bound = root.with_token(token(&root, "auth/token/create", json!({"policies": ["narrow"]})).await);
    bound
        .put("auth/token/create", json!({"policies": ["app"]}))
        .await
        .expect_error(400, "child policies must be subset of parent");

    // A lease ends with a token that cannot be renewed, and a short token ends by itself.
    let short = json!({"policies": ["app"], "ttl": "3s", "renewable": false});
    let short = root.with_token(token(&root, "auth/token/create", short).await);
    let reply = short.get("database/creds/app").await.expect(200);
    assert!(reply.body["lease_duration"].as_u64().unwrap() <= 3, "{}", reply.body);
    assert!(!reply.body["warnings"].is_null(), "{}", reply.body);
    eventually_async(PATIENCE, "the token has ended", || async {
        (short.get("auth/token/lookup-self").await.status == 403).then_some(())
    })
    .await;
    let gone = || async { database.users("v-").await.is_empty().then_some(()) };
    eventually_async(PATIENCE, "its login is gone", gone).await;
    settled(&root, &database, PATIENCE).await;
    cluster.check_logs(&[]);
}
