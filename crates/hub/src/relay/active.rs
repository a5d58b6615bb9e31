//! Finding the active node for what only that one does.
//!
//! What must hold: who was asked and is not active, or no longer in the term it was asked in, has done nothing; then
//! the leader is looked up anew, until it was found or the time is over.

use std::time::Duration;

use holdfast_core::Term;
use holdfast_core::time::doubling;
use tokio::time::{Instant, timeout_at};

use crate::hub::Hub;

/// How long a node that knows of no other leader waits before it asks again, at first.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// And at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// What is said while nobody leads.
pub const NOBODY: &str = "there is no active node now";

/// Where the active node is, as this node knows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Place {
    /// It is this one.
    Here,
    /// At this cluster address.
    There(String),
}

/// What came of asking a node.
pub enum Asked<T> {
    /// It answered.
    Answered(T),
    /// It is not the active node, and did nothing.
    Elsewhere(&'static str),
}

/// Asks the active node; while the one that was asked is not it, whoever leads by then.
///
/// # Errors
/// Why nobody answered by the deadline.
pub async fn ask<T, F>(
    hub: &Hub,
    deadline: Instant,
    mut ask: impl FnMut(Place, Term) -> F,
) -> Result<T, &'static str>
where
    F: Future<Output = Asked<T>>,
{
    let mut views = hub.cluster.watch();
    let mut attempt = 0;
    loop {
        views.mark_unchanged();
        let why = match place(hub) {
            None => NOBODY,
            Some((place, term)) => match timeout_at(deadline, ask(place, term)).await {
                Ok(Asked::Answered(answer)) => return Ok(answer),
                Ok(Asked::Elsewhere(why)) => why,
                Err(_) => return Err("the active node did not answer in time"),
            },
        };
        let again = Instant::now() + doubling(FIRST_PAUSE, LONGEST_PAUSE, attempt);
        if again >= deadline {
            return Err(why);
        }
        attempt = attempt.saturating_add(1);
        // A new view is looked at at once; one that ends changes no more.
        if let Ok(Err(_)) = timeout_at(again, views.changed()).await {
            tokio::time::sleep_until(again).await;
        }
    }
}

fn place(hub: &Hub) -> Option<(Place, Term)> {
    let view = hub.cluster.view();
    if let Some(term) = view.active {
        return Some((Place::Here, term));
    }
    let leader = view.leader.filter(|leader| leader.node != *hub.cluster.node())?;
    Some((Place::There(leader.address.cluster), leader.term))
}
