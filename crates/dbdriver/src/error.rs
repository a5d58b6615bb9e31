//! What went wrong in a driver, and whether it can have left anything in the database.
//!
//! Two questions are answered apart, because callers decide by both: *why* it failed ([`Reason`]) and *what is left*
//! ([`Effect`]). An error that says [`Effect::Nothing`] is a proof, not a hope.

use holdfast_core::Kind;

use crate::scrub::Scrubber;

/// What a failed call can have changed in the database.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Provably nothing: it did not start, or it was rolled back.
    Nothing,
    /// Not known: the connection was lost, or time ran out, where the change may have taken hold.
    Unknown,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// The request, the configuration or the statements make no sense.
    Invalid,
    /// The database refused a statement.
    Statement,
    /// The database's rules refuse this value, such as a password that its policy finds too weak; another value may do.
    Policy,
    /// The driver's own login lacks the right for this.
    Denied,
    /// The database refused the driver's own login.
    Login,
    /// Other objects still depend on the user.
    Dependent,
    /// The user is there already.
    Exists,
    /// The user is not there.
    Missing,
    /// No connection could be made.
    Unreachable,
    /// All connections were in use for as long as the caller could wait.
    Busy,
    /// The connection broke under way.
    Lost,
    /// The deadline passed.
    Deadline,
    /// The caller, or a cancelled key, ended it.
    Cancelled,
    /// The driver was closed.
    Closed,
    /// A fault of this program.
    Internal,
}

/// A failed driver call. The text is scrubbed of secrets before the error leaves the driver.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct DriverError {
    reason: Reason,
    effect: Effect,
    sqlstate: Option<String>,
    native_code: Option<u16>,
    text: String,
}

impl DriverError {
    /// An error that left nothing behind.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, effect: Effect::Nothing, sqlstate: None, native_code: None, text: text.into() }
    }

    /// A request or configuration that makes no sense.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(Reason::Invalid, text)
    }

    /// The deadline passed and nothing was changed.
    pub fn deadline() -> Self {
        Self::new(Reason::Deadline, "the deadline of the database operation passed")
    }

    /// The caller gave up and nothing was changed.
    pub fn cancelled() -> Self {
        Self::new(Reason::Cancelled, "the database operation was cancelled")
    }

    /// The driver was closed before the call could run.
    pub fn closed() -> Self {
        Self::new(Reason::Closed, "the database connection is closed")
    }

    /// The same error, with what is left in the database not known.
    pub fn with_unknown_effect(mut self) -> Self {
        self.effect = Effect::Unknown;
        self
    }

    /// The same error with the server's five-character SQLSTATE.
    pub fn with_sqlstate(mut self, state: impl Into<String>) -> Self {
        self.sqlstate = Some(state.into());
        self
    }

    /// The same error with the server's own number.
    pub fn with_native_code(mut self, code: u16) -> Self {
        self.native_code = Some(code);
        self
    }

    /// The same error with every secret that `scrubber` knows taken out of the text.
    pub fn scrubbed(mut self, scrubber: &Scrubber) -> Self {
        self.text = scrubber.scrub(&self.text);
        self
    }

    /// Why it failed.
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// What it can have left behind.
    pub const fn effect(&self) -> Effect {
        self.effect
    }

    /// The SQLSTATE that the server sent, if it sent one.
    pub fn sqlstate(&self) -> Option<&str> {
        self.sqlstate.as_deref()
    }

    /// The server's own error number (MySQL and MariaDB).
    pub const fn native_code(&self) -> Option<u16> {
        self.native_code
    }

    /// The text for clients: the driver's words without secrets.
    pub fn client_text(&self) -> &str {
        &self.text
    }

    /// Whether the failure proves that nothing was left behind.
    pub fn is_definite(&self) -> bool {
        self.effect == Effect::Nothing
    }

    /// Whether the call could not be tried at all. Such a failure uses up no attempt of a revocation.
    pub fn could_not_be_tried(&self) -> bool {
        self.is_definite()
            && matches!(self.reason, Reason::Unreachable | Reason::Busy | Reason::Closed | Reason::Lost)
    }

    /// Whether another value, such as a new password, may be accepted where this one was not.
    pub fn refused_by_policy(&self) -> bool {
        self.reason == Reason::Policy
    }

    /// The class of the failure.
    pub const fn kind(&self) -> Kind {
        match (self.effect, self.reason) {
            (Effect::Unknown, _) | (_, Reason::Deadline | Reason::Cancelled) => Kind::Timeout,
            (_, Reason::Invalid) => Kind::Invalid,
            (_, Reason::Exists | Reason::Dependent) => Kind::Conflict,
            (_, Reason::Missing) => Kind::NotFound,
            (_, Reason::Unreachable | Reason::Busy | Reason::Closed | Reason::Lost) => Kind::Unavailable,
            (_, Reason::Statement | Reason::Policy | Reason::Denied | Reason::Login | Reason::Internal) => {
                Kind::Internal
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_tried_is_told_from_what_failed() {
        assert!(DriverError::new(Reason::Unreachable, "x").could_not_be_tried());
        assert!(!DriverError::new(Reason::Statement, "x").could_not_be_tried());
        assert!(!DriverError::new(Reason::Lost, "x").with_unknown_effect().could_not_be_tried());
    }

    #[test]
    fn an_unknown_effect_is_a_timeout_whatever_the_reason() {
        assert_eq!(DriverError::new(Reason::Lost, "x").with_unknown_effect().kind(), Kind::Timeout);
        assert_eq!(DriverError::invalid("x").kind(), Kind::Invalid);
    }
}
