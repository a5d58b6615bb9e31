use super::*;
use crate::time::Spread;

const T1: Term = Term::new(1);
const T2: Term = Term::new(2);

fn ms(n: u64) -> Mono {
    Mono::from_millis(n)
}

fn feed(machine: &mut Leadership, steps: &[(u64, Event)]) -> Vec<Effect> {
    let mut out = Vec::new();
    for (at, event) in steps {
        machine.on(ms(*at), *event, &mut out);
    }
    out
}

fn elected(term: Term, entry: u64) -> Event {
    Event::Elected { term, entry: LogIndex::new(entry) }
}

fn applied(index: u64) -> Event {
    Event::Applied { index: LogIndex::new(index) }
}

fn acked(term: Term, at: u64) -> Event {
    Event::Acknowledged { term, sent: ms(at) }
}

fn leader() -> Leadership {
    let mut machine = Leadership::new(Timing::default());
    let out = feed(&mut machine, &[(0, elected(T1, 5)), (10, acked(T1, 5)), (11, applied(5))]);
    assert_eq!(out, [Effect::OpenGate(T1)]);
    machine
}

#[test]
fn the_gate_opens_after_the_first_entry_and_a_quorum() {
    let mut machine = Leadership::new(Timing::default());
    assert_eq!(feed(&mut machine, &[(0, elected(T1, 5)), (1, applied(4)), (2, acked(T1, 1))]), []);
    assert_eq!(machine.active(ms(2)), None);
    assert_eq!(feed(&mut machine, &[(3, applied(5))]), [Effect::OpenGate(T1)]);
    assert_eq!(machine.active(ms(3)), Some(T1));
    assert_eq!(machine.next_deadline(), Some(ms(401)));
}

#[test]
fn without_acknowledgements_the_gate_closes_and_the_predicate_needs_no_tick() {
    let mut machine = leader();
    assert_eq!(machine.active(ms(404)), Some(T1));
    assert_eq!(machine.active(ms(405)), None);
    assert!(!machine.may_act(ms(405), T1));
    assert_eq!(feed(&mut machine, &[(405, Event::Tick)]), [Effect::CloseGate(T1, Reason::NoQuorum)]);
    assert_eq!(machine.next_deadline(), None);
    assert_eq!(feed(&mut machine, &[(500, acked(T1, 490))]), [Effect::OpenGate(T1)]);
}

#[test]
fn a_node_alone_is_its_own_quorum_however_late_its_renewals_are() {
    let mut machine = Leadership::new(Timing::default());
    let mut out = Vec::new();
    machine.renew_alone(ms(0));
    assert_eq!(feed(&mut machine, &[(0, elected(T1, 5)), (1, applied(5))]), []);
    machine.renew_alone(ms(2));
    machine.on(ms(2), Event::Tick, &mut out);
    assert_eq!(out, [Effect::OpenGate(T1)]);
    // Its task did not run for a minute.
    machine.renew_alone(ms(60_000));
    assert_eq!(machine.active(ms(60_000)), Some(T1));
    out.clear();
    machine.on(ms(60_000), Event::Tick, &mut out);
    assert_eq!(out, []);
}

#[test]
fn an_acknowledgement_that_came_late_counts_from_its_sending() {
    let mut machine = leader();
    let out = feed(&mut machine, &[(420, acked(T1, 10)), (421, acked(T1, 21))]);
    assert_eq!(out, [Effect::CloseGate(T1, Reason::NoQuorum)]);
}

#[test]
fn late_starts_are_ignored_and_counted() {
    let mut machine = leader();
    assert_eq!(feed(&mut machine, &[(20, Event::Lost { term: T1 })]), [Effect::CloseGate(T1, Reason::Lost)]);
    assert_eq!(feed(&mut machine, &[(21, elected(T1, 5)), (22, acked(T1, 22)), (23, applied(9))]), []);
    assert_eq!(machine.stale_events(), 2);
    assert_eq!(machine.leading(), None);
}

#[test]
fn a_newer_term_replaces_an_older_one() {
    let mut machine = leader();
    let out = feed(&mut machine, &[(20, elected(T2, 9)), (21, acked(T2, 21)), (22, applied(9))]);
    assert_eq!(out, [Effect::CloseGate(T1, Reason::Lost), Effect::OpenGate(T2)]);
    assert_eq!(feed(&mut machine, &[(23, Event::Lost { term: T1 })]), []);
    assert_eq!(machine.active(ms(23)), Some(T2));
}

#[test]
fn a_step_down_that_fails_opens_the_gate_again() {
    let mut machine = leader();
    let out = feed(&mut machine, &[(20, Event::StepDownBegan { term: T1 }), (30, acked(T1, 30))]);
    assert_eq!(out, [Effect::CloseGate(T1, Reason::StepDown)]);
    let out = feed(&mut machine, &[(31, Event::StepDownEnded { term: T2 }), (32, Event::Tick)]);
    assert_eq!(out, []);
    assert_eq!(feed(&mut machine, &[(33, Event::StepDownEnded { term: T1 })]), [Effect::OpenGate(T1)]);
}

#[test]
fn a_store_that_fails_is_reported_once_handed_over_and_tested_each_five_seconds() {
    let mut machine = leader();
    let out = feed(&mut machine, &[(20, Event::StoreFailed), (21, Event::StoreFailed)]);
    assert_eq!(
        out,
        [Effect::CloseGate(T1, Reason::StoreUnhealthy), Effect::ReportStore(false), Effect::HandOver(T1)]
    );
    assert!(!machine.store_healthy());
    assert_eq!(machine.next_deadline(), Some(ms(5020)));
    assert_eq!(feed(&mut machine, &[(5020, Event::Tick), (5021, Event::Tick)]), [Effect::TestWrite]);
    assert_eq!(feed(&mut machine, &[(5030, Event::StoreTested { healthy: false })]), []);
    assert_eq!(feed(&mut machine, &[(10_030, acked(T1, 10_030))]), [Effect::TestWrite]);
    let out = feed(&mut machine, &[(10_040, Event::StoreTested { healthy: true })]);
    assert_eq!(out, [Effect::ReportStore(true), Effect::OpenGate(T1)]);
}

#[test]
fn winning_with_a_broken_store_hands_over_at_once() {
    let mut machine = Leadership::new(Timing::default());
    let out = feed(&mut machine, &[(0, Event::StoreFailed), (10, elected(T1, 3))]);
    assert_eq!(out, [Effect::ReportStore(false), Effect::HandOver(T1)]);
}

/// The rule of the gate, written a second time and without a machine.
#[derive(Default)]
struct Model {
    term: Option<Term>,
    ended: Term,
    entry: LogIndex,
    applied: LogIndex,
    sent: Option<Mono>,
    stepping: bool,
}

impl Model {
    fn on(&mut self, now: Mono, event: Event) {
        match event {
            Event::Elected { term, entry } if term > self.ended && Some(term) > self.term => {
                self.ended = self.term.unwrap_or(self.ended).max(self.ended);
                (self.term, self.entry, self.sent, self.stepping) = (Some(term), entry, None, false);
            }
            Event::Applied { index } => self.applied = self.applied.max(index),
            Event::Acknowledged { term, sent } if Some(term) == self.term => {
                self.sent = self.sent.max(Some(sent.min(now)));
            }
            Event::Lost { term } => {
                self.ended = self.ended.max(term);
                self.term = self.term.filter(|current| *current > term);
            }
            Event::StepDownBegan { term } if Some(term) == self.term => self.stepping = true,
            Event::StepDownEnded { term } if Some(term) == self.term => self.stepping = false,
            _ => {}
        }
    }

    fn active(&self, now: Mono) -> Option<Term> {
        let fresh = self.sent.is_some_and(|sent| now.since(sent) < Timing::default().ack_window);
        self.term.filter(|_| fresh && !self.stepping && self.applied >= self.entry)
    }
}

fn random_event(spread: &mut Spread, now: Mono) -> Event {
    let term = Term::new(1 + spread.below(4));
    let index = LogIndex::new(spread.below(8));
    match spread.below(12) {
        0 => Event::Elected { term, entry: index },
        1 => Event::Lost { term },
        2 => Event::StepDownBegan { term },
        3 => Event::StepDownEnded { term },
        4 | 5 => Event::Applied { index },
        6 => Event::Tick,
        _ => Event::Acknowledged {
            term,
            sent: Mono::from_millis(now.as_nanos() / 1_000_000 + spread.below(60)),
        },
    }
}

/// Returns the name of the first invariant that broke.
fn run(seed: u64, timing: Timing) -> Result<(), &'static str> {
    let mut spread = Spread::new(seed);
    let (mut machine, mut model) = (Leadership::new(timing), Model::default());
    let (mut now, mut open, mut newest) = (Mono::ZERO, None, Term::new(0));
    for _ in 0..200 {
        now = now.after(Duration::from_millis(spread.below(150)));
        let event = random_event(&mut spread, now);
        let mut out = Vec::new();
        model.on(now, event);
        machine.on(now, event, &mut out);
        for effect in out {
            match effect {
                Effect::OpenGate(term) if open.is_none() && term >= newest => {
                    (open, newest) = (Some(term), term)
                }
                Effect::CloseGate(term, _) if open == Some(term) => open = None,
                _ => return Err("gates open and close in turn and terms never go back"),
            }
        }
        let later = now.after(Duration::from_millis(spread.below(500)));
        if machine.active(now) != model.active(now) || open != model.active(now) {
            return Err("open exactly while the rule holds");
        }
        if machine.active(later).is_some() && model.active(later).is_none() {
            return Err("never active later than the rule allows");
        }
    }
    Ok(())
}

#[test]
fn the_gate_follows_its_rule_in_every_order_of_events() {
    for seed in crate::soak::seeds(400) {
        assert_eq!(run(seed, Timing::default()), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_gate_that_ignores_the_window_is_caught() {
    let wrong = Timing { ack_window: Duration::from_secs(3600), ..Timing::default() };
    assert!((0..400).any(|seed| run(seed, wrong).is_err()));
}
