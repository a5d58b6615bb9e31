//! The paths below `sys/` as clients call them.

use super::*;

async fn open() -> (Rig, String) {
    let rig = Rig::one().await;
    let (_, root) = rig.open().await;
    (rig, root)
}

#[tokio::test]
async fn wrapped_answers_are_looked_at_and_opened_by_their_token_alone() {
    let (rig, root) = open().await;
    let wrap = async || {
        let headers = [("x-vault-token", root.as_str()), ("x-vault-wrap-ttl", "60")];
        let reply = rig.send("PUT", "sys/wrapping/wrap", &headers, json!({"zip": "zap"})).await.expect(200);
        reply.body["wrap_info"]["token"].as_str().unwrap().to_owned()
    };
    rig.as_token(&root, "PUT", "sys/wrapping/wrap", json!({"zip": "zap"})).await.expect(400);
    for by_header in [true, false] {
        let token = wrap().await;
        let ask = async |method: &str, path: &str| match by_header {
            true => rig.as_token(&token, method, path, Value::Null).await,
            false => rig.send("PUT", path, &[], json!({"token": token})).await,
        };
        for method in ["GET", "PUT"] {
            let found = ask(method, "sys/wrapping/lookup").await.expect(200);
            assert_eq!(members(found.data()), ["creation_path", "creation_time", "creation_ttl"]);
            let shown = (&found.data()["creation_ttl"], &found.data()["creation_path"]);
            assert_eq!(shown, (&json!(60), &json!("sys/wrapping/wrap")));
        }
        let opened = ask("PUT", "sys/wrapping/unwrap").await.expect(200);
        assert_eq!(opened.data(), &json!({"zip": "zap"}));
        let text = "wrapping token is not valid or does not exist";
        ask("PUT", "sys/wrapping/unwrap").await.expect_error(400, text);
        ask("PUT", "sys/wrapping/lookup").await.expect_error(400, text);
    }
    rig.stop().await;
}

#[tokio::test]
async fn any_token_sees_the_mounts_it_can_use_and_the_look_is_recorded() {
    let (rig, root) = open().await;
    for (mount, kind) in [("team/kv", "kv-v2"), ("other", "kv")] {
        rig.as_token(&root, "PUT", &format!("sys/mounts/{mount}"), json!({"type": kind})).await.expect(204);
    }
    let rules = json!({"policy": "path \"team/kv/data/x\" { capabilities = [\"read\"] }"});
    rig.as_token(&root, "PUT", "sys/policies/acl/one", rules).await.expect(204);
    let body = json!({"policies": ["one"], "no_default_policy": true, "num_uses": 1});
    let made = rig.as_token(&root, "PUT", "auth/token/create", body).await.expect(200);
    let token = made.body["auth"]["client_token"].as_str().unwrap();
    let file = rig._dir.path().join("audit.log");
    let device = json!({"type": "file", "options": {"file_path": file}});
    rig.as_token(&root, "PUT", "sys/audit/main", device).await.expect(204);

    let look = async |path: &str| {
        rig.as_token(token, "GET", &format!("sys/internal/ui/mounts{path}"), Value::Null).await
    };
    for path in ["/team/kv", "/team/kv/", "/team/kv/data/x"] {
        let found = look(path).await.expect(200);
        let data = found.data();
        assert_eq!((&data["path"], &data["type"]), (&json!("team/kv/"), &json!("kv")));
        assert_eq!(data["options"], json!({"version": "2"}));
        assert!(data["accessor"].as_str().unwrap().starts_with("kv_"));
    }
    for path in ["/other/x", "/nothing/x"] {
        look(path).await.expect_error(403, "permission denied");
    }
    let all = look("").await.expect(200);
    assert_eq!(members(&all.data()["secret"]), ["team/kv/"]);
    for unknown in ["", "hvs.unknown"] {
        rig.as_token(unknown, "GET", "sys/internal/ui/mounts/team/kv", Value::Null).await.expect(403);
    }
    // A look is no use: the one that there is goes for the value.
    rig.as_token(token, "GET", "team/kv/data/x", Value::Null).await.expect(404);
    look("").await.expect(403);

    let lines = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |path: &str| {
        let seen = lines.iter().filter(|line| line["request"]["path"] == path && line["type"] == "request");
        seen.cloned().collect::<Vec<_>>()
    };
    let seen = of("sys/internal/ui/mounts/team/kv/data/x");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0]["auth"]["policies"], json!(["one"]));
    assert_eq!(of("sys/internal/ui/mounts/nothing/x").len(), 1, "and so is a refusal");
    rig.stop().await;
}

#[tokio::test]
async fn sealing_and_stepping_down_need_sudo() {
    let pair = Pair::start().await;
    let root = pair.root.as_str();
    let policy = |capabilities: &str| {
        ["sys/seal", "sys/step-down"]
            .map(|path| format!("path \"{path}\" {{ capabilities = [{capabilities}] }}"))
            .join("\n")
    };
    let poor = pair.a.token_with(root, "poor", &policy("\"update\"")).await;
    let rich = pair.a.token_with(root, "rich", &policy("\"update\", \"sudo\"")).await;
    for rig in [&pair.a, &pair.b] {
        for path in ["sys/seal", "sys/step-down"] {
            for token in ["", poor.as_str()] {
                rig.as_token(token, "PUT", path, json!({})).await.expect_error(403, "permission denied");
            }
        }
    }
    let health = async |rig: &Rig| rig.send("GET", "sys/health", &[], Value::Null).await.status;
    assert_eq!((health(&pair.a).await, health(&pair.b).await), (200, 429));
    // Through the standby, the active node steps down.
    pair.b.as_token(&rich, "PUT", "sys/step-down", json!({})).await.expect(204);
    assert_eq!(health(&pair.a).await, 429);
    pair.swap(2);
    assert_eq!((health(&pair.a).await, health(&pair.b).await), (429, 200));
    // Whoever is asked to seal seals: first the standby, then the active node.
    pair.a.as_token(&rich, "PUT", "sys/seal", json!({})).await.expect(204);
    assert_eq!((health(&pair.a).await, health(&pair.b).await), (503, 200));
    pair.b.as_token(&rich, "PUT", "sys/seal", json!({})).await.expect(204);
    assert_eq!(health(&pair.b).await, 503);
    pair.stop().await;
}

#[tokio::test]
async fn the_status_of_the_cluster_names_each_node() {
    let pair = Pair::start().await;
    for rig in [&pair.a, &pair.b] {
        let reply = rig.as_token(&pair.root, "GET", "sys/ha-status", Value::Null).await.expect(200);
        let nodes = reply.data()["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 2);
        for node in nodes {
            assert_eq!(
                members(node),
                [
                    "active_node",
                    "api_address",
                    "cluster_address",
                    "hostname",
                    "last_echo",
                    "reachable",
                    "version"
                ]
            );
        }
        let active: Vec<_> = nodes.iter().map(|node| (&node["hostname"], &node["active_node"])).collect();
        assert_eq!(active, [(&json!("a"), &json!(true)), (&json!("b"), &json!(false))]);
        assert_eq!(
            (&nodes[1]["api_address"], &nodes[1]["cluster_address"]),
            (&json!("http://b:8200"), &json!("b:8201"))
        );
        assert!(nodes[1]["last_echo"].is_string() && nodes[0]["last_echo"].is_null());
    }
    pair.stop().await;
}

/// Enables, reads, tunes, lists and disables one mount below `family`.
async fn life_of_a_mount(rig: &Rig, token: &str, family: &str, kind: &str) {
    let at = format!("sys/{family}/x/y");
    let call = async |method: &str, path: &str, body: Value| rig.as_token(token, method, path, body).await;
    let new = json!({"type": kind, "description": "ours", "local": true, "seal_wrap": true,
        "config": {"default_lease_ttl": "1h", "max_lease_ttl": 7200}, "options": {"k": "v"}});
    call("POST", &at, new.clone()).await.expect(204);
    call("POST", &at, new).await.expect_error(400, "path is already in use at x/y/");
    call("POST", &format!("sys/{family}/x"), json!({"type": kind}))
        .await
        .expect_error(400, "existing mount at x/y/");
    call("POST", &format!("sys/{family}/z"), json!({"type": "nothing"}))
        .await
        .expect_error(400, "plugin not found in the catalog: nothing");
    let listed = call("GET", &format!("sys/{family}"), Value::Null).await.expect(200);
    let read = call("GET", &at, Value::Null).await.expect(200);
    for shown in [&listed.data()["x/y/"], read.data()] {
        assert_eq!((&shown["type"], &shown["description"]), (&json!(kind), &json!("ours")));
        assert_eq!((&shown["local"], &shown["seal_wrap"]), (&json!(true), &json!(true)));
        let config = &shown["config"];
        assert_eq!((&config["default_lease_ttl"], &config["max_lease_ttl"]), (&json!(3600), &json!(7200)));
        assert_eq!(shown["options"]["k"], "v");
        for name in ["accessor", "uuid"] {
            assert!(!shown[name].as_str().unwrap().is_empty());
        }
    }
    let tuning = json!({"default_lease_ttl": "30m", "description": "theirs", "options": {"l": "w"}});
    call("POST", &format!("{at}/tune"), tuning).await.expect(204);
    let tuned = call("GET", &format!("{at}/tune"), Value::Null).await.expect(200);
    assert_eq!(
        (&tuned.data()["default_lease_ttl"], &tuned.data()["max_lease_ttl"]),
        (&json!(1800), &json!(7200))
    );
    assert_eq!(
        (&tuned.data()["description"], &tuned.data()["options"]),
        (&json!("theirs"), &json!({"k": "v", "l": "w"}))
    );
    call("POST", &format!("{at}/tune"), json!({"default_lease_ttl": "10h"})).await.expect(400);
    call("DELETE", &at, Value::Null).await.expect(204);
    let text = match family {
        "mounts" => "No secret engine mount at x/y/",
        _ => "No auth engine at x/y/",
    };
    call("GET", &at, Value::Null).await.expect_error(400, text);
    call("GET", &format!("{at}/tune"), Value::Null).await.expect_error(400, text);
    let listed = call("GET", &format!("sys/{family}"), Value::Null).await.expect(200);
    assert!(listed.data().get("x/y/").is_none());
}

#[tokio::test]
async fn secret_engines_come_and_go() {
    let (rig, root) = open().await;
    let all = "path \"sys/mounts*\" { capabilities = [\"create\", \"read\", \"update\", \"delete\"] }";
    let token = rig.token_with(&root, "mounts", all).await;
    life_of_a_mount(&rig, &token, "mounts", "kv").await;
    rig.as_token(&root, "DELETE", "sys/mounts/sys", Value::Null).await.expect(400);
    rig.stop().await;
}

#[tokio::test]
async fn login_methods_come_and_go_by_who_has_sudo() {
    let (rig, root) = open().await;
    let paths = |more: &str| {
        format!(
            "path \"sys/auth*\" {{ capabilities = [\"create\", \"read\", \"update\", \"delete\"{more}] }}"
        )
    };
    let poor = rig.token_with(&root, "poor", &paths("")).await;
    for (method, path, body) in [
        ("POST", "sys/auth/x/y", json!({"type": "userpass"})),
        ("GET", "sys/auth/token", Value::Null),
        ("GET", "sys/auth/token/tune", Value::Null),
        ("DELETE", "sys/auth/x/y", Value::Null),
    ] {
        rig.as_token(&poor, method, path, body).await.expect_error(403, "permission denied");
    }
    rig.as_token(&poor, "GET", "sys/auth", Value::Null).await.expect(200);
    let rich = rig.token_with(&root, "rich", &paths(", \"sudo\"")).await;
    life_of_a_mount(&rig, &rich, "auth", "userpass").await;
    rig.as_token(&root, "DELETE", "sys/auth/token", Value::Null).await.expect(400);
    rig.stop().await;
}

#[tokio::test]
async fn policies_have_two_families_of_paths() {
    let (rig, root) = open().await;
    let call = async |method: &str, path: &str, body: Value| rig.as_token(&root, method, path, body).await;
    let text = "path \"x\" { capabilities = [\"read\"] }";
    for (family, field) in [("sys/policies/acl", "policy"), ("sys/policy", "rules")] {
        call("PUT", &format!("{family}/One"), json!({"policy": text})).await.expect(204);
        for name in ["one", "ONE"] {
            let read = call("GET", &format!("{family}/{name}"), Value::Null).await.expect(200);
            assert_eq!((&read.data()["name"], &read.data()[field]), (&json!("one"), &json!(text)));
        }
        let listed = call("LIST", family, Value::Null).await.expect(200);
        let keys = listed.data()["keys"].as_array().unwrap().clone();
        assert!(["default", "one", "root"].iter().all(|name| keys.contains(&json!(name))), "{keys:?}");
        if field == "rules" {
            assert_eq!(listed.data()["policies"], json!(keys));
            call("GET", family, Value::Null).await.expect(200);
        }
        call("PUT", &format!("{family}/one"), json!({"policy": "nonsense {"})).await.expect(400);
        call("PUT", &format!("{family}/one"), json!({})).await.expect(400);
        call("DELETE", &format!("{family}/one"), Value::Null).await.expect(204);
        call("GET", &format!("{family}/one"), Value::Null).await.expect(404);
        call("DELETE", &format!("{family}/default"), Value::Null).await.expect(400);
    }
    rig.stop().await;
}

#[tokio::test]
async fn capabilities_are_those_of_a_token_an_accessor_or_oneself() {
    let (rig, root) = open().await;
    let rules = "path \"kv/a\" { capabilities = [\"read\", \"update\"] }\n\
                 path \"sys/capabilities-self\" { capabilities = [\"update\"] }";
    rig.as_token(&root, "PUT", "sys/policies/acl/p", json!({"policy": rules})).await.expect(204);
    let body = json!({"policies": ["p"], "no_default_policy": true});
    let made = rig.as_token(&root, "PUT", "auth/token/create", body).await.expect(200).body;
    let (token, accessor) = (&made["auth"]["client_token"], &made["auth"]["accessor"]);
    let own = token.as_str().unwrap();
    let paths = json!(["kv/a", "kv/b"]);
    for (path, by, body) in [
        ("sys/capabilities", root.as_str(), json!({"token": token, "paths": paths})),
        ("sys/capabilities-accessor", root.as_str(), json!({"accessor": accessor, "paths": paths})),
        ("sys/capabilities-self", own, json!({"paths": paths})),
    ] {
        let reply = rig.as_token(by, "POST", path, body).await.expect(200);
        let data = reply.data();
        assert_eq!(data["kv/a"], json!(["read", "update"]), "{path}");
        assert_eq!(data["kv/b"], json!(["deny"]), "{path}");
        assert_eq!(data["capabilities"], data["kv/a"], "the first one's: {path}");
        rig.as_token(by, "POST", path, json!({"token": token, "accessor": accessor})).await.expect(400);
    }
    let of_root =
        rig.as_token(&root, "POST", "sys/capabilities-self", json!({"path": "any"})).await.expect(200);
    assert_eq!(of_root.data()["any"], json!(["root"]));
    for path in ["sys/capabilities", "sys/capabilities-accessor"] {
        let unknown = json!({"token": "x", "accessor": "x", "paths": paths});
        rig.as_token(&root, "POST", path, unknown).await.expect(400);
    }
    rig.stop().await;
}

#[tokio::test]
async fn password_policies_make_passwords() {
    let (rig, root) = open().await;
    let call = async |method: &str, path: &str, body: Value| rig.as_token(&root, method, path, body).await;
    let at = "sys/policies/password/p";
    call("GET", at, Value::Null).await.expect(404);
    call("GET", &format!("{at}/generate"), Value::Null).await.expect(404);
    let text = |length: u32| {
        let rule = |set: &str, least: u32| {
            format!("rule \"charset\" {{\n charset = \"{set}\"\n min-chars = {least}\n}}\n")
        };
        format!("length = {length}\n{}{}", rule("ab", 1), rule("c", 2))
    };
    for (length, status) in [(3, 400), (4, 204), (100, 204), (101, 400)] {
        call("PUT", at, json!({"policy": text(length)})).await.expect(status);
    }
    call("PUT", at, json!({})).await.expect_error(400, "missing policy");
    call("PUT", at, json!({"policy": text(10)})).await.expect(204);
    assert_eq!(call("GET", at, Value::Null).await.expect(200).data()["policy"], json!(text(10)));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let made = call("GET", &format!("{at}/generate"), Value::Null).await.expect(200);
        let password = made.data()["password"].as_str().unwrap().to_owned();
        assert_eq!(password.len(), 10);
        assert!(
            password.chars().all(|c| "abc".contains(c)) && password.matches('c').count() >= 2,
            "{password}"
        );
        assert!(password.contains(['a', 'b']));
        seen.insert(password);
    }
    assert!(seen.len() > 10, "they differ");
    assert_eq!(
        call("LIST", "sys/policies/password", Value::Null).await.expect(200).data()["keys"],
        json!(["p"])
    );
    call("DELETE", at, Value::Null).await.expect(204);
    call("LIST", "sys/policies/password", Value::Null).await.expect(404);
    rig.stop().await;
}

#[tokio::test]
async fn fields_that_nobody_reads_are_named_in_a_warning_and_nothing_is_refused() {
    let (rig, root) = open().await;
    let put = async |path: &str, body: Value| rig.as_token(&root, "PUT", path, body).await;
    for (mount, kind) in [("mounts/db", "database"), ("mounts/kv", "kv-v2"), ("auth/approle", "approle")] {
        put(&format!("sys/{mount}"), json!({"type": kind})).await.expect(204);
    }
    put("sys/auth/userpass", json!({"type": "userpass"})).await.expect(204);
    let writes = [
        (
            "db/roles/r",
            json!({"db_name": "d", "creation_statements": "CREATE", "default_ttl": "1h", "name": "r"}),
        ),
        ("sys/mounts/kv/tune", json!({"default_lease_ttl": "1h", "max_lease_ttl": "2h", "options": null})),
        ("kv/metadata/a", json!({"max_versions": 3, "custom_metadata": {"free": "text"}})),
        ("kv/config", json!({"cas_required": false})),
        ("auth/approle/role/r", json!({"token_policies": "p", "token_ttl": "1h", "secret_id_ttl": "1h"})),
        ("auth/userpass/users/u", json!({"password": "p", "policies": "p"})),
        ("auth/token/roles/r", json!({"allowed_policies": "p", "token_period": "1h"})),
        ("auth/token/create", json!({"policies": ["default"], "ttl": "1h", "entity_alias": ""})),
    ];
    for (path, mut body) in writes {
        let known = put(path, body.clone()).await;
        assert!(matches!(known.status, 200 | 204), "{path}: {}", known.body);
        assert!(known.body["warnings"].is_null(), "{path}: {}", known.body);
        body["default_tll"] = json!("1h");
        body["nothing"] = Value::Null;
        let warned = put(path, body).await.expect(200);
        assert_eq!(warned.body["warnings"], json!(["unknown fields were ignored: default_tll"]), "{path}");
    }
    put("kv/data/a", json!({"data": {"default_tll": "1h"}})).await.expect(200);
    rig.stop().await;
}
