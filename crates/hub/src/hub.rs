//! The services of an unsealed node, in one place.

use std::path::PathBuf;
use std::sync::Arc;

use holdfast_core::Term;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::audit::Audit;
use crate::auth::token::Tokens;
use crate::cluster::Cluster;
use crate::handover::Handover;
use crate::lease::Leases;
use crate::logical::Cx;
use crate::metrics::Metrics;
use crate::mount::Mounts;
use crate::policy::Policies;
use crate::quota::Quotas;
use crate::relay::Relay;
use crate::storage::Storage;

/// The services of an unsealed node. Made at unseal, dropped at seal.
pub struct Hub {
    /// The whole store, not fenced: reads only. Work on the active node uses the storage of its [`Cx`].
    pub storage: Storage,
    /// Leadership and membership.
    pub cluster: Arc<dyn Cluster>,
    /// Hands leadership over without failing what is under way.
    pub handover: Handover,
    /// The mount table and the engines behind it.
    pub mounts: Mounts,
    /// The spokes that are connected, here and elsewhere.
    pub spokes: Arc<crate::relay::spokes::Spokes>,
    /// Policies.
    pub policies: Policies,
    /// Tokens.
    pub tokens: Tokens,
    /// Leases and their revocation.
    pub leases: Leases,
    /// Audit devices.
    pub audit: Audit,
    /// Quotas.
    pub quotas: Quotas,
    /// The relay.
    pub relay: Relay,
    /// What this node counts.
    pub metrics: Metrics,
    /// Where temporary files go: a folder of this node's data directory.
    pub scratch: PathBuf,
}

impl Hub {
    /// A context for work in `term`, by `deadline`, until `cancel`.
    pub fn cx(self: &Arc<Self>, term: Term, deadline: Instant, cancel: CancellationToken) -> Cx {
        Cx { hub: Arc::clone(self), storage: self.storage.fenced(term), term, deadline, cancel }
    }
}
