//! CF-01: what the probes say while a replica primes, serves and drains.

use std::time::Duration;

use holdfast_tests::config::Replica;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::upstream::{Script, Upstream};

async fn alive(replica: &Replica) {
    let reply = replica.anonymous().get("v1/healthz").await;
    assert_eq!((reply.status, reply.bytes.as_slice()), (200, br#"{"status":"ok"}"#.as_slice()));
    assert_eq!(reply.headers["content-type"], "application/json");
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_tell_priming_ready_and_draining_to_the_byte() {
    let upstream = Upstream::start().await;
    upstream.set("/db", Script::Silence);
    let lines = format!(
        "drain_grace = \"5s\"\n{}[bindings]\ndb = {{ ref = \"https://web/db\", timeout = \"1s\" }}\nmotd = \"static:hi\"\n",
        upstream.lines()
    );
    // The first attempt is held, its deadline would settle it: so the upstream answers before that.
    let mut replica = Replica::prepare(&lines.replace("timeout = \"1s\"", "timeout = \"60s\""));
    replica.run();
    replica.wait_listening().await;
    assert_eq!(replica.ready().await.unwrap(), (503, r#"{"status":"priming"}"#.to_owned()));
    alive(&replica).await;
    // The priming deadline is far: only an answer makes it ready. It comes on a second connection.
    upstream.set("/db", Script::ok("v1"));
    replica.kill();
    replica.run();
    replica.wait_ready().await;
    assert_eq!(replica.ready().await.unwrap(), (200, r#"{"status":"ready"}"#.to_owned()));
    alive(&replica).await;
    replica.terminate();
    let draining =
        || async { (replica.ready().await? == (503, r#"{"status":"draining"}"#.to_owned())).then_some(()) };
    eventually_async(PATIENCE, "the replica shows that it drains", draining).await;
    alive(&replica).await;
    assert_eq!(replica.value("db").await.status, 200, "values are served while it drains");
    assert_eq!(replica.process().wait(PATIENCE).code(), Some(0));
    replica.check_log(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_late_ends_the_priming() {
    let upstream = Upstream::start().await;
    upstream.set("/db", Script::Late(Duration::from_secs(2), "v1".to_owned()));
    let lines = format!("{}[bindings]\ndb = \"https://web/db\"\n", upstream.lines());
    let mut replica = Replica::prepare(&lines);
    replica.run();
    replica.wait_listening().await;
    assert_eq!(replica.ready().await.unwrap().0, 503);
    replica.wait_ready().await;
    assert_eq!(replica.value("db").await.status, 200);
}
