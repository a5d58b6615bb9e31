//! The engine against real servers.

use std::time::Duration;

use holdfast_tests::db::{ADMIN, ADMIN_PASSWORD, MariaDbServer, PostgresServer};
use serde_json::{Value, json};

use super::world::{World, field, logical, polled, text};
use crate::logical::Operation;

const POSTGRES_USER: &str =
    r#"CREATE ROLE "{{name}}" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'"#;
const MARIADB_USER: &str = "CREATE USER '{{name}}'@'%' IDENTIFIED BY '{{password}}'";

async fn world(plugin: &str, url: String, create: &str) -> World {
    let mut world = World::real();
    let config = json!({"plugin_name": plugin, "connection_url": url, "username": ADMIN,
        "password": ADMIN_PASSWORD, "allowed_roles": "*", "operation_timeout": "5s"});
    world.write("config/db", config).await.unwrap();
    let role =
        json!({"db_name": "db", "creation_statements": [create], "default_ttl": "1h", "max_ttl": "24h"});
    world.write("roles/r", role).await.unwrap();
    world.start();
    world
}

async fn on_postgres(server: &PostgresServer) -> World {
    world("postgresql-database-plugin", server.url_template(), POSTGRES_USER).await
}

async fn revoke(world: &World, id: &str) {
    let body = json!({"lease_id": id, "sync": true});
    world.sys(Operation::Write, "revoke", body).await.unwrap();
}

async fn until<T: PartialEq + std::fmt::Debug>(what: &str, wanted: T, mut found: impl AsyncFnMut() -> T) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let now = found().await;
        if now == wanted {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{what}: {now:?}, not {wanted:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Says what differs, not what is equal.
fn same(users: &[String], leases: &[String]) {
    let missing: Vec<_> = leases.iter().filter(|name| !users.contains(name)).collect();
    let stray: Vec<_> = users.iter().filter(|name| !leases.contains(name)).collect();
    assert!(missing.is_empty() && stray.is_empty(), "without user: {missing:?}, without lease: {stray:?}");
}

fn usernames(world: &World) -> Vec<String> {
    let mut names: Vec<_> = world.leases().iter().map(|lease| lease.login.username.clone()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_logins_live_and_die_with_their_leases() {
    let server = PostgresServer::start().await;
    let mut world = on_postgres(&server).await;
    let answer = world.creds().await.unwrap();
    let id = answer.lease.clone().unwrap().id;
    let (user, password) = (text(&answer, "username"), text(&answer, "password"));
    assert!(server.can_log_in(&user, &password).await);
    let valid =
        format!("SELECT extract(epoch FROM rolvaliduntil)::bigint FROM pg_roles WHERE rolname = '{user}'");
    let before: i64 = server.query(&valid).await[0].parse().unwrap();
    let body = json!({"lease_id": id, "increment": "2h"});
    world.sys(Operation::Write, "renew", body).await.unwrap();
    let after: i64 = server.query(&valid).await[0].parse().unwrap();
    assert!((3595..=3660).contains(&(after - before)), "moved by {}", after - before);
    // The role and the configuration's name are gone; the lease still ends.
    world.call(Operation::Delete, "roles/r", json!({})).await.unwrap();
    world.call(Operation::Delete, "config/db", json!({})).await.unwrap();
    revoke(&world, &id).await;
    assert!(!server.can_log_in(&user, &password).await);
    assert_eq!(server.users("v-").await, Vec::<String>::new());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_logins_live_and_die_with_their_leases() {
    let server = MariaDbServer::start().await;
    let mut world = world("mysql-database-plugin", server.url_template(), MARIADB_USER).await;
    let answer = world.creds().await.unwrap();
    let id = answer.lease.clone().unwrap().id;
    let (user, password) = (text(&answer, "username"), text(&answer, "password"));
    assert!(server.can_log_in(&user, &password).await);
    world.sys(Operation::Write, "renew", json!({"lease_id": id, "increment": "2h"})).await.unwrap();
    world.call(Operation::Delete, "roles/r", json!({})).await.unwrap();
    revoke(&world, &id).await;
    assert!(!server.can_log_in(&user, &password).await);
    assert_eq!(server.users("v-").await, Vec::<String>::new());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn static_roles_and_the_roots_own_password_rotate_on_postgres() {
    let server = PostgresServer::start().await;
    server.execute("CREATE ROLE app LOGIN PASSWORD 'first'").await;
    server.execute("CREATE ROLE boss LOGIN SUPERUSER PASSWORD 'boss-first'").await;
    let mut world = on_postgres(&server).await;
    let boss = json!({"username": "boss", "password": "boss-first"});
    world.write("config/db", boss).await.unwrap();
    let role = json!({"db_name": "db", "username": "app", "rotation_period": "5s"});
    world.write("static-roles/app", role).await.unwrap();
    let password = async || text(&logical(world.read("static-creds/app").await.unwrap()), "password");
    let first = password().await;
    assert!(!server.can_log_in("app", "first").await);
    assert!(server.can_log_in("app", &first).await);
    until("rotated by time", true, async || password().await != first).await;
    assert!(!server.can_log_in("app", &first).await);
    world.write("rotate-root/db", json!({})).await.unwrap();
    assert!(!server.can_log_in("boss", "boss-first").await);
    world.creds().await.unwrap();
    world.write("rotate-role/app", json!({})).await.unwrap();
    let read = logical(world.read("config/db").await.unwrap());
    assert_eq!(field(&read, "needs_attention"), Value::Null);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn creations_that_are_dropped_anywhere_leave_no_user_on_postgres() {
    let server = PostgresServer::start().await;
    let mut world = on_postgres(&server).await;
    for round in 0..60 {
        drop(polled(round % 15 + 1, world.creds()).await);
        if round % 20 == 19 {
            // Another node takes over with what is in the store.
            world.take_over().await;
            world.start();
        }
    }
    until("intents are swept", 0, async || world.intents()).await;
    same(&server.users("v-").await, &usernames(&world));
    world.sys(Operation::Write, "revoke-prefix/database", json!({"sync": true})).await.unwrap();
    assert_eq!(server.users("v-").await, Vec::<String>::new());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_killed_under_load_is_consistent_once_it_is_back() {
    // Otherwise the server itself forgets what it confirmed just before it is killed.
    let mut server = PostgresServer::with_settings(&["synchronous_commit=on"]).await;
    let mut world = on_postgres(&server).await;
    let load = async {
        let mut made = 0;
        for _ in 0..40 {
            let round = (0..8).map(|_| world.creds());
            let answers = futures_util::future::join_all(round).await;
            made += answers.iter().filter(|answer| answer.is_ok()).count();
        }
        made
    };
    let crash = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        server.kill();
        server.resume().await;
    };
    let (made, ()) = tokio::join!(load, crash);
    assert!(made > 0);
    assert!(world.creds().await.is_ok());
    until("intents are swept", 0, async || world.intents()).await;
    same(&server.users("v-").await, &usernames(&world));
    // Down while its leases are ended: they wait, and no attempt is used up.
    server.stop();
    world.sys(Operation::Write, "revoke-prefix/database", json!({})).await.unwrap();
    let waits = async || !world.hub.leases.revoke_error(&world.leases()[0]).is_empty();
    until("the cause is shown", true, waits).await;
    server.resume().await;
    until("all are revoked", 0, async || world.leases().len()).await;
    assert_eq!(server.users("v-").await, Vec::<String>::new());
    world.stop().await;
}

/// How many sessions wait for the lock that a test holds.
const WAITING: &str =
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted";

#[tokio::test(flavor = "multi_thread")]
async fn slow_statements_of_one_connection_hold_up_no_other() {
    let server = PostgresServer::start().await;
    let mut world = on_postgres(&server).await;
    let config = json!({"plugin_name": "postgresql-database-plugin", "connection_url": server.url_template(),
        "username": ADMIN, "password": ADMIN_PASSWORD, "allowed_roles": "*", "operation_timeout": "60s"});
    world.write("config/slow", config).await.unwrap();
    let create = format!("SELECT pg_advisory_xact_lock_shared(4711); {POSTGRES_USER}");
    let role = json!({"db_name": "slow", "creation_statements": create, "default_ttl": "1h"});
    world.write("roles/slow", role).await.unwrap();
    let holder = server.session(ADMIN, ADMIN_PASSWORD).await;
    holder.batch_execute("SELECT pg_advisory_lock(4711)").await.unwrap();
    let slow = futures_util::future::join_all((0..20).map(|_| world.read("creds/slow")));
    let quick = async {
        until("as many wait as there are connections", "16".to_owned(), async || {
            server.query(WAITING).await.remove(0)
        })
        .await;
        for _ in 0..5 {
            let id = world.creds().await.unwrap().lease.unwrap().id;
            world.sys(Operation::Write, "renew", json!({"lease_id": id})).await.unwrap();
            revoke(&world, &id).await;
        }
        assert_eq!(server.query(WAITING).await, ["16"], "the others still wait");
        holder.batch_execute("SELECT pg_advisory_unlock(4711)").await.unwrap();
    };
    let (slow, ()) = tokio::join!(slow, quick);
    assert_eq!(slow.iter().filter(|answer| answer.is_ok()).count(), 20);
    same(&server.users("v-").await, &usernames(&world));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_return_to_their_baseline_after_each_takeover() {
    let server = PostgresServer::start().await;
    let mut world = on_postgres(&server).await;
    let connected = async || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'";
        server.query(sql).await.remove(0).parse::<u32>().unwrap()
    };
    for round in 0..5 {
        let made = futures_util::future::join_all((0..12).map(|_| world.creds())).await;
        assert!(made.iter().all(Result::is_ok));
        assert!((1..=16).contains(&connected().await), "round {round}");
        world.take_over().await;
        until("the former active node has closed its connections", 0, connected).await;
        world.start();
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn creations_that_are_dropped_anywhere_leave_no_user_on_mariadb() {
    let server = MariaDbServer::start().await;
    let mut world = world("mysql-database-plugin", server.url_template(), MARIADB_USER).await;
    for round in 0..60 {
        drop(polled(round % 20 + 1, world.creds()).await);
        if round % 20 == 19 {
            world.take_over().await;
            world.start();
        }
    }
    until("intents are swept", 0, async || world.intents()).await;
    let users: Vec<_> = server.users("v-").await.iter().map(|user| user.replace("@%", "")).collect();
    same(&users, &usernames(&world));
    world.sys(Operation::Write, "revoke-prefix/database", json!({"sync": true})).await.unwrap();
    assert_eq!(server.users("v-").await, Vec::<String>::new());
    world.stop().await;
}
