//! Rotations: static roles and a connection's own password, with crashes and refusals.

use std::time::Duration;

use serde_json::json;

use super::world::{URL, World, field, logical, polled, text};
use crate::database::fake::Behave;
use crate::logical::Operation;
use crate::store::CommitError;

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

#[tokio::test(start_paused = true)]
async fn there_is_one_record_a_role_however_many_rotate_it() {
    let mut world = with_static().await;
    world.start();
    world.database.update(&[Behave::Well, Behave::RefusePolicy, Behave::LoseAnswer]);
    let rotations = (0..5).map(|_| world.write("rotate-role/app", json!({})));
    let mut rotations = Box::pin(futures_util::future::join_all(rotations));
    let mut most = 0;
    let answers = loop {
        let records = world.storage.scan_keys("dbrotate/record/", None, 10).unwrap();
        assert!(records.len() <= 1, "{records:?}");
        most = most.max(records.len());
        match futures_util::poll!(rotations.as_mut()) {
            std::task::Poll::Ready(answers) => break answers,
            std::task::Poll::Pending => tokio::task::yield_now().await,
        }
    };
    assert_eq!((most, answers.iter().filter(|answer| answer.is_ok()).count()), (1, 4));
    assert_eq!(world.storage.scan_keys("dbrotate/record/", None, 10).unwrap().len(), 0);
    assert_eq!(world.database.user("app").unwrap().password, password(&world).await);
}

#[tokio::test(start_paused = true)]
async fn a_password_is_not_changed_when_it_cannot_be_written_down_first() {
    for error in [|| CommitError::NotLeader, || CommitError::Unknown] {
        let world = with_static().await;
        let before = (password(&world).await, world.database.updated().len());
        for path in ["rotate-role/app", "rotate-root/db"] {
            world.store.fail_next(error());
            assert_eq!(world.write(path, json!({})).await.unwrap_err().status(), 503, "{path}");
        }
        assert_eq!((password(&world).await, world.database.updated().len()), before);
        assert_eq!(world.database.user("app").unwrap().password, before.0);
        assert_eq!(world.database.user("root").unwrap().password, "root-password");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rotation_that_fails_is_put_off_and_counted_as_overdue() {
    let mut world = with_static().await;
    world.start();
    let overdue = |w: &World| w.hub.metrics.static_overdue.get();
    let first = password(&world).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(overdue(&world), 0);
    world.database.set_down(true);
    tokio::time::sleep(Duration::from_secs(33)).await;
    assert_eq!(overdue(&world), 0, "not for long yet");
    tokio::time::sleep(Duration::from_secs(5)).await;
    for _ in 0..30 {
        assert_eq!(overdue(&world), 1);
        let due = world.storage.scan_keys("dbrotate/due/", None, 2).unwrap().remove(0);
        let due = crate::lease::Wall::from_key(due.split('/').nth(2).unwrap()).unwrap();
        assert!(crate::lease::Wall::now().secs_until(due) <= 10, "put off for longer");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    world.database.set_down(false);
    tokio::time::sleep(Duration::from_secs(13)).await;
    assert_eq!(overdue(&world), 0);
    assert_ne!(password(&world).await, first);
    // One that was deleted is not overdue.
    world.database.set_down(true);
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(overdue(&world), 1);
    world.call(Operation::Delete, STATIC, json!({})).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(overdue(&world), 0);
}

async fn add_static(world: &World, db: &str, name: &str, period: u64) {
    world.database.add(name, "first");
    let role = json!({"db_name": db, "username": name, "rotation_period": period});
    world.write(&format!("static-roles/{name}"), role).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_due_longest_is_rotated_first() {
    let mut world = World::new().await;
    for period in [70, 30, 90, 10, 50, 80, 20, 60, 40] {
        add_static(&world, "db", &format!("app-{period}"), period * 60).await;
    }
    world.take_over().await;
    tokio::time::sleep(Duration::from_secs(6000)).await;
    let before = world.database.updated().len();
    world.start();
    world.eventually("all are rotated", |w| w.database.updated().len() == before + 9).await;
    let order = world.database.updated().split_off(before);
    assert!(order.is_sorted(), "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn a_database_that_does_not_answer_holds_up_no_other() {
    let mut world = World::new().await;
    let config = json!({"plugin_name": "postgresql-database-plugin", "connection_url": URL, "username": "root",
        "password": "root-password", "allowed_roles": "*"});
    world.write("config/stuck", config).await.unwrap();
    for n in 0..80 {
        add_static(&world, "stuck", &format!("stuck-{n}"), 50).await;
    }
    add_static(&world, "db", "app", 60).await;
    let first = password(&world).await;
    world.database.set_slow("stuck", Duration::from_secs(3600));
    world.start();
    tokio::time::sleep(Duration::from_secs(64)).await;
    assert_ne!(password(&world).await, first);
    assert!(world.hub.metrics.static_overdue.get() > 60, "those of the other wait");
}

/// Whatever point a rotation has reached when the connection gets another login by hand: the two never mix.
#[tokio::test(start_paused = true)]
async fn a_login_written_during_a_rotation_keeps_its_own_password() {
    for polls in 0..14 {
        let world = World::new().await;
        world.database.add("second", "second-password");
        let mut rotation = Box::pin(world.write("rotate-root/db", json!({})));
        let mut rotated = false;
        for _ in 0..polls {
            rotated = rotated || futures_util::poll!(rotation.as_mut()).is_ready();
            tokio::task::yield_now().await;
        }
        let login = json!({"username": "second", "password": "second-password"});
        let written = world.write("config/db", login);
        if rotated {
            written.await.unwrap();
        } else {
            let (rotated, written) = tokio::join!(rotation, written);
            rotated.unwrap();
            written.unwrap();
        }
        world.creds().await.unwrap_or_else(|error| panic!("after {polls} polls: {error}"));
        assert_eq!(world.storage.scan_keys("dbroot/", None, 10).unwrap().len(), 0);
    }
}
