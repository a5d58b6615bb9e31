use super::*;

const T: Term = Term::new(2);

type Machine = LeaseQueue<u32, char>;
type Ev = Event<u32, char>;
type Ef = Effect<u32, char>;

fn ms(n: u64) -> Mono {
    Mono::from_millis(n)
}

fn due(id: u32, queue: char, failures: u32) -> Due<u32, char> {
    Due { id, due: ms(0), queue, failures }
}

fn page(ids: impl IntoIterator<Item = u32>, queue: char) -> Ev {
    Event::Page { leases: ids.into_iter().map(|id| due(id, queue, 0)).collect(), more: false, next: None }
}

fn finished(id: u32, attempt: Attempt) -> Ev {
    Event::Finished { id, attempt }
}

fn stored(id: u32) -> Ev {
    Event::Stored { id, applied: true }
}

fn asked(id: u32, queue: char, waiter: u64) -> Ev {
    Event::Asked { lease: due(id, queue, 0), waiter: Some(Waiter::new(waiter)) }
}

fn start(id: u32) -> Ef {
    Effect::Start { id, term: T }
}

fn delete(id: u32) -> Ef {
    Effect::Delete { id, term: T }
}

fn feed(machine: &mut Machine, steps: &[(u64, Ev)]) -> Vec<Ef> {
    let mut out = Vec::new();
    for (at, event) in steps {
        machine.on(ms(*at), event.clone(), &mut out);
    }
    out
}

fn begun(limits: Limits) -> Machine {
    let mut machine = Machine::new(limits, Spread::new(3));
    let out = feed(&mut machine, &[(0, Event::Began { term: T })]);
    assert_eq!(out, [Effect::Read { after: None, limit: limits.page }]);
    machine
}

#[test]
fn a_due_lease_is_revoked_and_deleted() {
    let mut machine = begun(Limits::default());
    let out = feed(&mut machine, &[(1, page([7], 'a'))]);
    assert_eq!(out, [start(7)]);
    assert!(machine.is_revoking(&7));
    let out = feed(&mut machine, &[(2, finished(7, Attempt::Removed)), (3, stored(7))]);
    assert_eq!(out, [delete(7)]);
    assert_eq!((machine.loaded(), machine.running()), (0, 0));
}

#[test]
fn the_index_is_read_forward_and_when_something_comes_due() {
    let mut machine = begun(Limits { page: 2, workers: 0, ..Limits::default() });
    let lease = |id, at| Due { id, due: ms(at), queue: 'a', failures: 0 };
    let first = Event::Page { leases: vec![lease(1, 10), lease(2, 20)], more: true, next: None };
    let read = |after| Effect::Read { after, limit: 2 };
    assert_eq!(feed(&mut machine, &[(100, first)]), [read(Some((ms(20), 2)))]);
    let second = Event::Page { leases: vec![lease(3, 30)], more: false, next: Some(ms(500)) };
    assert_eq!(feed(&mut machine, &[(101, second), (499, Event::Tick)]), []);
    assert_eq!(machine.next_deadline(), Some(ms(500)));
    assert_eq!(feed(&mut machine, &[(200, Event::Scheduled { due: ms(300) }), (299, Event::Tick)]), []);
    assert_eq!(feed(&mut machine, &[(300, Event::Tick)]), [read(Some((ms(30), 3)))]);
    let empty = Event::Page { leases: vec![], more: false, next: Some(ms(900)) };
    let behind = Event::Scheduled { due: ms(25) };
    assert_eq!(feed(&mut machine, &[(301, empty), (302, behind)]), [read(None)]);
}

#[test]
fn queues_take_turns_and_use_half_their_connections() {
    let mut machine = begun(Limits { workers: 6, ..Limits::default() });
    feed(&mut machine, &[(0, Event::Connections { queue: 'a', connections: 4 })]);
    let leases = (0..10).map(|id| due(id, 'a', 0)).chain((10..20).map(|id| due(id, 'b', 0))).collect();
    let out = feed(&mut machine, &[(1, Event::Page { leases, more: false, next: None })]);
    assert_eq!(out, [start(0), start(10), start(1), start(11), start(12), start(13)]);
    let out = feed(&mut machine, &[(2, finished(0, Attempt::Removed)), (3, stored(0))]);
    assert_eq!(out, [delete(0), start(14)]);
    let out = feed(&mut machine, &[(4, finished(10, Attempt::Removed)), (5, stored(10))]);
    assert_eq!(out, [delete(10), start(2)]);
}

#[test]
fn a_failure_is_recorded_with_growing_pauses_until_it_is_irrevocable() {
    for failures in 0..8u32 {
        let mut machine = begun(Limits::default());
        let leases = vec![due(1, 'a', failures)];
        feed(&mut machine, &[(0, Event::Page { leases, more: false, next: None })]);
        let out = feed(&mut machine, &[(1000, finished(1, Attempt::Failed))]);
        let [Effect::Record { id: 1, term: T, failures: now, due, irrevocable }] = out[..] else {
            panic!("{out:?}")
        };
        assert_eq!(now, failures + 1);
        assert_eq!(irrevocable, failures >= 6);
        let pause = ms(1000).until(due).as_secs_f64();
        let base = 10.0 * f64::from(1u32 << failures);
        let range = if irrevocable { 86_400.0..=86_400.0 } else { base * 0.5..=base * 1.5 };
        assert!(range.contains(&pause), "{failures}: {pause}");
        assert_eq!(feed(&mut machine, &[(1001, stored(1))]), []);
        assert_eq!((machine.loaded(), machine.next_deadline()), (0, Some(due.min(ms(300_000)))));
    }
}

#[test]
fn unrecoverable_goes_there_at_once() {
    let mut machine = begun(Limits::default());
    feed(&mut machine, &[(0, page([1], 'a'))]);
    let out = feed(&mut machine, &[(0, finished(1, Attempt::Unrecoverable))]);
    let record = Effect::Record { id: 1, term: T, failures: 1, due: ms(86_400_000), irrevocable: true };
    assert_eq!(out, [record]);
}

#[test]
fn what_could_not_be_tried_waits_uses_no_attempt_and_starts_when_the_executor_is_back() {
    let mut machine = begun(Limits::default());
    let out = feed(&mut machine, &[(0, page(1..=20, 'a'))]);
    assert_eq!(out.len(), 8);
    let not_tried = |id| finished(id, Attempt::NotTried);
    let out = feed(&mut machine, &[(1, not_tried(1)), (1, not_tried(2)), (1, not_tried(3))]);
    let [Effect::Parked('a', until)] = out[..] else { panic!("{out:?}") };
    assert!((801..=1201).contains(&(until.as_nanos() / 1_000_000)));
    let out = feed(&mut machine, &(4..=8).map(|id| (2, not_tried(id))).collect::<Vec<_>>());
    assert_eq!(out, []);
    let mut out = Vec::new();
    machine.on(until, Event::Tick, &mut out);
    assert_eq!(out, [start(8)]);
    let out = feed(&mut machine, &[(2000, not_tried(8))]);
    assert!(matches!(out[..], [Effect::Parked('a', next)] if next > ms(3500)));
    let out = feed(&mut machine, &[(2100, Event::ExecutorBack { queue: 'a' })]);
    assert_eq!(out.len(), 8);
    assert_eq!(machine.loaded(), 20);
}

#[test]
fn a_queue_that_waits_does_not_hold_up_another() {
    let mut machine = begun(Limits { workers: 1, ..Limits::default() });
    let leases = vec![due(1, 'a', 0), due(2, 'b', 0)];
    assert_eq!(feed(&mut machine, &[(0, Event::Page { leases, more: false, next: None })]), [start(1)]);
    let out = feed(&mut machine, &[(1, finished(1, Attempt::NotTried))]);
    assert!(matches!(out[..], [Effect::Parked('a', _), Effect::Start { id: 2, .. }]));
}

#[test]
fn a_queue_whose_configuration_is_gone_is_forgotten_once_nothing_of_it_runs() {
    let mut machine = begun(Limits::default());
    let retired = |queue| Event::Retired { queue };
    feed(&mut machine, &[(1, page([7], 'a')), (1, page([8], 'b')), (1, finished(7, Attempt::Removed))]);
    // The last lease of a configuration takes the configuration along before its own deletion is confirmed.
    feed(&mut machine, &[(2, retired('a')), (2, retired('c'))]);
    assert_eq!(machine.queues(), 2);
    feed(&mut machine, &[(3, stored(7))]);
    assert_eq!(machine.queues(), 1);
    // One that waits for its database is forgotten with its wake-up.
    feed(&mut machine, &[(4, finished(8, Attempt::NotTried)), (5, retired('b')), (6, Event::Gone { id: 8 })]);
    assert_eq!((machine.queues(), machine.loaded()), (0, 0));
    assert!(feed(&mut machine, &[(70_000, Event::Tick)]).is_empty());
}

#[test]
fn callers_share_one_revocation() {
    let mut machine = begun(Limits::default());
    feed(&mut machine, &[(0, page([1], 'a'))]);
    assert_eq!(feed(&mut machine, &[(1, asked(1, 'a', 10)), (2, asked(1, 'a', 11))]), []);
    let out =
        feed(&mut machine, &[(3, finished(1, Attempt::Removed)), (4, asked(1, 'a', 12)), (5, stored(1))]);
    let told = |n| Effect::Answer(Waiter::new(n), Answer::Revoked);
    assert_eq!(out, [delete(1), told(10), told(11), told(12)]);
    let out = feed(&mut machine, &[(6, asked(2, 'a', 13)), (7, finished(2, Attempt::Failed))]);
    assert!(matches!(
        out[..],
        [
            Effect::Start { id: 2, .. },
            Effect::Record { id: 2, failures: 1, .. },
            Effect::Answer(_, Answer::Failed)
        ]
    ));
}

#[test]
fn an_explicit_caller_goes_first_and_is_tried_even_while_the_queue_waits() {
    let mut machine = begun(Limits::default());
    feed(&mut machine, &[(0, Event::Connections { queue: 'a', connections: 2 }), (0, page(1..=5, 'a'))]);
    assert_eq!(feed(&mut machine, &[(1, asked(4, 'a', 9))]), []);
    let out = feed(&mut machine, &[(2, finished(1, Attempt::Removed)), (3, stored(1))]);
    assert_eq!(out, [delete(1), start(4)]);
    let out = feed(&mut machine, &[(4, finished(4, Attempt::NotTried)), (5, asked(5, 'a', 8))]);
    assert!(matches!(
        out[..],
        [Effect::Parked('a', _), Effect::Answer(_, Answer::NotTried), Effect::Start { id: 5, .. }]
    ));
}

#[test]
fn renewed_leases_leave_the_queue_unless_their_revocation_began() {
    let mut machine = begun(Limits { workers: 1, ..Limits::default() });
    feed(&mut machine, &[(0, page([1, 2], 'a'))]);
    feed(&mut machine, &[(1, Event::Renewed { id: 1 }), (1, Event::Renewed { id: 2 })]);
    assert_eq!(machine.loaded(), 1);
    let out = feed(&mut machine, &[(2, finished(1, Attempt::Removed)), (3, stored(1))]);
    assert_eq!(out, [delete(1)]);
}

#[test]
fn a_lost_gate_tells_everyone_who_waits_and_starts_nothing() {
    let mut machine = begun(Limits::default());
    feed(&mut machine, &[(0, asked(1, 'a', 10))]);
    let not_tried = |n| Effect::Answer(Waiter::new(n), Answer::NotTried);
    let out =
        feed(&mut machine, &[(1, Event::Ended), (2, asked(2, 'a', 11)), (3, finished(1, Attempt::Removed))]);
    assert_eq!(out, [not_tried(10), not_tried(11)]);
    assert_eq!(machine.next_deadline(), None);
}

#[test]
fn a_gate_that_opens_again_does_not_start_what_still_runs() {
    let mut machine = begun(Limits::default());
    feed(&mut machine, &[(0, page([1, 2], 'a')), (1, Event::Ended)]);
    assert_eq!((machine.loaded(), machine.running()), (2, 2));
    let read = Effect::Read { after: None, limit: 1000 };
    let out = feed(&mut machine, &[(2, Event::Began { term: T }), (3, page([1, 2, 3], 'a'))]);
    assert_eq!(out, [read, start(3)]);
    assert_eq!(feed(&mut machine, &[(4, finished(1, Attempt::Removed))]), [delete(1)]);
    let out = feed(&mut machine, &[(5, Event::Ended), (6, stored(1)), (7, finished(2, Attempt::Removed))]);
    assert_eq!(out, []);
    assert_eq!((machine.loaded(), machine.running()), (1, 1));
}

#[test]
fn a_store_that_refuses_is_read_again_after_a_pause() {
    let mut machine = begun(Limits::default());
    feed(&mut machine, &[(0, page([1], 'a')), (1, finished(1, Attempt::Removed))]);
    let refused = Event::Stored { id: 1, applied: false };
    assert_eq!(feed(&mut machine, &[(2, refused)]), []);
    assert_eq!(machine.next_deadline(), Some(ms(1002)));
    let out = feed(&mut machine, &[(1002, Event::Tick), (1003, page([1], 'a'))]);
    assert_eq!(out, [Effect::Read { after: None, limit: 1000 }, start(1)]);
}

#[test]
fn a_page_read_before_a_deletion_brings_nothing_back() {
    let mut machine = begun(Limits::default());
    feed(&mut machine, &[(0, asked(1, 'a', 10)), (1, finished(1, Attempt::Removed)), (2, stored(1))]);
    assert_eq!(feed(&mut machine, &[(3, page([1, 2], 'a'))]), [start(2)]);
}

#[test]
fn what_does_not_fit_stays_in_the_store_and_is_read_later() {
    let mut machine = begun(Limits { loaded: 4, workers: 1, ..Limits::default() });
    assert_eq!(feed(&mut machine, &[(0, page(0..10, 'a'))]), [start(0)]);
    assert_eq!(machine.loaded(), 4);
    let mut out = Vec::new();
    for id in 0..2 {
        out.extend(feed(&mut machine, &[(1, finished(id, Attempt::Removed)), (1, stored(id))]));
    }
    assert!(out.contains(&Effect::Read { after: None, limit: 1000 }), "{out:?}");
}

#[test]
fn callers_in_vain_leave_nothing_behind() {
    let mut machine = begun(Limits::default());
    feed(&mut machine, &[(0, page([1], 'a')), (0, finished(1, Attempt::NotTried))]);
    for n in 0..100 {
        let out = feed(&mut machine, &[(1, asked(1, 'a', n)), (1, finished(1, Attempt::NotTried))]);
        assert_eq!(out.first(), Some(&start(1)));
    }
    let queue = machine.queues.get(&'a').expect("the queue");
    assert_eq!((queue.due.len(), queue.urgent.len()), (1, 0));
}

/// A store index, executors that go and come, callers. `flights` counts revocations of each lease under way.
struct World {
    spread: Spread,
    index: BTreeMap<(Mono, u32), (char, u32)>,
    place: BTreeMap<u32, Mono>,
    flights: BTreeMap<u32, u32>,
    tried: BTreeMap<u32, u32>,
    offline: bool,
    pending: Vec<Ev>,
    waiting: BTreeSet<Waiter>,
    asked: u64,
}

/// What the planted variants get wrong.
#[derive(Clone, Copy, PartialEq)]
enum Plant {
    None,
    NoSingleFlight,
    OfflineIsFailure,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut spread = Spread::new(seed);
        let mut index = BTreeMap::new();
        for id in 0..60 {
            let queue = if spread.below(2) == 0 { 'a' } else { 'b' };
            index.insert((ms(spread.below(20_000)), id), (queue, 0));
        }
        let place = index.keys().map(|(at, id)| (*id, *at)).collect();
        Self {
            spread,
            index,
            place,
            flights: BTreeMap::new(),
            tried: BTreeMap::new(),
            offline: false,
            pending: Vec::new(),
            waiting: BTreeSet::new(),
            asked: 0,
        }
    }

    fn ask(&mut self, now: Mono) -> Option<Ev> {
        let nth = self.spread.below(self.place.len().max(1) as u64) as usize;
        let (id, at) = self.place.iter().nth(nth).map(|(id, at)| (*id, *at))?;
        let (queue, failures) = self.index.remove(&(at, id))?;
        let due = at.min(now);
        self.index.insert((due, id), (queue, failures));
        self.place.insert(id, due);
        self.asked += 1;
        let waiter = Waiter::new(self.asked);
        self.waiting.insert(waiter);
        Some(Event::Asked { lease: Due { id, due, queue, failures }, waiter: Some(waiter) })
    }

    fn perform(&mut self, now: Mono, effect: Ef, plant: Plant) -> Result<(), &'static str> {
        match effect {
            Effect::Read { after, limit } => self.read(now, after, limit),
            Effect::Start { id, .. } => {
                let flights = self.flights.entry(id).or_default();
                *flights += 1;
                if *flights > 1 {
                    return Err("at most one revocation of a lease at a time");
                }
                let queue =
                    self.place.get(&id).and_then(|at| self.index.get(&(*at, id))).map(|lease| lease.0);
                let attempt = match (self.offline && queue == Some('a'), plant) {
                    (true, Plant::OfflineIsFailure) => Attempt::Failed,
                    (true, _) => Attempt::NotTried,
                    (false, _) => match self.spread.below(4) {
                        0 => Attempt::Failed,
                        _ => Attempt::Removed,
                    },
                };
                if attempt != Attempt::NotTried && !(self.offline && queue == Some('a')) {
                    *self.tried.entry(id).or_default() += 1;
                }
                self.pending.push(Event::Finished { id, attempt });
            }
            Effect::Delete { id, .. } => {
                let applied = self.spread.below(8) > 0;
                if applied && let Some(at) = self.place.remove(&id) {
                    self.index.remove(&(at, id));
                }
                self.pending.push(Event::Stored { id, applied });
            }
            Effect::Record { id, failures, due, .. } => {
                if failures > self.tried.get(&id).copied().unwrap_or(0) {
                    return Err("what was not tried uses up no attempt");
                }
                let applied = self.spread.below(8) > 0;
                if applied && let Some(at) = self.place.insert(id, due) {
                    let lease = self.index.remove(&(at, id)).unwrap_or(('a', 0));
                    self.index.insert((due, id), (lease.0, failures));
                }
                self.pending.push(Event::Stored { id, applied });
            }
            Effect::Answer(waiter, _) => {
                if !self.waiting.remove(&waiter) {
                    return Err("one answer each");
                }
            }
            Effect::Parked(..) => {}
        }
        Ok(())
    }

    fn read(&mut self, now: Mono, after: Option<(Mono, u32)>, limit: usize) {
        let behind = |place: &(Mono, u32)| after.is_none_or(|after| *place > after);
        let mut found = self.index.iter().filter(|(place, _)| behind(place) && place.0 <= now);
        let leases: Vec<_> = found
            .by_ref()
            .take(limit)
            .map(|((due, id), (queue, failures))| Due {
                id: *id,
                due: *due,
                queue: *queue,
                failures: *failures,
            })
            .collect();
        let more = found.next().is_some();
        let next = self.index.keys().map(|(at, _)| *at).find(|at| *at > now);
        self.pending.push(Event::Page { leases, more, next });
    }
}

fn run(seed: u64, plant: Plant) -> Result<(), &'static str> {
    let limits = Limits { workers: 5, connections: 6, page: 7, loaded: 20, ..Limits::default() };
    let (mut world, mut now, mut out) = (World::new(seed), Mono::ZERO, Vec::new());
    // Two machines over one store: what a node does that treats explicit revocations apart from due ones.
    let mut machines = [0, 1].map(|n| Machine::new(limits, Spread::new(seed + n)));
    let twins = if plant == Plant::NoSingleFlight { 2 } else { 1 };
    for machine in machines.iter_mut().take(twins) {
        machine.on(now, Event::Began { term: T }, &mut out);
    }
    for step in 0..30_000u64 {
        let quiet = step > 1500;
        let event = if !quiet && world.spread.below(60) == 0 {
            world.offline = !world.offline;
            Event::ExecutorBack { queue: 'a' }
        } else if !quiet && world.spread.below(25) == 0 {
            world.ask(now).unwrap_or(Event::Tick)
        } else if !world.pending.is_empty() && world.spread.below(4) > 0 {
            let nth = world.spread.below(world.pending.len() as u64) as usize;
            world.pending.swap_remove(nth)
        } else {
            Event::Tick
        };
        if quiet && world.offline {
            world.offline = false;
        }
        if let Event::Finished { id, .. } = &event {
            world.flights.entry(*id).and_modify(|flights| *flights -= 1);
        }
        let idle = world.pending.is_empty() && matches!(event, Event::Tick);
        let soon = machines.iter().take(twins).filter_map(Machine::next_deadline).min();
        now = now.after(Duration::from_millis(world.spread.below(20)));
        if let Some(at) = soon.filter(|_| idle) {
            now = now.max(at);
        }
        let target = if twins == 2 && matches!(event, Event::Asked { .. }) { 1 } else { 0 };
        machines[target].on(now, event, &mut out);
        for effect in std::mem::take(&mut out) {
            world.perform(now, effect, plant)?;
        }
        if world.index.is_empty() && world.pending.is_empty() {
            return if world.waiting.is_empty() { Ok(()) } else { Err("everyone who waits is told") };
        }
    }
    Err("every due lease is revoked in the end")
}

#[test]
fn leases_are_revoked_over_executors_and_a_store_that_fail() {
    for seed in crate::soak::seeds(100) {
        assert_eq!(run(seed, Plant::None), Ok(()), "seed {seed}");
    }
}

#[test]
fn wrong_queues_are_caught() {
    let caught = |plant, name| (0..100).any(|seed| run(seed, plant) == Err(name));
    assert!(caught(Plant::NoSingleFlight, "at most one revocation of a lease at a time"));
    assert!(caught(Plant::OfflineIsFailure, "what was not tried uses up no attempt"));
}

#[test]
fn a_hundred_thousand_leases_pass_through_a_small_window() {
    let mut machine = begun(Limits { loaded: 2000, ..Limits::default() });
    let mut left: BTreeSet<u32> = (0..100_000).collect();
    let (mut out, mut most) = (vec![Effect::Read { after: None, limit: 1000 }], 0);
    while let Some(effect) = out.pop() {
        match effect {
            Effect::Read { after, limit } => {
                let from = after.map_or(0, |(_, id)| id + 1);
                let ids: Vec<_> = left.range(from..).take(limit).copied().collect();
                let more = ids.last().is_some_and(|last| left.range(last + 1..).next().is_some());
                let leases = ids.into_iter().map(|id| due(id, 'a', 0)).collect();
                machine.on(ms(1), Event::Page { leases, more, next: None }, &mut out);
            }
            Effect::Start { id, .. } => machine.on(ms(1), finished(id, Attempt::Removed), &mut out),
            Effect::Delete { id, .. } => {
                left.remove(&id);
                machine.on(ms(1), stored(id), &mut out);
            }
            other => panic!("{other:?}"),
        }
        most = most.max(machine.loaded());
    }
    assert!(left.is_empty());
    assert!(most <= 2000, "{most}");
}
