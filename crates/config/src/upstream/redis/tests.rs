//! Against a real Redis.

use holdfast_core::AnswerKind;
use holdfast_tests::backends::{RedisServer, secret_file};
use holdfast_tests::eventually_async;
use holdfast_tests::process::free_port;

use super::super::testing::{Heard, Recorder, failure, object, value};
use super::*;
use crate::config::Scheme;

const SOON: Duration = Duration::from_secs(20);

fn key(path: &str) -> ObjectKey {
    object(Scheme::Redis, path)
}

fn provider(settings: UpstreamSettings) -> (Arc<dyn Provider>, Tasks) {
    let tasks = Tasks::new("test");
    let settings = UpstreamSettings { kind: "redis".to_owned(), ..settings };
    (super::super::build("u", &settings, &tasks).unwrap(), tasks)
}

fn at(addrs: &[String]) -> UpstreamSettings {
    UpstreamSettings { addrs: addrs.to_vec(), ..UpstreamSettings::default() }
}

async fn heard(recorder: &Recorder, what: &str, condition: impl Fn(&[Heard]) -> bool) {
    eventually_async(SOON, what, || async { condition(&recorder.heard()).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_and_their_changes_over_one_connection_that_comes_back() {
    let mut server = RedisServer::start().await;
    let dead = format!("127.0.0.1:{}", free_port());
    let (provider, tasks) = provider(at(&[dead, format!("redis://{}/2", server.address())]));
    assert_eq!(provider.fetch(&key("a"), None).await.outcome, Outcome::Absent);
    server.run_as(&["SELECT", "2"], &["SET", "a", "one"]).await;
    let got = value(provider.fetch(&key("a"), None).await);
    assert_eq!(
        (got.bytes.expose(), got.version, got.order),
        (&b"one"[..], Some(content::version(b"one")), None)
    );
    server.run_as(&["SELECT", "2"], &["RPUSH", "list", "x"]).await;
    assert_eq!(failure(provider.fetch(&key("list"), None).await), Failure::of(AnswerKind::Invalid));

    let (a, b) = (Recorder::new(), Recorder::new());
    let guard = provider.watch(&key("a"), a.clone()).unwrap();
    let _b = provider.watch(&key("b"), b.clone()).unwrap();
    heard(&a, "a stands", |heard| heard == [Heard::Subscribed]).await;
    heard(&b, "b stands", |heard| heard == [Heard::Subscribed]).await;
    for command in [&["SET", "a", "two"][..], &["DEL", "a"], &["SET", "a", "three", "PX", "50"]] {
        let before = a.heard().len();
        server.run_as(&["SELECT", "2"], command).await;
        heard(&a, command[0], |heard| heard.len() > before).await;
    }
    eventually_async(SOON, "expiry", || async {
        (provider.fetch(&key("a"), None).await.outcome == Outcome::Absent).then_some(())
    })
    .await;
    assert!(a.heard()[1..].iter().all(|heard| *heard == Heard::Changed) && b.heard().len() == 1);

    server.kill();
    heard(&b, "the loss", |heard| heard.last() == Some(&Heard::Lost(AnswerKind::Unavailable))).await;
    assert_eq!(failure(provider.fetch(&key("a"), None).await), Failure::of(AnswerKind::Unavailable));
    drop(guard);
    server.resume().await;
    heard(&b, "b stands again", |heard| heard.last() == Some(&Heard::Subscribed)).await;
    server.run_as(&["SELECT", "2"], &["SET", "b", "new"]).await;
    heard(&b, "a change", |heard| heard.last() == Some(&Heard::Changed)).await;
    drop((_b, provider));
    tasks.wait(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_rights_and_a_server_that_sends_no_events() {
    let server = RedisServer::with_settings(&["--requirepass", "admin-pw"]).await;
    let admin: &[&str] = &["AUTH", "admin-pw"];
    server.run_as(admin, &["SET", "app:a", "one"]).await;
    let acl = ["ACL", "SETUSER", "app", "on", ">app-pw", "~app:*", "+get", "+subscribe", "+ping", "+select"];
    assert_eq!(server.run_as(admin, &acl).await, "+OK");
    let dir = tempfile::tempdir().unwrap();
    let addrs = [server.address()];
    let login = |user: Option<&str>, password: &str| UpstreamSettings {
        user: user.map(str::to_owned),
        password_file: Some(secret_file(dir.path(), password, password)),
        ..at(&addrs)
    };
    for refused in [at(&addrs), login(None, "hunter2"), login(Some("app"), "wrong")] {
        let (provider, _tasks) = provider(refused);
        assert_eq!(failure(provider.fetch(&key("app:a"), None).await), Failure::own_login());
    }
    let (app, _tasks) = provider(login(Some("app"), "app-pw"));
    assert_eq!(value(app.fetch(&key("app:a"), None).await).bytes.expose(), b"one");
    assert_eq!(failure(app.fetch(&key("other"), None).await), Failure::of(AnswerKind::PermissionDenied));
    // The keys are open to it, the channels are not.
    let closed = Recorder::new();
    let _closed = app.watch(&key("app:a"), closed.clone()).unwrap();
    heard(&closed, "the refusal", |heard| heard == [Heard::Lost(AnswerKind::PermissionDenied)]).await;
    assert_eq!(value(app.fetch(&key("app:a"), None).await).bytes.expose(), b"one");

    server.run_as(admin, &["CONFIG", "SET", "notify-keyspace-events", ""]).await;
    let (whole, _tasks) = provider(login(None, "admin-pw"));
    let silent = Recorder::new();
    let _silent = whole.watch(&key("app:a"), silent.clone()).unwrap();
    heard(&silent, "that there will be no events", |heard| heard == [Heard::Lost(AnswerKind::Unavailable)])
        .await;
    assert_eq!(value(whole.fetch(&key("app:a"), None).await).bytes.expose(), b"one");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let tasks = Tasks::new("test");
    for (addr, problem) in [
        ("redis://h:1/x", "upstream.u.addrs: \"x\" is no number of a database"),
        ("http://h:1", "upstream.u.addrs: \"http\" is neither redis nor rediss"),
    ] {
        let refused = Redis::build("u", &at(&[addr.to_owned()]), &tasks).err().unwrap();
        assert_eq!(refused.to_string(), problem);
    }
    assert!(Redis::build("u", &at(&[]), &tasks).is_err());
}
