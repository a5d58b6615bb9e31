//! When a label outside the cluster that says whether this node is active has to be written.
//!
//! What must hold: only a write that is known to have succeeded counts as known, since one that failed may have
//! got there all the same; a change is written at once, and what nobody changed is written again from time to time, for
//! somebody else may have.

use std::time::Duration;

use crate::Mono;

/// The times of a [`Label`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The pause after a write that failed; 1 s.
    pub retry: Duration,
    /// After how long a label that was written is written again; 60 s.
    pub refresh: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { retry: Duration::from_secs(1), refresh: Duration::from_secs(60) }
    }
}

/// What is known of the label.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Known {
    /// Nothing; not to be written before this time.
    Nothing { until: Mono },
    /// It said this at this time.
    Says { active: bool, at: Mono },
}

/// The label of one node.
#[derive(Clone, Debug)]
pub struct Label {
    timing: Timing,
    known: Known,
}

impl Label {
    /// A label of which nothing is known.
    pub const fn new(timing: Timing) -> Self {
        Self { timing, known: Known::Nothing { until: Mono::ZERO } }
    }

    /// Whether the label has to be written now, when the node is active or not.
    pub fn is_due(&self, now: Mono, active: bool) -> bool {
        match self.known {
            Known::Nothing { until } => now >= until,
            Known::Says { active: said, at } => said != active || now.since(at) >= self.timing.refresh,
        }
    }

    /// It was written.
    pub const fn written(&mut self, now: Mono, active: bool) {
        self.known = Known::Says { active, at: now };
    }

    /// Writing it failed, or nobody knows whether it did.
    pub fn failed(&mut self, now: Mono) {
        self.known = Known::Nothing { until: now.after(self.timing.retry) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(n: u64) -> Mono {
        Mono::from_millis(n * 1000)
    }

    #[test]
    fn a_change_is_written_at_once_and_the_same_only_after_a_while() {
        let mut label = Label::new(Timing::default());
        assert!(label.is_due(s(0), false), "nothing is known at first");
        label.written(s(0), false);
        assert!(label.is_due(s(0), true) && !label.is_due(s(59), false));
        assert!(label.is_due(s(60), false));
        label.written(s(60), true);
        assert!(label.is_due(s(60), false) && !label.is_due(s(119), true) && label.is_due(s(120), true));
    }

    #[test]
    fn after_a_failure_nothing_is_known_whatever_was_written_before() {
        let mut label = Label::new(Timing::default());
        label.written(s(0), false);
        // The node became active; the answer to the write was lost, and the node is active no more.
        label.failed(s(2));
        assert!(!label.is_due(Mono::from_millis(2999), false), "a pause after a failure");
        assert!(label.is_due(s(3), false), "the label may say that it is active");
        label.failed(s(3));
        assert!(!label.is_due(s(3), true) && label.is_due(s(4), true));
    }
}
