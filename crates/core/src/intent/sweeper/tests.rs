use super::*;

const T: Term = Term::new(4);

type Machine = Sweeper<u8>;

fn ms(n: u64) -> Mono {
    Mono::from_millis(n)
}

fn key(n: u128) -> Key {
    Key::new(n)
}

fn known(n: u128, state: State, due: u64) -> Event<u8> {
    Event::Known { key: key(n), state, due: ms(due), opened: ms(0), executor: 1 }
}

fn written(n: u128, state: State, written: Written) -> Event<u8> {
    let to = match state {
        State::Open => Next::State(State::Sweep),
        State::Sweep => Next::State(State::Verify),
        State::Verify => Next::Nothing,
    };
    Event::Written { batch: Batch::new(key(n), T, Some(state), to), written }
}

fn removed(n: u128, gone: bool) -> Event<u8> {
    Event::Removed { key: key(n), term: T, gone }
}

fn write(n: u128, from: State, to: Next) -> Effect {
    Effect::Write(Batch::new(key(n), T, Some(from), to))
}

fn feed(machine: &mut Machine, steps: &[(u64, Event<u8>)]) -> Vec<Effect> {
    let mut out = Vec::new();
    for (at, event) in steps {
        machine.on(ms(*at), event.clone(), &mut out);
    }
    out
}

/// Without the reload, which would stand in every list of effects.
fn limits() -> Limits {
    Limits { reload_every: Duration::MAX, ..Limits::default() }
}

fn begun(limits: Limits) -> Machine {
    let mut machine = Machine::new(limits, Spread::new(1));
    assert_eq!(feed(&mut machine, &[(0, Event::Began { term: T })]), [Effect::Load(T)]);
    machine
}

#[test]
fn an_intent_is_marked_removed_verified_and_dropped() {
    let mut machine = begun(limits());
    assert_eq!(feed(&mut machine, &[(0, known(1, State::Open, 100)), (99, Event::Tick)]), []);
    assert_eq!(machine.next_deadline(), Some(ms(100)));
    let out = feed(&mut machine, &[(100, Event::Tick), (101, written(1, State::Open, Written::Applied))]);
    assert_eq!(out, [write(1, State::Open, Next::State(State::Sweep)), Effect::Remove(key(1), T)]);
    let out =
        feed(&mut machine, &[(102, removed(1, true)), (103, written(1, State::Sweep, Written::Applied))]);
    assert_eq!(out, [write(1, State::Sweep, Next::State(State::Verify))]);
    assert_eq!(machine.counts(), [0, 0, 1]);
    let out = feed(&mut machine, &[(60_102, Event::Tick), (60_103, Event::Tick), (60_104, removed(1, true))]);
    assert_eq!(out, [Effect::Remove(key(1), T), write(1, State::Verify, Next::Nothing)]);
    assert_eq!(feed(&mut machine, &[(60_105, written(1, State::Verify, Written::Applied))]), []);
    assert_eq!((machine.counts(), machine.next_deadline()), ([0, 0, 0], None));
}

#[test]
fn a_mark_that_did_not_apply_is_read_again_before_anything_else() {
    for outcome in [Written::Refused, Written::Unknown] {
        let mut machine = begun(limits());
        let out = feed(&mut machine, &[(0, known(1, State::Open, 0)), (1, written(1, State::Open, outcome))]);
        assert_eq!(out, [write(1, State::Open, Next::State(State::Sweep)), Effect::Reread(key(1))]);
        let out = feed(&mut machine, &[(2, known(1, State::Sweep, 0))]);
        assert_eq!(out, [Effect::Remove(key(1), T)]);
    }
    let mut machine = begun(limits());
    feed(&mut machine, &[(0, known(1, State::Open, 0)), (1, written(1, State::Open, Written::Refused))]);
    let out = feed(&mut machine, &[(5000, Event::Tick)]);
    assert_eq!(out, [Effect::Reread(key(1))]);
    assert_eq!(feed(&mut machine, &[(5001, Event::Gone { key: key(1) }), (90_000, Event::Tick)]), []);
}

#[test]
fn a_removal_that_fails_backs_off_and_an_executor_that_returns_is_tried_at_once() {
    let mut machine = begun(limits());
    feed(&mut machine, &[(0, known(1, State::Sweep, 0))]);
    let mut at = 0;
    for pause in [1u64, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(feed(&mut machine, &[(at, removed(1, false))]), []);
        let next = machine.next_deadline().expect("a retry").since(ms(at)).as_millis() as u64 + 1;
        assert!((pause * 800..=(pause * 1200).min(60_000) + 1).contains(&next), "{pause} {next}");
        at += next;
        assert_eq!(feed(&mut machine, &[(at, Event::Tick)]), [Effect::Remove(key(1), T)]);
    }
    feed(&mut machine, &[(at, removed(1, false))]);
    let out = feed(&mut machine, &[(at + 1, Event::ExecutorBack { executor: 2 })]);
    assert_eq!(out, []);
    let out = feed(&mut machine, &[(at + 2, Event::ExecutorBack { executor: 1 })]);
    assert_eq!(out, [Effect::Remove(key(1), T)]);
    assert_eq!(feed(&mut machine, &[(at + 3, Event::ExecutorBack { executor: 1 })]), []);
    assert_eq!(machine.running(), 1);
}

#[test]
fn the_store_is_read_again_each_minute() {
    let mut machine = begun(Limits::default());
    assert_eq!(machine.next_deadline(), Some(ms(60_000)));
    assert_eq!(feed(&mut machine, &[(59_999, Event::Tick), (60_000, Event::Tick)]), [Effect::Load(T)]);
    assert_eq!(feed(&mut machine, &[(60_001, Event::Ended)]), []);
    assert_eq!(machine.next_deadline(), None);
}

#[test]
fn at_most_sixteen_at_once() {
    let mut machine = begun(limits());
    let steps: Vec<_> = (0..20).map(|n| (0, known(n, State::Sweep, 0))).collect();
    assert_eq!(feed(&mut machine, &steps).len(), 16);
    assert_eq!(machine.next_deadline(), Some(ms(3_600_000)));
    let out = feed(&mut machine, &[(1, removed(0, true)), (2, written(0, State::Sweep, Written::Applied))]);
    assert_eq!(out, [write(0, State::Sweep, Next::State(State::Verify)), Effect::Remove(key(16), T)]);
}

#[test]
fn an_old_intent_is_reported_once_an_hour() {
    let mut machine = begun(limits());
    feed(&mut machine, &[(0, known(1, State::Sweep, 0))]);
    let hour = Duration::from_secs(3600);
    let steps = [(3_599_999, Event::Tick), (3_600_000, Event::Tick), (3_600_001, Event::Tick)];
    assert_eq!(feed(&mut machine, &steps), [Effect::ReportOld(key(1), hour)]);
    assert_eq!(feed(&mut machine, &[(7_200_000, Event::Tick)]), [Effect::ReportOld(key(1), hour * 2)]);
}

#[test]
fn what_an_older_term_started_says_nothing() {
    let mut machine = begun(limits());
    feed(&mut machine, &[(0, known(1, State::Sweep, 0)), (1, Event::Ended)]);
    assert_eq!(feed(&mut machine, &[(2, removed(1, true)), (3, known(1, State::Sweep, 0))]), []);
    let next = T.next();
    let out = feed(&mut machine, &[(4, Event::Began { term: next }), (5, known(1, State::Sweep, 0))]);
    assert_eq!(out, [Effect::Load(next), Effect::Remove(key(1), next)]);
    assert_eq!(feed(&mut machine, &[(6, removed(1, true))]), []);
}

#[test]
fn a_creation_brings_its_intent_forward() {
    let mut machine = begun(limits());
    feed(&mut machine, &[(0, known(1, State::Open, 35_000))]);
    let out = feed(&mut machine, &[(10, known(1, State::Open, 10))]);
    assert_eq!(out, [write(1, State::Open, Next::State(State::Sweep))]);
}

/// A store and a database for the sweeper alone. `marks` is false in the planted variant: the shell pretends that
/// the mark was written.
struct World {
    spread: Spread,
    records: BTreeMap<Key, State>,
    marks: bool,
    verified: BTreeMap<Key, Mono>,
    removed: BTreeMap<Key, Mono>,
    pending: Vec<Event<u8>>,
    running: usize,
}

impl World {
    fn apply(&mut self, now: Mono, effect: Effect) -> Result<(), &'static str> {
        match effect {
            Effect::Write(batch) => {
                let waited = self.removed.get(&batch.key).map(|at| at.since(self.verified[&batch.key]));
                if batch.to == Next::Nothing && waited < Some(Duration::from_secs(60)) {
                    return Err("a record goes only after a removal a minute after its mark");
                }
                self.write(now, batch);
            }
            Effect::Remove(key, term) => {
                if matches!(self.records.get(&key), Some(State::Open) | None) {
                    return Err("no user is removed before its intent is marked");
                }
                let gone = self.spread.below(3) > 0;
                if gone {
                    self.removed.insert(key, now);
                }
                self.pending.push(Event::Removed { key, term, gone });
            }
            Effect::Reread(key) => self.pending.push(match self.records.get(&key) {
                Some(state) => Event::Known { key, state: *state, due: now, opened: Mono::ZERO, executor: 1 },
                None => Event::Gone { key },
            }),
            Effect::Load(_) | Effect::ReportOld(..) => {}
        }
        Ok(())
    }

    fn write(&mut self, now: Mono, batch: Batch) {
        let Batch { key, from, to, .. } = batch;
        let luck = self.spread.below(6);
        let holds = self.records.get(&key).copied() == from && luck != 0;
        let real = self.marks || to != Next::State(State::Sweep);
        match to {
            Next::State(state) if holds && real => {
                self.records.insert(key, state);
                self.verified.insert(key, now);
            }
            Next::Nothing if holds => {
                self.records.remove(&key);
            }
            _ => {}
        }
        let written = match (holds, luck) {
            (_, 0 | 1) => Written::Unknown,
            (true, _) => Written::Applied,
            (false, _) => Written::Refused,
        };
        self.pending.push(Event::Written { batch, written });
    }
}

fn run(seed: u64, limits: Limits, marks: bool) -> Result<(), &'static str> {
    let mut machine = begun(limits);
    let mut world = World {
        spread: Spread::new(seed),
        records: (0..24).map(|n| (key(n), State::Open)).collect(),
        marks,
        verified: BTreeMap::new(),
        removed: BTreeMap::new(),
        pending: (0..24).map(|n| known(n, State::Open, 0)).collect(),
        running: 0,
    };
    let mut now = Mono::ZERO;
    for _ in 0..4000 {
        let idle = world.pending.is_empty();
        let event = if idle {
            now = now.max(machine.next_deadline().unwrap_or(now));
            Event::Tick
        } else {
            let index = world.spread.below(world.pending.len() as u64) as usize;
            world.pending.swap_remove(index)
        };
        now = now.after(Duration::from_millis(world.spread.below(50)));
        let mut out = Vec::new();
        machine.on(now, event, &mut out);
        for effect in out {
            world.apply(now, effect)?;
        }
        world.running = world.running.max(machine.running());
        if world.running > 16 {
            return Err("sixteen at once");
        }
        if world.records.is_empty() && world.pending.is_empty() {
            return Ok(());
        }
    }
    Err("every intent is removed in the end")
}

#[test]
fn every_intent_goes_its_way_over_a_store_and_a_database_that_fail() {
    for seed in crate::soak::seeds(100) {
        assert_eq!(run(seed, limits(), true), Ok(()), "seed {seed}");
    }
}

#[test]
fn wrong_sweepers_are_caught() {
    let hasty = Limits { verify_after: Duration::ZERO, ..limits() };
    let greedy = Limits { at_once: 20, ..limits() };
    assert!((0..100).any(|seed| run(seed, hasty, true).is_err()));
    assert!((0..100).any(|seed| run(seed, greedy, true).is_err()));
    assert!((0..100).any(|seed| run(seed, limits(), false).is_err()));
}
