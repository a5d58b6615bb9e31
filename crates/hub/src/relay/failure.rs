//! Why a command to a spoke has no output, and what its caller makes of it.
//!
//! What must hold: a failure that says that nothing was done is a proof; what may have been done is told as such, so
//! that the intent protocol cleans up after it.

use holdfast_core::SpokeName;
use holdfast_core::Term;
use holdfast_dbdriver::{DriverError, Reason};
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::command_error::Kind;

/// Why a command has no output.
#[derive(Clone, Debug)]
pub enum CommandFailure {
    /// The spoke has no stream here; nothing was sent.
    NotConnected,
    /// Its stream ended with the command under way.
    Lost {
        /// A newer stream of the same spoke took its place.
        reconnected: bool,
    },
    /// The node that was asked is not active, or this one is not.
    NotActive,
    /// The node that was asked is sealed.
    Sealed,
    /// As many commands are under way as the spoke or the hub allows.
    Busy,
    /// The deadline passed.
    Deadline {
        /// The command was on its way by then.
        sent: bool,
    },
    /// It was cancelled under way.
    Cancelled,
    /// The node that was asked has seen this higher term.
    StaleTerm(Term),
    /// The command makes no sense to the spoke.
    Invalid(String),
    /// The spoke has no such plugin.
    UnknownPlugin(String),
    /// The spoke may not do this.
    Denied(String),
    /// The database's own failure.
    Driver(DriverError),
    /// No connection to the node that owns the stream.
    CannotReach {
        /// Its cluster address.
        address: String,
        /// Why.
        cause: String,
    },
    /// The call to the owner broke after it was sent.
    Broken {
        /// Its cluster address.
        address: String,
        /// Why.
        cause: String,
    },
}

impl CommandFailure {
    /// The failure as drivers tell theirs; scrubbed by the caller.
    pub fn into_driver_error(self, spoke: &SpokeName) -> DriverError {
        let new = |reason, text: String| DriverError::new(reason, text);
        match self {
            Self::NotConnected | Self::Sealed => {
                new(Reason::Unreachable, format!("spoke not connected: \"{spoke}\""))
            }
            Self::Lost { reconnected } => {
                let what = if reconnected { "reconnected" } else { "disconnected" };
                new(Reason::Lost, format!("spoke \"{spoke}\" {what} while the operation ran"))
                    .with_unknown_effect()
            }
            // Leadership went; nothing was done.
            Self::NotActive | Self::StaleTerm(_) => DriverError::closed(),
            Self::Busy => new(Reason::Busy, format!("spoke \"{spoke}\" is busy")),
            Self::Deadline { sent: false } => DriverError::deadline(),
            Self::Deadline { sent: true } => DriverError::deadline().with_unknown_effect(),
            Self::Cancelled => DriverError::cancelled().with_unknown_effect(),
            Self::Invalid(text) | Self::UnknownPlugin(text) => DriverError::invalid(text),
            Self::Denied(text) => new(Reason::Denied, text),
            Self::Driver(error) => error,
            Self::CannotReach { address, cause } => {
                new(Reason::Unreachable, format!("cannot reach spoke owner {address}: {cause}"))
            }
            Self::Broken { address, cause } => {
                new(Reason::Lost, format!("the call to spoke owner {address} broke: {cause}"))
                    .with_unknown_effect()
            }
        }
    }

    /// As another node is told.
    pub fn to_wire(&self, spoke: &SpokeName, leader: &str) -> proto::CommandError {
        let text = |text: &str| proto::Text { text: text.to_owned() };
        let not_connected = |under_way, reconnected| {
            let spoke_name = spoke.to_string();
            Kind::NotConnected(proto::NotConnected { spoke_name, reconnected, under_way })
        };
        let kind = match self {
            // A command is forwarded once, so its failed forwarding is nobody's to tell.
            Self::NotConnected | Self::CannotReach { .. } => not_connected(false, false),
            Self::Lost { reconnected } => not_connected(true, *reconnected),
            Self::Broken { .. } => not_connected(true, false),
            Self::NotActive => Kind::NotActive(proto::NotActive { leader: leader.to_owned() }),
            Self::Sealed => Kind::Sealed(proto::Empty {}),
            Self::Busy => Kind::Busy(proto::Empty {}),
            Self::Deadline { .. } => Kind::Deadline(proto::Empty {}),
            Self::Cancelled => Kind::Cancelled(proto::Empty {}),
            Self::StaleTerm(term) => Kind::StaleTerm(proto::StaleTerm { term: term.into_inner() }),
            Self::Invalid(cause) => Kind::Invalid(text(cause)),
            Self::UnknownPlugin(cause) => Kind::UnknownPlugin(text(cause)),
            Self::Denied(cause) => Kind::Denied(text(cause)),
            Self::Driver(error) => Kind::Driver(holdfast_dbdriver::wire::to_wire(error)),
        };
        proto::CommandError { kind: Some(kind) }
    }
}

/// A failure of a newer version says nothing that could be relied on.
impl From<proto::CommandError> for CommandFailure {
    fn from(error: proto::CommandError) -> Self {
        match error.kind {
            Some(Kind::NotConnected(lost)) if lost.under_way => Self::Lost { reconnected: lost.reconnected },
            Some(Kind::NotConnected(_)) => Self::NotConnected,
            Some(Kind::NotActive(_)) => Self::NotActive,
            Some(Kind::Sealed(_)) => Self::Sealed,
            Some(Kind::Busy(_)) => Self::Busy,
            Some(Kind::Deadline(_)) => Self::Deadline { sent: true },
            Some(Kind::Cancelled(_)) => Self::Cancelled,
            Some(Kind::StaleTerm(stale)) => Self::StaleTerm(Term::new(stale.term)),
            Some(Kind::Invalid(text)) => Self::Invalid(text.text),
            Some(Kind::UnknownPlugin(text)) => Self::UnknownPlugin(text.text),
            Some(Kind::Denied(text)) => Self::Denied(text.text),
            Some(Kind::Driver(failure)) => Self::Driver(holdfast_dbdriver::wire::from_wire(&failure)),
            None => Self::Driver(
                DriverError::new(Reason::Internal, "the spoke gave an answer of an unknown kind")
                    .with_unknown_effect(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoke() -> SpokeName {
        SpokeName::parse("spoke-1").unwrap()
    }

    fn through_the_wire(failure: &CommandFailure) -> DriverError {
        CommandFailure::from(failure.to_wire(&spoke(), "")).into_driver_error(&spoke())
    }

    #[test]
    fn what_proves_that_nothing_was_done_still_does_so_after_the_wire() {
        let definite = [
            CommandFailure::NotConnected,
            CommandFailure::Sealed,
            CommandFailure::NotActive,
            CommandFailure::Busy,
            CommandFailure::StaleTerm(Term::new(3)),
        ];
        for failure in definite {
            let error = through_the_wire(&failure);
            assert!(error.could_not_be_tried(), "{failure:?} {error:?}");
        }
        let unknown = [
            CommandFailure::Lost { reconnected: true },
            CommandFailure::Lost { reconnected: false },
            CommandFailure::Deadline { sent: true },
            CommandFailure::Cancelled,
            CommandFailure::Broken { address: "a:1".into(), cause: "reset".into() },
        ];
        for failure in unknown {
            assert!(!through_the_wire(&failure).is_definite(), "{failure:?}");
            assert!(!failure.clone().into_driver_error(&spoke()).is_definite(), "{failure:?}");
        }
        assert!(
            !CommandFailure::from(proto::CommandError::default()).into_driver_error(&spoke()).is_definite()
        );
    }

    #[test]
    fn the_texts_that_clients_match() {
        let text = |failure: CommandFailure| failure.into_driver_error(&spoke()).client_text().to_owned();
        assert_eq!(text(CommandFailure::NotConnected), "spoke not connected: \"spoke-1\"");
        let cannot = CommandFailure::CannotReach { address: "h:8201".into(), cause: "refused".into() };
        assert!(cannot.clone().into_driver_error(&spoke()).could_not_be_tried());
        assert_eq!(text(cannot), "cannot reach spoke owner h:8201: refused");
    }
}
