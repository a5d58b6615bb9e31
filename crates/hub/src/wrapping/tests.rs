use std::sync::Arc;

use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};

use super::*;
use crate::auth::token::NewToken;
use crate::logical::{LeaseTicket, Operation, Request};
use crate::mount::MountEntry;
use crate::testing::{hub, request};

fn answer() -> Response {
    let created = json!({"username": "u", "password": "p"});
    Logical {
        lease: Some(LeaseTicket { id: "database/creds/r/1".into(), duration: 60, renewable: true }),
        data: created.as_object().cloned(),
        warnings: vec!["careful".into()],
        ..Logical::default()
    }
    .into()
}

fn logical(response: Response) -> Logical {
    match response.body {
        Body::Logical(logical) => *logical,
        other => panic!("no envelope: {other:?}"),
    }
}

async fn wrapped(cx: &Cx) -> WrapInfo {
    let wrapped = logical(wrap(cx, answer(), 60, "database/creds/r").await.unwrap());
    assert!(wrapped.data.is_none() && wrapped.lease.is_none() && wrapped.auth.is_none());
    wrapped.wrap_info.unwrap()
}

#[tokio::test]
async fn an_answer_is_fetched_once() {
    let (_, _, cx) = hub();
    let info = wrapped(&cx).await;
    assert_eq!((info.ttl, info.creation_path.as_str()), (60, "database/creds/r"));
    let known = lookup(&cx, &info.token).unwrap();
    assert_eq!((known.creation_ttl, &known.creation_time), (60, &info.creation_time));

    let first = logical(unwrap(&cx, &info.token).await.unwrap());
    assert_eq!(first.lease.unwrap().id, "database/creds/r/1");
    assert_eq!(first.data.unwrap()["password"], "p");
    assert_eq!(first.warnings, ["careful"]);

    let second = unwrap(&cx, &info.token).await.unwrap_err();
    assert_eq!(
        (second.status(), second.errors()),
        (400, &["wrapping token is not valid or does not exist".to_owned()][..])
    );
    assert!(lookup(&cx, &info.token).is_err());
    assert_eq!(cx.storage.count("token/").unwrap(), 0);
    assert_eq!(cx.storage.count("cubbyhole/").unwrap(), 0);
}

#[tokio::test]
async fn of_many_callers_one_gets_it() {
    let (_, _, cx) = hub();
    let info = wrapped(&cx).await;
    let tries = (0..16).map(|_| unwrap(&cx, &info.token));
    let got = futures_util::future::join_all(tries).await.into_iter().filter(Result::is_ok).count();
    assert_eq!(got, 1);
}

#[tokio::test]
async fn nothing_but_a_live_wrapping_token_unwraps() {
    let (_, hub, cx) = hub();
    let root = hub.tokens.create_root(&cx.storage, None).await.unwrap();
    for text in [root.expose_secret(), "", "hvs.unknown", "hvb.AAAA"] {
        assert_eq!(unwrap(&cx, text).await.unwrap_err().status(), 400, "{text}");
    }
    let info = wrapped(&cx).await;
    hub.tokens.advance(60);
    assert!(unwrap(&cx, &info.token).await.is_err());
}

#[tokio::test]
async fn a_wrapped_login_keeps_its_token() {
    let (_, hub, cx) = hub();
    let new = NewToken { policies: vec!["p".into()], ..NewToken::orphan("x", LeaseTtls::default()) };
    let created = hub.tokens.create(&cx, new).await.unwrap();
    let text = created.grant.client_token.clone();
    let login = Logical { auth: Some(Box::new(created.grant)), ..Logical::default() };
    let info = logical(wrap(&cx, login.into(), 60, "x").await.unwrap()).wrap_info.unwrap();
    assert_eq!(info.wrapped_accessor, created.token.accessor);
    let auth = logical(unwrap(&cx, &info.token).await.unwrap()).auth.unwrap();
    assert_eq!(auth.client_token.expose_secret(), text.expose_secret());
    assert_eq!((auth.token_type, auth.policies.len()), ("service", 2));
}

#[tokio::test]
async fn what_holds_nothing_is_not_wrapped() {
    let (_, _, cx) = hub();
    let plain = wrap(&cx, Response::no_content(), 60, "x").await.unwrap();
    assert!(matches!(plain.body, Body::Empty));
}

async fn token(cx: &Cx) -> Arc<Token> {
    let created = cx.hub.tokens.create(cx, NewToken::orphan("x", LeaseTtls::default())).await.unwrap();
    Arc::new(created.token)
}

fn by(token: &Arc<Token>, operation: Operation, rest: &str, body: Value) -> Request {
    Request { token: Some(Arc::clone(token)), ..request(operation, "cubbyhole/", rest, body) }
}

#[tokio::test]
async fn a_cubbyhole_belongs_to_its_token_and_dies_with_it() {
    let (_, hub, cx) = hub();
    let (engine, mount) = (cubbyhole::engine(), MountEntry::default());
    let (mine, other) = (token(&cx).await, token(&cx).await);
    let put = by(&mine, Operation::Write, "a/b", json!({"k": 1}));
    assert!(!engine.exists(&cx, &mount, &put).await.unwrap());
    engine.handle(&cx, &mount, &put).await.unwrap();
    assert!(engine.exists(&cx, &mount, &put).await.unwrap());

    let read = by(&mine, Operation::Read, "a/b", json!({}));
    let data = logical(engine.handle(&cx, &mount, &read).await.unwrap()).data.unwrap();
    assert_eq!(data, Map::from_iter([("k".to_owned(), json!(1))]));
    let keys = logical(engine.handle(&cx, &mount, &by(&mine, Operation::List, "", json!({}))).await.unwrap());
    assert_eq!(keys.data.unwrap()["keys"], json!(["a/"]));
    let foreign = by(&other, Operation::Read, "a/b", json!({}));
    assert_eq!(engine.handle(&cx, &mount, &foreign).await.unwrap_err().status(), 404);
    assert_eq!(
        engine.handle(&cx, &mount, &by(&mine, Operation::Write, "x", json!({}))).await.unwrap_err().status(),
        400
    );

    hub.tokens.revoke_tree(&cx, &mine.id).await.unwrap();
    assert_eq!(cx.storage.count("cubbyhole/").unwrap(), 0);
    assert_eq!(engine.handle(&cx, &mount, &put).await.unwrap_err().status(), 403);
}
