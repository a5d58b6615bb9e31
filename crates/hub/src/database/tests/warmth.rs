//! Taking over: what a standby holds already, and what the new active node reads.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Term;
use holdfast_ops::Tasks;
use serde_json::json;

use super::world::World;
use crate::logical::Operation;
use crate::mount::MountEntry;
use crate::node::gate::Gates;
use crate::testing::request;

/// The most rows that one read of the new active node may ask for.
const PAGE: usize = 10_000;

async fn prepared() -> World {
    let world = World::new().await;
    let cx = world.cx();
    cx.hub.policies.write(&cx, "app", "path \"kv/*\" { capabilities = [\"read\"] }").await.unwrap();
    let write = async |path: &str, body| {
        let request = request(Operation::Write, "sys/", path, body);
        crate::sys::engine().handle(&cx, &MountEntry::default(), &request).await.unwrap();
    };
    write("mounts/kv", json!({"type": "kv"})).await;
    write("quotas/rate-limit/all", json!({"rate": 1000, "path": ""})).await;
    world
}

/// What each request asks before its handler runs.
fn checks(world: &World) {
    let hub = &world.hub;
    assert!(hub.mounts.route("kv/a").unwrap().is_some());
    let policies = ["app".to_owned(), "default".to_owned()];
    let decided = hub.policies.decide(&hub.storage, &policies, "kv/a", Operation::Read, true).unwrap();
    assert!(decided.allowed);
    assert!(hub.relay.authority.denied().unwrap().is_empty());
    hub.quotas.check_rate("kv/a", None, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    assert!(!hub.audit.enabled().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_follows_the_log_has_warm_caches() {
    let mut world = prepared().await;
    world.take_over().await;
    let tasks = Tasks::new("test");
    tasks.spawn_until_cancelled("warm", crate::warm::run(Arc::clone(&world.hub), tasks.child("warm")));
    let quiet = |world: &World| {
        world.store.take_reads();
        checks(world);
        world.store.take_reads().is_empty()
    };
    world.eventually("the caches are warm", quiet).await;
    // What changes is read again before anybody asks.
    let cx = world.cx();
    cx.hub.policies.write(&cx, "more", "path \"x\" { capabilities = [\"read\"] }").await.unwrap();
    world.eventually("the change was read", |w| !w.store.take_reads().is_empty()).await;
    world.eventually("the caches are warm again", quiet).await;
    tasks.cancel();
    tasks.wait(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn taking_over_opens_the_gate_before_anything_is_read_and_connects_to_no_database() {
    let mut world = prepared().await;
    world.creds().await.unwrap();
    world.take_over().await;
    world.hub.warm().unwrap();
    let opened = world.database.opened();
    world.store.take_reads();
    let tasks = Tasks::new("test");
    let gates = Arc::new(Gates::new(Arc::clone(&world.hub), &tasks));
    // Nothing of this is awaited: whoever calls it is on the way of consensus.
    let cancel = gates.enter(Term::new(2)).unwrap();
    assert_eq!(world.store.take_reads(), [], "opening the gate reads nothing");
    checks(&world);
    assert_eq!(world.store.take_reads(), [], "the first request reads no table");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let reads = world.store.take_reads();
    assert!(reads.iter().any(|(prefix, _)| prefix == crate::lease::index::DUE), "{reads:?}");
    let whole: Vec<_> = reads.iter().filter(|(_, limit)| *limit > PAGE).collect();
    let counts = |prefix: &str| {
        [crate::lease::index::LEASES, crate::lease::index::IRREVOCABLE].iter().any(|p| prefix.starts_with(p))
    };
    assert!(whole.iter().all(|(prefix, _)| counts(prefix)), "read in full: {whole:?}");
    assert_eq!(world.database.opened(), opened, "no database was connected to");
    assert!(!cancel.is_cancelled());
    gates.close();
    tasks.stop(Duration::from_secs(20)).await.unwrap();
}

#[tokio::test]
async fn the_first_login_after_a_takeover_reads_its_role_and_connection_by_name_alone() {
    let mut world = prepared().await;
    world.creds().await.unwrap();
    world.take_over().await;
    world.hub.warm().unwrap();
    let opened = world.database.opened();
    world.store.take_reads();
    world.creds().await.unwrap();
    assert_eq!(world.store.take_reads(), [], "it reads no table");
    assert_eq!(world.database.opened(), opened + 1, "only now is the database connected to");
}

#[tokio::test]
async fn what_is_due_comes_first_and_only_a_page_is_read() {
    use crate::lease::{Wall, index};

    let world = prepared().await;
    world.creds().await.unwrap();
    let like = world.leases().remove(0);
    let now = Wall::now();
    let mut txn = world.storage.txn();
    for (n, due) in [(1, 50), (2, 10), (3, 30), (4, 20), (5, 40)] {
        let mut lease = like.clone();
        lease.id = crate::lease::LeaseId::below("database/creds/r");
        lease.login.username = format!("v-{n}");
        (lease.expires, lease.due) = (now.after_secs(due), now.after_secs(due));
        index::insert(&mut txn, &lease).unwrap();
    }
    txn.commit().await.unwrap();
    world.store.take_reads();
    let page = index::due_page(&world.storage, now.after_secs(60), None, 2).unwrap();
    let due: Vec<_> = page.leases.iter().map(|(due, ..)| *due).collect();
    assert_eq!(due, [now.after_secs(10), now.after_secs(20)]);
    assert!(page.more);
    assert_eq!(world.store.take_reads(), [(index::DUE.to_owned(), 2)]);
    let page = index::due_page(&world.storage, now, None, 2).unwrap();
    assert!(page.leases.is_empty() && page.next == Some(now.after_secs(10)));
}
