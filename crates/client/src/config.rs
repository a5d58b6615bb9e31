//! The client of the config server: named values of several replicas, read once or watched.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use holdfast_client::config::{Client, Config, Event};
//!
//! let client = Client::new(Config {
//!     endpoints: vec!["https://config-a.internal:8443".into(), "https://config-b.internal:8443".into()],
//!     ..Config::default()
//! })?;
//! let password = client.get("db-password").await?;
//! let mut watch = client.watch(["db-password"])?;
//! while let Some(event) = watch.next().await {
//!     if let Event::Update(value) = event {
//!         println!("{} bytes from {}", value.bytes.len(), value.endpoint);
//!     }
//! }
//! # drop(password);
//! # Ok(())
//! # }
//! ```
//!
//! What must hold: no program goes back in time, whichever replica it reaches; an answer that every replica would give
//! costs one request; a replica that is gone costs a deadline at most. The decisions are those of
//! `holdfast_core::{failover, freshness}`; here is what sends and reads.

pub mod decode;
pub mod error;
pub mod sse;

mod divergence;
mod marks;
mod read;
mod settings;
mod shared;
mod status;
mod transport;
mod value;
mod watch;
mod wire;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub use decode::Reference;
pub use error::{ConfigError, EndpointFault, EndpointProblem, Error};
pub use read::Answer;
pub use settings::{Config, HeaderEditor, Tls};
pub use status::{BindingStatus, ConfigStatus, Status, UpstreamStatus};
pub use value::{Secret, Value};
pub use watch::{Event, State, Watch};

use read::Form;
use shared::Shared;
use transport::{Identity, Link, Pool};

/// A client of some replicas. Clones are the same client: they share connections and what was handed over.
///
/// The order of the endpoints is the order of preference; give clients different orders to spread them.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    total: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("endpoints", &self.shared.endpoint_names()).finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client. Nothing is sent.
    ///
    /// # Errors
    /// When the endpoints, the token or the files cannot be used; all bad endpoints are listed.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let endpoints = config.parse_endpoints()?;
        // The first user of TLS in a process decides; a program that has decided before is left alone.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        let identity = Identity::read(&config)?;
        let link = |endpoint: &settings::Endpoint| {
            let pool: Box<dyn Link> = Box::new(Pool::new(&config, endpoint, &identity)?);
            Ok((Arc::clone(&endpoint.name), pool))
        };
        let links = endpoints.iter().map(link).collect::<Result<Vec<_>, ConfigError>>()?;
        Ok(Self::over(links, &config))
    }

    fn over(links: Vec<(Arc<str>, Box<dyn Link>)>, config: &Config) -> Self {
        let shared = Arc::new(Shared::new(links, config.attempt_timeout));
        Self { shared, total: config.total_timeout }
    }

    /// The same client, whose reads take `total` at most over all endpoints.
    #[must_use]
    pub fn within(&self, total: Duration) -> Self {
        Self { shared: Arc::clone(&self.shared), total }
    }

    /// The endpoints, as values, events and errors name them.
    pub fn endpoints(&self) -> &[Arc<str>] {
        self.shared.endpoint_names()
    }

    /// Reads one value.
    ///
    /// When every replica that answers is older than what this client handed over before, it gives that again, marked
    /// [`Value::behind`].
    ///
    /// # Errors
    /// The refusal of a replica with its kind; that there is no such binding is one. What the last endpoint did, when
    /// none gave an answer.
    pub async fn get(&self, name: &str) -> Result<Value, Error> {
        let names = read::names([name])?;
        let mut answers = self.shared.read(&names, Form::One, self.total).await;
        match answers.pop() {
            Some(Ok(Some(value))) => Ok(value),
            Some(Err(error)) => Err(error),
            Some(Ok(None)) | None => Err(Error::Closed),
        }
    }

    /// Reads several values with one request; an answer for each name, in their order. None stands for a name that no
    /// replica knows or that has no value.
    pub async fn get_many<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Vec<Answer> {
        let names: Vec<&str> = names.into_iter().collect();
        let good: Vec<Arc<str>> = names.iter().filter(|name| !name.is_empty()).map(|n| (*n).into()).collect();
        let mut answers = self.shared.read(&good, Form::Many, self.total).await.into_iter();
        let answer = |name: &&str| match name.is_empty() {
            true => Err(decode::BadReference("no name").into()),
            false => answers.next().unwrap_or(Err(Error::Closed)),
        };
        names.iter().map(answer).collect()
    }

    /// Reads what a reference names, `holdfast://NAME[?decode=STEP,STEP]`, and decodes it. The steps, from left to right,
    /// are `base64`, `base64url`, `hex`, `gzip` and `trim`. `mamori://` means the same.
    ///
    /// # Errors
    /// Those of [`Client::get`]; a reference that is not understood, or a value that a step cannot decode.
    pub async fn resolve(&self, reference: &str) -> Result<Value, Error> {
        let reference: Reference = reference.parse()?;
        let value = self.get(&reference.name).await?;
        decoded(&reference, value)
    }

    /// Resolves several references with one request; an answer for each, in their order. References to one name with
    /// different steps stay apart.
    pub async fn resolve_many<'a>(&self, references: impl IntoIterator<Item = &'a str>) -> Vec<Answer> {
        let parsed: Vec<_> = references.into_iter().map(str::parse::<Reference>).collect();
        let names: Vec<_> = parsed.iter().flatten().map(|reference| Arc::clone(&reference.name)).collect();
        let answers = self.shared.read(&names, Form::Many, self.total).await;
        let by_name: HashMap<_, _> = names.into_iter().zip(answers).collect();
        let answer = |parsed: Result<Reference, decode::BadReference>| {
            let reference = parsed?;
            let answer = by_name.get(&reference.name).cloned().unwrap_or(Err(Error::Closed));
            answer?.map(|value| decoded(&reference, value)).transpose()
        };
        parsed.into_iter().map(answer).collect()
    }

    /// Watches names. Nothing is sent before the first [`Watch::next`].
    ///
    /// # Errors
    /// When there is no name, or an empty one.
    pub fn watch<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<Watch, Error> {
        let names = read::names(names)?;
        if names.is_empty() {
            return Err(decode::BadReference("no name").into());
        }
        Ok(Watch::new(Arc::clone(&self.shared), &names))
    }

    /// Asks one endpoint, by its place, for what it says of itself. Needs the verb `status`; no other endpoint is asked.
    ///
    /// # Errors
    /// The refusal, or what happened instead of an answer.
    pub async fn status(&self, endpoint: usize) -> Result<Status, Error> {
        self.shared.status(endpoint).await
    }

    /// Ends the client for good: reads fail with [`Error::Closed`], watches end with [`Event::Closed`]. Closing again
    /// does nothing.
    pub fn close(&self) {
        self.shared.closed.send_replace(true);
    }
}

fn decoded(reference: &Reference, value: Value) -> Result<Value, Error> {
    let bytes = decode::decode(&reference.steps, &value.bytes)?;
    Ok(Value { bytes, ..value })
}

#[cfg(test)]
mod tests;
