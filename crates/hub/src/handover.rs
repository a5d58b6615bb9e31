//! Handing leadership over without failing what is under way.
//!
//! What must hold: from the moment a hand-over begins no new request is let in, here or forwarded, so that it is held
//! where it arrived and goes to the next leader; what was let in before has a moment to end, since without
//! leadership it could not commit what it has begun.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::cluster::{Cluster, ClusterError};

/// How long requests under way have to end before leadership goes. With the step-down itself inside its 2 s.
const LET_END: Duration = Duration::from_millis(400);

/// What this node does as the active one, and whether it takes more.
pub struct Handover {
    /// How many requests are under way.
    under_way: watch::Sender<usize>,
    /// How many callers are handing over.
    leaving: watch::Sender<usize>,
}

/// A request that was let in.
pub struct Entered<'a>(&'a watch::Sender<usize>);

impl Default for Handover {
    fn default() -> Self {
        Self { under_way: watch::Sender::new(0), leaving: watch::Sender::new(0) }
    }
}

impl Handover {
    /// Lets a request in, unless leadership is about to go.
    pub fn enter(&self) -> Option<Entered<'_>> {
        // Counted first, so that a hand-over that begins between the two either sees it or turns it away.
        let entered = Entered::new(&self.under_way);
        (!self.is_leaving()).then_some(entered)
    }

    /// Whether leadership is about to go.
    pub fn is_leaving(&self) -> bool {
        *self.leaving.borrow() > 0
    }

    /// Follows [`Handover::is_leaving`].
    pub fn watch(&self) -> watch::Receiver<usize> {
        self.leaving.subscribe()
    }

    /// Hands leadership over. `own` is how many of the requests under way do nothing but this.
    ///
    /// # Errors
    /// Those of [`Cluster::step_down`]; then this node goes on.
    pub async fn step_down(&self, cluster: &dyn Cluster, own: usize) -> Result<(), ClusterError> {
        let _leaving = Entered::new(&self.leaving);
        let mut under_way = self.under_way.subscribe();
        if timeout(LET_END, under_way.wait_for(|count| *count <= own)).await.is_err() {
            tracing::debug!("requests are still under way; leadership goes all the same");
        }
        cluster.step_down().await
    }
}

impl<'a> Entered<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count = count.saturating_add(1));
        Self(count)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_core::Term;

    use super::*;
    use crate::testing::FakeCluster;

    #[tokio::test(start_paused = true)]
    async fn requests_under_way_end_first_and_new_ones_are_turned_away() {
        let handover = Handover::default();
        let cluster = FakeCluster::active("a", Term::new(1));
        let request = handover.enter().unwrap();
        let mut down = std::pin::pin!(handover.step_down(&*cluster, 0));
        assert!(timeout(LET_END / 2, &mut down).await.is_err(), "it waits for the request");
        assert!(handover.enter().is_none());
        drop(request);
        timeout(Duration::from_millis(1), &mut down).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_does_not_end_holds_nothing_up_for_long() {
        let (handover, cluster) = (Arc::new(Handover::default()), FakeCluster::active("a", Term::new(1)));
        let _request = handover.enter().unwrap();
        timeout(LET_END * 2, handover.step_down(&*cluster, 0)).await.unwrap().unwrap();
        assert!(handover.enter().is_some(), "when it is over, requests are let in again");
    }
}
