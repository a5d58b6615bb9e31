//! The provider against a server that answers as Vault does.

use std::sync::Arc;

use crate::config::{AppRoleSettings, KubernetesLogin, Scheme};
use crate::upstream::content;
use crate::upstream::tests::scripted::{Answer, Script, secret};

use super::*;

const MOUNT_V2: &str = r#"{"data":{"path":"kv/","type":"kv","options":{"version":"2"}}}"#;
const MOUNT_V1: &str = r#"{"data":{"path":"old/","type":"kv","options":{"version":"1"}}}"#;
const MOUNT_DB: &str = r#"{"data":{"path":"database/","type":"database","options":null}}"#;
const SECRET: &str = r#"{"lease_id":"","lease_duration":0,"renewable":false,"data":{"data":{"user":"u","a":{"z":1,"b":1.50}},"metadata":{"version":3,"destroyed":false}}}"#;

struct Rig {
    script: Arc<Script>,
    dir: tempfile::TempDir,
    vault: Vault,
}

fn settings(addrs: &[String], dir: &tempfile::TempDir) -> UpstreamSettings {
    secret(&dir.path().join("token"), "hvs.one\n");
    UpstreamSettings {
        addrs: addrs.to_vec(),
        token_file: Some(dir.path().join("token")),
        namespace: Some("team".into()),
        ..UpstreamSettings::default()
    }
}

async fn rig_with(change: impl FnOnce(&mut UpstreamSettings, &tempfile::TempDir)) -> Rig {
    let (script, dir) = (Script::start().await, tempfile::tempdir().unwrap());
    let mut settings = settings(&[script.url()], &dir);
    change(&mut settings, &dir);
    let vault = Vault::new("vault", &settings).unwrap();
    for (path, answer) in [("kv/prod/db", MOUNT_V2), ("old/x", MOUNT_V1), ("database/creds/r", MOUNT_DB)] {
        script.route(&format!("GET /v1/sys/internal/ui/mounts/{path}"), [Answer::of(200, answer)]);
    }
    Rig { script, dir, vault }
}

async fn rig() -> Rig {
    rig_with(|_, _| {}).await
}

fn object(path: &str) -> ObjectKey {
    ObjectKey { upstream: "vault".into(), scheme: Scheme::Vault, path: path.into(), options: BTreeMap::new() }
}

impl Rig {
    async fn get(&self, path: &str) -> Outcome<Value> {
        self.vault.fetch(&object(path), None).await.outcome
    }
}

fn value(outcome: &Outcome<Value>) -> &Value {
    match outcome {
        Outcome::Value { value, .. } => value,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_secret_of_version_2_is_its_data_map_with_its_keys_in_order() {
    let rig = rig().await;
    rig.script.route("GET /v1/kv/data/prod/db", [Answer::of(200, SECRET)]);
    let outcome = rig.get("kv/prod/db").await;
    let read = value(&outcome);
    assert_eq!(std::str::from_utf8(read.bytes.expose()).unwrap(), r#"{"a":{"z":1,"b":1.50},"user":"u"}"#);
    assert_eq!((read.version.as_deref(), read.order, read.sensitive), (Some("3"), Some(3), true));
    let asked = rig.script.asked();
    assert!(asked.iter().all(|asked| {
        let header = |name| asked.header(name).unwrap().to_owned();
        header("x-vault-token") == "hvs.one" && header("x-vault-namespace") == "team"
    }));
    rig.script.lines();
    // What the mount is, is known by now, also for a path that names `data/` itself.
    for path in ["kv/prod/db", "/kv/prod/db/", "kv/data/prod/db"] {
        assert_eq!(rig.get(path).await, outcome);
    }
    assert_eq!(rig.script.lines(), ["GET /v1/kv/data/prod/db"; 3]);
}

#[tokio::test]
async fn a_plain_secret_has_its_hash_for_a_version() {
    let rig = rig().await;
    rig.script.route("GET /v1/old/x", [Answer::of(200, r#"{"lease_duration":2764800,"data":{"k":"v"}}"#)]);
    let fetched = rig.vault.fetch(&object("old/x"), None).await;
    assert_eq!(value(&fetched.outcome).version, Some(content::version(br#"{"k":"v"}"#)));
    assert_eq!((value(&fetched.outcome).order, fetched.lease), (None, None));
}

#[tokio::test]
async fn who_may_not_ask_what_a_mount_is_finds_out_by_trying() {
    let rig = rig().await;
    rig.script.route("GET /v1/sys/internal/ui/mounts/a/x", [Answer::of(403, "{}")]);
    rig.script.route("GET /v1/sys/internal/ui/mounts/b/x", [Answer::of(403, "{}")]);
    rig.script.route("GET /v1/a/data/x", [Answer::of(200, SECRET)]);
    rig.script.route("GET /v1/b/data/x", [Answer::of(404, "{}")]);
    rig.script.route("GET /v1/b/x", [Answer::of(200, r#"{"data":{"k":"v"}}"#)]);
    assert_eq!(value(&rig.get("a/x").await).version.as_deref(), Some("3"));
    assert_eq!(value(&rig.get("b/x").await).bytes.expose(), br#"{"k":"v"}"#);
    rig.script.lines();
    rig.get("a/x").await;
    assert_eq!(rig.script.lines(), ["GET /v1/a/data/x"], "it is remembered");
}

#[tokio::test]
async fn what_is_missing_or_deleted_is_absent_and_what_is_odd_unknown_or_invalid() {
    let rig = rig().await;
    let deleted = r#"{"data":{"data":null,"metadata":{"version":4,"deletion_time":"2026-01-01T00:00:00Z"}}}"#;
    for (answer, outcome) in [
        (Answer::of(404, r#"{"errors":[]}"#), Outcome::Absent),
        (Answer::of(404, deleted), Outcome::Absent),
        (Answer::of(200, deleted), Outcome::Absent),
        (Answer::of(200, "<html>"), content::failed(AnswerKind::Unknown)),
        (Answer::of(503, r#"{"errors":["Vault is sealed"]}"#), content::failed(AnswerKind::Unavailable)),
        (Answer::of(500, ""), content::failed(AnswerKind::Unavailable)),
        (Answer::of(400, ""), content::failed(AnswerKind::Invalid)),
    ] {
        rig.script.route("GET /v1/kv/data/prod/db", [answer]);
        assert_eq!(rig.get("kv/prod/db").await, outcome);
    }
    for path in ["kv/../sys/raw", "kv//x", ""] {
        assert_eq!(rig.get(path).await, content::failed(AnswerKind::Invalid), "{path}");
    }
    let mut odd = object("kv/prod/db");
    odd.options.insert("decode".into(), "json".into());
    assert_eq!(rig.vault.fetch(&odd, None).await.outcome, content::failed(AnswerKind::Invalid));
}

#[tokio::test]
async fn a_refusal_counts_for_the_object_only_while_the_token_is_alive() {
    let rig = rig().await;
    rig.script.route("GET /v1/kv/data/prod/db", [Answer::of(403, "{}")]);
    rig.script.route("GET /v1/auth/token/lookup-self", [Answer::of(200, "{}")]);
    assert_eq!(rig.get("kv/prod/db").await, content::failed(AnswerKind::PermissionDenied));
    rig.script.route("GET /v1/auth/token/lookup-self", [Answer::of(403, "{}")]);
    assert_eq!(rig.get("kv/prod/db").await, Outcome::Error(Failure::own_login()));
    rig.script.route("GET /v1/auth/token/lookup-self", [Answer::of(503, "{}")]);
    assert_eq!(rig.get("kv/prod/db").await, content::failed(AnswerKind::Unavailable));
    std::fs::remove_file(rig.dir.path().join("token")).unwrap();
    assert_eq!(rig.get("kv/prod/db").await, Outcome::Error(Failure::own_login()));
}

fn login(token: &str, seconds: u64) -> Answer {
    Answer::of(200, &format!(r#"{{"auth":{{"client_token":"{token}","lease_duration":{seconds}}}}}"#))
}

fn approle(settings: &mut UpstreamSettings, dir: &tempfile::TempDir) {
    secret(&dir.path().join("secret"), "s3cret");
    let secret_id_file = dir.path().join("secret");
    settings.token_file = None;
    settings.approle =
        Some(AppRoleSettings { role_id: "r".into(), secret_id_file, mount: Some("apps".into()) });
}

#[tokio::test]
async fn a_dead_token_is_replaced_by_one_login_and_the_request_repeated_once() {
    let rig = rig_with(approle).await;
    rig.script.route("POST /v1/auth/apps/login", [login("t1", 0), login("t2", 0)]);
    rig.script.route("GET /v1/kv/data/prod/db", [Answer::of(403, "{}"), Answer::of(200, SECRET)]);
    rig.script.route("GET /v1/auth/token/lookup-self", [Answer::of(403, "{}")]);
    value(&rig.get("kv/prod/db").await);
    let logins: Vec<_> =
        rig.script.asked().into_iter().filter(|asked| asked.line.starts_with("POST")).collect();
    assert_eq!(logins.len(), 2);
    assert_eq!(logins[0].body, r#"{"role_id":"r","secret_id":"s3cret"}"#);
    let reads = rig.script.asked().into_iter().filter(|asked| asked.line.contains("/kv/data/"));
    let tokens: Vec<_> = reads.map(|asked| asked.header("x-vault-token").unwrap().to_owned()).collect();
    assert_eq!(tokens, ["t1", "t2"]);
    // With the new one refused as well, that is the answer.
    rig.script.route("GET /v1/kv/data/prod/db", [Answer::of(403, "{}")]);
    assert_eq!(rig.get("kv/prod/db").await, content::failed(AnswerKind::PermissionDenied));
}

#[tokio::test]
async fn a_refused_login_is_our_own_trouble_and_not_repeated_for_every_object() {
    let rig = rig_with(approle).await;
    rig.script.route("POST /v1/auth/apps/login", [Answer::of(400, r#"{"errors":["invalid secret id"]}"#)]);
    for _ in 0..5 {
        assert_eq!(rig.get("kv/prod/db").await, Outcome::Error(Failure::own_login()));
    }
    assert_eq!(rig.script.lines(), ["POST /v1/auth/apps/login"]);
}

#[tokio::test]
async fn an_outage_at_the_login_is_an_outage() {
    let rig = rig_with(approle).await;
    rig.script.route("POST /v1/auth/apps/login", [Answer::of(503, "")]);
    assert_eq!(rig.get("kv/prod/db").await, content::failed(AnswerKind::Unavailable));
}

#[tokio::test]
async fn a_service_account_logs_in_with_its_projected_token() {
    let rig = rig_with(|settings, dir| {
        std::fs::write(dir.path().join("jwt"), "e.y.J").unwrap();
        settings.token_file = None;
        let jwt_file = Some(dir.path().join("jwt"));
        settings.kubernetes = Some(KubernetesLogin { role: "app".into(), jwt_file, mount: None });
    })
    .await;
    rig.script.route("POST /v1/auth/kubernetes/login", [login("t1", 3600)]);
    rig.script.route("GET /v1/kv/data/prod/db", [Answer::of(200, SECRET)]);
    value(&rig.get("kv/prod/db").await);
    value(&rig.get("kv/prod/db").await);
    let logins: Vec<_> =
        rig.script.asked().into_iter().filter(|asked| asked.line.starts_with("POST")).collect();
    assert_eq!(logins.len(), 1);
    assert_eq!(logins[0].body, r#"{"jwt":"e.y.J","role":"app"}"#);
}

const CREDS: &str = r#"{"lease_id":"database/creds/r/1","lease_duration":600,"renewable":true,"data":{"username":"u","password":"p"}}"#;

#[tokio::test]
async fn a_dynamic_secret_comes_with_its_lease_which_is_renewed_and_given_back() {
    let rig = rig().await;
    rig.script.route("GET /v1/database/creds/r", [Answer::of(200, CREDS)]);
    assert!(
        rig.vault.mints(&object("database/creds/r")) && !rig.vault.mints(&object("database/static-creds/r"))
    );
    let lease = rig.vault.fetch(&object("database/creds/r"), None).await.lease.unwrap();
    let expected = Lease { id: "database/creds/r/1".into(), ttl: Duration::from_secs(600), renewable: true };
    assert_eq!(lease, expected);
    rig.script.route(
        "PUT /v1/sys/leases/renew",
        [Answer::of(200, CREDS), Answer::of(400, ""), Answer::of(503, "")],
    );
    assert_eq!(rig.vault.renew(&lease).await, Ok(expected));
    assert_eq!(rig.vault.renew(&lease).await, Err(AnswerKind::Invalid));
    assert_eq!(rig.vault.renew(&lease).await, Err(AnswerKind::Unavailable));
    rig.script.route("PUT /v1/sys/leases/revoke", [Answer::of(204, "")]);
    rig.vault.revoke(&lease).await;
    let bodies: Vec<_> =
        rig.script.asked().into_iter().map(|asked| asked.body).filter(|b| !b.is_empty()).collect();
    assert_eq!(bodies[0], r#"{"lease_id":"database/creds/r/1","increment":600}"#);
    assert_eq!(bodies[3], r#"{"lease_id":"database/creds/r/1"}"#);
    let mut fixed = object("database/creds/r");
    fixed.options.insert("renew".into(), "false".into());
    assert!(!rig.vault.fetch(&fixed, None).await.lease.unwrap().renewable);
}

#[tokio::test]
async fn a_standby_sends_on_within_the_list_only_and_the_one_that_answers_comes_first() {
    let (a, b, stranger) = (Script::start().await, Script::start().await, Script::start().await);
    let dir = tempfile::tempdir().unwrap();
    let vault = Vault::new("hub", &settings(&["http://127.0.0.1:1".into(), a.url(), b.url()], &dir)).unwrap();
    for script in [&a, &b] {
        script.route("GET /v1/sys/internal/ui/mounts/kv/prod/db", [Answer::of(200, MOUNT_V2)]);
    }
    let away = Answer::of(307, "").header("location", &format!("{}/v1/kv/data/prod/db", b.url()));
    a.route("GET /v1/kv/data/prod/db", [away]);
    b.route("GET /v1/kv/data/prod/db", [Answer::of(200, SECRET)]);
    value(&vault.fetch(&object("kv/prod/db"), None).await.outcome);
    value(&vault.fetch(&object("kv/prod/db"), None).await.outcome);
    assert_eq!(a.lines().iter().filter(|line| line.contains("data")).count(), 1);
    assert_eq!(b.lines().len(), 2);
    let lost = Answer::of(307, "").header("location", &format!("{}/v1/kv/data/prod/db", stranger.url()));
    a.route("GET /v1/kv/data/prod/db", [lost.clone()]);
    b.route("GET /v1/kv/data/prod/db", [lost]);
    let outcome = vault.fetch(&object("kv/prod/db"), None).await.outcome;
    assert_eq!(outcome, content::failed(AnswerKind::Unavailable));
    assert!(stranger.lines().is_empty());
}

#[tokio::test]
async fn what_makes_something_is_not_sent_on_after_an_address_that_may_have_done_it() {
    let (a, b) = (Script::start().await, Script::start().await);
    let dir = tempfile::tempdir().unwrap();
    let vault = Vault::new("hub", &settings(&[a.url(), b.url()], &dir)).unwrap();
    a.route("GET /v1/sys/internal/ui/mounts/database/creds/r", [Answer::of(200, MOUNT_DB)]);
    a.route("GET /v1/database/creds/r", [Answer::of(500, ""), Answer::of(503, "")]);
    b.route("GET /v1/database/creds/r", [Answer::of(200, CREDS)]);
    let outcome = vault.fetch(&object("database/creds/r"), None).await.outcome;
    assert_eq!(outcome, content::failed(AnswerKind::Unavailable));
    assert!(b.lines().is_empty());
    value(&vault.fetch(&object("database/creds/r"), None).await.outcome);
}

#[test]
fn settings_that_cannot_be_used_are_told_by_their_key() {
    crate::upstream::tests::scripted::crypto();
    let dir = tempfile::tempdir().unwrap();
    let text = |settings: &UpstreamSettings| Vault::new("v", settings).err().unwrap().to_string();
    let good = settings(&["https://vault:8200".into()], &dir);
    assert!(Vault::new("v", &good).is_ok());
    assert_eq!(text(&UpstreamSettings { addrs: vec![], ..good.clone() }), "upstream.v.addrs: is missing");
    let odd = UpstreamSettings { addrs: vec!["vault:8200".into()], ..good.clone() };
    assert!(text(&odd).starts_with("upstream.v.addrs: holds what is no"));
    assert!(text(&UpstreamSettings { token_file: None, ..good.clone() }).contains("another way to log in"));
    let none = UpstreamSettings { ca_file: Some("/dev/null".into()), ..good };
    assert_eq!(text(&none), "upstream.v.ca_file: holds no certificates");
}
