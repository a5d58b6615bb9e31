use super::*;

fn ms(n: u64) -> Mono {
    Mono::from_millis(n)
}

fn node(name: &str) -> NodeName {
    NodeName::new(name)
}

fn peer(name: &str, term: u64) -> Event {
    Event::Active(Active::Peer(node(name)), Term::new(term))
}

fn ended(seq: u64, outcome: Outcome) -> Event {
    Event::Ended(Seq::new(seq), outcome)
}

fn taken(seq: u64) -> Event {
    ended(seq, Outcome::Taken(Seq::new(seq)))
}

fn send(to: &str, term: u64, seq: u64, trigger: Trigger) -> Effect {
    Effect::Send { to: node(to), term: Term::new(term), seq: Seq::new(seq), trigger }
}

fn feed(machine: &mut Announcer, at: u64, event: Event) -> Vec<Effect> {
    let mut out = Vec::new();
    machine.on(ms(at), event, &mut out);
    out
}

fn fresh() -> Announcer {
    Announcer::new(Timing::default(), node("b"), Seq::new(0))
}

/// An announcer whose first set was taken by `a` at 0.
fn settled() -> Announcer {
    let mut machine = fresh();
    assert_eq!(feed(&mut machine, 0, peer("a", 1)), [send("a", 1, 1, Trigger::Leader)]);
    assert_eq!(feed(&mut machine, 1, taken(1)), []);
    machine
}

#[test]
fn a_change_is_told_at_once() {
    let mut machine = settled();
    let out = feed(&mut machine, 700, Event::Changed(Trigger::Connect));
    assert_eq!(out, [send("a", 1, 2, Trigger::Connect)]);
    let out = feed(&mut machine, 900, Event::Changed(Trigger::Drop));
    assert_eq!(out, [send("a", 1, 3, Trigger::Drop)]);
}

#[test]
fn a_burst_of_changes_is_one_set() {
    let mut machine = settled();
    feed(&mut machine, 700, Event::Changed(Trigger::Connect));
    for at in 701..720 {
        assert_eq!(feed(&mut machine, at, Event::Changed(Trigger::Drop)), []);
    }
    assert_eq!(machine.next_deadline(), Some(ms(720)));
    assert_eq!(feed(&mut machine, 720, Event::Tick), [send("a", 1, 3, Trigger::Drop)]);
    assert_eq!(machine.next_deadline(), Some(ms(5000)));
}

#[test]
fn every_interval_the_whole_set_is_told_again() {
    let mut machine = settled();
    for n in 1..5 {
        assert_eq!(machine.next_deadline(), Some(ms(5000 * n)));
        assert_eq!(feed(&mut machine, 5000 * n - 1, Event::Tick), []);
        assert_eq!(feed(&mut machine, 5000 * n, Event::Tick), [send("a", 1, n + 1, Trigger::Tick)]);
        feed(&mut machine, 5000 * n, taken(n + 1));
    }
}

#[test]
fn a_failed_set_is_tried_again_with_growing_pauses() {
    let mut machine = settled();
    let mut at = 100;
    feed(&mut machine, at, Event::Changed(Trigger::Connect));
    for (seq, pause) in [(2, 250), (3, 500), (4, 1000)] {
        assert_eq!(feed(&mut machine, at, ended(seq, Outcome::Failed)), []);
        assert_eq!(machine.next_deadline(), Some(ms(at + pause)));
        at += pause;
        assert_eq!(feed(&mut machine, at, Event::Tick), [send("a", 1, seq + 1, Trigger::Retry)]);
    }
    // The pause never exceeds an interval, and the tick comes first where it is due first.
    feed(&mut machine, at, ended(5, Outcome::Failed));
    feed(&mut machine, at + 2000, Event::Tick);
    feed(&mut machine, at + 2000, ended(6, Outcome::Failed));
    assert_eq!(machine.next_deadline(), Some(ms(5000)));
    // Success begins anew.
    assert_eq!(feed(&mut machine, 5000, Event::Tick), [send("a", 1, 7, Trigger::Tick)]);
    feed(&mut machine, 5000, taken(7));
    feed(&mut machine, 5100, Event::Changed(Trigger::Drop));
    feed(&mut machine, 5100, ended(8, Outcome::Failed));
    assert_eq!(machine.next_deadline(), Some(ms(5350)));
}

#[test]
fn nothing_stops_the_tick_and_what_hangs_is_bounded() {
    let mut machine = settled();
    for n in 1..=4 {
        assert_eq!(feed(&mut machine, 5000 * n, Event::Tick), [send("a", 1, n + 1, Trigger::Tick)]);
    }
    let out = feed(&mut machine, 25_000, Event::Tick);
    assert_eq!(out, [Effect::GiveUp(Seq::new(2)), send("a", 1, 6, Trigger::Tick)]);
    assert_eq!(feed(&mut machine, 25_001, ended(2, Outcome::Failed)), [], "given up, so not tried again");
}

#[test]
fn a_change_of_leader_is_told_at_once_and_the_old_one_left() {
    let mut machine = settled();
    feed(&mut machine, 100, Event::Changed(Trigger::Connect));
    let unknown = Event::Active(Active::Unknown, Term::new(1));
    assert_eq!(feed(&mut machine, 200, unknown), [Effect::GiveUp(Seq::new(2))]);
    assert_eq!(feed(&mut machine, 300, Event::Changed(Trigger::Drop)), []);
    assert_eq!(machine.next_deadline(), None);
    assert_eq!(feed(&mut machine, 400, peer("c", 2)), [send("c", 2, 3, Trigger::Leader)]);
    assert_eq!(feed(&mut machine, 401, peer("c", 2)), [], "confirmed");
    let out = feed(&mut machine, 402, peer("c", 3));
    assert_eq!(out, [Effect::GiveUp(Seq::new(3)), send("c", 3, 4, Trigger::Leader)], "led again");
}

#[test]
fn the_active_node_announces_nothing() {
    let mut machine = settled();
    assert_eq!(feed(&mut machine, 100, Event::Active(Active::Here, Term::new(2))), []);
    assert_eq!(feed(&mut machine, 200, Event::Changed(Trigger::Connect)), []);
    assert_eq!((feed(&mut machine, 9000, Event::Tick), machine.next_deadline()), (vec![], None));
}

#[test]
fn an_answer_that_names_the_active_node_is_followed_once() {
    let mut machine = settled();
    feed(&mut machine, 100, Event::Changed(Trigger::Connect));
    let elsewhere = |to| Outcome::NotActive(Some(node(to)));
    assert_eq!(feed(&mut machine, 101, ended(2, elsewhere("c"))), [send("c", 1, 3, Trigger::Leader)]);
    // Two nodes that point at each other are not asked in turns.
    assert_eq!(feed(&mut machine, 102, ended(3, elsewhere("a"))), []);
    assert_eq!(machine.next_deadline(), Some(ms(352)));
    assert_eq!(feed(&mut machine, 352, Event::Tick), [send("c", 1, 4, Trigger::Retry)]);
    feed(&mut machine, 353, taken(4));
    assert_eq!(feed(&mut machine, 5000, Event::Tick), [send("a", 1, 5, Trigger::Tick)]);
    // Who names us, or himself, knows nothing.
    assert_eq!(feed(&mut machine, 5001, ended(5, elsewhere("b"))), []);
    assert_eq!(feed(&mut machine, 5251, Event::Tick), [send("a", 1, 6, Trigger::Retry)]);
    assert_eq!(feed(&mut machine, 5252, ended(6, elsewhere("a"))), []);
    assert_eq!(feed(&mut machine, 5752, Event::Tick), [send("a", 1, 7, Trigger::Retry)]);
}

#[test]
fn a_higher_term_is_taken_over_once() {
    let mut machine = settled();
    feed(&mut machine, 100, Event::Changed(Trigger::Connect));
    let out = feed(&mut machine, 101, ended(2, Outcome::StaleTerm(Term::new(4))));
    assert_eq!(out, [send("a", 4, 3, Trigger::Leader)]);
    assert_eq!(feed(&mut machine, 102, ended(3, Outcome::StaleTerm(Term::new(5)))), []);
    assert_eq!(feed(&mut machine, 352, Event::Tick), [send("a", 5, 4, Trigger::Retry)]);
}

#[test]
fn a_clock_that_went_back_between_two_lives_heals_at_once() {
    let mut machine = fresh();
    feed(&mut machine, 0, peer("a", 1));
    let late = Outcome::Taken(Seq::new(900));
    assert_eq!(feed(&mut machine, 5, ended(1, late)), [send("a", 1, 901, Trigger::Retry)]);
}

#[test]
fn pulls_and_announces_share_the_numbers() {
    let mut machine = settled();
    assert_eq!(machine.next_seq(), Seq::new(2));
    let out = feed(&mut machine, 100, Event::Changed(Trigger::Connect));
    assert_eq!(out, [send("a", 1, 3, Trigger::Connect)]);
}
