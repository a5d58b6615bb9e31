//! The relay: databases in networks that the hub cannot reach, by way of spokes that dial out.
//!
//! What must hold: there is one relay mount in a cluster; its listener runs on every unsealed node and is led by
//! what the store says; only the active node signs.

pub mod authority;
mod ca;
mod csr;
pub mod engine;
pub mod identity;
pub mod listener;
mod record;
pub mod settings;
pub mod sign;

use crate::error::ApiError;
use crate::storage::Storage;
use authority::Authority;
use listener::Listener;
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
}

impl Relay {
    /// Over the whole store.
    pub fn new(storage: &Storage, settings: RelaySettings) -> Self {
        let listener = Listener::new(settings.bind.clone());
        Self { authority: Authority::new(storage.clone()), listener, settings }
    }
}

/// 400: there is no authority yet.
pub(crate) fn not_initialised() -> ApiError {
    ApiError::invalid("CA not initialized; run \"holdfast relay init\"")
}
