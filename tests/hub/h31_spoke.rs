//! H-31: a spoke that lands on a standby serves as one on the active node does, through every node.

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::{Login, settled};
use holdfast_tests::spoke::{Relay, entry, owned, remote_config, setup_remote};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_spoke_on_a_standby_serves_through_every_node() {
    let (cluster, database) = (Cluster::start_with(Options::calm()).await, PostgresServer::start().await);
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    let standby = cluster.others(active)[0];
    let mut spoke = relay.spoke_on(&cluster, "spoke-1", standby).await;
    let audit = cluster.dir().join("audit.log");
    let device = json!({"type": "file", "options": {"file_path": audit}});
    cluster.api(active).put("sys/audit/file", device).await.expect(204);
    setup_remote(&cluster, standby, &database, "spoke-1", "1h").await;
    for index in 0..3 {
        let api = cluster.api(index);
        // An administrator of its own, so that its rotation locks nobody out.
        let manager = format!("manager{index}");
        database.execute(&format!("CREATE ROLE {manager} SUPERUSER LOGIN PASSWORD 'manager-first'")).await;
        let mut config = remote_config(&database, "spoke-1");
        (config["username"], config["password"]) = (manager.as_str().into(), "manager-first".into());
        api.put("database/config/pg", config).await.expect(204);
        let login = Login::issue(&api, "database/creds/app").await.expect("a login");
        assert!(login.works(&database).await);
        let sql = format!(
            "SELECT extract(epoch FROM rolvaliduntil)::bigint FROM pg_roles WHERE rolname = '{}'",
            login.username
        );
        let until = || async { database.query(&sql).await[0].parse::<i64>().unwrap() };
        let before = until().await;
        let renew = json!({"lease_id": login.lease, "increment": "3h"});
        let renewed = api.put("sys/leases/renew", renew).await.expect(200);
        assert_eq!(renewed.body["lease_duration"], 3 * 3600);
        assert!(until().await - before > 3600, "the login itself was renewed");
        api.put("sys/leases/revoke", json!({"lease_id": login.lease, "sync": true})).await.expect(204);
        assert!(!login.works(&database).await);
        api.put("database/rotate-root/pg", json!({})).await.expect(204);
        assert!(!database.can_log_in(&manager, "manager-first").await);
        assert!(Login::issue(&api, "database/creds/app").await.expect("a login").works(&database).await);
        let shown = entry(&cluster, index, "spoke-1").await.expect("the spoke is listed");
        assert_eq!(shown["node_id"], cluster.nodes[standby].id.as_str());
        assert_eq!(shown["node_is_active"], false);
    }
    let owner = cluster.nodes[standby].id.clone();
    audit_lines_tell_of_the_spoke(
        &audit,
        ["database/config/pg", "database/creds/app", "sys/leases/renew"],
        &owner,
    );
    settled(&cluster.api(active), &database, PATIENCE).await;
    assert_eq!(spoke.stop(), Some(0));
    cluster.check_logs(&[]);
}

/// Each answer to which a spoke contributed says which one, through which node and for how long; the others do not.
fn audit_lines_tell_of_the_spoke(log: &std::path::Path, paths: [&str; 3], owner: &str) {
    let text = std::fs::read_to_string(log).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str, path: &str| {
        let of = |line: &&Value| line["type"] == kind && line["request"]["path"] == path;
        lines.iter().filter(of).collect::<Vec<_>>()
    };
    for path in paths {
        let answers = of("response", path);
        assert!(answers.len() >= 3, "{path}");
        for line in answers {
            let relay = line["relay"].as_object().unwrap_or_else(|| panic!("no relay in {line}"));
            assert_eq!((&relay["spoke"], &relay["node_id"]), (&json!("spoke-1"), &json!(owner)), "{line}");
            assert_eq!(relay["route"], "forwarded", "{line}");
            assert!(relay["duration_ms"].is_u64() && relay.len() == 4, "{line}");
        }
        assert!(
            of("request", path).iter().all(|line| line.get("relay").is_none()),
            "nothing was done by then"
        );
    }
    let others = of("response", "database/roles/app");
    assert!(!others.is_empty() && others.iter().all(|line| line.get("relay").is_none()), "{others:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spoke_whose_node_dies_is_elsewhere_and_serves_again() {
    let (mut cluster, database) = (Cluster::start_with(Options::calm()).await, PostgresServer::start().await);
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    let (owner, other) = (cluster.others(active)[0], cluster.others(active)[1]);
    let _spoke = relay.spoke_on(&cluster, "spoke-1", owner).await;
    setup_remote(&cluster, active, &database, "spoke-1", "1h").await;
    relay.balancer.pick(other);
    cluster.nodes[owner].kill();
    owned(&cluster, "spoke-1", other).await;
    let api = cluster.api(active);
    let login = || async { Login::issue(&api, "database/creds/app").await };
    let login = eventually_async(PATIENCE, "a login is issued", login).await;
    assert!(login.works(&database).await);
}
