use super::*;
use serde_json::{Map, Value, json};

fn body(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn postgres() -> DriverConfig {
    DriverConfig::merged(
        None,
        &body(json!({
            "plugin_name": "postgresql-database-plugin",
            "connection_url": "postgres://{{username}}:{{password}}@127.0.0.1/db",
            "username": "root", "password": "hunter2hunter2", "allowed_roles": "app-*, exact",
            "max_open_connections": "4", "operation_timeout": "1m",
        })),
    )
    .unwrap()
}

#[test]
fn unknown_plugins_are_named_with_those_that_exist() {
    let error = DriverConfig::merged(None, &body(json!({"plugin_name": "oracle"}))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown plugin \"oracle\"; supported: postgresql-database-plugin, mysql-database-plugin, \
         remote-postgres-plugin, remote-mysql-plugin"
    );
}

#[test]
fn every_field_is_accepted_and_all_but_secrets_are_shown() {
    let written = json!({
        "plugin_name": "remote-postgres-plugin", "plugin_version": "v1.2.3", "verify_connection": false,
        "allowed_roles": ["a", "b-*"], "root_rotation_statements": ["ROTATE"], "password_policy": "strong",
        "connection_url": "postgres://{{username}}:{{password}}@h/db", "username": "root", "password": "secret-1",
        "disable_escaping": true, "max_open_connections": 256, "max_idle_connections": 3,
        "max_connection_lifetime": "2m", "username_template": "{{.RoleName}}-{{random 4}}",
        "password_authentication": "scram-sha-256", "tls_ca": "CA", "tls_certificate": "CERT",
        "private_key": "secret-2", "tls_certificate_key": "secret-3", "tls_server_name": "db.test",
        "tls_skip_verify": true, "operation_timeout": 90, "terminate_sessions_on_revoke": true,
        "spoke_name": "site-a",
    });
    let config = DriverConfig::merged(None, &body(written)).unwrap();
    let shown = json!({
        "plugin_name": "remote-postgres-plugin", "plugin_version": "", "verify_connection": false,
        "allowed_roles": ["a", "b-*"], "root_credentials_rotate_statements": ["ROTATE"], "password_policy": "strong",
        "connection_details": {
            "connection_url": "postgres://{{username}}:{{password}}@h/db", "username": "root",
            "disable_escaping": true, "max_open_connections": 256, "max_idle_connections": 3,
            "max_connection_lifetime": "120s", "username_template": "{{.RoleName}}-{{random 4}}",
            "password_authentication": "scram-sha-256", "tls_ca": "CA", "tls_certificate": "CERT",
            "tls_server_name": "db.test", "tls_skip_verify": true, "operation_timeout": 90,
            "terminate_sessions_on_revoke": true, "spoke_name": "site-a",
        },
    });
    assert_eq!(Value::Object(config.view()), shown);
    assert_eq!(config.password.expose_secret(), "secret-1");
    assert_eq!(config.private_key.expose_secret(), "secret-2");
    assert_eq!(config.tls_certificate_key.expose_secret(), "secret-3");

    let least = json!({"plugin_name": "mysql-database-plugin", "connection_url": "root:x@tcp(h)/"});
    let least = DriverConfig::merged(None, &body(least)).unwrap();
    assert!(least.verify_connection && least.allowed_roles.is_empty() && !least.terminate_sessions_on_revoke);
    assert_eq!((least.max_open_connections, least.operation_timeout), (16, Duration::from_secs(30)));
}

#[test]
fn writes_merge_with_what_is_stored() {
    let stored = postgres();
    assert_eq!((stored.max_open_connections, stored.operation_timeout), (4, Duration::from_secs(60)));
    let written = body(json!({"max_open_connections": 0, "username": "other"}));
    let merged = DriverConfig::merged(Some(&stored), &written).unwrap();
    assert_eq!((merged.max_open_connections, merged.username.as_str()), (16, "other"));
    assert_eq!(merged.password.expose_secret(), "hunter2hunter2");
    assert_eq!(merged.allowed_roles, ["app-*", "exact"]);
}

#[test]
fn a_masked_url_written_back_keeps_the_password() {
    let stored = DriverConfig::new(PluginName::Postgres, "postgres://u:secret@h/db");
    let masked = stored.view()["connection_details"]["connection_url"].clone();
    assert_eq!(masked, "postgres://u:*****@h/db");
    let merged = DriverConfig::merged(Some(&stored), &body(json!({"connection_url": masked}))).unwrap();
    assert_eq!(merged.connection_url.expose_secret(), "postgres://u:secret@h/db");
}

#[test]
fn bounds_are_kept() {
    for wrong in [
        json!({"max_open_connections": 257}),
        json!({"max_open_connections": -1}),
        json!({"operation_timeout": 0}),
        json!({"operation_timeout": "91s"}),
        json!({"operation_timeout": "soon"}),
        json!({"password_authentication": "md5"}),
        json!({"username_template": "{{ .Nope }}"}),
        json!({"connection_url": ""}),
        json!({"spoke_name": "x"}),
        json!({"plugin_name": "remote-postgres-plugin"}),
        json!({"username": ""}),
        json!({"allowed_roles": 7}),
    ] {
        assert!(DriverConfig::merged(Some(&postgres()), &body(wrong.clone())).is_err(), "{wrong}");
    }
}

#[test]
fn neither_the_view_nor_debug_shows_a_secret() {
    let mut config = postgres();
    config.private_key = "KEYKEYKEY".to_owned().into();
    config.tls_certificate_key = "KEYKEYKEY".to_owned().into();
    config.connection_url = "postgres://root:inurl-secret@h/db".to_owned().into();
    for shown in [serde_json::to_string(&config.view()).unwrap(), format!("{config:?}")] {
        for secret in ["hunter2", "KEYKEY", "inurl-secret"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
    assert!(config.url_holds_password() && !postgres().url_holds_password());
    assert_eq!(
        config.scrubber().scrub("x hunter2hunter2 inurl-secret KEYKEYKEY"),
        "x [redacted] [redacted] [redacted]"
    );
}

#[test]
fn the_stored_form_keeps_everything() {
    let config = postgres();
    let restored: DriverConfig = serde_json::from_value(serde_json::to_value(&config).unwrap()).unwrap();
    assert_eq!(restored.password.expose_secret(), "hunter2hunter2");
    assert_eq!(restored.view(), config.view());
}

#[test]
fn allowed_roles_are_globs() {
    let config = postgres();
    assert!(config.allows_role("app-x") && config.allows_role("exact"));
    assert!(!config.allows_role("exactly") && !config.allows_role("xapp-"));
    for (glob, text, fits) in [
        ("*", "", true),
        ("a*c", "abc", true),
        ("a*b*c", "a1b2c", true),
        ("a*bc", "abc", true),
        ("a*a", "a", false),
    ] {
        assert_eq!(glob_matches(glob, text), fits, "{glob} {text}");
    }
    assert!(!DriverConfig::new(PluginName::Mysql, "x").allows_role("any"));
}

#[test]
fn idle_connections_are_bounded_by_open_ones() {
    let mut config = postgres();
    for (idle, limit) in [(0, 4), (2, 2), (9, 4), (-1, 0)] {
        config.max_idle_connections = idle;
        assert_eq!(config.idle_limit(), limit);
    }
}
