//! The PostgreSQL driver: every change to users is one transaction.

mod address;
mod connect;
mod contention;
mod errors;
mod revoke;
mod transaction;

use std::sync::Arc;

use async_trait::async_trait;
use secrecy::{ExposeSecret, SecretString};

use crate::config::{DriverConfig, PasswordAuthentication, PluginName};
use crate::driver::{Call, Change, DeleteUser, Driver, NewUser, UpdateUser};
use crate::error::{DriverError, Reason};
use crate::pool::{Connect as _, Pool};
use crate::scrub::Scrubber;
use crate::statement::{Dialect, Statements, Values, expiration};
use connect::Connector;
pub use connect::Messages;
use contention::Contention;

const DEFAULT_PASSWORD_STATEMENT: &str = r#"ALTER ROLE "{{username}}" WITH PASSWORD '{{password}}'"#;
const DEFAULT_EXPIRATION_STATEMENT: &str = r#"ALTER ROLE "{{username}}" VALID UNTIL '{{expiration}}'"#;

/// A PostgreSQL to read from, by a connection string as its own tools take it.
#[derive(Clone)]
pub struct PostgresAddress(Connector);

impl PostgresAddress {
    /// Reads the string and the files that it names. Contacts nothing.
    ///
    /// # Errors
    /// When string or files cannot be understood; what is in them is not repeated.
    pub fn parse(dsn: &SecretString) -> Result<Self, DriverError> {
        let config = DriverConfig::new(PluginName::Postgres, dsn.expose_secret());
        Ok(Self(Connector::new(&config).map_err(|error| error.scrubbed(&config.scrubber()))?))
    }

    /// Connects. The connection lives as long as the messages are polled.
    ///
    /// # Errors
    /// What the server says, or why there is none.
    pub async fn connect(&self) -> Result<(tokio_postgres::Client, Messages), tokio_postgres::Error> {
        self.0.connect_undriven().await
    }
}

/// Makes and removes roles in one PostgreSQL database.
pub struct PostgresDriver {
    plugin: PluginName,
    connector: Connector,
    pool: Arc<Pool<Connector>>,
    password_authentication: PasswordAuthentication,
    scrubber: Scrubber,
    contention: Contention,
}

impl std::fmt::Debug for PostgresDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresDriver").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

impl PostgresDriver {
    /// A driver for `config`. Contacts nothing.
    ///
    /// # Errors
    /// When the URL or the TLS material cannot be understood.
    pub fn new(config: &DriverConfig) -> Result<Self, DriverError> {
        let scrubber = config.scrubber();
        let connector = Connector::new(config).map_err(|e| e.scrubbed(&scrubber))?;
        let pool = Pool::new(
            connector.clone(),
            config.max_open_connections,
            config.idle_limit(),
            config.max_connection_lifetime,
        );
        Ok(Self {
            plugin: config.plugin_name,
            connector,
            pool,
            password_authentication: config.password_authentication,
            scrubber,
            contention: Contention::default(),
        })
    }

    /// How many connections wait for work.
    pub fn idle_connections(&self) -> usize {
        self.pool.idle_count()
    }

    /// What stands for `{{password}}`: the password, or its verifier.
    fn password_text(&self, password: &SecretString) -> SecretString {
        match self.password_authentication {
            PasswordAuthentication::Password => password.clone(),
            PasswordAuthentication::ScramSha256 => {
                postgres_protocol::password::scram_sha_256(password.expose_secret().as_bytes()).into()
            }
        }
    }

    async fn create(&self, call: &Call, user: &NewUser) -> Result<(), DriverError> {
        let statements = Statements::parse(&user.statements, Dialect::Postgres)?;
        if statements.is_empty() {
            return Err(DriverError::invalid("empty creation statements"));
        }
        let password = self.password_text(&user.password);
        let expiration = expiration(user.expiration);
        let rendered = statements.render(&Values {
            username: &user.username,
            password: Some(password.expose_secret()),
            expiration: Some(&expiration),
        });
        let key = Contention::key(&user.statements);
        self.transaction(call, &rendered, key).await.map_err(|e| errors::about_password(&e))
    }

    async fn change(&self, call: &Call, update: &UpdateUser) -> Result<(), DriverError> {
        let default = match update.change {
            Change::Password(_) => DEFAULT_PASSWORD_STATEMENT,
            Change::Expiration(_) => DEFAULT_EXPIRATION_STATEMENT,
        };
        let mut statements = Statements::parse(&update.statements, Dialect::Postgres)?;
        if statements.is_empty() {
            statements = Statements::parse(&[default.to_owned()], Dialect::Postgres)?;
        }
        let key = Contention::key(&update.statements);
        match &update.change {
            Change::Password(password) => {
                let text = self.password_text(password);
                let values = Values {
                    username: &update.username,
                    password: Some(text.expose_secret()),
                    expiration: None,
                };
                let done = self.transaction(call, &statements.render(&values), key).await;
                done.map_err(|e| errors::about_password(&e))
            }
            Change::Expiration(at) => {
                let at = expiration(*at);
                let values = Values { username: &update.username, password: None, expiration: Some(&at) };
                self.transaction(call, &statements.render(&values), key).await
            }
        }
    }
}

#[async_trait]
impl Driver for PostgresDriver {
    fn plugin(&self) -> PluginName {
        self.plugin
    }

    async fn initialize(&self, call: &Call, verify: bool) -> Result<(), DriverError> {
        if !verify {
            return Ok(());
        }
        self.texts(call, "SELECT 1::text", &[]).await.map(drop).map_err(|e| e.scrubbed(&self.scrubber))
    }

    async fn new_user(&self, call: &Call, user: &NewUser) -> Result<(), DriverError> {
        let scrubber = self.scrubber.with(user.password.expose_secret());
        self.create(call, user).await.map_err(|e| errors::about_user(e, &user.username).scrubbed(&scrubber))
    }

    async fn update_user(&self, call: &Call, update: &UpdateUser) -> Result<(), DriverError> {
        let scrubber = match &update.change {
            Change::Password(password) => self.scrubber.with(password.expose_secret()),
            Change::Expiration(_) => self.scrubber.clone(),
        };
        self.change(call, update)
            .await
            .map_err(|e| errors::about_user(e, &update.username).scrubbed(&scrubber))
    }

    async fn delete_user(&self, call: &Call, user: &DeleteUser) -> Result<(), DriverError> {
        self.revoke(call, user).await.map_err(|e| e.scrubbed(&self.scrubber))
    }

    async fn verify_password(
        &self,
        call: &Call,
        username: &str,
        password: &SecretString,
    ) -> Result<bool, DriverError> {
        let scrubber = self.scrubber.with(password.expose_secret());
        let attempt = async {
            let _slot = self.pool.take_slot(call).await?;
            let connector = self.connector.as_user(username, password);
            self.pool.run(call, connector.connect()).await?
        };
        match attempt.await {
            Ok(_) => Ok(true),
            // Both are told only to those who gave the right password.
            Err(e) if matches!(e.sqlstate(), Some("42501" | "3D000")) => Ok(true),
            Err(e) if e.sqlstate() == Some("28P01") => Ok(false),
            Err(e) if e.reason() == Reason::Deadline => {
                Err(DriverError::new(Reason::Unreachable, "the database did not answer the login in time"))
            }
            Err(e) => Err(e.scrubbed(&scrubber)),
        }
    }

    async fn close(&self) {
        self.pool.close();
        self.connector.close().await;
    }
}
