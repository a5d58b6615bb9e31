//! Outcomes become records: once for each attempt and binding, also those that could end silently.

use std::sync::atomic::Ordering;

use holdfast_core::AnswerKind::{Invalid, NotFound, Unavailable, Unknown};
use holdfast_core::freshness::{Failure, Outcome};

use super::rig::*;
use crate::config::OnAbsent;

#[tokio::test(start_paused = true)]
async fn bindings_of_one_object_share_one_call_and_get_their_own_parts() {
    let rig = Rig::new();
    rig.provider.script("db", [give(value(r#"{"user":"u","password":"p"}"#))]);
    rig.provider.script("text", [give(value("no json"))]);
    let bindings =
        [("user", "db#user"), ("password", "db#password"), ("none", "db#other"), ("bad", "text#a")];
    let _engine = rig.start(configuration(bindings.map(|(name, reference)| binding(name, reference))));
    rig.after(SEC).await;
    assert_eq!(rig.provider.calls("db").len(), 1);
    assert_eq!((rig.fresh("user"), rig.fresh("password")), ("u".into(), "p".into()));
    assert_eq!((rig.served("none"), rig.served("bad")), (Err(NotFound), Err(Invalid)));
    assert_eq!(rig.published("user"), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn every_attempt_is_published_and_dates_follow_successes_only() {
    let rig = Rig::new();
    let steps = [value("1"), value("1"), error(Unavailable), value("1"), value("2")];
    rig.provider.script("a", steps.map(give));
    let _engine = rig.start(configuration([binding("a", "a")]));
    let mut dates = Vec::new();
    let mut seen = Vec::new();
    for _ in 0..5 {
        while rig.provider.calls("a").is_empty() {
            rig.after(10 * MS).await;
        }
        dates.push(rig.state("a").resolved_at.unwrap());
        seen.push((rig.served("a").unwrap(), rig.published("a")));
    }
    let stale = |text: &str, kind| (text.to_owned(), kind);
    assert_eq!(
        seen,
        [
            (stale("1", None), (1, 1)),
            (stale("1", None), (1, 0)),
            (stale("1", Some(Unavailable)), (1, 1)),
            (stale("1", None), (1, 1)),
            (stale("2", None), (1, 1)),
        ]
    );
    assert!(dates[0] < dates[1] && dates[1] == dates[2] && dates[2] < dates[3] && dates[3] < dates[4]);
}

#[tokio::test(start_paused = true)]
async fn an_absence_drops_the_value_once_another_attempt_confirmed_it() {
    let rig = Rig::new();
    let absent = || give(Outcome::Absent);
    rig.provider.script("a", [give(value("1")), absent(), absent(), absent()]);
    let mut own = binding("a", "a");
    own.rules.on_absent = OnAbsent::Drop;
    let kept = binding("kept", "a");
    let _engine = rig.start(configuration([own, kept]));
    rig.after(SEC).await;
    let first = rig.provider.calls("a").len();
    assert_eq!(first, 1);
    while rig.provider.calls("a").is_empty() {
        rig.after(10 * MS).await;
    }
    assert_eq!(rig.served("a"), Ok(("1".into(), Some(NotFound))), "not before it is confirmed");
    rig.after(1100 * MS).await;
    assert_eq!(rig.provider.calls("a").len(), 1);
    assert_eq!(rig.served("a"), Err(NotFound));
    assert_eq!(rig.served("kept"), Ok(("1".into(), Some(NotFound))));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_at_its_deadline_and_leaves_nothing_behind() {
    let rig = Rig::new();
    rig.provider.script("a", [Step::Hang]);
    rig.provider.script("b", [give(value("b"))]);
    let mut slow = binding("a", "a");
    slow.rules.timeout = 3 * SEC;
    let _engine = rig.start(configuration([slow, binding("b", "b")]));
    rig.after(SEC).await;
    assert_eq!((rig.served("a"), rig.fresh("b")), (Err(Unknown), "b".into()));
    rig.after(3 * SEC).await;
    assert_eq!(rig.served("a"), Err(Unavailable));
    rig.after(600 * SEC).await;
    assert!(rig.provider.under_way() <= 1, "hung calls piled up");
    assert_eq!(rig.fresh("b"), "b");
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_panics_fails_this_attempt_only() {
    let rig = Rig::new();
    rig.provider.script("a", [Step::Panic, give(value("1"))]);
    let _engine = rig.start(configuration([binding("a", "a")]));
    rig.after(600 * MS).await;
    assert_eq!(rig.served("a"), Err(Unknown));
    rig.after(SEC).await;
    assert_eq!(rig.fresh("a"), "1");
    assert!(rig.tasks.failure().is_none());
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_is_invalid_and_a_binding_says_what_is_secret() {
    let rig = Rig::new();
    rig.provider.script("a", [give(value(&"x".repeat(2000)))]);
    let (mut small, mut secret) = (binding("small", "a"), binding("secret", "a"));
    small.rules.max_value_bytes = 1999;
    (secret.rules.max_value_bytes, secret.rules.sensitive) = (2000, Some(true));
    let _engine = rig.start(configuration([small, secret, binding("plain", "a")]));
    rig.after(SEC).await;
    assert_eq!(rig.served("small"), Err(Invalid));
    let sensitive = |name| rig.state(name).value.unwrap().sensitive;
    assert_eq!((sensitive("secret"), sensitive("plain")), (true, false));
}

#[tokio::test(start_paused = true)]
async fn what_is_too_old_is_refused_at_that_moment() {
    let rig = Rig::new();
    rig.provider.script("a", [give(value("1")), give(error(Unavailable))]);
    let mut own = binding("a", "a");
    own.rules.max_stale = Some(60 * SEC);
    let _engine = rig.start(configuration([own]));
    rig.after(SEC).await;
    rig.after(58 * SEC).await;
    assert_eq!(rig.served("a"), Ok(("1".into(), Some(Unavailable))));
    rig.published("a");
    rig.after(2 * SEC).await;
    assert_eq!(rig.served("a"), Err(Unavailable));
    assert_eq!(rig.published("a").1, 1);
}

#[tokio::test(start_paused = true)]
async fn ready_when_each_binding_had_an_outcome_of_whatever_sort() {
    let rig = Rig::new();
    rig.provider.script("a", [Step::Slow(2 * SEC, value("1"))]);
    for (path, outcome) in
        [("b", error(Invalid)), ("c", Outcome::Absent), ("d", Outcome::Error(Failure::own_login()))]
    {
        rig.provider.script(path, [give(outcome)]);
    }
    let engine = rig.start(configuration(["a", "b", "c", "d"].map(|name| binding(name, name))));
    let ready = engine.readiness();
    rig.after(SEC).await;
    assert_eq!(*ready.borrow(), Answer::Priming);
    rig.after(2 * SEC).await;
    assert_eq!(*ready.borrow(), Answer::Ready);
    assert_eq!(["b", "c", "d"].map(|name| rig.served(name)), [Err(Invalid), Err(NotFound), Err(Unavailable)]);
    engine.drain();
    assert_eq!(*ready.borrow(), Answer::Draining);
    assert_eq!(rig.fresh("a"), "1");
}

#[tokio::test(start_paused = true)]
async fn priming_ends_at_its_deadline_but_not_for_what_is_required() {
    let rig = Rig::new();
    rig.provider.script("a", [Step::Hang]);
    rig.provider.script("b", [Step::Hang, give(value("b"))]);
    for (required, answer) in [(vec![], Answer::Ready), (vec!["b".to_owned()], Answer::Priming)] {
        let names = ["a", "b"].map(|name| {
            let mut binding = binding(name, name);
            binding.rules.timeout = 90 * SEC;
            binding
        });
        let mut configuration = configuration(names);
        configuration.settings.readiness.require = required;
        let engine = rig.start(configuration);
        rig.after(59 * SEC).await;
        assert_eq!(*engine.readiness().borrow(), Answer::Priming);
        rig.after(2 * SEC).await;
        assert_eq!(rig.served("a"), Err(Unavailable));
        assert_eq!(*engine.readiness().borrow(), answer);
        rig.after(40 * SEC).await;
        assert_eq!(*engine.readiness().borrow(), Answer::Ready, "the value came");
        engine.stop(SEC).await;
        rig.board.set_names([]);
        rig.provider.script("b", [Step::Hang, give(value("b"))]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_bridges_an_outage_at_the_start_and_yields_to_a_definite_answer() {
    let rig = Rig::new();
    let dir = tempfile::tempdir().unwrap();
    let with_file = |names: &[&str]| {
        let mut configuration = configuration(names.iter().map(|name| binding(name, name)));
        configuration.settings.lkg.dir = Some(dir.path().to_owned());
        configuration.settings.lkg.key_file = Some(key_file(dir.path()));
        configuration
    };
    for name in ["down", "gone", "denied"] {
        rig.provider.script(name, [give(value(name))]);
    }
    let names = ["down", "gone", "denied"];
    let engine = rig.start(with_file(&names));
    rig.after(SEC).await;
    let date = rig.state("down").resolved_at;
    engine.stop(SEC).await;
    rig.board.set_names([]);
    rig.provider.script("down", [give(error(Unavailable))]);
    rig.provider.script("gone", [give(Outcome::Absent)]);
    rig.provider.script("denied", [give(Outcome::Error(Failure::own_login()))]);
    rig.after(60 * SEC).await;
    let engine = rig.start(with_file(&names));
    rig.after(SEC).await;
    assert_eq!(*engine.readiness().borrow(), Answer::Ready);
    assert_eq!(rig.served("down"), Ok(("down".into(), Some(Unavailable))));
    assert_eq!(rig.state("down").resolved_at, date, "with its own date");
    assert_eq!((rig.served("gone"), rig.served("denied")), (Err(NotFound), Err(Unavailable)));
    assert_eq!(engine.restored(), Tally { used: 1, discarded: 1 });
    engine.stop(SEC).await;
    // What a refused login neither used nor refuted is still there for the next start.
    rig.board.set_names([]);
    rig.provider.script("denied", [give(error(Unavailable))]);
    rig.provider.script("gone", [give(error(Unavailable))]);
    let _engine = rig.start(with_file(&names));
    rig.after(SEC).await;
    assert_eq!(rig.served("denied"), Ok(("denied".into(), Some(Unavailable))));
    assert_eq!(rig.served("gone"), Err(Unavailable));
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_changes_dates_and_no_ages() {
    let rig = Rig::new();
    let mut own = binding("a", "a");
    own.rules.max_stale = Some(60 * SEC);
    rig.provider.script("a", [give(value("1"))]);
    let _engine = rig.start(configuration([own]));
    rig.after(SEC).await;
    for step in [3_600_000_000i64, -7_200_000_000] {
        rig.clock.set.fetch_add(step, Ordering::Relaxed);
        rig.after(60 * SEC).await;
        assert_eq!(rig.fresh("a"), "1");
        let date = rig.state("a").resolved_at.unwrap();
        assert!(rig.clock.now().wall.since(date) <= 36 * SEC && date <= rig.clock.now().wall);
    }
}
