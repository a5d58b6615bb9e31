//! Renewing and revoking: by hand, by time, through outages and take-overs.

use std::time::Duration;

use serde_json::json;

use super::world::{World, field, logical, text};
use crate::auth::token::Token;
use crate::database::fake::Behave;
use crate::error::ApiError;
use crate::lease::record::Lease;
use crate::lease::{LeaseId, Outcome};
use crate::logical::{Operation, Response};

async fn lease(world: &World) -> String {
    world.creds().await.unwrap().lease.unwrap().id
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_on_time() {
    let mut world = World::new().await;
    world.start();
    lease(&world).await;
    tokio::time::sleep(Duration::from_secs(3590)).await;
    assert_eq!(world.database.users().len(), 1);
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(world.database.users().len(), 0);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn renewing_moves_the_database_first_and_is_capped() {
    let mut world = World::new().await;
    world.start();
    let answer = world.creds().await.unwrap();
    let (id, username) = (answer.lease.clone().unwrap().id, text(&answer, "username"));
    let before = world.database.user(&username).unwrap().until.unwrap();
    tokio::time::sleep(Duration::from_secs(1800)).await;
    let renewed = world.sys(Operation::Write, "renew", json!({"lease_id": id, "increment": "2h"})).await;
    let renewed = logical(renewed.unwrap());
    assert_eq!(renewed.lease.unwrap().duration, 7200);
    let after = world.database.user(&username).unwrap().until.unwrap();
    assert_eq!(after.duration_since(before).as_secs(), 1800 + 3600);
    let capped = world.sys(Operation::Write, &format!("renew/{id}"), json!({"increment": "100h"})).await;
    let capped = logical(capped.unwrap());
    assert_eq!(capped.lease.unwrap().duration, 24 * 3600 - 1800);
    assert_eq!(capped.warnings.len(), 1);
    // The old end passes without effect.
    tokio::time::sleep(Duration::from_secs(7300)).await;
    assert_eq!(world.database.users().len(), 1);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_renewal_never_passes_the_end_of_a_token_that_has_no_record() {
    let world = World::new().await;
    let ends = jiff::Timestamp::now().as_second() + 100;
    let batch = Token { expires: Some(ends), renewable: false, ..Token::default() };
    let answer = world.call_as(&world.cx(), Some(batch), Operation::Read, "creds/r", json!({})).await;
    let id = logical(answer.unwrap()).lease.unwrap().id;
    let renewed = world.sys(Operation::Write, "renew", json!({"lease_id": id, "increment": "2h"})).await;
    let renewed = logical(renewed.unwrap());
    assert!(renewed.lease.unwrap().duration <= 101);
    assert_eq!(renewed.warnings.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_prefix_ends_where_a_segment_does() {
    let mut world = World::new().await;
    world.start();
    let id = lease(&world).await;
    for other in ["data", "database/cre", "database/creds/r/x"] {
        let path = format!("revoke-prefix/{other}");
        world.sys(Operation::Write, &path, json!({"sync": true})).await.unwrap();
        assert_eq!(world.leases().len(), 1, "{other}");
    }
    world.sys(Operation::Write, &format!("revoke-prefix/{id}"), json!({"sync": true})).await.unwrap();
    assert_eq!(world.leases().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_the_database_refuses_changes_nothing() {
    let world = World::new().await;
    let id = lease(&world).await;
    let before = world.leases()[0].expires;
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.database.update(&[Behave::Refuse]);
    let error = world.sys(Operation::Write, "renew", json!({"lease_id": id})).await.unwrap_err();
    assert_eq!(error.status(), 500);
    assert_eq!(world.leases()[0].expires, before);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn renewals_are_refused_with_the_texts_that_clients_match() {
    let world = World::new().await;
    let id = lease(&world).await;
    let fails =
        |path: &'static str, body| async { world.sys(Operation::Write, path, body).await.unwrap_err() };
    let error = fails("renew", json!({})).await;
    assert_eq!((error.status(), error.to_string()), (400, "lease_id must be specified".into()));
    let error = fails("renew", json!({"lease_id": "no/such"})).await;
    assert_eq!((error.status(), error.to_string()), (400, "lease not found".into()));
    let error = fails("lookup", json!({"lease_id": "no/such"})).await;
    assert_eq!((error.status(), error.to_string()), (400, "invalid lease".into()));
    for path in ["lookup", "revoke"] {
        let error = fails(path, json!({})).await;
        assert_eq!((error.status(), error.to_string()), (400, "lease_id must be specified".into()));
    }
    let (key, before) = (format!("lease/id/{id}"), world.leases()[0].clone());
    world.storage.put(&key, &Lease { renewable: false, ..before.clone() }).await.unwrap();
    let error = fails("renew", json!({"lease_id": id})).await;
    assert_eq!((error.status(), error.to_string()), (400, "lease is not renewable".into()));
    world.storage.put(&key, &before).await.unwrap();
    world.sys(Operation::Write, "revoke", json!({"lease_id": id})).await.unwrap();
    let error = fails("renew", json!({"lease_id": id})).await;
    assert_eq!((error.status(), error.to_string()), (400, "lease expired".into()));
}

#[tokio::test(start_paused = true)]
async fn revoking_is_queued_by_default_and_waits_on_request() {
    let mut world = World::new().await;
    world.start();
    let (first, second) = (lease(&world).await, lease(&world).await);
    let answer = world.sys(Operation::Write, "revoke", json!({"lease_id": first})).await.unwrap();
    assert_eq!(answer.status, Some(202));
    world.eventually("revoked", |w| w.leases().len() == 1).await;
    let body = json!({"lease_id": second, "sync": true});
    assert_eq!(world.sys(Operation::Write, "revoke", body.clone()).await.unwrap().status, None);
    assert_eq!(world.leases().len(), 0);
    world.check();
    // Revoking what is gone is no error.
    world.sys(Operation::Write, "revoke", body).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refused_revocation_tells_its_caller_is_retried_and_becomes_irrevocable() {
    let mut world = World::new().await;
    world.start();
    let id = lease(&world).await;
    world.database.delete(&[Behave::Refuse; 7]);
    let body = json!({"lease_id": id, "sync": true});
    let error = world.sys(Operation::Write, "revoke", body).await.unwrap_err();
    assert_eq!((error.status(), error.to_string()), (400, "permission denied for table x".into()));
    let gives_up = tokio::time::Instant::now() + Duration::from_secs(3600);
    while !world.leases()[0].revocation.irrevocable {
        assert!(tokio::time::Instant::now() < gives_up);
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(world.leases()[0].revocation.attempts, 7);
    let listed = logical(world.sys(Operation::Read, "", json!({"type": "irrevocable"})).await.unwrap());
    assert_eq!(field(&listed, "lease_count"), json!(1));
    assert_eq!(field(&listed, "leases"), json!([{"lease_id": id, "error": "permission denied for table x"}]));
    let looked = logical(world.sys(Operation::Write, "lookup", json!({"lease_id": id})).await.unwrap());
    assert_eq!(text(&looked, "revoke_error"), "permission denied for table x");
    // Tried daily.
    tokio::time::sleep(Duration::from_secs(86_500)).await;
    assert_eq!(world.leases().len(), 0);
    world.check();
    let listed = logical(world.sys(Operation::Read, "", json!({"type": "irrevocable"})).await.unwrap());
    assert_eq!(field(&listed, "lease_count"), json!(0));
}

#[tokio::test(start_paused = true)]
async fn being_unreachable_uses_up_no_attempt() {
    let mut world = World::new().await;
    world.start();
    for _ in 0..50 {
        lease(&world).await;
    }
    world.database.set_down(true);
    tokio::time::sleep(Duration::from_secs(3600 + 600)).await;
    let leases = world.leases();
    assert_eq!(leases.len(), 50);
    assert!(leases.iter().all(|lease| lease.revocation.attempts == 0 && !lease.revocation.irrevocable));
    assert_eq!(world.hub.leases.revoke_error(&leases[7]), "connection refused");
    world.database.set_down(false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.leases().len(), 0);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn the_next_active_node_revokes_what_became_due_meanwhile() {
    let mut world = World::new().await;
    for _ in 0..20 {
        lease(&world).await;
    }
    tokio::time::sleep(Duration::from_secs(4000)).await;
    world.take_over().await;
    world.start();
    world.eventually("revoked", |w| w.leases().is_empty()).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_configuration_uses_half_of_its_connections_to_revoke() {
    let mut world = World::new().await;
    for _ in 0..40 {
        lease(&world).await;
    }
    world.start();
    world.sys(Operation::Write, "revoke-prefix/database/creds/r", json!({"sync": "true"})).await.unwrap();
    assert_eq!(world.leases().len(), 0);
    assert!((2..=4).contains(&world.database.peak()), "{} at once", world.database.peak());
    world.check();
}

#[tokio::test(start_paused = true)]
async fn force_drops_leases_whatever_the_database_says() {
    let mut world = World::new().await;
    world.start();
    lease(&world).await;
    lease(&world).await;
    world.database.set_down(true);
    let body = json!({"sync": true});
    assert_eq!(world.sys(Operation::Write, "revoke-prefix/database", body).await.unwrap_err().status(), 400);
    assert_eq!(world.leases().len(), 2);
    world.sys(Operation::Write, "revoke-force/database", json!({})).await.unwrap();
    assert_eq!(world.leases().len(), 0);
    assert_eq!(world.database.users().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_tokens_leases_go_with_it() {
    let mut world = World::new().await;
    world.start();
    let token = Token { id: "t1".into(), ..Token::default() };
    world.call_as(&world.cx(), Some(token), Operation::Read, "creds/r", json!({})).await.unwrap();
    lease(&world).await;
    world.hub.leases.revoke_by_token(&world.cx(), "t1").await.unwrap();
    world.eventually("revoked", |w| w.leases().len() == 1).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_deleted_configuration_stays_for_its_leases() {
    let mut world = World::new().await;
    world.start();
    let id = lease(&world).await;
    world.call(Operation::Delete, "roles/r", json!({})).await.unwrap();
    let answer = world.call(Operation::Delete, "config/db", json!({})).await.unwrap();
    assert!(logical(answer).warnings[0].starts_with("1 leases"));
    assert_eq!(world.read("config/db").await.unwrap_err().status(), 404);
    // The name can be used again; the old lease still goes to the old database.
    let outcome = world.hub.leases.revoke_and_wait(&world.cx(), &LeaseId::from_client(&id)).await.unwrap();
    assert_eq!(outcome, Some(Outcome::Gone));
    world.check();
    assert_eq!(world.storage.scan_keys("dbconn/", None, 10).unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn lists_and_counts_come_from_the_store() {
    let world = World::new().await;
    let id = lease(&world).await;
    lease(&world).await;
    let random = id.rsplit('/').next().unwrap();
    let keys = logical(world.sys(Operation::List, "lookup/database/creds/r/", json!({})).await.unwrap());
    let keys = field(&keys, "keys");
    assert_eq!(keys.as_array().unwrap().len(), 2);
    assert!(keys.as_array().unwrap().contains(&json!(random)));
    let counted = logical(world.sys(Operation::Read, "count", json!({})).await.unwrap());
    assert_eq!(field(&counted, "lease_count"), json!(2));
    assert_eq!(field(&counted, "counts"), json!({"database/": 2}));
    let looked = logical(world.sys(Operation::Write, "lookup", json!({"lease_id": id})).await.unwrap());
    assert_eq!(text(&looked, "id"), id);
    assert_eq!(field(&looked, "ttl"), json!(3600));
    assert_eq!(field(&looked, "last_renewal"), json!(null));
}

#[tokio::test(start_paused = true)]
async fn drivers_close_within_seconds_of_the_end_of_a_term() {
    let mut world = World::new().await;
    world.start();
    lease(&world).await;
    let before = tokio::time::Instant::now();
    world.stop().await;
    assert!(before.elapsed() < Duration::from_secs(5));
    assert_eq!(world.database.closed(), 1);
    assert_eq!(world.creds().await.unwrap_err().status(), 503);
}

#[tokio::test(start_paused = true)]
async fn a_changed_configuration_closes_the_old_driver() {
    let mut world = World::new().await;
    world.start();
    world.write("config/db", json!({"max_open_connections": 4})).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.database.closed(), 1);
    world.write("reset/db", json!({})).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.database.closed(), 2);
    lease(&world).await;
    world.check();
}

/// A list, and the same list a page at a time.
async fn paged(list: impl AsyncFn(serde_json::Value) -> Result<Response, ApiError>) -> Vec<String> {
    let keys = |response: Response| -> Vec<String> {
        serde_json::from_value(field(&logical(response), "keys")).unwrap()
    };
    let all = keys(list(json!({})).await.unwrap());
    let mut paged: Vec<String> = Vec::new();
    while paged.len() < all.len() {
        let after = paged.last().cloned().unwrap_or_default();
        let page = keys(list(json!({"limit": "1", "after": after})).await.unwrap());
        assert_eq!(page.len(), 1);
        paged.extend(page);
    }
    assert_eq!(paged, all);
    assert_eq!(list(json!({"limit": "many"})).await.unwrap_err().status(), 400);
    let beyond = list(json!({"after": all.last().unwrap()})).await;
    assert!(beyond.is_err_and(|error| error.status() == 404));
    all
}

#[tokio::test(start_paused = true)]
async fn leases_and_static_roles_are_listed_a_page_at_a_time() {
    let world = World::new().await;
    for n in 0..3 {
        world.creds().await.unwrap();
        let user = format!("app{n}");
        world.database.add(&user, "first");
        let role = json!({"db_name": "db", "username": user, "rotation_period": "60s"});
        world.write(&format!("static-roles/{user}"), role).await.unwrap();
    }
    let leases = paged(async |page| world.sys(Operation::List, "lookup/database/creds/r", page).await).await;
    assert_eq!(leases.len(), 3);
    let roles = paged(async |page| world.call(Operation::List, "static-roles/", page).await).await;
    assert_eq!(roles, ["app0", "app1", "app2"]);
}
