//! Changes of the mount table.

use serde_json::{Value, json};

use super::*;
use crate::testing;

fn data(value: Value) -> Data {
    Data::new(value.as_object().unwrap().clone())
}

fn text(outcome: Result<impl std::fmt::Debug, ApiError>) -> String {
    let error = outcome.unwrap_err();
    assert_eq!(error.status(), 400);
    error.to_string()
}

#[tokio::test]
async fn a_mount_is_routed_to_at_once_and_no_more_after_it_is_disabled() {
    let (_store, hub, cx) = testing::hub();
    assert!(hub.mounts.route("team/kv/a").unwrap().is_none());
    enable(&cx, Family::Secret, "team/kv", &data(json!({"type": "kv-v2"}))).await.unwrap();
    let route = hub.mounts.route("team/kv/a").unwrap().unwrap();
    assert_eq!((route.rest.as_str(), route.mount.kind.as_str()), ("a", "kv"));
    assert_eq!(route.mount.options.get("version").unwrap(), "2");
    assert!(route.mount.accessor.starts_with("kv_") && route.mount.accessor.len() == 11);
    let inside = route.mount.storage(&cx.storage);
    inside.put("x", &1).await.unwrap();
    disable(&cx, Family::Secret, "team/kv/").await.unwrap();
    assert!(hub.mounts.route("team/kv/a").unwrap().is_none());
    assert_eq!(inside.count("").unwrap(), 0);
    disable(&cx, Family::Secret, "team/kv/").await.unwrap();
}

#[tokio::test]
async fn paths_are_taken_once_and_never_nest() {
    let (_store, _hub, cx) = testing::hub();
    let kv = data(json!({"type": "kv"}));
    enable(&cx, Family::Secret, "a/b", &kv).await.unwrap();
    let refused = async |family, path| text(enable(&cx, family, path, &kv).await);
    assert_eq!(refused(Family::Secret, "a/b/").await, "path is already in use at a/b/");
    assert_eq!(refused(Family::Secret, "a").await, "existing mount at a/b/");
    assert_eq!(refused(Family::Secret, "a/b/c").await, "existing mount at a/b/");
    assert_eq!(refused(Family::Secret, "sys").await, "path is already in use at sys/");
    assert_eq!(refused(Family::Secret, "sys/x").await, "cannot mount \"sys/x/\"");
    assert_eq!(refused(Family::Secret, "auth/x").await, "cannot mount \"auth/x/\"");
    assert_eq!(refused(Family::Auth, "x").await, "plugin not found in the catalog: kv");
    assert_eq!(refused(Family::Secret, "x/../y").await, "path cannot contain parent references");
}

#[tokio::test]
async fn of_two_concurrent_overlapping_mounts_one_stays() {
    let (_store, hub, cx) = testing::hub();
    let kv = data(json!({"type": "kv"}));
    let enabling = ["n", "n/a", "n/a/b", "n"].map(|path| enable(&cx, Family::Secret, path, &kv));
    let outcomes = futures_util::future::join_all(enabling).await;
    assert_eq!(outcomes.iter().filter(|o| o.is_ok()).count(), 1);
    assert_eq!(hub.mounts.all().unwrap().iter().filter(|e| e.path.starts_with("n/")).count(), 1);
}

#[tokio::test]
async fn tuning_merges_and_keeps_to_the_system_maximum() {
    let (_store, hub, cx) = testing::hub();
    let system = hub.mounts.system_ttls();
    let new = json!({"type": "kv", "config": {"default_lease_ttl": "1h", "max_lease_ttl": 7200}});
    enable(&cx, Family::Secret, "kv", &data(new)).await.unwrap();
    let ttls = async || {
        let mount = hub.mounts.get("kv/").unwrap().unwrap();
        let held = hub.mounts.ttls(&mount);
        (held.default, held.max)
    };
    assert_eq!(ttls().await, (3600, 7200));
    let tune = async |fields| tune(&cx, Family::Secret, "kv/", &data(fields)).await;
    tune(json!({"description": "ours", "max_lease_ttl": "system"})).await.unwrap();
    assert_eq!(ttls().await, (3600, system.max));
    let warnings = tune(json!({"max_lease_ttl": "100000h"})).await.unwrap();
    assert_eq!((warnings.len(), ttls().await), (1, (3600, system.max)));
    assert_eq!(hub.mounts.get("kv/").unwrap().unwrap().description, "ours");
    text(tune(json!({"default_lease_ttl": 10, "max_lease_ttl": 5})).await);
    text(tune(json!({"options": {"version": "2"}})).await);
    let missing = text(super::tune(&cx, Family::Secret, "nope/", &data(json!({}))).await);
    assert_eq!(missing, "No secret engine mount at nope/");
    let missing = text(super::tune(&cx, Family::Auth, "auth/nope/", &data(json!({}))).await);
    assert_eq!(missing, "No auth engine at nope/");
}

#[tokio::test]
async fn a_mount_on_its_way_out_answers_nothing_but_can_revoke() {
    let (_store, hub, cx) = testing::hub();
    enable(&cx, Family::Secret, "kv", &data(json!({"type": "kv"}))).await.unwrap();
    taint(&cx, "kv/").await.unwrap();
    assert!(hub.mounts.route("kv/a").unwrap().is_none());
    assert!(hub.mounts.owner("kv/a").unwrap().is_some());
    let again = enable(&cx, Family::Secret, "kv", &data(json!({"type": "kv"}))).await;
    assert_eq!(text(again), "path is already in use at kv/");
    let refused = text(Err::<(), _>(left_over("kv/", 3)));
    assert!(refused.starts_with("3 ") && refused.contains("sys/leases/revoke-force/kv/"), "{refused}");
    disable(&cx, Family::Secret, "kv").await.unwrap();
    assert!(hub.mounts.owner("kv/a").unwrap().is_none());
}

#[tokio::test]
async fn a_login_method_is_not_disabled_as_if_it_were_a_secrets_engine() {
    let (_store, hub, cx) = testing::hub();
    enable(&cx, Family::Auth, "u", &data(json!({"type": "userpass"}))).await.unwrap();
    let refused = text(disable(&cx, Family::Secret, "auth/u").await);
    assert_eq!(refused, "No secret engine mount at auth/u/");
    assert!(hub.mounts.route("auth/u/login/x").unwrap().is_some());
    disable(&cx, Family::Auth, "u").await.unwrap();
    assert!(hub.mounts.route("auth/u/login/x").unwrap().is_none());
}

#[tokio::test]
async fn a_disabled_mount_issues_nothing_any_more() {
    let (_store, hub, cx) = testing::hub();
    enable(&cx, Family::Auth, "u", &data(json!({"type": "userpass"}))).await.unwrap();
    let entry = hub.mounts.get("auth/u/").unwrap().unwrap();
    let write = async || {
        let mut txn = cx.storage.txn();
        entry.require_mounted(&mut txn);
        txn.put("x", &1).unwrap();
        txn.commit().await
    };
    write().await.unwrap();
    disable(&cx, Family::Auth, "u").await.unwrap();
    assert!(crate::mount::is_gone(&write().await.unwrap_err()));
    // Long afterwards the mark is dropped by the next removal.
    cx.storage.put(&format!("sys/mount-gone/{}", entry.uuid), &0).await.unwrap();
    enable(&cx, Family::Secret, "kv", &data(json!({"type": "kv"}))).await.unwrap();
    disable(&cx, Family::Secret, "kv").await.unwrap();
    assert_eq!(cx.storage.count("sys/mount-gone/").unwrap(), 1);
}

/// Writes of every sort that were let in before their mount was disabled and arrive after its data were removed.
#[tokio::test]
async fn a_late_write_leaves_nothing_in_a_removed_mount() {
    use crate::logical::Operation::{Delete, Patch, Write};
    let (_store, hub, cx) = testing::hub();
    for (family, kind, writes) in [
        (Family::Secret, "kv", &[(Write, "a"), (Delete, "b")][..]),
        (
            Family::Secret,
            "kv-v2",
            &[
                (Write, "data/a"),
                (Patch, "data/b"),
                (Write, "config"),
                (Write, "metadata/a"),
                (Write, "destroy/b"),
            ],
        ),
        (Family::Secret, "database", &[(Write, "roles/a")]),
        (Family::Auth, "userpass", &[(Write, "users/a")]),
        (Family::Auth, "approle", &[(Write, "role/a")]),
    ] {
        enable(&cx, family, kind, &data(json!({"type": kind}))).await.unwrap();
        let path = family.path(kind);
        let route = hub.mounts.owner(&path).unwrap().unwrap();
        let body =
            json!({"data": {"v": 1}, "db_name": "x", "password": "x", "role_id": "x", "versions": [1]});
        let write = async |operation, rest: &str| {
            let request = testing::request(operation, &path, rest, body.clone());
            route.engine.handle(&cx, &route.mount, &request).await
        };
        if family == Family::Secret && kind != "database" {
            write(Write, if kind == "kv" { "b" } else { "data/b" }).await.unwrap();
        }
        taint(&cx, &path).await.unwrap();
        let inside = route.mount.storage(&cx.storage);
        let before = inside.count("").unwrap();
        for (operation, rest) in writes {
            let error = write(*operation, rest).await.unwrap_err();
            assert!(crate::mount::was_gone(&error), "{kind}: {operation:?} {rest}: {error:?}");
        }
        assert_eq!(inside.count("").unwrap(), before, "{kind}");
        disable(&cx, family, kind).await.unwrap();
        assert_eq!(inside.count("").unwrap(), 0, "{kind}");
    }
}
