use super::*;
use crate::time::Spread;

type Machine = Forwarder<u8>;

fn ms(n: u64) -> Mono {
    Mono::from_millis(n)
}

fn id(n: u64) -> RequestId {
    RequestId::new(n)
}

fn arrived(n: u64, work: Work, deadline: u64) -> Event<u8> {
    Event::Arrived { id: id(n), work, deadline: ms(deadline), forwarded: false }
}

fn failed(n: u64, failure: Failure) -> Event<u8> {
    Event::Failed { id: id(n), failure }
}

fn feed(machine: &mut Machine, steps: &[(u64, Event<u8>)]) -> Vec<Effect<u8>> {
    let mut out = Vec::new();
    for (at, event) in steps {
        machine.on(ms(*at), event.clone(), &mut out);
    }
    out
}

fn led_by(node: u8) -> Machine {
    let mut machine = Machine::new(Limits::default());
    feed(&mut machine, &[(0, Event::Active(Active::Peer(node)))]);
    machine
}

#[test]
fn the_table_of_what_may_be_sent_again() {
    use Failure::{Broken, DialFailed, NotActive, StreamRefused, TimedOut};
    for failure in [DialFailed, StreamRefused, NotActive] {
        assert!(may_resend(Work::Effectful, failure));
        assert!(may_resend(Work::Pure, failure));
    }
    for failure in [Broken, TimedOut] {
        assert!(!may_resend(Work::Effectful, failure));
        assert!(may_resend(Work::Pure, failure));
    }
}

#[test]
fn our_own_address_is_nobody_while_the_gate_is_shut() {
    assert_eq!(Active::resolve(Some(1), &1, false), Active::Unknown);
    assert_eq!(Active::resolve(Some(2), &1, false), Active::Peer(2));
    assert_eq!(Active::resolve(Some(1), &1, true), Active::Here);
    assert_eq!(Active::resolve(None, &1, false), Active::Unknown);
}

#[test]
fn a_held_request_goes_to_the_node_that_appears() {
    let mut machine = Machine::new(Limits::default());
    assert_eq!(feed(&mut machine, &[(0, arrived(1, Work::Effectful, 90_000))]), []);
    assert_eq!((machine.held(), machine.next_deadline()), (1, Some(ms(2000))));
    let out = feed(&mut machine, &[(900, Event::Active(Active::Peer(2)))]);
    assert_eq!(out, [Effect::Send(id(1), 2)]);
    assert_eq!((machine.held(), machine.next_deadline()), (0, None));
}

#[test]
fn holding_ends_after_its_time_and_at_the_deadline() {
    let mut machine = Machine::new(Limits::default());
    feed(&mut machine, &[(0, arrived(1, Work::Pure, 90_000)), (0, arrived(2, Work::Pure, 300))]);
    let out = feed(&mut machine, &[(299, Event::Tick), (300, Event::Tick)]);
    assert_eq!(out, [Effect::Refuse(id(2), Refusal::NoActiveNode)]);
    let out = feed(&mut machine, &[(1999, Event::Tick), (2000, Event::Tick)]);
    assert_eq!(out, [Effect::Refuse(id(1), Refusal::NoActiveNode)]);
}

#[test]
fn the_waiting_room_is_bounded() {
    let mut machine = Machine::new(Limits::default());
    for n in 0..1024 {
        assert_eq!(feed(&mut machine, &[(0, arrived(n, Work::Pure, 90_000))]), []);
    }
    let out = feed(&mut machine, &[(0, arrived(1024, Work::Pure, 90_000))]);
    assert_eq!(out, [Effect::Refuse(id(1024), Refusal::NoActiveNode)]);
}

#[test]
fn what_may_have_started_is_not_sent_twice() {
    let mut machine = led_by(2);
    let out =
        feed(&mut machine, &[(0, arrived(1, Work::Effectful, 90_000)), (5, failed(1, Failure::Broken))]);
    assert_eq!(out, [Effect::Send(id(1), 2), Effect::Refuse(id(1), Refusal::OutcomeUnknown)]);
}

#[test]
fn a_failed_dial_waits_a_little_and_follows_the_leader() {
    let mut machine = led_by(2);
    let out =
        feed(&mut machine, &[(0, arrived(1, Work::Effectful, 90_000)), (5, failed(1, Failure::DialFailed))]);
    assert_eq!(out, [Effect::Send(id(1), 2)]);
    assert_eq!(machine.next_deadline(), Some(ms(25)));
    assert_eq!(feed(&mut machine, &[(25, Event::Tick)]), [Effect::Send(id(1), 2)]);
    let out = feed(
        &mut machine,
        &[(30, Event::Active(Active::Peer(3))), (31, failed(1, Failure::DialFailed)), (31, Event::Tick)],
    );
    assert_eq!(out, [Effect::CloseConnections(2), Effect::Send(id(1), 3)]);
}

#[test]
fn a_dead_leader_is_tried_for_the_holding_time_only() {
    let mut machine = led_by(2);
    feed(&mut machine, &[(0, arrived(1, Work::Pure, 90_000))]);
    let (mut at, mut sends, mut refused) = (0, 0, None);
    while refused.is_none() && at < 10_000 {
        for effect in feed(&mut machine, &[(at, failed(1, Failure::DialFailed)), (at, Event::Tick)]) {
            match effect {
                Effect::Send(..) => sends += 1,
                Effect::Refuse(_, why) => refused = Some((at, why)),
                other => panic!("{other:?}"),
            }
        }
        at += 1;
    }
    assert_eq!(refused, Some((2000, Refusal::NoActiveNode)));
    assert!((8..20).contains(&sends), "{sends}");
}

#[test]
fn a_forwarded_request_is_never_forwarded_again() {
    let mut machine = led_by(2);
    let event = Event::Arrived { id: id(1), work: Work::Pure, deadline: ms(90_000), forwarded: true };
    assert_eq!(feed(&mut machine, &[(0, event.clone())]), [Effect::Refuse(id(1), Refusal::NotActive)]);
    let out = feed(&mut machine, &[(1, Event::Active(Active::Here)), (1, event)]);
    assert_eq!(out, [Effect::CloseConnections(2), Effect::Serve(id(1))]);
}

#[test]
fn a_request_that_is_held_when_we_become_active_is_served_here() {
    let mut machine = Machine::new(Limits::default());
    feed(&mut machine, &[(0, arrived(1, Work::Effectful, 90_000))]);
    assert_eq!(feed(&mut machine, &[(9, Event::Active(Active::Here))]), [Effect::Serve(id(1))]);
}

/// What the fake network did to one request.
#[derive(Default)]
struct Fate {
    started: u32,
    ended: u32,
}

/// Named invariants: side effects start at most once; one end each; never sent after its deadline.
fn run(seed: u64, reports: fn(Work, Failure) -> Failure) -> Result<(), &'static str> {
    let mut spread = Spread::new(seed);
    let limits = Limits { held: 8, ..Limits::default() };
    let mut machine = Machine::new(limits);
    let mut fates: BTreeMap<RequestId, (Work, Mono, Fate)> = BTreeMap::new();
    let mut flying: Vec<RequestId> = Vec::new();
    let mut now = Mono::ZERO;
    for step in 0..400 {
        now = now.after(Duration::from_millis(spread.below(60)));
        let mut out = Vec::new();
        match spread.below(6) {
            0 | 1 => {
                let work = if spread.below(2) == 0 { Work::Pure } else { Work::Effectful };
                let deadline = now.after(Duration::from_millis(spread.below(5000)));
                fates.insert(id(step), (work, deadline, Fate::default()));
                let event = Event::Arrived { id: id(step), work, deadline, forwarded: false };
                machine.on(now, event, &mut out);
            }
            2 => {
                let active = match spread.below(4) {
                    0 => Active::Unknown,
                    1 => Active::Here,
                    n => Active::Peer(n as u8),
                };
                machine.on(now, Event::Active(active), &mut out);
            }
            3 | 4 if !flying.is_empty() => {
                let request = flying.swap_remove(spread.bits() as usize % flying.len());
                let Some((work, _, fate)) = fates.get_mut(&request) else { continue };
                let event = match spread.below(5) {
                    0 => Event::Failed { id: request, failure: Failure::DialFailed },
                    1 => Event::Failed { id: request, failure: Failure::NotActive },
                    2 => {
                        fate.started += 1;
                        Event::Failed { id: request, failure: reports(*work, Failure::Broken) }
                    }
                    _ => {
                        fate.started += 1;
                        fate.ended += 1;
                        Event::Done { id: request }
                    }
                };
                machine.on(now, event, &mut out);
            }
            _ => machine.on(now, Event::Tick, &mut out),
        }
        for effect in out {
            match effect {
                Effect::Send(request, _) => {
                    if fates.get(&request).is_none_or(|(_, deadline, _)| *deadline <= now) {
                        return Err("never sent after its deadline");
                    }
                    flying.push(request);
                }
                Effect::Serve(request) | Effect::Refuse(request, _) => {
                    let Some((_, _, fate)) = fates.get_mut(&request) else { return Err("unknown request") };
                    fate.ended += 1;
                    fate.started += u32::from(matches!(effect, Effect::Serve(_)));
                }
                Effect::CloseConnections(_) => {}
            }
        }
        if machine.held() > limits.held {
            return Err("the waiting room is bounded");
        }
        if fates.values().any(|(work, _, fate)| *work == Work::Effectful && fate.started > 1) {
            return Err("side effects start at most once");
        }
        if fates.values().any(|(_, _, fate)| fate.ended > 1) {
            return Err("one end each");
        }
    }
    machine.on(now.after(Duration::from_secs(60)), Event::Tick, &mut Vec::new());
    if machine.held() > 0 { Err("nothing is held for ever") } else { Ok(()) }
}

#[test]
fn the_rules_hold_over_a_network_that_fails_everywhere() {
    for seed in crate::soak::seeds(300) {
        assert_eq!(run(seed, |_, failure| failure), Ok(()), "seed {seed}");
    }
}

#[test]
fn reading_any_failure_as_not_connected_is_caught() {
    assert!((0..300).any(|seed| run(seed, |_, _| Failure::DialFailed).is_err()));
}
