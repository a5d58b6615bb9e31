use super::*;
use crate::Epoch;
use crate::ownership::BootId;

fn ms(n: u64) -> Mono {
    Mono::from_millis(n)
}

fn node(name: &str) -> NodeName {
    NodeName::new(name)
}

fn spoke(name: &str) -> SpokeName {
    SpokeName::parse(name).unwrap()
}

fn stamp(epoch: u64, boot: u8) -> Stamp {
    Stamp { epoch: Epoch::new(epoch), boot: BootId::new([boot; 16]) }
}

/// A stream of spoke `s` by daemon 1.
fn claim(epoch: u64) -> Claim {
    claim_of("s", stamp(epoch, 1))
}

fn claim_of(name: &str, stamp: Stamp) -> Claim {
    let (connected_age, seen_age) = (Duration::ZERO, Duration::ZERO);
    Claim { spoke: spoke(name), stamp, connected_age, seen_age, cert_not_after: 0 }
}

fn set(from: &str, seq: u64, spokes: Vec<Claim>) -> SpokeSet {
    SpokeSet { term: Term::new(1), node: node(from), seq: Seq::new(seq), spokes }
}

fn announced(from: &str, seq: u64, spokes: Vec<Claim>) -> Event {
    Event::Announced(Ticket::new(seq), set(from, seq, spokes))
}

fn superseded(old: Stamp, by: Stamp, alive: bool) -> Superseded {
    Superseded { spoke: spoke("s"), stamp: old, by, alive }
}

fn taken(ticket: u64, superseded: Vec<Superseded>) -> Effect {
    Effect::Answer(Ticket::new(ticket), Reply::Taken { superseded, newest: Seq::new(ticket) })
}

fn owned(by: &str, stamp: Stamp) -> [Effect; 2] {
    let report = Report::Owned(spoke("s"), node(by), stamp);
    [Effect::Report(report), Effect::Wake(Some(spoke("s")))]
}

fn lost(by: &str, cause: Cause) -> [Effect; 2] {
    let report = Report::Lost(spoke("s"), node(by), cause);
    [Effect::Report(report), Effect::Wake(Some(spoke("s")))]
}

fn remote(by: &str, stamp: Stamp) -> Lookup {
    Lookup::Remote(node(by), stamp)
}

fn feed(registry: &mut Registry, at: u64, event: Event) -> Vec<Effect> {
    let mut out = Vec::new();
    registry.on(ms(at), event, &mut out);
    out
}

fn look(registry: &Registry, at: u64) -> Lookup {
    registry.lookup(ms(at), &spoke("s"))
}

fn standby() -> Registry {
    let mut registry = Registry::new(Timing::default(), node("a"));
    feed(&mut registry, 0, Event::Members(["a", "b", "c"].map(node).into()));
    registry
}

/// Node `a`, active in term 1 since 0 and primed.
fn active() -> Registry {
    let mut registry = standby();
    feed(&mut registry, 0, Event::Activated(Term::new(1)));
    for from in ["b", "c"] {
        feed(&mut registry, 0, Event::Pulled(node(from), Term::new(1), Some(set(from, 1, vec![]))));
    }
    assert!(!registry.priming());
    registry
}

#[test]
fn none_is_held_so_the_claim_is_taken() {
    let mut a = active();
    let out = feed(&mut a, 10, announced("b", 2, vec![claim(5)]));
    let [report, wake] = owned("b", stamp(5, 1));
    assert_eq!(out, [report, wake, taken(2, vec![])]);
    assert_eq!(look(&a, 10), remote("b", stamp(5, 1)));
}

#[test]
fn a_higher_epoch_wins_and_the_former_owner_is_told() {
    let mut a = active();
    feed(&mut a, 10, announced("b", 2, vec![claim(5)]));
    let out = feed(&mut a, 20, announced("c", 3, vec![claim(6)]));
    let [report, wake] = owned("c", stamp(6, 1));
    let tell = Effect::Tell(node("b"), Term::new(1), vec![superseded(stamp(5, 1), stamp(6, 1), true)]);
    assert_eq!(out, [report, wake, tell, taken(3, vec![])]);
    assert_eq!(look(&a, 20), remote("c", stamp(6, 1)));
}

#[test]
fn a_higher_epoch_elsewhere_ends_the_active_node_s_own_stream() {
    let mut a = active();
    feed(&mut a, 5, Event::Opened(claim(5)));
    let out = feed(&mut a, 20, announced("c", 3, vec![claim(6)]));
    let [report, wake] = owned("c", stamp(6, 1));
    let end = Effect::End(superseded(stamp(5, 1), stamp(6, 1), true));
    assert_eq!(out, [report, wake, end, Effect::Announce(Trigger::Drop), taken(3, vec![])]);
    assert_eq!(look(&a, 20), remote("c", stamp(6, 1)));
    // Its clean-up comes late, and means the old one.
    assert_eq!(feed(&mut a, 30, Event::Closed(spoke("s"), stamp(5, 1))), []);
    assert_eq!(look(&a, 30), remote("c", stamp(6, 1)));
}

#[test]
fn a_newer_stream_of_the_active_node_ends_the_one_elsewhere() {
    let mut a = active();
    feed(&mut a, 10, announced("b", 2, vec![claim(5)]));
    let out = feed(&mut a, 20, Event::Opened(claim(6)));
    let [report, wake] = owned("a", stamp(6, 1));
    let admit = Effect::Admit(spoke("s"), stamp(6, 1));
    let tell = Effect::Tell(node("b"), Term::new(1), vec![superseded(stamp(5, 1), stamp(6, 1), true)]);
    assert_eq!(out, [admit, report, wake, tell, Effect::Announce(Trigger::Connect)]);
    assert_eq!(look(&a, 20), Lookup::Local(stamp(6, 1)));
}

#[test]
fn a_new_stream_is_installed_before_the_old_one_ends() {
    let mut a = standby();
    let out = feed(&mut a, 0, Event::Opened(claim(5)));
    let [report, wake] = owned("a", stamp(5, 1));
    let admit = |epoch| Effect::Admit(spoke("s"), stamp(epoch, 1));
    assert_eq!(out, [admit(5), report, wake, Effect::Announce(Trigger::Connect)]);
    let out = feed(&mut a, 9, Event::Opened(claim(6)));
    let [report, wake] = owned("a", stamp(6, 1));
    let end = Effect::End(superseded(stamp(5, 1), stamp(6, 1), true));
    assert_eq!(out, [admit(6), report, wake, end, Effect::Announce(Trigger::Connect)]);
    assert_eq!(feed(&mut a, 10, Event::Closed(spoke("s"), stamp(5, 1))), []);
    assert_eq!(look(&a, 10), Lookup::Local(stamp(6, 1)));
}

#[test]
fn the_same_claim_of_the_same_node_is_refreshed() {
    let mut a = active();
    feed(&mut a, 0, announced("b", 2, vec![claim(5)]));
    let renewed = Claim { cert_not_after: 77, ..claim(5) };
    assert_eq!(feed(&mut a, 14_000, announced("b", 3, vec![renewed])), [taken(3, vec![])]);
    assert_eq!(look(&a, 29_000), remote("b", stamp(5, 1)));
    assert_eq!(a.entries(ms(15_000)).map(|entry| entry.claim.cert_not_after).collect::<Vec<_>>(), [77]);
}

#[test]
fn the_same_dial_claimed_by_two_nodes_stays_where_it_is() {
    let mut a = active();
    feed(&mut a, 0, announced("b", 2, vec![claim(5)]));
    let out = feed(&mut a, 1, announced("c", 3, vec![claim(5)]));
    assert_eq!(out, [Effect::Report(Report::Conflict(spoke("s"), node("c"))), taken(3, vec![])]);
    assert_eq!(look(&a, 1), remote("b", stamp(5, 1)));
}

#[test]
fn of_two_daemons_with_one_epoch_the_larger_boot_id_wins() {
    let twins = Effect::Report(Report::TwoDaemons(spoke("s")));
    let (small, large) = (claim_of("s", stamp(5, 1)), claim_of("s", stamp(5, 2)));
    let mut a = active();
    feed(&mut a, 0, announced("b", 2, vec![small.clone()]));
    let out = feed(&mut a, 1, announced("c", 3, vec![large.clone()]));
    let [report, wake] = owned("c", stamp(5, 2));
    let tell = Effect::Tell(node("b"), Term::new(1), vec![superseded(stamp(5, 1), stamp(5, 2), true)]);
    assert_eq!(out, [twins.clone(), report, wake, tell, taken(3, vec![])]);
    // The other way round.
    let mut a = active();
    feed(&mut a, 0, announced("b", 2, vec![large]));
    let out = feed(&mut a, 1, announced("c", 3, vec![small]));
    assert_eq!(out, [twins, taken(3, vec![superseded(stamp(5, 1), stamp(5, 2), true)])]);
    assert_eq!(look(&a, 1), remote("b", stamp(5, 2)));
}

#[test]
fn a_lower_epoch_is_refused_and_its_announcer_told() {
    let mut a = active();
    feed(&mut a, 0, announced("b", 2, vec![claim(5)]));
    let out = feed(&mut a, 1, announced("c", 3, vec![claim(4)]));
    assert_eq!(out, [taken(3, vec![superseded(stamp(4, 1), stamp(5, 1), true)])]);
    // So is one that the active node itself accepted.
    let out = feed(&mut a, 2, Event::Opened(claim(3)));
    assert_eq!(out, [Effect::End(superseded(stamp(3, 1), stamp(5, 1), true))]);
    assert_eq!(look(&a, 2), remote("b", stamp(5, 1)));
    // And one that came with a pull's answer, by a call.
    let pulled = Event::Pulled(node("c"), Term::new(1), Some(set("c", 4, vec![claim(4)])));
    let refused = vec![superseded(stamp(4, 1), stamp(5, 1), true)];
    assert_eq!(feed(&mut a, 3, pulled), [Effect::Tell(node("c"), Term::new(1), refused)]);
}

#[test]
fn a_silent_stream_yields_to_another_daemon_that_dialled_after() {
    let mut a = standby();
    feed(&mut a, 0, Event::Opened(claim(9)));
    feed(&mut a, 1_000, Event::Heard(spoke("s"), stamp(9, 1)));
    let newcomer = claim_of("s", stamp(4, 7));
    let out = feed(&mut a, 21_000, Event::Opened(newcomer.clone()));
    assert_eq!(out, [Effect::End(superseded(stamp(4, 7), stamp(9, 1), true))], "heard 20 s ago is alive");
    let out = feed(&mut a, 21_001, Event::Opened(newcomer));
    let [report, wake] = lost("a", Cause::Silent);
    let old = Effect::End(superseded(stamp(9, 1), stamp(4, 7), true));
    let new = Effect::End(superseded(stamp(4, 7), stamp(9, 1), false));
    assert_eq!(out, [report, wake, old, Effect::Announce(Trigger::Drop), new]);
}

#[test]
fn a_silent_stream_does_not_yield_to_an_older_dial() {
    let mut a = active();
    let quiet = Claim { seen_age: Duration::from_secs(40), ..claim_of("s", stamp(9, 1)) };
    feed(&mut a, 0, announced("b", 2, vec![quiet]));
    let older = Claim { connected_age: Duration::from_secs(60), ..claim_of("s", stamp(4, 7)) };
    let out = feed(&mut a, 0, announced("c", 3, vec![older]));
    assert_eq!(out, [taken(3, vec![superseded(stamp(4, 7), stamp(9, 1), true)])]);
    let fresh = claim_of("s", stamp(4, 8));
    let out = feed(&mut a, 0, announced("c", 4, vec![fresh]));
    let [report, wake] = lost("b", Cause::Silent);
    let tell = Effect::Tell(node("b"), Term::new(1), vec![superseded(stamp(9, 1), stamp(4, 8), true)]);
    assert_eq!(out, [report, wake, tell, taken(4, vec![superseded(stamp(4, 8), stamp(9, 1), false)])]);
}

#[test]
fn what_a_newer_set_leaves_out_goes_and_nothing_else() {
    let mut a = active();
    let other = claim_of("t", stamp(1, 1));
    feed(&mut a, 0, announced("b", 2, vec![claim(5), other]));
    feed(&mut a, 0, announced("c", 3, vec![claim_of("u", stamp(1, 1))]));
    let out = feed(&mut a, 1, announced("b", 4, vec![claim_of("t", stamp(1, 1))]));
    let [report, wake] = lost("b", Cause::Dropped);
    assert_eq!(out, [report, wake, taken(4, vec![])]);
    let left: Vec<_> = a.entries(ms(1)).map(|entry| entry.claim.spoke).collect();
    assert_eq!(left, [spoke("t"), spoke("u")]);
}

#[test]
fn a_late_older_set_is_ignored_whole() {
    let mut a = active();
    feed(&mut a, 0, announced("b", 9, vec![claim(5)]));
    let out = feed(&mut a, 1, announced("b", 8, vec![claim_of("t", stamp(1, 1))]));
    let reply = Reply::Taken { superseded: vec![], newest: Seq::new(9) };
    assert_eq!(out, [Effect::Answer(Ticket::new(8), reply)]);
    assert_eq!(look(&a, 1), remote("b", stamp(5, 1)));
    // Nor does it prolong anything.
    feed(&mut a, 14_000, announced("b", 7, vec![claim(5)]));
    assert_eq!(look(&a, 15_001), Lookup::Unknown { lately: true });
}

#[test]
fn a_node_is_right_about_its_own_older_epoch() {
    let mut a = active();
    feed(&mut a, 0, announced("b", 2, vec![claim(5)]));
    let out = feed(&mut a, 1, announced("b", 3, vec![claim_of("s", stamp(2, 9))]));
    let [report, wake] = owned("b", stamp(2, 9));
    assert_eq!(out, [report, wake, taken(3, vec![])]);
}

#[test]
fn an_entry_expires_after_three_intervals_strictly() {
    let mut a = active();
    feed(&mut a, 1_000, announced("b", 2, vec![claim(5)]));
    feed(&mut a, 1_000, announced("c", 2, vec![]));
    assert_eq!(feed(&mut a, 16_000, Event::Tick), []);
    assert_eq!(look(&a, 16_000), remote("b", stamp(5, 1)));
    // Resolve and view see it at once, the tick says so.
    let due = a.next_deadline().unwrap();
    assert_eq!(due, ms(16_000).after(Duration::from_nanos(1)));
    assert_eq!(a.lookup(due, &spoke("s")), Lookup::Unknown { lately: true });
    assert_eq!(a.entries(due).count(), 0);
    let mut out = Vec::new();
    a.on(due, Event::Tick, &mut out);
    assert_eq!(out, lost("b", Cause::Expired));
    assert_eq!(look(&a, 31_000), Lookup::Unknown { lately: true });
    assert_eq!(look(&a, 31_001), Lookup::Unknown { lately: false });
}

#[test]
fn an_own_stream_never_expires() {
    let mut a = active();
    feed(&mut a, 0, Event::Opened(claim(5)));
    feed(&mut a, 3_600_000, Event::Tick);
    assert_eq!(look(&a, 3_600_000), Lookup::Local(stamp(5, 1)));
}

#[test]
fn to_become_active_is_to_pull_all_and_to_prime() {
    let mut a = standby();
    feed(&mut a, 0, Event::Opened(claim_of("own", stamp(1, 1))));
    let out = feed(&mut a, 10, Event::Activated(Term::new(1)));
    let pull = |of| Effect::Pull(node(of), Term::new(1));
    assert_eq!(out, [pull("b"), pull("c"), Effect::Wake(None)]);
    assert_eq!(look(&a, 10), Lookup::Priming);
    assert_eq!(a.lookup(ms(10), &spoke("own")), Lookup::Local(stamp(1, 1)), "own ones work at once");
    feed(&mut a, 20, Event::Pulled(node("b"), Term::new(1), Some(set("b", 1, vec![claim(5)]))));
    assert_eq!(look(&a, 20), remote("b", stamp(5, 1)), "known ones too");
    assert!(a.priming());
    let out = feed(&mut a, 40, Event::Pulled(node("c"), Term::new(1), Some(set("c", 1, vec![]))));
    let primed = |took, all| Effect::Report(Report::Primed(Duration::from_millis(took), all));
    assert_eq!(out, [primed(30, true), Effect::Wake(None)]);
    assert_eq!(a.lookup(ms(40), &spoke("t")), Lookup::Unknown { lately: false });
}

#[test]
fn priming_ends_after_its_time() {
    let mut a = standby();
    feed(&mut a, 0, Event::Activated(Term::new(1)));
    feed(&mut a, 5, Event::Pulled(node("b"), Term::new(1), None));
    assert_eq!(a.next_deadline(), Some(ms(1000)));
    assert_eq!(feed(&mut a, 999, Event::Tick), []);
    let primed = Effect::Report(Report::Primed(Duration::from_secs(1), false));
    assert_eq!(feed(&mut a, 1000, Event::Tick), [primed, Effect::Wake(None)]);
}

#[test]
fn an_announce_says_as_much_as_an_answer_to_the_pull() {
    let mut a = standby();
    feed(&mut a, 0, Event::Activated(Term::new(1)));
    feed(&mut a, 1, announced("b", 2, vec![claim(5)]));
    feed(&mut a, 2, announced("c", 2, vec![]));
    assert!(!a.priming());
    // The pull's answer was made before and comes after.
    let late = Event::Pulled(node("b"), Term::new(1), Some(set("b", 1, vec![])));
    assert_eq!(feed(&mut a, 3, late), []);
    assert_eq!(look(&a, 3), remote("b", stamp(5, 1)));
}

#[test]
fn a_single_node_is_primed_at_once() {
    let mut a = Registry::new(Timing::default(), node("a"));
    feed(&mut a, 0, Event::Members([node("a")].into()));
    let out = feed(&mut a, 0, Event::Activated(Term::new(1)));
    assert_eq!(
        out,
        [Effect::Wake(None), Effect::Report(Report::Primed(Duration::ZERO, true)), Effect::Wake(None)]
    );
    assert_eq!(look(&a, 0), Lookup::Unknown { lately: false });
    assert_eq!(a.next_deadline(), None);
}

#[test]
fn demotion_forgets_what_others_said_and_keeps_the_own_streams() {
    let mut a = active();
    feed(&mut a, 0, announced("b", 2, vec![claim(5)]));
    feed(&mut a, 0, Event::Opened(claim_of("own", stamp(1, 1))));
    assert_eq!(feed(&mut a, 1, Event::Deactivated), [Effect::Wake(None)]);
    assert_eq!(look(&a, 1), Lookup::NotActive);
    assert_eq!(a.lookup(ms(1), &spoke("own")), Lookup::Local(stamp(1, 1)));
    let names: Vec<_> = a.own_streams(ms(1)).into_iter().map(|claim| claim.spoke).collect();
    assert_eq!(names, [spoke("own")]);
    // Sets, and answers to pulls of a term that is over, change nothing.
    let out = feed(&mut a, 2, announced("b", 3, vec![claim(5)]));
    assert_eq!(out, [Effect::Answer(Ticket::new(3), Reply::NotActive)]);
    assert_eq!(
        feed(&mut a, 3, Event::Pulled(node("b"), Term::new(1), Some(set("b", 4, vec![claim(5)])))),
        []
    );
    feed(&mut a, 4, Event::Activated(Term::new(2)));
    assert_eq!(look(&a, 4), Lookup::Priming, "cleared");
    assert_eq!(
        feed(&mut a, 5, Event::Pulled(node("b"), Term::new(1), Some(set("b", 5, vec![claim(5)])))),
        []
    );
}

#[test]
fn an_older_term_is_answered_with_the_newer() {
    let mut a = active();
    feed(&mut a, 1, Event::Deactivated);
    feed(&mut a, 1, Event::Activated(Term::new(3)));
    let out = feed(&mut a, 2, announced("b", 2, vec![claim(5)]));
    assert_eq!(out, [Effect::Answer(Ticket::new(2), Reply::StaleTerm(Term::new(3)))]);
    assert_eq!((a.admit(Term::new(2)), a.admit(Term::new(4))), (Err(Term::new(3)), Ok(())));
    assert_eq!(a.admit(Term::new(3)), Err(Term::new(4)));
    // A set of a newer term than the own reign's is for somebody else.
    let newer = SpokeSet { term: Term::new(4), ..set("b", 3, vec![claim(5)]) };
    let out = feed(&mut a, 3, Event::Announced(Ticket::new(3), newer));
    assert_eq!(out, [Effect::Answer(Ticket::new(3), Reply::NotActive)]);
    assert_eq!(
        feed(&mut a, 4, Event::Activated(Term::new(3))),
        [],
        "a term that is over does not begin again"
    );
}

#[test]
fn a_node_ends_what_it_is_told_to_and_only_that() {
    let mut a = standby();
    feed(&mut a, 0, Event::Opened(claim(5)));
    let told = |stamp| Event::Told(Term::new(2), vec![superseded(stamp, self::stamp(6, 1), true)]);
    assert_eq!(feed(&mut a, 1, told(stamp(4, 1))), []);
    let [report, wake] = lost("a", Cause::Dropped);
    let end = Effect::End(superseded(stamp(5, 1), stamp(6, 1), true));
    assert_eq!(feed(&mut a, 2, told(stamp(5, 1))), [report, wake, end, Effect::Announce(Trigger::Drop)]);
    assert_eq!(a.own_streams(ms(2)), []);
    // A former active node may say what it likes.
    feed(&mut a, 3, Event::Opened(claim(7)));
    let old = Event::Told(Term::new(1), vec![superseded(stamp(7, 1), stamp(8, 1), true)]);
    assert_eq!(feed(&mut a, 4, old), []);
}

#[test]
fn forgetting_compares_spoke_node_and_stamp() {
    let mut a = active();
    feed(&mut a, 0, announced("b", 2, vec![claim(5)]));
    for (owner, old) in [("c", stamp(5, 1)), ("b", stamp(4, 1)), ("b", stamp(5, 2))] {
        assert_eq!(feed(&mut a, 1, Event::Forget(spoke("s"), node(owner), old)), []);
    }
    let out = feed(&mut a, 1, Event::Forget(spoke("s"), node("b"), stamp(5, 1)));
    assert_eq!(out, lost("b", Cause::Forgotten));
    assert_eq!(look(&a, 1), Lookup::Unknown { lately: true });
}

#[test]
fn a_pull_that_is_under_way_is_not_asked_for_again() {
    let mut a = active();
    let pull = |of| Effect::Pull(node(of), Term::new(1));
    assert_eq!(feed(&mut a, 1, Event::Pull), [pull("b"), pull("c")]);
    assert_eq!(feed(&mut a, 2, Event::Pull), []);
    feed(&mut a, 3, Event::Pulled(node("b"), Term::new(1), None));
    assert_eq!(feed(&mut a, 4, Event::Pull), [pull("b")]);
    assert_eq!(feed(&mut standby(), 4, Event::Pull), []);
}

#[test]
fn members_that_come_are_asked_and_members_that_go_are_not_waited_for() {
    let mut a = standby();
    feed(&mut a, 0, Event::Activated(Term::new(1)));
    feed(&mut a, 1, Event::Pulled(node("b"), Term::new(1), Some(set("b", 1, vec![]))));
    let out = feed(&mut a, 2, Event::Members(["a", "b", "d"].map(node).into()));
    let primed = Effect::Report(Report::Primed(Duration::from_millis(2), true));
    assert_eq!(out, [Effect::Pull(node("d"), Term::new(1)), primed, Effect::Wake(None)]);
}

#[test]
fn views_show_every_member_and_who_cannot_be_reached() {
    let mut a = active();
    feed(&mut a, 1_000, announced("b", 2, vec![claim(5)]));
    feed(&mut a, 2_000, Event::Reached(node("b"), false));
    let view = |a: &Registry, at| -> Vec<(String, usize, Option<u64>, bool)> {
        let each = |peer: Peer<'_>| {
            let age = peer.last_announce.map(|age| age.as_secs());
            (peer.node.to_string(), peer.spokes, age, peer.reachable)
        };
        a.peers(ms(at)).map(each).collect()
    };
    let row = |name: &str, spokes, age, reachable| (name.to_owned(), spokes, age, reachable);
    let expected = [row("a", 0, None, true), row("b", 1, Some(2), false), row("c", 0, Some(3), true)];
    assert_eq!(view(&a, 3_000), expected);
    // An announce comes through the other direction, so it says nothing about ours.
    feed(&mut a, 3_000, announced("b", 3, vec![claim(5)]));
    assert_eq!(a.entries(ms(4_000)).map(|entry| entry.reachable).collect::<Vec<_>>(), [false]);
    feed(&mut a, 4_000, Event::Reached(node("b"), true));
    assert_eq!(a.entries(ms(4_000)).map(|entry| entry.reachable).collect::<Vec<_>>(), [true]);
    assert_eq!(view(&a, 16_000)[2], row("c", 0, Some(16), false), "silent for three intervals");
}

#[test]
fn ages_grow_here_whatever_the_clocks_elsewhere_say() {
    let mut a = active();
    let told = Claim { connected_age: Duration::from_secs(90), seen_age: Duration::from_secs(3), ..claim(5) };
    feed(&mut a, 1_000, announced("b", 2, vec![told]));
    let entry = a.entries(ms(3_000)).next().unwrap().claim;
    assert_eq!((entry.connected_age.as_secs(), entry.seen_age.as_secs()), (92, 5));
    feed(&mut a, 4_000, Event::Opened(claim(6)));
    feed(&mut a, 9_000, Event::Heard(spoke("s"), stamp(6, 1)));
    feed(&mut a, 9_500, Event::Renewed(spoke("s"), stamp(6, 1), 42));
    let own = a.own_streams(ms(10_000));
    let [own] = own.as_slice() else { panic!("{own:?}") };
    assert_eq!((own.connected_age.as_secs(), own.seen_age.as_secs(), own.cert_not_after), (6, 1, 42));
}
