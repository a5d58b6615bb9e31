//! The wall clock of the active node jumps.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_tests::api::CREATE_ROLE;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::{Login, settled};
use serde_json::json;

/// Each node reads its wall clock through a file beside its configuration; the monotonic one is the machine's.
const FAKED: &str = r#"for config; do :; done
export LD_PRELOAD=LIBRARY FAKETIME_TIMESTAMP_FILE="${config%/*}/clock" FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1
[ -e "$FAKETIME_TIMESTAMP_FILE" ] || echo +0 > "$FAKETIME_TIMESTAMP_FILE"
exec "$@""#;

fn library() -> PathBuf {
    let found = ["x86_64", "aarch64"]
        .iter()
        .map(|arch| PathBuf::from(format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1")))
        .find(|path| path.exists());
    found.expect("the package libfaketime is installed")
}

/// Sets the clock of a node this far off, at once.
fn set(dir: &Path, offset: &str) {
    let (clock, fresh) = (dir.join("clock"), dir.join("clock.new"));
    std::fs::write(&fresh, format!("{offset}\n")).unwrap();
    std::fs::rename(fresh, clock).unwrap();
}

async fn server_time(cluster: &Cluster, index: usize) -> i64 {
    let reply = cluster.nodes[index].api().get("sys/health?standbyok=true").await;
    reply.body["server_time_utc"].as_i64().unwrap_or_else(|| panic!("no time in {}", reply.body))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_moves_neither_leadership_nor_the_end_of_leases() {
    let script = FAKED.replace("LIBRARY", &library().display().to_string());
    let wrapper = ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
    let cluster = Cluster::start_with(Options { wrapper, ..Options::calm() }).await;
    let database = PostgresServer::start().await;
    let active = cluster.active().await;
    let api = cluster.api(active);
    api.setup_postgres(&database, "12h").await;
    let short = json!({"db_name": "pg", "creation_statements": CREATE_ROLE, "default_ttl": "4s"});
    api.put("database/roles/short", short).await.expect(204);
    let token =
        api.put("auth/token/create", json!({"ttl": "12h", "policies": ["default"]})).await.expect(200);
    let token = token.body["auth"]["client_token"].as_str().unwrap().to_owned();
    let long = Login::issue(&api, "database/creds/app").await.expect("a login");
    let true_time = server_time(&cluster, active).await;

    for (offset, seconds) in [("-3h", -3 * 3600), ("+3h", 3 * 3600), ("+0", 0)] {
        set(&cluster.nodes[active].dir, offset);
        let seen = || async {
            let off = server_time(&cluster, active).await - true_time - seconds;
            (off.abs() < 600).then_some(())
        };
        eventually_async(PATIENCE, "the node sees the other time", seen).await;
        // A lease made under this clock ends in its time, not hours later.
        let login = Login::issue(&api, "database/creds/short").await.expect("a login");
        let gone = || async { (!login.works(&database).await).then_some(()) };
        eventually_async(Duration::from_secs(20), "a short lease ends in its time", gone).await;
        assert!(long.works(&database).await, "a lease of twelve hours lives on at {offset}");
        api.with_token(&token).get("auth/token/lookup-self").await.expect(200);
        assert_eq!(cluster.active().await, active, "leadership does not depend on the time of day");
    }
    // A node with another time of day takes over.
    let next = cluster.others(active);
    for index in &next {
        set(&cluster.nodes[*index].dir, "-2h");
    }
    api.put("sys/step-down", json!({})).await.expect(204);
    let moved = || async { (cluster.active().await != active).then_some(()) };
    eventually_async(PATIENCE, "another node is active", moved).await;
    let api = cluster.api(cluster.active().await);
    assert!(long.works(&database).await);
    api.with_token(&token).get("auth/token/lookup-self").await.expect(200);
    let login = Login::issue(&api, "database/creds/short").await.expect("a login");
    let gone = || async {
        let lookup = api.put("sys/leases/lookup", json!({"lease_id": login.lease})).await;
        (lookup.status == 400 && !database.users("v-").await.contains(&login.username)).then_some(())
    };
    eventually_async(Duration::from_secs(20), "a short lease ends under the next node", gone).await;
    settled(&api, &database, PATIENCE).await;
    cluster.check_logs(&[]);
}
