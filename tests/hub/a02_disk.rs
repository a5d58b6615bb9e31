//! A full disk: the node says so, hands over, votes for nobody, and heals.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use serde_json::json;

/// Gives the node a small disk of its own, seen by its process only, and gone with it.
const SMALL_DISK: &str = r#"for config; do :; done; data="${config%/*}/data"; mkdir -p "$data"
mount -t tmpfs -o size=48m,mode=0700 tmpfs "$data" && exec "$@""#;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_moves_leadership_away_and_heals() {
    let wrapper = ["unshare", "--mount", "sh", "-c", SMALL_DISK, "sh"].map(str::to_owned).to_vec();
    let mut cluster = Cluster::start_with(Options { wrapper, ..Options::default() }).await;
    let full = cluster.active().await;
    cluster.api(full).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    cluster.api(full).put("kv/before", json!({"v": 1})).await.expect(204);
    let pid = cluster.nodes[full].process().pid();
    let data = cluster.nodes[full].dir.join("data");
    let filler = PathBuf::from(format!("/proc/{pid}/root{}/filler", data.display()));
    fill(&filler);

    let survivor = cluster.api(cluster.others(full)[0]);
    let mut n = 0;
    let moved = || {
        n += 1;
        let (key, api) = (format!("kv/k{n}"), cluster.api(full));
        let cluster = &cluster;
        async move {
            // What it cannot write it refuses, or passes on once another node leads.
            let status = api.put(&key, json!({"v": "x".repeat(100 << 10)})).await.status;
            assert!(matches!(status, 204 | 503), "{status}");
            (cluster.active().await != full).then_some(())
        }
    };
    eventually_async(PATIENCE, "another node is active", moved).await;
    let health = cluster.nodes[full].api().get("sys/health?standbyok=true").await;
    assert_eq!((health.status, &health.body["storage_healthy"]), (503, &json!(false)), "{}", health.body);
    survivor.put("kv/during", json!({"v": 1})).await.expect(204);
    // A request to the node itself is still passed on.
    cluster.api(full).get("kv/before").await.expect(200);

    std::fs::remove_file(&filler).unwrap();
    let api = cluster.nodes[full].api();
    let heals = || async { (api.health().await? == 429).then_some(()) };
    eventually_async(PATIENCE, "the node is healthy again", heals).await;
    cluster.api(full).get("kv/during").await.expect(200);
    let report = || async {
        let applied = |body: &serde_json::Value| body["raft_applied_index"].as_u64();
        let (own, other) = (api.get("sys/leader").await, survivor.get("sys/leader").await);
        (applied(&own.body)? >= applied(&other.body)?).then_some(())
    };
    eventually_async(PATIENCE, "the node has caught up", report).await;
    cluster.check_logs(&["the store cannot be written"]);
    let said = cluster.nodes[full].log().matches("the store cannot be written").count();
    assert!((1..=3).contains(&said), "it was said {said} times: once for each of its files at most");
}

/// Writes until nothing more fits.
fn fill(path: &std::path::Path) {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).unwrap();
    let block = vec![7; 64 << 10];
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(20) && file.write_all(&block).is_ok() {}
    while begun.elapsed() < Duration::from_secs(20) && file.write_all(&[7; 16]).is_ok() {}
}
