//! Handing a term over on request, without a transfer in the consensus library.
//!
//! Stop writes; wait a little until the most caught-up voter holds the last entry; stop heartbeats; once the
//! followers' lease on us has run out, tell that voter to stand; then stay out of elections for a while, unless no
//! other voter answers. What must hold: whoever asked is answered within [`Timing::answer_within`], whatever the
//! others do, and a node that nobody relieved takes up its work again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{LogIndex, MemberId, Mono, Term};

/// The times of a [`StepDown`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The longest wait for a voter to hold the last entry; 200 ms.
    pub catch_up: Duration,
    /// How long a follower refuses to vote after it heard our last heartbeat: the library's leader lease, half of
    /// the election maximum, so 400 ms at default settings.
    pub follower_lease: Duration,
    /// The pause between two requests to stand; 50 ms. Also what the lease is lengthened by at first, because
    /// the last heartbeat takes time to arrive: a tenth of it.
    pub ask_every: Duration,
    /// After how many requests the next voter is asked instead; 4.
    pub asks_per_voter: u32,
    /// When the one who asked is answered at the latest; 1.8 s, inside the 2 s that are promised.
    pub answer_within: Duration,
    /// How long this node stays out of elections, from the request on; 10 s.
    pub stay_out: Duration,
    /// How long a voter may be silent before it counts as not answering; 1 s.
    pub silence: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            catch_up: Duration::from_millis(200),
            follower_lease: Duration::from_millis(400),
            ask_every: Duration::from_millis(50),
            asks_per_voter: 4,
            answer_within: Duration::from_millis(1800),
            stay_out: Duration::from_secs(10),
            silence: Duration::from_secs(1),
        }
    }
}

/// What the shell tells a [`StepDown`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// An operator, a signal or a broken store asks this node, which leads in `term`, to step down.
    Asked {
        /// The term to hand over.
        term: Term,
        /// The last entry of our log.
        last: LogIndex,
        /// What every *other* voter is known to hold.
        matched: BTreeMap<MemberId, LogIndex>,
    },
    /// Entries that were under way when the writes stopped moved the end of our log.
    LogEnds {
        /// The last entry of our log.
        last: LogIndex,
    },
    /// A voter holds every entry up to `index`.
    Matched {
        /// The voter.
        member: MemberId,
        /// Its highest matching entry.
        index: LogIndex,
    },
    /// Another voter answered a ping.
    Answered,
    /// A term above ours has a leader, or at least a candidate that a quorum follows.
    Relieved {
        /// The newer term.
        term: Term,
    },
    /// Time passed.
    Tick,
}

/// How a step-down ended, for the one who asked.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Outcome {
    /// Another node leads.
    Relieved,
    /// There is no other voter.
    Alone,
    /// Nobody took over in time.
    NobodyTookOver,
}

/// What the shell must do, in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Close the gate of this term (`StepDownBegan` of the gate); hold requests, do not refuse them.
    StopWrites(Term),
    /// Do not stand for election (`Veto::SteppedDown`) until [`Effect::MayStand`].
    StayOut,
    /// Send no more heartbeats.
    StopHeartbeats(Term),
    /// Tell this voter to stand at once, without its random timeout, if `Term` is still the newest it knows.
    AskToStand(MemberId, Term),
    /// Answer everyone who asked.
    Answer(Outcome),
    /// Nobody relieved us: send heartbeats again.
    ResumeHeartbeats(Term),
    /// Nobody relieved us: the step-down of this term ended (`StepDownEnded` of the gate).
    ResumeWrites(Term),
    /// The node may stand again.
    MayStand,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Idle,
    CatchingUp,
    /// Heartbeats are off; the next request to stand goes out at `ask`.
    Quiet {
        ask: Mono,
        asked: u32,
    },
    /// Another node leads; we stay out of elections.
    Relieved,
}

/// The step-down of one node.
#[derive(Clone, Debug)]
pub struct StepDown {
    timing: Timing,
    phase: Phase,
    term: Term,
    last: LogIndex,
    matched: BTreeMap<MemberId, LogIndex>,
    begun: Mono,
    heard: Mono,
    answered: Option<Outcome>,
}

impl StepDown {
    /// Nothing asked yet.
    pub const fn new(timing: Timing) -> Self {
        Self {
            timing,
            phase: Phase::Idle,
            term: Term::new(0),
            last: LogIndex::new(0),
            matched: BTreeMap::new(),
            begun: Mono::ZERO,
            heard: Mono::ZERO,
            answered: None,
        }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Asked { term, last, matched } => self.asked(now, term, last, matched, out),
            Event::LogEnds { last } => self.last = self.last.max(last),
            Event::Matched { member, index } => {
                if let Some(held) = self.matched.get_mut(&member) {
                    *held = (*held).max(index);
                }
            }
            Event::Answered => self.heard = self.heard.max(now),
            Event::Relieved { term } => self.relieved(term, out),
            Event::Tick => {}
        }
        self.proceed(now, out);
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Mono> {
        let staying = self.begun.after(self.timing.stay_out).min(self.heard.after(self.timing.silence));
        let answer = self.begun.after(self.timing.answer_within);
        match self.phase {
            Phase::Idle => None,
            Phase::CatchingUp => Some(self.begun.after(self.timing.catch_up)),
            Phase::Quiet { ask, .. } if self.answered.is_none() => Some(ask.min(staying).min(answer)),
            Phase::Quiet { ask, .. } => Some(ask.min(staying)),
            Phase::Relieved => Some(staying),
        }
    }

    /// Whether this node stays out of elections because of a step-down.
    pub fn stays_out(&self) -> bool {
        matches!(self.phase, Phase::Quiet { .. } | Phase::Relieved)
    }

    fn asked(
        &mut self,
        now: Mono,
        term: Term,
        last: LogIndex,
        matched: BTreeMap<MemberId, LogIndex>,
        out: &mut Vec<Effect>,
    ) {
        let running = self.phase != Phase::Idle && term <= self.term;
        if running {
            // A second one who asks gets the answer of the step-down that runs, or ran.
            out.extend(self.answered.map(Effect::Answer));
            return;
        }
        if matched.is_empty() {
            out.push(Effect::Answer(Outcome::Alone));
            return;
        }
        if self.stays_out() {
            out.push(Effect::MayStand);
        }
        (self.term, self.last, self.matched) = (term, last, matched);
        (self.begun, self.heard, self.answered) = (now, now, None);
        self.phase = Phase::CatchingUp;
        out.push(Effect::StopWrites(term));
    }

    fn relieved(&mut self, term: Term, out: &mut Vec<Effect>) {
        if term <= self.term {
            return;
        }
        match self.phase {
            Phase::CatchingUp => out.push(Effect::StayOut),
            Phase::Quiet { .. } => {}
            Phase::Idle | Phase::Relieved => return,
        }
        self.phase = Phase::Relieved;
        self.answer(Outcome::Relieved, out);
    }

    fn proceed(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self.phase == Phase::CatchingUp {
            self.quieten(now, out);
        }
        if let Phase::Quiet { ask, asked } = self.phase {
            self.ask(now, ask, asked, out);
        }
        if self.stays_out() {
            self.come_back(now, out);
        }
    }

    fn quieten(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let caught_up = self.matched.values().any(|held| *held >= self.last);
        if !caught_up && now < self.begun.after(self.timing.catch_up) {
            return;
        }
        let lease = self.timing.follower_lease + self.timing.ask_every / 10;
        self.phase = Phase::Quiet { ask: now.after(lease), asked: 0 };
        out.extend([Effect::StayOut, Effect::StopHeartbeats(self.term)]);
    }

    fn ask(&mut self, now: Mono, ask: Mono, asked: u32, out: &mut Vec<Effect>) {
        if now >= ask {
            out.extend(self.successor(asked).map(|member| Effect::AskToStand(member, self.term)));
            self.phase =
                Phase::Quiet { ask: now.after(self.timing.ask_every), asked: asked.saturating_add(1) };
        }
        if now >= self.begun.after(self.timing.answer_within) {
            self.answer(Outcome::NobodyTookOver, out);
        }
    }

    /// The most caught-up voter first; after some requests in vain the next one, round and round.
    fn successor(&self, asked: u32) -> Option<MemberId> {
        let mut voters: Vec<_> = self.matched.iter().map(|(member, held)| (*held, *member)).collect();
        voters.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let turn = usize::try_from(asked / self.timing.asks_per_voter.max(1)).unwrap_or(0);
        voters.get(turn % voters.len().max(1)).map(|(_, member)| *member)
    }

    fn come_back(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let over = now >= self.begun.after(self.timing.stay_out);
        let nobody = now >= self.heard.after(self.timing.silence);
        if !over && !nobody {
            return;
        }
        if matches!(self.phase, Phase::Quiet { .. }) {
            self.answer(Outcome::NobodyTookOver, out);
            out.extend([Effect::ResumeHeartbeats(self.term), Effect::ResumeWrites(self.term)]);
        }
        self.phase = Phase::Idle;
        out.push(Effect::MayStand);
    }

    fn answer(&mut self, outcome: Outcome, out: &mut Vec<Effect>) {
        if self.answered.is_none() {
            self.answered = Some(outcome);
            out.push(Effect::Answer(outcome));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Spread;

    const T: Term = Term::new(3);
    const B: MemberId = MemberId::new(2);
    const C: MemberId = MemberId::new(3);

    fn ms(n: u64) -> Mono {
        Mono::from_millis(n)
    }

    fn asked(last: u64, b: u64, c: u64) -> Event {
        let matched = [(B, LogIndex::new(b)), (C, LogIndex::new(c))].into();
        Event::Asked { term: T, last: LogIndex::new(last), matched }
    }

    fn feed(machine: &mut StepDown, steps: &[(u64, Event)]) -> Vec<Effect> {
        let mut out = Vec::new();
        for (at, event) in steps {
            machine.on(ms(*at), event.clone(), &mut out);
        }
        out
    }

    /// Ticks at every deadline until `end`, as a shell would, with a voter that answers until `answers_until`.
    fn play(machine: &mut StepDown, end: u64, answers_until: u64) -> Vec<(u64, Effect)> {
        let (mut seen, mut at) = (Vec::new(), 0);
        while at <= end {
            let mut out = Vec::new();
            if at % 100 == 0 && at <= answers_until {
                machine.on(ms(at), Event::Answered, &mut out);
            }
            if machine.next_deadline().is_some_and(|deadline| deadline <= ms(at)) {
                machine.on(ms(at), Event::Tick, &mut out);
            }
            seen.extend(out.into_iter().map(|effect| (at, effect)));
            at += 5;
        }
        seen
    }

    #[test]
    fn a_voter_that_holds_everything_is_asked_when_the_lease_lets_it() {
        let mut machine = StepDown::new(Timing::default());
        let out = feed(&mut machine, &[(0, asked(9, 7, 8))]);
        assert_eq!(out, [Effect::StopWrites(T)]);
        let out = feed(&mut machine, &[(20, Event::Matched { member: C, index: LogIndex::new(9) })]);
        assert_eq!(out, [Effect::StayOut, Effect::StopHeartbeats(T)]);
        assert_eq!(machine.next_deadline(), Some(ms(425)));
        assert_eq!(
            feed(&mut machine, &[(424, Event::Answered), (425, Event::Tick)]),
            [Effect::AskToStand(C, T)]
        );
        let out = feed(&mut machine, &[(440, Event::Relieved { term: T.next() })]);
        assert_eq!(out, [Effect::Answer(Outcome::Relieved)]);
        assert!(machine.stays_out());
    }

    #[test]
    fn entries_under_way_move_the_mark() {
        let mut machine = StepDown::new(Timing::default());
        let out = feed(&mut machine, &[(0, asked(9, 8, 8)), (1, Event::LogEnds { last: LogIndex::new(10) })]);
        assert_eq!(out, [Effect::StopWrites(T)]);
        let matched = |index| Event::Matched { member: B, index: LogIndex::new(index) };
        assert_eq!(feed(&mut machine, &[(2, matched(9))]), []);
        assert_eq!(feed(&mut machine, &[(3, matched(10))]).len(), 2);
    }

    #[test]
    fn the_wait_for_a_slow_voter_is_bounded() {
        let mut machine = StepDown::new(Timing::default());
        feed(&mut machine, &[(0, asked(9, 7, 8))]);
        let out = feed(&mut machine, &[(199, Event::Tick), (200, Event::Tick)]);
        assert_eq!(out, [Effect::StayOut, Effect::StopHeartbeats(T)]);
    }

    #[test]
    fn alone_is_answered_at_once_and_nothing_stops() {
        let mut machine = StepDown::new(Timing::default());
        let event = Event::Asked { term: T, last: LogIndex::new(4), matched: BTreeMap::new() };
        assert_eq!(feed(&mut machine, &[(0, event)]), [Effect::Answer(Outcome::Alone)]);
        assert_eq!(machine.next_deadline(), None);
    }

    #[test]
    fn without_any_voter_the_node_resumes_and_says_so() {
        let mut machine = StepDown::new(Timing::default());
        feed(&mut machine, &[(0, asked(9, 9, 9))]);
        let seen = play(&mut machine, 3000, 0);
        let tail: Vec<_> = seen.iter().rev().take(4).rev().copied().collect();
        assert_eq!(
            tail,
            [
                (1000, Effect::Answer(Outcome::NobodyTookOver)),
                (1000, Effect::ResumeHeartbeats(T)),
                (1000, Effect::ResumeWrites(T)),
                (1000, Effect::MayStand),
            ]
        );
        assert!(!machine.stays_out());
    }

    #[test]
    fn while_voters_answer_the_node_stays_out_ten_seconds_and_asks_in_turn() {
        let mut machine = StepDown::new(Timing::default());
        feed(&mut machine, &[(0, asked(9, 9, 8))]);
        let seen = play(&mut machine, 11_000, 11_000);
        let asks: Vec<_> = seen
            .iter()
            .filter_map(|(_, effect)| match effect {
                Effect::AskToStand(member, _) => Some(*member),
                _ => None,
            })
            .take(8)
            .collect();
        assert_eq!(asks, [B, B, B, B, C, C, C, C]);
        assert!(seen.contains(&(1800, Effect::Answer(Outcome::NobodyTookOver))));
        assert_eq!(seen.last(), Some(&(10_000, Effect::MayStand)));
    }

    #[test]
    fn the_second_who_asks_shares_the_answer() {
        let mut machine = StepDown::new(Timing::default());
        feed(&mut machine, &[(0, asked(9, 9, 9))]);
        assert_eq!(feed(&mut machine, &[(5, asked(9, 9, 9))]), []);
        let out = feed(&mut machine, &[(6, Event::Relieved { term: T.next() }), (7, asked(9, 9, 9))]);
        assert_eq!(out, [Effect::Answer(Outcome::Relieved), Effect::Answer(Outcome::Relieved)]);
    }

    /// Named invariants: an answer within the promised time; heartbeats and writes come back unless relieved; the
    /// right to stand comes back; nobody is asked to stand inside the lease.
    fn run(seed: u64, timing: Timing) -> Result<(), &'static str> {
        let mut spread = Spread::new(seed);
        let mut machine = StepDown::new(timing);
        let relief = (spread.below(2) == 0).then(|| spread.below(4000));
        let silent_from = spread.below(12_000);
        let mut out = Vec::new();
        machine.on(ms(0), asked(9, spread.below(10), spread.below(10)), &mut out);
        let (mut relieved, mut effects) = (false, Vec::new());
        for at in 0..13_000 {
            if at < silent_from && spread.below(150) == 0 {
                machine.on(ms(at), Event::Answered, &mut out);
            }
            if spread.below(100) == 0 {
                machine.on(
                    ms(at),
                    Event::Matched { member: C, index: LogIndex::new(spread.below(10)) },
                    &mut out,
                );
            }
            if relief == Some(at) {
                machine.on(ms(at), Event::Relieved { term: T.next() }, &mut out);
                relieved = true;
            }
            if machine.next_deadline().is_some_and(|deadline| deadline <= ms(at)) {
                machine.on(ms(at), Event::Tick, &mut out);
            }
            effects.extend(out.drain(..).map(|effect| (at, effect, relieved)));
        }
        let when = |wanted: &dyn Fn(&Effect) -> bool| {
            effects.iter().find(|(_, e, _)| wanted(e)).map(|(at, _, _)| *at)
        };
        let answers = effects.iter().filter(|(_, e, _)| matches!(e, Effect::Answer(_))).count();
        if answers != 1 || when(&|e| matches!(e, Effect::Answer(_))).is_none_or(|at| at > 2000) {
            return Err("answered once and within two seconds");
        }
        let quiet = when(&|e| matches!(e, Effect::StopHeartbeats(_))).unwrap_or(u64::MAX);
        if when(&|e| matches!(e, Effect::AskToStand(..))).is_some_and(|at| at < quiet.saturating_add(400)) {
            return Err("nobody is asked to stand inside the lease");
        }
        let resumed = effects.iter().any(|(_, e, after)| matches!(e, Effect::ResumeHeartbeats(_)) && !after);
        let taken_over = effects.iter().any(|(_, e, _)| *e == Effect::Answer(Outcome::Relieved));
        if quiet != u64::MAX && !relieved && !resumed && !taken_over {
            return Err("a node that nobody relieved resumes");
        }
        if machine.stays_out() || when(&|e| *e == Effect::MayStand).is_none() {
            return Err("the right to stand comes back");
        }
        Ok(())
    }

    #[test]
    fn the_promises_hold_whatever_the_others_do() {
        for seed in crate::soak::seeds(150) {
            assert_eq!(run(seed, Timing::default()), Ok(()), "seed {seed}");
        }
    }

    #[test]
    fn wrong_times_are_caught() {
        let impatient = Timing { follower_lease: Duration::ZERO, ..Timing::default() };
        let late = Timing { answer_within: Duration::from_secs(5), ..Timing::default() };
        assert!((0..150).any(|seed| run(seed, impatient).is_err()));
        assert!((0..150).any(|seed| run(seed, late).is_err()));
    }
}
