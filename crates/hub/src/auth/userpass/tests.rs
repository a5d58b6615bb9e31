use serde_json::{Value, json};

use super::*;
use crate::logical::{AuthGrant, Body, Logical};
use crate::testing::{hub, request};

fn mount() -> MountEntry {
    MountEntry { path: "auth/userpass/".into(), uuid: "u2".into(), ..MountEntry::default() }
}

async fn call_from(
    cx: &Cx,
    remote: &str,
    operation: Operation,
    rest: &str,
    body: Value,
) -> Result<Logical, ApiError> {
    let request =
        Request { remote: remote.parse().unwrap(), ..request(operation, "auth/userpass/", rest, body) };
    Ok(match engine().handle(cx, &mount(), &request).await?.body {
        Body::Logical(logical) => *logical,
        Body::Empty => Logical::default(),
        other => panic!("no envelope: {other:?}"),
    })
}

async fn call(cx: &Cx, operation: Operation, rest: &str, body: Value) -> Result<Logical, ApiError> {
    call_from(cx, "127.0.0.1", operation, rest, body).await
}

async fn login(cx: &Cx, name: &str, password: &str) -> Result<AuthGrant, String> {
    match call(cx, Operation::Write, &format!("login/{name}"), json!({"password": password})).await {
        Ok(logical) => Ok(*logical.auth.unwrap()),
        Err(error) => {
            assert_eq!(error.status(), 400);
            Err(error.errors()[0].clone())
        }
    }
}

const REFUSED: &str = "invalid username or password";

#[tokio::test]
async fn a_user_logs_in_with_the_right_password_only() {
    let (_, hub, cx) = hub();
    let body = json!({"password": "pw", "policies": "not_root", "ttl": "10s"});
    call(&cx, Operation::Write, "users/Ann", body).await.unwrap();
    let auth = login(&cx, "ann", "pw").await.unwrap();
    assert_eq!((auth.lease_duration, auth.metadata["username"].as_str()), (10, "ann"));
    assert_eq!(auth.policies, ["default", "not_root"]);
    let token = hub.tokens.lookup_accessor(&cx.storage, &auth.accessor).unwrap().unwrap();
    assert_eq!(
        (token.path.as_str(), token.display_name.as_str()),
        ("auth/userpass/login/ann", "userpass-ann")
    );
    for (name, password) in [("ann", "PW"), ("bob", "pw"), ("ann", "pw ")] {
        assert_eq!(login(&cx, name, password).await.unwrap_err(), REFUSED, "{name} {password}");
    }
    assert_eq!(login(&cx, "ann", "").await.unwrap_err(), "missing password");
}

#[tokio::test]
async fn users_are_changed_read_listed_and_deleted() {
    let (_, _, cx) = hub();
    let bare = call(&cx, Operation::Write, "users/ann", json!({"policies": "a"})).await.unwrap_err();
    assert_eq!((bare.status(), bare.errors()[0].as_str()), (400, "missing password"));
    call(&cx, Operation::Write, "users/ann", json!({"password": "pw", "policies": "a"})).await.unwrap();
    call(&cx, Operation::Write, "users/ann", json!({"policies": "b"})).await.unwrap();
    let shown = call(&cx, Operation::Read, "users/ann", json!({})).await.unwrap().data.unwrap();
    assert_eq!((&shown["policies"], &shown["token_policies"]), (&json!(["b"]), &json!(["b"])));
    assert!(!shown.values().any(|value| value.to_string().contains("argon2")));
    call(&cx, Operation::Write, "users/ann/password", json!({"password": "new"})).await.unwrap();
    assert_eq!(login(&cx, "ann", "pw").await.unwrap_err(), REFUSED);
    login(&cx, "ann", "new").await.unwrap();
    call(&cx, Operation::Write, "users/ann/policies", json!({"policies": "c"})).await.unwrap();
    assert_eq!(login(&cx, "ann", "new").await.unwrap().policies, ["c", "default"]);
    for (rest, status) in [("users/bob/password", 400), ("users/ann/password", 400)] {
        assert_eq!(call(&cx, Operation::Write, rest, json!({})).await.unwrap_err().status(), status);
    }

    let keys = call(&cx, Operation::List, "users/", json!({})).await.unwrap().data.unwrap();
    assert_eq!(keys["keys"], json!(["ann"]));
    call(&cx, Operation::Delete, "users/ann", json!({})).await.unwrap();
    assert_eq!(login(&cx, "ann", "new").await.unwrap_err(), REFUSED);
    assert_eq!(call(&cx, Operation::List, "users/", json!({})).await.unwrap_err().status(), 404);
    assert_eq!(call(&cx, Operation::Read, "users/ann", json!({})).await.unwrap_err().status(), 404);
}

#[tokio::test]
async fn a_wrong_address_reads_like_a_wrong_password() {
    let (_, _, cx) = hub();
    let body = json!({"password": "pw", "token_bound_cidrs": ["10.0.0.0/8"]});
    call(&cx, Operation::Write, "users/ann", body).await.unwrap();
    assert_eq!(login(&cx, "ann", "pw").await.unwrap_err(), REFUSED);
    let password = json!({"password": "pw"});
    assert!(call_from(&cx, "10.0.0.9", Operation::Write, "login/ann", password).await.is_ok());
}

#[tokio::test]
async fn only_logins_are_open() {
    let (_, _, cx) = hub();
    let engine = engine();
    assert!(engine.unauthenticated(Operation::Write, "login/ann"));
    assert!(!engine.unauthenticated(Operation::Write, "login/"));
    assert!(!engine.unauthenticated(Operation::Write, "users/ann"));
    for (operation, rest, status) in [
        (Operation::Read, "login/ann", 405),
        (Operation::Write, "login/", 404),
        (Operation::Write, "nothing", 404),
        (Operation::Read, "users", 405),
        (Operation::Read, "users/ann/password", 405),
    ] {
        let got = call(&cx, operation, rest, json!({})).await.map_or_else(|error| error.status(), |_| 200);
        assert_eq!(got, status, "{operation:?} {rest}");
    }
}

#[tokio::test]
async fn an_enabled_method_serves_and_a_disabled_one_takes_its_tokens_along() {
    use crate::mount::change::{Family, disable, enable};

    let (_, hub, cx) = hub();
    let body = json!({"type": "userpass"});
    let data = crate::logical::Data::new(body.as_object().unwrap().clone());
    enable(&cx, Family::Auth, "people", &data).await.unwrap();
    let send = async |rest: &str, body: Value| {
        let route = hub.mounts.route(&format!("auth/people/{rest}")).unwrap().unwrap();
        let request = request(Operation::Write, "auth/people/", rest, body);
        route.engine.handle(&cx, &route.mount, &request).await.unwrap()
    };
    send("users/ann", json!({"password": "pw"})).await;
    let Body::Logical(logical) = send("login/ann", json!({"password": "pw"})).await.body else { panic!() };
    let accessor = logical.auth.unwrap().accessor;
    assert!(hub.tokens.lookup_accessor(&cx.storage, &accessor).unwrap().is_some());

    disable(&cx, Family::Auth, "people").await.unwrap();
    assert!(hub.tokens.lookup_accessor(&cx.storage, &accessor).unwrap().is_none());
    assert!(hub.mounts.route("auth/people/login/ann").unwrap().is_none());
    assert_eq!(cx.storage.count("logical/").unwrap(), 0);
}
