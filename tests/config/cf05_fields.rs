//! CF-05: which fields a value object has, on every route.

use holdfast_tests::config::Replica;
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::sse::Frames;
use holdfast_tests::upstream::{Script, Upstream};
use serde_json::{Value, json};

/// The names of the fields in their order, as the bytes have them.
fn fields(bytes: &str) -> Vec<String> {
    let value: Value = serde_json::from_str(bytes).unwrap();
    let mut names: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
    names.sort_by_key(|name| bytes.find(&format!("\"{name}\":")).unwrap());
    names
}

const LINES: &str = "[bindings]\nplain = \"https://web/plain\"\nempty = \"https://web/empty\"\n\
                     secret = { ref = \"https://web/plain\", sensitive = true }\nbad = \"https://web/403\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn fields_are_there_where_they_apply_and_in_their_order() {
    let upstream = Upstream::start().await;
    upstream.set("/plain", Script::Answer(200, vec![("etag", "\"e1\"".to_owned())], "text".to_owned()));
    upstream.set("/empty", Script::ok(""));
    upstream.set("/403", Script::status(403));
    let replica = Replica::start(&(upstream.lines() + LINES)).await;
    let plain = replica.value("plain").await.expect(200);
    let bytes = String::from_utf8(plain.bytes).unwrap();
    assert_eq!(fields(&bytes), ["name", "bytes", "version", "metadata", "resolved_at"]);
    assert!(bytes.starts_with(r#"{"name":"plain","bytes":"dGV4dA==","version":"#), "{bytes}");
    let date = plain.body["resolved_at"].as_str().unwrap();
    assert!(date.ends_with('Z') && date.len() <= "2026-07-26T21:04:11.123456Z".len(), "{date}");
    let empty = replica.value("empty").await.expect(200);
    assert!(empty.body.get("bytes").is_none() && empty.body.get("error").is_none(), "{}", empty.body);
    assert_eq!(replica.value("secret").await.body["sensitive"], true);
    for absent in ["stale", "kind", "sensitive", "not_after", "order", "epoch", "error"] {
        assert!(plain.body.get(absent).is_none(), "{absent}");
    }
    assert_eq!(plain.headers["cache-control"], "no-store");
    assert_eq!(plain.headers["content-type"], "application/json");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_and_a_stream_say_the_same_as_a_read() {
    let upstream = Upstream::start().await;
    upstream.set("/plain", Script::ok("text"));
    upstream.set("/403", Script::status(403));
    let replica = Replica::start(&(upstream.lines() + LINES)).await;
    let names = json!({"names": ["plain", "bad", "nothing", "plain", "empty"], "more": 1});
    let batch = replica.api().send("POST", "v1/values", Some(names)).await.expect(200);
    let values = batch.body["values"].as_array().unwrap();
    let kinds: Vec<_> =
        values.iter().map(|v| (v["name"].as_str().unwrap(), v["error"]["kind"].as_str())).collect();
    assert_eq!(
        kinds,
        [
            ("plain", None),
            ("bad", Some("permission_denied")),
            ("nothing", Some("not_found")),
            ("plain", None),
            ("empty", Some("not_found"))
        ]
    );
    assert_eq!(values[0], replica.value("plain").await.body);
    assert_eq!(
        values[2],
        json!({"name": "nothing", "metadata": {}, "error": {"kind": "not_found", "message": "binding not found"}})
    );
    let token = format!("Bearer {}", holdfast_tests::config::TOKEN);
    let mut stream = Frames::open(
        &replica.url(),
        "/v1/watch?name=plain&name=bad&name=plain&name=nothing",
        &[("authorization", &token)],
    )
    .await;
    assert_eq!(stream.status(), 200);
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    assert_eq!(stream.header("x-accel-buffering"), Some("no"));
    let frames = stream.until("synced", PATIENCE).await;
    let seen: Vec<_> =
        frames.iter().map(|f| (f.event.as_str(), f.data["name"].as_str().unwrap_or_default())).collect();
    assert_eq!(seen, [("update", "plain"), ("error", "bad"), ("error", "nothing"), ("synced", "")]);
    assert_eq!(frames[0].data, values[0]);
    assert!(frames[..3].iter().all(|f| f.id.is_none()) && frames[3].id.is_some(), "only the end bears an id");
    let reply = replica.api().get("v1/watch").await.expect(400);
    assert_eq!(
        reply.bytes,
        br#"{"error":{"kind":"invalid","message":"at least one name query parameter is required"}}"#
    );
}
