//! Rotations: static roles and a connection's own password, with crashes and refusals.

use std::time::Duration;

use serde_json::json;

use super::world::{World, field, logical, polled, text};
use crate::database::fake::Behave;
use crate::logical::Operation;

const STATIC: &str = "static-roles/app";

async fn with_static() -> World {
    let world = World::new().await;
    world.database.add("app", "first");
    let role = json!({"db_name": "db", "username": "app", "rotation_period": "60s"});
    world.write(STATIC, role).await.unwrap();
    world
}

async fn password(world: &World) -> String {
    text(&logical(world.read("static-creds/app").await.unwrap()), "password")
}

#[tokio::test(start_paused = true)]
async fn a_static_role_rotates_at_creation_then_on_time() {
    let mut world = with_static().await;
    let first = password(&world).await;
    assert_eq!(world.database.user("app").unwrap().password, first);
    world.start();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(password(&world).await, first);
    let creds = logical(world.read("static-creds/app").await.unwrap());
    let ttl = field(&creds, "ttl").as_u64().unwrap();
    assert!((28..=31).contains(&ttl), "{ttl}");
    assert!(creds.lease.is_none());
    tokio::time::sleep(Duration::from_secs(33)).await;
    let second = password(&world).await;
    assert_ne!(second, first);
    assert_eq!(world.database.user("app").unwrap().password, second);
    world.write("rotate-role/app", json!({})).await.unwrap();
    assert_ne!(password(&world).await, second);
    let read = logical(world.read(STATIC).await.unwrap());
    assert_eq!(field(&read, "rotation_period"), json!(60));
    assert!(text(&read, "last_vault_rotation").contains('T'));
}

#[tokio::test(start_paused = true)]
async fn names_of_roles_are_unique_and_periods_are_bounded() {
    let world = with_static().await;
    let error =
        world.write("roles/app", json!({"db_name": "db", "creation_statements": "X"})).await.unwrap_err();
    assert_eq!(
        (error.status(), error.to_string()),
        (400, "Role and Static Role names must be unique".into())
    );
    let role = json!({"db_name": "db", "username": "other", "rotation_period": 60});
    let error = world.write("static-roles/r", role).await.unwrap_err();
    assert_eq!(error.to_string(), "Role and Static Role names must be unique");
    let role = json!({"db_name": "db", "username": "other", "rotation_period": 4});
    assert_eq!(world.write("static-roles/x", role).await.unwrap_err().status(), 400);
    let error = world.write(STATIC, json!({"username": "other"})).await.unwrap_err();
    assert_eq!(error.status(), 400);
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_the_database_refuses_keeps_no_role() {
    let world = World::new().await;
    world.database.update(&[Behave::Refuse]);
    world.database.add("app", "first");
    let role = json!({"db_name": "db", "username": "app", "rotation_period": "60s"});
    assert_eq!(world.write(STATIC, role).await.unwrap_err().status(), 500);
    assert_eq!(world.read(STATIC).await.unwrap_err().status(), 404);
    world.check_no_names();
    assert_eq!(world.database.user("app").unwrap().password, "first");
}

#[tokio::test(start_paused = true)]
async fn a_password_that_the_rules_refuse_is_replaced_by_another() {
    let world = with_static().await;
    let before = password(&world).await;
    world.database.update(&[Behave::RefusePolicy]);
    world.write("rotate-role/app", json!({})).await.unwrap();
    let after = password(&world).await;
    assert_ne!(after, before);
    assert_eq!(world.database.user("app").unwrap().password, after);
}

#[tokio::test(start_paused = true)]
async fn a_rotation_that_fails_is_tried_again() {
    let mut world = with_static().await;
    world.start();
    for behave in [Behave::Refuse, Behave::Unreachable, Behave::LoseAnswer, Behave::LoseRequest] {
        world.database.update(&[behave]);
        let before = password(&world).await;
        tokio::time::sleep(Duration::from_secs(80)).await;
        let after = password(&world).await;
        assert_ne!(after, before, "{behave:?}");
        assert_eq!(world.database.user("app").unwrap().password, after, "{behave:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_every_step_of_a_static_rotation_is_rolled_forward() {
    let mut steps = 0;
    loop {
        let mut world = with_static().await;
        let done = polled(steps, world.write("rotate-role/app", json!({}))).await;
        world.take_over().await;
        world.start();
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(world.database.user("app").unwrap().password, password(&world).await, "step {steps}");
        assert_eq!(world.storage.scan_keys("dbrotate/record/", None, 10).unwrap().len(), 0);
        world.stop().await;
        if done.is_some() {
            break;
        }
        steps += 1;
        assert!(steps < 100);
    }
    assert!(steps >= 3);
}

#[tokio::test(start_paused = true)]
async fn root_rotation_locks_out_the_old_password() {
    let world = World::new().await;
    world.write("rotate-root/db", json!({})).await.unwrap();
    assert_ne!(world.database.user("root").unwrap().password, "root-password");
    world.creds().await.unwrap();
    let read = logical(world.read("config/db").await.unwrap());
    assert_eq!(field(&read, "needs_attention"), json!(null));
}

#[tokio::test(start_paused = true)]
async fn a_root_rotation_of_unknown_outcome_is_found_out() {
    for behave in [Behave::LoseAnswer, Behave::LoseRequest, Behave::Refuse, Behave::RefusePolicy] {
        let world = World::new().await;
        world.database.update(&[behave]);
        let answer = world.write("rotate-root/db", json!({})).await;
        let rotated = world.database.user("root").unwrap().password != "root-password";
        assert_eq!(answer.is_ok(), rotated, "{behave:?}");
        assert_eq!(world.storage.scan_keys("dbroot/", None, 10).unwrap().len(), 0, "{behave:?}");
        world.creds().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_every_step_of_a_root_rotation_is_recovered() {
    let mut steps = 0;
    loop {
        let mut world = World::new().await;
        let done = polled(steps, world.write("rotate-root/db", json!({}))).await;
        world.take_over().await;
        world.start();
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(world.storage.scan_keys("dbroot/", None, 10).unwrap().len(), 0, "step {steps}");
        world.creds().await.unwrap();
        world.stop().await;
        if done.is_some() {
            break;
        }
        steps += 1;
        assert!(steps < 100);
    }
    assert!(steps >= 3);
}

#[tokio::test(start_paused = true)]
async fn when_neither_password_works_both_are_kept_and_an_operator_is_called() {
    let mut world = World::new().await;
    world.database.update(&[Behave::Hang]);
    let request = polled(4, world.write("rotate-root/db", json!({}))).await;
    assert!(request.is_none());
    assert_eq!(world.storage.scan_keys("dbroot/", None, 10).unwrap().len(), 1);
    world.database.add("root", "someone-elses");
    world.take_over().await;
    world.start();
    tokio::time::sleep(Duration::from_secs(15)).await;
    let read = logical(world.read("config/db").await.unwrap());
    assert!(text(&read, "needs_attention").contains("neither"));
    assert_eq!(world.storage.scan_keys("dbroot/", None, 10).unwrap().len(), 1);
    let error = world.write("rotate-root/db", json!({})).await.unwrap_err();
    assert_eq!(error.status(), 500);
    // The old password is put back by hand: the record is dropped.
    world.database.add("root", "root-password");
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(world.storage.scan_keys("dbroot/", None, 10).unwrap().len(), 0);
    world.creds().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_static_role_that_is_deleted_leaves_its_user() {
    let world = with_static().await;
    world.call(Operation::Delete, STATIC, json!({})).await.unwrap();
    assert!(world.database.user("app").is_some());
    world.check_no_names();
    assert_eq!(world.storage.scan_keys("dbrotate/", None, 10).unwrap().len(), 0);
}
