//! `sys/internal/ui/mounts`: what a token's holder may know of mounts, which clients ask before anything else.
//!
//! No policy covers these paths: any valid token may ask, and is shown what its policies reach.

use serde_json::{Map, Value, json};

use super::mounts::describe;
use crate::auth::token::Token;
use crate::error::ApiError;
use crate::logical::{Cx, Operation, Request, Response};
use crate::mount::change::Family;

/// The pipeline's check of policies is left out: it is made here, mount by mount.
pub(super) fn any_token(rest: &str) -> bool {
    named(rest).is_some()
}

/// What follows `ui/mounts`.
fn named(rest: &str) -> Option<&str> {
    rest.strip_prefix("ui/mounts").filter(|named| named.is_empty() || named.starts_with('/'))
}

pub(super) fn handle(cx: &Cx, rest: &str, request: &Request) -> Result<Response, ApiError> {
    let named = named(rest).ok_or_else(ApiError::unsupported_path)?.trim_matches('/');
    let token = request.token.as_deref().ok_or_else(ApiError::denied)?;
    if request.operation != Operation::Read {
        return Err(ApiError::unsupported_operation());
    }
    if named.is_empty() { all(cx, token) } else { one(cx, token, named) }
}

fn all(cx: &Cx, token: &Token) -> Result<Response, ApiError> {
    let (mut secret, mut auth) = (Map::new(), Map::new());
    for entry in cx.hub.mounts.all()?.iter().filter(|entry| !entry.tainted) {
        if cx.hub.policies.reaches(&cx.storage, &token.policies, &entry.path)? {
            let shown = describe(entry);
            match entry.is_auth() {
                true => auth.insert(Family::Auth.shown(&entry.path).to_owned(), shown),
                false => secret.insert(entry.path.clone(), shown),
            };
        }
    }
    let lists = [("auth".to_owned(), Value::Object(auth)), ("secret".to_owned(), Value::Object(secret))];
    Ok(Response::data(Map::from_iter(lists)))
}

/// The mount that serves a path; one that is unknown and one that the token cannot use look the same.
fn one(cx: &Cx, token: &Token, path: &str) -> Result<Response, ApiError> {
    let entry = cx.hub.mounts.route(path)?.ok_or_else(ApiError::denied)?.mount;
    if !cx.hub.policies.reaches(&cx.storage, &token.policies, &entry.path)? {
        return Err(ApiError::denied());
    }
    let mut map = match describe(&entry) {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    map.insert("path".to_owned(), json!(entry.path));
    Ok(Response::data(map))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logical::{Body, Data};
    use crate::mount::change;
    use crate::testing;

    fn ask(cx: &Cx, rest: &str, token: Option<&Token>) -> Result<Map<String, Value>, u16> {
        let mut request = testing::request(Operation::Read, "sys/", &format!("internal/{rest}"), json!({}));
        request.token = token.cloned().map(std::sync::Arc::new);
        match handle(cx, rest, &request).map_err(|e| e.status())?.body {
            Body::Logical(logical) => Ok(logical.data.unwrap()),
            other => panic!("unexpected {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_token_sees_what_it_can_use() {
        let (_store, hub, cx) = testing::hub();
        let kv = Data::new(json!({"type": "kv-v2"}).as_object().unwrap().clone());
        for path in ["team/a", "team/b"] {
            change::enable(&cx, Family::Secret, path, &kv).await.unwrap();
        }
        let root = Token { policies: vec!["root".into()], ..Token::default() };
        let found = ask(&cx, "ui/mounts/team/a/data/x", Some(&root)).unwrap();
        assert_eq!((&found["path"], &found["type"]), (&json!("team/a/"), &json!("kv")));
        assert_eq!(found["options"]["version"], "2");
        assert_eq!(ask(&cx, "ui/mounts/nothing", Some(&root)), Err(403));
        assert_eq!(ask(&cx, "ui/mounts", None), Err(403));
        let lists = ask(&cx, "ui/mounts", Some(&root)).unwrap();
        assert!(lists["secret"]["team/b/"].is_object() && lists["auth"]["token/"].is_object());
        let rules = r#"path "team/+/data/x" { capabilities = ["read"] }"#;
        hub.policies.write(&cx, "p", rules).await.unwrap();
        let reaches = |mount| hub.policies.reaches(&cx.storage, &["p".to_owned()], mount).unwrap();
        assert!(reaches("team/a/") && !reaches("other/") && !reaches("tea/"));
    }

    #[test]
    fn patterns_reach_mounts() {
        use crate::policy::rule::Pattern;
        for (pattern, mount, expected) in [
            ("secret/data/x", "secret/", true),
            ("secret", "secret/", true),
            ("sec*", "secret/", true),
            ("*", "a/b/", true),
            ("+/data/*", "secret/", true),
            ("a/+/x", "a/b/", true),
            ("a", "a/b/", false),
            ("a/", "a/b/", false),
            ("secrets/x", "secret/", false),
            ("a/c*", "a/b/", false),
        ] {
            assert_eq!(Pattern::new(pattern).reaches(mount), expected, "{pattern} {mount}");
        }
    }
}
