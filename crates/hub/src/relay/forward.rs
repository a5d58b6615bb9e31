//! The way of a command to its spoke: the stream of this node, or the node that owns it.
//!
//! The shell of [`holdfast_core::ownership::Resolve`]. What must hold: a spoke of this node costs one look at a map;
//! a command that may have begun is never sent again.

use std::time::Duration;

use holdfast_core::SpokeName;
use holdfast_core::ownership::registry::Event as Told;
use holdfast_core::ownership::resolve::{Effect, Event, Failure, Refusal, Resolve, Timing};
use holdfast_core::ownership::{Lookup, NodeName, Stamp};
use tokio::time::Instant;

use super::failure::CommandFailure;
use super::metrics::{CommandTimes, Commands, ReresolveOutcome, Reresolved, Route};
use super::spokes::Spokes;
use super::stream::{Answer, Order};
use super::work::{self, Work};

/// Runs a command on the stream of this node, and nowhere else.
///
/// # Errors
/// Why there is no output.
pub async fn run_here(spokes: &Spokes, spoke: &SpokeName, order: Order, deadline: Instant) -> Answer {
    match spokes.local(spoke) {
        Some(stream) => stream.run(order, deadline).await,
        None => Err(CommandFailure::NotConnected),
    }
}

/// Runs a command wherever the spoke's stream is.
///
/// # Errors
/// Why there is no output.
pub async fn run(spokes: &Spokes, spoke: &SpokeName, order: Order, deadline: Instant) -> Answer {
    let method = order.method;
    let start = Instant::now();
    let own = || Taken { node: spokes.own.clone(), route: Route::Local };
    let (Taken { node, route }, answer) = match spokes.local(spoke) {
        Some(stream) => match stream.run(order.clone(), deadline).await {
            // It went between the look and the send.
            Err(CommandFailure::NotConnected) => resolve(spokes, spoke, order, deadline).await,
            answer => (own(), answer),
        },
        None => resolve(spokes, spoke, order, deadline).await,
    };
    let took = start.elapsed();
    let outcome = (&answer).into();
    spokes.metrics.commands.get_or_create(&Commands { route, outcome }).inc();
    let times = CommandTimes { route, method: method.into() };
    spokes.metrics.command_seconds.get_or_create(&times).observe(took.as_secs_f64());
    work::note(Work { spoke: spoke.clone(), node, route, took });
    answer
}

/// The way that a command took last.
struct Taken {
    node: NodeName,
    route: Route,
}

/// A command that is not answered by the first look.
struct Way<'a> {
    spokes: &'a Spokes,
    spoke: &'a SpokeName,
    order: Order,
    deadline: Instant,
    taken: Taken,
    /// Why the last send failed, for the words of the refusal.
    failed: Option<CommandFailure>,
}

/// What a step of the machine led to.
enum Step {
    Wait,
    Feed(Event),
    End(Answer),
}

async fn resolve(spokes: &Spokes, spoke: &SpokeName, order: Order, deadline: Instant) -> (Taken, Answer) {
    let left = deadline.saturating_duration_since(Instant::now());
    let mut machine = Resolve::new(Timing::default(), spokes.now().after(left), false);
    let mut looks = spokes.looks();
    let taken = Taken { node: spokes.own.clone(), route: Route::Local };
    let mut way = Way { spokes, spoke, order, deadline, taken, failed: None };
    let mut first = spokes.lookup(spoke);
    if first == Lookup::NotActive {
        // Leadership may be newer than the registry knows.
        spokes.look();
        first = spokes.lookup(spoke);
    }
    let mut next = Event::Look(first);
    let answer = loop {
        let mut effects = Vec::new();
        machine.on(spokes.now(), next, &mut effects);
        let mut step = Step::Wait;
        for effect in effects {
            step = way.perform(effect).await;
        }
        next = match step {
            Step::End(answer) => break answer,
            Step::Feed(event) => event,
            Step::Wait => way.wait(&mut looks, machine.next_deadline()).await,
        };
    };
    if machine.resolved_again() {
        let found = answer.is_ok() || machine.sends() > 1;
        let outcome = if found { ReresolveOutcome::Found } else { ReresolveOutcome::Failed };
        spokes.metrics.reresolve.get_or_create(&Reresolved { outcome }).inc();
    }
    (way.taken, answer)
}

impl Way<'_> {
    /// Waits until the registry knows more, or the machine is due.
    async fn wait(
        &self,
        looks: &mut tokio::sync::watch::Receiver<u64>,
        due: Option<holdfast_core::Mono>,
    ) -> Event {
        // Looked at once before waiting: what changed since the last look may have been told already.
        let due = due.map_or(Duration::ZERO, |at| at.since(self.spokes.now()));
        tokio::select! {
            changed = looks.changed() => match changed {
                Ok(()) => Event::Look(self.spokes.lookup(self.spoke)),
                Err(_) => Event::Tick,
            },
            () = tokio::time::sleep(due) => Event::Tick,
        }
    }

    async fn perform(&mut self, effect: Effect) -> Step {
        match effect {
            Effect::Run(_) => {
                self.taken = Taken { node: self.spokes.own.clone(), route: Route::Local };
                let answer = run_here(self.spokes, self.spoke, self.order.clone(), self.deadline).await;
                self.judge(answer)
            }
            Effect::Forward(node, stamp) => {
                self.taken = Taken { node: node.clone(), route: Route::Forwarded };
                let answer = self.forward(&node, stamp).await;
                self.judge(answer)
            }
            Effect::Forget(node, stamp) => {
                self.spokes.tell_registry(Told::Forget(self.spoke.clone(), node, stamp));
                Step::Wait
            }
            Effect::Unreachable(node) => {
                self.spokes.tell_registry(Told::Reached(node, false));
                Step::Wait
            }
            Effect::Pull => {
                self.spokes.tell_registry(Told::Pull);
                Step::Feed(Event::Look(self.spokes.lookup(self.spoke)))
            }
            Effect::Refuse(refusal) => Step::End(Err(self.refused(&refusal))),
        }
    }

    async fn forward(&self, node: &NodeName, _stamp: Stamp) -> Answer {
        let spokes = self.spokes;
        let term = spokes.with_registry(|registry, _| registry.active());
        let (Some(term), Some(calls)) = (term, spokes.calls()) else {
            return Err(CommandFailure::NotActive);
        };
        let Some(address) = spokes.address_of(node) else {
            let cause = "it is no member of the cluster".to_owned();
            return Err(CommandFailure::CannotReach { address: node.to_string(), cause });
        };
        let answer = calls.run(&address, term, self.spoke, self.order.clone(), self.deadline).await;
        let unreachable = matches!(
            answer,
            Err(CommandFailure::CannotReach { .. }
                | CommandFailure::Broken { .. }
                | CommandFailure::Deadline { .. })
        );
        if !unreachable {
            spokes.tell_registry(Told::Reached(node.clone(), true));
        }
        answer
    }

    /// What an answer means to the machine; most answers are the command's own.
    fn judge(&mut self, answer: Answer) -> Step {
        let Err(failure) = answer else { return Step::End(answer) };
        let told = match &failure {
            CommandFailure::NotConnected => Failure::NotConnected,
            CommandFailure::Sealed => Failure::Sealed,
            CommandFailure::CannotReach { .. } => Failure::DialFailed,
            CommandFailure::StaleTerm(_) => Failure::StaleTerm,
            _ => return Step::End(Err(failure)),
        };
        self.failed = Some(failure);
        Step::Feed(Event::Failed(told))
    }

    fn refused(&mut self, refusal: &Refusal) -> CommandFailure {
        match refusal {
            Refusal::NotConnected => CommandFailure::NotConnected,
            Refusal::NotActive => CommandFailure::NotActive,
            Refusal::CannotReach(node) => match self.failed.take() {
                Some(failure @ CommandFailure::CannotReach { .. }) => failure,
                _ => CommandFailure::CannotReach { address: node.to_string(), cause: "no connection".into() },
            },
            Refusal::OutcomeUnknown => {
                self.failed.take().unwrap_or(CommandFailure::Lost { reconnected: false })
            }
        }
    }
}
