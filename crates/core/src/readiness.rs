//! Whether a replica should get traffic: priming until its bindings have settled, ready, or draining.
//!
//! What must hold: ready once every binding of the first configuration has had an outcome, of whatever sort, and every
//! required one can be served; one backend that hangs holds a replica until the deadline only; what was ready stays so
//! until it drains, whatever fails or is added later.

use std::collections::BTreeMap;

use crate::Mono;

/// What `/v1/readyz` says.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Answer {
    /// Not yet: 503.
    Priming,
    /// Yes: 200.
    Ready,
    /// No more: 503.
    Draining,
}

impl Answer {
    /// Its name on the wire.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Priming => "priming",
            Self::Ready => "ready",
            Self::Draining => "draining",
        }
    }
}

/// What the shell tells a [`Readiness`]. `N` names a binding.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event<N> {
    /// A record of this binding is where the next read finds it.
    Published {
        /// Whose.
        name: N,
        /// Whether it has had an outcome.
        settled: bool,
        /// Whether a read of it is answered with a value.
        servable: bool,
    },
    /// Another configuration was applied: its bindings, and whether each matches `readiness.require`.
    Applied(BTreeMap<N, bool>),
    /// The replica goes down.
    Drain,
    /// Time passed.
    Tick,
}

/// What the shell must do, in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Answer probes so from now on.
    Answer(Answer),
    /// Tell every cell that the time to wait for a first outcome is over.
    SettleRest,
}

/// What is known of one binding while the replica primes.
#[derive(Clone, Copy, Debug, Default)]
struct Awaited {
    /// It belongs to the first configuration, so that its first outcome is waited for.
    first: bool,
    required: bool,
    settled: bool,
    servable: bool,
}

impl Awaited {
    const fn is_open(self) -> bool {
        (self.first && !self.settled) || (self.required && !self.servable)
    }
}

/// The readiness of one replica.
#[derive(Clone, Debug)]
pub struct Readiness<N> {
    answer: Answer,
    /// When what has not settled is settled; none once that was done or is not needed.
    deadline: Option<Mono>,
    /// Empty once ready: nothing is waited for any more.
    awaited: BTreeMap<N, Awaited>,
    /// How many of them hold the replica back.
    open: usize,
}

impl<N: Ord + Clone> Readiness<N> {
    /// A replica that starts with these bindings; each with whether it matches `readiness.require`. `deadline` is its
    /// start and `readiness.priming_deadline`. Without bindings it is ready at once.
    pub fn new(deadline: Mono, first: impl IntoIterator<Item = (N, bool)>) -> Self {
        let awaited: BTreeMap<_, _> = first
            .into_iter()
            .map(|(name, required)| (name, Awaited { first: true, required, ..Awaited::default() }))
            .collect();
        let open = awaited.len();
        let answer = if open == 0 { Answer::Ready } else { Answer::Priming };
        Self { answer, deadline: (open > 0).then_some(deadline), awaited, open }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event<N>, out: &mut Vec<Effect>) {
        match event {
            Event::Published { name, settled, servable } => self.published(&name, settled, servable),
            Event::Applied(bindings) => self.applied(bindings),
            Event::Drain => self.answer_is(Answer::Draining, out),
            Event::Tick => {}
        }
        if self.answer != Answer::Priming {
            return;
        }
        if self.open == 0 {
            self.answer_is(Answer::Ready, out);
        } else if self.deadline.take_if(|at| *at <= now).is_some() {
            out.push(Effect::SettleRest);
        }
    }

    /// When [`Event::Tick`] is due.
    pub const fn next_deadline(&self) -> Option<Mono> {
        self.deadline
    }

    /// What probes are answered.
    pub const fn answer(&self) -> Answer {
        self.answer
    }

    /// Which bindings hold the replica back.
    pub fn open(&self) -> impl Iterator<Item = &N> {
        self.awaited.iter().filter(|(_, awaited)| awaited.is_open()).map(|(name, _)| name)
    }

    fn published(&mut self, name: &N, settled: bool, servable: bool) {
        let Some(awaited) = self.awaited.get_mut(name) else { return };
        let before = awaited.is_open();
        // Settled once is settled; servable can be lost again.
        *awaited = Awaited { settled: awaited.settled || settled, servable, ..*awaited };
        match (before, awaited.is_open()) {
            (true, false) => self.open = self.open.saturating_sub(1),
            (false, true) => self.open = self.open.saturating_add(1),
            _ => {}
        }
    }

    fn applied(&mut self, bindings: BTreeMap<N, bool>) {
        if self.answer != Answer::Priming {
            return;
        }
        let before = std::mem::take(&mut self.awaited);
        self.awaited = bindings
            .into_iter()
            .map(|(name, required)| {
                let known = before.get(&name).copied().unwrap_or_default();
                (name, Awaited { required, ..known })
            })
            .collect();
        self.open = self.open().count();
    }

    fn answer_is(&mut self, answer: Answer, out: &mut Vec<Effect>) {
        if self.answer != answer {
            (self.answer, self.deadline, self.open) = (answer, None, 0);
            self.awaited.clear();
            out.push(Effect::Answer(answer));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    type Machine = Readiness<&'static str>;

    fn ms(n: u64) -> Mono {
        Mono::from_millis(n)
    }

    fn machine(first: &[(&'static str, bool)]) -> Machine {
        Readiness::new(Mono::ZERO.after(Duration::from_secs(60)), first.iter().copied())
    }

    fn feed(machine: &mut Machine, at: u64, event: Event<&'static str>) -> Vec<Effect> {
        let mut out = Vec::new();
        machine.on(ms(at), event, &mut out);
        out
    }

    fn value(name: &'static str) -> Event<&'static str> {
        Event::Published { name, settled: true, servable: true }
    }

    fn failed(name: &'static str) -> Event<&'static str> {
        Event::Published { name, settled: true, servable: false }
    }

    #[test]
    fn ready_with_the_last_outcome_of_whatever_sort() {
        let mut machine = machine(&[("a", false), ("b", false)]);
        assert_eq!(machine.answer().label(), "priming");
        assert_eq!(feed(&mut machine, 1, failed("a")), []);
        assert_eq!(machine.open().collect::<Vec<_>>(), [&"b"]);
        assert_eq!(feed(&mut machine, 2, value("b")), [Effect::Answer(Answer::Ready)]);
        assert_eq!((machine.answer().label(), machine.next_deadline()), ("ready", None));
    }

    #[test]
    fn what_was_published_without_an_outcome_settles_nothing() {
        let mut machine = machine(&[("a", false)]);
        let unsettled = Event::Published { name: "a", settled: false, servable: false };
        assert_eq!(feed(&mut machine, 1, unsettled), []);
        assert_eq!(machine.answer(), Answer::Priming);
    }

    #[test]
    fn without_bindings_it_is_ready_at_once() {
        let machine = machine(&[]);
        assert_eq!((machine.answer(), machine.next_deadline()), (Answer::Ready, None));
    }

    #[test]
    fn the_deadline_asks_once_to_settle_the_rest() {
        let mut machine = machine(&[("a", false), ("b", false)]);
        assert_eq!(machine.next_deadline(), Some(ms(60_000)));
        assert_eq!(feed(&mut machine, 100, value("a")), []);
        assert_eq!(feed(&mut machine, 59_999, Event::Tick), []);
        assert_eq!(feed(&mut machine, 60_000, Event::Tick), [Effect::SettleRest]);
        assert_eq!(feed(&mut machine, 60_001, Event::Tick), []);
        assert_eq!(machine.next_deadline(), None);
        assert_eq!(feed(&mut machine, 60_002, failed("b")), [Effect::Answer(Answer::Ready)]);
    }

    #[test]
    fn the_deadline_does_not_stand_in_for_a_required_value() {
        let mut machine = machine(&[("a", true)]);
        assert_eq!(feed(&mut machine, 60_000, Event::Tick), [Effect::SettleRest]);
        assert_eq!(feed(&mut machine, 60_001, failed("a")), []);
        assert_eq!(feed(&mut machine, 600_000, value("a")), [Effect::Answer(Answer::Ready)]);
    }

    #[test]
    fn a_required_value_that_is_lost_while_priming_is_waited_for_again() {
        let mut machine = machine(&[("a", true), ("b", false)]);
        assert_eq!(feed(&mut machine, 1, value("a")), []);
        assert_eq!(feed(&mut machine, 2, failed("a")), []);
        assert_eq!(feed(&mut machine, 3, value("b")), []);
        assert_eq!(feed(&mut machine, 4, value("a")), [Effect::Answer(Answer::Ready)]);
    }

    #[test]
    fn nothing_later_takes_it_back_but_draining() {
        let mut machine = machine(&[("a", true)]);
        feed(&mut machine, 1, value("a"));
        assert_eq!(feed(&mut machine, 2, failed("a")), []);
        assert_eq!(feed(&mut machine, 3, Event::Applied([("a", true), ("new", true)].into())), []);
        assert_eq!(machine.answer(), Answer::Ready);
        assert_eq!(feed(&mut machine, 4, Event::Drain), [Effect::Answer(Answer::Draining)]);
        assert_eq!(feed(&mut machine, 5, Event::Drain), []);
        assert_eq!(feed(&mut machine, 6, value("a")), []);
        assert_eq!(machine.answer().label(), "draining");
    }

    #[test]
    fn draining_wins_over_priming() {
        let mut machine = machine(&[("a", false)]);
        assert_eq!(feed(&mut machine, 1, Event::Drain), [Effect::Answer(Answer::Draining)]);
        assert_eq!(feed(&mut machine, 2, value("a")), []);
        assert_eq!(feed(&mut machine, 90_000, Event::Tick), []);
    }

    #[test]
    fn a_reload_while_priming_frees_what_it_removes_and_waits_for_added_ones_only_if_required() {
        let mut machine = machine(&[("a", false), ("gone", false)]);
        assert_eq!(feed(&mut machine, 1, value("a")), []);
        let added = [("a", false), ("gone", false), ("required", true), ("plain", false)];
        assert_eq!(feed(&mut machine, 2, Event::Applied(added.into())), []);
        assert_eq!(machine.open().collect::<Vec<_>>(), [&"gone", &"required"]);
        let fewer = [("a", false), ("required", true), ("plain", false)];
        assert_eq!(feed(&mut machine, 3, Event::Applied(fewer.into())), []);
        assert_eq!(feed(&mut machine, 4, value("required")), [Effect::Answer(Answer::Ready)]);
    }
}
