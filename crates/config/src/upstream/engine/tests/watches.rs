//! Watches: read after each subscription, apply what is newer, trust nothing that is silent.

use std::sync::atomic::Ordering;

use holdfast_core::AnswerKind::Unavailable;
use holdfast_core::freshness::Outcome;

use super::rig::*;
use crate::provider::Pace;

/// An engine whose one object is watched and was read after the subscription.
async fn watched(rig: &Rig) -> Engine {
    rig.provider.watching.store(true, Ordering::Relaxed);
    rig.provider.script("a", [give(revision("1", 1))]);
    let engine = rig.start(configuration([binding("a", "a")]));
    rig.after(10 * MS).await;
    rig.provider.sink("a").subscribed();
    rig.after(SEC).await;
    assert_eq!(rig.fresh("a"), "1");
    rig.provider.calls("a");
    rig.published("a");
    engine
}

/// Shows signs of life for so long.
async fn alive(rig: &Rig, time: Duration) {
    let end = tokio::time::Instant::now() + time;
    while tokio::time::Instant::now() < end {
        rig.provider.sink("a").alive();
        rig.after(5 * SEC).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_subscription_stands_before_the_first_reading_unless_it_takes_too_long() {
    let rig = Rig::new();
    rig.provider.watching.store(true, Ordering::Relaxed);
    let names: Vec<_> = (0..100).map(|n| format!("n{n}")).collect();
    let _engine = rig.start(configuration(names.iter().map(|name| binding(name, name))));
    rig.after(800 * MS).await;
    assert_eq!(rig.provider.all_calls(), 0);
    names[..50].iter().for_each(|name| rig.provider.sink(name).subscribed());
    rig.after(10 * MS).await;
    assert_eq!(rig.provider.all_calls(), 50, "once each");
    rig.after(SEC).await;
    assert_eq!(rig.provider.all_calls(), 50, "the others, without");
    assert!(names.iter().all(|name| rig.state(name).settled));
}

#[tokio::test(start_paused = true)]
async fn first_readings_behind_a_watch_are_spread_as_all_are() {
    let rig = Rig::new();
    rig.provider.watching.store(true, Ordering::Relaxed);
    let names: Vec<_> = (0..100).map(|n| format!("n{n}")).collect();
    let _engine = rig.start(configuration(names.iter().map(|name| binding(name, name))));
    rig.after(MS).await;
    names.iter().for_each(|name| rig.provider.sink(name).subscribed());
    rig.after(100 * MS).await;
    let early = rig.provider.all_calls();
    assert!((5..=45).contains(&early), "{early} of 100 in the first fifth");
    rig.after(SEC).await;
    assert_eq!(early + rig.provider.all_calls(), 100);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_the_newest_state_unless_it_is_older_than_what_was_read() {
    let rig = Rig::new();
    let _engine = watched(&rig).await;
    let sink = rig.provider.sink("a");
    sink.event(revision("3", 3));
    rig.after(MS).await;
    assert_eq!((rig.fresh("a"), rig.published("a")), ("3".into(), (1, 1)));
    sink.event(revision("2", 2));
    rig.after(MS).await;
    assert_eq!((rig.fresh("a"), rig.published("a")), ("3".into(), (0, 0)));
    sink.event(Outcome::Absent);
    rig.after(MS).await;
    assert_eq!(rig.served("a").unwrap().1, Some(holdfast_core::AnswerKind::NotFound));
    assert!(rig.provider.calls("a").is_empty(), "no event makes a reading");
}

#[tokio::test(start_paused = true)]
async fn events_while_a_reading_is_under_way_are_compared_with_it() {
    let rig = Rig::new();
    let _engine = watched(&rig).await;
    let sink = rig.provider.sink("a");
    for (read, event, shown, calls) in [
        (revision("5", 5), revision("6", 6), "6", 1),
        (revision("8", 8), revision("7", 7), "8", 1),
        // Without a revision nobody can tell which is newer.
        (value("9"), value("old"), "9", 2),
    ] {
        rig.provider.script("a", [Step::Slow(100 * MS, read.clone()), give(read)]);
        sink.changed();
        rig.after(50 * MS).await;
        sink.event(event);
        rig.after(200 * MS).await;
        assert_eq!((rig.fresh("a").as_str(), rig.provider.calls("a").len()), (shown, calls));
    }
}

#[tokio::test(start_paused = true)]
async fn behind_a_watch_the_object_is_confirmed_every_minute() {
    let rig = Rig::new();
    let _engine = watched(&rig).await;
    alive(&rig, 600 * SEC).await;
    let calls = rig.provider.calls("a").len();
    assert!((8..=13).contains(&calls), "{calls} in ten minutes");
    // Progress of the watch is a confirmation, too, and moves the date.
    let before = rig.state("a").resolved_at;
    for _ in 0..20 {
        rig.provider.sink("a").confirmed();
        rig.after(30 * SEC).await;
    }
    assert!(rig.provider.calls("a").is_empty());
    assert!(rig.state("a").resolved_at > before);
    assert_eq!(rig.published("a").1, 0);
}

#[tokio::test(start_paused = true)]
async fn a_provider_may_read_more_often_behind_its_watch() {
    let rig = Rig::new();
    *rig.provider.pace.lock() = Pace { reread: Some(20 * SEC), ..Pace::default() };
    let _engine = watched(&rig).await;
    alive(&rig, 600 * SEC).await;
    assert!((25..=38).contains(&rig.provider.calls("a").len()));
}

#[tokio::test(start_paused = true)]
async fn a_lost_watch_is_followed_by_a_reading_within_100_ms_and_another_after_it_stands_again() {
    let rig = Rig::new();
    let _engine = watched(&rig).await;
    let sink = rig.provider.sink("a");
    rig.provider.script("a", [give(revision("2", 2)), give(revision("3", 3))]);
    sink.lost(Unavailable);
    rig.after(100 * MS).await;
    assert_eq!((rig.fresh("a"), rig.provider.calls("a").len()), ("2".into(), 1));
    sink.event(revision("9", 9));
    rig.after(100 * MS).await;
    assert_eq!(rig.fresh("a"), "2", "no event counts between two subscriptions");
    sink.subscribed();
    rig.after(100 * MS).await;
    assert_eq!((rig.fresh("a"), rig.provider.calls("a").len()), ("3".into(), 1));
    assert_eq!(rig.provider.watches(), 1, "the provider subscribes again by itself");
}

#[tokio::test(start_paused = true)]
async fn without_its_watch_an_object_is_polled() {
    let rig = Rig::new();
    let _engine = watched(&rig).await;
    rig.provider.sink("a").lost(Unavailable);
    alive(&rig, 300 * SEC).await;
    assert!((9..=14).contains(&rig.provider.calls("a").len()));
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_begun_anew() {
    let rig = Rig::new();
    let _engine = watched(&rig).await;
    rig.provider.script("a", [Step::Hang]);
    rig.after(43 * SEC).await;
    assert_eq!(rig.provider.watches(), 1);
    rig.after(2 * SEC).await;
    assert_eq!((rig.provider.watches(), rig.provider.calls("a").len()), (2, 1));
    assert_eq!(rig.fresh("a"), "1");
    rig.after(10 * SEC).await;
    assert_eq!(rig.served("a"), Ok(("1".into(), Some(Unavailable))), "45 s and the deadline of an attempt");
    rig.provider.script("a", [give(revision("2", 2))]);
    rig.provider.sink("a").subscribed();
    // The attempt that hangs now is given its time; what asked meanwhile comes after it.
    rig.after(14 * SEC).await;
    assert_eq!(rig.fresh("a"), "2");
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_task_is_gone_is_read_behind_and_begun_anew() {
    let rig = Rig::new();
    let _engine = watched(&rig).await;
    rig.provider.script("a", [give(revision("2", 2))]);
    rig.provider.forget_sinks();
    rig.after(100 * MS).await;
    assert_eq!(rig.fresh("a"), "2");
    rig.after(SEC).await;
    assert_eq!(rig.provider.watches(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_error_event_is_an_outcome_and_read_behind() {
    let rig = Rig::new();
    let _engine = watched(&rig).await;
    rig.provider.sink("a").event(error(Unavailable));
    rig.after(MS).await;
    assert_eq!(rig.served("a").unwrap().1, Some(Unavailable));
    rig.after(SEC).await;
    assert_eq!((rig.fresh("a"), rig.provider.calls("a").len()), ("1".into(), 1));
}
