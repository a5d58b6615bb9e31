//! What comes before the database is asked: checks, names, the record; and what is told when it stays.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::world::{Errors, URL, World};
use crate::database::fake::Behave;
use crate::database::intent::{INTENTS, Intent};
use crate::database::names::{self, Holder};
use crate::error::ApiError;
use crate::lease::LeaseId;
use crate::logical::Operation;
use crate::mount::MountEntry;
use crate::testing::request;

/// Runs a request until the database is asked, and leaves it there.
async fn asked_and_hanging(world: &World, limit: Duration) -> Intent {
    world.database.create(&[Behave::Hang]);
    let cx = world.hub.cx(world.term, Instant::now() + limit, CancellationToken::new());
    let mut request = Box::pin(world.call_as(&cx, None, Operation::Read, "creds/r", json!({})));
    tokio::select! {
        answer = &mut request => panic!("{:?}", answer.err()),
        () = tokio::time::sleep(Duration::from_secs(1)) => {}
    }
    let (key, intent) = world.storage.scan::<Intent>(INTENTS, None, 2).unwrap().remove(0);
    assert_eq!(key, format!("{INTENTS}{}", intent.value.login.key));
    intent.value
}

#[tokio::test(start_paused = true)]
async fn the_record_says_all_before_the_database_is_asked() {
    let world = World::new().await;
    let intent = asked_and_hanging(&world, Duration::from_secs(60)).await;
    assert_eq!((intent.state, intent.term), (holdfast_core::intent::State::Open, world.term));
    // The connection allows 30 s, the request more.
    assert_eq!(intent.opened.until(intent.deadline), Duration::from_secs(30));
    let held = world.storage.get::<Holder>(&names::key_of(&intent.login)).unwrap().unwrap();
    assert_eq!(held.value, Holder::Intent(intent.login.key.clone()));

    let world = World::new().await;
    let intent = asked_and_hanging(&world, Duration::from_secs(5)).await;
    assert_eq!(intent.opened.until(intent.deadline), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn the_database_is_not_asked_when_the_record_cannot_be_written() {
    use crate::store::CommitError;
    for error in [CommitError::NotLeader, CommitError::Unknown] {
        let mut world = World::new().await;
        world.store.fail_next(error);
        assert_eq!(world.creds().await.unwrap_err().status(), 503);
        assert_eq!(world.database.users(), Vec::<String>::new());
        world.start();
        world.eventually("swept", |w| w.intents() == 0).await;
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_check_that_fails_answers_and_nothing_is_written() {
    let world = World::new().await;
    world.creds().await.unwrap();
    let quota = json!({"max_leases": 1});
    let quota = request(Operation::Write, "sys/", "quotas/lease-count/few", quota);
    crate::sys::engine().handle(&world.cx(), &MountEntry::default(), &quota).await.unwrap();
    let narrow = json!({"plugin_name": "postgresql-database-plugin", "connection_url": URL, "username": "root",
        "password": "root-password", "allowed_roles": "other"});
    world.write("config/narrow", narrow).await.unwrap();
    for (role, db) in [("lost", "nodb"), ("outside", "narrow")] {
        world
            .write(&format!("roles/{role}"), json!({"db_name": db, "creation_statements": "X"}))
            .await
            .unwrap();
    }
    world.write("roles/empty", json!({"db_name": "db"})).await.unwrap();
    let tried = world.store.tried();
    // Each of these would fail at the checks behind as well.
    for (role, status, text) in [
        ("none", 400, "unknown role: none"),
        ("lost", 500, "failed to find entry for connection with name: \"nodb\""),
        ("outside", 500, "\"outside\" is not an allowed role"),
        ("empty", 400, "empty creation statements"),
        ("r", 429, "lease count quota exceeded"),
    ] {
        let error: ApiError = world.read(&format!("creds/{role}")).await.unwrap_err();
        assert_eq!((error.status(), error.to_string()), (status, text.to_owned()));
    }
    assert_eq!(world.store.tried(), tried, "nothing was even handed to the store");
    assert_eq!(world.database.users().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_refused_while_anything_holds_it() {
    let mut world = World::new().await;
    world.write("config/db", json!({"username_template": "fixed"})).await.unwrap();
    let refused = async |world: &World| {
        let tried = world.store.tried();
        let error = world.creds().await.unwrap_err();
        assert_eq!(error.status(), 500, "{error}");
        assert!(error.to_string().contains("three tries"), "{error}");
        assert_eq!(world.store.tried() - tried, 3);
    };
    // A static role.
    world.database.add("fixed", "first");
    let role = json!({"db_name": "db", "username": "fixed", "rotation_period": "60s"});
    world.write("static-roles/app", role.clone()).await.unwrap();
    refused(&world).await;
    world.call(Operation::Delete, "static-roles/app", json!({})).await.unwrap();
    // An intent, whose user may be there or not.
    world.database.create(&[Behave::LoseRequest]);
    assert_eq!(world.creds().await.unwrap_err().status(), 503);
    refused(&world).await;
    let error = world.write("static-roles/app", role.clone()).await.unwrap_err();
    assert_eq!(error.status(), 400, "{error}");
    world.start();
    world.eventually("swept", |w| w.intents() == 0).await;
    // A live lease.
    let lease = world.creds().await.unwrap().lease.unwrap();
    refused(&world).await;
    assert_eq!(world.write("static-roles/app", role).await.unwrap_err().status(), 400);
    world.hub.leases.revoke_and_wait(&world.cx(), &LeaseId::from_client(&lease.id)).await.unwrap();
    world.creds().await.unwrap();
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_taken_name_is_followed_by_another() {
    let world = World::new().await;
    world.write("config/db", json!({"username_template": "{{random 1}}"})).await.unwrap();
    let config = world.storage.scan_keys("dbconn/m-1/", None, 1).unwrap().remove(0);
    let config = config.rsplit('/').next().unwrap().to_owned();
    for name in ('a'..='z').chain('A'..='P') {
        let key = names::key("m-1", &config, &name.to_string());
        world.storage.put(&key, &Holder::Static("x".into())).await.unwrap();
    }
    // Two batches make a login; each name that was taken costs one more.
    for _ in 0..100 {
        let tried = world.store.tried();
        let made = world.creds().await;
        if made.is_ok() && world.store.tried() - tried > 2 {
            return;
        }
    }
    panic!("no second name was ever tried");
}

#[tokio::test(start_paused = true)]
async fn a_user_that_cannot_be_removed_is_reported_once_an_hour() {
    const TEXT: &str = "could not be removed yet";
    let errors = Errors::default();
    let _logged = tracing::subscriber::set_default(errors.clone());
    let mut world = World::new().await;
    world.start();
    world.database.create(&[Behave::LoseAnswer]);
    world.database.delete(&[Behave::Refuse; 1000]);
    let begun = Instant::now();
    assert_eq!(world.creds().await.unwrap_err().status(), 503);
    let user = world.database.users().remove(0);
    let mut told = Vec::new();
    for minutes in [55, 65, 115, 125, 185] {
        tokio::time::sleep_until(begun + Duration::from_secs(minutes * 60)).await;
        told.push(errors.count(TEXT));
    }
    assert_eq!(told, [0, 1, 1, 2, 3]);
    assert_eq!(errors.count(&user), 3, "it names the user");
    assert_eq!(world.intents(), 1, "and never gives up");
}
