//! HTTP as every path speaks it: verbs, headers, envelopes, statuses and texts.

use http::Version;

use super::*;

/// A rig with a root token.
async fn open() -> (Rig, String) {
    let rig = Rig::one().await;
    let (_, root) = rig.open().await;
    (rig, root)
}

#[tokio::test]
async fn both_versions_of_http_are_spoken_below_one_prefix() {
    let (rig, root) = open().await;
    let old = client().http1_only().build().unwrap();
    let new = client().http2_prior_knowledge().build().unwrap();
    for (client, version) in [(old, Version::HTTP_11), (new, Version::HTTP_2)] {
        let ask = |url: String| client.get(url).header("x-vault-token", &root).send();
        let reply = ask(format!("{}sys/mounts", rig.url)).await.unwrap();
        assert_eq!((reply.version(), reply.status().as_u16()), (version, 200));
        assert_eq!(reply.headers()["content-type"], "application/json");
        let elsewhere = rig.url.replace("/v1/", "/v2/sys/mounts");
        assert_eq!(ask(elsewhere).await.unwrap().status(), 404);
        assert_eq!(ask(rig.url.replace("/v1/", "/")).await.unwrap().status(), 404);
    }
    rig.stop().await;
}

/// Makes `a`, `b` and `c` below each path of a list; `{}` stands for the name.
async fn make_lists(rig: &Rig, root: &str) {
    for (mount, kind) in [("kv", "kv"), ("kv2", "kv-v2"), ("database", "database"), ("relay", "relay")] {
        rig.as_token(root, "PUT", &format!("sys/mounts/{mount}"), json!({"type": kind})).await.expect(204);
    }
    for kind in ["approle", "userpass"] {
        rig.as_token(root, "PUT", &format!("sys/auth/{kind}"), json!({"type": kind})).await.expect(204);
    }
    let rules = "length = 8\nrule \"charset\" { charset = \"abc\" }";
    let config = json!({"plugin_name": "postgresql-database-plugin", "verify_connection": false,
        "connection_url": "postgresql://{{username}}:{{password}}@127.0.0.1:1/x", "username": "u", "password": "p"});
    for name in ["a", "b", "c"] {
        for (path, body) in [
            ("kv/{}", json!({"v": 1})),
            ("kv2/data/{}", json!({"data": {"v": 1}})),
            ("cubbyhole/{}", json!({"v": 1})),
            ("sys/policies/acl/{}", json!({"policy": "path \"x\" { capabilities = [\"read\"] }"})),
            ("sys/policies/password/{}", json!({"policy": rules})),
            ("auth/token/roles/{}", json!({})),
            ("auth/approle/role/{}", json!({})),
            ("auth/userpass/users/{}", json!({"password": "x"})),
            ("database/config/{}", config.clone()),
            ("database/roles/{}", json!({"db_name": "a"})),
            ("sys/quotas/rate-limit/{}", json!({"rate": 1000, "path": format!("kv/{name}")})),
            ("sys/quotas/lease-count/{}", json!({"max_leases": 1000, "path": format!("kv/{name}")})),
            ("auth/approle/role/a/secret-id", json!({})),
            ("relay/bootstrap-tokens", json!({})),
            ("relay/denied-spokes/{}", json!({})),
        ] {
            let reply = rig.as_token(root, "PUT", &path.replace("{}", name), body).await;
            assert!(matches!(reply.status, 200 | 204), "{path}: {}", reply.text);
        }
    }
}

#[tokio::test]
async fn every_list_comes_in_pages() {
    let (rig, root) = open().await;
    make_lists(&rig, &root).await;
    for path in [
        "kv",
        "kv2/metadata",
        "cubbyhole",
        "sys/policies/acl",
        "sys/policy",
        "sys/policies/password",
        "auth/token/roles",
        "auth/approle/role",
        "auth/userpass/users",
        "database/config",
        "database/roles",
        "sys/quotas/rate-limit",
        "sys/quotas/lease-count",
        "auth/token/accessors",
        "auth/approle/role/a/secret-id",
        "relay/bootstrap-tokens",
        "relay/denied-spokes",
    ] {
        let list =
            async |query: &str| rig.as_token(&root, "LIST", &format!("{path}{query}"), Value::Null).await;
        let all = list("").await.expect(200).data()["keys"].as_array().unwrap().clone();
        assert!(all.len() >= 3 || path == "auth/token/accessors", "{path}: {all:?}");
        let mut paged = Vec::new();
        while paged.len() < all.len() {
            let after =
                paged.last().map_or(String::new(), |key: &Value| format!("&after={}", key.as_str().unwrap()));
            let page = list(&format!("?limit=1{after}")).await.expect(200);
            assert_eq!(page.data()["keys"].as_array().unwrap().len(), 1, "{path}");
            paged.extend(page.data()["keys"].as_array().unwrap().clone());
        }
        assert_eq!(paged, all, "{path}");
        let last = all.last().unwrap().as_str().unwrap();
        let beyond = list(&format!("?after={last}")).await;
        assert!(beyond.status == 404 || beyond.data()["keys"] == json!([]), "{path}: {}", beyond.text);
        assert_eq!(list("?limit=many").await.status, 400, "{path}");
        let asked = rig.as_token(&root, "GET", &format!("{path}?list=true"), Value::Null).await.expect(200);
        assert_eq!(asked.data()["keys"], json!(all), "{path}");
    }
    rig.stop().await;
}

#[tokio::test]
async fn help_is_given_on_the_spot() {
    let (rig, root) = open().await;
    rig.follow(None, None);
    for path in ["kv/x?help=1", "sys/mounts?help=1", "auth/token/create?help=true", "cubbyhole/x?help=1"] {
        for token in ["", root.as_str()] {
            let reply = rig.as_token(token, "GET", path, Value::Null).await.expect(200);
            assert_eq!(members(&reply.body), ["help"], "{path}");
            assert!(!reply.body["help"].as_str().unwrap().is_empty());
        }
    }
    rig.as_token(&root, "GET", "kv/x?help=maybe", Value::Null).await.expect(400);
    rig.as_token(&root, "GET", "kv/x?help=0", Value::Null).await.expect(503);
    rig.stop().await;
}

#[tokio::test]
async fn headers_change_the_answer_as_they_should_and_others_do_not() {
    let (rig, root) = open().await;
    let token = ("x-vault-token", root.as_str());
    let get = async |path: &str, header| rig.send("GET", path, &[token, header], Value::Null).await;
    for namespace in ["", "/", "root", "root/"] {
        get("sys/mounts", ("x-vault-namespace", namespace)).await.expect(200);
    }
    // As if there were no such route, for one that is there too.
    for path in ["sys/mounts", "nowhere/x"] {
        let text = format!("no handler for route \"{path}\". route entry not found.");
        get(path, ("x-vault-namespace", "team")).await.expect_error(404, &text);
        assert_eq!(rig.as_token(&root, "GET", "nowhere/x", Value::Null).await.status, 404);
    }
    for header in [("x-vault-policy-override", "true"), ("x-unheard-of", "1"), ("x-vault-request", "true")] {
        get("sys/mounts", header).await.expect(200);
    }
    let poor = rig.token_with(&root, "poor", "path \"other\" { capabilities = [\"read\"] }").await;
    let headers = [("x-vault-token", poor.as_str()), ("x-vault-policy-override", "true")];
    rig.send("GET", "sys/mounts", &headers, Value::Null).await.expect_error(403, "permission denied");
    let bearer = format!("Bearer {root}");
    rig.send("GET", "sys/mounts", &[("authorization", bearer.as_str())], Value::Null).await.expect(200);
    get("sys/mounts", ("x-vault-no-request-forwarding", "true")).await.expect(200);

    let wrapped = get("sys/mounts", ("x-vault-wrap-ttl", "1m")).await.expect(200).body;
    let info = &wrapped["wrap_info"];
    let names = ["accessor", "creation_path", "creation_time", "token", "ttl", "wrapped_accessor"];
    assert_eq!(members(info), names);
    assert_eq!((&info["ttl"], &info["creation_path"]), (&json!(60), &json!("sys/mounts")));
    let time = info["creation_time"].as_str().unwrap();
    let (_, fraction) = time.trim_end_matches('Z').split_once('.').unwrap();
    assert!(time.ends_with('Z') && (1..=9).contains(&fraction.len()), "{time}");
    assert!(fraction.len() > 6, "nanoseconds: {time}");
    for other in ["data", "auth", "warnings"] {
        assert_eq!(wrapped[other], Value::Null);
    }
    assert_eq!(wrapped["lease_id"], "");
    let made = rig.send("PUT", "auth/token/create", &[token, ("x-vault-wrap-ttl", "60")], json!({})).await;
    assert_eq!(made.body["wrap_info"]["wrapped_accessor"].as_str().unwrap().len(), 24);
    rig.stop().await;
}

#[tokio::test]
async fn the_auth_block_has_all_its_fields() {
    let (rig, root) = open().await;
    let names = [
        "accessor",
        "client_token",
        "entity_id",
        "identity_policies",
        "lease_duration",
        "metadata",
        "mfa_requirement",
        "num_uses",
        "orphan",
        "policies",
        "renewable",
        "token_policies",
        "token_type",
    ];
    let rules = json!({"policy": "path \"x\" { capabilities = [\"read\"] }"});
    rig.as_token(&root, "PUT", "sys/policies/acl/p", rules).await.expect(204);
    for kind in ["service", "batch"] {
        let body = json!({"policies": ["p"], "type": kind, "ttl": "1h", "meta": {"k": "v"}});
        let made = rig.as_token(&root, "PUT", "auth/token/create", body).await.expect(200).body;
        let auth = &made["auth"];
        assert_eq!(members(auth), names);
        assert_eq!((&auth["token_type"], &auth["metadata"]), (&json!(kind), &json!({"k": "v"})));
        assert_eq!((&auth["policies"], &auth["lease_duration"]), (&json!(["default", "p"]), &json!(3600)));
        assert_eq!(auth["token_policies"], auth["policies"]);
        assert_eq!((&auth["renewable"], &auth["orphan"]), (&json!(kind == "service"), &json!(false)));
        assert_eq!((&auth["num_uses"], &auth["entity_id"]), (&json!(0), &json!("")));
        assert_eq!((&auth["mfa_requirement"], &auth["identity_policies"]), (&Value::Null, &Value::Null));
        assert_eq!((&made["data"], made.as_object().unwrap().len()), (&Value::Null, 8));
    }
    rig.stop().await;
}

#[tokio::test]
async fn maps_and_lists_of_the_system_stand_under_data_and_beside_it() {
    let (rig, root) = open().await;
    make_lists(&rig, &root).await;
    let device = json!({"type": "file", "options": {"file_path": rig._dir.path().join("audit.log")}});
    rig.as_token(&root, "PUT", "sys/audit/main", device).await.expect(204);
    for (method, path) in [
        ("GET", "sys/mounts"),
        ("GET", "sys/mounts/kv"),
        ("GET", "sys/mounts/kv/tune"),
        ("GET", "sys/auth"),
        ("GET", "sys/auth/token"),
        ("GET", "sys/auth/token/tune"),
        ("GET", "sys/audit"),
        ("GET", "sys/policy"),
        ("GET", "sys/policy/a"),
        ("LIST", "sys/policies/acl"),
        ("GET", "sys/policies/acl/a"),
        ("LIST", "sys/policies/password"),
        ("GET", "sys/ha-status"),
        ("PUT", "sys/capabilities-self"),
    ] {
        let body = if method == "PUT" { json!({"paths": ["kv/a"]}) } else { Value::Null };
        let reply = rig.as_token(&root, method, path, body).await.expect(200).body;
        let data = reply["data"].as_object().unwrap();
        assert!(!data.is_empty(), "{path}");
        for (name, value) in data {
            assert_eq!(&reply[name], value, "{path}: {name}");
        }
        assert!(members(&reply).len() == 8 + data.len(), "{path}");
    }
    rig.stop().await;
}

#[tokio::test]
async fn what_is_not_there_is_told_by_its_text() {
    let (rig, root) = open().await;
    make_lists(&rig, &root).await;
    let ask = async |method: &str, path: &str| rig.as_token(&root, method, path, Value::Null).await;
    for path in ["nowhere/x", "auth/nobody/login", "kv3/data/x"] {
        let text = format!("no handler for route {path:?}. route entry not found.");
        ask("GET", path).await.expect_error(404, &text);
    }
    for path in [
        "sys/nothing",
        "sys/storage/raft/nothing",
        "sys/wrapping/nothing",
        "auth/token/nothing",
        "auth/approle/nothing",
        "auth/userpass/nothing/x",
        "database/nothing/x",
        "kv2/nothing/x",
    ] {
        let reply = ask("GET", path).await.expect(404);
        assert_eq!(reply.body["errors"], json!(["unsupported path"]), "{path}");
    }
    for (method, path) in [
        ("DELETE", "sys/health"),
        ("DELETE", "sys/mounts"),
        ("DELETE", "sys/ha-status"),
        ("DELETE", "sys/wrapping/wrap"),
        ("DELETE", "auth/token/create"),
        ("GET", "auth/approle/login"),
        ("GET", "auth/userpass/login/x"),
        ("DELETE", "database/creds/x"),
        ("GET", "database/rotate-root/x"),
        ("GET", "kv2/destroy/x"),
        ("DELETE", "kv2/config"),
        ("LIST", "sys/policies/acl/a"),
    ] {
        ask(method, path).await.expect_error(405, "unsupported operation");
    }
    let patch = [("x-vault-token", root.as_str()), ("content-type", "application/merge-patch+json")];
    for path in ["kv/a", "cubbyhole/a", "sys/mounts/kv"] {
        let reply = rig.send("PATCH", path, &patch, json!({"v": 2})).await;
        reply.expect_error(405, "unsupported operation");
    }
    // Clients that take one kind of kv for the other are told so.
    let hint = ask("GET", "kv2/a").await.expect(404).body;
    assert_eq!(members(&hint), ["errors", "warnings"]);
    rig.stop().await;
}

#[tokio::test]
async fn refusals_carry_what_comes_beside_their_texts() {
    let (rig, root) = open().await;
    make_lists(&rig, &root).await;
    rig.as_token(&root, "DELETE", "kv2/data/a", Value::Null).await.expect(204);
    let gone = rig.as_token(&root, "GET", "kv2/data/a", Value::Null).await.expect(404);
    assert_eq!((&gone.data()["data"], &gone.data()["metadata"]["version"]), (&Value::Null, &json!(1)));
    // Whoever comes before the node is open, or while nobody leads, may come again.
    rig.follow(None, None);
    let nobody = rig.as_token(&root, "GET", "kv/a", Value::Null).await;
    nobody.expect_error(503, "no active Vault instance found");
    rig.lead(1);
    rig.as_token(&root, "PUT", "sys/seal", json!({})).await.expect(204);
    let sealed = rig.as_token(&root, "GET", "kv/a", Value::Null).await;
    sealed.expect_error(503, "Vault is sealed");
    for refusal in [nobody, sealed] {
        assert_eq!(refusal.headers["retry-after"], "1");
        assert_eq!(refusal.headers["content-type"], "application/json");
        assert_eq!(refusal.headers["cache-control"], "no-store");
    }
    rig.stop().await;
}

#[tokio::test]
async fn faults_of_ours_say_nothing_about_themselves() {
    use crate::store::{Batch, Op, Store as _};
    let (rig, root) = open().await;
    make_lists(&rig, &root).await;
    let mount = rig.hub().mounts.get("kv/").unwrap().unwrap();
    let key = format!("logical/{}/value/a", mount.uuid);
    let damage = Op::Put { key, value: b"damaged s3cret".to_vec() };
    rig.store.commit(Batch { conditions: Vec::new(), ops: vec![damage] }).await.unwrap();
    let reply = rig.as_token(&root, "GET", "kv/a", Value::Null).await;
    reply.expect_error(500, "internal error");
    assert_eq!(members(&reply.body), ["errors"]);
    rig.as_token(&root, "GET", "kv/b", Value::Null).await.expect(200);
    rig.stop().await;
}
