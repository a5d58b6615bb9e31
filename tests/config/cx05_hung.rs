//! CX-05: an upstream that accepts and never answers holds nobody else.

use holdfast_tests::config::Replica;
use holdfast_tests::upstream::{Script, Upstream};

#[tokio::test(flavor = "multi_thread")]
async fn what_hangs_settles_as_unavailable_and_the_rest_is_fresh() {
    let (hung, good) = (Upstream::start().await, Upstream::start().await);
    hung.set("/h", Script::Silence);
    good.set("/g", Script::ok("g"));
    let lines = format!(
        "{}{}[defaults]\npoll = \"1s\"\ntimeout = \"1s\"\n[bindings]\nh = \"https://web/h\"\ng = \"https://other/g\"\n",
        hung.lines(),
        good.lines().replace("upstream.web", "upstream.other")
    );
    let replica = Replica::start(&lines).await;
    let reply = replica.value("h").await;
    assert_eq!(
        (reply.status, reply.bytes.as_slice()),
        (503, br#"{"error":{"kind":"unavailable","message":"binding resolve failed"}}"#.as_slice())
    );
    replica.value("g").await.expect(200);
    let (calls, before) = (hung.count("/h"), good.count("/g"));
    holdfast_tests::eventually_async(holdfast_tests::hub::PATIENCE, "the good one is polled on", || async {
        (good.count("/g") >= before + 4).then_some(())
    })
    .await;
    // Each attempt ends before the next begins: no more than one a back-off step.
    assert!(hung.count("/h") - calls <= 5, "{} attempts", hung.count("/h") - calls);
    assert!(replica.value("g").await.body.get("stale").is_none());
}
