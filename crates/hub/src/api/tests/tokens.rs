//! Tokens and login methods as clients see them: every parameter, and every field of the answers.

use super::*;

const LOOKUP: [&str; 17] = [
    "accessor",
    "creation_time",
    "creation_ttl",
    "display_name",
    "entity_id",
    "expire_time",
    "explicit_max_ttl",
    "id",
    "issue_time",
    "meta",
    "num_uses",
    "orphan",
    "path",
    "policies",
    "renewable",
    "ttl",
    "type",
];

async fn open() -> (Rig, String) {
    let rig = Rig::one().await;
    let (_, root) = rig.open().await;
    (rig, root)
}

fn has(value: &Value, expected: &Value) {
    for (name, wanted) in expected.as_object().unwrap() {
        assert_eq!(&value[name], wanted, "{name} of {value}");
    }
}

fn text<'a>(auth: &'a Value, name: &str) -> &'a str {
    auth[name].as_str().unwrap()
}

impl Rig {
    /// Makes a token; its auth block.
    async fn make(&self, by: &str, path: &str, body: Value) -> Value {
        self.as_token(by, "POST", path, body).await.expect(200).body["auth"].take()
    }

    /// What a lookup of a token by its text shows.
    async fn look(&self, by: &str, auth: &Value) -> Value {
        let body = json!({"token": auth["client_token"]});
        self.as_token(by, "PUT", "auth/token/lookup", body).await.expect(200).body["data"].take()
    }

    async fn is_alive(&self, auth: &Value) -> bool {
        let own =
            self.as_token(text(auth, "client_token"), "GET", "auth/token/lookup-self", Value::Null).await;
        own.status == 200
    }
}

#[tokio::test]
async fn tokens_are_made_with_every_parameter() {
    let (rig, root) = open().await;
    let body = json!({"policies": ["p"], "meta": {"k": "v"}, "no_parent": true, "no_default_policy": true,
        "renewable": false, "ttl": "1h", "explicit_max_ttl": "2h", "num_uses": 3, "display_name": "d n",
        "type": "service"});
    let full = rig.make(&root, "auth/token/create", body).await;
    let service = text(&full, "client_token");
    assert!(service.starts_with("hvs.") && service.len() == 28, "{service}");
    assert_eq!(text(&full, "accessor").len(), 24);
    has(
        &full,
        &json!({"renewable": false, "orphan": true, "num_uses": 3, "lease_duration": 3600, "policies": ["p"]}),
    );
    has(
        &rig.look(&root, &full).await,
        &json!({"policies": ["p"], "meta": {"k": "v"}, "orphan": true, "renewable": false, "creation_ttl": 3600,
            "explicit_max_ttl": 7200, "num_uses": 3, "display_name": "token-d-n", "type": "service",
            "path": "auth/token/create"}),
    );
    let plain = rig.make(&root, "auth/token/create", json!({"policies": "a,b"})).await;
    has(&plain, &json!({"policies": ["a", "b", "default"], "orphan": false, "renewable": true}));
    let periodic = rig.make(&root, "auth/token/create", json!({"policies": "a", "period": "90s"})).await;
    has(&rig.look(&root, &periodic).await, &json!({"period": 90, "creation_ttl": 90}));
    let chosen = rig.make(&root, "auth/token/create", json!({"policies": "a", "id": "mine"})).await;
    assert_eq!(chosen["client_token"], "mine");
    let orphan = rig.make(&root, "auth/token/create-orphan", json!({"policies": "a"})).await;
    has(&rig.look(&root, &orphan).await, &json!({"orphan": true, "path": "auth/token/create-orphan"}));
    let batch = rig.make(&root, "auth/token/create", json!({"policies": "a", "type": "batch"})).await;
    assert!(text(&batch, "client_token").starts_with("hvb.") && batch["accessor"] == "");
    has(&rig.look(&root, &batch).await, &json!({"type": "batch", "renewable": false}));
    rig.as_token(&root, "PUT", "auth/token/roles/r", json!({"allowed_policies": "a"})).await.expect(204);
    let of_role = rig.make(&root, "auth/token/create/r", json!({"ttl": "5m"})).await;
    has(
        &rig.look(&root, &of_role).await,
        &json!({"role": "r", "path": "auth/token/create/r", "creation_ttl": 300, "policies": ["a", "default"]}),
    );
    rig.as_token(&root, "POST", "auth/token/create/nobody", json!({})).await.expect(400);
    let holder =
        rig.token_with(&root, "holder", "path \"auth/token/*\" { capabilities = [\"update\"] }").await;
    rig.as_token(&holder, "POST", "auth/token/create", json!({"id": "other"})).await.expect(400);
    rig.stop().await;
}

#[tokio::test]
async fn tokens_are_looked_up_renewed_and_revoked_in_three_ways() {
    let (rig, root) = open().await;
    let rules = "path \"auth/token/*\" { capabilities = [\"read\", \"update\"] }";
    rig.as_token(&root, "PUT", "sys/policies/acl/p", json!({"policy": rules})).await.expect(204);
    let make = async || rig.make(&root, "auth/token/create", json!({"policies": "p", "ttl": "1h"})).await;
    let body = |auth: &Value, way: &str| match way {
        "" => json!({"token": auth["client_token"], "increment": "2h"}),
        "-self" => json!({"increment": "2h"}),
        _ => json!({"accessor": auth["accessor"], "increment": "2h"}),
    };
    for way in ["", "-self", "-accessor"] {
        let auth = make().await;
        let by = if way == "-self" { text(&auth, "client_token") } else { root.as_str() };
        let call = async |verb: &str| {
            rig.as_token(by, "POST", &format!("auth/token/{verb}{way}"), body(&auth, way)).await
        };
        let found = call("lookup").await.expect(200);
        assert_eq!(members(found.data()), LOOKUP, "{way}");
        let id = if way == "-accessor" { json!("") } else { auth["client_token"].clone() };
        has(
            found.data(),
            &json!({"id": id, "accessor": auth["accessor"], "entity_id": "", "policies": ["default", "p"], "type": "service"}),
        );
        let renewed = call("renew").await.expect(200);
        has(
            &renewed.body["auth"],
            &json!({"lease_duration": 7200, "accessor": auth["accessor"], "client_token": id}),
        );
        let ttl = call("lookup").await.data()["ttl"].as_u64().unwrap();
        assert!((7100..=7200).contains(&ttl), "{ttl}");
        call("revoke").await.expect(204);
        assert!(!rig.is_alive(&auth).await, "revoke{way}");
    }
    let own = make().await;
    let by_get = rig.as_token(text(&own, "client_token"), "GET", "auth/token/lookup-self", Value::Null).await;
    assert_eq!(members(by_get.expect(200).data()), LOOKUP);

    // Alone, with sudo only; its children live on as orphans.
    let parent = make().await;
    let child = rig.make(text(&parent, "client_token"), "auth/token/create", json!({})).await;
    let named = json!({"token": parent["client_token"]});
    let poor = text(&own, "client_token");
    rig.as_token(poor, "POST", "auth/token/revoke-orphan", named.clone()).await.expect(403);
    rig.as_token(&root, "POST", "auth/token/revoke-orphan", named).await.expect(204);
    assert!(!rig.is_alive(&parent).await && rig.is_alive(&child).await);
    assert_eq!(rig.look(&root, &child).await["orphan"], true);
    // And otherwise they go along.
    let parent = make().await;
    let child = rig.make(text(&parent, "client_token"), "auth/token/create", json!({})).await;
    rig.as_token(&root, "POST", "auth/token/revoke", json!({"token": parent["client_token"]}))
        .await
        .expect(204);
    assert!(!rig.is_alive(&parent).await && !rig.is_alive(&child).await);
    rig.stop().await;
}

#[tokio::test]
async fn token_roles_keep_and_apply_every_field() {
    let (rig, root) = open().await;
    let role = json!({"allowed_policies": ["a", "b"], "disallowed_policies": ["c"], "orphan": true,
        "token_period": 60, "renewable": false, "token_explicit_max_ttl": 600, "path_suffix": "team",
        "token_type": "service", "token_num_uses": 4, "token_bound_cidrs": ["127.0.0.0/8"],
        "token_no_default_policy": true});
    rig.as_token(&root, "POST", "auth/token/roles/r", role.clone()).await.expect(204);
    let read = async || rig.as_token(&root, "GET", "auth/token/roles/r", Value::Null).await.expect(200).body;
    has(&read().await["data"], &role);
    has(&read().await["data"], &json!({"name": "r", "period": 60, "explicit_max_ttl": 600}));
    let made = rig.make(&root, "auth/token/create/r", json!({})).await;
    has(&made, &json!({"policies": ["a", "b"], "orphan": true, "renewable": false, "num_uses": 4}));
    has(
        &rig.look(&root, &made).await,
        &json!({"period": 60, "explicit_max_ttl": 600, "path": "auth/token/create/r/team",
            "bound_cidrs": ["127.0.0.0/8"], "orphan": true}),
    );
    for wrong in [
        json!({"token_period": 601}),
        json!({"token_type": "odd"}),
        json!({"token_bound_cidrs": "x"}),
        json!({"path_suffix": "../x"}),
        json!({"token_type": "batch"}),
    ] {
        rig.as_token(&root, "POST", "auth/token/roles/r", wrong).await.expect(400);
    }
    has(&read().await["data"], &role);
    let batch = json!({"token_type": "batch", "allowed_policies": "a"});
    rig.as_token(&root, "POST", "auth/token/roles/batch", batch).await.expect(204);
    assert_eq!(rig.make(&root, "auth/token/create/batch", json!({})).await["token_type"], "batch");
    rig.stop().await;
}

/// Token fields that roles of login methods and users share, none of them at its default.
fn token_fields() -> Value {
    json!({"token_policies": ["a", "b"], "token_ttl": 60, "token_max_ttl": 120, "token_period": 0,
        "token_num_uses": 7, "token_bound_cidrs": ["127.0.0.0/8"], "token_type": "service",
        "token_explicit_max_ttl": 100, "token_no_default_policy": true})
}

fn joined(left: Value, right: Value) -> Value {
    let (Value::Object(mut map), Value::Object(more)) = (left, right) else {
        unreachable!("both are objects")
    };
    map.extend(more);
    Value::Object(map)
}

#[tokio::test]
async fn approle_roles_keep_and_apply_every_field() {
    let (rig, root) = open().await;
    rig.as_token(&root, "POST", "sys/auth/approle", json!({"type": "approle"})).await.expect(204);
    let call = async |method: &str, path: &str, body: Value| {
        rig.as_token(&root, method, &format!("auth/approle/role/{path}"), body).await
    };
    call("POST", "plain", json!({})).await.expect(204);
    has(
        call("GET", "plain", Value::Null).await.data(),
        &json!({"bind_secret_id": true, "secret_id_ttl": 0, "secret_id_num_uses": 0, "token_policies": [],
            "token_type": "default", "token_no_default_policy": false}),
    );
    let own = json!({"bind_secret_id": true, "secret_id_ttl": 600, "secret_id_num_uses": 2,
        "secret_id_bound_cidrs": ["127.0.0.0/8"]});
    let role = joined(own, token_fields());
    call("POST", "full", role.clone()).await.expect(204);
    has(call("GET", "full", Value::Null).await.data(), &role);
    let role_id = call("GET", "full/role-id", Value::Null).await.data()["role_id"].clone();
    let secret = call("POST", "full/secret-id", json!({})).await.expect(200).body;
    has(&secret["data"], &json!({"secret_id_ttl": 600, "secret_id_num_uses": 2}));
    let login = json!({"role_id": role_id, "secret_id": secret["data"]["secret_id"]});
    let made = rig.make("", "auth/approle/login", login).await;
    has(
        &made,
        &json!({"policies": ["a", "b"], "lease_duration": 60, "num_uses": 7, "token_type": "service"}),
    );
    has(
        &rig.look(&root, &made).await,
        &json!({"explicit_max_ttl": 100, "bound_cidrs": ["127.0.0.0/8"], "num_uses": 7}),
    );
    call("POST", "full", json!({"token_period": "30s", "token_type": "batch"})).await.expect(400);
    call("POST", "full", json!({"token_ttl": "1h"})).await.expect(400);
    call("POST", "full", json!({"token_period": "30s", "token_explicit_max_ttl": 0})).await.expect(204);
    let secret = call("POST", "full/secret-id", json!({})).await.expect(200).body;
    let login = json!({"role_id": role_id, "secret_id": secret["data"]["secret_id"]});
    let made = rig.make("", "auth/approle/login", login).await;
    has(&rig.look(&root, &made).await, &json!({"period": 30}));
    rig.stop().await;
}

#[tokio::test]
async fn userpass_users_keep_and_apply_every_field() {
    let (rig, root) = open().await;
    rig.as_token(&root, "POST", "sys/auth/userpass", json!({"type": "userpass"})).await.expect(204);
    let call = async |method: &str, path: &str, body: Value| {
        rig.as_token(&root, method, &format!("auth/userpass/users{path}"), body).await
    };
    let user = joined(json!({"password": "right"}), token_fields());
    call("POST", "/ann", user).await.expect(204);
    let shown = call("GET", "/ann", Value::Null).await.expect(200);
    has(shown.data(), &token_fields());
    assert!(!shown.text.contains("right") && !shown.text.contains("argon2"), "{}", shown.text);
    let login = async |password: &str| {
        rig.send("POST", "auth/userpass/login/ann", &[], json!({"password": password})).await
    };
    let made = login("right").await.expect(200).body;
    has(&made["auth"], &json!({"policies": ["a", "b"], "lease_duration": 60, "num_uses": 7}));
    has(&made["auth"]["metadata"], &json!({"username": "ann"}));
    call("POST", "/ann/password", json!({"password": "new"})).await.expect(204);
    login("right").await.expect_error(400, "invalid username or password");
    login("new").await.expect(200);
    has(call("GET", "/ann", Value::Null).await.data(), &token_fields());
    call("POST", "/nobody/password", json!({"password": "x"})).await.expect(400);
    call("POST", "/ann/password", json!({})).await.expect(400);
    // The record that holds the password holds its hash.
    let mount = rig.hub().mounts.get("auth/userpass/").unwrap().unwrap();
    let stored = mount.storage(&rig.hub().storage).get::<Value>("user/ann").unwrap().unwrap().value;
    assert!(text(&stored, "hash").starts_with("$argon2id$"), "{stored}");
    call("DELETE", "/ann", Value::Null).await.expect(204);
    login("new").await.expect_error(400, "invalid username or password");
    rig.stop().await;
}
