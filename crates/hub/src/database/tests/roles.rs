//! What a role keeps and shows.

use serde_json::json;

use super::world::{World, field, logical};
use crate::logical::Operation;

#[tokio::test(start_paused = true)]
async fn a_role_shows_every_field_and_its_times_as_seconds() {
    let world = World::new().await;
    let role = json!({
        "db_name": "db", "creation_statements": ["A", "B"], "revocation_statements": "C; D",
        "renew_statements": ["E"], "rollback_statements": ["F"], "default_ttl": "90s", "max_ttl": "2h",
        "credential_type": "password", "credential_config": {"password_policy": "strong"},
    });
    world.write("roles/full", role).await.unwrap();
    let read = logical(world.read("roles/full").await.unwrap());
    let shown = json!({
        "db_name": "db", "creation_statements": ["A", "B"], "revocation_statements": ["C; D"],
        "renew_statements": ["E"], "rollback_statements": ["F"], "default_ttl": 90, "max_ttl": 7200,
        "credential_type": "password", "credential_config": {"password_policy": "strong"},
    });
    assert_eq!(serde_json::Value::Object(read.data.unwrap()), shown);
    // What a later write does not name stays.
    world.write("roles/full", json!({"default_ttl": 30})).await.unwrap();
    let read = logical(world.read("roles/full").await.unwrap());
    assert_eq!((field(&read, "default_ttl"), field(&read, "max_ttl")), (json!(30), json!(7200)));
    assert_eq!(field(&read, "creation_statements"), json!(["A", "B"]));

    for (body, text) in [
        (json!({"creation_statements": "A"}), "database name is required"),
        (json!({"db_name": "db", "default_ttl": "2h", "max_ttl": "1h"}), "default_ttl exceeds max_ttl"),
        (json!({"db_name": "db", "credential_type": "x"}), "unsupported credential_type: \"x\""),
        (json!({"db_name": "db", "credential_config": {"a": "b"}}), "unknown credential_config field \"a\""),
    ] {
        let error = world.write("roles/wrong", body).await.unwrap_err();
        assert_eq!((error.status(), error.to_string()), (400, text.to_owned()));
    }
    let keys = logical(world.call(Operation::List, "roles", json!({})).await.unwrap());
    assert_eq!(field(&keys, "keys"), json!(["full", "r"]));
    world.call(Operation::Delete, "roles/full", json!({})).await.unwrap();
    assert_eq!(world.read("roles/full").await.unwrap_err().status(), 404);
}
