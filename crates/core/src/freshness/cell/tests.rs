use super::*;

#[derive(Clone, Debug, Eq, PartialEq)]
struct Text(&'static str, Option<Wall>);

impl Record for Text {
    fn not_after(&self) -> Option<Wall> {
        self.1
    }
}

type Machine = Cell<Text>;
type Ev = Event<Text>;

const SEEN: Effect = Effect::Publish { visible: true };
const UNSEEN: Effect = Effect::Publish { visible: false };
const PLAIN: Served = Served::Value { stale: None };
const DAY: i64 = 86_400_000;
use AnswerKind::{Invalid, NotFound, PermissionDenied, RateLimited, Unavailable, Unknown};

/// The wall clock reads one day after the epoch when the monotonic one reads zero.
fn wall(ms: i64) -> Wall {
    Wall::from_micros((DAY + ms) * 1000)
}

fn at(ms: u64) -> Now {
    Now { mono: Mono::from_millis(ms), wall: wall(ms as i64) }
}

fn stepped(ms: u64, by: i64) -> Now {
    Now { wall: wall(ms as i64 + by), ..at(ms) }
}

/// An attempt that takes no time: [`step`] lets it begin when it ends.
const fn attempt(outcome: Outcome<Text>) -> Ev {
    Event::Attempt { began: Now { mono: Mono::FAR, wall: Wall::from_micros(0) }, outcome }
}

fn value(text: &'static str) -> Ev {
    attempt(Outcome::Value { value: Text(text, None), passed: None })
}

fn until(text: &'static str, not_after: Wall) -> Ev {
    attempt(Outcome::Value { value: Text(text, Some(not_after)), passed: None })
}

fn passed(text: &'static str, resolved_at: Option<Wall>, kind: Option<AnswerKind>) -> Ev {
    let passed = Some(Passed { resolved_at, kind });
    attempt(Outcome::Value { value: Text(text, None), passed })
}

fn error(kind: AnswerKind) -> Ev {
    attempt(Outcome::Error(Failure::of(kind)))
}

const fn login() -> Ev {
    attempt(Outcome::Error(Failure::own_login()))
}

const fn absent() -> Ev {
    attempt(Outcome::Absent)
}

fn restore(text: &'static str, resolved_at: Wall) -> Ev {
    Event::Restore { value: Text(text, None), resolved_at }
}

fn cell() -> Machine {
    Cell::new(Rules::default())
}

fn with(max_stale: u64, on_absent_drop: bool) -> Machine {
    Cell::new(Rules { max_stale: Some(Duration::from_millis(max_stale)), on_absent_drop })
}

fn step(cell: &mut Machine, now: Now, event: Ev) -> Vec<Effect> {
    let mut out = Vec::new();
    let event = match event {
        Event::Attempt { began, outcome } if began.mono == Mono::FAR => {
            Event::Attempt { began: now, outcome }
        }
        event => event,
    };
    cell.on(now, event, &mut out);
    out
}

fn stale(kind: AnswerKind) -> Served {
    Served::Value { stale: Some(kind) }
}

fn refused(kind: AnswerKind) -> Served {
    Served::Refused(kind, Refusal::ResolveFailed)
}

const TOO_OLD: Served = Served::Refused(Unavailable, Refusal::TooOld);
const EXPIRED: Served = Served::Refused(Unavailable, Refusal::Expired);

fn text(cell: &Machine) -> Option<&'static str> {
    cell.state().value.as_ref().map(|value| value.0)
}

#[test]
fn before_the_first_outcome_nothing_is_served_and_nothing_dated() {
    let cell = cell();
    assert_eq!(*cell.state(), State::default());
    assert_eq!(cell.state().served, refused(Unknown));
    assert_eq!((cell.next_deadline(), cell.age(Mono::FAR)), (None, None));
}

#[test]
fn a_first_value_settles_and_dates() {
    let mut cell = cell();
    assert_eq!(step(&mut cell, at(5), value("a")), [SEEN]);
    let expected = State {
        value: Some(Text("a", None)),
        resolved_at: Some(wall(5)),
        checked_at: Some(wall(5)),
        trouble: None,
        settled: true,
        served: PLAIN,
    };
    assert_eq!(*cell.state(), expected);
}

#[test]
fn an_unchanged_value_moves_its_date_unseen() {
    let mut cell = cell();
    step(&mut cell, at(5), value("a"));
    assert_eq!(step(&mut cell, at(30), value("a")), [UNSEEN]);
    assert_eq!((cell.state().resolved_at, cell.state().checked_at), (Some(wall(30)), Some(wall(30))));
    assert_eq!(step(&mut cell, at(40), value("b")), [SEEN]);
    assert_eq!(text(&cell), Some("b"));
}

#[test]
fn what_differs_in_another_field_is_another_value() {
    let mut cell = cell();
    step(&mut cell, at(0), value("a"));
    assert_eq!(step(&mut cell, at(1), until("a", wall(DAY))), [SEEN]);
}

#[test]
fn an_error_keeps_the_value_its_date_and_since_when() {
    let mut cell = cell();
    step(&mut cell, at(0), value("a"));
    assert_eq!(step(&mut cell, at(30), error(Unavailable)), [SEEN]);
    assert_eq!(step(&mut cell, at(60), error(Unavailable)), [UNSEEN]);
    assert_eq!(step(&mut cell, at(90), error(RateLimited)), [SEEN]);
    let expected = State {
        value: Some(Text("a", None)),
        resolved_at: Some(wall(0)),
        checked_at: Some(wall(90)),
        trouble: Some(Trouble { kind: RateLimited, since: wall(30) }),
        settled: true,
        served: stale(RateLimited),
    };
    assert_eq!(*cell.state(), expected);
    assert_eq!(step(&mut cell, at(100), value("a")), [SEEN], "an error was cleared");
    assert_eq!((cell.state().trouble, cell.state().served), (None, PLAIN));
}

#[test]
fn an_error_without_a_value_settles_as_what_it_is() {
    for kind in AnswerKind::ALL {
        let mut cell = cell();
        assert_eq!(step(&mut cell, at(7), error(kind)), [SEEN], "{kind}");
        assert!(cell.state().settled);
        assert_eq!((cell.state().served, cell.state().resolved_at), (refused(kind), None));
    }
}

#[test]
fn absent_keeps_the_value_unless_told_otherwise() {
    let mut cell = cell();
    step(&mut cell, at(0), value("a"));
    assert_eq!(step(&mut cell, at(10), absent()), [SEEN]);
    assert_eq!(step(&mut cell, at(5000), absent()), [UNSEEN]);
    assert_eq!((text(&cell), cell.state().served), (Some("a"), stale(NotFound)));
}

#[test]
fn absent_drops_the_value_after_a_confirming_attempt() {
    let mut cell = with(0, true);
    cell.on(at(0), Event::Rules(Rules { max_stale: None, on_absent_drop: true }), &mut Vec::new());
    step(&mut cell, at(0), value("a"));
    let asked = Effect::ConfirmAbsence(Mono::from_millis(1010));
    assert_eq!(step(&mut cell, at(10), absent()), [SEEN, asked]);
    assert_eq!(cell.state().served, stale(NotFound));
    assert_eq!(step(&mut cell, at(1009), absent()), [UNSEEN], "the same absence, not its confirmation");
    assert_eq!(step(&mut cell, at(1010), absent()), [SEEN]);
    assert_eq!((text(&cell), cell.state().served), (None, refused(NotFound)));
    assert_eq!((cell.state().resolved_at, cell.state().settled), (None, true));
    assert_eq!(step(&mut cell, at(2020), absent()), [UNSEEN], "nothing is left to drop");
    assert_eq!(step(&mut cell, at(2030), value("b")), [SEEN]);
}

#[test]
fn whatever_comes_between_begins_the_confirmation_anew() {
    for between in [value("a"), error(Unavailable), login()] {
        let mut cell = Cell::new(Rules { max_stale: None, on_absent_drop: true });
        step(&mut cell, at(0), value("a"));
        step(&mut cell, at(10), absent());
        step(&mut cell, at(1010), between);
        let asked = Effect::ConfirmAbsence(Mono::from_millis(3010));
        assert_eq!(step(&mut cell, at(2010), absent()), [SEEN, asked]);
        assert_eq!(text(&cell), Some("a"));
    }
}

#[test]
fn too_old_is_a_timed_event_while_the_upstream_fails_only() {
    let mut cell = with(10_000, false);
    step(&mut cell, at(0), value("a"));
    assert_eq!(cell.next_deadline(), None);
    assert_eq!(step(&mut cell, at(4000), error(Unavailable)), [SEEN]);
    assert_eq!(cell.next_deadline(), Some(Mono::from_millis(10_000)));
    assert_eq!(step(&mut cell, at(9999), Event::Tick), []);
    assert_eq!(step(&mut cell, at(10_000), Event::Tick), [SEEN]);
    assert_eq!((cell.state().served, cell.next_deadline()), (TOO_OLD, None));
    assert_eq!(cell.state().checked_at, Some(wall(4000)), "no attempt ended");
    assert_eq!(step(&mut cell, at(11_000), error(Unavailable)), [UNSEEN]);
    assert_eq!(step(&mut cell, at(12_000), value("a")), [SEEN]);
    assert_eq!(cell.state().served, PLAIN);
}

#[test]
fn an_error_that_finds_the_value_too_old_says_so_at_once() {
    let mut cell = with(10_000, false);
    step(&mut cell, at(0), value("a"));
    assert_eq!(step(&mut cell, at(20_000), error(Unavailable)), [SEEN]);
    assert_eq!(cell.state().served, TOO_OLD);
    let forgiving = Event::Rules(Rules { max_stale: Some(Duration::from_secs(60)), on_absent_drop: false });
    assert_eq!(step(&mut cell, at(21_000), forgiving), [SEEN]);
    assert_eq!(
        (cell.state().served, cell.next_deadline()),
        (stale(Unavailable), Some(Mono::from_millis(60_000)))
    );
}

#[test]
fn a_value_that_has_expired_is_not_last_known_good() {
    let mut cell = with(10_000, false);
    step(&mut cell, at(0), until("a", wall(5000)));
    assert_eq!(cell.next_deadline(), Some(Mono::from_millis(5000)));
    assert_eq!(step(&mut cell, at(5000), Event::Tick), [SEEN]);
    assert_eq!((cell.state().served, cell.next_deadline()), (EXPIRED, None));
    assert_eq!(step(&mut cell, at(5001), Event::Tick), []);
    // One more reason not to serve it is a visible change, since the kind is another.
    assert_eq!(step(&mut cell, at(6000), error(Unavailable)), [SEEN]);
    assert_eq!(cell.state().served, EXPIRED);
    assert_eq!(step(&mut cell, at(7000), until("b", wall(9000))), [SEEN]);
    assert_eq!((cell.state().served, cell.next_deadline()), (PLAIN, Some(Mono::from_millis(9000))));
}

#[test]
fn too_old_turns_into_expired() {
    let mut cell = with(1000, false);
    step(&mut cell, at(0), until("a", wall(5000)));
    step(&mut cell, at(10), error(Unavailable));
    assert_eq!(cell.next_deadline(), Some(Mono::from_millis(1000)));
    assert_eq!(step(&mut cell, at(1000), Event::Tick), [SEEN]);
    assert_eq!((cell.state().served, cell.next_deadline()), (TOO_OLD, Some(Mono::from_millis(5000))));
    assert_eq!(step(&mut cell, at(5000), Event::Tick), [SEEN]);
    assert_eq!(cell.state().served, EXPIRED);
}

#[test]
fn a_value_that_arrives_dead_is_refused_at_once() {
    let mut cell = cell();
    assert_eq!(step(&mut cell, at(10), until("a", wall(9))), [SEEN]);
    assert_eq!((cell.state().served, cell.state().settled), (EXPIRED, true));
}

#[test]
fn a_clock_that_is_set_changes_no_age_and_no_end() {
    for by in [-3_600_000, 3_600_000] {
        let mut cell = with(10_000, false);
        step(&mut cell, at(0), until("a", wall(20_000)));
        step(&mut cell, stepped(1000, by), error(Unavailable));
        assert_eq!(cell.age(Mono::from_millis(1000)), Some(Duration::from_millis(1000)));
        assert_eq!(step(&mut cell, stepped(9999, by), Event::Tick), []);
        assert_eq!(step(&mut cell, stepped(10_000, by), Event::Tick), [SEEN]);
        assert_eq!(step(&mut cell, stepped(19_999, by), Event::Tick), []);
        assert_eq!(step(&mut cell, stepped(20_000, by), Event::Tick), [SEEN]);
        assert_eq!(cell.state().served, EXPIRED);
    }
}

#[test]
fn dates_do_not_go_back_with_a_clock_that_is_slewed_and_do_with_one_that_is_set_back() {
    let mut cell = cell();
    step(&mut cell, at(100_000), value("a"));
    assert_eq!(step(&mut cell, stepped(100_001, -60_000), value("b")), [SEEN]);
    assert_eq!(cell.state().resolved_at, Some(wall(100_000)), "within a minute: it waits");
    let out = step(&mut cell, stepped(100_002, -60_003), value("b"));
    assert_eq!(out, [Effect::ClockSteppedBack, UNSEEN]);
    assert_eq!(cell.state().resolved_at, Some(wall(39_999)));
    assert_eq!(step(&mut cell, stepped(100_003, -60_003), value("b")), [UNSEEN], "warned of once");
    assert_eq!(cell.state().resolved_at, Some(wall(40_000)));
}

#[test]
fn the_date_of_a_dropped_value_is_not_undercut_by_its_successor() {
    let mut cell = Cell::new(Rules { max_stale: None, on_absent_drop: true });
    step(&mut cell, at(90_000), value("a"));
    step(&mut cell, at(90_001), absent());
    step(&mut cell, at(91_001), absent());
    step(&mut cell, stepped(91_002, -50_000), value("b"));
    assert_eq!(cell.state().resolved_at, Some(wall(90_000)));
}

#[test]
fn a_chained_value_keeps_its_date_and_its_state() {
    let mut cell = cell();
    assert_eq!(step(&mut cell, at(9000), passed("a", Some(wall(1000)), None)), [SEEN]);
    assert_eq!((cell.state().resolved_at, cell.state().checked_at), (Some(wall(1000)), Some(wall(9000))));
    assert_eq!(cell.age(Mono::from_millis(9500)), Some(Duration::from_millis(8500)));
    assert_eq!(step(&mut cell, at(10_000), passed("a", Some(wall(1000)), Some(RateLimited))), [SEEN]);
    assert_eq!(cell.state().served, stale(RateLimited));
    assert_eq!(cell.state().trouble, Some(Trouble { kind: RateLimited, since: wall(10_000) }));
    assert_eq!(cell.state().resolved_at, Some(wall(1000)), "never renewed");
    assert_eq!(step(&mut cell, at(20_000), passed("a", Some(wall(19_000)), None)), [SEEN]);
    assert_eq!((cell.state().resolved_at, cell.state().served), (Some(wall(19_000)), PLAIN));
}

#[test]
fn the_age_of_a_chained_value_counts_for_max_stale() {
    let mut cell = with(10_000, false);
    step(&mut cell, at(9000), passed("a", Some(wall(1000)), Some(Unavailable)));
    assert_eq!(cell.next_deadline(), Some(Mono::from_millis(11_000)));
    // Said again after the wall clock was set: the age goes on as it was.
    step(&mut cell, stepped(10_000, 3_600_000), passed("a", Some(wall(1000)), Some(Unavailable)));
    assert_eq!(cell.next_deadline(), Some(Mono::from_millis(11_000)));
}

#[test]
fn a_chained_value_without_a_date_has_none() {
    let mut cell = cell();
    assert_eq!(step(&mut cell, at(5), passed("a", None, None)), [SEEN]);
    assert_eq!((cell.state().resolved_at, cell.state().served), (None, PLAIN));
    step(&mut cell, at(6), passed("a", Some(wall(2)), None));
    step(&mut cell, at(7), passed("a", None, None));
    assert_eq!(cell.state().resolved_at, Some(wall(2)), "the same bytes keep the date they had");
    step(&mut cell, at(8), passed("b", None, None));
    assert_eq!(cell.state().resolved_at, None);
}

#[test]
fn what_another_cache_held_earlier_is_no_news() {
    let mut cell = cell();
    step(&mut cell, at(50_000), passed("b", Some(wall(40_000)), None));
    assert_eq!(step(&mut cell, at(51_000), passed("a", Some(wall(38_999)), Some(Unavailable))), [SEEN]);
    assert_eq!((text(&cell), cell.state().resolved_at), (Some("b"), Some(wall(40_000))));
    assert_eq!(cell.state().served, stale(Unavailable));
    assert_eq!(step(&mut cell, at(52_000), passed("a", Some(wall(30_000)), None)), [SEEN]);
    assert_eq!((text(&cell), cell.state().served), (Some("b"), PLAIN));
    // Inside the band clocks differ, so that the value is taken and the later date stays.
    assert_eq!(step(&mut cell, at(53_000), passed("c", Some(wall(39_000)), None)), [SEEN]);
    assert_eq!((text(&cell), cell.state().resolved_at), (Some("c"), Some(wall(40_000))));
}

#[test]
fn a_date_from_a_wrong_clock_does_not_keep_later_values_out() {
    let mut cell = cell();
    step(&mut cell, at(1000), passed("a", Some(wall(3_600_000)), None));
    assert_eq!(step(&mut cell, at(2000), passed("b", Some(wall(1500)), None)), [SEEN]);
    assert_eq!((text(&cell), cell.state().resolved_at), (Some("b"), Some(wall(1500))));
}

#[test]
fn another_reference_serves_the_old_value_until_its_first_outcome() {
    let mut cell = cell();
    step(&mut cell, at(0), value("old"));
    assert_eq!(step(&mut cell, at(60_000), Event::Rebound), []);
    assert_eq!((text(&cell), cell.state().served), (Some("old"), PLAIN));
    assert_eq!(step(&mut cell, at(60_010), error(PermissionDenied)), [SEEN]);
    assert_eq!((text(&cell), cell.state().served), (Some("old"), stale(PermissionDenied)));
    step(&mut cell, at(61_000), value("old"));
    step(&mut cell, at(61_001), Event::Rebound);
    assert_eq!(step(&mut cell, at(62_000), passed("new", Some(wall(30_000)), None)), [SEEN]);
    assert_eq!((text(&cell), cell.state().resolved_at), (Some("new"), Some(wall(30_000))));
    step(&mut cell, at(63_000), passed("older", Some(wall(20_000)), None));
    assert_eq!(text(&cell), Some("new"), "from the first value on its dates count");
}

#[test]
fn the_end_of_priming_settles_what_has_not_settled() {
    let mut cell = cell();
    assert_eq!(step(&mut cell, at(60_000), Event::PrimingOver), [SEEN]);
    assert!(cell.state().settled);
    assert_eq!((cell.state().served, cell.state().checked_at), (refused(Unavailable), Some(wall(60_000))));
    assert_eq!(step(&mut cell, at(60_001), Event::PrimingOver), []);
    step(&mut cell, at(60_002), value("a"));
    assert_eq!(step(&mut cell, at(60_003), Event::PrimingOver), []);
    assert_eq!(cell.state().served, PLAIN);
}

#[test]
fn a_restored_value_serves_stale_with_its_own_date() {
    for kind in [Unavailable, RateLimited] {
        let mut cell = with(10_000, false);
        assert_eq!(step(&mut cell, at(0), restore("kept", wall(-3000))), []);
        assert_eq!(cell.state().served, refused(Unknown));
        assert_eq!(step(&mut cell, at(10), error(kind)), [Effect::UseRestored, SEEN]);
        assert_eq!((text(&cell), cell.state().served), (Some("kept"), stale(kind)));
        assert_eq!(cell.state().resolved_at, Some(wall(-3000)));
        assert_eq!(cell.next_deadline(), Some(Mono::from_millis(7000)), "its age counts");
        assert_eq!(step(&mut cell, at(20), value("fresh")), [SEEN]);
        assert_eq!((cell.state().resolved_at, cell.state().served), (Some(wall(20)), PLAIN));
        assert_eq!(step(&mut cell, at(30), error(PermissionDenied)), [SEEN]);
        assert_eq!(text(&cell), Some("fresh"), "it was confirmed and is not the restored one any more");
    }
}

#[test]
fn the_end_of_priming_uses_a_restored_value() {
    let mut cell = cell();
    step(&mut cell, at(0), restore("kept", wall(-3000)));
    assert_eq!(step(&mut cell, at(60_000), Event::PrimingOver), [Effect::UseRestored, SEEN]);
    assert_eq!(cell.state().served, stale(Unavailable));
}

#[test]
fn a_definite_first_answer_discards_a_restored_value() {
    for (answer, served) in [
        (value("now"), PLAIN),
        (absent(), refused(NotFound)),
        (error(NotFound), refused(NotFound)),
        (error(PermissionDenied), refused(PermissionDenied)),
        (error(Invalid), refused(Invalid)),
    ] {
        let mut cell = cell();
        step(&mut cell, at(0), restore("kept", wall(-3000)));
        assert_eq!(step(&mut cell, at(10), answer), [Effect::DiscardRestored, SEEN]);
        assert_eq!(cell.state().served, served);
        let later = step(&mut cell, at(20), error(Unavailable));
        assert_eq!(later, [SEEN], "nothing is left to use");
    }
}

#[test]
fn a_definite_answer_also_ends_a_restored_value_that_serves() {
    for (answer, kind) in [(absent(), NotFound), (error(PermissionDenied), PermissionDenied)] {
        let mut cell = Cell::new(Rules { max_stale: None, on_absent_drop: true });
        step(&mut cell, at(0), restore("kept", wall(-3000)));
        step(&mut cell, at(10), error(Unavailable));
        assert_eq!(step(&mut cell, at(20), answer), [Effect::DiscardRestored, SEEN]);
        assert_eq!((text(&cell), cell.state().served), (None, refused(kind)));
        assert_eq!(cell.state().resolved_at, None);
    }
}

#[test]
fn a_refused_login_neither_uses_nor_discards_a_restored_value() {
    let mut cell = cell();
    step(&mut cell, at(0), restore("kept", wall(-3000)));
    assert_eq!(step(&mut cell, at(10), login()), [SEEN]);
    assert_eq!((text(&cell), cell.state().served), (None, refused(Unavailable)));
    assert_eq!(step(&mut cell, at(20), login()), [UNSEEN]);
    // What follows is the first outcome that says anything about the value.
    assert_eq!(step(&mut cell.clone(), at(30), error(Unavailable)), [Effect::UseRestored, SEEN]);
    assert_eq!(step(&mut cell, at(30), error(PermissionDenied)), [Effect::DiscardRestored, SEEN]);
}

#[test]
fn an_unknown_first_outcome_does_not_use_a_restored_value_and_does_not_refute_it() {
    let mut cell = cell();
    step(&mut cell, at(0), restore("kept", wall(-3000)));
    assert_eq!(step(&mut cell, at(10), error(Unknown)), [SEEN]);
    assert_eq!(step(&mut cell, at(20), error(Unavailable)), [SEEN]);
    assert_eq!(text(&cell), None);
    assert_eq!(step(&mut cell, at(30), absent()), [Effect::DiscardRestored, SEEN]);
}

#[test]
fn a_record_that_comes_late_is_ignored() {
    let mut cell = cell();
    step(&mut cell, at(0), error(Unavailable));
    assert_eq!(step(&mut cell, at(10), restore("kept", wall(-3000))), []);
    assert_eq!(step(&mut cell, at(20), error(RateLimited)), [SEEN]);
    assert_eq!(text(&cell), None);
}

#[test]
fn what_a_chained_cache_held_earlier_does_not_make_a_restored_value_fresh() {
    let mut cell = cell();
    step(&mut cell, at(0), restore("kept", wall(-3000)));
    step(&mut cell, at(10), error(Unavailable));
    step(&mut cell, at(20), passed("older", Some(wall(-9000)), None));
    assert_eq!((text(&cell), cell.state().served), (Some("kept"), stale(Unavailable)));
    assert_eq!(step(&mut cell, at(30), error(PermissionDenied)), [Effect::DiscardRestored, SEEN]);
}

#[test]
fn a_value_is_dated_by_the_beginning_of_its_attempt() {
    let mut cell = with(10_000, false);
    let outcome = Outcome::Value { value: Text("a", None), passed: None };
    assert_eq!(step(&mut cell, at(9000), Event::Attempt { began: at(2000), outcome }), [SEEN]);
    assert_eq!((cell.state().resolved_at, cell.state().checked_at), (Some(wall(2000)), Some(wall(9000))));
    step(&mut cell, at(9500), error(Unavailable));
    assert_eq!(cell.next_deadline(), Some(Mono::from_millis(12_000)));
}
