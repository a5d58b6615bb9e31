//! Secrets stay where they belong.

use std::path::Path;

use holdfast_tests::api::Api;
use holdfast_tests::db::{ADMIN_PASSWORD, PostgresServer};
use holdfast_tests::hub::{Cluster, Options};
use holdfast_tests::oracle::Login;
use holdfast_tests::spoke::{Relay, add_remote, owned};
use serde_json::{Value, json};

fn files(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// What a database says goes to clients only without the values that are secret.
async fn errors_tell_no_secret(api: &Api, database: &PostgresServer, name: &str, plugin: Value) {
    let url = format!("postgresql://rigadmin:a-wrong-secret-91b2@127.0.0.1:{}/app", database.port());
    let mut config = plugin;
    (config["connection_url"], config["allowed_roles"]) = (json!(url), json!("*"));
    let refused = api.put("database/config/wrong", config).await.expect(400);
    assert!(!refused.body.to_string().contains("a-wrong-secret-91b2"), "{}", refused.body);
    // The server quotes the password in its message.
    let statement =
        "CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}'; SELECT CAST('{{password}}' AS integer)";
    let role = json!({"db_name": name, "creation_statements": statement});
    api.put("database/roles/quoting", role).await.expect(204);
    let refused = api.get("database/creds/quoting").await.expect(500);
    let text = refused.errors()[0].clone();
    assert!(text.contains("integer"), "the server's own words are told: {text}");
    let is_password = |word: &str| word.len() == 20 && !word.starts_with("v-");
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    assert!(!words.any(is_password), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_logs_argv_or_the_data_directory() {
    let env = vec![("HOLDFAST_LOG".to_owned(), "trace".to_owned())];
    let mut cluster = Cluster::start_with(Options { env, ..Options::calm() }).await;
    let database = PostgresServer::start().await;
    let active = cluster.active().await;
    let api = cluster.api(active);
    let audit = cluster.dir().join("audit.log");
    api.put("sys/audit/file", json!({"type": "file", "options": {"file_path": audit}})).await.expect(204);
    api.setup_postgres(&database, "1h").await;
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    api.put("kv/a", json!({"value": "the-kv-secret-7f3a"})).await.expect(204);
    let standby = cluster.api(cluster.others(active)[0]);
    let login = Login::issue(&standby, "database/creds/app").await.expect("a login");
    api.get("kv/a").await.expect(200);
    let _ = api.with_token("hvs.garbled-token-text-1").get("kv/a").await;
    let token = api.put("auth/token/create", json!({"ttl": "1h"})).await.expect(200);
    let token = token.body["auth"]["client_token"].as_str().unwrap().to_owned();
    standby.with_token(&token).get("auth/token/lookup-self").await.expect(200);

    let relay = Relay::set_up(&cluster).await;
    let joining = api.put("relay/bootstrap-tokens", json!({})).await.expect(200).text("token");
    let mut spoke = relay.join_with(&cluster, "spoke-1", &joining).await;
    spoke.start(&relay.address(&cluster, cluster.others(active)[0]), &["--log=trace"]);
    owned(&cluster, "spoke-1", cluster.others(active)[0]).await;
    add_remote(&cluster, active, &database, "spoke-1", ("pg2", "app2", "1h")).await;
    let remote = Login::issue(&standby, "database/creds/app2").await.expect("a login through the spoke");

    let direct = json!({"plugin_name": "postgresql-database-plugin"});
    errors_tell_no_secret(&api, &database, "pg", direct).await;
    let spoken = json!({"plugin_name": "remote-postgres-plugin", "spoke_name": "spoke-1"});
    errors_tell_no_secret(&api, &database, "pg2", spoken).await;
    let secrets = [
        &joining,
        &joining.split_once('.').expect("an id and a secret").1.to_owned(),
        &remote.password,
        &"r1g%3Ap%40ss".to_owned(),
        &cluster.root,
        &token,
        &login.password,
        &"the-kv-secret-7f3a".to_owned(),
        &ADMIN_PASSWORD.to_owned(),
        &"a-wrong-secret-91b2".to_owned(),
    ];
    let mut places = Vec::new();
    files(cluster.dir(), &mut places);
    files(spoke.dir(), &mut places);
    let mut pids: Vec<_> = cluster.nodes.iter_mut().map(|node| node.process().pid()).collect();
    pids.push(spoke.process().pid());
    for pid in pids {
        places.push(format!("/proc/{pid}/cmdline").into());
        places.push(format!("/proc/{pid}/environ").into());
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        let core: Vec<_> = core.split_whitespace().skip(4).take(2).collect();
        assert_eq!(core, ["0", "0"], "a core dump would hold every key");
    }
    assert!(places.len() > 10 && audit.is_file());
    assert!(spoke.log().contains("TRACE"), "the spoke tells all that it ever tells");
    for place in places {
        let bytes = std::fs::read(&place).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        for secret in secrets {
            let line = text.find(secret.as_str()).map(|at| {
                let from = text.get(..at).and_then(|before| before.rfind('\n')).unwrap_or(0);
                text.get(from..at).unwrap_or_default().chars().take(400).collect::<String>()
            });
            assert!(line.is_none(), "{place:?} holds {secret:?} in clear after {line:?}");
        }
    }
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn plaintext_off_loopback_and_other_mistakes_are_told_together() {
    let cluster = Cluster::prepare(Options::default());
    let config = cluster.dir().join("bad.toml");
    let text = "[server.hub]\nnode_id = \"bad id!\"\napi.listen = \"0.0.0.0:8200\"\nraft.heartbeat_ms = 5\nno_such_key = 1\n\
                lease.revoke_workers = 0\n";
    std::fs::write(&config, text).unwrap();
    let output = std::process::Command::new(holdfast_tests::process::binary())
        .args(["server", "--role", "hub", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
    let told = String::from_utf8_lossy(&output.stderr);
    for key in [
        "node_id",
        "data_dir",
        "api.listen",
        "api.tls",
        "raft.heartbeat_ms",
        "no_such_key",
        "lease.revoke_workers",
    ] {
        assert!(told.contains(key), "{key} is not told:\n{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_the_same_data_is_refused() {
    let cluster = Cluster::start(1).await;
    let output = std::process::Command::new(holdfast_tests::process::binary())
        .args(["server", "--role", "hub", "--config"])
        .arg(cluster.nodes[0].config())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
    let told =
        format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(told.contains("data_dir is in use"), "{told}");
}
