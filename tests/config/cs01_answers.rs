//! CS-01: answers tell nothing about the deployment.

use holdfast_tests::config::{Replica, TOKEN};
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::sse::Frames;
use serde_json::json;

const NODE: &str = "node-name-canary-31";

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_names_the_node_and_probes_tell_one_word() {
    let lines = format!("node_id = \"{NODE}\"\n[bindings]\nbinding-canary = \"static:x\"\n");
    let replica = Replica::start(&lines).await;
    let mut said = Vec::new();
    for (method, path, body) in [
        ("GET", "v1/healthz", None),
        ("GET", "v1/readyz", None),
        ("HEAD", "v1/readyz", None),
        ("GET", "v1/values/binding-canary", None),
        ("HEAD", "v1/values/binding-canary", None),
        ("GET", "v1/values/none", None),
        ("POST", "v1/values", Some(json!({"names": ["binding-canary", "none"]}))),
        ("POST", "v1/values", Some(json!("x"))),
        ("GET", "v1/watch", None),
        ("GET", "nothing", None),
        ("DELETE", "v1/values/binding-canary", None),
    ] {
        let reply = replica.api().send(method, path, body).await;
        said.push((path, format!("{:?} {}", reply.headers, String::from_utf8_lossy(&reply.bytes))));
    }
    let token = format!("Bearer {TOKEN}");
    let mut stream =
        Frames::open(&replica.url(), "/v1/watch?name=binding-canary", &[("authorization", &token)]).await;
    for frame in stream.until("synced", PATIENCE).await {
        said.push(("v1/watch", frame.raw));
    }
    for (path, text) in &said {
        assert!(!text.contains(NODE), "{path}: {text}");
    }
    for path in ["v1/healthz", "v1/readyz"] {
        let reply = replica.anonymous().get(path).await.expect(200);
        assert_eq!(reply.body.as_object().unwrap().len(), 1, "one field");
        let known = ["content-type", "content-length", "date", "cache-control"];
        assert!(reply.headers.keys().all(|name| known.contains(&name.as_str())), "{:?}", reply.headers);
    }
    let status = replica.api().get("v1/status").await.expect(200);
    assert_eq!(status.body["node"], NODE, "the operator's view names it");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_and_methods_are_plain_text() {
    let replica = Replica::start("[bindings]\na = \"static:x\"\n").await;
    let missing = replica.api().get("v1/nothing").await.expect(404);
    assert_eq!(missing.bytes, b"404 page not found");
    let wrong = replica.api().delete("v1/values/a").await.expect(405);
    assert_eq!(
        (wrong.bytes.as_slice(), &wrong.headers["allow"]),
        (b"Method Not Allowed".as_slice(), &"GET, HEAD".parse().unwrap())
    );
    let head = replica.api().send("HEAD", "v1/values/a", None).await.expect(200);
    assert!(head.bytes.is_empty());
    assert!(head.headers.contains_key("holdfast-request-id") && head.headers.contains_key("holdfast-config"));
}
