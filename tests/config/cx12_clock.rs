//! CX-12: the wall clock of one replica is wrong or steps.

use holdfast_tests::config::{Replica, text};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::upstream::{Script, Upstream};

fn faketime() -> String {
    let found = std::fs::read_dir("/usr/lib").unwrap().filter_map(Result::ok);
    let paths = found.map(|dir| dir.path().join("faketime/libfaketime.so.1"));
    paths.into_iter().find(|path| path.is_file()).expect("libfaketime is installed").display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_an_hour_is_told_once_and_stops_nothing() {
    let upstream = Upstream::start().await;
    upstream.set("/v", Script::ok("v1"));
    let lines = format!(
        "{}[bindings]\nv = {{ ref = \"https://web/v\", poll = \"1s\", max_stale = \"1m\" }}\n",
        upstream.lines()
    );
    let mut replica = Replica::prepare(&lines);
    replica.write("clock", "+1h");
    replica.env("LD_PRELOAD", &faketime());
    replica.env("FAKETIME_TIMESTAMP_FILE", &replica.path("clock").display().to_string());
    replica.env("FAKETIME_NO_CACHE", "1");
    replica.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    replica.run();
    replica.wait_ready().await;
    let ahead = replica.value("v").await.expect(200).body;
    replica.write("clock", "+0h");
    let back = || async {
        let body = replica.value("v").await.body;
        (body["resolved_at"].as_str()? < ahead["resolved_at"].as_str()?).then_some(body)
    };
    let body = eventually_async(PATIENCE, "the date follows the clock back", back).await;
    assert_eq!((text(&body).as_str(), body.get("stale")), ("v1", None));
    upstream.set("/v", Script::ok("v2"));
    replica.wait_value("v", "v2").await;
    replica.write("clock", "+1h");
    upstream.set("/v", Script::ok("v3"));
    replica.wait_value("v", "v3").await;
    let log = replica.log();
    let told =
        log.lines().filter(|line| line.contains("\"level\":\"WARN\"") && line.contains("clock")).count();
    assert_eq!(told, 1, "{log}");
}
