//! The relay: databases in networks that the hub cannot reach, by way of spokes that dial out.
//!
//! What must hold: there is one relay mount in a cluster; its listener runs on every unsealed node and is led by
//! what the store says; only the active node signs.

pub mod accept;
mod active;
pub mod authority;
mod bootstrap;
mod ca;
pub mod calls;
mod change;
pub mod convert;
mod csr;
mod deny;
pub mod driver;
pub mod engine;
pub mod failure;
pub mod forward;
pub mod gateway;
mod hosts;
pub mod identity;
mod late;
pub mod leave;
pub mod listener;
pub mod metrics;
mod open;
pub mod peers;
pub mod pin;
mod rate;
pub(crate) mod record;
pub mod renew;
pub mod settings;
pub mod sign;
pub mod spokes;
pub mod start;
pub mod stream;
pub mod upkeep;
pub mod views;
pub mod work;

#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::error::ApiError;
use crate::storage::Storage;
use authority::Authority;
use listener::Listener;
use rate::OpenRate;
pub use settings::RelaySettings;
pub use sign::Signed;

/// The name of the mount type.
pub const KIND: &str = "relay";

/// What a node has of the relay.
pub struct Relay {
    /// Who the hub is to spokes, and who they are to it.
    pub authority: Authority,
    /// The port for spokes.
    pub listener: Listener,
    /// The configuration.
    pub settings: RelaySettings,
    /// Limits the paths that need no token.
    rate: OpenRate,
    /// Held while the authority is changed: changes follow one another.
    changes: tokio::sync::Mutex<()>,
    /// Held while a use of a bootstrap token is counted: spokes that join at once follow one another.
    enrolments: tokio::sync::Mutex<()>,
    /// Hosts at which members said that their relay ports are.
    told: Mutex<BTreeSet<String>>,
}

impl Relay {
    /// Over the whole store.
    pub fn new(storage: &Storage, settings: RelaySettings) -> Self {
        Self {
            authority: Authority::new(storage.clone()),
            listener: Listener::new(settings.bind.clone()),
            rate: OpenRate::per_minute(settings.unauth_rate),
            settings,
            changes: tokio::sync::Mutex::new(()),
            enrolments: tokio::sync::Mutex::new(()),
            told: Mutex::default(),
        }
    }

    /// Takes the hosts at which members say that their relay ports are, this node's own too: the hub's certificate
    /// will be for them.
    pub fn tell_hosts(&self, hosts: BTreeSet<String>) {
        *self.told.lock() = hosts;
    }

    fn told_hosts(&self) -> BTreeSet<String> {
        self.told.lock().clone()
    }
}

/// 400: there is no authority yet.
pub(crate) fn not_initialised() -> ApiError {
    ApiError::invalid("CA not initialized; run \"holdfast relay init\"")
}
