//! The configuration of one database connection: reading what a client writes, merging it with what is stored,
//! and showing it without its secrets.
//!
//! The stored form ([`serde`]) holds the secrets in clear, since the store encrypts whole values; the view for
//! clients ([`DriverConfig::view`]) never does.

mod fields;
mod mask;
mod view;

pub use view::FIELDS as CONFIG_FIELDS;

use std::fmt;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::scrub::Scrubber;
use crate::statement::Dialect;

pub(crate) use mask::{percent_decode, percent_encode};

/// Connections that a config holds at most when nothing is said.
const DEFAULT_OPEN: u32 = 16;
/// The largest number of connections that may be asked for.
const MAX_OPEN: u32 = 256;
/// How long a database operation may take when nothing is said.
const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest that a database operation may be allowed to take.
const MAX_OPERATION_TIMEOUT: Duration = Duration::from_secs(90);

/// The plugins that exist: two databases, each reached from this process or through a spoke.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum PluginName {
    /// PostgreSQL from this process.
    #[serde(rename = "postgresql-database-plugin")]
    Postgres,
    /// MySQL or MariaDB from this process.
    #[serde(rename = "mysql-database-plugin")]
    Mysql,
    /// PostgreSQL through a spoke.
    #[serde(rename = "remote-postgres-plugin")]
    RemotePostgres,
    /// MySQL or MariaDB through a spoke.
    #[serde(rename = "remote-mysql-plugin")]
    RemoteMysql,
}

impl PluginName {
    /// All plugins.
    pub const ALL: [Self; 4] = [Self::Postgres, Self::Mysql, Self::RemotePostgres, Self::RemoteMysql];

    /// Reads a name as clients write it.
    ///
    /// # Errors
    /// For any other name, with the list of those that exist.
    pub fn parse(name: &str) -> Result<Self, ConfigError> {
        Self::ALL.into_iter().find(|p| p.as_str() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|p| p.as_str()).collect();
            ConfigError(format!("unknown plugin \"{name}\"; supported: {}", known.join(", ")))
        })
    }

    /// The name as clients write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgresql-database-plugin",
            Self::Mysql => "mysql-database-plugin",
            Self::RemotePostgres => "remote-postgres-plugin",
            Self::RemoteMysql => "remote-mysql-plugin",
        }
    }

    /// Whether the driver runs on a spoke.
    pub const fn is_remote(self) -> bool {
        matches!(self, Self::RemotePostgres | Self::RemoteMysql)
    }

    /// The SQL that the database speaks.
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Postgres | Self::RemotePostgres => Dialect::Postgres,
            Self::Mysql | Self::RemoteMysql => Dialect::Mysql,
        }
    }
}

impl fmt::Display for PluginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a new password is handed to PostgreSQL.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum PasswordAuthentication {
    /// In clear; the server hashes it.
    #[default]
    #[serde(rename = "password")]
    Password,
    /// Hashed here, so that the clear text reaches neither the server nor its logs.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
}

/// Why a configuration cannot be used. Holds no secret.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);

/// The configuration of one database connection, all values checked and defaults filled in.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DriverConfig {
    /// Which driver.
    pub plugin_name: PluginName,
    /// Whether a write is refused when the database cannot be reached with it. Default true.
    pub verify_connection: bool,
    /// Globs of the roles that may use this connection; empty = none.
    pub allowed_roles: Vec<String>,
    /// How the connection's own password is changed; empty = the driver's way.
    pub root_rotation_statements: Vec<String>,
    /// Name of the password policy; empty = the standard shape.
    pub password_policy: String,
    /// Where the database is: PostgreSQL URL or `key=value` text, MySQL `user:pass@tcp(host:port)/db` or URL.
    #[serde(serialize_with = "stored", deserialize_with = "restored")]
    pub connection_url: SecretString,
    /// For `{{username}}` in the URL.
    pub username: String,
    /// For `{{password}}` in the URL.
    #[serde(serialize_with = "stored", deserialize_with = "restored")]
    pub password: SecretString,
    /// Put user name and password into the URL as they are.
    pub disable_escaping: bool,
    /// Connections at most, 1 to 256. Default 16.
    pub max_open_connections: u32,
    /// Idle connections kept; 0 = as many as may be open, below 0 = none.
    pub max_idle_connections: i32,
    /// How old a connection may get; zero = any age.
    pub max_connection_lifetime: Duration,
    /// Shape of generated names; empty = the driver's own.
    pub username_template: String,
    /// How new passwords are handed over (PostgreSQL).
    pub password_authentication: PasswordAuthentication,
    /// Certificates (PEM) that the server's must come from; empty = the system's.
    pub tls_ca: String,
    /// Client certificate (PEM).
    pub tls_certificate: String,
    /// Key of the client certificate (PEM).
    #[serde(serialize_with = "stored", deserialize_with = "restored")]
    pub private_key: SecretString,
    /// Client certificate and its key in one (PEM).
    #[serde(serialize_with = "stored", deserialize_with = "restored")]
    pub tls_certificate_key: SecretString,
    /// The name that the server's certificate must bear; empty = the host of the URL.
    pub tls_server_name: String,
    /// Encrypt, but take any certificate.
    pub tls_skip_verify: bool,
    /// How long one operation may take, 1 to 90 s. Default 30 s.
    pub operation_timeout: Duration,
    /// End the sessions of a user when it is revoked.
    pub terminate_sessions_on_revoke: bool,
    /// The spoke that runs the driver; only and always for remote plugins, and not told to the spoke itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub spoke_name: String,
}

impl DriverConfig {
    /// A configuration with every default, for a plugin and URL.
    pub fn new(plugin_name: PluginName, connection_url: impl Into<String>) -> Self {
        Self {
            plugin_name,
            verify_connection: true,
            allowed_roles: Vec::new(),
            root_rotation_statements: Vec::new(),
            password_policy: String::new(),
            connection_url: connection_url.into().into(),
            username: String::new(),
            password: String::new().into(),
            disable_escaping: false,
            max_open_connections: DEFAULT_OPEN,
            max_idle_connections: 0,
            max_connection_lifetime: Duration::ZERO,
            username_template: String::new(),
            password_authentication: PasswordAuthentication::default(),
            tls_ca: String::new(),
            tls_certificate: String::new(),
            private_key: String::new().into(),
            tls_certificate_key: String::new().into(),
            tls_server_name: String::new(),
            tls_skip_verify: false,
            operation_timeout: DEFAULT_OPERATION_TIMEOUT,
            terminate_sessions_on_revoke: false,
            spoke_name: String::new(),
        }
    }

    /// Refuses limits that no client can set.
    ///
    /// # Errors
    /// When a limit is out of its bounds.
    pub(crate) fn check_limits(&self) -> Result<(), ConfigError> {
        if self.operation_timeout.as_secs() < 1 || self.operation_timeout > MAX_OPERATION_TIMEOUT {
            return Err(ConfigError("operation_timeout must be between 1s and 90s".to_owned()));
        }
        if !(1..=MAX_OPEN).contains(&self.max_open_connections) {
            return Err(ConfigError(format!("max_open_connections must be between 1 and {MAX_OPEN}")));
        }
        Ok(())
    }

    /// Whether the role of this name may use the connection.
    pub fn allows_role(&self, role: &str) -> bool {
        self.allowed_roles.iter().any(|glob| glob_matches(glob, role))
    }

    /// How many idle connections are kept.
    pub fn idle_limit(&self) -> usize {
        let open = self.max_open_connections;
        let idle = match self.max_idle_connections {
            0 => open,
            some => u32::try_from(some).unwrap_or(0).min(open),
        };
        usize::try_from(idle).unwrap_or(usize::MAX)
    }

    /// A scrubber that knows every secret of this configuration.
    pub fn scrubber(&self) -> Scrubber {
        let mut scrubber = Scrubber::new();
        let url = self.connection_url.expose_secret();
        scrubber.add(url);
        if let Some(password) = mask::password_in_url(url) {
            scrubber.add(&percent_decode(&password));
            scrubber.add(&password);
        }
        for secret in [&self.password, &self.private_key, &self.tls_certificate_key] {
            scrubber.add(secret.expose_secret());
        }
        scrubber
    }

    /// Whether the URL itself holds a password, which a reader of the configuration is better off without.
    pub fn url_holds_password(&self) -> bool {
        mask::password_in_url(self.connection_url.expose_secret()).is_some()
    }

    /// The configuration with another password, as after a rotation of the connection's own login.
    pub fn with_password(&self, password: SecretString) -> Self {
        Self { password, ..self.clone() }
    }
}

/// `*` stands for any text.
fn glob_matches(glob: &str, text: &str) -> bool {
    let Some((head, mut rest)) = glob.split_once('*') else { return glob == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    while let Some((middle, after)) = rest.split_once('*') {
        let Some((_, behind)) = text.split_once(middle) else { return false };
        (rest, text) = (after, behind);
    }
    text.ends_with(rest)
}

fn stored<S: Serializer>(secret: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose_secret())
}

fn restored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SecretString, D::Error> {
    Ok(String::deserialize(deserializer)?.into())
}

#[cfg(test)]
mod tests;
