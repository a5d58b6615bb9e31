//! What this node counts and times of the relay: `holdfast_relay_*`.

use bytes::Bytes;
use holdfast_core::Kind;
use holdfast_core::ownership::announcer::Trigger as Why;
use holdfast_ops::metrics::{Metrics as Registry, SECONDS};
use holdfast_proto::relay::v1 as proto;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::failure::CommandFailure;
use crate::error::ApiError;
use crate::metrics::label;

label! {
    /// Where a command's spoke was.
    Route {
        /// On this node.
        Local = "local",
        /// On another one.
        Forwarded = "forwarded",
    }
}
label! {
    /// How a command ended.
    CommandOutcome {
        /// With its output.
        Done = "done",
        /// The database refused it.
        Driver = "driver",
        /// The spoke has no stream.
        NotConnected = "not_connected",
        /// The node that owns the stream cannot be reached.
        CannotReach = "cannot_reach",
        /// Too much is under way.
        Busy = "busy",
        /// Out of time.
        Deadline = "deadline",
        /// It broke under way.
        Lost = "lost",
        /// This node is not active.
        NotActive = "not_active",
        /// The spoke refused it.
        Refused = "refused",
    }
}
label! {
    /// The method of a command.
    CommandMethod {
        /// `initialize`
        Initialize = "initialize",
        /// `new_user`
        NewUser = "new_user",
        /// `update_user`
        UpdateUser = "update_user",
        /// `delete_user`
        DeleteUser = "delete_user",
        /// `verify_password`
        VerifyPassword = "verify_password",
        /// `close`
        Close = "close",
        /// Any other.
        Other = "other",
    }
}
label! {
    /// How resolving a second time ended.
    ReresolveOutcome {
        /// Another way was found.
        Found = "found",
        /// None was.
        Failed = "failed",
    }
}
label! {
    /// Why a set was announced.
    Trigger {
        /// A stream was accepted.
        Connect = "connect",
        /// A stream ended.
        Drop = "drop",
        /// Another node leads.
        Leader = "leader",
        /// An interval passed.
        Tick = "tick",
        /// An earlier set failed.
        Retry = "retry",
    }
}
label! {
    /// How a signing, or an enrolment, ended.
    SignOutcome {
        /// There is a certificate.
        Signed = "signed",
        /// It was refused.
        Refused = "refused",
        /// It could not be done now.
        Failed = "failed",
    }
}

impl SignOutcome {
    /// How it ended.
    pub fn of<T>(signed: &Result<T, ApiError>) -> Self {
        match signed {
            Ok(_) => Self::Signed,
            Err(error) if matches!(error.kind(), Kind::Invalid | Kind::Denied) => Self::Refused,
            Err(_) => Self::Failed,
        }
    }
}

impl From<Why> for Trigger {
    fn from(why: Why) -> Self {
        match why {
            Why::Connect => Self::Connect,
            Why::Drop => Self::Drop,
            Why::Leader => Self::Leader,
            Why::Tick => Self::Tick,
            Why::Retry => Self::Retry,
        }
    }
}

impl From<proto::Method> for CommandMethod {
    fn from(method: proto::Method) -> Self {
        match method {
            proto::Method::Initialize => Self::Initialize,
            proto::Method::NewUser => Self::NewUser,
            proto::Method::UpdateUser => Self::UpdateUser,
            proto::Method::DeleteUser => Self::DeleteUser,
            proto::Method::VerifyPassword => Self::VerifyPassword,
            proto::Method::Close => Self::Close,
            _ => Self::Other,
        }
    }
}

impl From<&Result<Bytes, CommandFailure>> for CommandOutcome {
    fn from(answer: &Result<Bytes, CommandFailure>) -> Self {
        match answer {
            Ok(_) => Self::Done,
            Err(CommandFailure::Driver(_)) => Self::Driver,
            Err(CommandFailure::NotConnected | CommandFailure::Sealed) => Self::NotConnected,
            Err(CommandFailure::CannotReach { .. }) => Self::CannotReach,
            Err(CommandFailure::Busy) => Self::Busy,
            Err(CommandFailure::Deadline { .. } | CommandFailure::Cancelled) => Self::Deadline,
            Err(CommandFailure::Lost { .. } | CommandFailure::Broken { .. }) => Self::Lost,
            Err(CommandFailure::NotActive | CommandFailure::StaleTerm(_)) => Self::NotActive,
            Err(
                CommandFailure::Invalid(_) | CommandFailure::UnknownPlugin(_) | CommandFailure::Denied(_),
            ) => Self::Refused,
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
    Commands { route: Route, outcome: CommandOutcome }
    CommandTimes { route: Route, method: CommandMethod }
    Reresolved { outcome: ReresolveOutcome }
    Announced { trigger: Trigger }
    Signing { outcome: SignOutcome }
}

/// The relay's metrics of a node. Clones count into the same ones.
#[derive(Clone, Debug)]
pub struct RelayMetrics {
    registry: Registry,
    /// Open streams.
    pub streams: Gauge,
    /// Streams on which nothing came for long.
    pub stale: Gauge,
    /// Streams of all nodes that this node knows as the active one.
    pub registry_entries: Gauge,
    /// Streams forgotten since their node was silent.
    pub registry_expired: Counter,
    /// Commands.
    pub commands: Family<Commands, Counter>,
    /// How long commands took.
    pub command_seconds: Family<CommandTimes, Histogram, fn() -> Histogram>,
    /// Commands that were resolved a second time.
    pub reresolve: Family<Reresolved, Counter>,
    /// From becoming active to knowing all streams.
    pub prime_seconds: Histogram,
    /// Sets told to the active node.
    pub announce: Family<Announced, Counter>,
    /// Their bytes, as they are encoded.
    pub announce_bytes: Counter,
    /// Streams that a newer one replaced.
    pub superseded: Counter,
    /// Spokes that were sent on.
    pub redirects: Counter,
    /// Renewals.
    pub sign: Family<Signing, Counter>,
    /// Enrolments.
    pub enrol: Family<Signing, Counter>,
    /// Two nodes claimed the same dial.
    pub ownership_conflict: Counter,
}

impl Default for RelayMetrics {
    fn default() -> Self {
        Self::new()
    }
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

impl RelayMetrics {
    /// Everything at zero.
    pub fn new() -> Self {
        let r = Registry::new("holdfast_relay");
        Self {
            streams: r.register("streams", "Streams of spokes on this node", Gauge::default()),
            stale: r.register("stale", "Streams on which nothing came for long", Gauge::default()),
            registry_entries: r.register("registry_entries", "Known streams of all nodes", Gauge::default()),
            registry_expired: r.register(
                "registry_expired",
                "Streams forgotten because their node was silent",
                Counter::default(),
            ),
            commands: r.register("commands", "Commands to spokes", Family::default()),
            command_seconds: r.register(
                "command_seconds",
                "Commands to spokes",
                Family::new_with_constructor(seconds as fn() -> Histogram),
            ),
            reresolve: r.register("reresolve", "Commands resolved a second time", Family::default()),
            prime_seconds: r.register("prime_seconds", "From active to knowing all streams", seconds()),
            announce: r.register("announce", "Sets told to the active node", Family::default()),
            announce_bytes: r.register("announce_bytes", "Bytes of those sets", Counter::default()),
            superseded: r.register("superseded", "Streams replaced by a newer one", Counter::default()),
            redirects: r.register("redirects", "Spokes sent on to another node", Counter::default()),
            sign: r.register("sign", "Renewals of certificates", Family::default()),
            enrol: r.register("enrol", "Enrolments of spokes", Family::default()),
            ownership_conflict: r.register(
                "ownership_conflict",
                "Two nodes claimed the same dial of a spoke",
                Counter::default(),
            ),
            registry: r,
        }
    }

    /// All of it in the text format 0.0.4.
    pub fn render(&self) -> String {
        self.registry.render()
    }
}
