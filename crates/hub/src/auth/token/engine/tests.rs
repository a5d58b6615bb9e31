use serde_json::json;

use super::*;
use crate::auth::token::{NewToken, Tokens};
use crate::logical::{AuthGrant, Body};
use crate::mount::LeaseTtls;
use crate::testing::{hub, request};

/// A caller: a token and its text.
#[derive(Clone)]
struct Caller {
    token: Arc<Token>,
    text: String,
}

async fn caller_with(cx: &Cx, policies: &[&str]) -> Caller {
    let policies = policies.iter().map(|policy| (*policy).to_owned()).collect();
    let new = NewToken { policies, ..NewToken::orphan("auth/test/login", LeaseTtls::default()) };
    let created = cx.hub.tokens.create(cx, new).await.unwrap();
    let text = created.grant.client_token.expose_secret().to_owned();
    Caller { token: Arc::new(created.token), text }
}

async fn root(cx: &Cx) -> Caller {
    let text = cx.hub.tokens.create_root(&cx.storage, None).await.unwrap().expose_secret().to_owned();
    let token = cx.hub.tokens.lookup(&cx.storage, &text).unwrap().unwrap();
    Caller { token: Arc::new(token), text }
}

async fn call(
    cx: &Cx,
    by: &Caller,
    operation: Operation,
    rest: &str,
    body: Value,
) -> Result<Response, ApiError> {
    let request = Request {
        token: Some(Arc::clone(&by.token)),
        client_token: Some(by.text.clone().into()),
        ..request(operation, "auth/token/", rest, body)
    };
    engine().handle(cx, &MountEntry { path: "auth/token/".into(), ..MountEntry::default() }, &request).await
}

fn logical(response: Response) -> Logical {
    match response.body {
        Body::Logical(logical) => *logical,
        other => panic!("no envelope: {other:?}"),
    }
}

async fn make(cx: &Cx, by: &Caller, rest: &str, body: Value) -> Result<(AuthGrant, Caller), ApiError> {
    let auth = *logical(call(cx, by, Operation::Write, rest, body).await?).auth.unwrap();
    let text = auth.client_token.expose_secret().to_owned();
    let token = cx.hub.tokens.lookup(&cx.storage, &text)?.unwrap();
    Ok((auth, Caller { token: Arc::new(token), text }))
}

async fn refused(cx: &Cx, by: &Caller, rest: &str, body: Value) -> (u16, String) {
    let error = call(cx, by, Operation::Write, rest, body).await.unwrap_err();
    (error.status(), error.errors().first().cloned().unwrap_or_default())
}

#[tokio::test]
async fn a_token_is_made_looked_up_renewed_and_revoked() {
    let (_, hub, cx) = hub();
    let root = root(&cx).await;
    let body = json!({"policies": ["a", "B"], "ttl": "1h", "meta": {"k": "v"}, "display_name": "x y"});
    let (auth, child) = make(&cx, &root, "create", body).await.unwrap();
    assert_eq!(auth.policies, ["a", "b", "default"]);
    assert_eq!((auth.lease_duration, auth.renewable, auth.orphan), (3600, true, false));

    hub.tokens.advance(100);
    let found = call(&cx, &root, Operation::Write, "lookup", json!({"token": child.text})).await.unwrap();
    let found = logical(found).data.unwrap();
    for (field, value) in [
        ("id", json!(child.text)),
        ("accessor", json!(auth.accessor)),
        ("creation_ttl", json!(3600)),
        ("ttl", json!(3500)),
        ("display_name", json!("token-x-y")),
        ("meta", json!({"k": "v"})),
        ("orphan", json!(false)),
        ("path", json!("auth/token/create")),
        ("type", json!("service")),
        ("num_uses", json!(0)),
        ("explicit_max_ttl", json!(0)),
        ("entity_id", json!("")),
    ] {
        assert_eq!(found[field], value, "{field}");
    }
    let by = json!({"accessor": auth.accessor});
    let found = logical(call(&cx, &root, Operation::Write, "lookup-accessor", by.clone()).await.unwrap());
    assert_eq!(found.data.unwrap()["id"], "");

    let renewed =
        call(&cx, &child, Operation::Write, "renew-self", json!({"increment": "2h"})).await.unwrap();
    let renewed = logical(renewed).auth.unwrap();
    assert_eq!(renewed.lease_duration, 7200);
    assert_eq!(renewed.client_token.expose_secret(), child.text);

    call(&cx, &root, Operation::Write, "revoke-accessor", by.clone()).await.unwrap();
    assert_eq!(refused(&cx, &root, "lookup", json!({"token": child.text})).await, (403, "bad token".into()));
    assert_eq!(refused(&cx, &root, "lookup-accessor", by).await, (400, "invalid accessor".into()));
    call(&cx, &root, Operation::Write, "revoke", json!({"token": child.text})).await.unwrap();
    let left = logical(call(&cx, &root, Operation::List, "accessors", json!({})).await.unwrap());
    assert_eq!(left.data.unwrap()["keys"], json!([root.token.accessor]));
}

#[tokio::test]
async fn a_child_has_no_more_than_its_parent() {
    let (_, _, cx) = hub();
    let parent = caller_with(&cx, &["a", "b"]).await;
    let (auth, _) = make(&cx, &parent, "create", json!({})).await.unwrap();
    assert_eq!(auth.policies, ["a", "b", "default"]);
    let (auth, _) = make(&cx, &parent, "create", json!({"policies": "a"})).await.unwrap();
    assert_eq!(auth.policies, ["a", "default"]);
    let subset = (400, "child policies must be subset of parent".to_owned());
    assert_eq!(refused(&cx, &parent, "create", json!({"policies": ["c"]})).await, subset);
    for body in [
        json!({"policies": ["root"]}),
        json!({"no_parent": true}),
        json!({"period": "1h"}),
        json!({"id": "mine"}),
        json!({"num_uses": -1}),
        json!({"ttl": "-1h"}),
        json!({"type": "odd"}),
        json!({"type": "batch", "num_uses": 3}),
    ] {
        assert_eq!(refused(&cx, &parent, "create", body.clone()).await.0, 400, "{body}");
    }
    let sudo = "path \"auth/token/create\" {\n capabilities = [\"update\", \"sudo\"]\n}";
    cx.hub.policies.write(&cx, "b", sudo).await.unwrap();
    let (auth, _) =
        make(&cx, &parent, "create", json!({"policies": ["c"], "no_parent": true})).await.unwrap();
    assert_eq!((auth.policies, auth.orphan), (vec!["c".to_owned(), "default".to_owned()], true));
}

#[tokio::test]
async fn roots_choose_ids_and_do_not_expire() {
    let (_, _, cx) = hub();
    let root = root(&cx).await;
    let (auth, child) = make(&cx, &root, "create", json!({"id": "my-id"})).await.unwrap();
    assert_eq!((child.text.as_str(), auth.lease_duration, auth.renewable), ("my-id", 0, false));
    assert_eq!(child.token.expires, None);
    assert_eq!(refused(&cx, &root, "create", json!({"id": "my-id"})).await.0, 400);
    assert_eq!(refused(&cx, &root, "create", json!({"id": "hvs.x"})).await.0, 400);
    let (_, short) = make(&cx, &root, "create", json!({"ttl": "1h"})).await.unwrap();
    assert!(short.token.expires.is_some());
    assert_eq!(
        refused(&cx, &short, "create", json!({})).await.1,
        "expiring root tokens cannot create non-expiring root tokens"
    );
    let renew = refused(&cx, &root, "renew-self", json!({})).await;
    assert_eq!(renew, (400, "lease is not renewable".to_owned()));
}

#[tokio::test]
async fn batch_tokens_work_without_a_record_and_make_nothing() {
    let (_, hub, cx) = hub();
    let parent = caller_with(&cx, &["a"]).await;
    let (auth, batch) = make(&cx, &parent, "create", json!({"type": "batch", "ttl": "1h"})).await.unwrap();
    assert!(batch.text.starts_with("hvb."));
    assert_eq!((auth.accessor.as_str(), auth.token_type, auth.renewable), ("", "batch", false));
    assert_eq!(cx.storage.count("token/id/").unwrap(), 1);
    for rest in ["create", "revoke-self", "renew-self"] {
        assert_eq!(refused(&cx, &batch, rest, json!({})).await.0, 400, "{rest}");
    }
    hub.tokens.advance(1800);
    assert!(hub.tokens.lookup(&cx.storage, &batch.text).unwrap().is_some());
    hub.tokens.revoke_tree(&cx, &parent.token.id).await.unwrap();
    assert!(hub.tokens.lookup(&cx.storage, &batch.text).unwrap().is_none());
}

#[tokio::test]
async fn roles_decide_what_tokens_are_made_of() {
    let (_, _, cx) = hub();
    let caller = caller_with(&cx, &["maker"]).await;
    let role = json!({
        "allowed_policies": "a,b", "orphan": true, "token_period": "1h", "path_suffix": "team",
        "renewable": true, "token_num_uses": 5
    });
    assert_eq!(refused(&cx, &caller, "create/r", json!({})).await.0, 400);
    call(&cx, &caller, Operation::Write, "roles/r", role).await.unwrap();
    let (auth, token) = make(&cx, &caller, "create/r", json!({})).await.unwrap();
    assert_eq!(auth.policies, ["a", "b", "default"]);
    assert_eq!((auth.orphan, auth.lease_duration, auth.num_uses), (true, 3600, 5));
    assert_eq!((token.token.path.as_str(), token.token.role.as_str()), ("auth/token/create/r/team", "r"));
    assert_eq!(refused(&cx, &caller, "create/r", json!({"policies": "maker"})).await.0, 400);
    let (auth, _) = make(&cx, &caller, "create/r", json!({"policies": "a,default"})).await.unwrap();
    assert_eq!(auth.policies, ["a", "default"]);

    let shown = logical(call(&cx, &caller, Operation::Read, "roles/r", json!({})).await.unwrap());
    assert_eq!(shown.data.unwrap()["token_period"], 3600);
    let keys = logical(call(&cx, &caller, Operation::List, "roles/", json!({})).await.unwrap());
    assert_eq!(keys.data.unwrap()["keys"], json!(["r"]));
    call(&cx, &caller, Operation::Delete, "roles/r", json!({})).await.unwrap();
    assert_eq!(call(&cx, &caller, Operation::List, "roles/", json!({})).await.unwrap_err().status(), 404);

    let ban = json!({"disallowed_policies": "maker"});
    call(&cx, &caller, Operation::Write, "roles/ban", ban).await.unwrap();
    assert_eq!(refused(&cx, &caller, "create/ban", json!({})).await.0, 400);
}

#[tokio::test]
async fn lives_are_capped_with_a_warning() {
    let (_, _, cx) = hub();
    let root = root(&cx).await;
    let body = json!({"policies": "a", "ttl": "30m", "explicit_max_ttl": "5m"});
    let made = logical(call(&cx, &root, Operation::Write, "create", body).await.unwrap());
    assert_eq!((made.auth.unwrap().lease_duration, made.warnings.len()), (300, 1));
    let body = json!({"policies": "a", "ttl": "10000h"});
    let made = logical(call(&cx, &root, Operation::Write, "create", body).await.unwrap());
    assert_eq!((made.auth.unwrap().lease_duration, made.warnings.len()), (768 * 3600, 1));
    let (auth, periodic) = make(&cx, &root, "create", json!({"period": "30m"})).await.unwrap();
    assert_eq!(auth.lease_duration, 1800);
    assert_eq!(Tokens::longest_life(&periodic.token, periodic.token.created), None);
}

#[tokio::test]
async fn unknown_paths_and_verbs_are_told_apart() {
    let (_, _, cx) = hub();
    let root = root(&cx).await;
    for (operation, rest, status) in [
        (Operation::Read, "create", 405),
        (Operation::Delete, "lookup", 405),
        (Operation::Read, "accessors", 405),
        (Operation::Read, "nothing", 404),
        (Operation::Read, "roles/none", 404),
        (Operation::Patch, "roles/none", 405),
        (Operation::Read, "lookup-self", 200),
    ] {
        let status_of =
            call(&cx, &root, operation, rest, json!({})).await.map_or_else(|e| e.status(), |_| 200);
        assert_eq!(status_of, status, "{operation:?} {rest}");
    }
    assert!(engine().sudo("accessors/") && engine().sudo("revoke-orphan") && !engine().sudo("create"));
}

#[tokio::test]
async fn a_child_has_no_default_policy_where_its_parent_has_none() {
    let (_, _hub, cx) = hub();
    let new = NewToken {
        policies: vec!["a".into()],
        no_default_policy: true,
        ..NewToken::orphan("auth/test/login", LeaseTtls::default())
    };
    let created = cx.hub.tokens.create(&cx, new).await.unwrap();
    let text = created.grant.client_token.expose_secret().to_owned();
    let bare = Caller { token: Arc::new(created.token), text };
    let (auth, _) = make(&cx, &bare, "create", json!({})).await.unwrap();
    assert_eq!(auth.policies, ["a"]);
    let asked = refused(&cx, &bare, "create", json!({"policies": ["default"]})).await;
    assert_eq!(asked, (400, "child policies must be subset of parent".into()));
    let (auth, _) = make(&cx, &root(&cx).await, "create", json!({"policies": ["a"]})).await.unwrap();
    assert_eq!(auth.policies, ["a", "default"]);
}

#[tokio::test]
async fn a_login_is_not_renewed_once_its_user_or_role_is_gone() {
    use crate::mount::change::{self, Family};
    let (_, hub, cx) = hub();
    for (kind, path, note, below) in [
        ("userpass", "auth/userpass/", "username", "users/ann"),
        ("approle", "auth/approle/", "role_name", "role/ann"),
    ] {
        let body = json!({"type": kind}).as_object().cloned().unwrap();
        change::enable(&cx, Family::Auth, kind, &crate::logical::Data::new(body)).await.unwrap();
        let new = NewToken {
            meta: std::collections::BTreeMap::from([(note.to_owned(), "ann".to_owned())]),
            ..NewToken::orphan(format!("{path}login"), LeaseTtls::default())
        };
        let created = cx.hub.tokens.create(&cx, new).await.unwrap();
        let text = created.grant.client_token.expose_secret().to_owned();
        let login = Caller { token: Arc::new(created.token), text };
        let (status, why) = refused(&cx, &login, "renew-self", json!({})).await;
        assert!(status == 400 && why.contains("does not exist any more"), "{kind}: {status} {why}");
        let route = hub.mounts.route(&format!("{path}{below}")).unwrap().unwrap();
        let body = json!({"password": "x"});
        let write = request(Operation::Write, path, below, body);
        route.engine.handle(&cx, &route.mount, &write).await.unwrap();
        call(&cx, &login, Operation::Write, "renew-self", json!({})).await.unwrap();
    }
}
