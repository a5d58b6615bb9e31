//! Going down: SIGTERM hands over, finishes what is under way and exits 0; a second one does not wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::Login;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Clients of the given nodes that read, write and ask for logins; returns their failures once they are stopped.
struct Probes {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    running: JoinSet<Vec<String>>,
}

impl Probes {
    fn start(cluster: &Cluster, nodes: &[usize]) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut running = JoinSet::new();
        for (n, node) in nodes.iter().cycle().take(6).enumerate() {
            let (api, stop, served) = (cluster.api(*node), stop.clone(), served.clone());
            running.spawn(async move {
                let mut failed = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let reply = match n % 3 {
                        0 => api.get("kv/a").await,
                        1 => api.put(&format!("kv/w{n}"), json!({"v": 1})).await,
                        _ => api.get("database/creds/app").await,
                    };
                    match reply.status {
                        200 | 204 => drop(served.fetch_add(1, Ordering::Relaxed)),
                        // A login that its database keeps longer than a hand-over waits is told so.
                        503 if n % 3 == 2 && reply.errors() == ["request outcome unknown"] => {}
                        status => failed.push(format!("probe {n}: {status} {}", reply.body)),
                    }
                }
                failed
            });
        }
        Self { stop, served, running }
    }

    async fn flow(&self) {
        let begun = self.served.load(Ordering::Relaxed);
        let more = || async { (self.served.load(Ordering::Relaxed) > begun + 30).then_some(()) };
        eventually_async(PATIENCE, "requests are served", more).await;
    }

    async fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.running.join_all().await.into_iter().flatten().collect()
    }
}

async fn prepared() -> (Cluster, PostgresServer, usize) {
    let mut options = Options::calm();
    // Elections take longer there.
    options.extra.push_str("\nlimits.forward_hold = \"8s\"");
    let (cluster, database) = (Cluster::start_with(options).await, PostgresServer::start().await);
    let active = cluster.active().await;
    let api = cluster.api(active);
    api.setup_postgres(&database, "1h").await;
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    api.put("kv/a", json!({"v": 1})).await.expect(204);
    (cluster, database, active)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_down_fails_no_request() {
    let (cluster, _database, _) = prepared().await;
    let probes = Probes::start(&cluster, &[0, 1, 2]);
    for _ in 0..3 {
        probes.flow().await;
        let active = cluster.active().await;
        let begun = Instant::now();
        cluster.api(active).put("sys/step-down", json!({})).await.expect(204);
        assert!(begun.elapsed() < Duration::from_secs(4), "it answered after {:?}", begun.elapsed());
        println!("step-down answered after {:?}", begun.elapsed());
        let moved = || async { (cluster.active().await != active).then_some(()) };
        eventually_async(PATIENCE, "another node is active", moved).await;
    }
    probes.flow().await;
    assert_eq!(probes.end().await, [""; 0], "requests are held, not refused");
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_of_the_active_node_fails_no_request_of_the_others() {
    let (mut cluster, _database, active) = prepared().await;
    let probes = Probes::start(&cluster, &cluster.others(active));
    probes.flow().await;
    let begun = Instant::now();
    cluster.nodes[active].process().signal(Signal::SIGTERM);
    let status = cluster.nodes[active].process().wait(PATIENCE);
    println!("ended {:?} after the signal", begun.elapsed());
    assert_eq!(status.code(), Some(0), "{}", cluster.nodes[active].log());
    probes.flow().await;
    assert_eq!(probes.end().await, [""; 0], "requests are held, not refused");
    cluster.check_logs(&[]);
    cluster.nodes[active].start();
    cluster.nodes[active].wait_listening().await;
    cluster.wait_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_under_way_at_sigterm_is_answered() {
    let (mut cluster, database, active) = prepared().await;
    let standby = cluster.others(active)[0];
    // Takes its time on a node that is told to go: a body that is half there.
    let mut client = TcpStream::connect(("127.0.0.1", cluster.nodes[standby].api_port)).await.unwrap();
    let head = format!(
        "PUT /v1/kv/late HTTP/1.1\r\nhost: a\r\nx-vault-token: {}\r\ncontent-length: 8\r\n\r\n{{\"v\"",
        cluster.root
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let node = &mut cluster.nodes[standby];
    node.process().signal(Signal::SIGTERM);
    let api = node.api();
    let closed = || async { api.health().await.is_none().then_some(()) };
    eventually_async(PATIENCE, "no new connection is taken", closed).await;
    client.write_all(b": 1}").await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, client.read_to_string(&mut answer)).await;
    read.expect("the connection ends").unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    assert_eq!(cluster.nodes[standby].process().wait(PATIENCE).code(), Some(0));
    let login = Login::issue(&cluster.api(active), "database/creds/app").await.expect("a login");
    assert!(login.works(&database).await);
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_does_not_wait() {
    let mut cluster = Cluster::start_with(Options { nodes: 1, ..Options::default() }).await;
    let node = &mut cluster.nodes[0];
    let mut client = TcpStream::connect(("127.0.0.1", node.api_port)).await.unwrap();
    client.write_all(b"PUT /v1/kv/late HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\n{").await.unwrap();
    let api = node.api();
    node.process().signal(Signal::SIGTERM);
    let closed = || async { api.health().await.is_none().then_some(()) };
    eventually_async(PATIENCE, "no new connection is taken", closed).await;
    assert!(node.process().exited().is_none(), "it waits for the client");
    let begun = Instant::now();
    node.process().signal(Signal::SIGTERM);
    assert_eq!(node.process().wait(PATIENCE).code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
}
