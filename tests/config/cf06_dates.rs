//! CF-06: dates, staleness and frames follow the outcomes.

use std::time::Duration;

use holdfast_tests::config::{Replica, TOKEN, text};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::sse::Frames;
use holdfast_tests::upstream::{Script, Upstream};

#[tokio::test(flavor = "multi_thread")]
async fn value_same_error_same_new() {
    let upstream = Upstream::start().await;
    upstream.set("/v", Script::ok("v1"));
    let lines = format!("{}[bindings]\nv = {{ ref = \"https://web/v\", poll = \"1s\" }}\n", upstream.lines());
    let replica = Replica::start(&lines).await;
    let token = format!("Bearer {TOKEN}");
    let mut stream = Frames::open(&replica.url(), "/v1/watch?name=v", &[("authorization", &token)]).await;
    stream.until("synced", PATIENCE).await;
    let first = replica.value("v").await.body;
    // The first success after a baseline is told, though nothing changed: a client that found the date too old goes on.
    let redated = stream.next_of("update", PATIENCE).await;
    assert_eq!((text(&redated.data).as_str(), redated.data.get("stale")), ("v1", None));
    let moved = || async {
        let body = replica.value("v").await.body;
        (body["resolved_at"] != first["resolved_at"]).then_some(body)
    };
    let second = eventually_async(PATIENCE, "an unchanged success moves the date", moved).await;
    assert_eq!(text(&second), "v1");
    upstream.set("/v", Script::status(500));
    let stale = stream.next_of("update", PATIENCE).await;
    assert_eq!(
        (text(&stale.data).as_str(), &stale.data["stale"], &stale.data["kind"]),
        ("v1", &true.into(), &"unavailable".into())
    );
    let held = replica.value("v").await.expect(200).body;
    assert_eq!((&held["stale"], text(&held).as_str()), (&true.into(), "v1"));
    assert_eq!(held["resolved_at"], stale.data["resolved_at"], "a failure leaves the date with its bytes");
    upstream.set("/v", Script::ok("v1"));
    let healthy = stream.next_of("update", PATIENCE).await;
    assert_eq!(
        (text(&healthy.data).as_str(), healthy.data.get("stale"), healthy.data.get("kind")),
        ("v1", None, None)
    );
    assert!(healthy.data["resolved_at"].as_str() > stale.data["resolved_at"].as_str());
    // Polls that find the same are not told.
    let polls = upstream.count("/v");
    let two_more = || async { (upstream.count("/v") >= polls + 3).then_some(()) };
    eventually_async(PATIENCE, "more polls", two_more).await;
    upstream.set("/v", Script::ok("v2"));
    let changed = stream.next_of("update", PATIENCE).await;
    assert_eq!(text(&changed.data), "v2", "no frame for the unchanged polls before");
    assert!(changed.id.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_too_old_is_refused_and_comes_back() {
    let upstream = Upstream::start().await;
    upstream.set("/v", Script::ok("v1"));
    let lines = format!(
        "{}[bindings]\nv = {{ ref = \"https://web/v\", poll = \"1s\", max_stale = \"3s\" }}\n",
        upstream.lines()
    );
    let replica = Replica::start(&lines).await;
    upstream.set("/v", Script::status(503));
    let old = || async { (replica.value("v").await.status == 503).then_some(()) };
    eventually_async(PATIENCE, "the value is too old", old).await;
    let reply = replica.value("v").await;
    assert_eq!(reply.bytes, br#"{"error":{"kind":"unavailable","message":"value too old"}}"#);
    assert_eq!(replica.ready().await.unwrap().0, 200, "readiness is not taken back");
    upstream.set("/v", Script::ok("v1"));
    replica.wait_value("v", "v1").await;
    assert!(replica.value("v").await.body.get("stale").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn absence_keeps_or_drops_as_the_binding_says() {
    let upstream = Upstream::start().await;
    upstream.set("/v", Script::ok("v1"));
    let lines = format!(
        "{}[defaults]\npoll = \"1s\"\n[bindings]\nkeep = \"https://web/v\"\ndrop = {{ ref = \"https://web/v\", on_absent = \"drop\" }}\n",
        upstream.lines()
    );
    let replica = Replica::start(&lines).await;
    upstream.set("/v", Script::status(404));
    let dropped = || async { (replica.value("drop").await.status == 404).then_some(()) };
    eventually_async(PATIENCE + Duration::from_secs(5), "the absent value is dropped", dropped).await;
    let kept = replica.value("keep").await.expect(200).body;
    assert_eq!(
        (&kept["kind"], &kept["stale"], text(&kept).as_str()),
        (&"not_found".into(), &true.into(), "v1")
    );
}
