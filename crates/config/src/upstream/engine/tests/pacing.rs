//! When the upstream is asked: polls, pauses after failures, the breaker, and how many calls are under way.

use holdfast_core::AnswerKind::{PermissionDenied, RateLimited, Unavailable, Unknown};
use holdfast_core::freshness::{Failure, Outcome};

use super::rig::*;
use crate::provider::Pace;

#[tokio::test(start_paused = true)]
async fn the_smallest_poll_of_an_object_counts_and_varies_by_a_fifth() {
    let rig = Rig::new();
    let (mut often, mut seldom) = (binding("often", "a#x"), binding("seldom", "a#y"));
    (often.rules.poll, seldom.rules.poll) = (10 * SEC, 600 * SEC);
    rig.provider.script("a", [give(value("{}"))]);
    let _engine = rig.start(configuration([often, seldom]));
    rig.after(600 * SEC).await;
    let gaps = gaps(&rig.provider.calls("a"));
    assert!((50..=74).contains(&gaps.len()), "{} calls", gaps.len());
    assert!(gaps.iter().all(|gap| (7990 * MS..=12_010 * MS).contains(gap)), "{gaps:?}");
    assert!(gaps.iter().any(|gap| *gap < 9 * SEC) && gaps.iter().any(|gap| *gap > 11 * SEC));
}

#[tokio::test(start_paused = true)]
async fn a_provider_has_a_floor_for_polls() {
    let rig = Rig::new();
    *rig.provider.pace.lock() = Pace { poll_floor: 5 * SEC, ..Pace::default() };
    let mut own = binding("a", "a");
    own.rules.poll = SEC;
    let _engine = rig.start(configuration([own]));
    rig.after(100 * SEC).await;
    assert!((16..=26).contains(&rig.provider.calls("a").len()));
}

#[tokio::test(start_paused = true)]
async fn a_start_is_spread_over_half_a_second_and_never_has_too_many_calls_under_way() {
    let rig = Rig::new();
    let names: Vec<_> = (0..200).map(|n| format!("n{n}")).collect();
    for name in &names {
        rig.provider.script(name, [Step::Slow(20 * MS, value("x"))]);
    }
    let _engine = rig.start(configuration(names.iter().map(|name| binding(name, name))));
    rig.after(100 * MS).await;
    let early = rig.provider.all_calls();
    assert!((10..=90).contains(&early), "{early} of 200 in the first fifth");
    rig.after(500 * MS).await;
    assert_eq!(early + rig.provider.all_calls(), 200);
    assert!(rig.provider.most_under_way() <= 16);
    // All at once now: the limit is what holds.
    for name in &names {
        rig.provider.script(name, [Step::Slow(3 * SEC, value("x"))]);
    }
    rig.after(60 * SEC).await;
    assert_eq!(rig.provider.most_under_way(), 16);
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_asked_after_pauses_that_double_and_nothing_else_is() {
    let rig = Rig::new();
    rig.provider.script("a", [give(error(Unavailable)), give(error(Unknown))]);
    let _engine = rig.start(configuration([binding("a", "a"), binding("b", "b")]));
    rig.after(120 * SEC).await;
    let gaps = gaps(&rig.provider.calls("a"));
    for (gap, most) in gaps.iter().zip([1, 2, 4, 8, 16, 30, 30]) {
        let most = most * SEC;
        assert!((most / 2..=most + 10 * MS).contains(gap), "{gaps:?}");
    }
    assert!((3..=6).contains(&rig.provider.calls("b").len()));
}

#[tokio::test(start_paused = true)]
async fn definite_refusals_are_asked_in_turn_and_throttles_obeyed() {
    let rig = Rig::new();
    rig.provider.script("denied", [give(error(PermissionDenied))]);
    let retry_after = Some(7 * SEC);
    let limited = Outcome::Error(Failure { retry_after, ..Failure::of(RateLimited) });
    rig.provider.script("limited", [give(limited)]);
    let bindings = ["denied", "limited"].map(|name| {
        let mut binding = binding(name, name);
        binding.rules.poll = 2 * SEC;
        binding
    });
    let _engine = rig.start(configuration(bindings));
    rig.after(60 * SEC).await;
    let denied = gaps(&rig.provider.calls("denied"));
    assert!(denied.iter().all(|gap| (1590 * MS..=2410 * MS).contains(gap)), "{denied:?}");
    let limited = gaps(&rig.provider.calls("limited"));
    assert!(limited.iter().all(|gap| (7 * SEC..=8410 * MS).contains(gap)), "{limited:?}");
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_down_gets_one_probe_a_step_and_recovers_spread() {
    let rig = Rig::new();
    let names: Vec<_> = (0..100).map(|n| format!("n{n}")).collect();
    for name in &names {
        rig.provider.script(name, [give(error(Unavailable))]);
    }
    let engine = rig.start(configuration(names.iter().map(|name| binding(name, name))));
    rig.after(600 * MS).await;
    // The first probe comes half a second after the fifth failure at the earliest.
    let calls = rig.provider.all_calls();
    assert!((5..=6).contains(&calls), "{calls} calls before the breaker stopped them");
    assert!(names.iter().all(|name| rig.served(name) == Err(Unavailable)), "also those that were not asked");
    assert!(engine.upstreams()[0].down);
    rig.after(30 * SEC).await;
    let probes = rig.provider.all_calls();
    assert!((3..=7).contains(&probes), "{probes} probes in 30 s");
    for name in &names {
        rig.provider.script(name, [give(value("back"))]);
    }
    while rig.provider.all_calls() == 0 {
        rig.after(10 * MS).await;
    }
    rig.after(SEC).await;
    let half = rig.provider.all_calls();
    assert!((25..=80).contains(&half), "{half} in the first of two seconds");
    rig.after(1100 * MS).await;
    assert!(names.iter().all(|name| rig.fresh(name) == "back"));
    let status = &engine.upstreams()[0];
    assert_eq!((status.down, status.last_error, status.bindings), (false, None, 100));
    assert!(status.calls_per_minute >= 100);
}

#[tokio::test(start_paused = true)]
async fn one_object_that_is_broken_does_not_open_the_breaker_for_the_others() {
    let rig = Rig::new();
    rig.provider.script("a", [give(error(Unavailable))]);
    let engine = rig.start(configuration(["a", "b", "c"].map(|name| binding(name, name))));
    rig.after(600 * SEC).await;
    assert!(!engine.upstreams()[0].down);
    assert!(rig.provider.calls("a").len() > 15);
    assert_eq!(rig.published("b").1, 1, "the good one was never stale");
}

#[tokio::test(start_paused = true)]
async fn calls_that_hang_open_the_breaker_so_that_the_rest_settles() {
    let rig = Rig::new();
    let names: Vec<_> = (0..40).map(|n| format!("n{n}")).collect();
    for name in &names {
        rig.provider.script(name, [Step::Hang]);
    }
    let _engine = rig.start(configuration(names.iter().map(|name| binding(name, name))));
    rig.after(11 * SEC).await;
    let open = names.iter().filter(|name| rig.served(name) == Err(Unknown)).count();
    assert!(open <= 5, "{open} stand in line behind an open breaker");
    // Those that were let in before the fifth failure hang as well, and each step has its probe.
    rig.after(10 * SEC).await;
    assert!(names.iter().all(|name| rig.served(name) == Err(Unavailable)));
    let calls = rig.provider.all_calls();
    assert!((16..=26).contains(&calls), "{calls}");
}
