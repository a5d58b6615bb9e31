//! Going down in named phases.
//!
//! `Serving -> NotReady -> StopAccepting -> Draining(deadline) -> Stopped`. What must hold: leadership is handed
//! over before readiness is withdrawn, long streams are told before they are cut, keys are wiped before the
//! process ends, every wait is bounded, and a second signal skips to the end.

use std::time::Duration;

use crate::Mono;

/// The times of a [`Shutdown`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The longest wait for leadership to be handed over; 2 s.
    pub hand_over: Duration,
    /// How long the service goes on accepting after probes show it as not ready, so that load balancers move
    /// away first; 0 where clients fail over by themselves.
    pub not_ready: Duration,
    /// The longest wait for requests and streams to finish; 10 s.
    pub drain: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { hand_over: Duration::from_secs(2), not_ready: Duration::ZERO, drain: Duration::from_secs(10) }
    }
}

/// Where a service is on its way down; published on a watch channel.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Phase {
    /// Normal work, up to and including the hand-over of leadership.
    Serving,
    /// Probes say no; work is still taken.
    NotReady,
    /// Listeners close; open connections go on.
    StopAccepting,
    /// What is open may finish until this instant.
    Draining(Mono),
    /// Nothing runs any more.
    Stopped,
}

impl Phase {
    /// Its name in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::NotReady => "not ready",
            Self::StopAccepting => "stop accepting",
            Self::Draining(_) => "draining",
            Self::Stopped => "stopped",
        }
    }
}

/// What the shell tells a [`Shutdown`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// Someone asked the process to end: a signal, or a fatal error of a component.
    Signal,
    /// The hand-over ended, well or not, or there was nothing to hand over.
    HandedOver,
    /// How many requests and streams are open now.
    Open(usize),
    /// Time passed.
    Tick,
}

/// What the shell must do, in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Begin to hand leadership over; answer with [`Event::HandedOver`].
    HandOver,
    /// Publish the phase.
    Enter(Phase),
    /// Tell long streams to move to another node.
    TellStreams,
    /// Close the listeners.
    CloseListeners,
    /// Cut what is still open.
    Cut,
    /// Wipe keys from memory.
    WipeKeys,
    /// End the process, status 0.
    Exit,
}

/// The way down of one process.
#[derive(Clone, Debug)]
pub struct Shutdown {
    timing: Timing,
    phase: Phase,
    /// The end of the current wait; `None` while serving normally and after the end.
    until: Option<Mono>,
    open: usize,
}

impl Shutdown {
    /// A service that runs.
    pub const fn new(timing: Timing) -> Self {
        Self { timing, phase: Phase::Serving, until: None, open: 0 }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Signal => self.signal(now, out),
            Event::HandedOver if self.handing_over() => self.not_ready(now, out),
            Event::HandedOver | Event::Tick => {}
            Event::Open(count) => self.open = count,
        }
        self.proceed(now, out);
    }

    /// When [`Event::Tick`] is due.
    pub const fn next_deadline(&self) -> Option<Mono> {
        self.until
    }

    /// Where the service is.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    fn handing_over(&self) -> bool {
        self.phase == Phase::Serving && self.until.is_some()
    }

    fn signal(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self.phase == Phase::Serving && self.until.is_none() {
            self.until = Some(now.after(self.timing.hand_over));
            out.push(Effect::HandOver);
        } else if self.phase != Phase::Stopped {
            self.stop(true, out);
        }
    }

    fn proceed(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let due = self.until.is_some_and(|until| until <= now);
        if due && self.phase == Phase::Serving {
            self.not_ready(now, out);
        } else if due && self.phase == Phase::NotReady {
            self.stop_accepting(now, out);
        }
        if matches!(self.phase, Phase::Draining(until) if self.open == 0 || until <= now) {
            self.stop(self.open > 0, out);
        }
    }

    fn not_ready(&mut self, now: Mono, out: &mut Vec<Effect>) {
        self.enter(Phase::NotReady, out);
        self.until = Some(now.after(self.timing.not_ready));
        out.push(Effect::TellStreams);
        if self.timing.not_ready.is_zero() {
            self.stop_accepting(now, out);
        }
    }

    fn stop_accepting(&mut self, now: Mono, out: &mut Vec<Effect>) {
        self.enter(Phase::StopAccepting, out);
        out.push(Effect::CloseListeners);
        let until = now.after(self.timing.drain);
        self.until = Some(until);
        self.enter(Phase::Draining(until), out);
    }

    fn stop(&mut self, cut: bool, out: &mut Vec<Effect>) {
        self.until = None;
        if cut {
            out.push(Effect::Cut);
        }
        out.push(Effect::WipeKeys);
        self.enter(Phase::Stopped, out);
        out.push(Effect::Exit);
    }

    fn enter(&mut self, phase: Phase, out: &mut Vec<Effect>) {
        self.phase = phase;
        out.push(Effect::Enter(phase));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Spread;

    fn ms(n: u64) -> Mono {
        Mono::from_millis(n)
    }

    fn feed(machine: &mut Shutdown, steps: &[(u64, Event)]) -> Vec<Effect> {
        let mut out = Vec::new();
        for (at, event) in steps {
            machine.on(ms(*at), *event, &mut out);
        }
        out
    }

    #[test]
    fn every_phase_in_order() {
        let mut machine = Shutdown::new(Timing::default());
        let out = feed(&mut machine, &[(0, Event::Open(2)), (1, Event::Signal)]);
        assert_eq!(out, [Effect::HandOver]);
        assert_eq!(machine.phase(), Phase::Serving);
        let out = feed(&mut machine, &[(300, Event::HandedOver)]);
        assert_eq!(
            out,
            [
                Effect::Enter(Phase::NotReady),
                Effect::TellStreams,
                Effect::Enter(Phase::StopAccepting),
                Effect::CloseListeners,
                Effect::Enter(Phase::Draining(ms(10_300))),
            ]
        );
        let out = feed(&mut machine, &[(400, Event::Open(1)), (500, Event::Open(0))]);
        assert_eq!(out, [Effect::WipeKeys, Effect::Enter(Phase::Stopped), Effect::Exit]);
        assert_eq!(feed(&mut machine, &[(600, Event::Signal), (700, Event::Tick)]), []);
    }

    #[test]
    fn a_service_behind_a_balancer_shows_itself_as_leaving_first() {
        let timing = Timing { not_ready: Duration::from_secs(3), ..Timing::default() };
        let mut machine = Shutdown::new(timing);
        let out = feed(&mut machine, &[(0, Event::Signal), (0, Event::HandedOver)]);
        assert_eq!(out, [Effect::HandOver, Effect::Enter(Phase::NotReady), Effect::TellStreams]);
        assert_eq!(machine.next_deadline(), Some(ms(3000)));
        let out = feed(&mut machine, &[(2999, Event::Tick), (3000, Event::Tick)]);
        assert_eq!(out.first(), Some(&Effect::Enter(Phase::StopAccepting)));
        assert_eq!(out.last(), Some(&Effect::Exit));
    }

    #[test]
    fn waits_are_bounded() {
        let mut machine = Shutdown::new(Timing::default());
        feed(&mut machine, &[(0, Event::Open(1)), (0, Event::Signal), (2000, Event::Tick)]);
        assert_eq!(machine.phase(), Phase::Draining(ms(12_000)));
        let out = feed(&mut machine, &[(12_000, Event::Tick)]);
        assert_eq!(out, [Effect::Cut, Effect::WipeKeys, Effect::Enter(Phase::Stopped), Effect::Exit]);
    }

    #[test]
    fn a_second_signal_skips_to_the_end() {
        let mut machine = Shutdown::new(Timing::default());
        let out = feed(&mut machine, &[(0, Event::Signal), (1, Event::Signal), (2, Event::Signal)]);
        let end = [Effect::Cut, Effect::WipeKeys, Effect::Enter(Phase::Stopped), Effect::Exit];
        assert_eq!(out.first(), Some(&Effect::HandOver));
        assert_eq!(out.get(1..), Some(&end[..]));
    }

    #[test]
    fn every_way_down_ends_in_time_with_keys_wiped_and_each_step_once() {
        for seed in crate::soak::seeds(500) {
            let mut spread = Spread::new(seed);
            let timing =
                Timing { not_ready: Duration::from_millis(spread.below(2) * 500), ..Timing::default() };
            let (mut machine, mut out) = (Shutdown::new(timing), Vec::new());
            machine.on(ms(0), Event::Open(usize::MAX), &mut out);
            machine.on(ms(0), Event::Signal, &mut out);
            for at in 0..300 {
                let event = match spread.below(200) {
                    0 => Event::Signal,
                    1..4 => Event::HandedOver,
                    4..20 => Event::Open(spread.bits() as usize % 3),
                    _ => Event::Tick,
                };
                machine.on(ms(at * 50), event, &mut out);
            }
            assert_eq!(machine.phase(), Phase::Stopped, "ends within its bounds, seed {seed}");
            let count = |wanted: Effect| out.iter().filter(|effect| **effect == wanted).count();
            for once in [Effect::HandOver, Effect::WipeKeys, Effect::Exit] {
                assert_eq!(count(once), 1, "{once:?} once, seed {seed}");
            }
            assert_eq!(out.last(), Some(&Effect::Exit), "nothing after the end, seed {seed}");
        }
    }
}
