use super::*;
use crate::Epoch;
use crate::ownership::BootId;

fn ms(n: u64) -> Mono {
    Mono::from_millis(n)
}

fn node(name: &str) -> NodeName {
    NodeName::new(name)
}

fn stamp(epoch: u64) -> Stamp {
    Stamp { epoch: Epoch::new(epoch), boot: BootId::new([1; 16]) }
}

fn remote(name: &str, epoch: u64) -> Event {
    Event::Look(Lookup::Remote(node(name), stamp(epoch)))
}

fn local(epoch: u64) -> Event {
    Event::Look(Lookup::Local(stamp(epoch)))
}

const LATELY: Event = Event::Look(Lookup::Unknown { lately: true });
const NEVER: Event = Event::Look(Lookup::Unknown { lately: false });

fn forward(name: &str, epoch: u64) -> Effect {
    Effect::Forward(node(name), stamp(epoch))
}

fn forget(name: &str, epoch: u64) -> Effect {
    Effect::Forget(node(name), stamp(epoch))
}

fn refuse(refusal: Refusal) -> Effect {
    Effect::Refuse(refusal)
}

fn command() -> Resolve {
    Resolve::new(Timing::default(), ms(30_000), false)
}

fn feed(machine: &mut Resolve, at: u64, event: Event) -> Vec<Effect> {
    let mut out = Vec::new();
    machine.on(ms(at), event, &mut out);
    out
}

/// A command that `b` answered with `failure` at 10.
fn failed_at_b(failure: Failure) -> (Resolve, Vec<Effect>) {
    let mut machine = command();
    assert_eq!(feed(&mut machine, 0, remote("b", 5)), [forward("b", 5)]);
    assert_eq!(machine.next_deadline(), None);
    let out = feed(&mut machine, 10, Event::Failed(failure));
    (machine, out)
}

#[test]
fn a_stream_of_this_node_is_used_at_once() {
    let mut machine = command();
    assert_eq!(feed(&mut machine, 0, local(5)), [Effect::Run(stamp(5))]);
    assert_eq!((machine.sends(), machine.resolved_again()), (1, false));
}

#[test]
fn a_node_that_is_not_active_forwards_nothing() {
    let mut machine = command();
    let out = feed(&mut machine, 0, Event::Look(Lookup::NotActive));
    assert_eq!(out, [refuse(Refusal::NotActive)]);
}

#[test]
fn a_forwarded_command_runs_here_or_not_at_all() {
    let forwarded = || Resolve::new(Timing::default(), ms(30_000), true);
    for look in [remote("c", 5), LATELY, NEVER, Event::Look(Lookup::Priming), Event::Look(Lookup::NotActive)]
    {
        let mut machine = forwarded();
        assert_eq!(feed(&mut machine, 0, look), [refuse(Refusal::NotConnected)]);
        assert_eq!(machine.next_deadline(), None);
    }
    let mut machine = forwarded();
    assert_eq!(feed(&mut machine, 0, local(5)), [Effect::Run(stamp(5))]);
    assert_eq!(feed(&mut machine, 1, Event::Failed(Failure::NotConnected)), [refuse(Refusal::NotConnected)]);
}

#[test]
fn an_unknown_spoke_is_refused_at_once() {
    assert_eq!(feed(&mut command(), 0, NEVER), [refuse(Refusal::NotConnected)]);
}

#[test]
fn a_spoke_that_was_here_lately_is_waited_for() {
    let mut machine = command();
    assert_eq!(feed(&mut machine, 0, LATELY), [Effect::Pull]);
    assert_eq!(machine.next_deadline(), Some(ms(1000)));
    assert_eq!(feed(&mut machine, 400, LATELY), []);
    assert_eq!(feed(&mut machine, 500, remote("c", 6)), [forward("c", 6)]);
    // The one second look is used up.
    let out = feed(&mut machine, 510, Event::Failed(Failure::NotConnected));
    assert_eq!(out, [forget("c", 6), refuse(Refusal::NotConnected)]);
    // And one that does not come.
    let mut machine = command();
    feed(&mut machine, 0, LATELY);
    assert_eq!(feed(&mut machine, 999, Event::Tick), []);
    assert_eq!(feed(&mut machine, 1000, Event::Tick), [refuse(Refusal::NotConnected)]);
}

#[test]
fn priming_is_waited_for_within_the_deadline() {
    let priming = || Event::Look(Lookup::Priming);
    let mut machine = command();
    assert_eq!(feed(&mut machine, 0, priming()), []);
    assert_eq!(feed(&mut machine, 300, remote("b", 5)), [forward("b", 5)]);
    let mut machine = Resolve::new(Timing::default(), ms(200), false);
    feed(&mut machine, 0, priming());
    assert_eq!(machine.next_deadline(), Some(ms(200)));
    assert_eq!(feed(&mut machine, 200, Event::Tick), [refuse(Refusal::NotConnected)]);
}

#[test]
fn a_stale_entry_is_forgotten_and_resolved_once_more() {
    for failure in [Failure::NotConnected, Failure::Sealed] {
        let (mut machine, out) = failed_at_b(failure);
        assert_eq!(out, [forget("b", 5), Effect::Pull]);
        assert_eq!(feed(&mut machine, 10, LATELY), []);
        assert_eq!(feed(&mut machine, 60, remote("c", 6)), [forward("c", 6)]);
        assert!(machine.resolved_again());
        let out = feed(&mut machine, 70, Event::Failed(Failure::NotConnected));
        assert_eq!(out, [forget("c", 6), refuse(Refusal::NotConnected)]);
        assert_eq!(machine.sends(), 2);
        assert_eq!(feed(&mut machine, 80, remote("b", 9)), [], "never a third time");
    }
}

#[test]
fn the_very_claim_that_failed_is_not_used_again() {
    let (mut machine, _) = failed_at_b(Failure::NotConnected);
    assert_eq!(feed(&mut machine, 50, remote("b", 5)), []);
    assert_eq!(feed(&mut machine, 1010, Event::Tick), [refuse(Refusal::NotConnected)]);
    // A newer stream on the same node is another claim, and so is the same dial on another node.
    let (mut machine, _) = failed_at_b(Failure::NotConnected);
    assert_eq!(feed(&mut machine, 50, remote("b", 6)), [forward("b", 6)]);
    let (mut machine, _) = failed_at_b(Failure::NotConnected);
    assert_eq!(feed(&mut machine, 50, remote("c", 5)), [forward("c", 5)]);
    // The spoke may have come here.
    let (mut machine, _) = failed_at_b(Failure::NotConnected);
    assert_eq!(feed(&mut machine, 50, local(6)), [Effect::Run(stamp(6))]);
}

#[test]
fn an_owner_that_cannot_be_dialled_keeps_its_entry() {
    let (mut machine, out) = failed_at_b(Failure::DialFailed);
    assert_eq!(out, [Effect::Unreachable(node("b")), Effect::Pull]);
    assert_eq!(feed(&mut machine, 10, remote("b", 5)), []);
    assert_eq!(feed(&mut machine, 1010, Event::Tick), [refuse(Refusal::CannotReach(node("b")))]);
}

#[test]
fn a_command_that_may_have_started_is_not_sent_again() {
    let (mut machine, out) = failed_at_b(Failure::Broken);
    assert_eq!(out, [refuse(Refusal::OutcomeUnknown)]);
    assert_eq!(feed(&mut machine, 20, remote("c", 6)), []);
    let mut machine = command();
    feed(&mut machine, 0, local(5));
    assert_eq!(feed(&mut machine, 1, Event::Failed(Failure::Broken)), [refuse(Refusal::OutcomeUnknown)]);
}

#[test]
fn a_deposed_node_stops_looking() {
    let (_, out) = failed_at_b(Failure::StaleTerm);
    assert_eq!(out, [refuse(Refusal::NotActive)]);
    let (mut machine, _) = failed_at_b(Failure::NotConnected);
    let out = feed(&mut machine, 20, Event::Look(Lookup::NotActive));
    assert_eq!(out, [refuse(Refusal::NotActive)]);
}

#[test]
fn an_own_stream_that_vanished_before_it_was_used_is_resolved_once_more() {
    let mut machine = command();
    feed(&mut machine, 0, local(5));
    assert_eq!(feed(&mut machine, 1, Event::Failed(Failure::NotConnected)), [Effect::Pull]);
    assert_eq!(feed(&mut machine, 1, local(5)), []);
    assert_eq!(feed(&mut machine, 90, remote("b", 6)), [forward("b", 6)]);
}

#[test]
fn the_deadline_ends_the_second_wait() {
    let mut machine = Resolve::new(Timing::default(), ms(300), false);
    feed(&mut machine, 0, remote("b", 5));
    assert_eq!(feed(&mut machine, 10, Event::Failed(Failure::NotConnected)), [forget("b", 5), Effect::Pull]);
    assert_eq!(machine.next_deadline(), Some(ms(300)));
    assert_eq!(feed(&mut machine, 300, remote("c", 6)), [refuse(Refusal::NotConnected)]);
    // A failure at the deadline is the end at once.
    let mut machine = Resolve::new(Timing::default(), ms(300), false);
    feed(&mut machine, 0, remote("b", 5));
    let out = feed(&mut machine, 300, Event::Failed(Failure::NotConnected));
    assert_eq!(out, [forget("b", 5), refuse(Refusal::NotConnected)]);
}

#[test]
fn a_failure_that_nobody_asked_about_changes_nothing() {
    let mut machine = command();
    assert_eq!(feed(&mut machine, 0, Event::Look(Lookup::Priming)), []);
    assert_eq!(feed(&mut machine, 1, Event::Failed(Failure::Broken)), []);
    assert_eq!(feed(&mut machine, 2, remote("b", 5)), [forward("b", 5)]);
}
