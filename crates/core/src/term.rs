//! Numbers that only grow and that decide who may still write: terms, epochs and generations.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! growing {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Wraps a number.
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The successor; saturates, so that it never wraps to an old value.
            pub const fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }

            /// The bare number, for wire formats and display.
            pub const fn into_inner(self) -> u64 {
                self.0
            }

            /// Whether something that carries `self` may act on a record last written under `held`.
            ///
            /// Equal numbers belong to the same holder and may act; an older one may not.
            pub const fn may_act_on(self, held: Self) -> bool {
                self.0 >= held.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

growing! {
    /// A term of leadership. At most one node leads in a term; a write that carries an older one is refused.
    Term
}
growing! {
    /// A session number chosen by the dialling side; grows with every dial.
    Epoch
}
growing! {
    /// A position in the replicated log; 0 stands before the first entry.
    LogIndex
}
growing! {
    /// A version of a configuration handed out by a control plane.
    Generation
}

/// The number by which consensus knows a member of the cluster. It names, it does not order.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct MemberId(u64);

impl MemberId {
    /// Wraps a number.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The bare number, for wire formats and display.
    pub const fn into_inner(self) -> u64 {
        self.0
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_term_may_not_act() {
        assert!(Term::new(3).may_act_on(Term::new(3)));
        assert!(Term::new(4).may_act_on(Term::new(3)));
        assert!(!Term::new(2).may_act_on(Term::new(3)));
    }

    #[test]
    fn the_successor_never_wraps() {
        assert_eq!(Term::new(u64::MAX).next(), Term::new(u64::MAX));
    }
}
