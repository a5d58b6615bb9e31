//! Which node answers a path, and whether it must be unsealed for it.

use super::head::Head;
use crate::logical::Operation;

/// Where a request is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// By the node that was asked, sealed or not, without a token.
    Open(Open),
    /// By the node that was asked, once it is unsealed, after the checks of token and policy.
    Here(Here),
    /// By the active node, without a token.
    Bootstrap(Bootstrap),
    /// By the active node.
    Active,
    /// A path of the first kind with a verb that it does not have.
    WrongVerb,
}

/// What any node answers in any state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Open {
    /// `sys/health`
    Health,
    /// `sys/seal-status`
    SealStatus,
    /// `sys/leader`
    Leader,
    /// `sys/init`, read.
    InitStatus,
    /// `sys/init`, written.
    Init,
    /// `sys/unseal`
    Unseal,
    /// `sys/storage/raft/join`
    Join,
}

/// What each unsealed node answers itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Here {
    /// `?help=1`
    Help,
    /// `sys/seal`
    Seal,
    /// `sys/metrics`
    Metrics,
    /// The spokes of this node, when the active one does not answer.
    Spokes,
}

/// The cluster's side of a join.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bootstrap {
    /// `sys/storage/raft/bootstrap/challenge`
    Challenge,
    /// `sys/storage/raft/bootstrap/answer`
    Answer,
}

impl Place {
    /// Where a request is answered.
    pub fn of(head: &Head) -> Self {
        use Operation::{Read, Write};
        if head.help {
            return Self::Here(Here::Help);
        }
        match (head.path.as_str(), head.operation) {
            ("sys/health", Read) => Self::Open(Open::Health),
            ("sys/seal-status", Read) => Self::Open(Open::SealStatus),
            ("sys/leader", Read) => Self::Open(Open::Leader),
            ("sys/init", Read) => Self::Open(Open::InitStatus),
            ("sys/init", Write) => Self::Open(Open::Init),
            ("sys/unseal", Write) => Self::Open(Open::Unseal),
            ("sys/storage/raft/join", Write) => Self::Open(Open::Join),
            ("sys/storage/raft/bootstrap/challenge", Write) => Self::Bootstrap(Bootstrap::Challenge),
            ("sys/storage/raft/bootstrap/answer", Write) => Self::Bootstrap(Bootstrap::Answer),
            ("sys/seal", Write) => Self::Here(Here::Seal),
            ("sys/metrics", Read) => Self::Here(Here::Metrics),
            (
                "sys/health"
                | "sys/seal-status"
                | "sys/leader"
                | "sys/init"
                | "sys/unseal"
                | "sys/storage/raft/join",
                _,
            ) => Self::WrongVerb,
            _ => Self::Active,
        }
    }
}
