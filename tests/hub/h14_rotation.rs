//! Passwords that the hub changes: of static roles on time and by hand, and of the connection's own login.

use std::time::Duration;

use holdfast_tests::api::Api;
use holdfast_tests::db::{ADMIN, ADMIN_PASSWORD, MariaDbServer, PostgresServer};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::Login;
use serde_json::json;

/// Name and password of a static role now.
async fn current(api: &Api, role: &str) -> (String, String, u64) {
    let reply = api.get(&format!("database/static-creds/{role}")).await.expect(200);
    assert_eq!(reply.body["lease_id"], "");
    (reply.text("username"), reply.text("password"), reply.data()["ttl"].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_role_rotates_on_time_and_by_hand_also_under_a_new_leader() {
    let (mut cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let active = cluster.active().await;
    let standby = cluster.others(active)[0];
    let api = cluster.api(standby);
    api.setup_postgres(&database, "1h").await;
    database.execute("CREATE ROLE legacy LOGIN PASSWORD 'first-password'").await;
    let role = |period: &str| json!({"db_name": "pg", "username": "legacy", "rotation_period": period});
    api.put("database/static-roles/legacy", role("4s")).await.expect(400);
    api.put("database/static-roles/app", role("5s"))
        .await
        .expect_error(400, "Role and Static Role names must be unique");
    api.put("database/static-roles/legacy", role("5s")).await.expect(204);
    assert!(!database.can_log_in("legacy", "first-password").await, "rotated at creation");
    let shown = api.get("database/static-roles/legacy").await.expect(200);
    assert_eq!((shown.text("username"), &shown.data()["rotation_period"]), ("legacy".into(), &json!(5)));
    assert!(shown.data()["last_vault_rotation"].as_str().unwrap().contains('T'));
    assert!(shown.data()["password"].is_null());

    let (name, first, ttl) = current(&api, "legacy").await;
    assert!(name == "legacy" && ttl <= 5);
    assert!(database.can_log_in("legacy", &first).await);
    let changed = |old: String| {
        let api = api.clone();
        async move {
            eventually_async(Duration::from_secs(20), "the password is rotated on time", || async {
                let (_, now, ttl) = current(&api, "legacy").await;
                assert!(ttl <= 5);
                (now != old).then_some(now)
            })
            .await
        }
    };
    let second = changed(first.clone()).await;
    assert!(database.can_log_in("legacy", &second).await && !database.can_log_in("legacy", &first).await);

    // The next active node goes on with it.
    cluster.nodes[active].kill();
    eventually_async(PATIENCE, "there is another active node", || async {
        (api.get("database/static-creds/legacy").await.status == 200).then_some(())
    })
    .await;
    let third = changed(current(&api, "legacy").await.1).await;
    assert!(!database.can_log_in("legacy", &second).await);
    let usable = || async {
        // A rotation may come between reading and trying.
        let (_, now, _) = current(&api, "legacy").await;
        database.can_log_in("legacy", &now).await.then_some(())
    };
    eventually_async(PATIENCE, "the password at hand works", usable).await;
    assert_ne!(third, second);

    // By hand, with a period that lets nothing else happen.
    api.put("database/static-roles/legacy", role("24h")).await.expect(204);
    let (_, before, _) = current(&api, "legacy").await;
    assert!(database.can_log_in("legacy", &before).await);
    api.put("database/rotate-role/legacy", json!({})).await.expect(204);
    let (_, after, ttl) = current(&api, "legacy").await;
    assert!(ttl > 86_000 && ttl <= 86_400, "{ttl}");
    assert!(database.can_log_in("legacy", &after).await && !database.can_log_in("legacy", &before).await);
    api.put("database/rotate-role/none", json!({})).await.expect_error(400, "unknown role: none");
    let other = json!({"db_name": "pg", "username": "another", "rotation_period": "24h"});
    api.put("database/static-roles/legacy", other).await.expect(400);
    api.delete("database/static-roles/legacy").await.expect(204);
    assert!(database.can_log_in("legacy", &after).await, "the user is not ours to remove");
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_delays_a_rotation_only() {
    let (cluster, mut database) = (Cluster::start(1).await, PostgresServer::start().await);
    let api = cluster.api(0);
    api.setup_postgres(&database, "1h").await;
    database.execute("CREATE ROLE legacy LOGIN PASSWORD 'first-password'").await;
    let role = json!({"db_name": "pg", "username": "legacy", "rotation_period": "24h"});
    api.put("database/static-roles/legacy", role).await.expect(204);
    let (_, before, _) = current(&api, "legacy").await;
    database.stop();
    let refused = api.put("database/rotate-role/legacy", json!({})).await;
    assert!(matches!(refused.status, 500 | 503), "{}", refused.body);
    database.resume().await;
    let (_, now, _) = current(&api, "legacy").await;
    assert_eq!(now, before, "what is shown is what the database has");
    assert!(database.can_log_in("legacy", &now).await);
    api.put("database/rotate-role/legacy", json!({})).await.expect(204);
    let (_, now, _) = current(&api, "legacy").await;
    assert!(now != before && database.can_log_in("legacy", &now).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn root_rotation_locks_the_old_password_out_on_postgresql() {
    let (cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let standby = cluster.others(cluster.active().await)[0];
    let api = cluster.api(standby);
    api.setup_postgres(&database, "1h").await;
    database.execute("CREATE ROLE manager SUPERUSER LOGIN PASSWORD 'manager-first'").await;
    api.put("database/config/pg", json!({"username": "manager", "password": "manager-first"}))
        .await
        .expect(204);
    let login = Login::issue(&api, "database/creds/app").await.expect("a login");
    api.put("database/rotate-root/pg", json!({})).await.expect(204);
    assert!(!database.can_log_in("manager", "manager-first").await);
    let shown = api.get("database/config/pg").await.expect(200);
    assert!(!String::from_utf8_lossy(&shown.bytes).contains("manager-first"));
    assert!(shown.data()["connection_details"]["password"].is_null());
    assert!(Login::issue(&api, "database/creds/app").await.expect("a login").works(&database).await);
    api.put("sys/leases/revoke", json!({"lease_id": login.lease, "sync": true})).await.expect(204);
    api.put("database/rotate-root/pg", json!({})).await.expect(204);
    api.put("database/reset/pg", json!({})).await.expect(204);
    assert!(Login::issue(&api, "database/creds/app").await.expect("a login").works(&database).await);
    // Another leader opens its own connections with the new password.
    api.put("sys/step-down", json!({})).await.expect(204);
    let issued = || async { Login::issue(&api, "database/creds/app").await };
    assert!(eventually_async(PATIENCE, "the next leader issues", issued).await.works(&database).await);
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rotations_work_on_mariadb_too() {
    let (cluster, database) = (Cluster::start(1).await, MariaDbServer::start().await);
    let api = cluster.api(0);
    database.execute("CREATE USER 'manager'@'%' IDENTIFIED BY 'manager-first'").await;
    database.execute("GRANT ALL PRIVILEGES ON *.* TO 'manager'@'%' WITH GRANT OPTION").await;
    database.execute("CREATE USER 'legacy'@'%' IDENTIFIED BY 'first-password'").await;
    api.put("sys/mounts/database", json!({"type": "database"})).await.expect(204);
    let config = json!({"plugin_name": "mysql-database-plugin", "connection_url": database.url_template(),
        "allowed_roles": "*", "username": "manager", "password": "manager-first"});
    api.put("database/config/my", config).await.expect(204);
    api.put("database/rotate-root/my", json!({})).await.expect(204);
    assert!(!database.can_log_in("manager", "manager-first").await);
    let role = json!({"db_name": "my", "username": "legacy", "rotation_period": "24h"});
    api.put("database/static-roles/legacy", role).await.expect(204);
    let (_, before, _) = current(&api, "legacy").await;
    assert!(
        database.can_log_in("legacy", &before).await
            && !database.can_log_in("legacy", "first-password").await
    );
    api.put("database/rotate-role/legacy", json!({})).await.expect(204);
    let (_, after, _) = current(&api, "legacy").await;
    assert!(database.can_log_in("legacy", &after).await && !database.can_log_in("legacy", &before).await);
    assert!(database.can_log_in(ADMIN, ADMIN_PASSWORD).await);
    cluster.check_logs(&[]);
}
