//! Logins from creation to their end, on PostgreSQL and MariaDB.

use std::time::Duration;

use holdfast_tests::api::CREATE_ROLE;
use holdfast_tests::db::{ADMIN, ADMIN_PASSWORD, MariaDbServer, PostgresServer};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::{Login, settled};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_login_lives_is_renewed_and_dies() {
    let (cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let active = cluster.active().await;
    cluster.api(active).setup_postgres(&database, "1h").await;
    for index in 0..3 {
        let api = cluster.api(index);
        let login = Login::issue(&api, "database/creds/app").await.expect("a login");
        assert!(login.works(&database).await);
        let until = || async {
            let sql = format!(
                "SELECT extract(epoch FROM rolvaliduntil)::bigint FROM pg_roles WHERE rolname = '{}'",
                login.username
            );
            database.query(&sql).await[0].parse::<i64>().unwrap()
        };
        let before = until().await;
        let renewed = api
            .put("sys/leases/renew", json!({"lease_id": login.lease, "increment": "3h"}))
            .await
            .expect(200);
        assert_eq!(renewed.body["lease_duration"], 3 * 3600);
        let moved = until().await - before;
        assert!((7100..7300).contains(&moved), "VALID UNTIL moved by {moved} s");
        api.put("sys/leases/revoke", json!({"lease_id": login.lease, "sync": true})).await.expect(204);
        assert!(!login.works(&database).await);
        api.put("sys/leases/lookup", json!({"lease_id": login.lease}))
            .await
            .expect_error(400, "invalid lease");
    }
    settled(&cluster.api(active), &database, PATIENCE).await;
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_takes_its_user_along_though_the_role_is_gone() {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    let api = cluster.api(0);
    api.setup_postgres(&database, "3s").await;
    let login = Login::issue(&api, "database/creds/app").await.expect("a login");
    assert!(login.works(&database).await);
    api.delete("database/roles/app").await.expect(204);
    let config = api.delete("database/config/pg").await.expect(200);
    assert!(config.body["warnings"][0].as_str().is_some_and(|w| w.contains('1')), "{}", config.body);
    let gone = || async { database.users("v-").await.is_empty().then_some(()) };
    eventually_async(PATIENCE, "the user is gone", gone).await;
    settled(&api, &database, PATIENCE).await;
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mariadb_login_lives_is_renewed_and_dies() {
    let (cluster, database) = (Cluster::start(3).await, MariaDbServer::start().await);
    let standby = cluster.others(cluster.active().await)[0];
    let api = cluster.api(standby);
    api.put("sys/mounts/database", json!({"type": "database"})).await.expect(204);
    let config = json!({
        "plugin_name": "mysql-database-plugin", "connection_url": database.url_template(), "allowed_roles": "app",
        "username": ADMIN, "password": ADMIN_PASSWORD,
    });
    api.put("database/config/my", config).await.expect(204);
    let create =
        "CREATE USER '{{name}}'@'%' IDENTIFIED BY '{{password}}'; GRANT SELECT ON *.* TO '{{name}}'@'%';";
    api.put(
        "database/roles/app",
        json!({"db_name": "my", "creation_statements": create, "default_ttl": "1h"}),
    )
    .await
    .expect(204);
    let reply = api.get("database/creds/app").await.expect(200);
    let (user, password) = (reply.text("username"), reply.text("password"));
    assert!(user.len() <= 32 && user.starts_with("v-"), "{user}");
    assert!(database.can_log_in(&user, &password).await);
    let lease = reply.body["lease_id"].as_str().unwrap();
    api.put("sys/leases/renew", json!({"lease_id": lease, "increment": "2h"})).await.expect(200);
    api.put("sys/leases/revoke", json!({"lease_id": lease, "sync": true})).await.expect(204);
    assert!(!database.can_log_in(&user, &password).await);
    assert_eq!(database.users("v-").await, [""; 0]);
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_created_is_told_and_leaves_nothing() {
    let (cluster, mut database) = (Cluster::start(1).await, PostgresServer::start().await);
    let api = cluster.api(0);
    api.setup_postgres(&database, "1h").await;
    api.get("database/creds/none").await.expect_error(400, "unknown role: none");

    let role =
        |statements: &str| json!({"db_name": "pg", "creation_statements": statements, "default_ttl": "1h"});
    api.put("database/roles/empty", json!({"db_name": "pg"})).await;
    api.get("database/creds/empty").await.expect_error(400, "empty creation statements");
    let half = format!("{CREATE_ROLE} GRANT SELECT ON nowhere TO \"{{{{name}}}}\";");
    api.put("database/roles/half", role(&half)).await.expect(204);
    let refused = api.get("database/creds/half").await.expect(500);
    assert!(refused.errors()[0].contains("nowhere"), "{:?}", refused.errors());
    assert_eq!(database.users("v-").await, [""; 0]);

    let bad = json!({"plugin_name": "postgresql-database-plugin", "connection_url": database.url_template(),
        "username": ADMIN, "password": "wrong-secret-pw"});
    let refused = api.put("database/config/bad", bad).await.expect(400);
    assert!(refused.errors()[0].starts_with("error creating database object: "), "{:?}", refused.errors());
    assert!(!refused.errors()[0].contains("wrong-secret-pw"));
    api.get("database/config/bad").await.expect(404);
    let unknown = json!({"plugin_name": "oracle-database-plugin", "connection_url": "x"});
    api.put("database/config/bad", unknown).await.expect_error(400,
        "error creating database object: unknown plugin \"oracle-database-plugin\"; supported: postgresql-database-plugin, \
         mysql-database-plugin, remote-postgres-plugin, remote-mysql-plugin");

    api.put(
        "database/config/narrow",
        json!({"plugin_name": "postgresql-database-plugin", "username": ADMIN,
        "password": ADMIN_PASSWORD, "connection_url": database.url_template(), "allowed_roles": "other"}),
    )
    .await
    .expect(204);
    api.put("database/roles/outside", json!({"db_name": "narrow", "creation_statements": CREATE_ROLE}))
        .await
        .expect(204);
    api.get("database/creds/outside").await.expect_error(500, "\"outside\" is not an allowed role");

    database.stop();
    let reply = api.get("database/creds/app").await;
    assert!(matches!(reply.status, 500 | 503), "{} {}", reply.status, reply.body);
    database.resume().await;
    settled(&api, &database, Duration::from_secs(120)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_without_randomness_never_gives_another_clients_user() {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    let api = cluster.api(0);
    api.setup_postgres(&database, "1h").await;
    api.put("database/config/pg", json!({"username_template": "v-{{.RoleName}}"})).await;
    let first = Login::issue(&api, "database/creds/app").await.expect("a login");
    api.get("database/creds/app").await.expect(500);
    assert!(first.works(&database).await, "the first client's login is untouched");
    settled(&api, &database, PATIENCE).await;
}
