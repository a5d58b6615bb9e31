//! The provider against a small server.

use std::sync::Arc;

use super::*;
use crate::config::Scheme;
use crate::upstream::tests::scripted::{Answer, Script};

fn object(path: &str) -> ObjectKey {
    ObjectKey { upstream: "web".into(), scheme: Scheme::Https, path: path.into(), options: BTreeMap::new() }
}

fn settings(base: &str) -> UpstreamSettings {
    UpstreamSettings { base_url: Some(base.to_owned()), ..UpstreamSettings::default() }
}

async fn rig() -> (Arc<Script>, Https) {
    let script = Script::start().await;
    let provider = Https::new("web", &settings(&format!("{}/base", script.url()))).unwrap();
    (script, provider)
}

fn value(outcome: Outcome<Value>) -> Value {
    match outcome {
        Outcome::Value { value, .. } => value,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_unchanged_document_is_asked_for_by_its_tag_and_costs_no_body() {
    let (script, provider) = rig().await;
    script.push(Answer::of(200, "one").header("etag", "\"v1\"").header("last-modified", "yesterday"));
    script.push(Answer::of(304, ""));
    script.push(Answer::of(200, "two"));
    let first = value(provider.fetch(&object("/a/b"), None).await.outcome);
    assert_eq!((first.bytes.expose(), first.version.as_deref()), (b"one".as_slice(), Some("\"v1\"")));
    let same = value(provider.fetch(&object("/a/b"), Some(&first)).await.outcome);
    assert_eq!(same, first);
    // Without the value at hand, a 304 could not be answered from it.
    let second = value(provider.fetch(&object("/a/b"), None).await.outcome);
    assert_eq!(second.version, Some(content::version(b"two")));
    let asked = script.asked();
    let tags: Vec<_> =
        asked.iter().map(|a| (a.header("if-none-match"), a.header("if-modified-since"))).collect();
    assert_eq!(tags, [(None, None), (Some("\"v1\""), Some("yesterday")), (None, None)]);
    assert!(asked.iter().all(|a| a.line == "GET /base/a/b" && a.header("user-agent") == Some(USER_AGENT)));
}

#[tokio::test]
async fn statuses_become_outcomes() {
    let (script, provider) = rig().await;
    for (answer, outcome) in [
        (Answer::of(404, ""), Outcome::Absent),
        (Answer::of(410, ""), Outcome::Absent),
        (Answer::of(401, ""), Outcome::Error(Failure::own_login())),
        (Answer::of(403, ""), content::failed(AnswerKind::PermissionDenied)),
        (Answer::of(500, ""), content::failed(AnswerKind::Unavailable)),
        (Answer::of(304, ""), content::failed(AnswerKind::Unknown)),
    ] {
        script.push(answer);
        assert_eq!(provider.fetch(&object("a"), None).await.outcome, outcome);
    }
    script.push(Answer::of(204, ""));
    assert!(value(provider.fetch(&object("a"), None).await.outcome).bytes.is_empty());
}

#[tokio::test]
async fn redirects_stay_at_the_origin() {
    let (script, provider) = rig().await;
    let other = Script::start().await;
    script.push(Answer::of(302, "").header("location", "/base/there"));
    script.push(Answer::of(200, "here"));
    assert_eq!(value(provider.fetch(&object("a"), None).await.outcome).bytes.expose(), b"here");
    script.push(Answer::of(302, "").header("location", &format!("{}/x", other.url())));
    let away = provider.fetch(&object("a"), None).await.outcome;
    assert_eq!(away, content::failed(AnswerKind::Unavailable));
    assert!(other.asked().is_empty());
}

#[tokio::test]
async fn no_path_leaves_the_base() {
    let (script, provider) = rig().await;
    for path in ["../x", "a/../../x", "a/%2e%2E/x", "a/..%2fx", "a%5c..%5cx"] {
        let outcome = provider.fetch(&object(path), None).await.outcome;
        assert_eq!(outcome, content::failed(AnswerKind::Invalid), "{path}");
    }
    assert!(script.asked().is_empty());
}

#[tokio::test]
async fn credentials_and_options_travel_and_a_missing_credential_is_our_own_trouble() {
    let (script, mut provider) = rig().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    provider.bearer_file = Some(file.clone());
    let mut key = object("a");
    key.options.insert("env".into(), "prod x".into());
    assert_eq!(provider.fetch(&key, None).await.outcome, Outcome::Error(Failure::own_login()));
    crate::upstream::tests::scripted::secret(&file, "s3cret\n");
    script.push(Answer::of(200, "x"));
    value(provider.fetch(&key, None).await.outcome);
    let asked = script.asked();
    assert_eq!(
        (asked[0].line.as_str(), asked[0].header("authorization")),
        ("GET /base/a?env=prod+x", Some("Bearer s3cret"))
    );
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    crate::upstream::tests::scripted::crypto();
    let provider = Https::new("web", &settings("http://127.0.0.1:1/")).unwrap();
    let outcome = provider.fetch(&object("a"), None).await.outcome;
    assert_eq!(outcome, content::failed(AnswerKind::Unavailable));
}

#[test]
fn plain_text_needs_a_loopback_address_or_leave() {
    crate::upstream::tests::scripted::crypto();
    assert!(Https::new("web", &settings("http://example.com")).is_err());
    assert!(Https::new("web", &settings("ftp://127.0.0.1")).is_err());
    assert!(Https::new("web", &settings("https://example.com")).is_ok());
    let plain = UpstreamSettings { allow_insecure: true, ..settings("http://example.com") };
    assert!(Https::new("web", &plain).is_ok());
}
