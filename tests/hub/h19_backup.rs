//! A backup of one cluster comes back, there or on another cluster, whole or not at all.

use holdfast_tests::api::Api;
use holdfast_tests::cli::Cli;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE, Seal};
use holdfast_tests::oracle::{Login, leases};
use serde_json::json;

const BACKUP: &str = "sys/storage/raft/snapshot";
/// The largest ordinary request, in bytes.
const LIMIT: usize = 16 << 10;

/// A cluster that takes only small requests: backups are no requests of that sort.
async fn start() -> Cluster {
    let extra = format!("limits.body_bytes = \"{} KiB\"", LIMIT >> 10);
    Cluster::start_with(Options { seal: Seal::Shamir(1, 1), extra, ..Options::default() }).await
}

/// Writes secrets that no compression makes small, more than a request may carry at once.
async fn fill(api: &Api, keys: usize) {
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    for key in 0..keys {
        let noise = hex::encode((0..600).map(|_| rand::random::<u8>()).collect::<Vec<_>>());
        api.put(&format!("kv/k{key}"), json!({"v": key, "noise": noise})).await.expect(204);
    }
}

async fn upload(api: &Api, path: &str, bytes: &[u8]) -> holdfast_tests::api::Reply {
    api.try_send("POST", path, Some(bytes.to_vec())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_brings_back_what_was_on_every_node() {
    let cluster = start().await;
    let active = cluster.active().await;
    let api = cluster.api(cluster.others(active)[0]);
    fill(&api, 50).await;
    let backup = api.get(BACKUP).await.expect(200);
    assert_eq!(backup.headers["content-type"], "application/gzip");
    assert_eq!(backup.bytes[..2], [0x1f, 0x8b]);
    assert!(backup.bytes.len() > 2 * LIMIT, "{}", backup.bytes.len());
    let large = json!({"v": "x".repeat(LIMIT + 1)});
    api.put("kv/large", large).await.expect_error(413, "http: request body too large");
    api.put("kv/k0", json!({"v": "later"})).await.expect(204);
    api.put("kv/new", json!({"v": "later"})).await.expect(204);
    api.delete("kv/k1").await.expect(204);

    // Damage anywhere is found before anything changes.
    for place in
        [12, backup.bytes.len() / 3, backup.bytes.len() / 2, backup.bytes.len() - 40, backup.bytes.len() - 5]
    {
        let mut damaged = backup.bytes.clone();
        damaged[place] ^= 0x10;
        for path in [BACKUP, "sys/storage/raft/snapshot-force"] {
            let refused = upload(&api, path, &damaged).await;
            assert_eq!(refused.status, 400, "byte {place}: {}", refused.body);
        }
    }
    let cut = upload(&api, BACKUP, &backup.bytes[..backup.bytes.len() / 2]).await;
    assert_eq!(cut.status, 400, "{}", cut.body);
    assert_eq!(upload(&api, BACKUP, b"no archive").await.status, 400);
    assert_eq!(api.get("kv/k0").await.expect(200).text("v"), "later");
    assert_eq!(api.get("kv/new").await.expect(200).text("v"), "later");

    upload(&api, BACKUP, &backup.bytes).await.expect(204);
    for index in 0..3 {
        let api = cluster.api(index);
        let back = || async { (api.get("kv/k0").await.body["data"]["v"] == 0).then_some(()) };
        eventually_async(PATIENCE, "the node serves what was restored", back).await;
        api.get("kv/new").await.expect_missing();
        assert_eq!(api.get("kv/k1").await.expect(200).data()["v"], 1);
        assert_eq!(api.list("kv").await.expect(200).data()["keys"].as_array().unwrap().len(), 50);
    }
    // The cluster goes on: it takes writes and survives a change of leaders.
    api.put("kv/after", json!({"v": 1})).await.expect(204);
    api.put("sys/step-down", json!({})).await.expect(204);
    let read = || async { (api.get("kv/after").await.status == 200).then_some(()) };
    eventually_async(PATIENCE, "the next leader has it too", read).await;
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_cluster_takes_over_secrets_and_leases() {
    let (mut old, database) = (start().await, PostgresServer::start().await);
    let api = old.api(old.active().await);
    fill(&api, 10).await;
    api.setup_postgres(&database, "1h").await;
    let login = Login::issue(&api, "database/creds/app").await.expect("a login");
    let token = api.put("auth/token/create", json!({"ttl": "1h"})).await.expect(200);
    let token = token.body["auth"]["client_token"].as_str().unwrap().to_owned();
    // The new cluster meets a device in the backup, under keys that it does not have yet.
    let audit = old.dir().join("audit.log");
    api.put("sys/audit/file", json!({"type": "file", "options": {"file_path": audit}})).await.expect(204);
    let cli = Cli::new(&old.nodes[1].url()).with_token(&old.root);
    cli.run("operator raft snapshot save backup.gz").await.expect(0);
    let bytes = std::fs::read(cli.home().join("backup.gz")).unwrap();
    old.nodes.iter_mut().for_each(holdfast_tests::hub::Node::kill);

    let mut new = start().await;
    let active = new.active().await;
    let standby = new.others(active)[0];
    new.api(active).put("sys/mounts/own", json!({"type": "kv"})).await.expect(204);
    let refused = upload(&new.api(standby), BACKUP, &bytes).await;
    assert_eq!(refused.status, 400, "another cluster's: {}", refused.body);
    new.api(standby).get("sys/mounts/own").await.expect(200);
    let cli = Cli::new(&new.nodes[standby].url()).with_token(&new.root);
    std::fs::write(cli.home().join("backup.gz"), &bytes).unwrap();
    let refused = cli.run("operator raft snapshot restore backup.gz").await.expect(2);
    assert!(refused.err.contains("another") || refused.err.contains("of cluster"), "{}", refused.err);
    cli.run("operator raft snapshot restore -force backup.gz").await.expect(0);

    // The data is under the keys of the old cluster: those open it, and its tokens hold.
    (new.keys, new.root) = (old.keys.clone(), old.root.clone());
    for index in 0..3 {
        let node = new.nodes[index].api();
        let sealed = || async { (node.get("sys/seal-status").await.body["sealed"] == true).then_some(()) };
        eventually_async(PATIENCE, "the node waits for the keys of the restored cluster", sealed).await;
        new.unseal(&new.nodes[index]).await;
    }
    new.wait_complete().await;
    for index in 0..3 {
        let api = new.api(index);
        let read = || async { (api.get("kv/k7").await.body["data"]["v"] == 7).then_some(()) };
        eventually_async(PATIENCE, "secrets are there", read).await;
        api.get("sys/mounts/own").await.expect(400);
        new.nodes[index].api().with_token(&token).get("auth/token/lookup-self").await.expect(200);
    }
    let api = new.api(new.active().await);
    assert_eq!(leases(&api, "database/creds/").await, std::slice::from_ref(&login.lease));
    api.put("sys/leases/renew", json!({"lease_id": login.lease, "increment": "2h"})).await.expect(200);
    assert!(login.works(&database).await);
    api.put("sys/leases/revoke", json!({"lease_id": login.lease, "sync": true})).await.expect(204);
    assert!(!login.works(&database).await);
    assert!(Login::issue(&api, "database/creds/app").await.expect("a login").works(&database).await);
}
