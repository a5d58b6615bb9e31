//! Against a real etcd.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_core::AnswerKind;
use holdfast_tests::backends::{EtcdServer, secret_file};
use holdfast_tests::process::free_port;
use holdfast_tests::{eventually, eventually_async};

use super::super::testing::{Heard, Recorder, failure, object, value};
use super::*;
use crate::config::Scheme;

const SOON: Duration = Duration::from_secs(20);

fn key(path: &str) -> ObjectKey {
    object(Scheme::Etcd, path)
}

fn provider(addrs: Vec<String>, login: Option<(&str, PathBuf)>) -> (Arc<dyn Provider>, Tasks) {
    let tasks = Tasks::new("test");
    let settings = UpstreamSettings {
        kind: "etcd".to_owned(),
        addrs,
        user: login.as_ref().map(|(user, _)| (*user).to_owned()),
        password_file: login.map(|(_, file)| file),
        confirm: Some(holdfast_ops::Duration::from_secs(5)),
        ..UpstreamSettings::default()
    };
    (super::super::build("u", &settings, &tasks).unwrap(), tasks)
}

async fn heard(recorder: &Recorder, what: &str, condition: impl Fn(&[Heard]) -> bool) {
    eventually_async(SOON, what, || async { condition(&recorder.heard()).then_some(()) }).await;
}

fn put(heard: &Heard) -> Option<Value> {
    match heard {
        Heard::Event(Outcome::Value { value, .. }) => Some(value.clone()),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_with_their_revision_and_changes_come_by_themselves() {
    let server = EtcdServer::start().await;
    let (provider, _tasks) = provider(vec![format!("http://127.0.0.1:{}", free_port()), server.url()], None);
    assert_eq!(provider.fetch(&key("a"), None).await.outcome, Outcome::Absent);
    let first = server.put("a", "one").await;
    server.put("b", "other").await;
    let got = value(provider.fetch(&key("a"), None).await);
    assert_eq!((got.bytes.expose(), got.version.as_deref()), (&b"one"[..], Some(&*first.to_string())));
    assert_eq!(got.order, Some(first));
    assert!(got.epoch.as_ref().is_some_and(|epoch| !epoch.is_empty()) && !got.sensitive);

    let (a, b, c) = (Recorder::new(), Recorder::new(), Recorder::new());
    let _a = provider.watch(&key("a"), a.clone()).unwrap();
    let _b = provider.watch(&key("b"), b.clone()).unwrap();
    heard(&a, "a stands", |heard| heard == [Heard::Subscribed]).await;
    heard(&b, "b stands", |heard| heard == [Heard::Subscribed]).await;
    let _c = provider.watch(&key("/c"), c.clone()).unwrap();
    heard(&c, "a later watch stands", |heard| heard == [Heard::Subscribed]).await;
    let second = server.put("a", "two").await;
    heard(&a, "the change", |heard| heard.len() == 2).await;
    let told = put(&a.heard()[1]).unwrap();
    assert_eq!((told.bytes.expose(), told.order, &told.epoch), (&b"two"[..], Some(second), &got.epoch));
    server.delete("a").await;
    heard(&a, "the end", |heard| heard.last() == Some(&Heard::Changed)).await;
    eventually(SOON, "a confirmation", || (a.confirmations() > 0 && b.confirmations() > 0).then_some(()));
    assert_eq!((b.heard().len(), c.heard().len()), (1, 1), "only what was watched is told");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_is_watched_again_and_each_watch_is_told() {
    let mut server = EtcdServer::start().await;
    let (provider, tasks) = provider(vec![server.url()], None);
    let recorder = Recorder::new();
    let guard = provider.watch(&key("a"), recorder.clone()).unwrap();
    heard(&recorder, "it stands", |heard| heard == [Heard::Subscribed]).await;
    server.kill();
    heard(&recorder, "the loss", |heard| heard.last() == Some(&Heard::Lost(AnswerKind::Unavailable))).await;
    assert_eq!(failure(provider.fetch(&key("a"), None).await), Failure::of(AnswerKind::Unavailable));
    server.resume().await;
    heard(&recorder, "it stands again", |heard| heard.last() == Some(&Heard::Subscribed)).await;
    server.put("a", "new").await;
    heard(&recorder, "the change", |heard| heard.last().and_then(put).is_some()).await;
    assert_eq!(recorder.count(&Heard::Lost(AnswerKind::Unavailable)), 1, "a loss is told once");
    drop((guard, provider));
    tasks.wait(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_and_rights_and_a_refused_watch_that_blocks_no_other() {
    let mut server = EtcdServer::start().await;
    server.put("app/a", "one").await;
    server.put("other", "secret").await;
    server.require_logins().await;
    let dir = tempfile::tempdir().unwrap();
    let (nobody, _tasks) = provider(vec![server.url()], None);
    assert_eq!(failure(nobody.fetch(&key("app/a"), None).await), Failure::own_login());
    let wrong = secret_file(dir.path(), "wrong", "hunter2");
    let (wrong, _tasks) = provider(vec![server.url()], Some(("app", wrong)));
    assert_eq!(failure(wrong.fetch(&key("app/a"), None).await), Failure::own_login());

    let right = secret_file(dir.path(), "right", "app-pw\n");
    let (app, _tasks) = provider(vec![server.url()], Some(("app", right)));
    assert_eq!(value(app.fetch(&key("app/a"), None).await).bytes.expose(), b"one");
    assert_eq!(failure(app.fetch(&key("other"), None).await), Failure::of(AnswerKind::PermissionDenied));

    let (denied, good, late) = (Recorder::new(), Recorder::new(), Recorder::new());
    let _first = app.watch(&key("app/x"), good.clone()).unwrap();
    heard(&good, "a watch stands", |heard| heard == [Heard::Subscribed]).await;
    let _denied = app.watch(&key("other"), denied.clone()).unwrap();
    heard(&denied, "the refusal", |heard| heard == [Heard::Lost(AnswerKind::PermissionDenied)]).await;
    let _late = app.watch(&key("app/a"), late.clone()).unwrap();
    heard(&late, "one after the refusal stands", |heard| heard == [Heard::Subscribed]).await;
    server.put("app/x", "1").await;
    server.put("app/a", "two").await;
    heard(&late, "its change", |heard| heard.last().and_then(put).is_some()).await;
    heard(&good, "the change of the former", |heard| heard.last().and_then(put).is_some()).await;
    assert_eq!(good.count(&Heard::Subscribed), 1, "nothing was subscribed anew for the refused one");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let tasks = Tasks::new("test");
    let refused = |settings: UpstreamSettings| match Etcd::build("u", &settings, &tasks) {
        Ok(_) => panic!("built"),
        Err(error) => error.to_string(),
    };
    assert_eq!(refused(UpstreamSettings::default()), "upstream.u.addrs: at least one address is needed");
    let half = UpstreamSettings {
        addrs: vec!["h:1".to_owned()],
        user: Some("app".to_owned()),
        ..UpstreamSettings::default()
    };
    assert_eq!(refused(half), "upstream.u.password_file: user and password_file belong together");
    let bad = UpstreamSettings { addrs: vec!["ftp://h:1".to_owned()], ..UpstreamSettings::default() };
    assert_eq!(refused(bad), "upstream.u.addrs: \"ftp\" is neither http nor https");
}
