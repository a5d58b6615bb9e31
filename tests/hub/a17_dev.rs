//! The platform of `holdfast dev` with a database: a spoke beside it, a demonstration on it, and processes that do not
//! outlive the one that started them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use holdfast_tests::cli::Cli;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::process::{Process, binary};
use holdfast_tests::{eventually, eventually_async};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// `holdfast` with these arguments; what it makes for itself goes below `home`, and what it says into `out`.
async fn start(home: &Path, out: &str, args: &[&str], database: &PostgresServer) -> Process {
    let role = "CREATE ROLE root_of_db SUPERUSER LOGIN PASSWORD 'root-pw'";
    if users(database).await.is_empty() {
        database.execute(role).await;
    }
    let url = format!("postgresql://root_of_db:root-pw@127.0.0.1:{}/postgres", database.port());
    let mut command = Command::new(binary());
    command.args(args).env("TMPDIR", home).env("HOME", home).env("HOLDFAST_DEV_POSTGRES", url);
    Process::start(&mut command, &home.join(out))
}

/// The platform once it has told where it is.
async fn announced(platform: &Process) -> Value {
    let told = || async { platform.log().lines().find_map(|line| serde_json::from_str::<Value>(line).ok()) };
    eventually_async(PATIENCE * 2, "the platform is announced", told).await
}

/// The users in the database, but for PostgreSQL's own.
async fn users(database: &PostgresServer) -> Vec<String> {
    let own =
        "SELECT rolname FROM pg_roles WHERE rolname NOT LIKE 'pg\\_%' AND rolname <> current_user ORDER BY 1";
    database.query(own).await
}

/// Whether a folder holds folders; what was said into files stays.
fn has_folders(home: &Path) -> bool {
    std::fs::read_dir(home).unwrap().any(|entry| entry.unwrap().file_type().unwrap().is_dir())
}

/// The processes that were announced under a key.
fn pids(told: &Value, key: &str) -> Vec<u64> {
    told[key].as_array().unwrap().iter().map(|daemon| daemon["pid"].as_u64().unwrap()).collect()
}

/// Whether a process is there and not a dead one that nobody has asked about.
fn runs(pid: u64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains("zombie"))
}

fn gone(pids: &[u64]) {
    eventually(PATIENCE, "its processes are gone", || (!pids.iter().any(|pid| runs(*pid))).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_with_a_database_issues_through_its_spoke_and_nothing_outlives_it() {
    let (home, database) = (TempDir::new().unwrap(), PostgresServer::start().await);
    let args = ["dev", "-nodes=1", "-root-token=dev-root", "-port=0", "-json"];
    let mut platform = start(home.path(), "out", &args, &database).await;
    let told = announced(&platform).await;
    assert_eq!(told["logins"][0]["path"], "database/creds/app");
    assert_eq!(told["logins"][0]["spoke"], "spoke-1");
    assert_eq!(told["logins"][1]["path"], "database/creds/direct");
    assert_eq!(told["logins"][1]["spoke"], Value::Null);
    let cli = Cli::new(told["nodes"][0]["api"].as_str().unwrap()).with_token("dev-root");
    for path in ["database/creds/app", "database/creds/direct"] {
        let made = cli.run(&format!("read -json {path}")).await.expect(0).json();
        let text = |name: &str| made["data"][name].as_str().unwrap().to_owned();
        assert!(database.can_log_in(&text("username"), &text("password")).await, "{path}");
    }
    let view = cli.run("relay list -json").await.expect(0).json();
    assert_eq!(view["spokes"][0]["name"], "spoke-1");

    // Without its spoke the one way is closed, and the other is not.
    let (nodes, spokes) = (pids(&told, "nodes"), pids(&told, "spokes"));
    let spoke = nix::unistd::Pid::from_raw(i32::try_from(spokes[0]).unwrap());
    nix::sys::signal::kill(spoke, Signal::SIGKILL).unwrap();
    gone(&spokes);
    cli.run("read database/creds/direct").await.expect(0);
    let refused = cli.run("read database/creds/app").await.expect(2);
    assert!(refused.err.contains("spoke not connected: \"spoke-1\""), "{}", refused.err);
    // It is started again.
    let back = || async { (cli.run("read database/creds/app").await.code == 0).then_some(()) };
    eventually_async(PATIENCE * 2, "the spoke is back", back).await;

    // Killed so that it can clean up nothing, it still leaves nothing running.
    platform.kill();
    gone(&nodes);
    let mine = |pid: &u64| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&home.path().display().to_string())
    };
    let all =
        || std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    eventually(PATIENCE, "no process of it is left", || {
        (!all().any(|pid| mine(&pid) && runs(pid))).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_parent_is_gone_already_does_not_start() {
    let cli = Cli::new("http://127.0.0.1:1");
    let ended = cli.run("relay run -credentials-dir=/nowhere -end-with-parent=1").await.expect(1);
    assert!(ended.err.contains("no longer its parent"), "{}", ended.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demonstration_kills_the_active_node_and_every_way_to_a_login_works_again() {
    let (home, database) = (TempDir::new().unwrap(), PostgresServer::start().await);
    let mut demo = start(home.path(), "demo", &["demo", "failover", "-json"], &database).await;
    let ended = demo.wait(Duration::from_secs(180));
    let shown: Value = serde_json::from_str(&demo.log()).unwrap_or_else(|e| panic!("{e}: {}", demo.log()));
    assert_eq!(ended.code(), Some(0), "{shown}");
    assert_eq!(shown["recovered"], true);
    let killed = shown["killed"]["node"].as_str().unwrap();
    assert_ne!(shown["active"]["node"], killed);
    let spokes = shown["spokes"].as_array().unwrap();
    assert_eq!(spokes.len(), 2);
    assert_ne!(spokes[0]["before"], spokes[1]["before"], "two spokes on two nodes: {shown}");
    for spoke in spokes {
        // A stream that did not end on the node that was killed is where it was.
        assert_eq!(spoke["stream_stayed"], spoke["before"] != killed, "{shown}");
        assert_ne!(spoke["after"], killed);
        assert!(spoke["known_ms"].is_i64());
    }
    let roles = shown["roles"].as_array().unwrap();
    assert_eq!(roles.len(), 3);
    assert!(roles.iter().all(|role| role["routable_ms"].is_i64()), "{shown}");
    let logins = &shown["logins"];
    let failures = logins["failures"].as_array().unwrap();
    assert!(logins["asked"].as_u64().unwrap() > 3);
    assert_eq!(logins["failed"].as_u64().unwrap(), failures.len() as u64);
    // Nothing is left: no process, no folder, no user in the database that a lease was given for.
    assert!(!has_folders(home.path()));
    assert_eq!(users(&database).await, ["root_of_db"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_that_is_ended_takes_its_logins_out_of_the_database() {
    let database = PostgresServer::start().await;
    let everything = async |signal| {
        let home = TempDir::new().unwrap();
        let args = ["dev", "-nodes=1", "-spokes=0", "-root-token=dev-root", "-port=0", "-json"];
        let mut platform = start(home.path(), "out", &args, &database).await;
        let told = announced(&platform).await;
        let cli = Cli::new(told["nodes"][0]["api"].as_str().unwrap()).with_token("dev-root");
        for login in told["logins"].as_array().unwrap() {
            cli.run(&format!("read {}", login["path"].as_str().unwrap())).await.expect(0);
        }
        assert!(users(&database).await.len() > 1, "there are logins");
        platform.signal(signal);
        assert_eq!(platform.wait(PATIENCE * 4).code(), Some(0), "{}", platform.log());
        assert_eq!(users(&database).await, ["root_of_db"], "{signal}");
        gone(&pids(&told, "nodes"));
        assert!(!has_folders(home.path()));
    };
    everything(Signal::SIGTERM).await;
    // As when the terminal is closed.
    everything(Signal::SIGHUP).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_a_clean_up_that_does_not_get_on() {
    let (home, database) = (TempDir::new().unwrap(), PostgresServer::start().await);
    let args = ["dev", "-nodes=1", "-spokes=0", "-root-token=dev-root", "-port=0", "-json"];
    let mut platform = start(home.path(), "out", &args, &database).await;
    let told = announced(&platform).await;
    let nodes = pids(&told, "nodes");
    let frozen = nix::unistd::Pid::from_raw(i32::try_from(nodes[0]).unwrap());
    nix::sys::signal::kill(frozen, Signal::SIGSTOP).unwrap();
    platform.signal(Signal::SIGTERM);
    // What a script passes on does not count; somebody at the terminal does.
    platform.signal(Signal::SIGTERM);
    let card = Path::new(told["data"].as_str().unwrap()).join("platform.json");
    eventually(PATIENCE, "the end has begun", || (!card.exists()).then_some(()));
    platform.signal(Signal::SIGINT);
    assert_eq!(platform.wait(PATIENCE * 2).code(), Some(0), "{}", platform.log());
    assert!(platform.log().contains("for ever: interrupted"), "{}", platform.log());
    gone(&nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demonstration_whose_terminal_is_closed_leaves_nothing_behind() {
    let (home, database) = (TempDir::new().unwrap(), PostgresServer::start().await);
    let mut demo = start(home.path(), "demo", &["demo", "failover", "-json"], &database).await;
    let logins = async || (users(&database).await.len() > 1).then_some(());
    eventually_async(PATIENCE * 4, "logins are asked for", logins).await;
    demo.signal(Signal::SIGHUP);
    let ended = demo.wait(PATIENCE * 4);
    assert_eq!(ended.code(), Some(1), "{}", demo.log());
    assert_eq!(users(&database).await, ["root_of_db"]);
    assert!(!has_folders(home.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demonstration_says_what_it_needs() {
    let cli = Cli::new("http://127.0.0.1:1");
    let ended = cli.run("demo failover").await.expect(1);
    assert!(ended.err.contains("a database is needed"), "{}", ended.err);
    let ended = cli.run("demo failover -platform=/nowhere").await.expect(1);
    assert!(ended.err.contains("no platform runs"), "{}", ended.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_arguments_of_the_script_are_looked_at_before_anything_is_made() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/up.sh");
    for (args, code, word) in [
        (&["--nodes", "9"][..], 1, "9"),
        (&["--nodes"], 2, "--nodes needs a value"),
        (&["--port=x"], 1, "x"),
        (&["--nothing"], 2, "--nothing"),
        (&["--help"], 0, "--port"),
        (&["--demo", "--nothing"], 1, "--nothing"),
        (&["--demo", "--help"], 0, "failover"),
    ] {
        let output = Command::new("bash").arg(&script).arg(binary()).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(
            text.contains(word) && !text.contains("initdb") && !text.contains("[1/3]"),
            "{args:?}: {text}"
        );
    }
}
