use super::*;
use crate::time::Spread;

const REDATE: Duration = Duration::from_secs(60);

fn wall(seconds: i64) -> Option<Wall> {
    Some(Wall::from_micros(seconds * 1_000_000))
}

fn bound(seq: u64, at: i64) -> View {
    View::Bound { seq: Seq::new(seq), resolved_at: wall(at), confirmed: true }
}

fn failing(seq: u64, at: i64) -> View {
    View::Bound { seq: Seq::new(seq), resolved_at: wall(at), confirmed: false }
}

fn stream(allowed: &[bool], base: u64, fresh: bool) -> Stream {
    Stream::new(Rules { redate: REDATE, fresh }, allowed.iter().copied(), Seq::new(base))
}

/// Everything that is due, with the views of the names as given.
fn drain(stream: &mut Stream, followed: u64, views: &[View]) -> Vec<Next<()>> {
    let mut out = Vec::new();
    loop {
        match stream.next(Seq::new(followed), |index| (views[index], ())) {
            Next::Nothing => return out,
            Next::End => {
                out.push(Next::End);
                return out;
            }
            next => out.push(next),
        }
    }
}

fn name(index: usize, id: Option<u64>, why: Why) -> Next<()> {
    Next::Name { index, look: (), id: id.map(Seq::new), why }
}

#[test]
fn a_baseline_comes_in_order_without_ids_and_ends_synced() {
    let mut s = stream(&[true, false, true], 7, false);
    let out = drain(&mut s, 5, &[bound(3, 0), bound(4, 0), View::Unbound]);
    assert_eq!(
        out,
        [
            name(0, None, Why::Baseline),
            Next::Denied(1),
            name(2, None, Why::Baseline),
            Next::Synced(Seq::new(7)),
        ]
    );
    assert_eq!(drain(&mut s, 5, &[bound(3, 0), bound(4, 0), View::Unbound]), []);
}

#[test]
fn all_denied_is_synced_and_silent() {
    let mut s = stream(&[false], 0, false);
    assert_eq!(drain(&mut s, 9, &[bound(3, 0)]), [Next::Denied(0), Next::Synced(Seq::new(9))]);
    assert!(!s.mark(0, bound(10, 0)));
    assert_eq!(drain(&mut s, 10, &[bound(10, 0)]), []);
}

#[test]
fn a_change_that_the_baseline_has_passed_comes_after_it_and_only_the_last_frame_has_an_id() {
    let mut s = stream(&[true, true], 2, false);
    let views = [bound(1, 0), bound(2, 0)];
    assert_eq!(s.next(Seq::new(2), |i| (views[i], ())), name(0, None, Why::Baseline));
    assert!(s.mark(0, bound(3, 0)));
    assert!(!s.mark(1, bound(4, 0)), "the baseline finds it");
    let views = [bound(3, 0), bound(4, 0)];
    assert_eq!(
        drain(&mut s, 4, &views),
        [name(1, None, Why::Baseline), Next::Synced(Seq::new(2)), name(0, Some(4), Why::Change)]
    );
    let views = [bound(5, 0), bound(6, 0)];
    assert!(s.mark(0, views[0]) && s.mark(1, views[1]) && !s.mark(0, views[0]));
    assert_eq!(drain(&mut s, 6, &views), [name(0, None, Why::Change), name(1, Some(6), Why::Change)]);
}

#[test]
fn a_name_due_twice_is_sent_once() {
    let mut s = stream(&[true], 1, false);
    drain(&mut s, 1, &[bound(1, 0)]);
    assert!(s.mark(0, bound(2, 0)));
    assert!(!s.mark(0, bound(3, 0)));
    assert_eq!(drain(&mut s, 3, &[bound(3, 0)]), [name(0, Some(3), Why::Change)]);
    assert!(!s.mark(0, bound(3, 0)), "a mark that comes late finds nothing new");
}

#[test]
fn the_first_success_after_the_baseline_is_told_and_then_one_a_redate() {
    let mut s = stream(&[true], 1, false);
    drain(&mut s, 1, &[failing(1, 100)]);
    assert!(!s.mark(0, failing(1, 100)));
    assert!(s.mark(0, bound(1, 101)));
    assert_eq!(drain(&mut s, 1, &[bound(1, 101)]), [name(0, Some(1), Why::Date)]);
    assert!(!s.mark(0, bound(1, 160)));
    assert!(s.mark(0, bound(1, 161)));
    assert_eq!(drain(&mut s, 1, &[bound(1, 161)]), [name(0, Some(1), Why::Date)]);
}

#[test]
fn dates_come_as_one_frame_a_beat_where_asked_for() {
    let mut s = stream(&[true, true], 1, true);
    drain(&mut s, 1, &[bound(1, 0), bound(1, 0)]);
    assert!(s.mark(0, bound(1, 5)));
    assert_eq!(drain(&mut s, 1, &[bound(1, 5), bound(1, 0)]), [Next::Fresh(vec![(0, wall(5).unwrap())])]);
    assert!(!s.mark(1, bound(1, 6)), "not before the next beat");
    assert_eq!(drain(&mut s, 1, &[bound(1, 5), bound(1, 6)]), []);
    s.beat();
    assert_eq!(
        drain(&mut s, 1, &[bound(1, 5), bound(1, 6)]),
        [Next::Heartbeat, Next::Fresh(vec![(1, wall(6).unwrap())])]
    );
}

#[test]
fn a_resume_sends_what_changed_and_nothing_of_what_did_not() {
    let mut s = stream(&[true, true, false, true], 9, false);
    let views = [bound(3, 0), bound(8, 0), bound(9, 0), View::Unbound];
    s.resume(Seq::new(5), |i| views[i]);
    assert_eq!(drain(&mut s, 9, &views), [name(1, None, Why::Baseline), Next::Synced(Seq::new(9))]);
    assert!(s.mark(0, bound(3, 1)), "a re-date follows a resume as it does a baseline");
}

#[test]
fn rights_that_change_are_told_once() {
    let mut s = stream(&[true, false], 2, false);
    let views = [bound(1, 0), bound(2, 0)];
    drain(&mut s, 2, &views);
    s.rejudge(|i| i == 1, |i| views[i]);
    assert_eq!(drain(&mut s, 2, &views), [Next::Denied(0), name(1, Some(2), Why::Baseline)]);
    s.rejudge(|i| i == 1, |i| views[i]);
    assert_eq!(drain(&mut s, 2, &views), []);
    let gone = [bound(1, 0), View::Unbound];
    s.rejudge(|i| i == 1, |i| gone[i]);
    assert_eq!(drain(&mut s, 2, &gone), [name(1, Some(2), Why::Change)]);
}

#[test]
fn an_unknown_caller_is_told_for_each_name_and_then_the_end() {
    let mut s = stream(&[true, false], 2, false);
    s.end(End::Unauthenticated);
    let views = [bound(1, 0), bound(2, 0)];
    assert_eq!(drain(&mut s, 2, &views), [Next::Unauthenticated(0), Next::Unauthenticated(1), Next::End]);
}

#[test]
fn a_client_is_told_to_move_and_is_served_on() {
    let mut s = stream(&[true], 1, false);
    drain(&mut s, 1, &[bound(1, 0)]);
    s.go_away(Reason::Draining, Duration::from_secs(2));
    s.mark(0, bound(2, 0));
    assert_eq!(
        drain(&mut s, 2, &[bound(2, 0)]),
        [Next::GoAway(Reason::Draining, Duration::from_secs(2)), name(0, Some(2), Why::Change)]
    );
    s.go_away(Reason::Draining, Duration::from_secs(1));
    assert_eq!(drain(&mut s, 2, &[bound(2, 0)]), []);
    s.end(End::Now);
    assert_eq!(drain(&mut s, 2, &[bound(2, 0)]), [Next::End]);
}

#[test]
fn who_is_told_to_move_and_ended_at_once_hears_both() {
    let mut s = stream(&[true], 1, false);
    drain(&mut s, 1, &[bound(1, 0)]);
    s.go_away(Reason::Draining, Duration::ZERO);
    s.mark(0, bound(2, 0));
    s.end(End::Now);
    let out = drain(&mut s, 2, &[bound(2, 0)]);
    assert_eq!(out, [Next::GoAway(Reason::Draining, Duration::ZERO), Next::End]);
}

/// A board whose changes reach the stream late, and a client that drops and resumes.
struct World {
    seqs: Vec<u64>,
    last: u64,
    /// Published, not yet given to the stream.
    pending: VecDeque<(usize, u64)>,
    followed: u64,
    /// What the client has of each name.
    client: Vec<u64>,
    id: Option<u64>,
}

impl World {
    fn view(&self, index: usize) -> View {
        bound(self.seqs[index], 0)
    }

    fn change(&mut self, index: usize) {
        self.last += 1;
        self.seqs[index] = self.last;
        self.pending.push_back((index, self.last));
    }

    fn follow(&mut self, stream: &mut Stream) {
        if let Some((index, seq)) = self.pending.pop_front() {
            stream.mark(index, self.view(index));
            self.followed = seq;
        }
    }

    fn read(&mut self, stream: &mut Stream, seed: u64) -> bool {
        let seqs = self.seqs.clone();
        let next = stream.next(Seq::new(self.followed), |i| (bound(seqs[i], 0), seqs[i]));
        let id = match next {
            Next::Nothing => return false,
            Next::Name { index, look, id, .. } => {
                assert!(look >= self.client[index], "no-older-after-newer, seed {seed}");
                self.client[index] = look;
                id
            }
            Next::Synced(id) => Some(id),
            other => panic!("{other:?}, seed {seed}"),
        };
        if let Some(id) = id {
            for (index, seq) in self.seqs.iter().enumerate() {
                let complete = self.client[index] >= *seq || *seq > id.get();
                assert!(complete, "resume-complete: {id:?} without {index}@{seq}, seed {seed}");
            }
            self.id = Some(id.get());
        }
        true
    }

    fn connect(&self, resume: bool) -> Stream {
        let mut stream = Stream::new(
            Rules { redate: REDATE, fresh: false },
            self.seqs.iter().map(|_| true),
            Seq::new(self.last),
        );
        if let (true, Some(id)) = (resume, self.id) {
            stream.resume(Seq::new(id), |i| self.view(i));
        }
        stream
    }
}

#[test]
fn whatever_is_interleaved_a_resumed_client_ends_with_the_newest_of_each_name() {
    for seed in crate::soak::seeds(400) {
        let mut spread = Spread::new(seed);
        let names = 1 + spread.below(5) as usize;
        let mut world = World {
            seqs: vec![0; names],
            last: 0,
            pending: VecDeque::new(),
            followed: 0,
            client: vec![0; names],
            id: None,
        };
        let mut stream = world.connect(false);
        for _ in 0..400 {
            match spread.below(10) {
                0..3 => world.change(spread.below(names as u64) as usize),
                3..6 => world.follow(&mut stream),
                6 if spread.below(8) == 0 => stream = world.connect(true),
                _ => drop(world.read(&mut stream, seed)),
            }
        }
        while !world.pending.is_empty() {
            world.follow(&mut stream);
        }
        while world.read(&mut stream, seed) {}
        assert_eq!(world.client, world.seqs, "newest-never-skipped, seed {seed}");
        assert!(world.id.is_some());
    }
}
