//! The one trait behind which every database stands, and the requests it takes.
//!
//! Nothing here knows of a connection, so that an executor in another process can stand behind the same trait.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::PluginName;
use crate::error::DriverError;

/// How long a call may take and who may end it. Every driver call has one.
#[derive(Clone, Debug)]
pub struct Call {
    /// The instant after which nothing may be committed any more.
    pub deadline: Instant,
    /// Fires when the caller no longer wants the outcome.
    pub cancel: CancellationToken,
}

impl Call {
    /// A call that ends at `deadline` or when `cancel` fires.
    pub const fn new(deadline: Instant, cancel: CancellationToken) -> Self {
        Self { deadline, cancel }
    }

    /// A call that nobody cancels and that may take `limit` from now.
    pub fn within(limit: Duration) -> Self {
        let now = Instant::now();
        // A limit that no clock reaches is an hour, which nothing here waits for.
        let deadline = now.checked_add(limit).unwrap_or(now + Duration::from_hours(1));
        Self::new(deadline, CancellationToken::new())
    }

    /// What is left of the deadline; zero when it has passed.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Refuses to go on when the call was cancelled or is late.
    ///
    /// # Errors
    /// [`crate::Reason::Cancelled`] or [`crate::Reason::Deadline`], both with nothing changed.
    pub fn check(&self) -> Result<(), DriverError> {
        if self.cancel.is_cancelled() {
            return Err(DriverError::cancelled());
        }
        if self.left().is_zero() {
            return Err(DriverError::deadline());
        }
        Ok(())
    }

    /// Waits for `work`, but no longer than the call allows; what `work` had done by then is the caller's to judge.
    ///
    /// # Errors
    /// As for [`Call::check`].
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, DriverError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(DriverError::cancelled()),
            done = tokio::time::timeout_at(self.deadline, work) => done.map_err(|_| DriverError::deadline()),
        }
    }
}

/// 128 random bits that name one creation of a user, however often it is sent.
#[derive(Clone, Copy, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdempotencyKey([u8; 16]);

impl IdempotencyKey {
    /// A new random key.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// A key from its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes of the key.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({self})")
    }
}

impl From<IdempotencyKey> for String {
    fn from(key: IdempotencyKey) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for IdempotencyKey {
    type Error = hex::FromHexError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes)?;
        Ok(Self(bytes))
    }
}

/// A user that shall be made. The statement lists hold templates as the operator wrote them.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// Names this creation; the same key again returns the first result.
    pub key: IdempotencyKey,
    /// This key was sent before, perhaps to an executor that has restarted since. Only then may a user of this name
    /// that is already there be removed and made anew.
    pub resent: bool,
    /// The name, which holds no quote, backslash or NUL.
    pub username: String,
    /// The password, which holds no quote, backslash or NUL.
    pub password: SecretString,
    /// When the login stops working by itself, for `{{expiration}}`.
    pub expiration: Timestamp,
    /// Creation statements; none is an error.
    pub statements: Vec<String>,
    /// What undoes a half-done creation where the database has no transactions for users; empty = drop the user.
    pub rollback_statements: Vec<String>,
}

/// What shall be changed about a user.
#[derive(Clone, Debug)]
pub enum Change {
    /// A new password.
    Password(SecretString),
    /// A new end of validity.
    Expiration(Timestamp),
}

/// A change to a user that exists.
#[derive(Clone, Debug)]
pub struct UpdateUser {
    /// The name of the user.
    pub username: String,
    /// What changes.
    pub change: Change,
    /// Statement templates; empty = the driver's own.
    pub statements: Vec<String>,
}

/// A user that shall be gone. That it is gone already counts as success.
#[derive(Clone, Debug)]
pub struct DeleteUser {
    /// The creation that this undoes, if it is known: it is cancelled first and refused from then on.
    pub key: Option<IdempotencyKey>,
    /// The name of the user.
    pub username: String,
    /// Statement templates; empty = the driver's own revocation.
    pub statements: Vec<String>,
    /// End the sessions of the user once it can no longer log in.
    pub terminate_sessions: bool,
}

/// Makes, changes, tests and removes the users of one database.
///
/// Calls run side by side; none waits for another but for a free connection.
#[async_trait]
pub trait Driver: Send + Sync + fmt::Debug {
    /// The name of the plugin.
    fn plugin(&self) -> PluginName;

    /// Makes sure that the driver can work: with `verify`, that the database accepts its login.
    async fn initialize(&self, call: &Call, verify: bool) -> Result<(), DriverError>;

    /// Makes a user.
    async fn new_user(&self, call: &Call, user: &NewUser) -> Result<(), DriverError>;

    /// Changes the password or the end of validity of a user.
    async fn update_user(&self, call: &Call, update: &UpdateUser) -> Result<(), DriverError>;

    /// Removes a user.
    async fn delete_user(&self, call: &Call, user: &DeleteUser) -> Result<(), DriverError>;

    /// Whether the database lets `username` in with `password`. `Ok(false)` is the database's clear refusal of the
    /// password; anything less clear is an error.
    async fn verify_password(
        &self,
        call: &Call,
        username: &str,
        password: &SecretString,
    ) -> Result<bool, DriverError>;

    /// Makes sure that a creation with `key` never happens from now on, and ends it when it is under way.
    async fn cancel_key(&self, _key: IdempotencyKey) {}

    /// Lets go of all connections. Calls under way end as cancelled; later ones are refused.
    async fn close(&self);
}
