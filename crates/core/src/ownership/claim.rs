//! A claim: one stream of one spoke as its owner tells of it, and the table that decides between two.

use std::fmt;
use std::time::Duration;

use super::NodeName;
use crate::SpokeName;
use crate::{Epoch, Term};

/// 16 random bytes, new with every start of a spoke's daemon.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct BootId([u8; 16]);

impl BootId {
    /// Wraps the bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, for wire formats.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl TryFrom<&[u8]> for BootId {
    type Error = std::array::TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        bytes.try_into().map(Self)
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What tells a spoke's dials apart. The order is the freshness: the higher epoch, and the larger boot id when two
/// daemons came to the same epoch. Only stamps of one spoke may be compared.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Stamp {
    /// Grows with every dial of the spoke.
    pub epoch: Epoch,
    /// The daemon that dialled.
    pub boot: BootId,
}

/// The number of a set within its node. Begins at the node's own milliseconds since 1970 when it is unsealed and grows
/// by one with every set, so that sets of two lives of a node are in order too.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Seq(u64);

impl Seq {
    /// Wraps a number.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The bare number, for wire formats.
    pub const fn into_inner(self) -> u64 {
        self.0
    }

    /// The successor.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// One stream, as its owner tells of it. Ages are as of the moment at which the claim is made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claim {
    /// Whose stream.
    pub spoke: SpokeName,
    /// Which of its dials.
    pub stamp: Stamp,
    /// How long the stream has been up.
    pub connected_age: Duration,
    /// How long ago the last frame came.
    pub seen_age: Duration,
    /// When the spoke's certificate ends, in seconds since 1970; 0 is unknown.
    pub cert_not_after: i64,
}

/// All streams of one node. What is not in it is not there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SpokeSet {
    /// The term of the leader that the sender believes in.
    pub term: Term,
    /// Whose streams.
    pub node: NodeName,
    /// Which of its sets.
    pub seq: Seq,
    /// The streams.
    pub spokes: Vec<Claim>,
}

/// A stream that has to end because another of the same spoke won.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Superseded {
    /// Whose stream.
    pub spoke: SpokeName,
    /// The stream that ends.
    pub stamp: Stamp,
    /// The one that stays, or that was in the way.
    pub by: Stamp,
    /// Whether that one was heard of lately. When not, the loser may dial again at once with a higher epoch.
    pub alive: bool,
}

/// What becomes of an incoming claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It is fresher: take it.
    Take,
    /// It wins over another daemon of the same epoch: take it, and say that two use one identity.
    TakeFromTwin,
    /// It is the held one.
    Refresh,
    /// Two nodes claim the very same dial: keep the held one and count.
    Conflict,
    /// It loses against another daemon of the same epoch: refuse it, and say that two use one identity.
    RefuseTwin,
    /// It is older: refuse it.
    Refuse,
}

/// The table: an incoming claim against the held one, and whether both are of the same node.
pub fn judge(held: Stamp, claim: Stamp, same_node: bool) -> Verdict {
    if claim == held {
        return if same_node { Verdict::Refresh } else { Verdict::Conflict };
    }
    match (claim > held, claim.epoch == held.epoch) {
        (true, false) => Verdict::Take,
        (true, true) => Verdict::TakeFromTwin,
        (false, true) => Verdict::RefuseTwin,
        (false, false) => Verdict::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(epoch: u64, boot: u8) -> Stamp {
        Stamp { epoch: Epoch::new(epoch), boot: BootId::new([boot; 16]) }
    }

    #[test]
    fn the_table_of_two_claims() {
        let held = stamp(5, 5);
        let rows = [
            (stamp(6, 1), false, Verdict::Take),
            (stamp(6, 9), true, Verdict::Take),
            (stamp(5, 5), true, Verdict::Refresh),
            (stamp(5, 5), false, Verdict::Conflict),
            (stamp(5, 6), false, Verdict::TakeFromTwin),
            (stamp(5, 4), false, Verdict::RefuseTwin),
            (stamp(4, 9), false, Verdict::Refuse),
            (stamp(4, 5), true, Verdict::Refuse),
        ];
        for (claim, same_node, verdict) in rows {
            assert_eq!(judge(held, claim, same_node), verdict, "{claim:?}");
        }
    }

    #[test]
    fn of_two_claims_one_wins_whichever_came_first() {
        let stamps = [stamp(4, 9), stamp(5, 1), stamp(5, 2), stamp(6, 1)];
        let takes = |held, claim| matches!(judge(held, claim, false), Verdict::Take | Verdict::TakeFromTwin);
        for one in stamps {
            for other in stamps.into_iter().filter(|other| *other != one) {
                assert!(takes(one, other) != takes(other, one), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_boot_id_has_sixteen_bytes() {
        assert_eq!(BootId::try_from(&[7; 16][..]).unwrap(), BootId::new([7; 16]));
        assert!(BootId::try_from(&[7; 15][..]).is_err());
        assert_eq!(BootId::new([0xab; 16]).to_string(), "ab".repeat(16));
    }
}
