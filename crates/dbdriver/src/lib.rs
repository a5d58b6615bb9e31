//! Database drivers for short-lived logins: PostgreSQL, MySQL and MariaDB behind one trait.
//!
//! The crate owns how a user is made, changed, tested and removed in a database, and says of every failure whether
//! anything can have been left behind. It owns neither leases nor intents: whoever calls decides which users may exist.
//! What must hold: no call outlives its deadline by more than a short clean-up, and no error text holds a secret.

mod backoff;
mod config;
mod driver;
mod error;
mod idempotent;
mod mysql;
mod names;
mod password;
mod pool;
mod postgres;
mod scrub;
mod statement;
mod template;
mod tls;
pub mod wire;

use std::sync::Arc;

pub use config::{CONFIG_FIELDS, ConfigError, DriverConfig, PasswordAuthentication, PluginName};
pub use driver::{Call, Change, DeleteUser, Driver, IdempotencyKey, NewUser, UpdateUser};
pub use error::{DriverError, Effect, Reason};
pub use idempotent::{Idempotent, Ledger};
pub use mysql::MysqlDriver;
pub use names::{NameContext, UsernameSource};
pub use password::{CharsetRule, PasswordPolicy, PolicyError};
pub use postgres::{Messages, PostgresAddress, PostgresDriver};
pub use scrub::Scrubber;
pub use statement::{Dialect, Statements};
pub use template::{Template, TemplateError};

/// Builds the driver that runs in this process for `config`; contacts nothing.
///
/// # Errors
/// When the connection URL or the TLS material cannot be understood, or when the plugin runs on a spoke.
pub fn open(config: &DriverConfig) -> Result<Arc<dyn Driver>, DriverError> {
    match config.plugin_name {
        PluginName::Postgres => Ok(Arc::new(PostgresDriver::new(config)?)),
        PluginName::Mysql => Ok(Arc::new(MysqlDriver::new(config)?)),
        PluginName::RemotePostgres | PluginName::RemoteMysql => Err(DriverError::invalid(format!(
            "plugin \"{}\" runs on a spoke, not in this process",
            config.plugin_name
        ))),
    }
}

/// Builds the driver that a spoke runs for a `remote-*` plugin, and the same driver for a direct one.
///
/// # Errors
/// As for [`open`].
pub fn open_beside_database(config: &DriverConfig) -> Result<Arc<dyn Driver>, DriverError> {
    match config.plugin_name.dialect() {
        Dialect::Postgres => Ok(Arc::new(PostgresDriver::new(config)?)),
        Dialect::Mysql => Ok(Arc::new(MysqlDriver::new(config)?)),
    }
}
