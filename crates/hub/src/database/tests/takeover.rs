//! A node that has just become active knows nothing but the store, and serves from it at once.

use std::time::Duration;

use serde_json::json;

use super::scale::fill_named;
use super::world::{World, field, logical, text};
use crate::lease::{Lease, Wall};
use crate::logical::Operation;

async fn one(world: &World) -> Lease {
    world.creds().await.unwrap();
    world.leases().remove(0)
}

#[tokio::test(start_paused = true)]
async fn lists_counts_and_prefixes_are_complete_before_anything_is_loaded() {
    let mut world = World::new().await;
    let like = one(&world).await;
    fill_named(&world, &like, "due", 1500, Wall::now()).await;
    fill_named(&world, &like, "later", 1500, Wall::now().after_secs(40_000)).await;
    world.take_over().await;
    let keys = logical(world.sys(Operation::List, "lookup/database/creds/r", json!({})).await.unwrap());
    assert_eq!(field(&keys, "keys").as_array().unwrap().len(), 3001);
    let counted = logical(world.sys(Operation::Read, "count", json!({})).await.unwrap());
    assert_eq!(field(&counted, "lease_count"), json!(3001));
    let answer = world.sys(Operation::Write, "revoke-prefix/database/creds", json!({})).await.unwrap();
    assert_eq!(answer.status, Some(202));
    assert!(world.leases().iter().all(|lease| lease.revocation.requested && lease.due <= Wall::now()));
    world.start();
    world.eventually("all are revoked", |w| w.leases().is_empty()).await;
    world.check_no_names();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_loaded_is_looked_up_renewed_and_revoked() {
    let mut world = World::new().await;
    let lease = one(&world).await;
    let id = lease.id.as_str();
    fill_named(&world, &lease, "slow", 3000, Wall::now()).await;
    world.database.set_slow("slow", Duration::from_secs(10));
    world.take_over().await;
    for begun in [false, true] {
        if begun {
            world.start();
        }
        let looked = logical(world.sys(Operation::Write, "lookup", json!({"lease_id": id})).await.unwrap());
        assert_eq!(text(&looked, "id"), id);
        let body = json!({"lease_id": id, "increment": "2h"});
        let renewed = logical(world.sys(Operation::Write, "renew", body).await.unwrap());
        assert_eq!(renewed.lease.unwrap().duration, 7200);
    }
    // Reading on through what is due and slow takes hours; this does not wait for it.
    world.sys(Operation::Write, "revoke", json!({"lease_id": id, "sync": true})).await.unwrap();
    assert!(world.database.user(&lease.login.username).is_none());
    assert!(world.leases().len() > 2900, "{}", world.leases().len());
}
