//! What a follower promises a leader whose ping it answers: to vote for nobody else for a while.
//!
//! An answer to an append comes after a sync to disk, so on a busy machine it may come later than the leader's window
//! although no follower would stand. The answer to a ping needs no disk. It counts as an acknowledgement if, and only
//! if, the follower keeps this promise. What must hold: from the giving of a promise for term T until its end this
//! node grants no vote and does not stand; and it gives none for T once it may have voted in a newer term.
//!
//! The library that votes works through its own queue, so what it was handed may be decided later. A request for a
//! vote forbids promises below its term from before it is handed over, and standing forbids all promises until
//! consensus has accepted a leader's append that was handed over later. After a start the shell lets a whole lease
//! pass before the first vote, since the promises of the life before are forgotten.

use std::time::Duration;

use crate::{Mono, Term};

/// The promises of one node.
#[derive(Clone, Debug)]
pub struct Promise {
    lease: Duration,
    until: Mono,
    /// No promise is given for a lower term.
    floor: Term,
    /// How often this node stood, and up to which of these times it is known to have come to nothing.
    stood: u64,
    settled: u64,
}

impl Promise {
    /// A node that has promised nothing. `lease` is at least the window of the leaders' tenure.
    pub const fn new(lease: Duration) -> Self {
        Self { lease, until: Mono::ZERO, floor: Term::new(0), stood: 0, settled: 0 }
    }

    /// The leader of `term` asks, and this node follows the leader of `following`. Says whether the promise is given.
    pub fn give(&mut self, now: Mono, term: Term, following: Option<Term>) -> bool {
        let may = following == Some(term) && term.may_act_on(self.floor) && self.stood == self.settled;
        if may {
            self.until = self.until.max(now.after(self.lease));
        }
        may
    }

    /// Whether a promise is in force.
    pub fn binds(&self, now: Mono) -> bool {
        now < self.until
    }

    /// A request for a vote in `term` came. Says whether it may be put to consensus now.
    pub fn vote(&mut self, now: Mono, term: Term) -> bool {
        let may = !self.binds(now);
        if may {
            self.floor = self.floor.max(term);
        }
        may
    }

    /// This node is about to stand.
    pub const fn stand(&mut self) {
        self.stood = self.stood.saturating_add(1);
    }

    /// How often it stood; noted when a leader's append is put to consensus.
    pub const fn stood(&self) -> u64 {
        self.stood
    }

    /// An append was accepted that was put to consensus when this node had stood so often.
    pub fn followed(&mut self, stood: u64) {
        self.settled = self.settled.max(stood);
    }

    /// Whether, as a leader of `term`, this node may still count the promises of others: it has not been asked for a
    /// vote in a newer term.
    pub const fn may_count(&self, term: Term) -> bool {
        term.may_act_on(self.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Mono {
        Mono::from_millis(n)
    }

    const T: Option<Term> = Some(Term::new(4));

    fn promise() -> Promise {
        Promise::new(Duration::from_millis(400))
    }

    #[test]
    fn while_a_promise_binds_no_vote_is_granted() {
        let mut node = promise();
        assert!(node.give(ms(100), Term::new(4), T));
        assert!(node.binds(ms(499)) && !node.vote(ms(499), Term::new(5)));
        assert!(node.may_count(Term::new(4)), "what was refused forbids nothing");
        assert!(!node.binds(ms(500)) && node.vote(ms(500), Term::new(5)));
    }

    #[test]
    fn after_a_request_for_a_newer_vote_the_old_term_is_promised_nothing() {
        let mut node = promise();
        assert!(node.vote(ms(0), Term::new(5)));
        assert!(!node.give(ms(1), Term::new(4), T));
        assert!(!node.may_count(Term::new(4)));
        assert!(node.give(ms(2), Term::new(5), Some(Term::new(5))));
    }

    #[test]
    fn only_the_leader_that_is_followed_gets_a_promise() {
        let mut node = promise();
        assert!(!node.give(ms(0), Term::new(3), T));
        assert!(!node.give(ms(0), Term::new(5), T));
        assert!(!node.give(ms(0), Term::new(4), None));
        assert!(!node.binds(ms(0)));
    }

    #[test]
    fn who_stood_promises_nothing_until_an_append_handed_over_later_is_accepted() {
        let mut node = promise();
        let before = node.stood();
        node.stand();
        node.followed(before);
        assert!(!node.give(ms(0), Term::new(4), T));
        let after = node.stood();
        node.followed(after);
        assert!(node.give(ms(1), Term::new(4), T));
    }
}
