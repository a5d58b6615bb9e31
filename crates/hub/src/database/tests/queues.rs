//! Revocations of many leases: whose turn it is, what one attempt may take, and databases that cannot be reached.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::scale::fill_named;
use super::world::{URL, World};
use crate::database::fake::Behave;
use crate::lease::{Lease, LeaseSettings, Leases, Wall, index};
use crate::logical::Operation;

async fn lease_of(world: &World, role: &str) -> Lease {
    world.read(&format!("creds/{role}")).await.unwrap();
    let all = world.leases();
    all.into_iter().find(|lease| lease.login.role == role).unwrap()
}

/// How many leases have users whose names begin with `prefix`.
fn left(world: &World, prefix: &str) -> usize {
    world.leases().iter().filter(|lease| lease.login.username.starts_with(prefix)).count()
}

fn due_below_now(world: &World) -> bool {
    let first = world.storage.scan_keys(index::DUE, None, 1).unwrap();
    first.first().is_some_and(|key| index::parse_due(key).unwrap().0 <= Wall::now())
}

/// A second connection `other` with a role `o`.
async fn with_other(world: &World) {
    let config = json!({"plugin_name": "postgresql-database-plugin", "connection_url": URL, "username": "root",
        "password": "root-password", "allowed_roles": "*", "max_open_connections": 8});
    world.write("config/other", config).await.unwrap();
    let role =
        json!({"db_name": "other", "creation_statements": "CREATE", "default_ttl": "1h", "max_ttl": "24h"});
    world.write("roles/o", role).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn connections_take_turns_at_the_workers() {
    let mut world = World::new().await;
    let settings = LeaseSettings { revoke_workers: 3 };
    Arc::get_mut(&mut world.hub).unwrap().leases = Leases::with_settings(world.storage.clone(), settings);
    world.hub.leases.databases().instances.set_opener(world.database.opener());
    with_other(&world).await;
    let (slow, quick) = (lease_of(&world, "r").await, lease_of(&world, "o").await);
    let now = Wall::now();
    fill_named(&world, &slow, "slow", 400, now).await;
    fill_named(&world, &quick, "quick", 20, now.after(Duration::from_millis(1))).await;
    world.database.set_slow("slow", Duration::from_secs(10));
    world.start();
    world.eventually("the other connection's leases are revoked", |w| left(w, "quick") == 0).await;
    // What came first is far from done, and three workers were all there are.
    assert!(left(&world, "slow") > 300, "{} left", left(&world, "slow"));
    assert_eq!(world.database.peak(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_due_longest_goes_first() {
    let mut world = World::new().await;
    world.write("config/db", json!({"max_open_connections": 2})).await.unwrap();
    let like = lease_of(&world, "r").await;
    let now = Wall::now();
    for due in [7, 3, 9, 1, 5, 8, 2, 6, 4] {
        fill_named(&world, &like, "ended", 3, now.after(Duration::from_secs(due))).await;
    }
    world.take_over().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    // Made due after all of those had ended.
    world.hub.leases.mark_due(&world.cx(), &like.id).await.unwrap();
    world.start();
    world.eventually("all are revoked", |w| w.leases().is_empty()).await;
    let removed = world.database.removed();
    let times: Vec<_> =
        removed.iter().filter_map(|name| name.strip_prefix("ended-")?.split('-').next()).collect();
    assert_eq!(times.len(), 27);
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(removed.last(), Some(&like.login.username));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_takes_no_longer_than_the_connection_allows() {
    let mut world = World::new().await;
    world.write("config/db", json!({"operation_timeout": "7s"})).await.unwrap();
    world.start();
    let lease = lease_of(&world, "r").await;
    world.database.delete(&[Behave::Hang, Behave::RefuseAtLength]);
    let begun = Instant::now();
    let body = json!({"lease_id": lease.id.as_str(), "sync": true});
    let error = world.sys(Operation::Write, "revoke", body).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 7, "{error}");
    world.eventually("recorded", |w| w.leases()[0].revocation.attempts == 1).await;
    assert!(world.leases()[0].revocation.error.contains("deadline"));
    world.eventually("tried again", |w| w.leases()[0].revocation.attempts == 2).await;
    // 10 s, give or take half of it, after the first failure.
    assert!((12..=23).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(world.leases()[0].revocation.error.chars().count(), 240);
    world.eventually("revoked", |w| w.leases().is_empty()).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn callers_share_the_one_revocation_of_a_lease() {
    let mut world = World::new().await;
    world.start();
    let lease = lease_of(&world, "r").await;
    let revoke =
        || world.sys(Operation::Write, "revoke", json!({"lease_id": lease.id.as_str(), "sync": true}));
    world.database.delete(&[Behave::Hang]);
    let (first, second) = tokio::join!(revoke(), revoke());
    let (first, second) = (first.unwrap_err(), second.unwrap_err());
    assert_eq!((first.status(), first.to_string()), (second.status(), second.to_string()));
    assert_eq!(world.database.deletes(), 1);
    // Due by itself and running: whoever asks gets the outcome of that.
    world.database.delete(&[Behave::Hang]);
    world.eventually("tried again", |w| w.database.deletes() == 2).await;
    assert_eq!(revoke().await.unwrap_err().to_string(), first.to_string());
    assert_eq!(world.database.deletes(), 2);
    world.eventually("revoked", |w| w.leases().is_empty()).await;
    assert_eq!(world.database.peak(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_database_that_cannot_be_reached_costs_a_call_on_many_leases_one_attempt() {
    let mut world = World::new().await;
    with_other(&world).await;
    let (lost, well) = (lease_of(&world, "r").await, lease_of(&world, "o").await);
    let later = Wall::now().after_secs(40_000);
    fill_named(&world, &lost, "lost", 2000, later).await;
    world.database.set_silent(Duration::from_secs(10));
    world.start();
    let begun = Instant::now();
    let sync = json!({"sync": true});
    let error = world.sys(Operation::Write, "revoke-prefix/database", sync.clone()).await.unwrap_err();
    assert_eq!(error.to_string(), "2002 leases could not be revoked: connection refused");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(world.leases().iter().filter(|lease| lease.revocation.attempts > 0).count(), 0);

    let begun = Instant::now();
    world.sys(Operation::Write, "revoke-force/database/creds/r", json!({})).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(left(&world, "lost"), 0);
    world.database.set_silent(Duration::ZERO);
    world.database.set_down(false);
    world.eventually("the other goes on", |w| w.leases().is_empty()).await;
    assert_eq!(world.database.removed(), [well.login.username]);
}

/// Five hundred leases end while their database is away for ten minutes.
#[tokio::test(start_paused = true)]
async fn what_became_due_in_an_outage_goes_within_a_minute_of_its_end() {
    let mut world = World::new().await;
    let like = lease_of(&world, "r").await;
    fill_named(&world, &like, "due", 500, Wall::now().after_secs(5)).await;
    world.database.set_silent(Duration::from_secs(2));
    world.start();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(left(&world, "due"), 500);
    assert!(world.leases().iter().all(|lease| lease.revocation == Default::default()));
    world.database.set_down(false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(left(&world, "due"), 0);
    assert_eq!(world.storage.count(index::IRREVOCABLE).unwrap(), 0);
    assert!(!due_below_now(&world));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_a_connection_that_is_gone() {
    let mut world = World::new().await;
    with_other(&world).await;
    world.start();
    let lease = lease_of(&world, "o").await;
    world.database.set_down(true);
    world.hub.leases.mark_due(&world.cx(), &lease.id).await.unwrap();
    let waits =
        |w: &World| w.leases().first().is_some_and(|lease| !w.hub.leases.revoke_error(lease).is_empty());
    world.eventually("the lease waits", waits).await;
    assert_eq!(world.hub.leases.waiting_for(), 1);
    world.call(Operation::Delete, "config/other", json!({})).await.unwrap();
    world.sys(Operation::Write, "revoke-force/database", json!({})).await.unwrap();
    world.eventually("it is forgotten", |w| w.hub.leases.waiting_for() == 0).await;
    assert_eq!(world.storage.scan_keys("dbconn/", None, 10).unwrap().len(), 1);
}
