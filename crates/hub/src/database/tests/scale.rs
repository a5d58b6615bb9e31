//! Many leases: what is due is found without reading the rest.

use std::time::Duration;

use crate::lease::{Lease, LeaseId, Wall, index};

use super::world::World;

/// Copies of a lease that end at `due`.
async fn fill(world: &World, like: &Lease, count: usize, due: Wall) {
    fill_named(world, like, "v", count, due).await;
}

/// The same, with user names that begin with `prefix`.
pub async fn fill_named(world: &World, like: &Lease, prefix: &str, count: usize, due: Wall) {
    for page in (0..count).collect::<Vec<_>>().chunks(1000) {
        let mut txn = world.storage.txn();
        for n in page {
            let mut lease = like.clone();
            lease.id = LeaseId::below("database/creds/r");
            lease.login.username = format!("{prefix}-{}-{n}", due.millis());
            (lease.expires, lease.due) = (due, due);
            index::insert(&mut txn, &lease).unwrap();
        }
        txn.commit().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn many_due_leases_are_all_revoked_and_many_others_stay() {
    let mut world = World::new().await;
    world.creds().await.unwrap();
    let like = world.leases().remove(0);
    let now = Wall::now();
    fill(&world, &like, 3000, now.after_secs(40_000)).await;
    fill(&world, &like, 3000, now).await;
    world.take_over().await;
    world.start();
    let due = |w: &World| {
        let first = w.storage.scan_keys(index::DUE, None, 1).unwrap();
        first.first().is_none_or(|key| index::parse_due(key).unwrap().0 > Wall::now())
    };
    world.eventually("all that was due is gone", due).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.storage.count(index::LEASES).unwrap(), 3001);
    assert!(world.database.peak() <= 4);
    let counts = index::count_by_mount(&world.storage, index::LEASES).unwrap();
    assert_eq!(counts, [("database/".to_owned(), 3001)]);
}
