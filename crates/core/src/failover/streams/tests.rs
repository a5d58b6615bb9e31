use super::*;

fn ms(n: u64) -> Mono {
    Mono::from_millis(n)
}

fn id(n: u64) -> StreamId {
    StreamId::new(n)
}

const LOST: End = End::Lost;

const fn refused(seconds: Option<u64>) -> End {
    let retry_after = match seconds {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => None,
    };
    End::Refused { retry_after }
}

fn open(n: u64, endpoint: usize) -> Effect {
    Effect::Open(id(n), EndpointId::new(endpoint))
}

const LIVE: Effect = Effect::Show(Standing::Live);

fn away(since: u64) -> Effect {
    Effect::Show(Standing::Reconnecting { since: ms(since) })
}

fn step(machine: &mut Streams, at: u64, event: Event) -> Vec<Effect> {
    let mut out = Vec::new();
    machine.on(ms(at), event, &mut out);
    out
}

fn begun(count: usize) -> Streams {
    let count = NonZeroUsize::new(count).unwrap();
    let mut machine = Streams::new(count, EndpointId::new(0), Timing::default(), Spread::new(1));
    assert_eq!(step(&mut machine, 0, Event::Begin), [open(0, 0)]);
    machine
}

/// A stream at the first endpoint that has synced at 10 ms.
fn live(count: usize) -> Streams {
    let mut machine = begun(count);
    assert_eq!(step(&mut machine, 5, Event::Opened(id(0))), [LIVE]);
    assert_eq!(step(&mut machine, 10, Event::Synced(id(0))), []);
    machine
}

/// Waits for the deadline and expects the next attempt; returns the length of the wait in milliseconds.
fn pause(machine: &mut Streams, from: u64, expected: Effect) -> u64 {
    let until = machine.next_deadline().unwrap();
    let mut out = Vec::new();
    machine.on(Mono::from_nanos(until.as_nanos() - 1), Event::Tick, &mut out);
    assert_eq!(out, []);
    machine.on(until, Event::Tick, &mut out);
    assert_eq!(out, [expected]);
    until.since(ms(from)).as_millis() as u64
}

#[test]
fn every_attempt_that_ends_moves_on_and_only_a_full_cycle_pauses() {
    let mut machine = begun(3);
    let (mut at, mut number) = (0, 0);
    for least in [50, 100, 200, 400] {
        for endpoint in [1, 2] {
            assert_eq!(step(&mut machine, at, Event::Ended(id(number), LOST)), [open(number + 1, endpoint)]);
            number += 1;
        }
        assert_eq!(step(&mut machine, at, Event::Ended(id(number), LOST)), []);
        number += 1;
        let waited = pause(&mut machine, at, open(number, 0));
        assert!((least..=2 * least).contains(&waited), "{waited} of {least}");
        at += waited + 1;
    }
}

#[test]
fn pauses_end_at_half_a_minute() {
    let mut machine = begun(1);
    let mut waits = Vec::new();
    for number in 0..12 {
        step(&mut machine, 0, Event::Ended(id(number), LOST));
        waits.push(pause(&mut machine, 0, open(number + 1, 0)));
        machine.on(ms(0), Event::Tick, &mut Vec::new());
    }
    assert!(waits[9..].iter().all(|wait| (15_000..=30_000).contains(wait)), "{waits:?}");
    assert!(waits[..3].iter().all(|wait| *wait <= 400), "{waits:?}");
}

#[test]
fn a_stream_that_proved_itself_begins_the_pauses_anew() {
    let mut machine = begun(1);
    for number in 0..6 {
        step(&mut machine, 0, Event::Ended(id(number), LOST));
        pause(&mut machine, 0, open(number + 1, 0));
    }
    let mut proved = machine.clone();
    step(&mut proved, 10_000, Event::Opened(id(6)));
    step(&mut proved, 10_001, Event::Synced(id(6)));
    let out = step(&mut proved, 25_000, Event::Ended(id(6), LOST));
    assert_eq!(out, [open(7, 0), away(25_000)], "at once: its end is no failure");
    step(&mut proved, 25_001, Event::Ended(id(7), LOST));
    assert!((50..=100).contains(&pause(&mut proved, 25_001, open(8, 0))));

    let mut short = machine.clone();
    step(&mut short, 10_000, Event::Opened(id(6)));
    step(&mut short, 10_001, Event::Synced(id(6)));
    step(&mut short, 24_999, Event::Ended(id(6), LOST));
    assert!(pause(&mut short, 24_999, open(7, 0)) >= 3200, "it did not live long enough");

    step(&mut machine, 10_000, Event::Opened(id(6)));
    step(&mut machine, 90_000, Event::Ended(id(6), LOST));
    assert!(pause(&mut machine, 90_000, open(7, 0)) >= 3200, "it never synced");
}

#[test]
fn a_dead_replica_among_three_costs_no_pause() {
    let mut machine = live(3);
    assert_eq!(step(&mut machine, 20_000, Event::Ended(id(0), LOST)), [open(1, 1), away(20_000)]);
    assert_eq!(step(&mut machine, 20_010, Event::Ended(id(1), LOST)), [open(2, 2)]);
    assert_eq!(step(&mut machine, 20_020, Event::Opened(id(2))), [LIVE]);
}

#[test]
fn a_refusal_slows_down_and_does_not_rotate() {
    let mut machine = begun(3);
    let mut expected = vec![Effect::Show(Standing::Refused)];
    for (number, seconds) in [5, 10, 20, 40, 80, 160, 300, 300].into_iter().enumerate() {
        let number = number as u64;
        assert_eq!(step(&mut machine, 0, Event::Ended(id(number), refused(None))), expected);
        assert_eq!(pause(&mut machine, 0, open(number + 1, 0)), seconds * 1000);
        expected.clear();
    }
    assert_eq!(step(&mut machine, 1, Event::Opened(id(8))), [LIVE]);
    let mut again = machine.clone();
    step(&mut again, 2, Event::Ended(id(8), LOST));
    step(&mut again, 3, Event::Ended(id(9), refused(None)));
    assert_eq!(pause(&mut again, 3, open(10, 1)), 5000, "and begins anew after a subscription");
}

#[test]
fn a_refusal_may_name_its_time_up_to_five_minutes() {
    for (asked, expected) in [(7, 7000), (4000, 300_000)] {
        let mut machine = begun(2);
        step(&mut machine, 0, Event::Ended(id(0), refused(Some(asked))));
        assert_eq!(pause(&mut machine, 0, open(1, 0)), expected);
    }
}

#[test]
fn after_a_refusal_a_failure_shows_as_what_it_is() {
    let mut machine = begun(2);
    assert_eq!(step(&mut machine, 7, Event::Ended(id(0), refused(None))), [Effect::Show(Standing::Refused)]);
    pause(&mut machine, 7, open(1, 0));
    assert_eq!(step(&mut machine, 6000, Event::Ended(id(1), LOST)), [open(2, 1), away(0)]);
}

#[test]
fn who_is_told_to_go_opens_the_next_stream_first() {
    let mut machine = live(3);
    let within = Duration::from_secs(4);
    assert_eq!(step(&mut machine, 1000, Event::GoAway { stream: id(0), within }), []);
    let wait = pause(&mut machine, 1000, open(1, 1));
    assert!(wait < 4000, "{wait}");
    assert_eq!(step(&mut machine, 5000, Event::Opened(id(1))), []);
    assert_eq!(machine.standing(), Standing::Live);
    assert_eq!(step(&mut machine, 5001, Event::Synced(id(1))), [Effect::Close(id(0))]);
    assert_eq!(step(&mut machine, 5002, Event::Ended(id(0), LOST)), [], "it is gone already");
    assert_eq!(step(&mut machine, 5003, Event::Ended(id(1), LOST)), [open(2, 2), away(5003)]);
}

#[test]
fn the_old_stream_serves_until_a_next_one_does() {
    let mut machine = live(3);
    step(&mut machine, 16_000, Event::GoAway { stream: id(0), within: Duration::ZERO });
    assert_eq!(step(&mut machine, 16_100, Event::Ended(id(1), LOST)), [open(2, 2)]);
    assert_eq!(step(&mut machine, 16_200, Event::Ended(id(2), LOST)), [open(3, 0)]);
    assert_eq!(step(&mut machine, 16_300, Event::Ended(id(3), LOST)), []);
    assert_eq!(machine.standing(), Standing::Live);
    assert_eq!(step(&mut machine, 16_301, Event::Ended(id(0), LOST)), [away(16_301)]);
    assert!((50..=100).contains(&pause(&mut machine, 16_300, open(4, 1))));
    assert_eq!(step(&mut machine, 16_500, Event::Opened(id(4))), [LIVE]);
}

#[test]
fn when_the_old_stream_ends_first_an_opened_one_takes_over() {
    let mut machine = live(2);
    step(&mut machine, 1000, Event::GoAway { stream: id(0), within: Duration::ZERO });
    step(&mut machine, 1010, Event::Opened(id(1)));
    assert_eq!(step(&mut machine, 1020, Event::Ended(id(0), LOST)), []);
    assert_eq!(machine.standing(), Standing::Live);
    assert_eq!(step(&mut machine, 1030, Event::Synced(id(1))), []);
}

#[test]
fn a_move_under_way_is_not_doubled_by_the_end_of_the_old_stream() {
    let mut machine = live(2);
    assert_eq!(
        step(&mut machine, 1000, Event::GoAway { stream: id(0), within: Duration::ZERO }),
        [open(1, 1)]
    );
    assert_eq!(step(&mut machine, 1010, Event::Ended(id(0), LOST)), [away(1010)]);
    assert_eq!(step(&mut machine, 1020, Event::Opened(id(1))), [LIVE]);
}

#[test]
fn the_stream_of_a_move_may_be_told_to_go_too() {
    let mut machine = live(3);
    step(&mut machine, 1000, Event::GoAway { stream: id(0), within: Duration::ZERO });
    step(&mut machine, 1010, Event::Opened(id(1)));
    assert_eq!(step(&mut machine, 1020, Event::GoAway { stream: id(1), within: Duration::ZERO }), []);
    assert_eq!(step(&mut machine, 1030, Event::Synced(id(1))), [Effect::Close(id(0)), open(2, 2)]);
}

#[test]
fn reports_of_streams_that_are_gone_change_nothing() {
    let mut machine = live(2);
    step(&mut machine, 100, Event::Ended(id(0), LOST));
    let stale = [
        Event::Opened(id(0)),
        Event::Synced(id(0)),
        Event::Ended(id(0), LOST),
        Event::GoAway { stream: id(0), within: Duration::ZERO },
        Event::Ended(id(9), refused(None)),
        Event::Begin,
    ];
    for event in stale {
        assert_eq!(step(&mut machine, 200, event), [], "{event:?}");
    }
}

fn behind(stream: u64, behind: bool) -> Event {
    Event::Behind { stream: id(stream), behind }
}

#[test]
fn a_stream_that_stays_behind_is_left_for_the_next_one_less_and_less_often() {
    let mut machine = live(2);
    let (mut at, mut number) = (20_000, 0);
    for patience in [60, 120, 240, 480, 600, 600] {
        assert_eq!(step(&mut machine, at, behind(number, true)), []);
        assert_eq!(step(&mut machine, at + 1000, behind(number, true)), []);
        let endpoint = (number as usize + 1) % 2;
        assert_eq!(pause(&mut machine, at, open(number + 1, endpoint)), patience * 1000);
        at += patience * 1000;
        step(&mut machine, at, Event::Opened(id(number + 1)));
        step(&mut machine, at, behind(number + 1, true));
        assert_eq!(step(&mut machine, at, Event::Synced(id(number + 1))), [Effect::Close(id(number))]);
        number += 1;
    }
    assert_eq!(step(&mut machine, at + 1, behind(number, false)), []);
    assert_eq!(machine.next_deadline(), None);
    step(&mut machine, at + 2, behind(number, true));
    assert_eq!(machine.next_deadline(), Some(ms(at + 60_002)), "it had caught up");
}

#[test]
fn a_stream_that_is_behind_serves_until_another_one_does() {
    let mut machine = live(2);
    step(&mut machine, 20_000, behind(0, true));
    assert_eq!(pause(&mut machine, 20_000, open(1, 1)), 60_000);
    assert_eq!(step(&mut machine, 80_100, Event::Ended(id(1), LOST)), [open(2, 0)]);
    assert_eq!(machine.standing(), Standing::Live);
    assert_eq!(step(&mut machine, 80_200, Event::Opened(id(2))), []);
    assert_eq!(step(&mut machine, 80_300, Event::Synced(id(2))), [Effect::Close(id(0))]);
}
