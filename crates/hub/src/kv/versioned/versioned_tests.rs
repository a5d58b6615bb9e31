//! kv version 2 through its engine, as clients use it.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::*;
use crate::logical::{Body, Engine};
use crate::store::CommitError;
use crate::store::memory::MemoryStore;
use crate::testing;

struct Fixture {
    store: Arc<MemoryStore>,
    cx: Cx,
    mount: MountEntry,
    engine: Arc<dyn Engine>,
}

fn fixture() -> Fixture {
    let (store, _hub, cx) = testing::hub();
    let mount = MountEntry {
        path: "secret/".into(),
        kind: "kv".into(),
        uuid: "u".into(),
        options: [("version".to_owned(), "2".to_owned())].into(),
        ..MountEntry::default()
    };
    Fixture { store, cx, mount, engine: crate::kv::engine() }
}

impl Fixture {
    async fn call(&self, operation: Operation, rest: &str, body: Value) -> Result<Response, ApiError> {
        let request = testing::request(operation, "secret/", rest, body);
        self.engine.handle(&self.cx, &self.mount, &request).await
    }

    async fn ok(&self, operation: Operation, rest: &str, body: Value) -> Value {
        let response = self.call(operation, rest, body).await.unwrap();
        assert_eq!(response.status, None, "{rest}");
        data(response)
    }

    async fn refused(&self, operation: Operation, rest: &str, body: Value) -> (u16, String) {
        let error = self.call(operation, rest, body).await.unwrap_err();
        (error.status(), error.errors().join(";"))
    }

    async fn write(&self, path: &str, value: Value) -> Value {
        self.ok(Operation::Write, &format!("data/{path}"), json!({"data": value})).await
    }

    async fn read(&self, path: &str) -> Value {
        self.ok(Operation::Read, &format!("data/{path}"), json!({})).await
    }
}

fn data(response: Response) -> Value {
    match response.body {
        Body::Logical(logical) => Value::Object(logical.data.unwrap_or_default()),
        Body::Empty => Value::Null,
        other => panic!("unexpected {other:?}"),
    }
}

#[tokio::test]
async fn versions_are_written_and_read() {
    let f = fixture();
    let first = f.write("a/b", json!({"k": 1})).await;
    assert_eq!(first["version"], 1);
    assert_eq!(first["deletion_time"], "");
    assert_eq!(first["destroyed"], false);
    assert_eq!(first["custom_metadata"], Value::Null);
    let created = first["created_time"].as_str().unwrap();
    assert!(created.ends_with('Z') && created.len() == 30, "{created}");
    assert_eq!(f.write("a/b", json!({"k": 2})).await["version"], 2);
    let newest = f.read("a/b").await;
    assert_eq!((&newest["data"]["k"], &newest["metadata"]["version"]), (&json!(2), &json!(2)));
    let old = f.ok(Operation::Read, "data/a/b", json!({"version": "1"})).await;
    assert_eq!((&old["data"], &old["metadata"]), (&json!({"k": 1}), &first));
    for missing in ["data/a/c", "data/a"] {
        assert_eq!(f.refused(Operation::Read, missing, json!({})).await, (404, String::new()));
    }
    assert_eq!(f.refused(Operation::Read, "data/a/b", json!({"version": 9})).await, (404, String::new()));
}

#[tokio::test]
async fn check_and_set_has_the_texts_that_clients_match() {
    let f = fixture();
    let with = |cas: Value| json!({"data": {"k": 1}, "options": {"cas": cas}});
    let mismatch = (400, "check-and-set parameter did not match the current version".to_owned());
    let (write, path) = (Operation::Write, "data/a");
    assert_eq!(f.refused(write, path, json!({})).await, (400, "no data provided".to_owned()));
    assert_eq!(f.refused(write, path, with(json!(1))).await, mismatch);
    f.ok(write, path, with(json!(0))).await;
    assert_eq!(f.refused(write, path, with(json!(0))).await, mismatch);
    assert_eq!(f.refused(write, path, with(json!(-1))).await, mismatch);
    f.ok(write, path, with(json!("1"))).await;
    f.ok(write, "config", json!({"cas_required": true})).await;
    let required = (400, "check-and-set parameter required for this call".to_owned());
    assert_eq!(f.refused(write, path, json!({"data": {}})).await, required);
    f.ok(write, "config", json!({"cas_required": false})).await;
    f.ok(write, "metadata/a", json!({"cas_required": true})).await;
    assert_eq!(f.refused(write, path, json!({"data": {}})).await, required);
    assert_eq!(f.refused(Operation::Patch, path, json!({"data": {}})).await, required);
}

#[tokio::test]
async fn of_concurrent_writes_with_one_cas_exactly_one_gets_through() {
    let f = fixture();
    let body = json!({"data": {"k": 1}, "options": {"cas": 0}});
    let writes = (0..16).map(|_| f.call(Operation::Write, "data/a", body.clone()));
    let outcomes = futures_util::future::join_all(writes).await;
    assert_eq!(outcomes.iter().filter(|o| o.is_ok()).count(), 1);
    let free = (0..16).map(|n| f.write("b", json!({"n": n})));
    let mut versions: Vec<_> =
        futures_util::future::join_all(free).await.iter().map(|v| v["version"].as_u64().unwrap()).collect();
    versions.sort_unstable();
    assert_eq!(versions, (1..=16).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_conflict_is_decided_anew_and_a_lost_term_is_not() {
    let f = fixture();
    f.store.fail_next(CommitError::Refused(crate::store::Condition::Present("x".into())));
    assert_eq!(f.write("a", json!({})).await["version"], 1);
    f.store.set_term(holdfast_core::Term::new(2));
    assert_eq!(f.refused(Operation::Write, "data/a", json!({"data": {}})).await.0, 503);
}

#[tokio::test]
async fn deleted_and_destroyed_versions_tell_what_became_of_them() {
    let f = fixture();
    f.write("a", json!({"k": 1})).await;
    f.write("a", json!({"k": 2})).await;
    assert_eq!(f.ok(Operation::Delete, "data/a", json!({})).await, Value::Null);
    let gone = f.call(Operation::Read, "data/a", json!({})).await.unwrap();
    assert_eq!(gone.status, Some(404));
    let gone = data(gone);
    assert_eq!(gone["data"], Value::Null);
    assert_ne!(gone["metadata"]["deletion_time"], "");
    f.ok(Operation::Write, "undelete/a", json!({"versions": [2]})).await;
    assert_eq!(f.read("a").await["data"]["k"], 2);
    f.ok(Operation::Write, "delete/a", json!({"versions": ["1", 2, 77]})).await;
    f.ok(Operation::Write, "destroy/a", json!({"versions": "2"})).await;
    f.ok(Operation::Write, "undelete/a", json!({"versions": [1, 2]})).await;
    let destroyed = f.call(Operation::Read, "data/a", json!({})).await.unwrap();
    assert_eq!((destroyed.status, &data(destroyed)["metadata"]["destroyed"]), (Some(404), &json!(true)));
    assert_eq!(f.ok(Operation::Read, "data/a", json!({"version": 1})).await["data"]["k"], 1);
    assert_eq!(f.cx.storage.count("logical/u/version/").unwrap(), 1);
    for family in ["delete", "undelete", "destroy"] {
        let refused = f.refused(Operation::Write, &format!("{family}/a"), json!({})).await;
        assert_eq!(refused, (400, "No version number provided".to_owned()));
        f.ok(Operation::Write, &format!("{family}/nothing"), json!({"versions": [1]})).await;
    }
    f.ok(Operation::Delete, "data/nothing", json!({})).await;
}

#[tokio::test]
async fn old_versions_and_their_records_go() {
    let f = fixture();
    f.ok(Operation::Write, "config", json!({"max_versions": 3})).await;
    for n in 0..5 {
        f.write("a", json!({"n": n})).await;
    }
    let metadata = f.ok(Operation::Read, "metadata/a", json!({})).await;
    assert_eq!(metadata["current_version"], 5);
    assert_eq!(metadata["oldest_version"], 3);
    assert_eq!(metadata["versions"].as_object().unwrap().keys().collect::<Vec<_>>(), ["3", "4", "5"]);
    assert_eq!(f.cx.storage.count("logical/u/version/").unwrap(), 3);
    f.ok(Operation::Delete, "metadata/a", json!({})).await;
    assert_eq!(f.cx.storage.count("logical/u/version/").unwrap(), 0);
    assert_eq!(f.refused(Operation::Read, "metadata/a", json!({})).await, (404, String::new()));
}

#[tokio::test]
async fn versions_may_end_by_themselves() {
    let f = fixture();
    f.ok(Operation::Write, "metadata/a", json!({"delete_version_after": "1h30m"})).await;
    let written = f.write("a", json!({})).await;
    assert_ne!(written["deletion_time"], "");
    assert_eq!(f.read("a").await["metadata"]["deletion_time"], written["deletion_time"]);
    let metadata = f.ok(Operation::Read, "metadata/a", json!({})).await;
    assert_eq!(metadata["delete_version_after"], "1h30m0s");
    assert_eq!(f.ok(Operation::Read, "config", json!({})).await["delete_version_after"], "0s");
}

#[tokio::test]
async fn a_patch_merges_into_the_newest_version() {
    let f = fixture();
    let patch = json!({"data": {"a": null, "b": {"y": 2}}});
    assert_eq!(f.refused(Operation::Patch, "data/p", patch.clone()).await, (404, String::new()));
    f.write("p", json!({"a": 1, "b": {"x": 1}})).await;
    assert_eq!(f.ok(Operation::Patch, "data/p", patch.clone()).await["version"], 2);
    assert_eq!(f.read("p").await["data"], json!({"b": {"x": 1, "y": 2}}));
    f.ok(Operation::Delete, "data/p", json!({})).await;
    assert_eq!(f.call(Operation::Patch, "data/p", patch).await.unwrap().status, Some(404));
}

#[tokio::test]
async fn notes_are_kept_within_bounds() {
    let f = fixture();
    let (write, patch, path) = (Operation::Write, Operation::Patch, "metadata/a");
    assert_eq!(f.refused(patch, path, json!({"max_versions": 1})).await.0, 404);
    f.ok(write, path, json!({"custom_metadata": {"owner": "me", "team": "x"}, "max_versions": "7"})).await;
    f.ok(patch, path, json!({"custom_metadata": {"team": null, "tier": "1"}, "max_versions": null})).await;
    let metadata = f.ok(Operation::Read, path, json!({})).await;
    assert_eq!(metadata["custom_metadata"], json!({"owner": "me", "tier": "1"}));
    assert_eq!((&metadata["max_versions"], &metadata["current_version"]), (&json!(0), &json!(0)));
    assert_eq!(f.refused(Operation::Read, "data/a", json!({})).await.0, 404);
    assert_eq!(f.write("a", json!({})).await["custom_metadata"]["owner"], "me");
    let many: Map<_, _> = (0..65).map(|n| (n.to_string(), json!("v"))).collect();
    for bad in [json!(many), json!({"k": 1}), json!({"k".repeat(129): "v"}), json!({"k": "v".repeat(513)})] {
        assert_eq!(f.refused(write, path, json!({"custom_metadata": bad})).await.0, 400);
    }
}

#[tokio::test]
async fn lists_show_names_and_folders_a_page_at_a_time() {
    let f = fixture();
    for path in ["a", "a/b", "c/d/e", "f"] {
        f.write(path, json!({})).await;
    }
    let keys = async |rest: &str, page: Value| f.ok(Operation::List, rest, page).await["keys"].clone();
    assert_eq!(keys("metadata/", json!({})).await, json!(["a", "a/", "c/", "f"]));
    assert_eq!(keys("metadata/c/", json!({})).await, json!(["d/"]));
    assert_eq!(keys("metadata/", json!({"after": "a/", "limit": 1})).await, json!(["c/"]));
    assert_eq!(f.refused(Operation::List, "metadata/x/", json!({})).await, (404, String::new()));
    assert_eq!(f.refused(Operation::List, "data/", json!({})).await.0, 404);
}

#[tokio::test]
async fn what_is_new_is_created_and_what_is_there_updated() {
    let f = fixture();
    let exists = async |rest: &str| {
        let request = testing::request(Operation::Write, "secret/", rest, json!({}));
        f.engine.exists(&f.cx, &f.mount, &request).await.unwrap()
    };
    assert!(!exists("data/a").await);
    f.write("a", json!({})).await;
    assert!(exists("data/a").await && exists("metadata/a").await && exists("delete/a").await);
}

#[tokio::test]
async fn other_paths_are_not_served() {
    let f = fixture();
    for rest in ["", "a", "data", "data/", "metadata/x/", "config/x"] {
        let (status, text) = f.refused(Operation::Read, rest, json!({})).await;
        assert_eq!((status, text.as_str()), (404, "unsupported path"), "{rest}");
    }
    assert_eq!(f.refused(Operation::Write, "data/a\u{7}", json!({"data": {}})).await.0, 400);
    assert_eq!(f.refused(Operation::Patch, "delete/a", json!({"versions": [1]})).await.0, 405);
}
