//! One driver an instance: opened once, exchanged when its configuration changes, closed once.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use holdfast_dbdriver::{Call, Reason};
use holdfast_ops::Tasks;

use super::fake::{Fakes, Opens, SOON, eventually, instance};
use crate::cache::{Cache, IDLE, Refused, Wanted};

fn rig() -> (Arc<Fakes>, Cache, Tasks) {
    let (opens, tasks) = (Opens::default(), Tasks::new("test"));
    (Arc::clone(&opens.0), Cache::new(Arc::new(opens), &tasks), tasks)
}

fn wanted(id: &str, version: u64, url: &str) -> Wanted {
    Wanted::parse(&instance(id, version, url, 4)).unwrap()
}

fn call() -> Call {
    Call::within(SOON)
}

#[tokio::test]
async fn however_many_wait_it_is_opened_once_and_not_verified() {
    let (fakes, cache, tasks) = rig();
    let users: Vec<_> = (0..16)
        .map(|_| {
            let cache = cache.clone();
            tasks.spawn("user", async move {
                cache.acquire(&wanted("pg", 1, "held refuse"), &call()).await.is_ok()
            })
        })
        .collect();
    eventually("opening", || fakes.initialized.load(SeqCst) == 1).await;
    fakes.gate.cancel();
    for user in users {
        assert_eq!(user.join().await, Some(true));
    }
    assert_eq!((fakes.opened.load(SeqCst), fakes.initialized.load(SeqCst)), (1, 1));
}

#[tokio::test]
async fn who_gives_up_does_not_make_the_others_begin_anew() {
    let (fakes, cache, tasks) = rig();
    let quick = Call::within(Duration::from_millis(5));
    let late = cache.acquire(&wanted("pg", 1, "held"), &quick).await.unwrap_err();
    assert!(matches!(late, Refused::Driver(e) if e.reason() == Reason::Deadline));
    let patient = cache.clone();
    let patient =
        tasks.spawn("user", async move { patient.acquire(&wanted("pg", 1, "held"), &call()).await.is_ok() });
    fakes.gate.cancel();
    assert_eq!(patient.join().await, Some(true));
    assert_eq!(fakes.opened.load(SeqCst), 1);
}

#[tokio::test]
async fn a_changed_configuration_opens_anew_and_the_former_driver_finishes_its_work() {
    let (fakes, cache, _tasks) = rig();
    let old = cache.acquire(&wanted("pg", 1, "one"), &call()).await.unwrap();
    drop(cache.acquire(&wanted("pg", 2, "one"), &call()).await.unwrap());
    assert_eq!(fakes.opened.load(SeqCst), 1, "another version of the same configuration changes nothing");
    let new = cache.acquire(&wanted("pg", 3, "two"), &call()).await.unwrap();
    assert_eq!((fakes.opened.load(SeqCst), fakes.closed.load(SeqCst), cache.len()), (2, 0, 1));
    drop(old);
    eventually("the former one closes", || fakes.closed.load(SeqCst) == 1).await;
    drop(new);
    assert_eq!((fakes.closed.load(SeqCst), cache.len()), (1, 1), "the new one is kept");
    cache.close_all(SOON).await.unwrap();
    assert_eq!((fakes.opened.load(SeqCst), fakes.closed.load(SeqCst)), (2, 2), "each is closed once");
}

#[tokio::test]
async fn without_a_configuration_only_what_is_held_will_do() {
    let (_fakes, cache, _tasks) = rig();
    let bare = |version| {
        let instance = holdfast_proto::relay::v1::Instance {
            config: Default::default(),
            ..instance("pg", version, "x", 4)
        };
        Wanted::parse(&instance).unwrap()
    };
    let missing = cache.acquire(&bare(1), &call()).await.unwrap_err();
    assert_eq!(missing.to_string(), "instance config missing");
    drop(cache.acquire(&wanted("pg", 1, "one"), &call()).await.unwrap());
    drop(cache.acquire(&bare(1), &call()).await.unwrap());
    assert!(matches!(cache.acquire(&bare(2), &call()).await, Err(Refused::ConfigMissing)));
    assert_eq!(cache.pool(&bare(1)), Some(4));
}

#[tokio::test]
async fn what_does_not_open_leaves_nothing() {
    let (fakes, cache, _tasks) = rig();
    for _ in 0..2 {
        let broken = cache.acquire(&wanted("pg", 1, "broken"), &call()).await.unwrap_err();
        assert_eq!(broken.to_string(), "broken");
        assert!(cache.is_empty());
    }
    drop(cache.acquire(&wanted("pg", 1, "mended"), &call()).await.unwrap());
    assert_eq!(fakes.opened.load(SeqCst), 1);
}

#[tokio::test]
async fn a_configuration_that_the_database_refuses_does_not_take_the_place_of_one_that_works() {
    let (fakes, cache, _tasks) = rig();
    drop(cache.acquire(&wanted("pg", 1, "good"), &call()).await.unwrap());
    let refused = cache.verify(&wanted("pg", 2, "refuse"), &call()).await.unwrap_err();
    assert!(matches!(refused, Refused::Driver(e) if e.reason() == Reason::Login));
    eventually("the candidate closes", || fakes.closed.load(SeqCst) == 1).await;
    drop(cache.acquire(&wanted("pg", 1, "good"), &call()).await.unwrap());
    assert_eq!(fakes.opened.load(SeqCst), 2, "the one that works was kept");
    cache.verify(&wanted("pg", 2, "better"), &call()).await.unwrap();
    eventually("the former one closes", || fakes.closed.load(SeqCst) == 2).await;
    cache.verify(&wanted("pg", 2, "better"), &call()).await.unwrap();
    assert_eq!(fakes.opened.load(SeqCst), 3, "what is open is verified as it is");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_used_for_a_day_is_closed_and_what_is_used_is_not() {
    let (fakes, cache, tasks) = rig();
    let sweeper = cache.clone();
    tasks.spawn_until_cancelled("sweep", async move { sweeper.sweep(IDLE).await });
    let busy = cache.acquire(&wanted("busy", 1, "busy"), &call()).await.unwrap();
    drop(cache.acquire(&wanted("idle", 1, "idle"), &call()).await.unwrap());
    tokio::time::sleep(IDLE - Duration::from_secs(3600)).await;
    assert_eq!(cache.len(), 2);
    tokio::time::sleep(Duration::from_secs(8 * 3600)).await;
    eventually("the idle one closes", || fakes.closed.load(SeqCst) == 1).await;
    assert_eq!(cache.len(), 1);
    drop(busy);
    tokio::time::sleep(IDLE * 2).await;
    eventually("the other one closes too", || fakes.closed.load(SeqCst) == 2).await;
    assert!(cache.is_empty());
}

#[test]
fn a_plugin_that_is_none_of_ours_and_a_broken_configuration_are_told_apart() {
    let mut other = instance("pg", 1, "x", 4);
    other.plugin = "oracle-database-plugin".into();
    assert_eq!(Wanted::parse(&other).unwrap_err().to_string(), "unknown plugin \"oracle-database-plugin\"");
    let mut broken = instance("pg", 1, "x", 4);
    broken.config = "{\"password\": \"geheim\"}".into();
    let error = Wanted::parse(&broken).unwrap_err();
    assert!(matches!(error, Refused::Config(_)) && !error.to_string().contains("geheim"), "{error}");
}
