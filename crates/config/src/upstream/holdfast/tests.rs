//! Against scripted answers of the wire; the whole way through real servers is tested with the processes.

use holdfast_core::Wall;
use holdfast_tests::backends::secret_file;
use holdfast_tests::eventually_async;

use super::super::testing::{Heard, Recorder, failure, object};
use super::super::tests::scripted::{Answer, Script};
use super::*;
use crate::config::Scheme;

const SOON: Duration = Duration::from_secs(20);
const VALUE: &str = r#"{"name":"db","bytes":"b25l","version":"7","sensitive":true,"not_after":"2030-01-01T00:00:00Z","metadata":{"a":"b"},"kind":"rate_limited","resolved_at":"2026-07-26T21:04:11.5Z","stale":true,"order":7,"epoch":"c1"}"#;

fn name(path: &str) -> ObjectKey {
    object(Scheme::Holdfast, path)
}

fn micros(text: &str) -> Wall {
    Wall::from_micros(text.parse::<jiff::Timestamp>().unwrap().as_microsecond())
}

fn expected() -> Outcome<Value> {
    let value = Value {
        bytes: Secret::new(b"one".to_vec()),
        version: Some("7".to_owned()),
        order: Some(7),
        epoch: Some("c1".into()),
        sensitive: true,
        not_after: Some(micros("2030-01-01T00:00:00Z")),
        metadata: [("a".to_owned(), "b".to_owned())].into(),
    };
    let resolved_at = Some(micros("2026-07-26T21:04:11.5Z"));
    Outcome::Value { value, passed: Some(Passed { resolved_at, kind: Some(AnswerKind::RateLimited) }) }
}

fn chain(script: &Script, dir: &std::path::Path) -> (Chain, Arc<Hops>, Tasks) {
    let (tasks, hops) = (Tasks::new("test"), Hops::new("selfself"));
    let settings = UpstreamSettings {
        kind: "holdfast".to_owned(),
        endpoints: vec![script.url()],
        token_file: Some(secret_file(dir, "token", "hfc_token\n")),
        ..UpstreamSettings::default()
    };
    (Chain::build("u", &settings, &tasks, &hops).unwrap(), hops, tasks)
}

fn envelope(kind: &str) -> String {
    format!(r#"{{"error":{{"kind":"{kind}","message":"m"}}}}"#)
}

#[tokio::test]
async fn everything_is_passed_through_and_every_request_says_its_way() {
    let (script, dir) = (Script::start().await, tempfile::tempdir().unwrap());
    let (chain, hops, _tasks) = chain(&script, dir.path());
    let binding = Arc::from("ours");
    hops.follow([(&binding, &name("db"))]);
    script.route("GET /v1/values/db", [Answer::of(200, VALUE).header("Content-Type", "application/json")]);
    assert_eq!(chain.fetch(&name("db"), None).await.outcome, expected());
    hops.hear(b"ours", &[(VIA, HeaderValue::from_static("one,two"))].into_iter().collect());
    chain.fetch(&name("db"), None).await;
    let asked = script.asked();
    assert_eq!(asked[0].header("authorization"), Some("Bearer hfc_token"));
    assert_eq!(asked[0].header("user-agent"), Some(USER_AGENT));
    let ways: Vec<_> = asked.iter().map(|asked| asked.header("holdfast-via").unwrap()).collect();
    assert_eq!(ways, ["selfself", "selfself,one,two"]);
}

#[tokio::test]
async fn refusals_are_passed_through_but_for_that_of_our_own_login() {
    let (script, dir) = (Script::start().await, tempfile::tempdir().unwrap());
    let (chain, _hops, _tasks) = chain(&script, dir.path());
    for (status, kind, expected) in [
        (403, "permission_denied", Failure::of(AnswerKind::PermissionDenied)),
        (400, "invalid", Failure::of(AnswerKind::Invalid)),
        (401, "unauthenticated", Failure::own_login()),
        (503, "unavailable", Failure::of(AnswerKind::Unavailable)),
        (500, "unknown", Failure::of(AnswerKind::Unknown)),
    ] {
        script.route("GET /v1/values/x", [Answer::of(status, &envelope(kind))]);
        assert_eq!(failure(chain.fetch(&name("x"), None).await), expected, "{kind}");
    }
    let limited = Answer::of(429, &envelope("rate_limited")).header("Retry-After", "7");
    script.route("GET /v1/values/x", [limited]);
    let retry_after = Some(Duration::from_secs(7));
    let expected = Failure { kind: AnswerKind::RateLimited, retry_after, own_login: false };
    assert_eq!(failure(chain.fetch(&name("x"), None).await), expected);
    script.route("GET /v1/values/x", [Answer::of(404, &envelope("not_found"))]);
    assert_eq!(chain.fetch(&name("x"), None).await.outcome, Outcome::Absent);
}

#[tokio::test]
async fn all_names_come_over_one_stream_with_their_own_dates() {
    let (script, dir) = (Script::start().await, tempfile::tempdir().unwrap());
    let (chain, _hops, tasks) = chain(&script, dir.path());
    let stream = format!(
        "retry: 1000\n\nevent: update\ndata: {VALUE}\n\nevent: error\ndata: {}\n\nevent: synced\nid: x\ndata: {{}}\n\n",
        r#"{"name":"none","metadata":{},"error":{"kind":"not_found","message":"m"}}"#
    );
    let stream = Answer::of(200, &stream).header("Content-Type", "text/event-stream");
    script.route("POST /v1/watch", [stream, Answer::never()]);
    let (db, none) = (Recorder::new(), Recorder::new());
    let _db = chain.watch(&name("db"), db.clone()).unwrap();
    let _none = chain.watch(&name("none"), none.clone()).unwrap();
    let has = |recorder: &Recorder, what: Heard| (recorder.count(&what) > 0).then_some(());
    eventually_async(SOON, "the value", || async { has(&db, Heard::Event(expected())) }).await;
    eventually_async(SOON, "that it stands", || async { has(&db, Heard::Subscribed) }).await;
    eventually_async(SOON, "the one without a value", || async { has(&none, Heard::Changed) }).await;
    // The script ends the stream.
    eventually_async(SOON, "the loss", || async { has(&db, Heard::Lost(AnswerKind::Unavailable)) }).await;
    let first = &script.asked()[0];
    assert!(first.body.contains("\"db\"") && first.body.contains("\"none\""), "{}", first.body);
    assert_eq!(first.header("holdfast-via"), Some("selfself"));
    drop((_db, _none, chain));
    tasks.wait(SOON).await.unwrap();
}

#[test]
fn endpoints_that_cannot_be_used_are_refused_by_name() {
    let (tasks, hops) = (Tasks::new("test"), Hops::new("selfself"));
    let build = |endpoints: &[&str]| {
        let endpoints = endpoints.iter().map(|text| (*text).to_owned()).collect();
        let settings = UpstreamSettings { endpoints, ..UpstreamSettings::default() };
        Chain::build("u", &settings, &tasks, &hops).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(build(&[]), Err("upstream.u.endpoints: no endpoint".to_owned()));
    assert!(build(&["http://config.internal:8080"]).is_err());
}
