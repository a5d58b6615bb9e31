//! H-45, H-46, H-47: a spoke restarts, has a slow database beside a quick one, and is denied.

use std::sync::Arc;

use holdfast_tests::api::CREATE_ROLE;
use holdfast_tests::cli::Cli;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::{Login, settled};
use holdfast_tests::spoke::{Relay, Spoke, entry, owned, remote_config, setup_remote};
use serde_json::json;
use tokio::task::JoinSet;

const SLOW: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_spoke_restarts_is_shared_and_is_denied() {
    let (cluster, database) = (Cluster::start_with(Options::calm()).await, PostgresServer::start().await);
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    let standby = cluster.others(active)[0];
    let mut spoke = relay.spoke_on(&cluster, "spoke-1", standby).await;
    setup_remote(&cluster, active, &database, "spoke-1", "1h").await;
    restarts(&cluster, &relay, &mut spoke, standby, &database).await;
    a_slow_database_stands_alone(&cluster, active, &database).await;
    denied(&cluster, &relay, &mut spoke, standby).await;
    settled(&cluster.api(active), &database, PATIENCE).await;
    cluster.check_logs(&[]);
}

/// Whatever comes first after a restart works: the spoke makes its connections from what travels along.
async fn restarts(
    cluster: &Cluster,
    relay: &Relay,
    spoke: &mut Spoke,
    node: usize,
    database: &PostgresServer,
) {
    let api = cluster.api(node);
    let held = Login::issue(&api, "database/creds/app").await.expect("a login");
    for killed in [true, false] {
        let before = entry(cluster, node, "spoke-1").await.unwrap()["session_epoch"].clone();
        if killed {
            spoke.kill();
        } else {
            assert_eq!(spoke.stop(), Some(0));
        }
        // Long: what waits for a slow database is not what is refused here.
        spoke.start(&relay.shared(), &["-queue-timeout=2m"]);
        eventually_async(PATIENCE, "the restarted spoke is there", || async {
            (entry(cluster, node, "spoke-1").await?["session_epoch"] != before).then_some(())
        })
        .await;
        if killed {
            let renew = json!({"lease_id": held.lease, "increment": "3h"});
            assert_eq!(api.put("sys/leases/renew", renew).await.expect(200).body["lease_duration"], 3 * 3600);
        } else {
            api.put("sys/leases/revoke", json!({"lease_id": held.lease, "sync": true})).await.expect(204);
            assert!(!held.works(database).await);
        }
        let login = Login::issue(&api, "database/creds/app").await.expect("a login");
        assert!(login.works(database).await);
    }
}

async fn a_slow_database_stands_alone(cluster: &Cluster, active: usize, database: &PostgresServer) {
    let api = Arc::new(cluster.api(active));
    api.put("database/config/slow", remote_config(database, "spoke-1")).await.expect(204);
    let waits = "SELECT pg_advisory_xact_lock_shared(4711);";
    let role = json!({
        "db_name": "slow", "default_ttl": "1h", "creation_statements": format!("{waits} {CREATE_ROLE}"),
    });
    api.put("database/roles/slow", role).await.expect(204);
    let lock = database.session(holdfast_tests::db::ADMIN, holdfast_tests::db::ADMIN_PASSWORD).await;
    lock.batch_execute("SELECT pg_advisory_lock(4711)").await.unwrap();
    let mut slow = JoinSet::new();
    for _ in 0..SLOW {
        let api = Arc::clone(&api);
        slow.spawn(async move { api.get("database/creds/slow").await });
    }
    let waiting = || async {
        let waiting = "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        (database.query(waiting).await[0].parse::<usize>().unwrap() >= 2).then_some(())
    };
    eventually_async(PATIENCE, "statements wait on the slow database", waiting).await;
    for _ in 0..10 {
        let login = Login::issue(&api, "database/creds/app").await.expect("a login of the quick database");
        assert!(login.works(database).await);
    }
    if let Some(early) = slow.try_join_next() {
        panic!("one did not wait: {:?}", early.unwrap());
    }
    lock.batch_execute("SELECT pg_advisory_unlock(4711)").await.unwrap();
    while let Some(reply) = slow.join_next().await {
        reply.unwrap().expect(200);
    }
}

async fn denied(cluster: &Cluster, relay: &Relay, spoke: &mut Spoke, standby: usize) {
    let operator = Cli::new(&cluster.nodes[standby].url()).with_token(&cluster.root);
    let api = cluster.api(standby);
    operator.run("relay deny spoke-1 -reason=lost").await.expect(0);
    eventually_async(PATIENCE, "the denied spoke is gone", || async {
        entry(cluster, standby, "spoke-1").await.is_none().then_some(())
    })
    .await;
    let refused = api.get("database/creds/app").await;
    assert!(refused.status >= 400 && refused.errors()[0].contains("spoke not connected"), "{}", refused.body);

    let dir = spoke.credentials.display().to_string();
    for node in 0..3 {
        let address = relay.address(cluster, node);
        let line = format!("relay renew -server={address} -credentials-dir={dir}");
        let renewed = operator.run(&line).await;
        assert_ne!(renewed.code, 0, "{}", renewed.out);
        assert!(renewed.err.contains("denied"), "{}", renewed.err);
    }
    let token = api.put("relay/bootstrap-tokens", json!({})).await.expect(200).text("token");
    let again = spoke.dir().join("again");
    let line = super::h42_join::line(&again, &relay.pin, &token, "spoke-1");
    let enrolled = operator.run(&line).await;
    assert_ne!(enrolled.code, 0, "{}", enrolled.out);
    assert!(enrolled.err.contains("denied"), "{}", enrolled.err);
    assert!(!again.join("cert.pem").exists());
    assert!(entry(cluster, standby, "spoke-1").await.is_none(), "it did not come back");

    operator.run("relay allow spoke-1").await.expect(0);
    owned(cluster, "spoke-1", standby).await;
    let login = || async { Login::issue(&api, "database/creds/app").await };
    eventually_async(PATIENCE, "the spoke serves again", login).await;
    assert_eq!(spoke.stop(), Some(0));
}
