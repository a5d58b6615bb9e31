use super::*;
use crate::time::Spread;

fn ms(n: u64) -> Mono {
    Mono::from_millis(n)
}

fn serving(grace: u64) -> Leaving {
    let mut machine = Leaving::new(Timing::with_grace(Duration::from_millis(grace)));
    assert_eq!(feed(&mut machine, &[(0, Event::Started)]), [Effect::Enter(Phase::Serving)]);
    machine
}

fn feed(machine: &mut Leaving, steps: &[(u64, Event)]) -> Vec<Effect> {
    let mut out = Vec::new();
    for (at, event) in steps {
        machine.on(ms(*at), *event, &mut out);
    }
    out
}

const fn open(streams: usize, requests: usize) -> Event {
    Event::Open { streams, requests }
}

const CLOSED: [Effect; 2] = [Effect::UnlinkSockets, Effect::StopAccepting];

#[test]
fn every_phase_in_order() {
    let mut machine = serving(6000);
    feed(&mut machine, &[(0, open(2, 3))]);
    let out = feed(&mut machine, &[(1000, Event::Signal)]);
    let told = Effect::TellToGo { within: Duration::from_secs(3) };
    assert_eq!(out, [Effect::Enter(Phase::Draining(ms(7000))), told]);
    assert_eq!(feed(&mut machine, &[(2000, open(0, 0)), (3000, open(1, 1)), (6999, Event::Tick)]), []);
    let out = feed(&mut machine, &[(7000, Event::Tick)]);
    assert_eq!(out, [Effect::Enter(Phase::EndingStreams(ms(8000))), Effect::EndStreams]);
    let out = feed(&mut machine, &[(7100, open(0, 1))]);
    assert_eq!(out, [CLOSED[0], CLOSED[1], Effect::Enter(Phase::Finishing(ms(12_100)))]);
    let out = feed(&mut machine, &[(7200, open(0, 0))]);
    assert_eq!(out, [Effect::Enter(Phase::WindingUp(ms(12_200))), Effect::WindUp]);
    let out = feed(&mut machine, &[(7300, Event::WoundUp)]);
    assert_eq!(out, [Effect::Enter(Phase::Stopped), Effect::Exit(0)]);
    assert_eq!(feed(&mut machine, &[(7400, Event::Signal), (7500, Event::WoundUp), (9000, Event::Tick)]), []);
}

#[test]
fn probes_say_no_before_anything_is_touched() {
    let mut machine = serving(0);
    feed(&mut machine, &[(0, open(1, 0))]);
    let out = feed(&mut machine, &[(10, Event::Signal)]);
    assert_eq!(
        out,
        [
            Effect::Enter(Phase::Draining(ms(10))),
            Effect::TellToGo { within: Duration::ZERO },
            Effect::Enter(Phase::EndingStreams(ms(1010))),
            Effect::EndStreams,
        ]
    );
    assert!(machine.phase().is_draining());
}

#[test]
fn without_grace_and_with_nothing_open_it_goes_at_once() {
    let mut machine = serving(0);
    let out = feed(&mut machine, &[(10, Event::Close), (11, Event::WoundUp)]);
    assert_eq!(out.last(), Some(&Effect::Exit(0)));
    assert_eq!(machine.phase(), Phase::Stopped);
}

#[test]
fn waits_are_bounded() {
    let mut machine = serving(0);
    feed(&mut machine, &[(0, open(7, 7)), (0, Event::Signal)]);
    assert_eq!(machine.next_deadline(), Some(ms(1000)));
    let out = feed(&mut machine, &[(1000, Event::Tick)]);
    assert_eq!(out, [Effect::CutStreams, CLOSED[0], CLOSED[1], Effect::Enter(Phase::Finishing(ms(6000)))]);
    let out = feed(&mut machine, &[(6000, Event::Tick)]);
    assert_eq!(out, [Effect::AbortRequests, Effect::Enter(Phase::WindingUp(ms(11_000))), Effect::WindUp]);
    let out = feed(&mut machine, &[(11_000, Event::Tick)]);
    assert_eq!(out, [Effect::Enter(Phase::Stopped), Effect::Exit(1)]);
    assert_eq!(machine.next_deadline(), None);
}

#[test]
fn a_second_signal_ends_the_grace_and_a_third_one_the_process() {
    let mut machine = serving(60_000);
    feed(&mut machine, &[(0, open(1, 1)), (0, Event::Signal)]);
    let out = feed(&mut machine, &[(100, Event::Signal)]);
    assert_eq!(out, [Effect::Enter(Phase::EndingStreams(ms(1100))), Effect::EndStreams]);
    let out = feed(&mut machine, &[(200, Event::Signal)]);
    assert_eq!(out, [Effect::Enter(Phase::Stopped), Effect::Exit(1)]);
}

#[test]
fn a_second_signal_after_the_grace_cuts_nothing_short() {
    let mut machine = serving(0);
    feed(&mut machine, &[(0, open(0, 1)), (0, Event::Signal)]);
    assert_eq!(feed(&mut machine, &[(100, Event::Signal)]), []);
    assert_eq!(machine.phase(), Phase::Finishing(ms(5000)));
    assert_eq!(feed(&mut machine, &[(200, Event::Signal)]).last(), Some(&Effect::Exit(1)));
}

#[test]
fn closing_counts_as_the_first_signal_and_once() {
    let mut machine = serving(60_000);
    feed(&mut machine, &[(0, open(1, 0)), (0, Event::Close)]);
    assert_eq!(feed(&mut machine, &[(1, Event::Close), (2, Event::Close)]), []);
    assert_eq!(machine.phase(), Phase::Draining(ms(60_000)));
    assert_eq!(feed(&mut machine, &[(3, Event::Signal)]).last(), Some(&Effect::EndStreams));
    assert_eq!(feed(&mut machine, &[(4, Event::Signal)]).last(), Some(&Effect::Exit(1)));
}

#[test]
fn closed_before_its_start_it_refuses_to_start() {
    let mut machine = Leaving::new(Timing::default());
    let out = feed(&mut machine, &[(0, Event::Close)]);
    assert_eq!(out, [Effect::Enter(Phase::Stopped), Effect::Exit(0)]);
    assert_eq!(feed(&mut machine, &[(1, Event::Started)]), [Effect::RefuseStart]);
}

#[test]
fn another_grace_counts_from_the_next_signal_on() {
    let mut machine = serving(0);
    machine.set_grace(Duration::from_secs(2));
    feed(&mut machine, &[(0, Event::Signal)]);
    assert_eq!(machine.phase(), Phase::Draining(ms(2000)));
}

#[test]
fn every_way_down_ends_in_time_with_each_step_once_and_in_order() {
    for seed in crate::soak::seeds(500) {
        let mut spread = Spread::new(seed);
        let mut machine = serving(spread.below(3) * 2000);
        let mut out = feed(&mut machine, &[(0, open(5, 5)), (0, Event::Signal)]);
        for at in 0..400 {
            let event = match spread.below(100) {
                0 if spread.below(8) == 0 => Event::Signal,
                1 => Event::Close,
                2..9 => open(spread.below(3) as usize, spread.below(3) as usize),
                9 => Event::WoundUp,
                _ => Event::Tick,
            };
            machine.on(ms(at * 50), event, &mut out);
        }
        assert_eq!(machine.phase(), Phase::Stopped, "ends within its bounds, seed {seed}");
        let place = |wanted: &Effect| {
            let mut found = out.iter().enumerate().filter(|(_, effect)| *effect == wanted).map(|(i, _)| i);
            let first = found.next();
            assert_eq!(found.next(), None, "{wanted:?} once, seed {seed}");
            first
        };
        let steps = [Effect::EndStreams, Effect::UnlinkSockets, Effect::StopAccepting, Effect::WindUp];
        let places: Vec<_> = steps.iter().map(place).collect();
        let cut_short = out.last() == Some(&Effect::Exit(1));
        assert!(places.is_sorted_by_key(|place| place.unwrap_or(usize::MAX)), "seed {seed}");
        assert!(cut_short || places.iter().all(Option::is_some), "seed {seed}");
        assert!(matches!(out.last(), Some(Effect::Exit(_))), "nothing after the end, seed {seed}");
    }
}
