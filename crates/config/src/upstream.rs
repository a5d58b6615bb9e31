//! The backends: one provider a file, each behind [`Provider`], and what they share.
//!
//! What must hold: an upstream has one connection for all its watches; a provider that lost it connects again by itself,
//! with back-off; no credential and no value gets into an error or a log.

mod address;
mod cells;
pub mod consul;
pub mod content;
pub mod credential;
pub mod engine;
pub mod env;
pub mod etcd;
pub mod exec;
pub mod file;
mod gate;
pub mod holdfast;
pub mod hops;
pub mod http_answer;
pub mod https;
pub mod kube;
pub mod literal;
mod mailbox;
pub mod meter;
mod object;
pub mod online;
pub mod postgres;
pub mod redis;
mod subscriptions;
#[cfg(test)]
mod testing;
#[cfg(test)]
pub mod tests;
pub mod vault;
mod wiped;

use std::sync::Arc;

use holdfast_ops::Tasks;

pub use self::cells::Tally;
pub use self::gate::UpstreamStatus;
use crate::config::UpstreamSettings;
use crate::provider::Provider;

/// Why `[upstream.NAME]` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Its type is none that is built in.
    #[error("upstream.{upstream}: unknown type \"{kind}\"")]
    UnknownType {
        /// The upstream's name.
        upstream: String,
        /// Its type.
        kind: String,
    },
    /// A key is missing or wrong.
    #[error("upstream.{upstream}.{key}: {problem}")]
    Setting {
        /// The upstream's name.
        upstream: String,
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// The number of an object within the process; another one when the same object is begun anew.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
struct ObjectId(u64);

impl ObjectId {
    const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl BuildError {
    /// A key that is missing or wrong.
    pub fn setting(upstream: &str, key: &'static str, problem: impl ToString) -> Self {
        Self::Setting { upstream: upstream.to_owned(), key, problem: problem.to_string() }
    }
}

/// The provider of `[upstream.NAME]`, of a server that no other asks. See [`build_with`].
///
/// # Errors
/// When its settings cannot be used.
pub fn build(
    name: &str,
    settings: &UpstreamSettings,
    tasks: &Tasks,
) -> Result<Arc<dyn Provider>, BuildError> {
    build_with(name, settings, tasks, &Arc::default())
}

/// Makes the providers of an engine by [`build_with`].
pub fn builder(hops: &Arc<hops::Hops>) -> Arc<engine::Builder> {
    let hops = Arc::clone(hops);
    Arc::new(move |upstream, tasks| build_with(&upstream.name, &upstream.settings, tasks, &hops))
}

/// The provider of `[upstream.NAME]`. It connects when it is first asked; its tasks belong to `tasks`. Other config
/// servers are told by `hops` through whom they are asked.
///
/// # Errors
/// When its settings cannot be used.
pub fn build_with(
    name: &str,
    settings: &UpstreamSettings,
    tasks: &Tasks,
    hops: &Arc<hops::Hops>,
) -> Result<Arc<dyn Provider>, BuildError> {
    Ok(match settings.kind.as_str() {
        "static" => Arc::new(literal::Literal),
        "env" => Arc::new(env::Env),
        "file" => Arc::new(file::Files::new(name, settings, tasks)?),
        "exec" => Arc::new(exec::Exec::new(settings)),
        "consul" => Arc::new(consul::Consul::build(name, settings, tasks)?),
        "holdfast" => Arc::new(holdfast::Chain::build(name, settings, tasks, hops)?),
        "etcd" => Arc::new(etcd::Etcd::build(name, settings, tasks)?),
        "kube" => Arc::new(kube::Kube::build(name, settings, tasks)?),
        "postgres" => Arc::new(postgres::Postgres::build(name, settings, tasks)?),
        "redis" => Arc::new(redis::Redis::build(name, settings, tasks)?),
        "http" => Arc::new(https::Https::new(name, settings)?),
        "vault" | "hub" => Arc::new(vault::Vault::new(name, settings)?),
        kind => {
            return Err(BuildError::UnknownType { upstream: name.to_owned(), kind: kind.to_owned() });
        }
    })
}
