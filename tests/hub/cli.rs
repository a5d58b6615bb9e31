//! The command line against a real cluster.

use holdfast_tests::api::Api;
use holdfast_tests::cli::Cli;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Node, Options, PATIENCE, Seal};
use holdfast_tests::oracle::Login;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_made_opened_and_watched() {
    let options = Options { nodes: 1, seal: Seal::Shamir(1, 1), ..Options::default() };
    let cluster = Cluster::prepare(options.clone());
    let mut node = Node::prepare(cluster.dir(), 0, &options, &[]);
    node.start();
    node.wait_listening().await;
    let cli = Cli::new(&node.url());
    cli.run("operator init -status").await.expect(2);
    cli.run("status").await.expect(2);
    let made = cli.run("operator init -key-shares=3 -key-threshold=2 -json").await.expect(0).json();
    let keys: Vec<&str> =
        made["keys_base64"].as_array().unwrap().iter().map(|k| k.as_str().unwrap()).collect();
    assert_eq!(keys.len(), 3);
    cli.run("operator init -status").await.expect(0);
    let again = cli.run("operator init").await.expect(2);
    assert!(again.err.contains("Vault is already initialized") && again.out.is_empty(), "{}", again.err);

    let sealed = cli.run("status").await.expect(2);
    assert!(sealed.out.lines().any(|l| l.starts_with("Sealed") && l.ends_with("true")), "{}", sealed.out);
    assert_eq!(cli.run("--json status").await.expect(2).json()["sealed"], true);
    let step = cli.run_with("operator unseal -", &format!("{}\n", keys[2])).await.expect(0);
    assert!(step.out.lines().any(|l| l.starts_with("Unseal Progress") && l.ends_with('1')), "{}", step.out);
    assert_eq!(cli.run("operator unseal -reset --json").await.expect(0).json()["progress"], 0);
    for key in &keys[..2] {
        cli.run(&format!("operator unseal {key}")).await.expect(0);
    }
    let bad = cli.run("operator unseal not-a-key!").await;
    assert!(matches!(bad.code, 0 | 2), "{bad:?}");
    let open = cli.run("status").await.expect(0);
    assert!(open.out.lines().any(|l| l.starts_with("Sealed") && l.ends_with("false")), "{}", open.out);

    let root = Cli::new(&node.url()).with_token(made["root_token"].as_str().unwrap());
    let api = node.api();
    eventually_async(PATIENCE, "active", || async { (api.health().await? == 200).then_some(()) }).await;
    let peers = root.run("operator raft list-peers").await.expect(0);
    assert!(
        peers.out.lines().any(|l| l.starts_with("n0") && l.contains("leader") && l.ends_with("true")),
        "{}",
        peers.out
    );
    root.run("operator seal").await.expect(0);
    cli.run("status").await.expect(2);
    let nobody = Cli::new("http://127.0.0.1:1");
    nobody.run("status").await.expect(1);
    nobody.run("read kv/a").await.expect(2);
}

/// A cluster of one with kv mounts, and a user of the command line as root.
async fn start() -> (Cluster, Api, Cli) {
    let cluster = Cluster::start(1).await;
    let cli = Cli::new(&cluster.nodes[0].url()).with_token(&cluster.root);
    let api = cluster.api(0);
    (cluster, api, cli)
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_are_read_written_listed_and_deleted() {
    let (cluster, _api, cli) = start().await;
    cli.run("secrets enable -path=kv -description=plain kv").await.expect(0);
    cli.run("write kv/a user=ann note=x=y").await.expect(0);
    assert_eq!(cli.run("read -field=user kv/a").await.expect(0).out, "ann\n");
    assert_eq!(cli.run("read --field note kv/a").await.expect(0).out, "x=y\n");
    assert_eq!(cli.run("read kv/a -json").await.expect(0).json()["data"]["user"], "ann");
    let table = cli.run("read kv/a").await.expect(0);
    assert!(table.out.lines().any(|l| l.starts_with("user") && l.ends_with("ann")), "{}", table.out);
    assert!(!table.out.contains('\u{1b}'), "no colours in a pipe");
    cli.file("secret.txt", "from a file");
    cli.run("write kv/b value=@secret.txt").await.expect(0);
    assert_eq!(cli.run("read -field=value kv/b").await.expect(0).out, "from a file\n");
    cli.run_with("write kv/c -", "{\"n\": 7}").await.expect(0);
    assert_eq!(cli.run("read -json kv/c").await.expect(0).json()["data"]["n"], 7);
    assert_eq!(cli.run("list -json kv").await.expect(0).json(), json!(["a", "b", "c"]));
    let missing = cli.run("read kv/none").await.expect(2);
    assert!(missing.err.contains("404") || missing.err.to_lowercase().contains("nothing"), "{}", missing.err);
    cli.run("read -field=nothing kv/a").await.expect(1);
    cli.run("delete kv/a").await.expect(0);
    cli.run("read kv/a").await.expect(2);
    cli.run("write kv/a").await.expect(1);
    cli.run("no-such-command").await.expect(1);
    cli.run("read").await.expect(1);
    cli.run("--help").await.expect(0);
    cli.run("-help").await.expect(0);
    cli.run("--version").await.expect(0);
    let shown = cli.run("secrets list -json").await.expect(0).json();
    assert!(shown.to_string().contains("\"kv/\""), "{shown}");
    cli.run("secrets tune -max-lease-ttl=2h kv").await.expect(0);
    cli.run("secrets disable kv").await.expect(0);
    let stranger = Cli::new(&cluster.nodes[0].url()).with_token("hvs.nobody");
    let denied = stranger.run("read kv/a").await.expect(2);
    assert!(denied.err.contains("permission denied"), "{}", denied.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn versioned_secrets_have_their_commands() {
    let (_cluster, _api, cli) = start().await;
    cli.run("secrets enable -path=secret -version=2 kv").await.expect(0);
    cli.run("kv put secret/merged a=1 b=2").await.expect(0);
    cli.run_with("patch secret/data/merged -", "{\"data\": {\"b\": null, \"c\": 3}}").await.expect(0);
    let merged = cli.run("kv get -json secret/merged").await.expect(0).json();
    assert_eq!(merged["data"]["data"], json!({"a": "1", "c": 3}));
    cli.run("kv metadata delete secret/merged").await.expect(0);
    cli.run("kv put -cas=0 secret/app user=ann password=one").await.expect(0);
    cli.run("kv put -cas=0 secret/app user=eve").await.expect(2);
    cli.run("kv put secret/app user=ann password=two").await.expect(0);
    cli.run("kv patch secret/app extra=x").await.expect(0);
    assert_eq!(cli.run("kv get -field=password secret/app").await.expect(0).out, "two\n");
    assert_eq!(cli.run("kv get -version=1 -field=password secret/app").await.expect(0).out, "one\n");
    let shown = cli.run("kv get -json secret/app").await.expect(0).json();
    assert_eq!(shown["data"]["metadata"]["version"], 3);
    assert!(cli.run("kv get secret/app").await.expect(0).out.contains("Metadata"));
    assert_eq!(cli.run("kv list -json secret").await.expect(0).json(), json!(["app"]));
    cli.run("kv delete secret/app").await.expect(0);
    cli.run("kv get secret/app").await.expect(2);
    cli.run("kv undelete -versions=3 secret/app").await.expect(0);
    cli.run("kv get secret/app").await.expect(0);
    cli.run("kv destroy -versions=1,2 secret/app").await.expect(0);
    cli.run("kv metadata put secret/app max_versions=5").await.expect(0);
    let shown = cli.run("kv metadata get -json secret/app").await.expect(0).json();
    assert_eq!(
        (&shown["data"]["max_versions"], &shown["data"]["versions"]["1"]["destroyed"]),
        (&json!(5), &json!(true))
    );
    cli.run("kv metadata delete secret/app").await.expect(0);
    cli.run("kv list secret").await.expect(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_policies_and_tokens_have_their_commands() {
    let (cluster, _api, root) = start().await;
    let url = cluster.nodes[0].url();
    root.file("app.hcl", "path \"kv/*\" { capabilities = [\"create\", \"read\", \"update\"] }\n");
    root.run("policy write app app.hcl").await.expect(0);
    root.run_with("policy write piped -", "path \"x\" { capabilities = [\"read\"] }").await.expect(0);
    root.file("bad.hcl", "path \"kv/*\" { caps = [] }\n");
    root.run("policy write bad bad.hcl").await.expect(2);
    assert!(root.run("policy read app").await.expect(0).out.contains("capabilities"));
    let listed = root.run("policy list -json").await.expect(0).json();
    assert_eq!(listed, json!(["app", "default", "piped", "root"]));
    root.run("policy delete piped").await.expect(0);

    root.run("secrets enable kv").await.expect(0);
    root.run("auth enable userpass").await.expect(0);
    root.run("write auth/userpass/users/ann password=pw-of-ann token_policies=app").await.expect(0);
    let ann = Cli::new(&url);
    ann.run("login -method=userpass username=ann password=wrong").await.expect(2);
    assert!(!ann.home().join(".holdfast-token").exists());
    ann.run("login -method=userpass username=ann password=pw-of-ann").await.expect(0);
    let kept = ann.home().join(".holdfast-token");
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&kept).unwrap()) & 0o777, 0o600);
    ann.run("write kv/a v=1").await.expect(0);
    ann.run("secrets list").await.expect(2);

    root.run("auth enable approle").await.expect(0);
    root.run("write auth/approle/role/web token_policies=app").await.expect(0);
    let role_id = root.run("read -field=role_id auth/approle/role/web/role-id").await.expect(0).out;
    let secret_id = root.run("write -f -field=secret_id auth/approle/role/web/secret-id").await.expect(0).out;
    let web = Cli::new(&url);
    // As the line above prints it, with its line end.
    web.file("secret-id", &secret_id);
    let line = format!("login -method=approle role_id={} secret_id=@secret-id -json", role_id.trim());
    assert!(web.run(&line).await.expect(0).json()["auth"]["client_token"].is_string());
    web.run("read kv/a").await.expect(0);

    let made = root.run("token create -policy=app -ttl=1h -display-name=x -json").await.expect(0).json();
    let token = made["auth"]["client_token"].as_str().unwrap().to_owned();
    let piped = Cli::new(&url);
    piped.run_with("login -", &format!("{token}\n")).await.expect(0);
    assert_eq!(piped.run("token lookup -json").await.expect(0).json()["data"]["display_name"], "token-x");
    piped.run("token renew -increment=30m").await.expect(0);
    let accessor = made["auth"]["accessor"].as_str().unwrap();
    root.run(&format!("token lookup -accessor {accessor}")).await.expect(0);
    root.run(&format!("token revoke {token}")).await.expect(0);
    piped.run("token lookup").await.expect(2);
    ann.run("token revoke -self").await.expect(0);
    ann.run("read kv/a").await.expect(2);

    let wrapped = root.run("read -wrap-ttl=5m -field=token kv/a").await.expect(0).out;
    let open = Cli::new(&url);
    assert_eq!(open.run(&format!("unwrap -field=v {}", wrapped.trim())).await.expect(0).out, "1\n");
    let again = open.run(&format!("unwrap {}", wrapped.trim())).await.expect(2);
    assert!(again.err.contains("wrapping token is not valid or does not exist"), "{}", again.err);
    let file = root.home().join("audit.log");
    root.run(&format!("audit enable file file_path={}", file.display())).await.expect(0);
    assert!(root.run("audit list -json").await.expect(0).out.contains("file/"));
    root.run("audit disable file").await.expect(0);
    for variable in ["BAO", "VAULT"] {
        let other = Cli::new("http://127.0.0.1:1").with_env("HOLDFAST_ADDR", "");
        let other = other
            .with_env(&format!("{variable}_ADDR"), &url)
            .with_env(&format!("{variable}_TOKEN"), &cluster.root);
        other.run("read kv/a").await.expect(0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_have_their_commands() {
    let database = PostgresServer::start().await;
    let (_cluster, api, cli) = start().await;
    api.setup_postgres(&database, "1h").await;
    let made = cli.run("read -json database/creds/app").await.expect(0).json();
    let lease = made["lease_id"].as_str().unwrap().to_owned();
    let found = cli.run(&format!("lease lookup -json {lease}")).await.expect(0).json();
    assert_eq!(found["data"]["id"], json!(lease));
    let renewed = cli.run(&format!("lease renew -increment=2h -json {lease}")).await.expect(0).json();
    assert_eq!(renewed["lease_duration"], 7200);
    let listed = cli.run("lease list -json database/creds/app").await.expect(0).json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    cli.run(&format!("lease revoke -sync {lease}")).await.expect(0);
    assert_eq!(database.users("v-").await, [""; 0]);
    cli.run(&format!("lease lookup {lease}")).await.expect(2);
    Login::issue(&api, "database/creds/app").await.expect("a login");
    cli.run("lease revoke -prefix -sync database/creds/app").await.expect(0);
    assert_eq!(database.users("v-").await, [""; 0]);
    cli.run("lease revoke -prefix -force database/creds").await.expect(0);
    cli.run("lease revoke -force x").await.expect(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_managed_by_commands() {
    let mut cluster = Cluster::start(3).await;
    let active = cluster.active().await;
    let standby = cluster.others(active)[0];
    let cli = Cli::new(&cluster.nodes[standby].url()).with_token(&cluster.root);
    let listed = cli.run("operator raft list-peers -json").await.expect(0).json();
    assert_eq!(listed["data"]["config"]["servers"].as_array().unwrap().len(), 3);
    cli.run("operator step-down").await.expect(0);
    let api = cluster.nodes[active].api();
    eventually_async(PATIENCE, "another node is active", || async {
        (api.health().await? == 429).then_some(())
    })
    .await;
    cluster.active().await;

    let index = cluster.nodes.len();
    let mut fresh = Node::prepare(cluster.dir(), index, &Options::default(), &[]);
    fresh.start();
    fresh.wait_listening().await;
    let newcomer = Cli::new(&fresh.url());
    newcomer.run("operator init -status").await.expect(2);
    newcomer.run("operator raft join http://127.0.0.1:1").await.expect(2);
    newcomer.run(&format!("operator raft join -non-voter {}", cluster.nodes[standby].url())).await.expect(0);
    let voter = async |vote: &str| {
        eventually_async(PATIENCE, "the newcomer is listed", || async {
            let peers = cli.run("operator raft list-peers").await;
            peers.out.lines().any(|l| l.starts_with(&format!("n{index}")) && l.ends_with(vote)).then_some(())
        })
        .await;
    };
    voter("false").await;
    cli.run(&format!("operator raft promote n{index}")).await.expect(0);
    voter("true").await;
    cli.run(&format!("operator raft demote n{index}")).await.expect(0);
    voter("false").await;
    cli.run(&format!("operator raft remove-peer n{index}")).await.expect(0);
    cli.run("operator raft remove-peer nobody").await.expect(2);
    cluster.nodes.push(fresh);
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_and_man_pages_come_from_the_same_definitions() {
    let cli = Cli::new("http://127.0.0.1:1");
    for shell in ["bash", "zsh", "fish"] {
        let script = cli.run(&format!("completions {shell}")).await.expect(0).out;
        assert!(script.contains("holdfast") && script.contains("step-down"), "{shell}");
    }
    cli.run("completions klingon").await.expect(1);
    cli.run("man pages").await.expect(0);
    for page in ["holdfast.1", "holdfast-operator.1", "holdfast-kv-get.1", "holdfast-operator-raft-rejoin.1"]
    {
        let text = std::fs::read_to_string(cli.home().join("pages").join(page))
            .unwrap_or_else(|e| panic!("{page}: {e}"));
        assert!(text.contains(".TH"), "{page}");
    }
    let help = cli.run("read --help").await.expect(0).out;
    assert!(help.contains("Examples") && cli.run("--help").await.expect(0).out.contains("Exit codes"));
}
