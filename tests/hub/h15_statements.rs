//! Statements in every form in which people write them, through the API.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use holdfast_tests::api::{Api, CREATE_ROLE};
use holdfast_tests::db::{ADMIN, ADMIN_PASSWORD, MariaDbServer, PostgresServer};
use holdfast_tests::hub::{Cluster, PATIENCE};
use holdfast_tests::oracle::{Login, settled};
use serde_json::{Value, json};

/// Writes a role, takes a login, tries it and revokes it.
async fn round(
    api: &Api,
    database: &PostgresServer,
    name: &str,
    creation: Value,
    revocation: Value,
) -> Login {
    let role = json!({"db_name": "pg", "creation_statements": creation, "revocation_statements": revocation,
        "default_ttl": "1h"});
    api.put(&format!("database/roles/{name}"), role).await.expect(204);
    let login = Login::issue(api, &format!("database/creds/{name}"))
        .await
        .unwrap_or_else(|| panic!("{name}: no login"));
    assert!(login.works(database).await, "{name}");
    api.put("sys/leases/revoke", json!({"lease_id": login.lease, "sync": true})).await.expect(204);
    assert!(!login.works(database).await, "{name}");
    login
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_takes_every_form() {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    let api = cluster.api(0);
    api.setup_postgres(&database, "1h").await;
    database.execute("CREATE TABLE notes (name text, note text); CREATE SCHEMA forms").await;
    let create = CREATE_ROLE.trim_end_matches(';');
    let base64 = |text: &str| BASE64_STANDARD.encode(text);
    let array = json!([create, "COMMENT ON ROLE \"{{username}}\" IS 'a;b'"]).to_string();
    let quoted = format!(
        "{create}; INSERT INTO notes VALUES ('{{{{name}}}}', 'one; two -- three'); -- the end; really"
    );
    let block = format!(
        "{create}; DO $$ BEGIN INSERT INTO notes VALUES ('{{{{name}}}}', 'x;y'); \
         INSERT INTO notes VALUES ('{{{{name}}}}', $q$semi;colon$q$); END $$;"
    );
    let ends = "DO $body$\nBEGIN\n  CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}';\n  \
                INSERT INTO notes VALUES ('{{name}}', 'block');\nEND\n$body$";
    let atomic = "CREATE FUNCTION forms.f() RETURNS int LANGUAGE SQL BEGIN ATOMIC SELECT 1; \
                  SELECT CASE WHEN true THEN 2 END; END; GRANT EXECUTE ON FUNCTION forms.f() TO \"{{name}}\"";
    let forms: [(&str, Value); 8] = [
        ("plain", json!(CREATE_ROLE)),
        ("list", json!([format!("{create};"), "GRANT USAGE ON SCHEMA public TO \"{{username}}\""])),
        ("base64", json!(base64(CREATE_ROLE))),
        ("mixed", json!([base64(&format!("{create};")), "COMMENT ON ROLE \"{{name}}\" IS 'x'"])),
        ("array", json!(array)),
        ("quoted", json!(quoted)),
        (
            "block",
            json!([block, ends.replace("CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}'", "NULL")]),
        ),
        ("atomic", json!([create, atomic])),
    ];
    for (name, creation) in forms {
        let login = round(&api, &database, name, creation, json!([])).await;
        let notes = format!("SELECT note FROM notes WHERE name = '{}' ORDER BY note", login.username);
        let expected: &[&str] = match name {
            "quoted" => &["one; two -- three"],
            "block" => &["block", "semi;colon", "x;y"],
            _ => &[],
        };
        assert_eq!(database.query(&notes).await, expected, "{name}");
    }
    round(&api, &database, "ends", json!([ends]), json!(["DROP ROLE IF EXISTS \"{{name}}\""])).await;
    let revoke = json!(["INSERT INTO notes VALUES ('gone', '{{name}}'); DROP ROLE IF EXISTS \"{{name}}\";"]);
    let plain = json!("CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}'");
    let login = round(&api, &database, "revoked", plain, revoke).await;
    assert_eq!(database.query("SELECT note FROM notes WHERE name = 'gone'").await, [login.username]);
    assert_eq!(database.users("v-").await, [""; 0]);
    settled(&api, &database, PATIENCE).await;
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_given_renewal_and_rollback_statements_are_used() {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    let api = cluster.api(0);
    api.setup_postgres(&database, "1h").await;
    database.execute("CREATE TABLE notes (name text, note text)").await;
    let role = json!({"db_name": "pg", "default_ttl": "1h", "max_ttl": "24h", "creation_statements": CREATE_ROLE,
        "renew_statements": ["ALTER ROLE \"{{name}}\" VALID UNTIL '{{expiration}}'; INSERT INTO notes VALUES ('renewed', '{{name}}')"]});
    api.put("database/roles/renewing", role).await.expect(204);
    let login = Login::issue(&api, "database/creds/renewing").await.expect("a login");
    api.put("sys/leases/renew", json!({"lease_id": login.lease, "increment": "2h"})).await.expect(200);
    assert_eq!(
        database.query("SELECT note FROM notes WHERE name = 'renewed'").await,
        std::slice::from_ref(&login.username)
    );

    // A renewal that the database refuses changes nothing.
    database.execute("DROP TABLE notes").await;
    let before = api.put("sys/leases/lookup", json!({"lease_id": login.lease})).await.expect(200);
    let refused = api.put("sys/leases/renew", json!({"lease_id": login.lease, "increment": "9h"})).await;
    assert!(refused.status >= 400, "{}", refused.body);
    let after = api.put("sys/leases/lookup", json!({"lease_id": login.lease})).await.expect(200);
    assert_eq!(before.text("expire_time"), after.text("expire_time"));
    assert!(login.works(&database).await);
    let shown = api.get("database/roles/renewing").await.expect(200);
    assert_eq!((&shown.data()["default_ttl"], &shown.data()["max_ttl"]), (&json!(3600), &json!(86400)));
    settled(&api, &database, PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_takes_every_form() {
    let (cluster, database) = (Cluster::start(1).await, MariaDbServer::start().await);
    let api = cluster.api(0);
    api.put("sys/mounts/database", json!({"type": "database"})).await.expect(204);
    let config = json!({"plugin_name": "mysql-database-plugin", "connection_url": database.url_template(),
        "allowed_roles": "*", "username": ADMIN, "password": ADMIN_PASSWORD});
    api.put("database/config/my", config).await.expect(204);
    database.execute("CREATE TABLE app.notes (name varchar(64), note varchar(64))").await;
    let create = "CREATE USER '{{name}}'@'%' IDENTIFIED BY '{{password}}'";
    let grant = "GRANT SELECT ON app.* TO '{{username}}'@'%'";
    for (name, creation) in [
        ("plain", json!(format!("{create}; {grant};"))),
        ("list", json!([create, grant])),
        ("base64", json!(BASE64_STANDARD.encode(format!("{create}; {grant}")))),
        ("array", json!(json!([create, grant]).to_string())),
        (
            "quoted",
            json!(format!(
                "{create}; INSERT INTO app.notes VALUES ('{{{{name}}}}', \"one; two # three\"); # the end; really"
            )),
        ),
    ] {
        let role = json!({"db_name": "my", "creation_statements": creation, "default_ttl": "1h"});
        api.put(&format!("database/roles/{name}"), role).await.expect(204);
        let login =
            Login::issue(&api, &format!("database/creds/{name}")).await.unwrap_or_else(|| panic!("{name}"));
        assert!(database.can_log_in(&login.username, &login.password).await, "{name}");
        api.put("sys/leases/revoke", json!({"lease_id": login.lease, "sync": true})).await.expect(204);
        assert!(!database.can_log_in(&login.username, &login.password).await, "{name}");
    }
    assert_eq!(database.query("SELECT note FROM app.notes").await, ["one; two # three"]);
    // What fails half-way leaves no user behind.
    let half = json!({"db_name": "my", "creation_statements": [create, "GRANT SELECT ON nowhere.nothing TO 'x'"],
        "default_ttl": "1h"});
    api.put("database/roles/half", half).await.expect(204);
    api.get("database/creds/half").await.expect(500);
    assert_eq!(database.users("v-").await, [""; 0]);
    cluster.check_logs(&["nowhere.nothing"]);
}
