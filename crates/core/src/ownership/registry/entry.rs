//! What a registry holds, and what it shows.

use std::time::Duration;

use super::{Claim, NodeName, Seq};
use crate::Mono;

/// A claim that was taken, its ages as of `at`.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub owner: NodeName,
    pub claim: Claim,
    pub at: Mono,
}

impl Held {
    /// The claim with its ages as of `now`.
    pub fn claim_at(&self, now: Mono) -> Claim {
        let older = now.since(self.at);
        Claim {
            connected_age: self.claim.connected_age.saturating_add(older),
            seen_age: self.claim.seen_age.saturating_add(older),
            ..self.claim.clone()
        }
    }
}

/// The newest set of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub at: Mono,
    pub seq: Seq,
}

/// A stream as a view shows it.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// The stream, its ages as of the moment asked for.
    pub claim: Claim,
    /// The node that holds it.
    pub node: &'a NodeName,
    /// Whether the last call to that node's cluster port got through.
    pub reachable: bool,
}

/// A member as a view shows it.
#[derive(Clone, Debug)]
pub struct Peer<'a> {
    /// Who.
    pub node: &'a NodeName,
    /// Whether it is this node.
    pub own: bool,
    /// How many streams it has.
    pub spokes: usize,
    /// How long ago its last set came.
    pub last_announce: Option<Duration>,
    /// Whether it was heard within three intervals and the last call to it got through.
    pub reachable: bool,
}
