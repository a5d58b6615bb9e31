//! CX-03 and CX-04: going down with a grace and without one.

use std::time::{Duration, Instant};

use holdfast_tests::config::{Replica, TOKEN, text};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::sse::Frames;
use tokio::io::AsyncWriteExt as _;

const FILE: &str =
    "[upstream.disk]\ntype = \"file\"\nroots = [\"DIR/files\"]\n[bindings]\nv = \"file://DIR/files/v\"\n";

async fn open(replica: &Replica) -> Frames {
    let token = format!("Bearer {TOKEN}");
    Frames::open(&replica.url(), "/v1/watch?name=v", &[("authorization", &token)]).await
}

async fn start(grace: &str) -> Replica {
    let mut replica = Replica::prepare(&format!("drain_grace = \"{grace}\"\n{FILE}"));
    replica.write("files/v", "1");
    replica.run();
    replica.wait_ready().await;
    replica
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_served_and_fresh_through_the_grace() {
    let mut replica = start("6s").await;
    let mut early = open(&replica).await;
    early.until("synced", PATIENCE).await;
    replica.terminate();
    let signalled = Instant::now();
    let draining = || async { (replica.ready().await?.0 == 503).then_some(()) };
    eventually_async(PATIENCE, "not ready", draining).await;
    let goaway = early.next_of("goaway", PATIENCE).await;
    assert_eq!(goaway.data, serde_json::json!({"reason": "draining", "within_ms": 3000}));
    let mut late = open(&replica).await;
    assert_eq!(text(&late.next_of("update", PATIENCE).await.data), "1", "new streams are taken");
    replica.write("files/v", "2");
    assert_eq!(text(&early.next_of("update", PATIENCE).await.data), "2");
    assert_eq!(text(&late.next_of("update", PATIENCE).await.data), "2", "values change on");
    replica.wait_value("v", "2").await;
    let reply = replica.value("v").await.expect(200);
    assert_eq!(reply.headers["connection"], "close");
    while early.next(PATIENCE).await.is_some() {}
    assert!(signalled.elapsed() >= Duration::from_secs(5), "streams last through the grace");
    assert_eq!(replica.process().wait(PATIENCE).code(), Some(0));
    replica.check_log(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_grace_streams_end_cleanly_and_nobody_waits_for_a_stuck_reader() {
    let mut replica = start("0s").await;
    let mut streams = Vec::new();
    for _ in 0..1000 {
        streams.push(open(&replica).await);
    }
    // One that never reads what it asked for.
    let mut stuck = tokio::net::TcpStream::connect(("127.0.0.1", replica.port)).await.unwrap();
    let request =
        format!("GET /v1/watch?name=v HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKEN}\r\n\r\n");
    stuck.write_all(request.as_bytes()).await.unwrap();
    for stream in &mut streams {
        stream.until("synced", PATIENCE).await;
    }
    replica.terminate();
    assert_eq!(
        replica.process().wait(Duration::from_secs(6)).code(),
        Some(0),
        "within three times the 2 s promised"
    );
    for stream in &mut streams {
        // A stream that was cut instead would be an error, which the reader shows as a missing end.
        while stream.next(PATIENCE).await.is_some() {}
    }
    replica.check_log(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_wait() {
    let mut replica = start("10m").await;
    replica.terminate();
    let draining = || async { (replica.ready().await?.0 == 503).then_some(()) };
    eventually_async(PATIENCE, "not ready", draining).await;
    replica.terminate();
    assert_eq!(replica.process().wait(PATIENCE).code(), Some(0));
}
