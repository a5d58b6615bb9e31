//! Our own commands: on a platform of `holdfast dev`, with JSON from each of them, and with their places for addresses
//! and tokens.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use holdfast_tests::cli::Cli;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::process::{Process, binary};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

/// `holdfast dev` with these arguments; what it makes for itself goes below `home`, and what it says into `out`.
fn dev(home: &Path, out: &str, args: &[&str]) -> Process {
    let mut command = Command::new(binary());
    command.arg("dev").args(args).env("TMPDIR", home.join("tmp")).env("HOME", home);
    std::fs::create_dir_all(home.join("tmp")).unwrap();
    Process::start(&mut command, &home.join(out))
}

/// Ends it, and makes sure that its nodes ended with it.
fn end(mut platform: Process, nodes: &[u32]) {
    platform.signal(Signal::SIGTERM);
    assert_eq!(platform.wait(Duration::from_secs(60)).code(), Some(0), "{}", platform.log());
    for pid in nodes {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "node {pid} is still there");
    }
}

/// What a client's table printed.
async fn table(program: &str, script: &str, args: Vec<String>) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
    let output = tokio::process::Command::new(program).arg(script).args(args).output().await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program}:\n{out}\n{err}");
    out.into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_of_three_nodes_serves_every_client_alike_and_leaves_nothing_behind() {
    let (home, database) = (TempDir::new().unwrap(), PostgresServer::start().await);
    database.execute("CREATE ROLE root_of_db SUPERUSER LOGIN PASSWORD 'root-pw'").await;
    let platform = dev(home.path(), "out", &["-nodes=3", "-root-token=dev-root", "-port=0", "-json"]);
    let announced =
        || async { platform.log().lines().find_map(|line| serde_json::from_str::<Value>(line).ok()) };
    let told = eventually_async(PATIENCE * 2, "the platform is announced", announced).await;
    assert_eq!(told["root_token"], "dev-root");
    let nodes = told["nodes"].as_array().unwrap().clone();
    let pids: Vec<u32> = nodes.iter().map(|n| n["pid"].as_u64().unwrap().try_into().unwrap()).collect();
    assert_eq!(pids.len(), 3);
    let data = Path::new(told["data"].as_str().unwrap()).to_owned();
    assert!(data.starts_with(home.path()) && data.is_dir());

    let args = |index: usize| {
        let place = format!("127.0.0.1:{}", database.port());
        vec![nodes[index]["api"].as_str().unwrap().to_owned(), "dev-root".into(), place, format!("t{index}")]
    };
    let hvac = table("python3", "table.py", args(0)).await;
    let known: BTreeSet<&str> = hvac.lines().collect();
    let mut first = String::new();
    for (index, node) in nodes.iter().enumerate().take(3) {
        let mut args = args(index);
        args.push(binary().display().to_string());
        let own = table("bash", "table_cli.sh", args).await;
        assert!(own.ends_with("table done\n") && own.lines().count() >= 25, "{own}");
        let strange: Vec<_> = own.lines().filter(|line| !known.contains(line)).collect();
        assert!(strange.is_empty(), "another client was told otherwise: {strange:?}\n{hvac}");
        if index == 0 {
            first.clone_from(&own);
        }
        assert_eq!(own, first, "through node {index}");
        let api = node["api"].as_str().unwrap();
        let cli = Cli::new(api).with_token("dev-root");
        // Both mounts are there.
        cli.run(&format!("kv put secret/hello{index} who=world")).await.expect(0);
        let mounts = cli.run("secrets list -json").await.expect(0).json();
        assert_eq!(mounts["data"]["database/"]["type"], "database");
        assert_eq!(mounts["data"]["secret/"]["options"]["version"], "2");
        assert_eq!(mounts["data"]["secret/"]["type"], "kv");
    }
    assert_eq!(database.users("v-").await, [""; 0], "every lease was revoked");
    end(platform, &pids);
    assert!(!data.exists(), "its data is removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_says_what_it_is_and_keeps_the_data_it_was_given() {
    let home = TempDir::new().unwrap();
    let data = home.path().join("kept");
    let kept = format!("-data={}", data.display());
    for round in 0..2 {
        let platform = dev(home.path(), &format!("out-{round}"), &["-nodes=1", "-port=0", &kept]);
        let ready = || async { platform.log().contains("Ctrl-C ends everything").then(|| platform.log()) };
        let text = eventually_async(PATIENCE * 2, "the platform is announced", ready).await;
        assert!(text.contains("NOT FOR PRODUCTION"), "{text}");
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("export {name}=")));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
        };
        let cli = Cli::new(&value("HOLDFAST_ADDR")).with_token(&value("HOLDFAST_TOKEN"));
        if round == 0 {
            cli.run("kv put secret/hello who=world").await.expect(0);
        } else {
            assert_eq!(cli.run("kv get -field=who secret/hello").await.expect(0).out, "world\n");
        }
        end(platform, &[]);
        assert!(data.is_dir(), "what was given stays");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_does_not_take_a_foreign_program_for_its_node() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let cli = Cli::new("http://127.0.0.1:1");
    let ended = cli.run(&format!("dev -nodes=1 -port={port}")).await.expect(1);
    assert!(
        ended.err.contains(&format!("port {port} is in use")) && ended.err.contains("--port"),
        "{}",
        ended.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_prints_json() {
    let cluster = Cluster::start(1).await;
    let cli = Cli::new(&cluster.nodes[0].url()).with_token(&cluster.root);
    cli.file("p.hcl", "path \"kv/*\" { capabilities = [\"read\"] }");
    let audit = cli.home().join("audit.log").display().to_string();
    let ok = json!({"ok": true});
    for line in [
        "secrets enable kv",
        "secrets enable -path=kv2 -version=2 kv",
        "secrets tune -max-lease-ttl=2h kv",
        "auth enable userpass",
        "auth tune -max-lease-ttl=2h userpass",
        "policy write app p.hcl",
        "policy delete app",
        "write kv/a v=1",
        "delete kv/a",
        "kv put kv/b v=1",
        "kv delete kv/b",
        "kv metadata put kv2/a max_versions=3",
        "kv metadata delete kv2/a",
        &format!("audit enable file file_path={audit}"),
        "audit disable file",
        "lease revoke -prefix kv",
        "operator raft snapshot save backup.tgz",
        "operator raft snapshot restore backup.tgz",
        "auth disable userpass",
        "secrets disable kv2",
    ] {
        let ended = cli.run(&format!("{line} -json")).await.expect(0);
        assert_eq!(ended.json(), ok, "{line}");
        // The same without the flag is for people.
        assert!(!ended.err.contains("Error"), "{line}: {}", ended.err);
    }
    for line in [
        "status",
        "secrets list",
        "auth list",
        "audit list",
        "policy list",
        "policy read default",
        "token create -ttl=1h",
        "token lookup",
        "operator raft list-peers",
        "operator init -status",
        "secrets tune kv",
        "read sys/mounts",
        "list sys/policies/acl",
    ] {
        let shown = cli.run(&format!("{line} -json")).await.expect(0).json();
        assert!(shown.is_object() || shown.is_array(), "{line}: {shown}");
    }
    let made = cli.run("token create -ttl=1h -json").await.expect(0).json();
    let token = made["auth"]["client_token"].as_str().unwrap();
    assert_eq!(cli.run(&format!("token revoke {token} -json")).await.expect(0).json(), ok);
    assert_eq!(cli.run("operator seal -json").await.expect(0).json(), ok);
    let quiet = Cli::new(&cluster.nodes[0].url());
    assert_eq!(quiet.run("status -json").await.expect(2).json()["sealed"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_and_tokens_come_from_their_places_in_order() {
    const NOBODY: &str = "http://127.0.0.1:1";
    let cluster = Cluster::start(1).await;
    let (url, api) = (cluster.nodes[0].url(), cluster.api(0));
    let token = async |name: &str| {
        let body = json!({"display_name": name, "policies": ["default"], "ttl": "1h"});
        let made = api.put("auth/token/create", body).await.expect(200);
        made.body["auth"]["client_token"].as_str().unwrap().to_owned()
    };
    let who = async |cli: &Cli, flags: &str| {
        let shown = cli.run(&format!("token lookup -json {flags}")).await.expect(0).json();
        shown["data"]["display_name"].as_str().unwrap().trim_start_matches("token-").to_owned()
    };
    // Addresses: a flag, then our own name, then the others in their order.
    let plain = |pairs: &[(&str, &str)]| {
        let cli = Cli::new("").with_token(&cluster.root);
        pairs.iter().fold(cli, |cli, (name, value)| cli.with_env(name, value))
    };
    plain(&[("HOLDFAST_ADDR", NOBODY)]).run(&format!("status -address={url}")).await.expect(0);
    plain(&[("HOLDFAST_ADDR", &url), ("BAO_ADDR", NOBODY), ("VAULT_ADDR", NOBODY)])
        .run("status")
        .await
        .expect(0);
    plain(&[("BAO_ADDR", &url), ("VAULT_ADDR", NOBODY)]).run("status").await.expect(0);
    plain(&[("VAULT_ADDR", &url)]).run("status").await.expect(0);
    plain(&[("HOLDFAST_ADDR", NOBODY), ("BAO_ADDR", &url)]).run("status").await.expect(1);

    // Tokens: the environment in the same order, then the files in theirs.
    let mut cli = Cli::new(&url);
    cli.file(".vault-token", &token("vault-file").await);
    assert_eq!(who(&cli, "").await, "vault-file");
    cli.file(".holdfast-token", &format!("{}\n", token("own-file").await));
    assert_eq!(who(&cli, "").await, "own-file");
    for (name, variable) in [("vault", "VAULT_TOKEN"), ("bao", "BAO_TOKEN"), ("own", "HOLDFAST_TOKEN")] {
        cli = cli.with_env(variable, &token(name).await);
        assert_eq!(who(&cli, "").await, name);
    }
    // A file that is named goes before them all, and must hold one.
    let named = cli.home().join("named");
    let flag = format!("-token-file={}", named.display());
    assert!(cli.run(&format!("token lookup {flag}")).await.expect(1).err.contains("cannot read"));
    std::fs::write(&named, "\n").unwrap();
    assert!(cli.run(&format!("token lookup {flag}")).await.expect(1).err.contains("holds no token"));
    std::fs::write(&named, format!("{}\n", token("named-file").await)).unwrap();
    assert_eq!(who(&cli, &flag).await, "named-file");
}
