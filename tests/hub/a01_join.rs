//! `raft.retry_join`: leaders are tried in turn until one of them takes the node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Node, Options, PATIENCE};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

/// Who was tried, and when.
type Tried = Arc<Mutex<Vec<(&'static str, Instant)>>>;

/// An address at which nobody answers until it is told where to pass connections on to.
async fn leader(name: &'static str, tried: &Tried, to: Arc<Mutex<Option<u16>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, tried) = (format!("http://{}", listener.local_addr().unwrap()), tried.clone());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tried.lock().push((name, Instant::now()));
            let to = *to.lock();
            let Some(port) = to else { continue };
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_are_tried_in_turn_until_one_takes_the_node() {
    let calm = Options { nodes: 1, ..Options::calm() };
    let cluster = Cluster::start_with(calm.clone()).await;
    let (tried, way) = (Tried::default(), Arc::new(Mutex::new(None)));
    let join = [leader("first", &tried, Arc::default()).await, leader("second", &tried, way.clone()).await];
    let mut node = Node::prepare(cluster.dir(), 7, &calm, &join);
    node.start();
    node.wait_listening().await;
    let four = || async { (tried.lock().len() >= 4).then_some(()) };
    eventually_async(PATIENCE * 2, "four tries", four).await;
    assert_eq!(node.api().health().await, Some(501), "it belongs to no cluster yet");
    *way.lock() = Some(cluster.nodes[0].api_port);
    let api = node.api();
    let joined = || async { (api.health().await? == 429).then_some(()) };
    eventually_async(PATIENCE * 2, "the node joins", joined).await;

    let tries = tried.lock().clone();
    let names: Vec<_> = tries.iter().map(|(name, _)| *name).take(4).collect();
    assert_eq!(names, ["first", "second", "first", "second"]);
    // Two seconds and a fifth more or less; a busy machine only makes it longer between two looks at this.
    let pauses: Vec<_> = tries.windows(2).take(3).map(|pair| pair[1].1 - pair[0].1).collect();
    assert!(pauses.iter().all(|pause| *pause >= Duration::from_secs(1)), "{pauses:?}");
    // Once it is a member it asks nobody any more.
    let voter = || async {
        let reply = cluster.api(0).get("sys/storage/raft/configuration").await;
        let servers = reply.data()["config"]["servers"].as_array()?.clone();
        servers.iter().any(|s| s["node_id"] == json!("n7") && s["voter"] == json!(true)).then_some(())
    };
    eventually_async(PATIENCE, "the node votes", voter).await;
    let settled = (tried.lock().len(), Instant::now());
    let quiet = || async { (settled.1.elapsed() > Duration::from_secs(5)).then_some(()) };
    eventually_async(PATIENCE, "five seconds pass", quiet).await;
    assert_eq!(tried.lock().len(), settled.0, "a member goes on looking for a cluster");
}
