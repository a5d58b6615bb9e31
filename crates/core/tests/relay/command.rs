//! Commands on their way: at the node where they came, and at the owner.

use std::time::Duration;

use holdfast_core::SpokeName;
use holdfast_core::ownership::registry;
use holdfast_core::ownership::resolve::{Effect, Event, Failure, Timing};
use holdfast_core::ownership::{Resolve, Stamp};
use holdfast_core::{Mono, Term};

use super::node::Sender;
use super::{Happening, Message, NO_LOOP, Plant, RUN_ONCE, THREE_INTERVALS, TWO_SENDS, World};

/// A command, and which of its sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sent {
    command: u64,
    number: u32,
}

/// What a send came to.
pub type Outcome = Result<(), Failure>;

pub struct Command {
    pub node: usize,
    spoke: SpokeName,
    resolve: Resolve,
    sends: u32,
    ran: u32,
    pub over: bool,
    /// It has to succeed.
    must: bool,
    ticks: Option<Mono>,
}

const DEADLINE: Duration = Duration::from_secs(20);
/// When a call whose answer was lost is given up.
const CALL: Duration = Duration::from_secs(3);

impl World {
    pub fn command(&mut self, spoke: &SpokeName, must: bool) {
        let Some(node) = self.active() else { return self.serve_or_fail(!must) };
        let id = self.commands.len() as u64;
        let deadline = self.nodes[node].clock(self.now).after(DEADLINE);
        let command = Command {
            node,
            spoke: spoke.clone(),
            resolve: Resolve::new(Timing::default(), deadline, false),
            sends: 0,
            ran: 0,
            over: false,
            must,
            ticks: None,
        };
        self.commands.insert(id, command);
        self.later(DEADLINE + CALL + Duration::from_secs(5), Happening::Overdue { command: id });
        self.look(id);
    }

    fn look(&mut self, id: u64) {
        let command = &self.commands[&id];
        let node = &self.nodes[command.node];
        let lookup = node.registry.lookup(node.clock(self.now), &command.spoke);
        self.resolve(id, Event::Look(lookup));
    }

    /// The registry says that the way to a spoke changed.
    pub fn wake(&mut self, node: usize, spoke: Option<&SpokeName>) {
        let waiting = self.commands.iter().filter(|(_, command)| {
            !command.over && command.node == node && spoke.is_none_or(|spoke| *spoke == command.spoke)
        });
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.look(id);
        }
    }

    pub fn command_tick(&mut self, id: u64) {
        if let Some(command) = self.commands.get_mut(&id) {
            command.ticks = None;
        }
        self.resolve(id, Event::Tick);
        self.look(id);
    }

    fn resolve(&mut self, id: u64, event: Event) {
        let Some(command) = self.commands.get_mut(&id).filter(|command| !command.over) else { return };
        let node = &self.nodes[command.node];
        if let Some(until) = node.paused_until(self.now) {
            if event == Event::Tick {
                self.at(until, Happening::CommandTick { command: id });
            }
            return;
        }
        let mut out = Vec::new();
        command.resolve.on(node.clock(self.now), event, &mut out);
        for effect in out {
            self.resolve_effect(id, effect);
        }
        self.schedule_command(id);
    }

    fn schedule_command(&mut self, id: u64) {
        let Some(command) = self.commands.get_mut(&id).filter(|command| !command.over) else { return };
        let Some(at) = command.resolve.next_deadline() else { return };
        let left = self.nodes[command.node].clock(self.now).until(at);
        let at = self.now.after(left);
        if command.ticks.is_none_or(|planned| at < planned) {
            command.ticks = Some(at);
            self.at(at, Happening::CommandTick { command: id });
        }
    }

    fn resolve_effect(&mut self, id: u64, effect: Effect) {
        let Some(command) = self.commands.get_mut(&id) else { return };
        let (node, spoke) = (command.node, command.spoke.clone());
        match effect {
            Effect::Run(stamp) => {
                command.sends += 1;
                let sent = Sent { command: id, number: command.sends };
                self.done.local += 1;
                let outcome = self.execute(id, node, &spoke, stamp);
                let delay = if outcome == Err(Failure::Broken) { CALL } else { self.millis(300) };
                let from = Sender { node, life: self.nodes[node].life };
                let message = Message::Ran(sent, outcome);
                self.later(delay, Happening::Deliver { to: node, from, message });
            }
            Effect::Forward(owner, _) => {
                command.sends += 1;
                let number = command.sends;
                let word = self.last_word(node, &owner);
                if word.is_none_or(|at| self.now.since(at) > Duration::from_secs(15)) {
                    self.fail(THREE_INTERVALS);
                }
                self.forward(Sent { command: id, number }, node, Self::node_index(&owner));
            }
            Effect::Forget(owner, stamp) => self.forget(node, &spoke, owner, stamp),
            Effect::Unreachable(owner) => self.registry(node, registry::Event::Reached(owner, false)),
            Effect::Pull => {
                self.done.again += 1;
                self.registry(node, registry::Event::Pull);
                self.look(id);
            }
            Effect::Refuse(_) => self.refuse(id),
        }
        if self.commands[&id].sends > 2 {
            self.fail(TWO_SENDS);
        }
    }

    fn refuse(&mut self, id: u64) {
        let Some(command) = self.commands.get_mut(&id) else { return };
        command.over = true;
        let must = command.must;
        self.done.refused += 1;
        self.serve_or_fail(!must);
    }

    fn forward(&mut self, sent: Sent, node: usize, owner: usize) {
        let from = Sender { node: owner, life: self.nodes[owner].life };
        let Some(term) = self.nodes[node].registry.active() else { return };
        if self.is_cut(node, owner) && !self.chance(2) {
            let message = Message::Ran(sent, Err(Failure::DialFailed));
            self.later(Duration::from_millis(3), Happening::Deliver { to: node, from, message });
            return;
        }
        let spoke = self.commands[&sent.command].spoke.clone();
        self.send(node, owner, Message::Run(term, sent, spoke));
        let broken = Message::Ran(sent, Err(Failure::Broken));
        self.later(CALL, Happening::Deliver { to: node, from, message: broken });
    }

    /// A forwarded command at the node that is said to hold the stream.
    pub fn forwarded(&mut self, i: usize, from: Sender, term: Term, sent: Sent, spoke: &SpokeName) {
        let lax = self.plant == Plant::ForwardAgain;
        if let Err(_seen) = self.nodes[i].registry.admit(term)
            && !lax
        {
            self.send(i, from.node, Message::Ran(sent, Err(Failure::StaleTerm)));
            return;
        }
        let (now, mut out) = (self.nodes[i].clock(self.now), Vec::new());
        let mut resolve = Resolve::new(Timing::default(), now.after(DEADLINE), !lax);
        resolve.on(now, Event::Look(self.nodes[i].registry.lookup(now, spoke)), &mut out);
        match out.first() {
            Some(Effect::Run(stamp)) => {
                self.done.forwarded += 1;
                let outcome = self.execute(sent.command, i, spoke, *stamp);
                self.send(i, from.node, Message::Ran(sent, outcome));
            }
            Some(Effect::Forward(..)) => self.fail(NO_LOOP),
            _ => {
                self.send(i, from.node, Message::Ran(sent, Err(Failure::NotConnected)));
            }
        }
    }

    /// Sends a command down a stream; the spoke does it.
    fn execute(&mut self, id: u64, node: usize, spoke: &SpokeName, stamp: Stamp) -> Outcome {
        let key = (spoke.clone(), stamp);
        if !self.nodes[node].streams.contains(&key) {
            return Err(Failure::NotConnected);
        }
        let conn = self.conns.get(&key).copied();
        let Some(conn) = conn.filter(|conn| conn.linked && conn.node == node) else {
            return Err(Failure::Broken);
        };
        if self.daemons[conn.daemon].name != *spoke {
            self.fail(super::ANSWERED);
        }
        if let Some(command) = self.commands.get_mut(&id) {
            command.ran += 1;
            if command.ran > 1 {
                self.fail(RUN_ONCE);
            }
        }
        if self.chance(15) { Err(Failure::Broken) } else { Ok(()) }
    }

    pub fn came_back(&mut self, node: usize, sent: Sent, outcome: Outcome) {
        let id = sent.command;
        let current = |command: &&mut Command| command.node == node && command.sends == sent.number;
        let Some(command) = self.commands.get_mut(&id).filter(current) else { return };
        match outcome {
            Ok(()) => command.over = true,
            Err(Failure::Broken) if self.plant == Plant::ResendBroken => {
                self.resolve(id, Event::Failed(Failure::NotConnected));
            }
            Err(Failure::NotConnected) if self.plant == Plant::ResolveForEver => {
                let deadline = self.nodes[node].clock(self.now).after(DEADLINE);
                command.resolve = Resolve::new(Timing::default(), deadline, false);
                self.look(id);
            }
            Err(failure) => self.resolve(id, Event::Failed(failure)),
        }
    }
}
