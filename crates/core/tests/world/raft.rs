//! Elections: terms, promises, heartbeats, leases of followers, pings; the shells of the gate, of the right to
//! stand and of the step-down.

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_core::leadership::standing::{self, Veto};
use holdfast_core::leadership::{self, stepdown};
use holdfast_core::{LogIndex, MemberId, Mono, Term};

use crate::node::Wait;
use crate::store::Write;
use crate::{Happening, ONE_GATE, Plant, World};

/// Between two heartbeats, and between two pings.
pub const BEAT: Duration = Duration::from_millis(100);
/// How long a follower that heard a leader votes for nobody else.
pub const LEASE: Duration = Duration::from_millis(400);

/// Between nodes. Times are world time.
#[derive(Clone, Debug)]
pub enum Message {
    Heartbeat { term: Term, sent: Mono },
    Ack { term: Term, sent: Mono },
    Newer { term: Term },
    RequestVote { term: Term },
    Vote { term: Term },
    Ping { sent: Mono },
    Pong { sent: Mono },
    Stand { term: Term },
}

/// What a node is in its promised term.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Role {
    Follower,
    Candidate { term: Term, votes: BTreeSet<usize> },
    Leader { term: Term },
}

/// The volatile part of consensus.
pub struct Raft {
    pub role: Role,
    pub heard_until: Mono,
    pub election_at: Mono,
    pub beat_at: Mono,
    pub beats: bool,
    pub acked: Vec<Option<Mono>>,
}

impl Raft {
    pub fn new(members: usize) -> Self {
        Self {
            role: Role::Follower,
            heard_until: Mono::ZERO,
            election_at: Mono::FAR,
            beat_at: Mono::ZERO,
            beats: true,
            acked: vec![None; members],
        }
    }

    /// When the oldest message was sent that, with ourselves, a majority acknowledged.
    fn quorum_acked(&self) -> Option<Mono> {
        let mut acked: Vec<_> = self.acked.iter().flatten().copied().collect();
        acked.sort_unstable_by(|a, b| b.cmp(a));
        let others = self.acked.len() / 2;
        acked.get(others - 1).copied()
    }
}

impl World {
    pub fn start_node(&mut self, i: usize) {
        let now = self.now;
        self.nodes[i].start();
        let raft = &mut self.nodes[i].raft;
        raft.heard_until = if self.plant == Plant::VoteAfterStart { now } else { now.after(LEASE) };
        raft.beat_at = now;
        self.reset_election(i);
        let voters = (0..self.nodes.len()).map(|id| MemberId::new(id as u64)).collect();
        self.standing(i, standing::Event::Voters(vec![voters]));
        self.schedule(i);
    }

    pub fn crash(&mut self, i: usize) {
        if !self.nodes[i].crash() {
            return;
        }
        if self.plant == Plant::ForgetVote {
            self.store.promised[i] = Term::default();
        }
        let long = if self.plant == Plant::VoteAfterStart || self.spread.below(2) == 0 { 100 } else { 5000 };
        let delay = Duration::from_millis(self.spread.below(long));
        self.later(delay, Happening::Start { node: i });
    }

    fn reset_election(&mut self, i: usize) {
        let random = Duration::from_millis(self.spread.below(400));
        let raft = &mut self.nodes[i].raft;
        raft.election_at = self.now.max(raft.heard_until).after(random);
    }

    fn message(&mut self, from: usize, to: usize, message: Message) {
        self.send(from, Some(to), Happening::Deliver { to, from, message });
    }

    fn broadcast(&mut self, from: usize, message: &Message) {
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            self.message(from, to, message.clone());
        }
    }

    pub fn deliver(&mut self, i: usize, from: usize, message: Message) {
        if !self.nodes[i].up {
            return;
        }
        let promised = self.store.promised[i];
        match message {
            Message::Heartbeat { term, .. } if term < promised => {
                self.message(i, from, Message::Newer { term: promised });
            }
            Message::Heartbeat { term, sent } => {
                self.promise(i, term);
                self.nodes[i].raft.heard_until = self.now.after(LEASE);
                self.reset_election(i);
                self.step(i, stepdown::Event::Relieved { term });
                self.message(i, from, Message::Ack { term, sent });
            }
            Message::Ack { term, sent } => self.acked(i, from, term, sent),
            Message::Newer { term } if term > promised => {
                self.promise(i, term);
                self.reset_election(i);
            }
            Message::RequestVote { term } => {
                let healthy = self.nodes[i].leadership.store_healthy();
                if healthy && term > promised && self.now >= self.nodes[i].raft.heard_until {
                    self.promise(i, term);
                    self.reset_election(i);
                    self.message(i, from, Message::Vote { term });
                }
            }
            Message::Vote { term } => self.voted(i, from, term),
            Message::Ping { sent } => self.message(i, from, Message::Pong { sent }),
            Message::Pong { sent } => {
                let sent = self.nodes[i].clock(sent);
                self.standing(i, standing::Event::Heard { member: MemberId::new(from as u64), sent });
                self.step(i, stepdown::Event::Answered);
            }
            Message::Stand { term } if term == promised => self.stand(i),
            Message::Newer { .. } | Message::Stand { .. } => {}
        }
        self.schedule(i);
    }

    /// Accepts a term: persisted at once, and whatever was led before is over.
    fn promise(&mut self, i: usize, term: Term) {
        if term <= self.store.promised[i] {
            return;
        }
        let before = self.store.promised[i];
        self.store.promised[i] = term;
        self.nodes[i].raft.role = Role::Follower;
        self.gate(i, leadership::Event::Lost { term: before });
    }

    fn acked(&mut self, i: usize, from: usize, term: Term, sent: Mono) {
        let node = &mut self.nodes[i];
        if node.raft.role != (Role::Leader { term }) {
            return;
        }
        let slot = &mut node.raft.acked[from];
        *slot = (*slot).max(Some(sent));
        if let Some(sent) = node.raft.quorum_acked() {
            node.raft.heard_until = node.raft.heard_until.max(sent.after(LEASE));
            let sent = node.clock(sent);
            self.gate(i, leadership::Event::Acknowledged { term, sent });
        }
    }

    fn stand(&mut self, i: usize) {
        let node = &self.nodes[i];
        let leads = matches!(node.raft.role, Role::Leader { .. });
        if leads || self.now < node.raft.heard_until || !node.standing.may_stand() || self.stumbles(i) {
            return;
        }
        let term = self.store.promised[i].next();
        self.promise(i, term);
        self.nodes[i].raft.role = Role::Candidate { term, votes: [i].into() };
        self.reset_election(i);
        self.nodes[i].raft.election_at = self.nodes[i].raft.election_at.after(LEASE);
        self.broadcast(i, &Message::RequestVote { term });
    }

    fn voted(&mut self, i: usize, from: usize, voted: Term) {
        let majority = self.nodes.len() / 2 + 1;
        let node = &mut self.nodes[i];
        let Role::Candidate { term, votes } = &mut node.raft.role else { return };
        if *term != voted {
            return;
        }
        votes.insert(from);
        if votes.len() < majority {
            return;
        }
        node.raft.role = Role::Leader { term: voted };
        node.raft.acked.fill(None);
        (node.raft.beats, node.raft.beat_at) = (true, self.now);
        let entry = LogIndex::new(voted.into_inner());
        self.gate(i, leadership::Event::Elected { term: voted, entry });
        self.write(i, voted, Write::Lead, Wait::Lead(voted));
    }

    /// The part of a tick that belongs to consensus.
    pub fn tick_raft(&mut self, i: usize) {
        let raft = &self.nodes[i].raft;
        let leads = match raft.role {
            Role::Leader { term } => Some(term),
            _ => None,
        };
        if leads.is_none() && raft.election_at <= self.now {
            self.reset_election(i);
            self.stand(i);
        }
        if self.nodes[i].up && self.nodes[i].raft.beat_at <= self.now {
            self.nodes[i].raft.beat_at = self.now.after(BEAT);
            let sent = self.now;
            self.broadcast(i, &Message::Ping { sent });
            if let Some(term) = leads.filter(|_| self.nodes[i].raft.beats) {
                self.broadcast(i, &Message::Heartbeat { term, sent });
            }
        }
    }

    pub fn gate(&mut self, i: usize, event: leadership::Event) {
        let (now, life, mut out) = (self.nodes[i].clock(self.now), self.nodes[i].life, Vec::new());
        self.nodes[i].leadership.on(now, event, &mut out);
        for effect in out {
            if self.nodes[i].life != life {
                return;
            }
            match effect {
                leadership::Effect::OpenGate(term) => {
                    if *self.gates.entry(term).or_insert(i) != i {
                        self.fail(ONE_GATE);
                    }
                    self.opened(i, term);
                }
                leadership::Effect::CloseGate(..) => self.closed(i),
                leadership::Effect::HandOver(term) => self.hand_over(i, term),
                leadership::Effect::ReportStore(healthy) => {
                    self.standing(i, standing::Event::Veto(Veto::StoreUnhealthy, !healthy));
                }
                leadership::Effect::TestWrite => {
                    self.later(Duration::from_millis(50), Happening::StoreTested { node: i, life });
                }
            }
        }
    }

    pub fn standing(&mut self, i: usize, event: standing::Event) {
        // The switch itself is read from the machine when it is time to stand.
        let now = self.nodes[i].clock(self.now);
        self.nodes[i].standing.on(now, event, &mut Vec::new());
    }

    pub fn step_down(&mut self) {
        if let Some((i, term)) = self.active() {
            self.hand_over(i, term);
            self.schedule(i);
        }
    }

    pub fn store_fails(&mut self, i: usize) {
        if self.nodes[i].up {
            self.gate(i, leadership::Event::StoreFailed);
            self.schedule(i);
        }
    }

    pub fn store_tested(&mut self, i: usize, life: u32) {
        if self.nodes[i].life == life {
            let healthy = self.calm || self.spread.below(2) == 0;
            self.gate(i, leadership::Event::StoreTested { healthy });
            self.schedule(i);
        }
    }

    fn hand_over(&mut self, i: usize, term: Term) {
        let others = (0..self.nodes.len()).filter(|other| *other != i);
        let matched = others.map(|other| (MemberId::new(other as u64), LogIndex::new(0))).collect();
        self.step(i, stepdown::Event::Asked { term, last: LogIndex::new(0), matched });
    }

    pub fn step(&mut self, i: usize, event: stepdown::Event) {
        let (now, life, mut out) = (self.nodes[i].clock(self.now), self.nodes[i].life, Vec::new());
        self.nodes[i].stepdown.on(now, event, &mut out);
        for effect in out {
            if self.nodes[i].life != life {
                return;
            }
            let veto = |on| standing::Event::Veto(Veto::SteppedDown, on);
            match effect {
                stepdown::Effect::StopWrites(term) => {
                    self.gate(i, leadership::Event::StepDownBegan { term });
                }
                stepdown::Effect::ResumeWrites(term) => {
                    self.gate(i, leadership::Event::StepDownEnded { term });
                }
                stepdown::Effect::StayOut => self.standing(i, veto(true)),
                stepdown::Effect::MayStand => self.standing(i, veto(false)),
                stepdown::Effect::StopHeartbeats(_) => self.nodes[i].raft.beats = false,
                stepdown::Effect::ResumeHeartbeats(_) => self.nodes[i].raft.beats = true,
                stepdown::Effect::AskToStand(member, term) => {
                    self.message(i, member.into_inner() as usize, Message::Stand { term });
                }
                stepdown::Effect::Answer(_) => {}
            }
        }
    }

    /// The active node, as any client finds it.
    pub fn active(&self) -> Option<(usize, Term)> {
        let now = self.now;
        let awake = self.nodes.iter().enumerate().filter(|(_, node)| node.paused_until(now).is_none());
        awake.filter_map(|(i, node)| node.active(now).map(|term| (i, term))).next()
    }
}
