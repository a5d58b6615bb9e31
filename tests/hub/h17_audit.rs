//! Audit: a line for each request and each answer, no secret in clear, and nothing happens unrecorded.

use std::path::Path;

use holdfast_tests::cli::Cli;
use holdfast_tests::db::{ADMIN_PASSWORD, PostgresServer};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::{Login, leases, settled};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_and_answer_has_its_line_and_no_secret_is_in_it() {
    let (cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let active = cluster.active().await;
    let standby = cluster.api(cluster.others(active)[0]);
    let file = cluster.dir().join("audit.log");
    let device = json!({"type": "file", "options": {"file_path": file}});
    standby.put("sys/audit/main", device.clone()).await.expect(204);
    assert_eq!(standby.put("sys/audit/main", device).await.status, 400);
    standby.setup_postgres(&database, "1h").await;
    standby.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);

    let made =
        standby.put("auth/token/create", json!({"ttl": "1h", "display_name": "ann"})).await.expect(200);
    let token = made.body["auth"]["client_token"].as_str().unwrap().to_owned();
    let accessor = made.body["auth"]["accessor"].as_str().unwrap().to_owned();
    let own = standby.with_token(&token);
    own.put("kv/a", json!({"value": "the-kv-secret-7f3a"})).await.expect(204);
    own.get("kv/a").await.expect(200);
    own.get("kv/none").await.expect(404);
    own.put("kv/a", json!({"nested": {"deep": ["the-deep-secret-19c4"]}})).await.expect(204);
    let login = Login::issue(&own, "database/creds/app").await.expect("a login");
    let wrapped = own.with_header("X-Vault-Wrap-TTL", "5m").get("kv/a").await.expect(200);
    let wrapping = wrapped.body["wrap_info"]["token"].as_str().unwrap().to_owned();
    cluster.nodes[active].api().with_token("hvs.wrong-token-text-55e1").get("kv/a").await.expect(403);
    standby.put("sys/auth/userpass", json!({"type": "userpass"})).await.expect(204);
    standby.put("auth/userpass/users/bob", json!({"password": "the-pw-of-bob-8a1d"})).await.expect(204);
    let bob =
        standby.put("auth/userpass/login/bob", json!({"password": "the-pw-of-bob-8a1d"})).await.expect(200);
    let bob = bob.body["auth"]["client_token"].as_str().unwrap().to_owned();
    own.put("sys/leases/revoke", json!({"lease_id": login.lease, "sync": true})).await.expect(204);

    let entries = lines(&file);
    let of = |kind: &str, path: &str| {
        entries.iter().filter(|e| e["type"] == kind && e["request"]["path"] == path).collect::<Vec<_>>()
    };
    for (path, times) in
        [("kv/a", 5), ("kv/none", 1), ("database/creds/app", 1), ("auth/userpass/login/bob", 1)]
    {
        // The refused token's request has a line too, so kv/a has five of them.
        assert_eq!(of("response", path).len(), times, "{path}");
        for answer in of("response", path) {
            let id = &answer["request"]["id"];
            let asked = of("request", path).into_iter().filter(|e| &e["request"]["id"] == id).count();
            assert_eq!(asked, 1, "{path} {id}");
        }
    }
    let refused: Vec<_> =
        of("response", "kv/a").into_iter().filter(|e| e["error"] == "permission denied").collect();
    assert_eq!(refused.len(), 1, "who was refused is told too");
    let issued = of("response", "database/creds/app")[0];
    assert_eq!(issued["auth"]["display_name"], "token-ann");
    assert_eq!(issued["request"]["mount_type"], "database");
    assert_eq!(issued["request"]["remote_address"], "127.0.0.1", "the client's, not the standby's: {issued}");
    for text in [
        &issued["response"]["data"]["password"],
        &issued["auth"]["client_token"],
        &issued["auth"]["accessor"],
    ] {
        assert!(text.as_str().is_some_and(|t| t.starts_with("hmac-sha256:")), "{issued}");
    }
    let hash =
        standby.put("sys/audit-hash/main", json!({"input": login.password})).await.expect(200).text("hash");
    assert_eq!(issued["response"]["data"]["password"], json!(hash), "a value can be looked for");

    let text = std::fs::read_to_string(&file).unwrap();
    let secrets = [
        "the-kv-secret-7f3a",
        "the-deep-secret-19c4",
        "the-pw-of-bob-8a1d",
        "wrong-token-text-55e1",
        ADMIN_PASSWORD,
        &cluster.root,
        &token,
        &accessor,
        &login.password,
        &wrapping,
        &bob,
    ];
    for secret in secrets {
        assert!(!text.contains(secret), "{secret} is in the audit file");
    }
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap()) & 0o777, 0o600);
    cluster.check_logs(&[]);
}

/// Points a device's file, which is a link, elsewhere and lets all nodes open it anew.
fn point(cluster: &mut Cluster, link: &Path, to: &Path) {
    let next = link.with_extension("next");
    std::os::unix::fs::symlink(to, &next).unwrap();
    std::fs::rename(&next, link).unwrap();
    for node in &mut cluster.nodes {
        node.process().signal(Signal::SIGHUP);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_recorded_does_not_happen() {
    let (mut cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let active = cluster.active().await;
    let api = cluster.api(cluster.others(active)[0]);
    api.setup_postgres(&database, "1h").await;
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    let slow = json!({"db_name": "pg", "default_ttl": "1h", "creation_statements":
        "CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}'; SELECT pg_sleep(4)"});
    api.put("database/roles/slow", slow).await.expect(204);
    let (link, file) = (cluster.dir().join("audit.link"), cluster.dir().join("audit.log"));
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let device = json!({"type": "file", "options": {"file_path": link}});
    api.put("sys/audit/main", device).await.expect(204);
    api.put("kv/a", json!({"v": 1})).await.expect(204);

    // While a login is being made the device goes: the answer cannot be recorded, so the login must not stay.
    let asking = tokio::spawn({
        let api = api.clone();
        async move { api.get("database/creds/slow").await }
    });
    eventually_async(PATIENCE, "the login is being made", || async {
        let sleeping =
            "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(4)%' AND pid <> pg_backend_pid()";
        (!database.query(sleeping).await.is_empty()).then_some(())
    })
    .await;
    point(&mut cluster, &link, Path::new("/dev/full"));
    asking.await.unwrap().expect_error(500, "internal error");
    eventually_async(PATIENCE, "the login is gone", || async {
        database.users("v-").await.is_empty().then_some(())
    })
    .await;

    for index in 0..3 {
        let api = cluster.api(index);
        api.put("kv/a", json!({"v": 2})).await.expect_error(500, "internal error");
        api.get("kv/a").await.expect_error(500, "internal error");
        api.get("database/creds/app").await.expect_error(500, "internal error");
        api.get("sys/health?standbyok=true").await.expect(200);
    }
    assert_eq!(database.users("v-").await, [""; 0], "nothing was executed");

    point(&mut cluster, &link, &file);
    eventually_async(PATIENCE, "requests are served again", || async {
        (api.get("kv/a").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(api.get("kv/a").await.data()["v"], 1, "the refused write did not happen");
    assert_eq!(leases(&api, "database/creds/").await, [""; 0]);
    Login::issue(&api, "database/creds/app").await.expect("a login");
    settled(&api, &database, PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_device_that_writes_is_enough_and_a_stuck_one_delays_once() {
    let cluster = Cluster::start(1).await;
    let api = cluster.api(0);
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    let file = cluster.dir().join("audit.log");
    api.put("sys/audit/good", json!({"type": "file", "options": {"file_path": file}})).await.expect(204);
    // Nobody reads this pipe, so that opening it for writing never returns.
    let pipe = cluster.dir().join("stuck.pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    api.put("sys/audit/stuck", json!({"type": "file", "options": {"file_path": pipe}})).await.expect(204);
    for i in 0..20 {
        api.put("kv/a", json!({"v": i})).await.expect(204);
    }
    let started = std::time::Instant::now();
    for i in 0..20 {
        api.put("kv/a", json!({"v": i})).await.expect(204);
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(15), "a stuck device is skipped");
    assert!(lines(&file).iter().filter(|e| e["request"]["path"] == "kv/a").count() >= 80);
    let metrics = api.get("sys/metrics?format=prometheus").await.expect(200);
    let text = String::from_utf8_lossy(&metrics.bytes).into_owned();
    let failures =
        text.lines().find(|l| l.starts_with("holdfast_hub_audit_failures_total")).unwrap_or_default();
    assert!(!failures.ends_with(" 0") && !failures.is_empty(), "{failures}");
    api.delete("sys/audit/stuck").await.expect(204);
    assert!(api.get("sys/audit").await.expect(200).data().get("stuck/").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_record_says_so_at_once_and_a_device_holds_up_no_seal() {
    let mut cluster = Cluster::start_with(Options { nodes: 1, ..Options::default() }).await;
    let api = cluster.api(0);
    let dir = cluster.dir().join("audit");
    let file = dir.join("audit.log");
    let device = json!({"type": "file", "options": {"file_path": file}});
    let refused = api.put("sys/audit/main", device.clone()).await.expect(400);
    assert!(refused.errors()[0].contains(file.to_str().unwrap()), "{}", refused.body);
    std::fs::create_dir(&dir).unwrap();
    api.put("sys/audit/main", device).await.expect(204);
    assert_eq!(api.get("sys/seal-status").await.body["audit_working"], Value::Null);

    cluster.nodes[0].process().signal(Signal::SIGTERM);
    cluster.nodes[0].process().wait(PATIENCE);
    assert!(!cluster.nodes[0].log().contains("were cut"), "{}", cluster.log_ends(20));

    std::fs::remove_dir_all(&dir).unwrap();
    cluster.nodes[0].start();
    cluster.nodes[0].wait_listening().await;
    cluster.unseal(&cluster.nodes[0]).await;
    let known = || async { (api.get("sys/seal-status").await.body["audit_working"] == false).then_some(()) };
    eventually_async(PATIENCE, "the node knows that it cannot record", known).await;
    let log = cluster.nodes[0].log();
    let told = log.lines().find(|line| line.contains("the audit file cannot be opened")).unwrap_or_default();
    assert!(told.contains("ERROR") && told.contains(file.to_str().unwrap()), "{log}");
    let cli = Cli::new(&cluster.nodes[0].url()).with_token(&cluster.root);
    let shown = cli.run("status").await.expect(0);
    assert!(
        shown.out.lines().any(|line| line.starts_with("Audit Working") && line.ends_with("false")),
        "{shown:?}"
    );
    cluster.active().await;
    let refused = cli.run("secrets list").await.expect(2);
    assert!(refused.err.contains("no audit device took the entry"), "{}", refused.err);
    std::fs::create_dir(&dir).unwrap();
    let works = || async { (cli.run("secrets list").await.code == 0).then_some(()) };
    eventually_async(PATIENCE, "the device works again", works).await;
}
