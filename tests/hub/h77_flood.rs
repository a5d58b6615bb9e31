//! H-77: a flood at the open paths is turned away, and nobody else notices.

use std::time::Duration;

use futures_util::future::join_all;
use holdfast_tests::hub::Options;
use serde_json::json;

use super::h42_join::{Trusted, csr};

/// Far more than what a read takes on a machine that does other things too.
const NOTICED: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_turned_away_and_others_do_not_notice() {
    let trusted = Trusted::start(Options::calm()).await;
    let cluster = &trusted.cluster;
    let root = cluster.api(trusted.active);
    root.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    root.put("kv/a", json!({"v": 1})).await.expect(204);
    let csr = csr("spoke-1");
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
    let reads = async {
        let mut served = 0;
        for index in 0..60 {
            let api = cluster.api(index % 3);
            let read =
                tokio::time::timeout(NOTICED, api.get("kv/a")).await.expect("a read waits for the flood");
            served += usize::from(read.status == 200);
        }
        served
    };
    let (answers, served) = tokio::join!(join_all(flood), reads);
    assert_eq!(served, 60);
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
