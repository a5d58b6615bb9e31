//! The shapes of names and passwords that databases really get.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::StreamExt as _;
use holdfast_tests::api::{Api, CREATE_ROLE};
use holdfast_tests::db::{ADMIN, ADMIN_PASSWORD, MariaDbServer, PostgresServer};
use holdfast_tests::hub::Cluster;
use holdfast_tests::oracle::Login;
use serde_json::json;

fn alphanumeric(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric())
}

fn check_password(password: &str) {
    assert_eq!(password.len(), 20, "{password}");
    for class in [u8::is_ascii_lowercase, u8::is_ascii_uppercase, u8::is_ascii_digit, |b: &u8| *b == b'-'] {
        assert!(password.as_bytes().iter().any(class), "{password}");
    }
    assert!(password.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{password}");
}

/// A token whose display name is `ann-of-the-long-name` after a prefix.
async fn named(root: &Api) -> Api {
    root.put("sys/policies/acl/d", json!({"policy": "path \"*\" { capabilities = [\"read\"] }"}))
        .await
        .expect(204);
    let body = json!({"policies": ["d"], "display_name": "ann-of-the-long-name"});
    let made = root.put("auth/token/create", body).await.expect(200);
    root.with_token(made.body["auth"]["client_token"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_names_have_their_shape_and_never_clash() {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    let root = cluster.api(0);
    root.setup_postgres(&database, "1h").await;
    let role = json!({"db_name": "pg", "creation_statements": CREATE_ROLE, "default_ttl": "1h"});
    root.put("database/roles/reporting-of-sales", role).await.expect(204);
    let api = named(&root).await;
    let logins: Vec<Login> = futures_util::stream::iter(0..300)
        .map(|_| async {
            let reply = api.get("database/creds/reporting-of-sales").await.expect(200);
            let lease = reply.body["lease_id"].as_str().unwrap().to_owned();
            Login { lease, username: reply.text("username"), password: reply.text("password") }
        })
        .buffer_unordered(16)
        .collect()
        .await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for login in &logins {
        let parts = login.username.strip_prefix("v-").unwrap();
        // v- display(8) - role(8) - 20 random - seconds
        let (display, rest) = parts.split_at(8);
        let (role, rest) = rest.strip_prefix('-').unwrap().split_at(8);
        let (random, seconds) = rest.strip_prefix('-').unwrap().split_once('-').unwrap();
        assert_eq!((display, role), ("token-an", "reportin"), "{}", login.username);
        assert!(random.len() == 20 && alphanumeric(random), "{}", login.username);
        let seconds: u64 = seconds.parse().unwrap();
        assert!(now.abs_diff(seconds) < 120 && login.username.len() <= 63, "{}", login.username);
        check_password(&login.password);
    }
    let distinct: HashSet<_> = logins.iter().map(|login| &login.username).collect();
    assert_eq!(distinct.len(), logins.len());
    let passwords: HashSet<_> = logins.iter().map(|login| &login.password).collect();
    assert_eq!(passwords.len(), logins.len());
    let mut users = database.users("v-").await;
    let mut names: Vec<_> = logins.iter().map(|login| login.username.clone()).collect();
    users.sort();
    names.sort();
    assert_eq!(users, names);
    for login in logins.iter().step_by(50) {
        assert!(login.works(&database).await);
    }
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_names_fit_into_thirty_two_characters() {
    let (cluster, database) = (Cluster::start(1).await, MariaDbServer::start().await);
    let root = cluster.api(0);
    root.put("sys/mounts/database", json!({"type": "database"})).await.expect(204);
    let config = json!({"plugin_name": "mysql-database-plugin", "connection_url": database.url_template(),
        "allowed_roles": "*", "username": ADMIN, "password": ADMIN_PASSWORD});
    root.put("database/config/my", config).await.expect(204);
    let role = json!({"db_name": "my", "default_ttl": "1h",
        "creation_statements": "CREATE USER '{{name}}'@'%' IDENTIFIED BY '{{password}}'"});
    root.put("database/roles/reporting-of-sales", role).await.expect(204);
    let api = named(&root).await;
    for _ in 0..20 {
        let login = Login::issue(&api, "database/creds/reporting-of-sales").await.expect("a login");
        let random =
            login.username.strip_prefix("v-toke-reportin-").unwrap_or_else(|| panic!("{}", login.username));
        assert!(login.username.len() <= 32 && random.len() >= 15, "{}", login.username);
        assert!(random.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{}", login.username);
        check_password(&login.password);
        assert!(database.can_log_in(&login.username, &login.password).await);
    }
    assert_eq!(database.users("v-").await.len(), 20);
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_and_password_policies_shape_both() {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    let root = cluster.api(0);
    root.setup_postgres(&database, "1h").await;
    let rules = "length = 32\nrule \"charset\" { charset = \"abcdef\" }\nrule \"charset\" {\n charset = \"0123\"\n min-chars = 4\n}";
    root.put("sys/policies/password/hexish", json!({"policy": rules})).await.expect(204);
    let made = root.get("sys/policies/password/hexish/generate").await.expect(200).text("password");
    assert_eq!(made.len(), 32);
    let change = json!({"password_policy": "hexish",
        "username_template": "app_{{.RoleName | uppercase}}_{{random 6 | lowercase}}_{{unix_time}}"});
    root.put("database/config/pg", change).await;
    for _ in 0..5 {
        let login = Login::issue(&root, "database/creds/app").await.expect("a login");
        assert!(login.username.starts_with("app_APP_"), "{}", login.username);
        assert_eq!(login.password.len(), 32);
        assert!(login.password.bytes().all(|b| b"abcdef0123".contains(&b)), "{}", login.password);
        assert!(login.password.bytes().filter(u8::is_ascii_digit).count() >= 4);
        assert!(login.works(&database).await);
    }
    for bad in [
        "length = 3\nrule \"charset\" { charset = \"a\" }",
        "length = 101\nrule \"charset\" { charset = \"a\" }",
        "length = 10",
    ] {
        root.put("sys/policies/password/bad", json!({"policy": bad})).await.expect(400);
    }
    for bad in ["{{.Nothing}}", "{{random}", "{{nosuch 3}}"] {
        let reply = root.put("database/config/pg", json!({"username_template": bad})).await;
        assert_eq!(reply.status, 400, "{bad}: {}", reply.body);
    }
    cluster.check_logs(&[]);
}
