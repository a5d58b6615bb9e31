//! What a node tells of itself in each state, and how it is made, opened and joined.

use super::*;

/// `sys/health` by both verbs: the status, and the body.
async fn health(rig: &Rig, query: &str) -> (u16, Value) {
    let reply = rig.send("GET", &format!("sys/health{query}"), &[], Value::Null).await;
    let head = rig.send("HEAD", &format!("sys/health{query}"), &[], Value::Null).await;
    assert_eq!((head.status, head.text.as_str()), (reply.status, ""));
    (reply.status, reply.body)
}

const HEALTH: [&str; 9] = [
    "initialized",
    "performance_standby",
    "replication_dr_mode",
    "replication_performance_mode",
    "sealed",
    "server_time_utc",
    "standby",
    "storage_healthy",
    "version",
];

/// The names in [`HEALTH`] and more, sorted.
fn with(more: &[&'static str]) -> Vec<&'static str> {
    let mut names: Vec<_> = HEALTH.iter().chain(more).copied().collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn health_tells_each_state_by_its_code_and_its_fields() {
    let rig = Rig::one().await;
    let facts = |body: &Value| {
        ["initialized", "sealed", "standby", "storage_healthy"].map(|name| body[name].as_bool().unwrap())
    };
    let (status, body) = health(&rig, "").await;
    assert_eq!((status, facts(&body)), (501, [false, true, true, false]));
    assert_eq!(members(&body), with(&[]));
    let (_, root) = rig.open().await;

    let (status, body) = health(&rig, "").await;
    assert_eq!((status, facts(&body)), (200, [true, false, false, true]));
    assert_eq!(members(&body), with(&["cluster_id", "cluster_name"]));
    assert_eq!(body["performance_standby"], false);
    assert_eq!(body["replication_dr_mode"], "disabled");
    assert_eq!(body["replication_performance_mode"], "disabled");
    assert!(body["server_time_utc"].as_i64().unwrap() > 1_700_000_000);
    assert_eq!(body["version"], env!("CARGO_PKG_VERSION"));
    assert!(!body["cluster_id"].as_str().unwrap().is_empty());

    rig.follow(Some("b"), None);
    let (status, body) = health(&rig, "").await;
    assert_eq!((status, facts(&body)), (429, [true, false, true, true]));
    for query in ["?standbyok", "?standbyok=true", "?perfstandbyok=1"] {
        assert_eq!(health(&rig, query).await.0, 200, "{query}");
    }
    assert_eq!(health(&rig, "?standbyok=true&activecode=298").await.0, 298);
    rig.cluster.change(|view| view.storage_healthy = false);
    assert_eq!(facts(&health(&rig, "").await.1), [true, false, true, false]);
    assert_eq!(health(&rig, "").await.0, 503);
    rig.cluster.change(|view| (view.storage_healthy, view.removed) = (true, true));
    let (status, body) = health(&rig, "").await;
    assert_eq!((status, &body["removed_from_cluster"]), (530, &json!(true)));
    assert_eq!(health(&rig, "?removedcode=299").await.0, 299);
    rig.cluster.change(|view| view.removed = false);

    rig.lead(2);
    for bad in ["?activecode=x", "?drsecondarycode=1.5", "?performancestandbycode=", "?standbycode=ten"] {
        let wanted = if bad.ends_with('=') { 200 } else { 400 };
        assert_eq!(health(&rig, bad).await.0, wanted, "{bad}");
    }
    rig.as_token(&root, "PUT", "sys/seal", json!({})).await.expect(204);
    let (status, body) = health(&rig, "").await;
    assert_eq!((status, facts(&body)), (503, [true, true, true, false]));
    assert_eq!(members(&body), with(&[]), "the cluster is named only once its name was proved");
    rig.stop().await;
}

#[tokio::test]
async fn seal_status_and_leader_have_their_fields() {
    let rig = Rig::one().await;
    let status = async || rig.send("GET", "sys/seal-status", &[], Value::Null).await.expect(200).body;
    let names = [
        "build_date",
        "commit_date",
        "initialized",
        "migration",
        "n",
        "nonce",
        "progress",
        "recovery_seal",
        "sealed",
        "storage_type",
        "t",
        "type",
        "version",
    ];
    let fresh = status().await;
    assert_eq!(members(&fresh), names);
    assert_eq!(
        (&fresh["initialized"], &fresh["sealed"], &fresh["n"]),
        (&json!(false), &json!(true), &json!(0))
    );
    rig.send("GET", "sys/leader", &[], Value::Null).await.expect_error(503, "Vault is sealed");

    let (keys, root) = rig.open().await;
    let open = status().await;
    let mut more: Vec<_> = names.iter().copied().chain(["cluster_id", "cluster_name"]).collect();
    more.sort_unstable();
    assert_eq!(members(&open), more);
    for (name, value) in [
        ("type", json!("shamir")),
        ("initialized", json!(true)),
        ("sealed", json!(false)),
        ("t", json!(2)),
        ("n", json!(3)),
        ("progress", json!(0)),
        ("nonce", json!("")),
        ("migration", json!(false)),
        ("recovery_seal", json!(false)),
        ("storage_type", json!("raft")),
    ] {
        assert_eq!(open[name], value, "{name}");
    }
    let leader = rig.send("GET", "sys/leader", &[], Value::Null).await.expect(200).body;
    assert_eq!(
        members(&leader),
        [
            "active_time",
            "ha_enabled",
            "is_self",
            "leader_address",
            "leader_cluster_address",
            "performance_standby",
            "performance_standby_last_remote_wal",
            "raft_applied_index",
            "raft_committed_index",
        ]
    );
    assert_eq!((&leader["ha_enabled"], &leader["is_self"]), (&json!(true), &json!(true)));
    rig.follow(Some("b"), None);
    let leader = rig.send("GET", "sys/leader", &[], Value::Null).await.expect(200).body;
    assert_eq!((&leader["is_self"], &leader["leader_address"]), (&json!(false), &json!("http://b:8200")));
    assert_eq!(leader["leader_cluster_address"], "b:8201");
    rig.lead(1);
    rig.as_token(&root, "PUT", "sys/seal", json!({})).await.expect(204);
    rig.send("GET", "sys/leader", &[], Value::Null).await.expect_error(503, "Vault is sealed");

    // The same body answers an unseal: progress, an attempt's number, a reset; migration is nothing we do.
    let unseal = async |body: Value| rig.send("PUT", "sys/unseal", &[], body).await.expect(200).body;
    let first = unseal(json!({"key": keys[0], "migrate": false})).await;
    assert_eq!(members(&first), names);
    assert_eq!((&first["progress"], &first["migration"]), (&json!(1), &json!(false)));
    assert!(!first["nonce"].as_str().unwrap().is_empty());
    let reset = unseal(json!({"reset": true})).await;
    assert_eq!(
        (&reset["progress"], &reset["nonce"], &reset["sealed"]),
        (&json!(0), &json!(""), &json!(true))
    );
    unseal(json!({"key": keys[1]})).await;
    assert_eq!(status().await["progress"], 1);
    rig.lead(2);
    assert_eq!(unseal(json!({"key": keys[2]})).await["sealed"], false);
    rig.stop().await;
}

#[tokio::test]
async fn init_gives_shares_in_both_forms_and_a_root_token_once() {
    use base64::Engine as _;
    let rig = Rig::one().await;
    let asked = async || rig.send("GET", "sys/init", &[], Value::Null).await.expect(200).body;
    assert_eq!(asked().await, json!({"initialized": false}));
    let wrong = json!({"secret_shares": 2, "secret_threshold": 3});
    rig.send("PUT", "sys/init", &[], wrong).await.expect(400);
    let made = rig.send("PUT", "sys/init", &[], json!({})).await.expect(200);
    assert_eq!(members(&made.body), ["keys", "keys_base64", "root_token"]);
    let (hex, base64) = (made.body["keys"].as_array().unwrap(), made.body["keys_base64"].as_array().unwrap());
    assert_eq!((hex.len(), base64.len()), (5, 5));
    for (hex, base64) in hex.iter().zip(base64) {
        let coded = base64::engine::general_purpose::STANDARD.decode(base64.as_str().unwrap()).unwrap();
        assert_eq!(hex::decode(hex.as_str().unwrap()).unwrap(), coded);
    }
    assert!(made.body["root_token"].as_str().unwrap().starts_with("hvs."));
    assert_eq!(asked().await, json!({"initialized": true}));
    assert_eq!(health(&rig, "").await.0, 503, "made, and sealed");
    rig.send("PUT", "sys/init", &[], json!({})).await.expect_error(400, "Vault is already initialized");
    rig.lead(1);
    for key in &hex[..3] {
        rig.send("PUT", "sys/unseal", &[], json!({"key": key})).await.expect(200);
    }
    let root = made.body["root_token"].as_str().unwrap();
    rig.as_token(root, "GET", "auth/token/lookup-self", Value::Null).await.expect(200);
    rig.stop().await;
}

#[tokio::test]
async fn a_node_joins_by_its_answer_alone() {
    let pair = Pair::start().await;
    let root = pair.root.as_str();
    // No token is asked for, on any node; the answers say nothing but what a challenge is.
    for rig in [&pair.a, &pair.b] {
        let challenge = "sys/storage/raft/bootstrap/challenge";
        let reply = rig.send("PUT", challenge, &[], json!({"server_id": "c"})).await.expect(200);
        assert!(reply.data()["challenge"].as_str().is_some_and(|text| !text.is_empty()));
        rig.send("PUT", challenge, &[], json!({})).await.expect_error(400, "server_id must be specified");
        let wrong = json!({"server_id": "c", "answer": "AAAA", "cluster_addr": "c:8201", "api_addr": "http://c:8200"});
        let refused = rig.send("PUT", "sys/storage/raft/bootstrap/answer", &[], wrong).await;
        refused.expect_error(400, "the answer does not fit the challenge");
    }
    let servers = pair.b.as_token(root, "GET", "sys/storage/raft/configuration", Value::Null).await;
    let servers = servers.data()["config"]["servers"].as_array().unwrap().clone();
    let names: Vec<_> = servers.iter().map(|server| server["node_id"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"], "who joined, and nobody who answered wrongly");
    assert_eq!(members(&servers[0]), ["address", "leader", "node_id", "protocol_version", "voter"]);

    let store = MemoryStore::new();
    let cluster = FakeCluster::active("c", Term::new(1));
    let fresh = Rig::start("c", cluster, &store, &pair.wires, |_| {}).await;
    let join = async |body: Value| fresh.send("PUT", "sys/storage/raft/join", &[], body).await;
    join(json!({})).await.expect_error(400, "leader_api_addr must be specified");
    join(json!({"leader_api_addr": "a:8200"})).await.expect_error(400, "leader_api_addr must be a URL");
    let nowhere = json!({"leader_api_addr": "http://127.0.0.1:1"});
    let unreachable = join(nowhere).await;
    assert_eq!(unreachable.status, 503, "{}", unreachable.text);
    let challenge = fresh.send("PUT", "sys/storage/raft/bootstrap/challenge", &[], json!({"server_id": "x"}));
    challenge.await.expect_error(503, "Vault is sealed");
    let later = join(json!({"leader_api_addr": "http://127.0.0.1:1", "retry": true})).await;
    assert_eq!(later.body, json!({"joined": true}), "it goes on trying by itself");
    fresh.stop().await;
    pair.stop().await;
}

#[tokio::test]
async fn each_node_shows_its_own_metrics() {
    let pair = Pair::start().await;
    let root = pair.root.as_str();
    let mut texts = Vec::new();
    for rig in [&pair.a, &pair.b] {
        for path in ["sys/metrics", "sys/metrics?format=prometheus"] {
            let reply = rig.as_token(root, "GET", path, Value::Null).await.expect(200);
            let kind = reply.headers["content-type"].to_str().unwrap();
            assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
            assert!(!reply.text.contains("# EOF") && reply.text.starts_with("# "), "{}", reply.text);
            texts.push(reply.text);
        }
        rig.as_token(root, "GET", "sys/metrics?format=xml", Value::Null).await.expect(400);
        rig.as_token("", "GET", "sys/metrics", Value::Null).await.expect(403);
    }
    let active = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("holdfast_hub_active ")).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!((active(&texts[0]), active(&texts[2])), ("1".into(), "0".into()));
    pair.stop().await;
}
