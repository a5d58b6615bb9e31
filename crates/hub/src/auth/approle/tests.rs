use serde_json::{Map, Value, json};

use super::*;
use crate::logical::{AuthGrant, Body, Logical};
use crate::testing::{hub, request};

fn mount() -> MountEntry {
    MountEntry { path: "auth/approle/".into(), uuid: "u1".into(), ..MountEntry::default() }
}

fn logical(response: Response) -> Logical {
    match response.body {
        Body::Logical(logical) => *logical,
        Body::Empty => Logical::default(),
        other => panic!("no envelope: {other:?}"),
    }
}

async fn call_from(
    cx: &Cx,
    remote: &str,
    operation: Operation,
    rest: &str,
    body: Value,
) -> Result<Logical, ApiError> {
    let request =
        Request { remote: remote.parse().unwrap(), ..request(operation, "auth/approle/", rest, body) };
    engine().handle(cx, &mount(), &request).await.map(logical)
}

async fn call(cx: &Cx, operation: Operation, rest: &str, body: Value) -> Result<Logical, ApiError> {
    call_from(cx, "127.0.0.1", operation, rest, body).await
}

async fn write(cx: &Cx, rest: &str, body: Value) -> Map<String, Value> {
    call(cx, Operation::Write, rest, body).await.unwrap().data.unwrap_or_default()
}

async fn role_id(cx: &Cx, name: &str) -> Value {
    let read = call(cx, Operation::Read, &format!("role/{name}/role-id"), json!({})).await.unwrap();
    read.data.unwrap()["role_id"].clone()
}

async fn login(cx: &Cx, remote: &str, role_id: &Value, secret_id: &Value) -> Result<AuthGrant, String> {
    let body = json!({"role_id": role_id, "secret_id": secret_id});
    match call_from(cx, remote, Operation::Write, "login", body).await {
        Ok(logical) => Ok(*logical.auth.unwrap()),
        Err(error) => {
            assert_eq!(error.status(), 400);
            Err(error.errors()[0].clone())
        }
    }
}

const REFUSED: &str = "invalid role or secret ID";

#[tokio::test]
async fn a_role_and_its_secret_id_log_in() {
    let (_, hub, cx) = hub();
    let body = json!({"token_policies": ["p"], "token_ttl": "20m", "token_max_ttl": "30m"});
    write(&cx, "role/App", body).await;
    let secret = write(&cx, "role/app/secret-id", json!({"metadata": "{\"team\": \"blue\"}"})).await;
    assert_eq!((&secret["secret_id_ttl"], &secret["secret_id_num_uses"]), (&json!(0), &json!(0)));
    let id = role_id(&cx, "app").await;
    let auth = login(&cx, "127.0.0.1", &id, &secret["secret_id"]).await.unwrap();
    assert_eq!(auth.policies, ["default", "p"]);
    assert_eq!((auth.lease_duration, auth.renewable, auth.orphan), (1200, true, true));
    assert_eq!((auth.metadata["team"].as_str(), auth.metadata["role_name"].as_str()), ("blue", "app"));
    let token = hub.tokens.lookup_accessor(&cx.storage, &auth.accessor).unwrap().unwrap();
    assert_eq!((token.path.as_str(), token.display_name.as_str()), ("auth/approle/login", "approle"));
    assert_eq!(token.max_ttl, 1800);
}

#[tokio::test]
async fn every_refusal_has_the_same_text() {
    let (_, _, cx) = hub();
    write(&cx, "role/app", json!({})).await;
    let id = role_id(&cx, "app").await;
    let secret =
        write(&cx, "role/app/secret-id", json!({"cidr_list": "10.0.0.0/8"})).await["secret_id"].clone();
    assert_eq!(login(&cx, "127.0.0.1", &id, &secret).await.unwrap_err(), REFUSED);
    assert_eq!(login(&cx, "10.1.2.3", &id, &json!("wrong")).await.unwrap_err(), REFUSED);
    assert_eq!(login(&cx, "10.1.2.3", &json!("wrong"), &secret).await.unwrap_err(), REFUSED);
    assert_eq!(login(&cx, "10.1.2.3", &id, &json!("")).await.unwrap_err(), "missing secret_id");
    assert_eq!(login(&cx, "10.1.2.3", &json!("wrong"), &json!(null)).await.unwrap_err(), "missing secret_id");
    assert_eq!(login(&cx, "10.1.2.3", &json!(null), &secret).await.unwrap_err(), "missing role_id");
    login(&cx, "10.1.2.3", &id, &secret).await.unwrap();

    write(&cx, "role/other", json!({})).await;
    let other = write(&cx, "role/other/secret-id", json!({})).await["secret_id"].clone();
    assert_eq!(login(&cx, "10.1.2.3", &id, &other).await.unwrap_err(), REFUSED);
}

#[tokio::test]
async fn uses_are_counted_exactly_under_concurrency() {
    let (_, _, cx) = hub();
    write(&cx, "role/app", json!({"secret_id_num_uses": 3})).await;
    let id = role_id(&cx, "app").await;
    let secret = write(&cx, "role/app/secret-id", json!({})).await["secret_id"].clone();
    let tries = (0..12).map(|_| login(&cx, "127.0.0.1", &id, &secret));
    let done = futures_util::future::join_all(tries).await;
    assert_eq!(done.iter().filter(|result| result.is_ok()).count(), 3);
    let list = call(&cx, Operation::List, "role/app/secret-id/", json!({})).await.unwrap_err();
    assert_eq!(list.status(), 404);
    assert_eq!(cx.storage.count("logical/u1/secret/").unwrap(), 0);
}

#[tokio::test]
async fn secret_ids_expire_and_are_swept() {
    let (_, hub, cx) = hub();
    write(&cx, "role/app", json!({"secret_id_ttl": "10m"})).await;
    let id = role_id(&cx, "app").await;
    let first = write(&cx, "role/app/secret-id", json!({})).await;
    assert_eq!(first["secret_id_ttl"], 600);
    let longer = call(&cx, Operation::Write, "role/app/secret-id", json!({"ttl": "1h"})).await;
    assert_eq!(longer.unwrap_err().status(), 400);
    hub.tokens.advance(601);
    assert_eq!(login(&cx, "127.0.0.1", &id, &first["secret_id"]).await.unwrap_err(), REFUSED);
    write(&cx, "role/app/secret-id", json!({})).await;
    for prefix in ["secret/", "accessor/", "due/"] {
        assert_eq!(cx.storage.count(&format!("logical/u1/{prefix}")).unwrap(), 1, "{prefix}");
    }
}

#[tokio::test]
async fn secret_ids_are_looked_up_and_destroyed() {
    let (_, _, cx) = hub();
    write(&cx, "role/app", json!({})).await;
    let id = role_id(&cx, "app").await;
    let body = json!({"secret_id": "mine", "cidr_list": ["127.0.0.1/32"], "metadata": {"k": "v"}});
    let made = write(&cx, "role/app/custom-secret-id", body.clone()).await;
    assert_eq!(made["secret_id"], "mine");
    assert_eq!(
        call(&cx, Operation::Write, "role/app/custom-secret-id", body).await.unwrap_err().status(),
        400
    );
    let by_text = json!({"secret_id": "mine"});
    let found = write(&cx, "role/app/secret-id/lookup", by_text.clone()).await;
    assert_eq!((&found["metadata"], &found["secret_id_num_uses"]), (&json!({"k": "v"}), &json!(0)));
    assert!(!found.contains_key("secret_id"));
    let by_accessor = json!({"secret_id_accessor": made["secret_id_accessor"]});
    let found = write(&cx, "role/app/secret-id-accessor/lookup", by_accessor.clone()).await;
    assert_eq!(found["cidr_list"], json!(["127.0.0.1/32"]));
    let list = call(&cx, Operation::List, "role/app/secret-id/", json!({})).await.unwrap();
    assert_eq!(list.data.unwrap()["keys"], json!([made["secret_id_accessor"]]));

    write(&cx, "role/app/secret-id-accessor/destroy", by_accessor.clone()).await;
    assert!(write(&cx, "role/app/secret-id/lookup", by_text.clone()).await.is_empty());
    let gone = call(&cx, Operation::Write, "role/app/secret-id-accessor/lookup", by_accessor).await;
    assert_eq!(gone.unwrap_err().status(), 404);
    assert_eq!(login(&cx, "127.0.0.1", &id, &json!("mine")).await.unwrap_err(), REFUSED);
    call(&cx, Operation::Delete, "role/app/secret-id/destroy", by_text).await.unwrap();
    let odd = json!({"secret_id_accessor": "../../x"});
    assert_eq!(
        call(&cx, Operation::Write, "role/app/secret-id-accessor/lookup", odd).await.unwrap_err().status(),
        404
    );
}

#[tokio::test]
async fn role_ids_can_be_chosen_once() {
    let (_, _, cx) = hub();
    write(&cx, "role/a", json!({})).await;
    write(&cx, "role/b", json!({})).await;
    let old = role_id(&cx, "a").await;
    write(&cx, "role/a/role-id", json!({"role_id": "mine"})).await;
    assert_eq!(role_id(&cx, "a").await, "mine");
    let taken = call(&cx, Operation::Write, "role/b/role-id", json!({"role_id": "mine"})).await;
    assert_eq!(taken.unwrap_err().status(), 400);
    let secret = write(&cx, "role/a/secret-id", json!({})).await["secret_id"].clone();
    assert_eq!(login(&cx, "127.0.0.1", &old, &secret).await.unwrap_err(), REFUSED);
    login(&cx, "127.0.0.1", &json!("mine"), &secret).await.unwrap();
}

#[tokio::test]
async fn a_deleted_role_leaves_nothing_that_opens_a_new_one() {
    let (_, _, cx) = hub();
    write(&cx, "role/app", json!({"role_id": "r"})).await;
    let secret = write(&cx, "role/app/secret-id", json!({})).await["secret_id"].clone();
    call(&cx, Operation::Delete, "role/app", json!({})).await.unwrap();
    assert_eq!(cx.storage.count("logical/u1/").unwrap(), 0);
    assert_eq!(call(&cx, Operation::Read, "role/app", json!({})).await.unwrap_err().status(), 404);
    write(&cx, "role/app", json!({"role_id": "r"})).await;
    assert_eq!(login(&cx, "127.0.0.1", &json!("r"), &secret).await.unwrap_err(), REFUSED);
}

#[tokio::test]
async fn a_role_without_secret_ids_needs_networks() {
    let (_, _, cx) = hub();
    let open = call(&cx, Operation::Write, "role/app", json!({"bind_secret_id": false})).await;
    assert_eq!(open.unwrap_err().status(), 400);
    let bound = json!({"bind_secret_id": false, "token_bound_cidrs": "10.0.0.0/8", "role_id": "r"});
    write(&cx, "role/app", bound).await;
    assert_eq!(login(&cx, "127.0.0.1", &json!("r"), &json!(null)).await.unwrap_err(), REFUSED);
    login(&cx, "10.0.0.1", &json!("r"), &json!(null)).await.unwrap();
    assert_eq!(call(&cx, Operation::Write, "role/app/secret-id", json!({})).await.unwrap_err().status(), 400);
}

#[tokio::test]
async fn removing_the_method_revokes_its_tokens() {
    let (_, hub, cx) = hub();
    write(&cx, "role/app", json!({"role_id": "r"})).await;
    let secret = write(&cx, "role/app/secret-id", json!({})).await["secret_id"].clone();
    let auth = login(&cx, "127.0.0.1", &json!("r"), &secret).await.unwrap();
    engine().unmounted(&cx, &mount()).await.unwrap();
    assert!(hub.tokens.lookup_accessor(&cx.storage, &auth.accessor).unwrap().is_none());
}

#[tokio::test]
async fn batch_tokens_come_from_batch_roles() {
    let (_, _, cx) = hub();
    write(&cx, "role/app", json!({"role_id": "r", "token_type": "batch"})).await;
    let shown = call(&cx, Operation::Read, "role/app", json!({})).await.unwrap().data.unwrap();
    assert_eq!(shown["token_type"], "batch");
    let secret = write(&cx, "role/app/secret-id", json!({})).await["secret_id"].clone();
    let auth = login(&cx, "127.0.0.1", &json!("r"), &secret).await.unwrap();
    assert_eq!((auth.token_type, auth.accessor.as_str()), ("batch", ""));
}

#[tokio::test]
async fn paths_and_verbs_are_told_apart() {
    let (_, _, cx) = hub();
    write(&cx, "role/app", json!({})).await;
    for (operation, rest, status) in [
        (Operation::Read, "login", 405),
        (Operation::Read, "nothing", 404),
        (Operation::Read, "role/app/nothing", 404),
        (Operation::Read, "role/app/secret-id", 405),
        (Operation::Write, "role/none/secret-id", 400),
        (Operation::Read, "role/none", 404),
        (Operation::Read, "role", 405),
        (Operation::List, "role/", 200),
        (Operation::Patch, "role/app", 405),
    ] {
        let got = call(&cx, operation, rest, json!({})).await.map_or_else(|error| error.status(), |_| 200);
        assert_eq!(got, status, "{operation:?} {rest}");
    }
    let engine = engine();
    assert!(engine.unauthenticated(Operation::Write, "login"));
    assert!(!engine.unauthenticated(Operation::Write, "role/app"));
    let existing = request(Operation::Write, "auth/approle/", "role/APP", json!({}));
    assert!(engine.exists(&cx, &mount(), &existing).await.unwrap());
}
