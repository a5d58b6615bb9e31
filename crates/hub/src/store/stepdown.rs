//! The shell of a step-down: performs what [`StepDown`] decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_core::leadership::standing::Veto;
use holdfast_core::leadership::stepdown::{Effect, Event, Outcome, StepDown};
use holdfast_core::leadership::{self};
use holdfast_core::{LogIndex, MemberId, Term};
use holdfast_ops::clock::MonoClock;
use tokio::sync::{mpsc, oneshot};

use super::core::Core;
use super::rpc::{self, Method, To};

/// Pause between two looks while a step-down runs.
const LOOK: Duration = Duration::from_millis(10);
/// How long the request to stand may take.
const STAND: Duration = Duration::from_millis(500);

/// Someone asks this node to step down.
pub(super) struct Ask {
    pub answer: oneshot::Sender<Outcome>,
}

/// Runs step-downs until the node closes.
pub(super) async fn run(core: Arc<Core>, mut asks: mpsc::Receiver<Ask>, mut forced: mpsc::Receiver<Term>) {
    let mut shell = Shell {
        machine: StepDown::new(core.timing.step_down()),
        asked: Vec::new(),
        term: Term::new(0),
        core,
    };
    let clock = MonoClock::new();
    loop {
        let deadline = shell.machine.next_deadline();
        let watching = deadline.is_some();
        tokio::select! {
            ask = asks.recv() => match ask {
                Some(ask) => shell.ask(Some(ask)),
                None => return,
            },
            // The gate is never dropped before this task.
            Some(_) = forced.recv() => shell.ask(None),
            () = clock.sleep_until(deadline) => shell.feed(Event::Tick),
            () = tokio::time::sleep(LOOK), if watching => shell.look(),
        }
    }
}

struct Shell {
    core: Arc<Core>,
    machine: StepDown,
    asked: Vec<oneshot::Sender<Outcome>>,
    term: Term,
}

impl Shell {
    fn ask(&mut self, ask: Option<Ask>) {
        self.asked.extend(ask.map(|ask| ask.answer));
        let Some(term) = self.core.gate.leading() else {
            self.answer(Outcome::Relieved);
            return;
        };
        self.term = self.term.max(term);
        let event = Event::Asked { term, last: self.last(), matched: self.matched() };
        self.feed(event);
    }

    /// Tells the machine what has changed since the last look.
    fn look(&mut self) {
        self.feed(Event::LogEnds { last: self.last() });
        for (member, index) in self.matched() {
            self.feed(Event::Matched { member, index });
        }
        if self.core.elector.hears_anyone(self.core.gate.now()) {
            self.feed(Event::Answered);
        }
        if let Some(term) = self.newer_leader() {
            self.feed(Event::Relieved { term });
        }
    }

    fn feed(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.machine.on(self.core.gate.now(), event, &mut effects);
        for effect in effects {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        let core = &self.core;
        let now = core.gate.now();
        match effect {
            Effect::StopWrites(term) => core.gate.feed(leadership::Event::StepDownBegan { term }),
            Effect::StayOut => core.elector.veto(now, Veto::SteppedDown, true),
            Effect::StopHeartbeats(_) => core.quiet.store(true, Ordering::Relaxed),
            Effect::AskToStand(member, term) => self.ask_to_stand(member, term),
            Effect::Answer(outcome) => self.answer(outcome),
            Effect::ResumeHeartbeats(_) => core.quiet.store(false, Ordering::Relaxed),
            Effect::ResumeWrites(term) => core.gate.feed(leadership::Event::StepDownEnded { term }),
            Effect::MayStand => {
                core.quiet.store(false, Ordering::Relaxed);
                core.elector.veto(now, Veto::SteppedDown, false);
            }
        }
    }

    fn answer(&mut self, outcome: Outcome) {
        for waiting in self.asked.drain(..) {
            // Whoever asked may have given up.
            _ = waiting.send(outcome);
        }
    }

    fn ask_to_stand(&self, member: MemberId, term: Term) {
        let (core, id) = (Arc::clone(&self.core), member.into_inner());
        let membership = core.gate.membership();
        let (Some(own), Some(peer)) = (core.own(), membership.membership().get_node(&id)) else { return };
        let to = To::new(id, peer);
        core.clone().tasks.spawn_until_cancelled("store-stand", async move {
            let asked: Result<(), _> =
                rpc::call_within(&core.pool, own, &to, Method::Stand, &term.into_inner(), STAND).await;
            if let Err(error) = asked {
                tracing::debug!(peer = %to.name, %error, "asking a voter to stand failed");
            }
        });
    }

    fn last(&self) -> LogIndex {
        LogIndex::new(self.core.log.last().map_or(0, |last| last.index))
    }

    /// What every other voter holds.
    fn matched(&self) -> BTreeMap<MemberId, LogIndex> {
        let Some(running) = self.core.running.get() else { return BTreeMap::new() };
        let metrics = running.raft.metrics().borrow().clone();
        let held = |id: &u64| {
            let progress = metrics.replication.as_ref().and_then(|all| all.get(id).copied().flatten());
            LogIndex::new(progress.map_or(0, |held| held.index))
        };
        let voters = metrics.membership_config.membership().voter_ids();
        voters.filter(|id| *id != running.id).map(|id| (MemberId::new(id), held(&id))).collect()
    }

    fn newer_leader(&self) -> Option<Term> {
        let metrics = self.core.raft()?.server_metrics().borrow().clone();
        let local = (metrics.vote.committed && metrics.current_leader != self.core.own())
            .then_some(metrics.vote.leader_id.term);
        // A node whose disk is stuck learns of its successor only from the others.
        let told = self.core.gate.view().leader.map(|leader| leader.term.into_inner());
        local.into_iter().chain(told).map(Term::new).filter(|term| *term > self.term).max()
    }
}
