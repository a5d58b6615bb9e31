//! CX-07: starting from the last-known-good file while the upstream is out.

use holdfast_tests::config::{Replica, text};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::upstream::{Script, Upstream};

async fn start(upstream: &Upstream) -> Replica {
    let lines = format!(
        "[lkg]\ndir = \"DIR/lkg\"\nkey_file = \"DIR/lkg.key\"\n{}[defaults]\npoll = \"1s\"\n[bindings]\nv = \"https://web/v\"\n\
         other = {{ ref = \"https://web/o\", persist = false }}\n",
        upstream.lines()
    );
    let mut replica = Replica::prepare(&lines);
    replica.write("lkg.key", &"0123456789abcdef".repeat(4));
    std::fs::create_dir_all(replica.path("lkg")).unwrap();
    replica.run();
    replica.wait_ready().await;
    replica
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_an_outage_serves_what_was_known_with_its_date() {
    let upstream = Upstream::start().await;
    upstream.set("/v", Script::ok("canary-lkg"));
    upstream.set("/o", Script::ok("canary-other"));
    let mut replica = start(&upstream).await;
    replica.terminate();
    assert_eq!(replica.process().wait(PATIENCE).code(), Some(0));
    for entry in std::fs::read_dir(replica.path("lkg")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(6).any(|six| six == b"canary"), "nothing is readable on the disk");
    }
    for path in ["/v", "/o"] {
        upstream.set(path, Script::status(503));
    }
    replica.run();
    replica.wait_ready().await;
    let held = replica.value("v").await.expect(200).body;
    assert_eq!(
        (text(&held).as_str(), &held["stale"], &held["kind"]),
        ("canary-lkg", &true.into(), &"unavailable".into())
    );
    replica.value("other").await.expect(503);
    upstream.set("/v", Script::ok("new"));
    replica.wait_value("v", "new").await;
    assert!(replica.value("v").await.body["resolved_at"].as_str() > held["resolved_at"].as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definite_answer_discards_what_was_known() {
    let upstream = Upstream::start().await;
    upstream.set("/v", Script::ok("old"));
    let mut replica = start(&upstream).await;
    replica.terminate();
    replica.process().wait(PATIENCE);
    upstream.set("/v", Script::status(403));
    replica.run();
    replica.wait_ready().await;
    replica.value("v").await.expect(403);
    upstream.set("/v", Script::status(503));
    let calls = upstream.count("/v");
    let polled = || async { (upstream.count("/v") >= calls + 2).then_some(()) };
    eventually_async(PATIENCE, "it is polled again", polled).await;
    assert_ne!(replica.value("v").await.status, 200, "the record does not come back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_set_aside_and_does_not_stop_the_start() {
    let upstream = Upstream::start().await;
    upstream.set("/v", Script::ok("v"));
    let mut replica = start(&upstream).await;
    replica.terminate();
    replica.process().wait(PATIENCE);
    let files: Vec<_> = std::fs::read_dir(replica.path("lkg")).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    let mut bytes = std::fs::read(&files[0]).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&files[0], bytes).unwrap();
    replica.run();
    replica.wait_ready().await;
    replica.wait_value("v", "v").await;
    let bad = std::fs::read_dir(replica.path("lkg"))
        .unwrap()
        .any(|e| e.unwrap().path().extension().is_some_and(|x| x == "bad"));
    assert!(bad, "the file is set aside");
    assert_eq!(replica.log().matches("ERROR").count(), 1, "{}", replica.log());
}
