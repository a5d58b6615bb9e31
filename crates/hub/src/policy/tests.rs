use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::logical::Data;
use crate::testing::hub;

/// Three policies that stand for what people write.
const POLICIES: [(&str, &str); 4] = [
    (
        "base",
        r#"
        path "secret/*" { capabilities = ["read", "list"] }
        path "secret/team/*" { capabilities = ["create", "read", "update", "delete", "list"] }
        path "secret/team/locked" { capabilities = ["deny"] }
        path "secret/+/shared" { capabilities = ["read"] }
        path "secret/+/shared/*" { capabilities = ["list"] }
        path "plus/+/shared/*" { capabilities = ["list"] }
        path "secret/+/+/deep" { capabilities = ["update"] }
        path "kv/one" { capabilities = ["read"] }
        path "kv/list" { capabilities = ["list"] }
        path "kv/pre*" { capabilities = ["patch"] }
        "#,
    ),
    (
        "more",
        r#"
        path "kv/one" { capabilities = ["update", "sudo"] }
        path "secret/team/*" { capabilities = ["patch"] }
        path "secret/*" { capabilities = ["scan"] }
        "#,
    ),
    (
        "ban",
        r#"path "kv/one" { capabilities = ["deny"] } path "secret/team/*" { capabilities = ["deny", "read"] }"#,
    ),
    ("all", r#"path "*" { capabilities = ["create", "read", "update", "patch", "delete", "list", "sudo"] }"#),
];

fn load(hub: &Arc<crate::hub::Hub>, names: &[&str], path: &str) -> String {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    hub.policies.capabilities(&names, path).unwrap().join(" ")
}

#[tokio::test]
async fn policies_grant_what_the_most_specific_path_says() {
    let (_, hub, cx) = hub();
    for (name, text) in POLICIES {
        // One stanza a line is how the notation wants it.
        let text = text.replace("] } path", "] }\n path");
        hub.policies.write(&cx, name, &text).await.unwrap();
    }
    let b: &[&str] = &["base"];
    let bm: &[&str] = &["base", "more"];
    for (names, path, expected) in [
        (b, "secret/x", "list read"),
        (b, "secret/", "list read"),
        (b, "secret", "deny"),
        (b, "secrets/x", "deny"),
        (b, "/secret/x", "list read"),
        (b, "secret/team/x", "create delete list read update"),
        (b, "secret/team/", "create delete list read update"),
        (b, "secret/team/locked", "deny"),
        (b, "secret/team/locked/x", "create delete list read update"),
        (b, "secret/team/shared", "create delete list read update"),
        (b, "secret/other/shared", "read"),
        (b, "secret/other/shared/x", "list read"),
        (b, "plus/other/shared/x/y", "list"),
        (b, "plus/other/sharedx", "deny"),
        (b, "secret/a/b/deep", "update"),
        (b, "secret/a/b/c/deep", "list read"),
        (b, "secret/other/sharedx", "list read"),
        (b, "kv/one", "read"),
        (b, "kv/one/", "read"),
        (b, "kv/one/x", "deny"),
        (b, "kv/list/", "list"),
        (b, "kv/prefix", "patch"),
        (b, "kv/pre", "patch"),
        (b, "kv/pr", "deny"),
        (b, "", "deny"),
        (bm, "kv/one", "read sudo update"),
        (bm, "secret/team/x", "create delete list patch read update"),
        (bm, "secret/x", "list read scan"),
        (&["more"], "secret/x", "scan"),
        (&["base", "ban"], "kv/one", "deny"),
        (&["base", "ban"], "secret/team/x", "deny"),
        (&["ban", "base", "more"], "secret/x", "list read scan"),
        (&["all"], "anything/at/all", "create delete list patch read sudo update"),
        (&["all", "base"], "secret/x", "list read"),
        (&["all", "base"], "other", "create delete list patch read sudo update"),
        (&["unknown"], "secret/x", "deny"),
        (&["root"], "secret/team/locked", "root"),
        (&["default"], "auth/token/lookup-self", "read update"),
        (&["default"], "sys/mounts", "deny"),
        (&["response-wrapping"], "sys/wrapping/unwrap", "update"),
        (&["response-wrapping"], "cubbyhole/response", "deny"),
        (&[], "secret/x", "deny"),
    ] {
        assert_eq!(load(&hub, names, path), expected, "{names:?} on {path}");
    }
}

#[tokio::test]
async fn operations_need_their_capability() {
    let (_, hub, cx) = hub();
    let text = r#"path "a" { capabilities = ["create", "list"] }"#;
    hub.policies.write(&cx, "p", text).await.unwrap();
    let names = ["p".to_owned()];
    for (operation, path, exists, allowed) in [
        (Operation::Write, "a", false, true),
        (Operation::Write, "a", true, false),
        (Operation::Read, "a", true, false),
        (Operation::List, "a/", true, true),
        (Operation::List, "a", true, true),
        (Operation::Patch, "a", true, false),
        (Operation::Delete, "a", true, false),
    ] {
        let decision = hub.policies.decide(&cx.storage, &names, path, operation, exists).unwrap();
        assert_eq!((decision.allowed, decision.sudo), (allowed, false), "{operation:?} {path} {exists}");
    }
}

#[tokio::test]
async fn conditions_on_parameters_and_wrapping_are_not_lifted_by_a_rule_without_any() {
    let (_, hub, cx) = hub();
    let narrow = r#"path "a" {
        capabilities = ["update"]
        allowed_parameters = { ttl = ["1h"] }
        min_wrapping_ttl = "10s"
    }"#;
    hub.policies.write(&cx, "narrow", narrow).await.unwrap();
    hub.policies.write(&cx, "wide", r#"path "a" { capabilities = ["update"] }"#).await.unwrap();
    let other = "path \"a\" {\n capabilities = [\"read\"]\n allowed_parameters = { name = [] }\n\
        required_parameters = [\"name\"]\n}";
    hub.policies.write(&cx, "other", other).await.unwrap();
    let ban = "path \"a\" {\n capabilities = [\"read\"]\n denied_parameters = { bad = [] }\n}";
    hub.policies.write(&cx, "ban", ban).await.unwrap();
    let decide = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        hub.policies.decide(&cx.storage, &names, "a", Operation::Write, true).unwrap()
    };
    let data = |value: serde_json::Value| Data::new(value.as_object().unwrap().clone());
    let ok = |names: &[&str], value| decide(names).parameters_allowed(Operation::Write, &data(value));
    assert!(ok(&["narrow"], json!({"ttl": "1h"})));
    assert!(!ok(&["narrow"], json!({"ttl": "2h"})));
    assert!(!ok(&["narrow", "wide"], json!({"ttl": "2h"})));
    assert!(!ok(&["wide", "narrow"], json!({"other": 1})));
    assert!(ok(&["narrow", "wide"], json!({"ttl": "1h"})));
    assert!(ok(&["narrow", "other"], json!({"ttl": "1h", "name": "x"})));
    assert!(!ok(&["narrow", "other"], json!({"ttl": "1h"})));
    assert!(ok(&["wide"], json!({"bad": 1})));
    assert!(!ok(&["wide", "ban"], json!({"bad": 1})));
    assert!(!ok(&["ban"], json!({})));
    assert!(decide(&["narrow"]).check_wrap(Some(10)).is_ok());
    assert_eq!(decide(&["narrow"]).check_wrap(None).unwrap_err().status(), 400);
    assert_eq!(decide(&["narrow", "wide"]).check_wrap(None).unwrap_err().status(), 400);
    assert!(decide(&["wide"]).check_wrap(None).is_ok());
    assert!(decide(&["root"]).parameters_allowed(Operation::Write, &data(json!({"bad": 1}))));
}

#[tokio::test]
async fn a_change_is_seen_by_the_next_decision() {
    let (_, hub, cx) = hub();
    assert_eq!(load(&hub, &["p"], "a"), "deny");
    for capability in ["read", "list"] {
        let text = format!("path \"a\" {{ capabilities = [\"{capability}\"] }}");
        hub.policies.write(&cx, "p", &text).await.unwrap();
        assert_eq!(load(&hub, &["p"], "a"), capability);
    }
    hub.policies.delete(&cx, "p").await.unwrap();
    assert_eq!(load(&hub, &["p"], "a"), "deny");
}

#[tokio::test]
async fn built_in_policies_are_protected() {
    let (_, hub, cx) = hub();
    let policies = &hub.policies;
    for name in ["root", "response-wrapping"] {
        assert_eq!(policies.write(&cx, name, "").await.unwrap_err().status(), 400);
        assert_eq!(policies.delete(&cx, name).await.unwrap_err().status(), 400);
    }
    assert_eq!(policies.delete(&cx, "default").await.unwrap_err().status(), 400);
    assert_eq!(policies.write(&cx, "bad", "nonsense \"x\" {}").await.unwrap_err().status(), 400);
    policies.write(&cx, "default", "path \"a\" { capabilities = [\"read\"] }").await.unwrap();
    assert_eq!(load(&hub, &["default"], "a"), "read");
    assert_eq!(load(&hub, &["default"], "auth/token/lookup-self"), "deny");
    policies.write(&cx, "zz", "").await.unwrap();
    assert_eq!(policies.names(&cx.storage, None, 10).unwrap(), ["default", "root", "zz"]);
    assert_eq!(policies.names(&cx.storage, Some("default"), 1).unwrap(), ["root"]);
}

/// A few paths over a small alphabet, so that random policies and requests meet.
fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof!["a", "b", "\\+"], 1..4).prop_map(|parts| parts.join("/"))
}

fn pattern() -> impl Strategy<Value = String> {
    (path(), any::<bool>()).prop_map(|(path, open)| if open { format!("{path}/*") } else { path })
}

const GRANTS: [&str; 5] = ["create", "read", "update", "list", "sudo"];

fn stanza(path: &str, capabilities: &[&str]) -> String {
    let list: Vec<String> = capabilities.iter().map(|c| format!("{c:?}")).collect();
    format!("path {path:?} {{\n capabilities = [{}]\n}}\n", list.join(", "))
}

fn policy(paths: Vec<String>, grants: &[u8]) -> Arc<Policy> {
    let pick = |bits: u8| -> Vec<&str> {
        GRANTS.iter().enumerate().filter(|(i, _)| bits & (1 << i) != 0).map(|(_, name)| *name).collect()
    };
    let text: String = paths.iter().zip(grants).map(|(path, bits)| stanza(path, &pick(*bits))).collect();
    Arc::new(parse(&text).unwrap())
}

proptest! {
    /// Over the same paths, another policy without `deny` only adds.
    #[test]
    fn more_policies_never_take_away(
        paths in proptest::collection::vec(pattern(), 1..6),
        one in proptest::collection::vec(0u8..32, 6),
        two in proptest::collection::vec(0u8..32, 6),
        request in path(),
    ) {
        let (one, two) = (policy(paths.clone(), &one), policy(paths, &two));
        let alone = decision::granted(&[Arc::clone(&one)], &request);
        let both = decision::granted(&[one, two], &request);
        prop_assert_eq!(both.union(alone), both);
    }

    /// Whatever else is granted on the deciding path, `deny` on it wins.
    #[test]
    fn deny_always_wins(
        paths in proptest::collection::vec(pattern(), 1..6),
        grants in proptest::collection::vec(0u8..32, 6),
        request in path(),
    ) {
        let granting = policy(paths.clone(), &grants);
        let text: String = paths.iter().map(|path| stanza(path, &["deny"])).collect();
        let denying = Arc::new(parse(&text).unwrap());
        for policies in [[Arc::clone(&granting), Arc::clone(&denying)], [denying, granting]] {
            let matched = decision::granted(&policies, &request);
            prop_assert_eq!(matched.names(), ["deny"]);
            for operation in [Operation::Read, Operation::List, Operation::Write] {
                prop_assert!(!Decision::of(&policies, &request, operation, true).allowed);
            }
        }
    }

    /// The order of policies and of stanzas means nothing.
    #[test]
    fn order_means_nothing(
        paths in proptest::collection::vec(pattern(), 1..6),
        grants in proptest::collection::vec(0u8..32, 6),
        request in path(),
    ) {
        let forward = policy(paths.clone(), &grants);
        let mut pairs: Vec<_> = paths.into_iter().zip(grants).collect();
        pairs.reverse();
        let (paths, grants): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let backward = policy(paths, &grants);
        prop_assert_eq!(decision::granted(&[forward], &request), decision::granted(&[backward], &request));
    }
}
