//! What is configured holds, through every node.

use std::process::Command;
use std::time::{Duration, Instant};

use holdfast_tests::api::Api;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::process::{Process, binary, free_port};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn one_command_starts_the_role_from_a_directory_of_files() {
    let home = Cluster::prepare(Options::default());
    let (conf, data) = (home.dir().join("conf"), home.dir().join("data"));
    std::fs::create_dir(&conf).unwrap();
    let (api, cluster) = (free_port(), free_port());
    // Bracketed IPv6 for the cluster port, two formats, and a later file that wins.
    let first = format!(
        "[server.hub]\nnode_id = \"first\"\ndata_dir = {data:?}\nseal.type = \"keyfile\"\nseal.keyfile = {:?}\n",
        home.dir().join("seal.key")
    );
    std::fs::write(conf.join("10-base.toml"), first).unwrap();
    let second = format!(
        "server:\n  hub:\n    node_id: second\n    api: {{listen: '127.0.0.1:{api}'}}\n    \
         cluster: {{listen: '[::1]:{cluster}'}}\n    metrics: {{unauthenticated: true}}\n"
    );
    std::fs::write(conf.join("20-more.yaml"), second).unwrap();
    let mut command = Command::new(binary());
    command.args(["server", "--role", "hub", "--config"]).arg(&conf);
    let node = Process::start(&mut command, &home.dir().join("log"));
    let hub = Api::new(format!("http://127.0.0.1:{api}"));
    let listens = || async { (hub.health().await? == 501).then_some(()) };
    eventually_async(PATIENCE, "the node listens", listens).await;
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&data).unwrap());
    assert_eq!(mode & 0o777, 0o700);
    let made = hub.put("sys/init", json!({})).await.expect(200);
    let root = hub.with_token(made.body["root_token"].as_str().unwrap());
    let active = || async { (hub.health().await? == 200).then_some(()) };
    eventually_async(PATIENCE, "the node is active", active).await;
    let told = root.get("sys/storage/raft/configuration").await.expect(200);
    let server = &told.data()["config"]["servers"][0];
    assert_eq!(
        (&server["node_id"], &server["address"]),
        (&json!("second"), &json!(format!("[::1]:{cluster}")))
    );
    // The metrics need no token where the configuration says so.
    let metrics = hub.get("sys/metrics").await.expect(200);
    assert!(String::from_utf8_lossy(&metrics.bytes).contains("holdfast_hub_active 1"));
    drop(node);
}

const SETTINGS: &str = r#"
api.advertise = "http://localhost:API_PORT/"
limits.request_deadline = "4s"
limits.forward_hold = "3s"
lease.default_ttl = "1h"
lease.max_ttl = "2h"
raft.compact_after = 64
raft.keep_entries = 16
"#;

#[tokio::test(flavor = "multi_thread")]
async fn settings_hold_through_every_node() {
    let mut options = Options::calm();
    options.extra.push_str(SETTINGS);
    let (mut cluster, database) = (Cluster::start_with(options).await, PostgresServer::start().await);
    let active = cluster.active().await;
    let others = cluster.others(active);
    advertised(&cluster, active).await;
    lease_times(&cluster).await;
    compaction(&cluster, active).await;
    deadlines(&cluster, &database).await;
    for index in 0..3 {
        // Closed unless the configuration opens it.
        cluster.nodes[index].api().get("sys/metrics").await.expect(403);
    }
    // Without a majority nobody is active: a request is held, and then told so.
    cluster.nodes[others[0]].kill();
    cluster.nodes[active].kill();
    let alone = cluster.api(others[1]);
    let begun = Instant::now();
    let refused = alone.put("kv/alone", json!({"v": 1})).await;
    assert!(begun.elapsed() >= Duration::from_millis(2500), "held for {:?}", begun.elapsed());
    assert_eq!(refused.headers["retry-after"], "1");
    refused.expect_error(503, "no active Vault instance found");
    // One that waits when another node comes back is served.
    let held = || async {
        let reply = alone.put("kv/alone", json!({"v": 1})).await;
        assert!(matches!(reply.status, 204 | 503), "{}", reply.body);
        (reply.status == 204).then_some(())
    };
    cluster.nodes[others[0]].start();
    eventually_async(PATIENCE, "two of three serve again", held).await;
    cluster.check_logs(&[]);
}

async fn advertised(cluster: &Cluster, active: usize) {
    let url = format!("http://localhost:{}", cluster.nodes[active].api_port);
    for index in 0..3 {
        let leader = cluster.api(index).get("sys/leader").await.expect(200);
        assert_eq!(leader.body["leader_address"], json!(url));
    }
    let standby = cluster.api(cluster.others(active)[0]).with_header("X-Vault-No-Request-Forwarding", "1");
    let sent = standby.get("sys/mounts?a=1").await.expect(307);
    assert_eq!(sent.headers["location"], format!("{url}/v1/sys/mounts?a=1"));
}

async fn lease_times(cluster: &Cluster) {
    for index in 0..3 {
        let create = async |body| cluster.api(index).put("auth/token/create", body).await.expect(200).body;
        let plain = create(json!({"policies": ["default"]})).await;
        assert_eq!(plain["auth"]["lease_duration"], 3600);
        let long = create(json!({"policies": ["default"], "ttl": "5h"})).await;
        assert_eq!(long["auth"]["lease_duration"], 7200);
        assert!(long["warnings"].as_array().is_some_and(|w| !w.is_empty()), "{long}");
    }
}

async fn compaction(cluster: &Cluster, active: usize) {
    let api = cluster.api(active);
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    for n in 0..200 {
        api.put("kv/a", json!({"n": n})).await.expect(204);
    }
    for node in &cluster.nodes {
        let images = node.dir.join("data/raft/images");
        let taken = || async {
            let names = std::fs::read_dir(&images).ok()?.flatten().map(|e| e.path());
            names.into_iter().any(|path| path.extension().is_some_and(|e| e != "tmp")).then_some(())
        };
        eventually_async(PATIENCE, &format!("{} takes an image", node.id), taken).await;
    }
}

async fn deadlines(cluster: &Cluster, database: &PostgresServer) {
    cluster.api(0).setup_postgres(database, "1h").await;
    let slow = json!({"db_name": "pg", "creation_statements": "SELECT pg_sleep(120)"});
    cluster.api(0).put("database/roles/slow", slow).await.expect(204);
    let mut answers = Vec::new();
    for index in 0..3 {
        let begun = Instant::now();
        let reply = cluster.api(index).get("database/creds/slow").await;
        // Four seconds are configured; what else would end it takes thirty.
        assert!(begun.elapsed() < Duration::from_secs(20), "the request outlived its deadline");
        answers.push((reply.status, reply.errors()));
    }
    assert!(answers[0].0 >= 500, "{answers:?}");
    assert!(answers.iter().all(|answer| answer.0 == answers[0].0), "alike through every node: {answers:?}");
}
