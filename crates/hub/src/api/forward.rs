//! Requests that another node must answer: who gets them, how long they wait, when they may be sent again.
//!
//! The decisions are [`holdfast_core::retry`]'s; this is their shell. What must hold: every request that arrives
//! gets its steps one at a time, and is forgotten when its ticket is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Mono;
use holdfast_core::retry::{Active, Effect, Event, Failure, Forwarder, Limits, Refusal, RequestId, Work};
use holdfast_net::serve::Body;
use holdfast_ops::MonoClock;
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::cluster::View;
use crate::hub::Hub;
use crate::node::backend::{Peers, SendError};

/// A node that may be active.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Target {
    /// Its name.
    pub node: String,
    /// `host:port` of its cluster port.
    pub address: String,
}

/// What is to be done with a request next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step {
    /// Send it to this node.
    Send(Target),
    /// Serve it here.
    Serve,
    /// Refuse it.
    Refuse(Refusal),
}

/// The requests of one unsealed node on their way to the active one.
pub struct Forwarding {
    hub: Arc<Hub>,
    peers: Arc<dyn Peers>,
    clock: MonoClock,
    inner: Mutex<Inner>,
    /// The next deadline may have moved.
    moved: Notify,
}

struct Inner {
    machine: Forwarder<Target>,
    waiting: BTreeMap<RequestId, mpsc::Sender<Step>>,
    next: u64,
}

/// A request's place in [`Forwarding`].
pub struct Ticket {
    id: RequestId,
    steps: mpsc::Receiver<Step>,
    forwarding: Arc<Forwarding>,
}

impl Forwarding {
    /// For one unsealed life of a node.
    pub fn new(hub: Arc<Hub>, peers: Arc<dyn Peers>, hold: Duration) -> Arc<Self> {
        let machine = Forwarder::new(Limits { hold, ..Limits::default() });
        let inner = Inner { machine, waiting: BTreeMap::new(), next: 0 };
        Arc::new(Self { hub, peers, clock: MonoClock::new(), inner: Mutex::new(inner), moved: Notify::new() })
    }

    /// Takes a request. `forwarded` says that another node sent it, so that it is never sent on.
    pub fn arrive(self: &Arc<Self>, work: Work, deadline: Instant, forwarded: bool) -> Ticket {
        // One step is outstanding at most, so there is always room for it.
        let (send, steps) = mpsc::channel(1);
        let now = self.clock.now();
        let deadline = now.after(deadline.saturating_duration_since(Instant::now()));
        let id = {
            let mut inner = self.inner.lock();
            inner.next = inner.next.wrapping_add(1);
            let id = RequestId::new(inner.next);
            inner.waiting.insert(id, send);
            id
        };
        // The view is judged at this moment: an acknowledgement that grew too old must show at once.
        let active = self.active(&self.hub.cluster.view());
        self.tell([Event::Active(active), Event::Arrived { id, work, deadline, forwarded }]);
        Ticket { id, steps, forwarding: Arc::clone(self) }
    }

    /// Sends a request to a node.
    pub async fn send(
        &self,
        target: &Target,
        request: Request<Body>,
        deadline: Instant,
    ) -> Result<Response<Body>, SendError> {
        self.peers.send(&target.address, request, deadline).await
    }

    /// Follows the cluster's view and the clock until the node seals.
    pub async fn run(self: Arc<Self>) {
        let mut views = self.hub.cluster.watch();
        let mut leaving = self.hub.handover.watch();
        loop {
            leaving.mark_unchanged();
            let active = self.active(&views.borrow_and_update().clone());
            self.on(self.clock.now(), [Event::Active(active)]);
            let due = self.inner.lock().machine.next_deadline();
            tokio::select! {
                changed = views.changed() => if changed.is_err() { return },
                changed = leaving.changed() => if changed.is_err() { return },
                () = self.moved.notified() => {}
                () = self.clock.sleep_until(due) => self.on(self.clock.now(), [Event::Tick]),
            }
        }
    }

    /// Who serves. A leader that is ourselves while our gate is shut is nobody.
    fn active(&self, view: &View) -> Active<Target> {
        let own = self.hub.cluster.node();
        let leader = view.leader.as_ref().filter(|leader| leader.node != *own);
        let target = leader
            .map(|leader| Target { node: leader.node.to_string(), address: leader.address.cluster.clone() });
        match target {
            // Whoever arrives now waits for the next leader.
            _ if view.active.is_some() && self.hub.handover.is_leaving() => Active::Unknown,
            _ if view.active.is_some() => Active::Here,
            Some(target) => Active::Peer(target),
            None => Active::Unknown,
        }
    }

    fn on(&self, now: Mono, events: impl IntoIterator<Item = Event<Target>>) {
        let mut effects = Vec::new();
        let mut closed = Vec::new();
        {
            let mut inner = self.inner.lock();
            for event in events {
                inner.machine.on(now, event, &mut effects);
            }
            for effect in effects {
                match effect {
                    Effect::Send(id, target) => inner.tell(id, Step::Send(target), false),
                    Effect::Serve(id) => inner.tell(id, Step::Serve, true),
                    Effect::Refuse(id, refusal) => inner.tell(id, Step::Refuse(refusal), true),
                    Effect::CloseConnections(target) => closed.push(target),
                }
            }
        }
        for target in closed {
            self.peers.close(&target.address);
        }
    }

    /// As [`Forwarding::on`], from outside of the task that waits for the next deadline.
    fn tell(&self, events: impl IntoIterator<Item = Event<Target>>) {
        let before = self.inner.lock().machine.next_deadline();
        self.on(self.clock.now(), events);
        // A deadline that only became later is found when the earlier one fires.
        let after = self.inner.lock().machine.next_deadline();
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            self.moved.notify_one();
        }
    }
}

impl Inner {
    fn tell(&mut self, id: RequestId, step: Step, last: bool) {
        if let Some(waiting) = self.waiting.get(&id) {
            // The receiver is gone when the client is; its ticket says so to the machine.
            let _ = waiting.try_send(step);
        }
        if last {
            self.waiting.remove(&id);
        }
    }
}

impl Ticket {
    /// Waits for the next step.
    pub async fn next(&mut self) -> Step {
        // The sender goes only after a last step, so this is for a machine that forgot us: never expected.
        self.steps.recv().await.unwrap_or(Step::Refuse(Refusal::NoActiveNode))
    }

    /// Says that sending failed; another step follows.
    pub fn failed(&self, failure: Failure) {
        self.forwarding.tell([Event::Failed { id: self.id, failure }]);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.forwarding.inner.lock().waiting.remove(&self.id);
        self.forwarding.tell([Event::Done { id: self.id }]);
    }
}
