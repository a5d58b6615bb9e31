//! How long a term may be trusted on this machine's own clock.
//!
//! Shared by both ways of electing: a raft leader renews by quorum acknowledgements, the holder of a lease record
//! by renewals of the record. In both, validity counts from the moment the renewal was *sent*, because the other
//! side counts from a later moment.

use std::time::Duration;

use crate::{Mono, Term};

/// One term, and until when it may be trusted without another renewal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tenure {
    term: Term,
    window: Duration,
    renewed: Option<Mono>,
}

impl Tenure {
    /// A term that nothing has confirmed yet; each renewal trusts it for `window`.
    pub const fn new(term: Term, window: Duration) -> Self {
        Self { term, window, renewed: None }
    }

    /// Takes a renewal of `term` that was sent at `sent`. `false`, and no change, when it is of another term.
    ///
    /// Renewals may arrive out of order: an older one never shortens what a newer one granted.
    pub fn renew(&mut self, term: Term, sent: Mono) -> bool {
        if term != self.term {
            return false;
        }
        self.renewed = Some(self.renewed.map_or(sent, |before| before.max(sent)));
        true
    }

    /// The term.
    pub const fn term(&self) -> Term {
        self.term
    }

    /// When the newest renewal was sent.
    pub const fn renewed(&self) -> Option<Mono> {
        self.renewed
    }

    /// The first instant at which the term may no longer be trusted; `None` before the first renewal.
    pub fn valid_until(&self) -> Option<Mono> {
        self.renewed.map(|sent| sent.after(self.window))
    }

    /// Whether the term may be acted on now and for another `margin`.
    pub fn holds(&self, now: Mono, margin: Duration) -> bool {
        self.valid_until().is_some_and(|until| now.after(margin) < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(400);

    #[test]
    fn validity_counts_from_the_sending_and_never_shrinks() {
        let mut tenure = Tenure::new(Term::new(2), WINDOW);
        assert!(!tenure.holds(Mono::ZERO, Duration::ZERO));
        assert!(tenure.renew(Term::new(2), Mono::from_millis(100)));
        assert!(tenure.renew(Term::new(2), Mono::from_millis(50)));
        assert_eq!(tenure.valid_until(), Some(Mono::from_millis(500)));
        assert!(tenure.holds(Mono::from_millis(499), Duration::ZERO));
        assert!(!tenure.holds(Mono::from_millis(500), Duration::ZERO));
        assert!(!tenure.holds(Mono::from_millis(490), Duration::from_millis(10)));
    }

    #[test]
    fn a_renewal_of_another_term_is_not_ours() {
        let mut tenure = Tenure::new(Term::new(2), WINDOW);
        assert!(!tenure.renew(Term::new(3), Mono::from_millis(100)));
        assert!(!tenure.renew(Term::new(1), Mono::from_millis(100)));
        assert_eq!(tenure.renewed(), None);
    }
}
