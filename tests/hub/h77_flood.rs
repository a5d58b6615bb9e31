//! H-77: a flood at the open paths is turned away, and nobody else notices.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use holdfast_tests::hub::{Cluster, Options};
use serde_json::json;

use super::h42_join::{Trusted, csr};

/// Far more than what a read takes on a machine that does other things too.
const NOTICED: Duration = Duration::from_secs(10);

/// Reads one after the other through all nodes; how long one takes, at the median.
async fn reads(cluster: &Cluster) -> Duration {
    let mut times = Vec::new();
    for index in 0..60 {
        let (api, asked) = (cluster.api(index % 3), Instant::now());
        let read = tokio::time::timeout(NOTICED, api.get("kv/a")).await.expect("a read waits for the flood");
        read.expect(200);
        times.push(asked.elapsed());
    }
    times.sort();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_turned_away_and_others_do_not_notice() {
    let trusted = Trusted::start(Options::calm()).await;
    let cluster = &trusted.cluster;
    let root = cluster.api(trusted.active);
    root.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    root.put("kv/a", json!({"v": 1})).await.expect(204);
    let csr = csr("spoke-1");
    // What as many requests do to reads on a machine of this size, whatever they are for.
    let others = (0..300).map(|n| {
        let api = cluster.nodes[n % 3].api();
        async move { api.get("sys/seal-status").await.expect(200) }
    });
    let (_, usual) = tokio::join!(join_all(others), reads(cluster));
    // Through all nodes, from one address: counted once.
    let flood = (0..300).map(|n| {
        let api = cluster.nodes[n % 3].api();
        let body = json!({"token": "zzzzzz.0000000000000000", "spoke_name": "spoke-1", "csr_pem": csr});
        async move {
            match n % 2 {
                0 => api.put("relay/sign-csr", body).await,
                _ => api.get("relay/cluster-info?token_id=zzzzzz").await,
            }
        }
    });
    let (answers, beside) = tokio::join!(join_all(flood), reads(cluster));
    println!("a read takes {beside:?} beside the flood, {usual:?} beside other requests");
    assert!(beside < usual * 10, "reads wait for the flood: {beside:?}, else {usual:?}");
    let (passed, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|reply| reply.status != 429);
    assert!(passed.iter().all(|reply| reply.status == 400), "{:?}", passed[0].body);
    assert!((60..200).contains(&passed.len()), "{} of 300 passed", passed.len());
    for reply in refused {
        let after: u64 = reply.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=60).contains(&after), "{after}");
        assert!(reply.errors()[0].ends_with("rate limit quota exceeded"), "{:?}", reply.errors());
    }
    // An operator is not in the way of the limit.
    trusted.token(json!({})).await;
    cluster.check_logs(&[]);
}
