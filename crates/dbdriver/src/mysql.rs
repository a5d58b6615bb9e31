//! The MySQL and MariaDB driver. Statements about users commit by themselves here, so a creation that fails half-way
//! is undone by the rollback statements and by dropping the user.

mod address;
mod connect;
mod errors;
mod revoke;
mod run;

use std::sync::Arc;

use async_trait::async_trait;
use secrecy::{ExposeSecret, SecretString};

use crate::config::{DriverConfig, PluginName};
use crate::driver::{Call, Change, DeleteUser, Driver, NewUser, UpdateUser};
use crate::error::{DriverError, Reason};
use crate::pool::{Connect as _, Pool};
use crate::scrub::Scrubber;
use crate::statement::{Dialect, Statements, Values, expiration};
use connect::Connector;

/// Makes and removes users of one MySQL or MariaDB server.
pub struct MysqlDriver {
    plugin: PluginName,
    connector: Connector,
    pool: Arc<Pool<Connector>>,
    scrubber: Scrubber,
}

impl std::fmt::Debug for MysqlDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MysqlDriver").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

impl MysqlDriver {
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
        Ok(Self { plugin: config.plugin_name, connector, pool, scrubber })
    }

    /// How many connections wait for work.
    pub fn idle_connections(&self) -> usize {
        self.pool.idle_count()
    }

    async fn create(&self, call: &Call, user: &NewUser) -> Result<(), DriverError> {
        let statements = Statements::parse(&user.statements, Dialect::Mysql)?;
        if statements.is_empty() {
            return Err(DriverError::invalid("empty creation statements"));
        }
        let rollback = Statements::parse(&user.rollback_statements, Dialect::Mysql)?;
        let expiration = expiration(user.expiration);
        let values = Values {
            username: &user.username,
            password: Some(user.password.expose_secret()),
            expiration: Some(&expiration),
        };
        // A user that was there before is not ours to undo.
        if !self.hosts(call, &user.username).await?.is_empty() {
            return Err(DriverError::new(Reason::Exists, format!("user '{}' exists already", user.username)));
        }
        match self.run_all(call, &statements.render(&values)).await {
            Ok(()) => Ok(()),
            Err(failed) if !failed.started => Err(failed.error),
            Err(failed) => {
                let error = errors::about_password(&failed.error);
                Err(self.undo(error, &user.username, &rollback.render(&values)).await)
            }
        }
    }

    async fn change(&self, call: &Call, update: &UpdateUser) -> Result<(), DriverError> {
        let statements = Statements::parse(&update.statements, Dialect::Mysql)?;
        let at;
        let (password, expires) = match &update.change {
            Change::Password(password) => (Some(password.expose_secret()), None),
            Change::Expiration(when) => {
                at = expiration(*when);
                (None, Some(at.as_str()))
            }
        };
        let values = Values { username: &update.username, password, expiration: expires };
        let rendered = match (statements.is_empty(), password) {
            (false, _) => statements.render(&values),
            (true, Some(password)) => vec![self.password_statement(call, &update.username, password).await?],
            // Users have no end of validity here; the lease alone decides.
            (true, None) => return Ok(()),
        };
        let done = self.run_all(call, &rendered).await;
        done.map_err(|failed| {
            let several = rendered.len() > 1 && failed.started;
            let error = errors::about_password(&failed.error);
            if several { error.with_unknown_effect() } else { error }
        })
    }
}

#[async_trait]
impl Driver for MysqlDriver {
    fn plugin(&self) -> PluginName {
        self.plugin
    }

    async fn initialize(&self, call: &Call, verify: bool) -> Result<(), DriverError> {
        if !verify {
            return Ok(());
        }
        self.texts(call, "SELECT '1'", Vec::new()).await.map(drop).map_err(|e| e.scrubbed(&self.scrubber))
    }

    async fn new_user(&self, call: &Call, user: &NewUser) -> Result<(), DriverError> {
        let scrubber = self.scrubber.with(user.password.expose_secret());
        self.create(call, user).await.map_err(|e| e.scrubbed(&scrubber))
    }

    async fn update_user(&self, call: &Call, update: &UpdateUser) -> Result<(), DriverError> {
        let scrubber = match &update.change {
            Change::Password(password) => self.scrubber.with(password.expose_secret()),
            Change::Expiration(_) => self.scrubber.clone(),
        };
        self.change(call, update).await.map_err(|e| e.scrubbed(&scrubber))
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
            // The database of the URL is closed to this user, which is told only after the login went well.
            Err(e) if e.native_code() == Some(errors::DATABASE_DENIED) => Ok(true),
            Err(e)
                if matches!(e.native_code(), Some(errors::ACCESS_DENIED | errors::ACCESS_DENIED_PLAIN)) =>
            {
                Ok(false)
            }
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
