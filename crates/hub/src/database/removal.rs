//! Removing the user behind a lease or an intent, with nothing but what the record itself says.

use std::time::Duration;

use holdfast_core::Term;
use holdfast_dbdriver::{Call, DeleteUser, DriverError, IdempotencyKey, Reason};
use tokio_util::sync::CancellationToken;

use super::connection;
use crate::hub::Hub;
use crate::lease::Login;
use crate::storage::{Storage, StorageError};

/// One attempt takes no longer than this, whatever the configuration allows.
const LONGEST: Duration = Duration::from_secs(90);

/// Why a user was not removed.
#[derive(Debug, thiserror::Error)]
pub enum NotRemoved {
    /// The store could not be read.
    #[error("the store could not be read")]
    Store(#[source] StorageError),
    /// There is no such configuration any more, not even hidden.
    #[error("the connection configuration {0:?} is gone")]
    NoConnection(String),
    /// The driver said no.
    #[error("{0}")]
    Driver(DriverError),
}

impl NotRemoved {
    /// The text for records and clients; scrubbed by the driver.
    pub fn text(&self) -> String {
        self.to_string()
    }

    /// Whether nothing was tried: the database could not be reached, or leadership was lost.
    pub fn is_not_tried(&self) -> bool {
        match self {
            Self::Store(_) => true,
            Self::NoConnection(_) => false,
            Self::Driver(error) => {
                error.could_not_be_tried() || matches!(error.reason(), Reason::Cancelled | Reason::Login)
            }
        }
    }

    /// Whether no later attempt can do better.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Store(_) => false,
            Self::NoConnection(_) => true,
            Self::Driver(error) => error.reason() == Reason::Invalid,
        }
    }
}

/// Removes a user. That it is gone already counts as success.
pub async fn remove(
    hub: &Hub,
    storage: &Storage,
    term: Term,
    login: &Login,
    cancel: CancellationToken,
) -> Result<(), NotRemoved> {
    let found = connection::by_queue(storage, &login.queue()).map_err(NotRemoved::Store)?;
    let found = found.ok_or_else(|| NotRemoved::NoConnection(login.config.clone()))?;
    let instance =
        hub.leases.databases().instances.acquire(term, &hub.metrics, &found).map_err(NotRemoved::Driver)?;
    let call = Call::new(tokio::time::Instant::now() + instance.timeout.min(LONGEST), cancel);
    let key = IdempotencyKey::try_from(login.key.clone()).ok();
    if let Some(key) = key {
        instance.driver().cancel_key(key).await;
    }
    let delete = DeleteUser {
        key,
        username: login.username.clone(),
        statements: login.revocation_statements.clone(),
        terminate_sessions: instance.terminate_sessions,
    };
    match instance.delete_user(&call, &delete).await {
        Err(error) if error.reason() == Reason::Missing && error.is_definite() => Ok(()),
        done => done.map_err(NotRemoved::Driver),
    }
}
