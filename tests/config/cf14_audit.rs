//! CF-14: one audit line for each name, with the fields in their order, and no value.

use holdfast_tests::config::Replica;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::PATIENCE;
use serde_json::json;

const FIELDS: [&str; 12] = [
    "time",
    "msg",
    "node",
    "request_id",
    "subject",
    "name",
    "decision",
    "kind",
    "status",
    "method",
    "path",
    "latency_ms",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_line_a_name_and_no_value() {
    let mut replica = Replica::prepare(
        "node_id = \"config-server-7\"\n[[policy.rule]]\nsubjects = [\"reader\"]\nnames = [\"a\", \"b\"]\n\
         [bindings]\na = \"static:canary-7041\"\nb = \"static:canary-7041\"\nc = \"static:canary-7041\"\n",
    );
    replica.run();
    replica.wait_ready().await;
    replica.value("a").await.expect(200);
    replica.value("c").await.expect(403);
    replica.api().send("POST", "v1/values", Some(json!({"names": ["a", "b", "c"]}))).await.expect(200);
    replica.anonymous().get("v1/values/a").await.expect(401);
    let all = || async { (replica.audit().len() >= 6).then(|| replica.audit()) };
    let lines = eventually_async(PATIENCE, "six lines", all).await;
    let of = |subject: &str, name: &str, decision: &str| {
        let same = |l: &&serde_json::Value| {
            l["subject"] == subject && l["name"] == name && l["decision"] == decision
        };
        lines.iter().filter(same).count()
    };
    assert_eq!(
        (of("reader", "a", "allow"), of("reader", "b", "allow"), of("reader", "c", "deny")),
        (2, 1, 2)
    );
    assert!(lines.iter().all(|line| line["node"] == "config-server-7"));
    assert!(lines.iter().any(|line| line["status"] == 401 && line["decision"] == "deny"));
    let log = replica.log();
    assert!(!log.contains("canary-7041"), "no value in any line");
    let raw = log.lines().find(|line| line.contains("\"msg\":\"request\"")).unwrap();
    let places: Vec<_> = FIELDS.iter().map(|field| raw.find(&format!("\"{field}\":"))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{raw}");
    let probes =
        log.lines().filter(|line| line.contains("readyz") && line.contains("\"msg\":\"request\"")).count();
    assert_eq!(probes, 0, "probes are not audited");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_is_the_host_unless_named() {
    let replica = Replica::start("[bindings]\na = \"static:x\"\n").await;
    replica.value("a").await.expect(200);
    let line = || async { replica.audit().first().cloned() };
    let line = eventually_async(PATIENCE, "an audit line", line).await;
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    assert_eq!(line["node"], host.as_str());
}
