//! CS-03: who is denied learns nothing about names.

use holdfast_tests::config::{Replica, TOKEN};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_caller_gets_the_same_bytes_for_every_name() {
    let replica = Replica::start(
        "[[policy.rule]]\nsubjects = [\"reader\"]\nnames = [\"mine\"]\n[bindings]\nmine = \"static:x\"\nreal = \"static:x\"\n",
    )
    .await;
    let long = "n".repeat(3000);
    let odd = ["real", "fake", "a%00b", "%ff%fe", "a%20b", "...", "real%2Freal", &long];
    let mut answers = Vec::new();
    for name in odd {
        let reply = replica.api().get(&format!("v1/values/{name}")).await;
        let mut headers: Vec<_> = reply.headers.iter().map(|(n, v)| format!("{n}: {v:?}")).collect();
        headers.retain(|h| !h.starts_with("date:") && !h.starts_with("holdfast-request-id:"));
        answers.push((reply.status, headers, String::from_utf8_lossy(&reply.bytes).into_owned()));
    }
    assert_eq!(answers[0].0, 403);
    assert_eq!(answers[0].2, r#"{"error":{"kind":"permission_denied","message":"permission denied"}}"#);
    for (name, answer) in odd.iter().zip(&answers) {
        assert_eq!(answer, &answers[0], "{name}");
    }
    let batch =
        replica.api().send("POST", "v1/values", Some(json!({"names": ["real", "fake"]}))).await.expect(200);
    let error = |name: &str| json!({"name": name, "metadata": {}, "error": {"kind": "permission_denied", "message": "permission denied"}});
    assert_eq!(batch.body, json!({"values": [error("real"), error("fake")]}));
    let other = replica
        .anonymous()
        .with_header("authorization", "Bearer wrong")
        .get("v1/values/mine")
        .await
        .expect(401);
    assert_eq!(other.bytes, br#"{"error":{"kind":"unauthenticated","message":"unauthenticated"}}"#);
    assert_eq!(other.headers["www-authenticate"], "Bearer");
    let twice =
        replica.api().with_header("authorization", &format!("bearer {TOKEN}")).get("v1/values/mine").await;
    assert_eq!(twice.status, 401, "two Authorization headers");
}
