//! What this node counts and times: `holdfast_hub_*`, its own values only.
//!
//! Labels are enums. What can be read off the cluster or the store is read when the metrics are shown.

use holdfast_ops::metrics::{Metrics as Registry, SECONDS};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::cluster::Cluster;
use crate::relay::metrics::RelayMetrics;

/// An enum whose values are the values of a label.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl prometheus_client::encoding::EncodeLabelValue for $name {
            fn encode(
                &self,
                encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
            ) -> Result<(), std::fmt::Error> {
                std::fmt::Write::write_str(encoder, match self { $(Self::$variant => $text,)+ })
            }
        }
    };
}

pub(crate) use label;

label! {
    /// How the forwarding of a request ended.
    ForwardOutcome {
        /// The active node answered.
        Answered = "answered",
        /// The other node was not active either.
        NotActive = "not_active",
        /// There was no active node in time.
        NoLeader = "no_leader",
        /// It broke before anything was sent.
        NotSent = "not_sent",
        /// It broke after something was sent.
        Unknown = "unknown",
    }
}
label! {
    /// The type of a mount.
    MountKind {
        /// `database`.
        Database = "database",
        /// `kv`.
        Kv = "kv",
        /// `token`.
        Token = "token",
        /// `approle`.
        Approle = "approle",
        /// `userpass`.
        Userpass = "userpass",
        /// Any other.
        Other = "other",
    }
}
label! {
    /// How an attempt to revoke a lease ended.
    RevokeOutcome {
        /// It is revoked.
        Revoked = "revoked",
        /// It failed and is tried again.
        Failed = "failed",
        /// It could not be tried and waits.
        Deferred = "deferred",
        /// It is given up until the daily try.
        Irrevocable = "irrevocable",
    }
}
label! {
    /// The state of an intent.
    IntentState {
        /// A user may be being made.
        Open = "open",
        /// The user is being removed.
        Sweep = "sweep",
        /// A late user is being looked for.
        Verify = "verify",
    }
}
label! {
    /// How an attempt to sweep an intent ended.
    SweepOutcome {
        /// The user is removed.
        Removed = "removed",
        /// It failed and is tried again.
        Failed = "failed",
    }
}
label! {
    /// What a database was asked to do.
    DatabaseOp {
        /// Open and check a connection.
        Initialize = "initialize",
        /// Make a user.
        NewUser = "new_user",
        /// Change a user.
        UpdateUser = "update_user",
        /// Remove a user.
        DeleteUser = "delete_user",
    }
}
label! {
    /// The database plugin.
    DatabasePlugin {
        /// PostgreSQL, direct.
        Postgresql = "postgresql",
        /// MySQL or MariaDB, direct.
        Mysql = "mysql",
        /// Through a spoke.
        Remote = "remote",
    }
}
label! {
    /// The kind of a quota.
    QuotaKind {
        /// Requests in an interval.
        Rate = "rate",
        /// Leases.
        LeaseCount = "lease_count",
    }
}
label! {
    /// What an audit device does.
    DeviceState {
        /// It takes entries.
        Working = "working",
        /// It does not answer and is skipped.
        Blocked = "blocked",
        /// It refused the last entry and is skipped.
        Failed = "failed",
    }
}

impl From<&str> for MountKind {
    fn from(kind: &str) -> Self {
        match kind {
            "database" => Self::Database,
            "kv" => Self::Kv,
            "token" => Self::Token,
            "approle" => Self::Approle,
            "userpass" => Self::Userpass,
            _ => Self::Other,
        }
    }
}

macro_rules! labels {
    ($($name:ident { $($field:ident: $type:ty),+ })+) => {
        $(
            /// A label set.
            #[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
            pub struct $name {
                $(
                    /// The label of this name.
                    pub $field: $type,
                )+
            }
        )+
    };
}

labels! {
    Forwarded { outcome: ForwardOutcome }
    ByMount { mount_type: MountKind }
    Revoked { outcome: RevokeOutcome }
    ByIntent { state: IntentState }
    Swept { outcome: SweepOutcome }
    Database { op: DatabaseOp, plugin: DatabasePlugin }
    Rejected { kind: QuotaKind }
    ByDevice { state: DeviceState }
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The metrics of a node. Clones count into the same ones.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// The relay's.
    pub relay: RelayMetrics,
    active: Gauge,
    term: Gauge,
    store_bytes: Gauge,
    /// Elections that this node saw.
    pub elections: Counter,
    /// From winning an election to serving.
    pub gate_open_seconds: Histogram,
    /// From proposing a batch to its answer.
    pub commit_seconds: Histogram,
    /// Requests sent on to the active node.
    pub forwarded_requests: Family<Forwarded, Counter>,
    /// Live leases.
    pub leases: Family<ByMount, Gauge>,
    /// Attempts to revoke.
    pub revoke: Family<Revoked, Counter>,
    /// Leases that could not be revoked.
    pub irrevocable: Gauge,
    /// Users being made or removed.
    pub intents: Family<ByIntent, Gauge>,
    /// Attempts to remove a user that must not stay.
    pub swept: Family<Swept, Counter>,
    /// Users that belong to no lease and could not be removed yet.
    pub orphan_suspects: Gauge,
    /// Calls of databases.
    pub db_seconds: Histograms<Database>,
    /// Static roles whose rotation is late.
    pub static_overdue: Gauge,
    /// Time until an audit entry was taken.
    pub audit_seconds: Histogram,
    /// Entries that a device did not take.
    pub audit_failures: Counter,
    /// Audit devices by what they do.
    pub audit_devices: Family<ByDevice, Gauge>,
    /// Requests and leases that a quota refused.
    pub quota_rejected: Family<Rejected, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

impl Metrics {
    /// Everything at zero.
    pub fn new() -> Self {
        let r = Registry::new("holdfast_hub");
        Self {
            active: r.register("active", "Whether this node is the active one", Gauge::default()),
            term: r.register("term", "The term of the leader this node knows", Gauge::default()),
            store_bytes: r.register("store_bytes", "Bytes of log and state on disk", Gauge::default()),
            elections: r.register("elections", "Elections this node saw", Counter::default()),
            gate_open_seconds: r.register("gate_open_seconds", "From election to serving", seconds()),
            commit_seconds: r.register("commit_seconds", "From proposal to answer of a batch", seconds()),
            forwarded_requests: r.register(
                "forwarded_requests",
                "Requests sent on to the active node",
                Family::default(),
            ),
            leases: r.register("leases", "Live leases", Family::default()),
            revoke: r.register("revoke", "Attempts to revoke a lease", Family::default()),
            irrevocable: r.register("irrevocable", "Leases that cannot be revoked", Gauge::default()),
            intents: r.register("intents", "Users being made or removed", Family::default()),
            swept: r.register("swept", "Attempts to remove a user without a lease", Family::default()),
            orphan_suspects: r.register(
                "orphan_suspects",
                "Users without a lease that could not be removed yet",
                Gauge::default(),
            ),
            db_seconds: r.register(
                "db_seconds",
                "Calls of databases",
                Family::new_with_constructor(seconds as fn() -> Histogram),
            ),
            static_overdue: r.register("static_overdue", "Static roles rotated late", Gauge::default()),
            audit_seconds: r.register("audit_seconds", "Time to take an audit entry", seconds()),
            audit_failures: r.register("audit_failures", "Entries not taken by a device", Counter::default()),
            audit_devices: r.register("audit_devices", "Audit devices", Family::default()),
            quota_rejected: r.register("quota_rejected", "What quotas refused", Family::default()),
            relay: RelayMetrics::new(),
            registry: r,
        }
    }

    /// What only the active node knows is nothing that a standby may go on showing.
    fn forget_active(&self) {
        self.leases.clear();
        self.intents.clear();
        for gauge in [&self.irrevocable, &self.orphan_suspects, &self.static_overdue] {
            gauge.set(0);
        }
    }

    /// All metrics in the text format 0.0.4, with what the cluster knows now.
    pub fn render(&self, cluster: &dyn Cluster) -> String {
        let view = cluster.view();
        let term = view.active.or(view.leader.map(|leader| leader.term));
        self.active.set(i64::from(view.active.is_some()));
        self.term.set(term.map_or(0, |t| i64::try_from(t.into_inner()).unwrap_or(i64::MAX)));
        self.store_bytes.set(i64::try_from(cluster.store_bytes()).unwrap_or(i64::MAX));
        if view.active.is_none() {
            self.forget_active();
        }
        self.registry.render() + &self.relay.render()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::Term;

    use super::*;
    use crate::testing::FakeCluster;

    #[test]
    fn a_standby_shows_nothing_of_what_it_counted_while_it_was_active() {
        let (metrics, cluster) = (Metrics::new(), FakeCluster::active("n", Term::new(7)));
        metrics.leases.get_or_create(&ByMount { mount_type: MountKind::Database }).set(3);
        metrics.intents.get_or_create(&ByIntent { state: IntentState::Sweep }).set(2);
        metrics.irrevocable.set(1);
        assert!(metrics.render(&*cluster).contains("holdfast_hub_leases{"));
        cluster.lose_leader();
        let text = metrics.render(&*cluster);
        assert!(!text.contains("holdfast_hub_leases{") && !text.contains("holdfast_hub_intents{"), "{text}");
        assert!(text.contains("holdfast_hub_irrevocable 0"), "{text}");
    }

    #[test]
    fn every_metric_has_its_name() {
        let metrics = Metrics::new();
        metrics.forwarded_requests.get_or_create(&Forwarded { outcome: ForwardOutcome::NotActive }).inc();
        metrics.leases.get_or_create(&ByMount { mount_type: "database".into() }).set(3);
        metrics.revoke.get_or_create(&Revoked { outcome: RevokeOutcome::Deferred }).inc();
        metrics.intents.get_or_create(&ByIntent { state: IntentState::Open }).set(1);
        metrics.swept.get_or_create(&Swept { outcome: SweepOutcome::Removed }).inc();
        let labels = Database { op: DatabaseOp::NewUser, plugin: DatabasePlugin::Mysql };
        metrics.db_seconds.get_or_create(&labels).observe(0.1);
        metrics.quota_rejected.get_or_create(&Rejected { kind: QuotaKind::LeaseCount }).inc();
        let text = metrics.render(&*FakeCluster::active("n", Term::new(7)));
        for line in [
            "active 1",
            "term 7",
            "elections_total 0",
            "gate_open_seconds_count 0",
            "commit_seconds_count 0",
            "forwarded_requests_total{outcome=\"not_active\"} 1",
            "leases{mount_type=\"database\"} 3",
            "revoke_total{outcome=\"deferred\"} 1",
            "irrevocable 0",
            "intents{state=\"open\"} 1",
            "swept_total{outcome=\"removed\"} 1",
            "orphan_suspects 0",
            "db_seconds_count{op=\"new_user\",plugin=\"mysql\"} 1",
            "static_overdue 0",
            "audit_seconds_count 0",
            "audit_failures_total 0",
            "quota_rejected_total{kind=\"lease_count\"} 1",
            "store_bytes 0",
        ] {
            let line = format!("holdfast_hub_{line}");
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }
}
