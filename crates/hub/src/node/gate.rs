//! The gate: what runs only while this node is active.
//!
//! What must hold: at most one gate is open; background work and requests of a term are cancelled before those of
//! the next term start; opening starts tasks and reads nothing.

use std::sync::Arc;

use holdfast_core::Term;
use holdfast_ops::Tasks;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::auth::token::Tokens;
use crate::hub::Hub;
use crate::lease::Leases;
use crate::relay;

/// The gate of one unsealed node.
pub struct Gates {
    hub: Arc<Hub>,
    tasks: Tasks,
    open: Mutex<Option<Gate>>,
}

struct Gate {
    term: Term,
    cancel: CancellationToken,
}

impl Gates {
    /// A closed gate.
    pub fn new(hub: Arc<Hub>, tasks: &Tasks) -> Self {
        Self { hub, tasks: tasks.child("active"), open: Mutex::new(None) }
    }

    /// The token that ends with this node's activity in `term`; opens the gate when it is not open yet.
    ///
    /// None when the gate is open for a newer term: the caller's view is old.
    pub fn enter(&self, term: Term) -> Option<CancellationToken> {
        let mut open = self.open.lock();
        match open.as_ref() {
            Some(gate) if gate.term == term => return Some(gate.cancel.clone()),
            Some(gate) if gate.term > term => return None,
            Some(gate) => gate.cancel.cancel(),
            None => {}
        }
        let cancel = self.tasks.token().child_token();
        self.start(term, &cancel);
        *open = Some(Gate { term, cancel: cancel.clone() });
        Some(cancel)
    }

    /// Closes the gate: background work and requests of its term are told to stop.
    pub fn close(&self) {
        if let Some(gate) = self.open.lock().take() {
            gate.cancel.cancel();
            tracing::info!(term = gate.term.into_inner(), "no longer active");
        }
    }

    /// Follows the cluster's view until the node seals.
    pub async fn follow(self: Arc<Self>) {
        let mut views = self.hub.cluster.watch();
        loop {
            let active = views.borrow_and_update().active;
            match active {
                Some(term) => drop(self.enter(term)),
                None => self.close(),
            }
            if views.changed().await.is_err() {
                return self.close();
            }
        }
    }

    fn start(&self, term: Term, cancel: &CancellationToken) {
        tracing::info!(term = term.into_inner(), "active");
        let hub = &self.hub;
        self.tasks.spawn("leases", Leases::run(Arc::clone(hub), term, cancel.clone()));
        self.tasks.spawn("tokens", Tokens::run_expiry(Arc::clone(hub), term, cancel.clone()));
        self.tasks.spawn("relay", relay::upkeep::run(Arc::clone(hub), term, cancel.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::memory::MemoryStore;
    use crate::testing::{FakeCluster, hub_over};

    #[tokio::test]
    async fn work_of_a_term_ends_with_it() {
        let tasks = Tasks::new("test");
        let cluster = FakeCluster::active("a", Term::new(1));
        let gates = Arc::new(Gates::new(hub_over(&MemoryStore::new(), cluster.clone()), &tasks));
        let first = gates.enter(Term::new(1)).unwrap();
        let second = gates.enter(Term::new(2)).unwrap();
        assert!(first.is_cancelled() && !second.is_cancelled());
        assert!(gates.enter(Term::new(1)).is_none(), "an old view opens nothing");
        tasks.spawn_until_cancelled("gate", Arc::clone(&gates).follow());
        cluster.lose_leader();
        tokio::time::timeout(Duration::from_secs(10), second.cancelled()).await.unwrap();
        drop(gates.enter(Term::new(3)));
        tasks.stop(Duration::from_secs(10)).await.unwrap();
    }
}
