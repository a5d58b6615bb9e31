use super::*;

const BOOT: BootId = BootId::new([5; 16]);
const RIVAL: BootId = BootId::new([9; 16]);

fn ms(n: u64) -> Mono {
    Mono::from_millis(n)
}

fn epoch(n: u64) -> Epoch {
    Epoch::new(n)
}

fn setup() -> Setup {
    let addresses = ["a", "b", "c"].map(str::to_owned).into();
    Setup { timing: Timing::default(), addresses, boot: BOOT, last: epoch(100), once: false, seed: 1 }
}

fn feed(dialer: &mut Dialer, at: Mono, event: Event) -> Vec<Effect> {
    let mut out = Vec::new();
    dialer.on(at, event, &mut out);
    out
}

fn persist(n: u64) -> Effect {
    Effect::Persist(epoch(n))
}

fn dial(n: u64, address: &str) -> Effect {
    Effect::Dial(epoch(n), address.to_owned())
}

fn close(n: u64, why: Goodbye) -> Effect {
    Effect::Close(epoch(n), why)
}

fn superseded(by: u64, boot: BootId, alive: bool) -> End {
    End::Superseded { by: Stamp { epoch: epoch(by), boot }, alive }
}

fn redirected(to: &str) -> End {
    End::Redirected(to.to_owned())
}

/// Persists the epoch that was asked for; returns what the dial is.
fn write(dialer: &mut Dialer, at: Mono, n: u64) -> Effect {
    let out = feed(dialer, at, Event::Persisted(epoch(n), true));
    let [effect] = out.as_slice() else { panic!("{out:?}") };
    effect.clone()
}

/// Waits for the next dial: when it came, and what it is.
fn next_dial(dialer: &mut Dialer, n: u64) -> (Mono, Effect) {
    let at = dialer.next_deadline().expect("a dial is planned");
    assert_eq!(feed(dialer, at, Event::Tick), [persist(n)]);
    (at, write(dialer, at, n))
}

fn end(dialer: &mut Dialer, at: Mono, n: u64, end: End) -> Vec<Effect> {
    feed(dialer, at, Event::Ended(epoch(n), end))
}

/// A daemon whose session 101 with `a` stands since 0.
fn connected(setup: Setup) -> Dialer {
    let mut dialer = Dialer::new(setup);
    assert_eq!(feed(&mut dialer, ms(0), Event::Start), [persist(101)]);
    assert_eq!(write(&mut dialer, ms(0), 101), dial(101, "a"));
    assert_eq!(feed(&mut dialer, ms(0), Event::Opened(epoch(101), vec![])), []);
    assert_eq!(dialer.session(), Some((epoch(101), "a")));
    dialer
}

#[test]
fn the_epoch_is_persisted_before_the_dial_and_grows_with_each() {
    let mut dialer = Dialer::new(setup());
    assert_eq!(feed(&mut dialer, ms(0), Event::Start), [persist(101)]);
    assert_eq!(feed(&mut dialer, ms(900), Event::Tick), [], "nothing is dialled before it is written");
    assert_eq!(write(&mut dialer, ms(900), 101), dial(101, "a"));
    assert_eq!(
        feed(&mut dialer, ms(901), Event::Persisted(epoch(101), true)),
        [],
        "written twice, dialled once"
    );
    end(&mut dialer, ms(1000), 101, End::Failed);
    assert_eq!(next_dial(&mut dialer, 102).1, dial(102, "b"));
}

#[test]
fn an_epoch_that_cannot_be_written_is_warned_of_once() {
    let mut dialer = Dialer::new(setup());
    feed(&mut dialer, ms(0), Event::Start);
    let out = feed(&mut dialer, ms(0), Event::Persisted(epoch(101), false));
    assert_eq!(out, [Effect::Report(Report::NotPersisted), dial(101, "a")]);
    end(&mut dialer, ms(0), 101, End::Failed);
    let at = dialer.next_deadline().unwrap();
    feed(&mut dialer, at, Event::Tick);
    assert_eq!(feed(&mut dialer, at, Event::Persisted(epoch(102), false)), [dial(102, "b")]);
}

#[test]
fn pauses_double_up_to_their_ceiling_with_full_jitter() {
    let mut longest = Duration::ZERO;
    for seed in 0..50 {
        let mut dialer = Dialer::new(Setup { seed, ..setup() });
        feed(&mut dialer, ms(0), Event::Start);
        let (mut n, mut at) = (101, ms(0));
        write(&mut dialer, at, n);
        for limit in [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000] {
            end(&mut dialer, at, n, End::Failed);
            let (then, _) = next_dial(&mut dialer, n + 1);
            assert!(then.since(at) <= Duration::from_millis(limit));
            longest = longest.max(then.since(at));
            (n, at) = (n + 1, then);
        }
    }
    assert!(longest > Duration::from_secs(9), "{longest:?}");
}

#[test]
fn the_last_good_address_comes_first_then_the_others() {
    let mut dialer = Dialer::new(setup());
    feed(&mut dialer, ms(0), Event::Start);
    write(&mut dialer, ms(0), 101);
    end(&mut dialer, ms(0), 101, End::Failed);
    let (at, effect) = next_dial(&mut dialer, 102);
    assert_eq!(effect, dial(102, "b"));
    let told = ["c", "d", "b"].map(str::to_owned).into();
    feed(&mut dialer, at, Event::Opened(epoch(102), told));
    let mut at = at.after(Duration::from_secs(31));
    end(&mut dialer, at, 102, End::Failed);
    for (n, address) in [(103, "b"), (104, "a"), (105, "c"), (106, "d"), (107, "b")] {
        let (then, effect) = next_dial(&mut dialer, n);
        assert_eq!(effect, dial(n, address));
        at = then;
        end(&mut dialer, at, n, End::Failed);
    }
}

#[test]
fn a_session_over_thirty_seconds_begins_anew() {
    for (length, limit) in [(30_000, 500), (30_001, 250)] {
        let mut late = false;
        for seed in 0..40 {
            let mut dialer = Dialer::new(Setup { seed, ..setup() });
            feed(&mut dialer, ms(0), Event::Start);
            write(&mut dialer, ms(0), 101);
            end(&mut dialer, ms(0), 101, End::Failed);
            let (at, _) = next_dial(&mut dialer, 102);
            feed(&mut dialer, at, Event::Opened(epoch(102), vec![]));
            let over = at.after(Duration::from_millis(length));
            end(&mut dialer, over, 102, End::Failed);
            let pause = over.until(dialer.next_deadline().unwrap());
            assert!(pause <= Duration::from_millis(limit), "{pause:?}");
            late |= pause > Duration::from_millis(250);
        }
        assert_eq!(late, limit > 250);
    }
}

#[test]
fn a_redirect_is_followed_after_two_seconds() {
    let mut dialer = Dialer::new(setup());
    feed(&mut dialer, ms(0), Event::Start);
    write(&mut dialer, ms(0), 101);
    assert_eq!(end(&mut dialer, ms(10), 101, redirected("z")), []);
    let (at, effect) = next_dial(&mut dialer, 102);
    assert_eq!((at, effect), (ms(2010), dial(102, "z")));
    assert_eq!(feed(&mut dialer, at, Event::Opened(epoch(102), vec![])), []);
    // Mid-stream as well.
    end(&mut dialer, ms(5000), 102, redirected("y"));
    assert_eq!(next_dial(&mut dialer, 103), (ms(7000), dial(103, "y")));
}

#[test]
fn six_dials_end_a_chase_of_redirects() {
    let mut dialer = Dialer::new(setup());
    feed(&mut dialer, ms(0), Event::Start);
    write(&mut dialer, ms(0), 101);
    let mut at = ms(0);
    for n in 102..107 {
        let to = if n % 2 == 0 { "y" } else { "z" };
        assert_eq!(end(&mut dialer, at, n - 1, redirected(to)), []);
        let (then, effect) = next_dial(&mut dialer, n);
        assert_eq!((then.since(at), effect), (Duration::from_secs(2), dial(n, to)));
        at = then;
    }
    let out = end(&mut dialer, at, 106, redirected("z"));
    assert_eq!(out, [Effect::Report(Report::RedirectLimit)]);
    let (then, effect) = next_dial(&mut dialer, 107);
    assert_eq!(effect, dial(107, "a"), "from the configured addresses");
    assert!((24..=36).contains(&then.since(at).as_secs()));
    // The count begins anew.
    assert_eq!(end(&mut dialer, then, 107, redirected("z")), []);
    assert_eq!(next_dial(&mut dialer, 108).1, dial(108, "z"));
}

#[test]
fn a_long_session_ends_a_chase_of_redirects() {
    let mut dialer = Dialer::new(setup());
    feed(&mut dialer, ms(0), Event::Start);
    write(&mut dialer, ms(0), 101);
    let mut at = ms(0);
    for n in 102..130 {
        let to = if n % 2 == 0 { "y" } else { "z" };
        assert_eq!(end(&mut dialer, at, n - 1, redirected(to)), []);
        at = next_dial(&mut dialer, n).0;
        feed(&mut dialer, at, Event::Opened(epoch(n), vec![]));
        at = at.after(Duration::from_secs(31));
    }
}

#[test]
fn a_redirect_to_the_address_in_use_is_an_ordinary_failure() {
    let mut dialer = Dialer::new(setup());
    feed(&mut dialer, ms(0), Event::Start);
    write(&mut dialer, ms(0), 101);
    end(&mut dialer, ms(0), 101, redirected("a"));
    let (at, effect) = next_dial(&mut dialer, 102);
    assert!(at <= ms(250));
    assert_eq!(effect, dial(102, "b"));
}

#[test]
fn a_stream_ended_by_another_daemon_is_followed_by_long_pauses() {
    let mut dialer = connected(setup());
    let out = end(&mut dialer, ms(10), 101, superseded(500, RIVAL, true));
    let [Effect::Report(Report::TwoDaemons(pause))] = out.as_slice() else { panic!("{out:?}") };
    assert!((48..=72).contains(&pause.as_secs()));
    // Before each further dial, and without leaping over the other's epoch.
    let (mut at, mut n) = (ms(10), 102);
    for end_of_dial in [End::Failed, superseded(500, RIVAL, true), redirected("z"), End::Failed] {
        let (then, _) = next_dial(&mut dialer, n);
        assert!((48..=72).contains(&then.since(at).as_secs()));
        let out = end(&mut dialer, then, n, end_of_dial);
        assert!(matches!(out.as_slice(), [Effect::Report(Report::TwoDaemons(_))]), "{out:?}");
        (at, n) = (then, n + 1);
    }
    // A session that lasts says that the other is gone.
    let (then, _) = next_dial(&mut dialer, n);
    feed(&mut dialer, then, Event::Opened(epoch(n), vec![]));
    let over = then.after(Duration::from_secs(31));
    assert_eq!(end(&mut dialer, over, n, End::Failed), []);
    assert!(over.until(dialer.next_deadline().unwrap()) <= Duration::from_millis(250));
}

#[test]
fn a_dial_refused_for_a_silent_stream_lifts_the_epoch_and_dials_at_once() {
    let mut dialer = Dialer::new(setup());
    feed(&mut dialer, ms(0), Event::Start);
    write(&mut dialer, ms(0), 101);
    let out = end(&mut dialer, ms(10), 101, superseded(700, RIVAL, false));
    assert_eq!(out, [persist(701)]);
    write(&mut dialer, ms(10), 701);
    // A hub that says so for ever is not dialled in a tight loop.
    assert_eq!(end(&mut dialer, ms(20), 701, superseded(900, RIVAL, false)), []);
    assert!(dialer.next_deadline().unwrap() > ms(20));
    assert_eq!(next_dial(&mut dialer, 901).1, dial(901, "c"));
}

#[test]
fn an_own_newer_stream_that_won_is_no_rival() {
    let mut dialer = connected(setup());
    assert_eq!(end(&mut dialer, ms(10), 101, superseded(102, BOOT, true)), []);
    assert!(dialer.next_deadline().unwrap() <= ms(260));
}

#[test]
fn a_drained_session_is_closed_when_its_successor_stands() {
    let mut dialer = connected(setup());
    assert_eq!(feed(&mut dialer, ms(1000), Event::Drain(epoch(101), None)), []);
    let (at, effect) = next_dial(&mut dialer, 102);
    assert!(at <= ms(1250));
    assert_eq!(effect, dial(102, "b"), "any but the one that drains");
    assert_eq!(dialer.session(), Some((epoch(101), "a")));
    assert_eq!(feed(&mut dialer, at, Event::Drain(epoch(101), None)), [], "said twice");
    // A failed try keeps the old one.
    assert_eq!(end(&mut dialer, at, 102, End::Failed), []);
    let (at, effect) = next_dial(&mut dialer, 103);
    assert_eq!(effect, dial(103, "c"));
    let out = feed(&mut dialer, at, Event::Opened(epoch(103), vec![]));
    assert_eq!(out, [close(101, Goodbye::Moved)]);
    assert_eq!(dialer.session(), Some((epoch(103), "c")));
    // What becomes of the old one matters no more.
    assert_eq!(end(&mut dialer, at, 101, superseded(103, BOOT, true)), []);
    assert_eq!((dialer.session(), dialer.next_deadline()), (Some((epoch(103), "c")), None));
}

#[test]
fn a_drained_session_that_ends_early_does_not_hurry_its_successor() {
    let mut dialer = connected(setup());
    feed(&mut dialer, ms(1000), Event::Drain(epoch(101), None));
    let planned = dialer.next_deadline();
    assert_eq!(end(&mut dialer, ms(1000), 101, End::Closed), []);
    assert_eq!(dialer.next_deadline(), planned);
    assert!(matches!(next_dial(&mut dialer, 102).1, Effect::Dial(..)));
}

#[test]
fn a_drain_may_name_where_to_go() {
    let mut dialer = connected(setup());
    feed(&mut dialer, ms(1000), Event::Drain(epoch(101), Some("z".to_owned())));
    let (at, effect) = next_dial(&mut dialer, 102);
    assert_eq!(effect, dial(102, "z"));
    assert!(at <= ms(1250));
    assert_eq!(feed(&mut dialer, at, Event::Opened(epoch(102), vec![])), [close(101, Goodbye::Moved)]);
}

#[test]
fn with_one_address_a_drain_goes_through_the_balancer_again() {
    let mut dialer = connected(Setup { addresses: vec!["a".to_owned()], ..setup() });
    feed(&mut dialer, ms(1000), Event::Drain(epoch(101), None));
    assert_eq!(next_dial(&mut dialer, 102).1, dial(102, "a"));
}

#[test]
fn two_nodes_that_drain_towards_each_other_are_left_alone_soon() {
    let mut dialer = connected(setup());
    let mut at = ms(0);
    for n in 101..106 {
        let to = if n % 2 == 0 { "y" } else { "z" };
        feed(&mut dialer, at, Event::Drain(epoch(n), Some(to.to_owned())));
        let (then, effect) = next_dial(&mut dialer, n + 1);
        assert_eq!(effect, dial(n + 1, to));
        feed(&mut dialer, then, Event::Opened(epoch(n + 1), vec![]));
        at = then;
    }
    feed(&mut dialer, at, Event::Drain(epoch(106), Some("y".to_owned())));
    assert_eq!(next_dial(&mut dialer, 107).1, dial(107, "a"), "in turn, not as told");
}

#[test]
fn once_means_once() {
    let once = || Setup { once: true, ..setup() };
    let mut dialer = connected(once());
    assert_eq!(end(&mut dialer, ms(9), 101, End::Closed), [Effect::Exit(Exit::Ok)]);
    assert_eq!(feed(&mut dialer, ms(9), Event::Tick), []);
    let mut dialer = connected(once());
    assert_eq!(end(&mut dialer, ms(9), 101, End::Failed), [Effect::Exit(Exit::Failed)]);
    let mut dialer = connected(once());
    let out = end(&mut dialer, ms(9), 101, superseded(500, RIVAL, true));
    assert_eq!(out, [Effect::Exit(Exit::Failed)]);
    // A redirect is followed, up to the limit.
    let mut dialer = connected(once());
    for n in 101..106 {
        let to = if n % 2 == 0 { "y" } else { "z" };
        assert_eq!(end(&mut dialer, ms(9000 * (n - 100)), n, redirected(to)), []);
        next_dial(&mut dialer, n + 1);
    }
    let out = end(&mut dialer, ms(90_000), 106, redirected("y"));
    assert_eq!(out, [Effect::Report(Report::RedirectLimit), Effect::Exit(Exit::Failed)]);
}

#[test]
fn a_stop_ends_everything_in_every_state() {
    let exit = Effect::Exit(Exit::Ok);
    let mut dialer = connected(setup());
    let out = feed(&mut dialer, ms(5), Event::Stop);
    assert_eq!(out, [close(101, Goodbye::Stopping), exit.clone()]);
    assert_eq!((dialer.next_deadline(), end(&mut dialer, ms(6), 101, End::Closed)), (None, vec![]));
    // In the middle of a back-off.
    let mut dialer = connected(setup());
    end(&mut dialer, ms(5), 101, End::Failed);
    assert_eq!(feed(&mut dialer, ms(5), Event::Stop), std::slice::from_ref(&exit));
    assert_eq!(dialer.next_deadline(), None);
    // While one leaves and its successor is dialled.
    let mut dialer = connected(setup());
    feed(&mut dialer, ms(5), Event::Drain(epoch(101), None));
    let (at, _) = next_dial(&mut dialer, 102);
    let out = feed(&mut dialer, at, Event::Stop);
    assert_eq!(out, [Effect::Abandon(epoch(102)), close(101, Goodbye::Stopping), exit.clone()]);
    // While an epoch is being written.
    let mut dialer = Dialer::new(setup());
    feed(&mut dialer, ms(0), Event::Start);
    assert_eq!(feed(&mut dialer, ms(1), Event::Stop), [exit]);
    assert_eq!(feed(&mut dialer, ms(2), Event::Persisted(epoch(101), true)), []);
}
