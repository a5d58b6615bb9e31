//! The driver behind the remote plugins: every call is a command to a spoke.
//!
//! What must hold: what a call may have left in the database is never called nothing; a text that a spoke sent is
//! scrubbed again here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use aws_lc_rs::digest;
use holdfast_core::SpokeName;
use holdfast_dbdriver::wire::{self, Encoded, Output, Request};
use holdfast_dbdriver::{
    Call, Change, DeleteUser, Driver, DriverConfig, DriverError, NewUser, PluginName, Reason, Scrubber,
    UpdateUser,
};
use holdfast_proto::relay::v1 as proto;
use prost::Message as _;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;

use super::forward;
use super::spokes::Spokes;
use super::stream::Order;

/// How long telling a spoke to let go of connections may take.
const CLOSE_CALL: Duration = Duration::from_secs(5);

/// A driver on a spoke.
pub struct RemoteDriver {
    spokes: Arc<Spokes>,
    spoke: SpokeName,
    plugin: PluginName,
    instance: proto::Instance,
    scrubber: Scrubber,
    /// The spoke holds something of it.
    used: AtomicBool,
}

impl std::fmt::Debug for RemoteDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteDriver")
            .field("spoke", &self.spoke)
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

/// Makes the driver of a configuration; contacts nothing. `id` is that of the configuration, the same for all its
/// versions.
///
/// # Errors
/// When the configuration names no spoke.
pub fn open(spokes: &Arc<Spokes>, id: &str, config: &DriverConfig) -> Result<Arc<dyn Driver>, DriverError> {
    let spoke = SpokeName::parse(&config.spoke_name)
        .map_err(|_| DriverError::invalid(format!("invalid spoke name \"{}\"", config.spoke_name)))?;
    let json = wire::encode_config(config).map_err(|error| DriverError::invalid(error.to_string()))?;
    let instance = proto::Instance {
        instance_id: id.to_owned(),
        config_version: version(&json),
        config: json.into(),
        plugin: wire::spoke_plugin(config).to_string(),
    };
    let (spokes, scrubber) = (Arc::clone(spokes), config.scrubber());
    let used = AtomicBool::new(false);
    Ok(Arc::new(RemoteDriver { spokes, spoke, plugin: config.plugin_name, instance, scrubber, used }))
}

/// Tells one configuration from another; a number that says nothing of the order.
fn version(json: &[u8]) -> u64 {
    let digest = digest::digest(&digest::SHA256, json);
    digest.as_ref().iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

impl RemoteDriver {
    async fn call(&self, call: &Call, request: &Request, scrubber: &Scrubber) -> Result<Output, DriverError> {
        call.check()?;
        let Encoded { method, payload, key } = wire::encode(request, self.instance.clone());
        let order = Order { method, payload, key };
        let output = self.run(call, order).await.map_err(|error| error.scrubbed(scrubber))?;
        self.used.store(true, Ordering::Relaxed);
        Output::decode(method, &output)
            .map_err(|error| DriverError::new(Reason::Internal, error.to_string()).with_unknown_effect())
    }

    async fn run(&self, call: &Call, order: Order) -> Result<bytes::Bytes, DriverError> {
        let answer = forward::run(&self.spokes, &self.spoke, order, call.deadline);
        tokio::select! {
            biased;
            // Dropping the call tells the spoke.
            () = call.cancel.cancelled() => Err(DriverError::cancelled().with_unknown_effect()),
            answer = answer => answer.map_err(|failure| failure.into_driver_error(&self.spoke)),
        }
    }
}

#[async_trait]
impl Driver for RemoteDriver {
    fn plugin(&self) -> PluginName {
        self.plugin
    }

    async fn initialize(&self, call: &Call, verify: bool) -> Result<(), DriverError> {
        self.call(call, &Request::Initialize { verify }, &self.scrubber).await.map(drop)
    }

    async fn new_user(&self, call: &Call, user: &NewUser) -> Result<(), DriverError> {
        let scrubber = self.scrubber.with(user.password.expose_secret());
        self.call(call, &Request::NewUser(user.clone()), &scrubber).await.map(drop)
    }

    async fn update_user(&self, call: &Call, update: &UpdateUser) -> Result<(), DriverError> {
        let scrubber = match &update.change {
            Change::Password(password) => self.scrubber.with(password.expose_secret()),
            Change::Expiration(_) => self.scrubber.clone(),
        };
        self.call(call, &Request::UpdateUser(update.clone()), &scrubber).await.map(drop)
    }

    async fn delete_user(&self, call: &Call, user: &DeleteUser) -> Result<(), DriverError> {
        self.call(call, &Request::DeleteUser(user.clone()), &self.scrubber).await.map(drop)
    }

    async fn verify_password(
        &self,
        call: &Call,
        username: &str,
        password: &SecretString,
    ) -> Result<bool, DriverError> {
        let scrubber = self.scrubber.with(password.expose_secret());
        let request = Request::VerifyPassword { username: username.to_owned(), password: password.clone() };
        match self.call(call, &request, &scrubber).await? {
            Output::Accepted(accepted) => Ok(accepted),
            _ => Err(DriverError::new(Reason::Internal, "the spoke gave an answer of an unknown kind")),
        }
    }

    /// Only the active node says so, and only of this version: another leader, or a newer configuration, may be using
    /// what the spoke holds.
    async fn close(&self) {
        if !self.used.load(Ordering::Relaxed) || self.spokes.cluster.view().active.is_none() {
            return;
        }
        let request = proto::CloseRequest {
            instance_id: self.instance.instance_id.clone(),
            config_version: self.instance.config_version,
        };
        let order =
            Order { method: proto::Method::Close, payload: request.encode_to_vec().into(), key: None };
        let closed = forward::run(&self.spokes, &self.spoke, order, Instant::now() + CLOSE_CALL).await;
        if let Err(failure) = closed {
            // It lets go by itself when it is not used.
            let error = failure.into_driver_error(&self.spoke);
            tracing::debug!(spoke = %self.spoke, %error, "a spoke was not told to close connections");
        }
    }
}
