//! CF-08: a stream through a balancer that buffers what it may.

use std::time::Duration;

use holdfast_tests::config::{Replica, TOKEN, text};
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::nginx::Nginx;
use holdfast_tests::soak::scaled;
use holdfast_tests::sse::Frames;

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_and_changes_pass_a_buffering_balancer_at_once() {
    let mut replica = Replica::prepare(
        "[upstream.disk]\ntype = \"file\"\nroots = [\"DIR/files\"]\n[bindings]\nv = \"file://DIR/files/v\"\n",
    );
    replica.write("files/v", "1");
    replica.run();
    replica.wait_ready().await;
    let nginx = Nginx::balance(&[replica.port]);
    let token = format!("Bearer {TOKEN}");
    let mut stream = Frames::open(&nginx.url(), "/v1/watch?name=v", &[("authorization", &token)]).await;
    stream.until("synced", PATIENCE).await;
    let mut last = std::time::Instant::now();
    // 90 s in a soak; in the ordinary run two gaps.
    for _ in 0..scaled(2, 6) {
        let beat = stream.next(Duration::from_secs(45)).await.unwrap();
        assert!(beat.raw.starts_with(": heartbeat"), "{}", beat.raw);
        assert!(beat.at.duration_since(last) < Duration::from_secs(17), "{:?}", beat.at.duration_since(last));
        last = beat.at;
    }
    replica.write("files/v", "2");
    let changed = stream.next_of("update", PATIENCE).await;
    assert_eq!(text(&changed.data), "2");
}
