//! Metrics that follow what happens, audit lines with all their fields, and the warning when nothing is recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;

use holdfast_tests::api::Api;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::Login;
use serde_json::{Value, json};

/// Names with labels, and values.
async fn metrics(api: &Api) -> BTreeMap<String, f64> {
    let reply = api.get("sys/metrics?format=prometheus").await.expect(200);
    let kind = reply.headers["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/plain") && kind.contains("version=0.0.4"), "{kind}");
    let text = String::from_utf8(reply.bytes).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pair =
        |line: &str| line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
    lines.filter_map(pair).collect()
}

/// The values that each label takes.
fn labels(all: &BTreeMap<String, f64>) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in all.keys() {
        let Some((_, inner)) = name.trim_end_matches('}').split_once('{') else { continue };
        for label in inner.split(',') {
            let (key, value) = label.split_once('=').unwrap();
            found.entry(key.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
        }
    }
    found.remove("le");
    found
}

const ENUMS: [(&str, &[&str]); 10] = [
    (
        "outcome",
        &[
            "answered",
            "not_active",
            "no_leader",
            "not_sent",
            "unknown",
            "revoked",
            "failed",
            "deferred",
            "irrevocable",
            "removed",
            // Of the relay.
            "done",
            "driver",
            "not_connected",
            "cannot_reach",
            "busy",
            "deadline",
            "lost",
            "refused",
            "found",
            "signed",
        ],
    ),
    ("mount_type", &["database", "kv", "token", "approle", "userpass", "other"]),
    ("state", &["open", "sweep", "verify", "working", "blocked", "failed"]),
    ("op", &["initialize", "new_user", "update_user", "delete_user"]),
    ("plugin", &["postgresql", "mysql", "remote"]),
    ("kind", &["rate", "lease_count"]),
    ("version", &[]),
    ("trigger", &["connect", "drop", "leader", "tick", "retry"]),
    ("route", &["local", "forwarded"]),
    (
        "method",
        &["initialize", "new_user", "update_user", "delete_user", "verify_password", "close", "other"],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn metrics_follow_what_happens_on_each_node() {
    let (cluster, database) = (Cluster::start_with(Options::calm()).await, PostgresServer::start().await);
    let active = cluster.active().await;
    let (api, standby) = (cluster.api(active), cluster.api(cluster.others(active)[0]));
    let log = cluster.dir().join("audit.log");
    api.put("sys/audit/file", json!({"type": "file", "options": {"file_path": log}})).await.expect(204);
    api.setup_postgres(&database, "1h").await;
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    api.put("sys/quotas/rate-limit/one", json!({"rate": 1, "interval": "60s", "path": "kv/"}))
        .await
        .expect(204);
    let gone = Login::issue(&standby, "database/creds/app").await.expect("a login");
    Login::issue(&standby, "database/creds/app").await.expect("a login");
    api.put("sys/leases/revoke", json!({"lease_id": gone.lease, "sync": true})).await.expect(204);
    api.get("database/creds/none").await.expect(400);
    let refused = async || (api.get("kv/a").await.status == 429).then_some(());
    eventually_async(PATIENCE, "the quota refuses", refused).await;

    // Leases are counted every ten seconds.
    let counted = || async {
        (metrics(&api).await.get("holdfast_hub_leases{mount_type=\"database\"}") == Some(&1.0)).then_some(())
    };
    eventually_async(PATIENCE, "one lease is counted", counted).await;
    let all = metrics(&api).await;
    let is = |name: &str| {
        *all.get(&format!("holdfast_hub_{name}")).unwrap_or_else(|| panic!("no {name} in {all:?}"))
    };
    for (name, least) in [
        ("active", 1.0),
        ("term", 1.0),
        ("elections_total", 1.0),
        ("gate_open_seconds_count", 1.0),
        ("commit_seconds_count", 5.0),
        ("revoke_total{outcome=\"revoked\"}", 1.0),
        ("db_seconds_count{op=\"initialize\",plugin=\"postgresql\"}", 1.0),
        ("db_seconds_count{op=\"new_user\",plugin=\"postgresql\"}", 2.0),
        ("db_seconds_count{op=\"delete_user\",plugin=\"postgresql\"}", 1.0),
        ("audit_seconds_count", 5.0),
        ("quota_rejected_total{kind=\"rate\"}", 1.0),
        ("store_bytes", 4096.0),
    ] {
        assert!(is(name) >= least, "{name} is {}", is(name));
    }
    for name in ["irrevocable", "orphan_suspects", "static_overdue", "audit_failures_total"] {
        assert_eq!(is(name), 0.0, "{name}");
    }
    let others = metrics(&standby).await;
    assert!(others["holdfast_hub_forwarded_requests_total{outcome=\"answered\"}"] >= 2.0);
    assert_eq!((others["holdfast_hub_active"], others["holdfast_hub_term"]), (0.0, is("term")));
    for (label, values) in labels(&all).into_iter().chain(labels(&others)) {
        let known = ENUMS.iter().find(|(name, _)| *name == label).map(|(_, known)| *known);
        let known = known.unwrap_or_else(|| panic!("an unknown label {label}"));
        assert!(values.iter().all(|v| known.contains(&v.as_str())), "{label}: {values:?}");
    }
    audit_lines_have_their_fields(&log);
    cluster.check_logs(&[]);
}

fn audit_lines_have_their_fields(log: &std::path::Path) {
    let mode = std::fs::metadata(log).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = std::fs::read_to_string(log).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let made = |kind: &str| {
        let of = |line: &&Value| line["type"] == kind && line["request"]["path"] == "database/creds/app";
        lines.iter().find(of).unwrap_or_else(|| panic!("no {kind} of a login"))
    };
    for line in [made("request"), made("response")] {
        assert!(
            line["time"].as_str().is_some_and(|time| time.ends_with('Z') && time.contains('T')),
            "{line}"
        );
        for field in ["accessor", "display_name", "policies", "token_type", "client_token"] {
            assert!(!line["auth"][field].is_null(), "auth.{field} in {line}");
        }
        for field in ["id", "operation", "path", "data", "remote_address", "client_token", "mount_type"] {
            assert!(!line["request"][field].is_null(), "request.{field} in {line}");
        }
    }
    assert!(made("request").get("response").is_none());
    assert!(made("response")["response"]["secret"]["lease_id"].is_string());
    let failed =
        lines.iter().find(|line| line["error"].is_string()).expect("a refused request has its error");
    assert_eq!(failed["type"], "response", "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_an_audit_device_is_warned_of() {
    const WARNING: &str = "no audit device is enabled";
    let mut cluster = Cluster::start(1).await;
    let api = cluster.api(0);
    let warned = cluster.nodes[0].log().lines().filter(|l| l.contains(WARNING)).count();
    assert_eq!(warned, 1, "{}", cluster.nodes[0].log());
    assert!(cluster.nodes[0].log().lines().any(|l| l.contains(WARNING) && l.contains("WARN")));
    let log = cluster.dir().join("audit.log");
    api.put("sys/audit/file", json!({"type": "file", "options": {"file_path": log}})).await.expect(204);
    let node = &mut cluster.nodes[0];
    node.kill();
    node.start();
    node.wait_listening().await;
    let active = || async { (api.health().await? == 200).then_some(()) };
    eventually_async(PATIENCE, "active again", active).await;
    api.get("sys/mounts").await.expect(200);
    let again = cluster.nodes[0].log().lines().filter(|l| l.contains(WARNING)).count();
    assert_eq!(again, 1, "it has a device now");
}
