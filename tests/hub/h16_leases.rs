//! Leases as operators see and end them.

use std::time::Duration;

use holdfast_tests::api::CREATE_ROLE;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::{Login, leases, settled};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_listed_looked_up_counted_and_ended_by_prefix() {
    let (cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let active = cluster.active().await;
    let standby = cluster.others(active)[0];
    let api = cluster.api(standby);
    api.setup_postgres(&database, "1h").await;
    let role =
        json!({"db_name": "pg", "creation_statements": CREATE_ROLE, "default_ttl": "1h", "max_ttl": "2h"});
    api.put("database/roles/other", role).await.expect(204);
    let mut logins = Vec::new();
    for i in 0..6 {
        let role = if i < 4 { "app" } else { "other" };
        logins.push(
            Login::issue(&cluster.api(i % 3), &format!("database/creds/{role}")).await.expect("a login"),
        );
    }
    assert_eq!(api.list("sys/leases/lookup/").await.expect(200).data()["keys"], json!(["database/"]));
    assert_eq!(api.list("sys/leases/lookup/database/creds").await.data()["keys"], json!(["app/", "other/"]));
    assert_eq!(
        api.list("sys/leases/lookup/database/creds/app").await.data()["keys"].as_array().unwrap().len(),
        4
    );
    api.list("sys/leases/lookup/database/creds/none").await.expect_missing();
    assert_eq!(leases(&api, "").await.len(), 6);
    let count = api.get("sys/leases/count").await.expect(200);
    assert_eq!((&count.data()["lease_count"], &count.data()["counts"]["database/"]), (&json!(6), &json!(6)));

    let id = &logins[5].lease;
    assert_eq!(id.rsplit('/').next().unwrap().len(), 24);
    let found = api.put("sys/leases/lookup", json!({"lease_id": id})).await.expect(200);
    assert_eq!((found.text("id"), &found.data()["renewable"]), (id.clone(), &json!(true)));
    assert_eq!(found.data()["last_renewal"], Value::Null);
    assert!((3500..=3600).contains(&found.data()["ttl"].as_u64().unwrap()), "{}", found.body);
    for (path, body) in [
        ("sys/leases/renew", json!({"lease_id": id, "increment": 600})),
        ("sys/renew", json!({"lease_id": id, "increment": "600s"})),
    ] {
        let renewed = api.put(path, body).await.expect(200);
        assert_eq!((&renewed.body["lease_id"], &renewed.body["lease_duration"]), (&json!(id), &json!(600)));
    }
    let renewed = api.put(&format!("sys/leases/renew/{id}"), json!({"increment": "9h"})).await.expect(200);
    assert!(renewed.body["lease_duration"].as_u64().unwrap() <= 7200, "capped by max_ttl");
    assert!(!renewed.body["warnings"].is_null());
    assert_ne!(
        api.put("sys/leases/lookup", json!({"lease_id": id})).await.data()["last_renewal"],
        Value::Null
    );

    api.put("sys/leases/lookup", json!({"lease_id": "database/creds/app/none"}))
        .await
        .expect_error(400, "invalid lease");
    api.put("sys/leases/lookup", json!({})).await.expect_error(400, "lease_id must be specified");
    api.put("sys/leases/renew", json!({"lease_id": "database/creds/app/none"}))
        .await
        .expect_error(400, "lease not found");
    api.put("sys/leases/renew", json!({})).await.expect_error(400, "lease_id must be specified");

    assert!(
        api.put("sys/leases/revoke", json!({"lease_id": logins[0].lease})).await.expect(202).bytes.is_empty()
    );
    api.put(&format!("sys/revoke/{}", logins[1].lease), json!({"sync": true})).await.expect(204);
    eventually_async(PATIENCE, "both logins are refused", || async {
        (!logins[0].works(&database).await && !logins[1].works(&database).await).then_some(())
    })
    .await;
    api.put("sys/leases/revoke-prefix/database/creds/app", json!({"sync": true})).await.expect(204);
    assert!(!logins[2].works(&database).await && !logins[3].works(&database).await);
    assert!(logins[4].works(&database).await, "the other role keeps its logins");
    settled(&api, &database, PATIENCE).await;
    api.put("sys/leases/revoke-prefix/database", json!({})).await.expect(202);
    eventually_async(PATIENCE, "all are gone", || async {
        database.users("v-").await.is_empty().then_some(())
    })
    .await;
    eventually_async(PATIENCE, "none is counted", || async {
        (api.get("sys/leases/count").await.data()["lease_count"] == 0).then_some(())
    })
    .await;
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_revoked_is_shown_and_can_be_forced() {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    let api = cluster.api(0);
    api.setup_postgres(&database, "1h").await;
    // A statement that never ends is wrong however often it is tried.
    let role = json!({"db_name": "pg", "creation_statements": CREATE_ROLE, "default_ttl": "1h",
        "revocation_statements": ["DROP ROLE \"{{name}}\"; SELECT 'unfinished"]});
    api.put("database/roles/stuck", role).await.expect(204);
    let login = Login::issue(&api, "database/creds/stuck").await.expect("a login");
    let refused =
        api.put("sys/leases/revoke", json!({"lease_id": login.lease, "sync": true})).await.expect(400);
    assert!(!refused.errors()[0].is_empty() && !refused.errors()[0].contains(&login.password));
    let listed = || async {
        let list = api.get("sys/leases?type=irrevocable").await;
        (list.status == 200 && list.data()["lease_count"] == 1).then(|| list.data()["leases"][0].clone())
    };
    let shown = eventually_async(PATIENCE, "the lease is listed as irrevocable", listed).await;
    assert_eq!(shown["lease_id"], json!(login.lease));
    assert!(
        shown["error"].as_str().is_some_and(|text| !text.is_empty() && text.chars().count() <= 240),
        "{shown}"
    );
    let count = api.get("sys/leases/count?type=irrevocable").await.expect(200);
    assert_eq!(count.data()["lease_count"], 1);
    let found = api.put("sys/leases/lookup", json!({"lease_id": login.lease})).await.expect(200);
    assert!(!found.text("revoke_error").is_empty());
    api.get("sys/leases").await.expect(400);

    api.put("sys/leases/revoke-force/database/creds/stuck", json!({})).await.expect(204);
    api.put("sys/leases/lookup", json!({"lease_id": login.lease})).await.expect_error(400, "invalid lease");
    assert_eq!(api.get("sys/leases?type=irrevocable").await.data()["lease_count"], 0);
    assert_eq!(database.users("v-").await.len(), 1, "force drops the lease, not the user");

    // A mount whose leases cannot be revoked stays, and says so.
    let _again = Login::issue(&api, "database/creds/stuck").await.expect("a login");
    let refused = api.delete("sys/mounts/database").await.expect(400);
    assert!(refused.errors()[0].contains("sys/leases/revoke-force/database/"), "{:?}", refused.errors());
    assert!(refused.errors()[0].contains('1'), "{:?}", refused.errors());
    api.put("sys/leases/revoke-force/database", json!({})).await.expect(204);
    api.delete("sys/mounts/database").await.expect(204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_refuses_is_tried_again() {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    let api = cluster.api(0);
    api.setup_postgres(&database, "1h").await;
    let login = Login::issue(&api, "database/creds/app").await.expect("a login");
    // The user owns something elsewhere, so the database refuses to drop it.
    database.execute(&format!("GRANT CREATE ON SCHEMA public TO \"{}\"", login.username)).await;
    let session = database.session(&login.username, &login.password).await;
    session.batch_execute("CREATE TABLE public.mine (a int)").await.unwrap();
    let refused =
        api.put("sys/leases/revoke", json!({"lease_id": login.lease, "sync": true})).await.expect(400);
    assert!(
        refused.errors()[0].contains("mine") || refused.errors()[0].contains("depend"),
        "{:?}",
        refused.errors()
    );
    eventually_async(PATIENCE, "the lease shows why it is still there", || async {
        let found = api.put("sys/leases/lookup", json!({"lease_id": login.lease})).await.expect(200);
        (!found.text("revoke_error").is_empty()).then_some(())
    })
    .await;
    database.execute("DROP TABLE public.mine").await;
    let gone = || async { (!login.works(&database).await).then_some(()) };
    eventually_async(Duration::from_secs(60), "it is revoked by itself", gone).await;
    settled(&api, &database, PATIENCE).await;
}
