//! Clients that send too much, never finish or never read cannot grow the node, and disturb nobody.

use std::time::Duration;

use holdfast_tests::api::CREATE_ROLE;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::Login;
use holdfast_tests::spoke::{Relay, setup_remote};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Resident memory of a process, in MiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn options(extra: &str, nodes: usize) -> Options {
    Options { nodes, extra: extra.to_owned(), ..Options::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_413_through_every_node() {
    let cluster = Cluster::start_with(options("limits.body_bytes = \"64 KiB\"", 3)).await;
    let active = cluster.active().await;
    cluster.api(active).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    let fits = json!({"v": "x".repeat(60 << 10)});
    let large = json!({"v": "x".repeat(70 << 10)});
    for index in 0..3 {
        let api = cluster.api(index);
        api.put("kv/fits", fits.clone()).await.expect(204);
        api.put("kv/large", large.clone()).await.expect_error(413, "http: request body too large");
        api.get("kv/large").await.expect(404);
    }
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_never_end_are_bounded_together() {
    let extra = "limits.body_bytes = \"1 MiB\"\nlimits.request_deadline = \"20s\"";
    let mut cluster = Cluster::start_with(options(extra, 1)).await;
    let api = cluster.api(0);
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    let pid = cluster.nodes[0].process().pid();
    let before = resident(pid);
    // Together 200 MiB, each of them under the limit, none of them complete.
    let mut hung = Vec::new();
    for _ in 0..250 {
        let mut client = TcpStream::connect(("127.0.0.1", cluster.nodes[0].api_port)).await.unwrap();
        let head = "PUT /v1/kv/a HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n";
        // Those beyond the budget are refused while they still send.
        let _ = client.write_all(head.as_bytes()).await;
        let _ = client.write_all(&[b' '; 800_000]).await;
        hung.push(client);
    }
    // While the budget is gone a body is refused, and what has none is served.
    api.get("sys/mounts").await.expect(200);
    let big = json!({"v": "x".repeat(900 << 10)});
    let refused = || async {
        let reply = api.put("kv/b", big.clone()).await;
        assert!(matches!(reply.status, 204 | 503), "{}", reply.body);
        (reply.status == 503).then_some(())
    };
    eventually_async(PATIENCE, "the budget is gone", refused).await;
    let during = resident(pid);
    assert!(during < before + 150, "{before} MiB grew to {during} MiB");
    // At the deadline the hung ones are cut, though their clients are still there.
    let served = || async { (api.put("kv/b", big.clone()).await.status == 204).then_some(()) };
    eventually_async(PATIENCE * 2, "the budget is free again", served).await;
    drop(hung);
    cluster.check_logs(&[]);
}

/// How many sockets a process has open.
fn sockets(pid: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let is_socket = |link: std::path::PathBuf| link.to_string_lossy().starts_with("socket:");
    open.flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|l| is_socket(l.clone()))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_read_are_given_up() {
    let mut cluster = Cluster::start(1).await;
    let api = cluster.api(0);
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    api.put("kv/a", json!({"v": "x".repeat(700 << 10)})).await.expect(204);
    let pid = cluster.nodes[0].process().pid();
    let (before, open) = (resident(pid), sockets(pid));
    let mut hung = Vec::new();
    for _ in 0..30 {
        let mut client = TcpStream::connect(("127.0.0.1", cluster.nodes[0].api_port)).await.unwrap();
        let request = format!("GET /v1/kv/a HTTP/1.1\r\nhost: a\r\nx-vault-token: {}\r\n\r\n", cluster.root);
        // Together 2 GiB of answers.
        client.write_all(request.repeat(100).as_bytes()).await.unwrap();
        hung.push(client);
    }
    let all = || async { (sockets(pid) >= open + 30).then_some(()) };
    eventually_async(PATIENCE, "all of them are connected", all).await;
    for _ in 0..20 {
        api.get("kv/a").await.expect(200);
    }
    let given_up = || async { (sockets(pid) <= open + 1).then_some(()) };
    eventually_async(Duration::from_secs(120), "the hung connections are over", given_up).await;
    let after = resident(pid);
    assert!(after < before + 300, "{before} MiB grew to {after} MiB");
    drop(hung);
    api.get("kv/a").await.expect(200);
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spoke_that_takes_nothing_cannot_grow_the_node() {
    // The stream outlives the test though nobody answers its pings.
    let extra =
        "relay.max_in_flight = 32\nrelay.keepalive_timeout = \"30s\"\nlimits.request_deadline = \"40s\"";
    let mut cluster = Cluster::start_with(options(extra, 1)).await;
    let database = PostgresServer::start().await;
    let relay = Relay::set_up(&cluster).await;
    let mut spoke = relay.spoke_on(&cluster, "spoke-1", 0).await;
    setup_remote(&cluster, 0, &database, "spoke-1", "1h").await;
    let api = cluster.api(0);
    let large = format!("{CREATE_ROLE} /* {} */", "x".repeat(500 << 10));
    let role = json!({"db_name": "pg", "default_ttl": "1h", "creation_statements": large});
    api.put("database/roles/large", role).await.expect(204);
    Login::issue(&api, "database/creds/large").await.expect("a login while the spoke takes commands");
    let pid = cluster.nodes[0].process().pid();
    let before = resident(pid);

    spoke.process().signal(Signal::SIGSTOP);
    let mut asked = JoinSet::new();
    let mut busy = 0;
    // Together 140 MiB of commands, of which a few are queued and the others turned away.
    for _ in 0..7 {
        for _ in 0..40 {
            let api = api.clone();
            asked.spawn(async move { api.get("database/creds/large").await });
        }
        // As many as may be under way are left waiting.
        while asked.len() > 32 {
            let reply = asked.join_next().await.unwrap().unwrap();
            assert_eq!(reply.status, 503, "{}", reply.body);
            busy += usize::from(reply.errors()[0].ends_with("spoke \"spoke-1\" is busy"));
        }
        api.get("sys/mounts").await.expect(200);
    }
    assert!(busy > 100, "only {busy} were turned away as busy");
    let during = resident(pid);
    assert!(during < before + 150, "{before} MiB grew to {during} MiB");
    spoke.process().signal(Signal::SIGCONT);
    while let Some(reply) = asked.join_next().await {
        let reply = reply.unwrap();
        assert!(matches!(reply.status, 200 | 503), "{}", reply.body);
    }
    let again = || async { Login::issue(&api, "database/creds/app").await };
    eventually_async(PATIENCE, "the spoke serves again", again).await;
    cluster.check_logs(&[]);
}
