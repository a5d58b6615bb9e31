//! Against a real PostgreSQL.

use holdfast_tests::backends::secret_file;
use holdfast_tests::db::{ADMIN_PASSWORD, PostgresServer};
use holdfast_tests::eventually_async;

use super::super::content;
use super::super::testing::{Heard, Recorder, failure, object, value};
use super::*;
use crate::config::Scheme;

const SOON: Duration = Duration::from_secs(30);

fn row(path: &str, options: &[(&str, &str)]) -> ObjectKey {
    let options = options.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    ObjectKey { options: options.collect(), ..object(Scheme::Postgres, path) }
}

async fn heard(recorder: &Recorder, what: &str, condition: impl Fn(&[Heard]) -> bool) {
    eventually_async(SOON, what, || async { condition(&recorder.heard()).then_some(()) }).await;
}

fn provider(dir: &std::path::Path, url: &str) -> (Arc<dyn Provider>, Tasks) {
    let tasks = Tasks::new("test");
    let settings = UpstreamSettings {
        kind: "postgres".to_owned(),
        dsn_file: Some(secret_file(dir, &format!("dsn-{}", url.len()), url)),
        sensitive: true,
        ..UpstreamSettings::default()
    };
    (super::super::build("u", &settings, &tasks).unwrap(), tasks)
}

const SCHEMA: &str = "
    CREATE SCHEMA app;
    CREATE TABLE app.config (key text, value text, rev bigint);
    CREATE TABLE numbers (key int PRIMARY KEY, value jsonb, amount numeric, raw bytea);
    CREATE TABLE closed (key text, value text);
    CREATE ROLE reader LOGIN PASSWORD 'reader-pw';
    GRANT USAGE ON SCHEMA app TO reader; GRANT SELECT ON app.config, numbers TO reader;
    INSERT INTO app.config VALUES ('a', 'one', 7), ('it''s', 'quoted', 8), ('null', NULL, 9), ('two', 'x', 1), ('two', 'y', 2);
    INSERT INTO numbers VALUES (4, '{\"b\":1}', 1.50, '\\x00ff');
";

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_values_and_notifications_lead_to_them() {
    let mut server = PostgresServer::start().await;
    server.execute(SCHEMA).await;
    let dir = tempfile::tempdir().unwrap();
    let url = server.url_template().replace("{{username}}", "reader").replace("{{password}}", "reader-pw");
    let (provider, tasks) = provider(dir.path(), &url);
    let fetch = async |path: &str, options: &[(&str, &str)]| provider.fetch(&row(path, options), None).await;

    let got = value(fetch("app.config/a", &[]).await);
    assert_eq!(
        (got.bytes.expose(), got.version, got.order),
        (&b"one"[..], Some(content::version(b"one")), None)
    );
    assert!(got.sensitive);
    let got = value(fetch("app.config/a", &[("order_col", "rev")]).await);
    assert_eq!((got.version.as_deref(), got.order), (Some("7"), Some(7)));
    assert_eq!(value(fetch("app.config/it's", &[]).await).bytes.expose(), b"quoted");
    for (column, text) in [("value", &br#"{"b": 1}"#[..]), ("amount", b"1.50"), ("raw", &[0, 255])] {
        assert_eq!(value(fetch("numbers/4", &[("val_col", column)]).await).bytes.expose(), text, "{column}");
    }
    for path in ["app.config/none", "app.config/null", "numbers/5"] {
        assert_eq!(fetch(path, &[]).await.outcome, Outcome::Absent, "{path}");
    }
    for (path, kind) in [
        ("app.config/two", AnswerKind::Invalid),
        ("nowhere/a", AnswerKind::Invalid),
        ("numbers/x", AnswerKind::Invalid),
        ("closed/a", AnswerKind::PermissionDenied),
    ] {
        assert_eq!(failure(fetch(path, &[]).await), Failure::of(kind), "{path}");
    }
    assert_eq!(
        failure(fetch("app.config/a", &[("val_col", "none")]).await),
        Failure::of(AnswerKind::Invalid)
    );

    let (a, b) = (Recorder::new(), Recorder::new());
    let _a = provider.watch(&row("app.config/a", &[]), a.clone()).unwrap();
    let _b = provider.watch(&row("numbers/4", &[]), b.clone()).unwrap();
    for recorder in [&a, &b] {
        heard(recorder, "it stands", |heard| heard == [Heard::Subscribed]).await;
    }
    server.execute("NOTIFY holdfast_config, 'app.config/a'").await;
    heard(&a, "the change", |heard| heard == [Heard::Subscribed, Heard::Changed]).await;
    server.execute("NOTIFY holdfast_config").await;
    heard(&b, "the change of everything", |heard| heard == [Heard::Subscribed, Heard::Changed]).await;

    server.stop();
    heard(&a, "the loss", |heard| heard.last() == Some(&Heard::Lost(AnswerKind::Unavailable))).await;
    assert_eq!(failure(fetch("app.config/a", &[]).await), Failure::of(AnswerKind::Unavailable));
    server.resume().await;
    heard(&a, "it stands again", |heard| heard.last() == Some(&Heard::Subscribed)).await;
    assert_eq!(value(fetch("app.config/a", &[]).await).bytes.expose(), b"one");
    drop((_a, _b, provider));
    tasks.wait(SOON).await.unwrap();

    let wrong = url.replace("reader-pw", "hunter2");
    let (refused, _tasks) = self::provider(dir.path(), &wrong);
    assert_eq!(failure(refused.fetch(&row("app.config/a", &[]), None).await), Failure::own_login());
}

#[test]
fn a_connection_string_that_cannot_be_read_is_refused_without_showing_it() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = Tasks::new("test");
    let build = |dsn_file, channel: Option<&str>| {
        let channel = channel.map(str::to_owned);
        let settings = UpstreamSettings { dsn_file, channel, ..UpstreamSettings::default() };
        Postgres::build("u", &settings, &tasks).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(build(None, None), "upstream.u.dsn_file: is missing");
    let bad = secret_file(dir.path(), "bad", &format!("postgres://u:{ADMIN_PASSWORD}@h:port/db"));
    let problem = build(Some(bad), None);
    assert!(problem.starts_with("upstream.u.dsn_file: ") && !problem.contains("r1g"), "{problem}");
    let good = secret_file(dir.path(), "good", "postgres://u:p@h/db");
    assert!(build(Some(good), Some("a; b")).starts_with("upstream.u.channel: "));
}
