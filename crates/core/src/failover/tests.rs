use super::*;

const AUTHORITATIVE: [AnswerKind; 5] = [
    AnswerKind::NotFound,
    AnswerKind::PermissionDenied,
    AnswerKind::Unauthenticated,
    AnswerKind::RateLimited,
    AnswerKind::Invalid,
];
const A: EndpointId = EndpointId::new(0);
const B: EndpointId = EndpointId::new(1);
const C: EndpointId = EndpointId::new(2);

fn ms(n: u64) -> Mono {
    Mono::from_millis(n)
}

fn endpoints(count: usize) -> Endpoints {
    Endpoints::new(NonZeroUsize::new(count).unwrap(), Timing::default())
}

/// Runs one request whose attempts take 1 ms each and end so; returns whom it asked.
fn ask(endpoints: &mut Endpoints, at: u64, ends: &[Ended]) -> (Vec<EndpointId>, Verdict) {
    let (mut walk, first) = Walk::begin(endpoints, ms(at));
    let mut asked = vec![first];
    for (nth, ended) in ends.iter().enumerate() {
        match walk.ended(endpoints, ms(at + 1 + nth as u64), *ended) {
            Step::Try(next) => asked.push(next),
            Step::Done(verdict) => {
                assert_eq!(nth + 1, ends.len(), "no attempt after the end");
                return (asked, verdict);
            }
        }
    }
    panic!("not over after {asked:?}")
}

#[test]
fn which_ends_move_on() {
    for ended in [Ended::Unreachable, Ended::TimedOut, Ended::Broken, Ended::Behind] {
        assert!(ended.moves_on(), "{ended:?}");
    }
    let moving: Vec<_> =
        AnswerKind::ALL.into_iter().filter(|kind| Ended::Refused(*kind).moves_on()).collect();
    assert_eq!(moving, [AnswerKind::Unavailable, AnswerKind::Unknown]);
    assert!(!Ended::Answered.moves_on() && !Ended::Stopped.moves_on());
}

#[test]
fn an_answer_that_all_would_give_is_asked_for_once() {
    for kind in AUTHORITATIVE {
        assert_eq!(ask(&mut endpoints(3), 0, &[Ended::Refused(kind)]), (vec![A], Verdict::Given), "{kind}");
    }
}

#[test]
fn the_next_endpoint_answers_for_one_that_cannot() {
    let unable = [
        Ended::Unreachable,
        Ended::TimedOut,
        Ended::Broken,
        Ended::Refused(AnswerKind::Unavailable),
        Ended::Refused(AnswerKind::Unknown),
        Ended::Behind,
    ];
    for ended in unable {
        let (asked, verdict) = ask(&mut endpoints(3), 0, &[ended, Ended::Answered]);
        assert_eq!((asked, verdict), (vec![A, B], Verdict::Given), "{ended:?}");
    }
    let refused = Ended::Refused(AnswerKind::PermissionDenied);
    assert_eq!(ask(&mut endpoints(3), 0, &[Ended::TimedOut, refused]), (vec![A, B], Verdict::Given));
}

#[test]
fn with_one_endpoint_there_is_one_request() {
    let mut one = endpoints(1);
    for _ in 0..3 {
        assert_eq!(ask(&mut one, 0, &[Ended::Unreachable]), (vec![A], Verdict::Failed));
    }
    assert_eq!(ask(&mut one, 5, &[Ended::Behind]), (vec![A], Verdict::Behind));
}

#[test]
fn when_all_fail_the_last_error_stands() {
    let ends = [Ended::Unreachable, Ended::TimedOut, Ended::Refused(AnswerKind::Unavailable)];
    assert_eq!(ask(&mut endpoints(3), 0, &ends), (vec![A, B, C], Verdict::Failed));
}

#[test]
fn what_was_delivered_before_answers_when_nobody_has_anything_newer() {
    assert_eq!(ask(&mut endpoints(2), 0, &[Ended::Behind; 2]), (vec![A, B], Verdict::Behind));
    let mixed = [Ended::Behind, Ended::Unreachable];
    assert_eq!(ask(&mut endpoints(2), 0, &mixed), (vec![A, B], Verdict::Behind));
}

#[test]
fn the_callers_end_is_the_end_and_blames_nobody() {
    let mut three = endpoints(3);
    assert_eq!(ask(&mut three, 0, &[Ended::Stopped]), (vec![A], Verdict::Stopped));
    assert!(!three.is_paused(ms(1), A));
}

#[test]
fn one_that_failed_is_tried_last_and_found_again_by_one_probe() {
    let mut three = endpoints(3);
    ask(&mut three, 0, &[Ended::Unreachable, Ended::Answered]);
    let turns = [Ended::Unreachable, Ended::Unreachable, Ended::Answered];
    assert_eq!(ask(&mut three, 500, &turns).0, [B, C, A], "last, though it answers");
    let mut three = endpoints(3);
    ask(&mut three, 0, &[Ended::Unreachable, Ended::Answered]);
    assert!(three.is_paused(ms(1000), A) && !three.is_paused(ms(1001), A));
    let (mut probe, asked) = Walk::begin(&mut three, ms(1001));
    assert_eq!(asked, A);
    assert_eq!(ask(&mut three, 1002, &[Ended::Answered]).0, [B], "one request probes");
    assert_eq!(probe.ended(&mut three, ms(1010), Ended::Answered), Step::Done(Verdict::Given));
    assert_eq!(ask(&mut three, 1011, &[Ended::Answered]).0, [A]);
}

#[test]
fn pauses_double_with_each_failed_probe_up_to_half_a_minute() {
    let mut two = endpoints(2);
    let mut at = 0;
    for pause in [1, 2, 4, 8, 16, 30, 30] {
        assert_eq!(ask(&mut two, at, &[Ended::TimedOut, Ended::Answered]).0, [A, B], "{pause}");
        let end = at + 1 + pause * 1000;
        assert_eq!(ask(&mut two, end - 1, &[Ended::Answered]).0, [B], "{pause}");
        at = end;
    }
    assert_eq!(ask(&mut two, at, &[Ended::Answered]).0, [A]);
    assert_eq!(ask(&mut two, at + 1, &[Ended::TimedOut, Ended::Answered]).0, [A, B]);
    assert_eq!(ask(&mut two, at + 1002, &[Ended::Answered]).0, [A], "and begin anew after a success");
}

#[test]
fn a_thousand_requests_that_fail_with_an_endpoint_are_one_failure() {
    let mut two = endpoints(2);
    let mut walks: Vec<_> = (0..1000).map(|_| Walk::begin(&mut two, ms(0)).0).collect();
    for walk in &mut walks {
        assert_eq!(walk.ended(&mut two, ms(5), Ended::Unreachable), Step::Try(B));
    }
    assert!(two.is_paused(ms(1004), A) && !two.is_paused(ms(1005), A));
}

#[test]
fn an_answer_from_before_the_failure_proves_nothing() {
    let mut two = endpoints(2);
    let (mut early, _) = Walk::begin(&mut two, ms(0));
    ask(&mut two, 10, &[Ended::Unreachable, Ended::Answered]);
    early.ended(&mut two, ms(20), Ended::Answered);
    assert!(two.is_paused(ms(21), A));
}

#[test]
fn when_all_are_paused_all_are_tried_in_order_and_pauses_do_not_grow_by_it() {
    let mut three = endpoints(3);
    let all = [Ended::Unreachable; 3];
    for at in [0, 10, 20, 30] {
        assert_eq!(ask(&mut three, at, &all), (vec![A, B, C], Verdict::Failed), "{at}");
    }
    assert!(!three.is_paused(ms(1001), A));
    let ends = [Ended::Unreachable, Ended::Unreachable, Ended::Answered];
    let mut three = endpoints(3);
    ask(&mut three, 0, &all);
    assert_eq!(ask(&mut three, 40, &ends), (vec![A, B, C], Verdict::Given));
    assert!(!three.is_paused(ms(50), C), "it answered in its pause");
}

#[test]
fn a_probe_that_is_given_up_is_left_to_the_next_request() {
    let mut two = endpoints(2);
    ask(&mut two, 0, &[Ended::Unreachable, Ended::Answered]);
    assert_eq!(ask(&mut two, 1001, &[Ended::Stopped]).0, [A]);
    assert_eq!(ask(&mut two, 1003, &[Ended::Answered]).0, [A]);
    let mut two = endpoints(2);
    ask(&mut two, 0, &[Ended::Unreachable, Ended::Answered]);
    let forgotten = Walk::begin(&mut two, ms(1001));
    assert_eq!(forgotten.1, A);
    assert_eq!(Walk::begin(&mut two, ms(4000)).1, B);
    assert_eq!(Walk::begin(&mut two, ms(4001)).1, A, "its deadline has passed");
}

#[test]
fn an_envelope_speaks_of_one_name_and_pauses_nobody() {
    let mut two = endpoints(2);
    ask(&mut two, 0, &[Ended::Refused(AnswerKind::Unavailable), Ended::Answered]);
    ask(&mut two, 5, &[Ended::Behind, Ended::Answered]);
    assert!(!two.is_paused(ms(10), A));
}
