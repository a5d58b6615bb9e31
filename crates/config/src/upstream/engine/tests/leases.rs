//! Values under a lease: never polled, renewed in time, fetched anew before the end.

use std::sync::atomic::Ordering;

use holdfast_core::AnswerKind::{PermissionDenied, Unavailable};
use holdfast_core::freshness::{Refusal, Served};

use super::rig::*;
use crate::provider::Lease;

fn lease(id: &str, seconds: u64, renewable: bool) -> Lease {
    Lease { id: id.into(), ttl: Duration::from_secs(seconds), renewable }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_at_two_thirds_and_its_value_never_polled() {
    let rig = Rig::new();
    rig.provider.script("a", [Step::Leased(value("1"), lease("l1", 600, true))]);
    rig.provider.script_renewals((0..3).map(|_| Ok(lease("l1", 600, true))));
    let _engine = rig.start(configuration([binding("a", "a")]));
    rig.after(SEC).await;
    let end = rig.state("a").value.unwrap().not_after.unwrap();
    let until = |end: holdfast_core::Wall| end.since(rig.clock.now().wall);
    assert!((598 * SEC..=600 * SEC).contains(&until(end)));
    rig.after(1210 * SEC).await;
    assert_eq!((rig.provider.calls("a").len(), rig.provider.renewed().len()), (1, 3));
    assert_eq!(rig.fresh("a"), "1");
    let end = rig.state("a").value.unwrap().not_after.unwrap();
    assert!((580 * SEC..=600 * SEC).contains(&until(end)), "the end moved with the renewals");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_renewed_any_more_is_fetched_anew_and_the_old_lease_left_alone() {
    for renewal in [Err(PermissionDenied), Ok(lease("l1", 200, true))] {
        let rig = Rig::new();
        let leased = |text, id| Step::Leased(value(text), lease(id, 600, true));
        rig.provider.script("a", [leased("1", "l1"), leased("2", "l2")]);
        rig.provider.script_renewals([renewal]);
        let _engine = rig.start(configuration([binding("a", "a")]));
        rig.after(399 * SEC).await;
        assert_eq!((rig.fresh("a"), rig.provider.renewed().len()), ("1".into(), 0));
        rig.after(3 * SEC).await;
        assert_eq!((rig.fresh("a"), rig.provider.calls("a").len()), ("2".into(), 2));
        assert!(rig.provider.revoked().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_renewal_is_replaced_at_nine_tenths_and_expires_if_it_cannot_be() {
    let rig = Rig::new();
    let first = Step::Leased(value("1"), lease("l1", 600, false));
    rig.provider.script("a", [first, give(error(Unavailable))]);
    let _engine = rig.start(configuration([binding("a", "a")]));
    rig.after(539 * SEC).await;
    assert_eq!(rig.provider.calls("a").len(), 1);
    rig.after(2 * SEC).await;
    assert_eq!(rig.served("a"), Ok(("1".into(), Some(Unavailable))));
    let calls = rig.provider.calls("a").len();
    rig.after(60 * SEC).await;
    assert!((4..=8).contains(&(calls + rig.provider.calls("a").len())), "after pauses that double");
    assert_eq!(rig.state("a").served, Served::Refused(Unavailable, Refusal::Expired));
    rig.provider.script("a", [Step::Leased(value("2"), lease("l2", 600, false))]);
    rig.after(60 * SEC).await;
    assert_eq!(rig.fresh("a"), "2");
}

#[tokio::test(start_paused = true)]
async fn what_mints_is_not_polled_even_without_a_lease() {
    let rig = Rig::new();
    rig.provider.minting.store(true, Ordering::Relaxed);
    rig.provider.script("a", [give(error(Unavailable)), give(value("1"))]);
    let _engine = rig.start(configuration([binding("a", "a")]));
    rig.after(3600 * SEC).await;
    assert_eq!((rig.fresh("a"), rig.provider.calls("a").len()), ("1".into(), 2));
}

#[tokio::test(start_paused = true)]
async fn leases_are_given_back_when_the_process_ends_if_that_is_wished_and_never_when_a_binding_does() {
    for wished in [true, false] {
        let rig = Rig::new();
        for name in ["a", "b"] {
            rig.provider.script(name, [Step::Leased(value("1"), lease(name, 600, true))]);
        }
        let with = |names: &[&str]| {
            let mut configuration = configuration(names.iter().map(|name| binding(name, name)));
            configuration.upstreams.get_mut("up").unwrap().settings.revoke_on_exit = wished;
            configuration
        };
        let engine = rig.start(with(&["a", "b"]));
        rig.after(SEC).await;
        engine.apply(&Arc::new(with(&["a"]))).unwrap();
        rig.after(SEC).await;
        assert!(rig.provider.revoked().is_empty());
        engine.stop(SEC).await;
        assert_eq!(rig.provider.revoked().len(), usize::from(wished));
        assert!(rig.tasks.running().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_binding_that_joins_a_leased_object_gets_what_is_held_and_makes_no_other_credential() {
    let rig = Rig::new();
    rig.provider.script("a", [Step::Leased(value(r#"{"user":"u","password":"p"}"#), lease("l1", 600, true))]);
    let engine = rig.start(configuration([binding("user", "a#user")]));
    rig.after(10 * SEC).await;
    let joined = configuration([binding("user", "a#user"), binding("password", "a#password")]);
    engine.apply(&Arc::new(joined)).unwrap();
    rig.after(SEC).await;
    assert_eq!((rig.fresh("user"), rig.fresh("password")), ("u".into(), "p".into()));
    assert_eq!(rig.provider.calls("a").len(), 1);
    assert_eq!(rig.state("password").resolved_at, rig.state("user").resolved_at);
}
