//! Rotation of a connection's own password.
//!
//! The new password is in the store before the database gets it. When the outcome is not known, the new password is
//! tested, then the old one. When neither works both are kept and the configuration is marked for an operator.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Term;
use holdfast_dbdriver::{Call, Change, DriverError, UpdateUser};
use secrecy::ExposeSecret as _;
use tokio_util::sync::CancellationToken;

use super::connection::{self, Connection};
use super::instances::Instance;
use super::paths::{Place, driver_error};
use super::rotation::Candidate;
use super::{config, passwords, statics};
use crate::error::ApiError;
use crate::hub::Hub;
use crate::lease::Wall;
use crate::lease::record::Queue;
use crate::logical::Response;
use crate::storage::{Storage, Stored};

const RECORDS: &str = "dbroot/record/";
/// How often records that a crash left are looked at.
const EVERY: Duration = Duration::from_secs(10);
/// Records that one look takes.
const PAGE: usize = 1000;
/// How often another password is tried when the database's rules refuse one.
const CANDIDATES: u32 = 3;
/// How often the new state is committed when the configuration is written meanwhile.
const COMMITS: u32 = 8;

fn record_key(queue: &Queue) -> String {
    format!("{RECORDS}{}/{}", queue.mount_uuid, queue.config_id)
}

/// The name of the lock under which a connection's own login changes, by rotation or by hand.
pub fn lock(queue: &Queue) -> String {
    format!("root/{}/{}", queue.mount_uuid, queue.config_id)
}

/// What came of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Found {
    /// There is none, or the old password holds and it was dropped.
    Nothing,
    /// The new password holds and was committed.
    New,
    /// Neither password works.
    Neither,
}

/// What a rotation works with. Its holder has the configuration's lock.
struct Work<'a> {
    hub: &'a Hub,
    storage: &'a Storage,
    term: Term,
    cancel: &'a CancellationToken,
}

/// Answers `rotate-root/<name>`.
pub async fn rotate(place: &Place<'_>, name: &str) -> Result<Response, ApiError> {
    let queue = config::required(place, name)?.connection.value.queue();
    let _held = place.databases().rotating.take(&lock(&queue)).await;
    let cx = place.cx;
    let work = Work { hub: &cx.hub, storage: &cx.storage, term: cx.term, cancel: &cx.cancel };
    if work.recover(&queue).await? == Found::Neither {
        return Err(ApiError::failed(
            "neither the old nor the new password of the last rotation works; the connection needs attention",
        ));
    }
    work.rotate(&queue).await?;
    Ok(Response::no_content())
}

impl Work<'_> {
    async fn rotate(&self, queue: &Queue) -> Result<(), ApiError> {
        let connection = self.connection(queue)?;
        let config = &connection.value.config;
        if config.username.is_empty()
            || config.password.expose_secret().is_empty()
            || !config.connection_url.expose_secret().contains("{{password}}")
        {
            return Err(ApiError::invalid(
                "the connection must have username and password, and {{password}} in its connection_url, for its \
                 password to be rotated",
            ));
        }
        let instance = self.instance(&connection)?;
        let mut tries = 1;
        loop {
            let password = passwords::generate(self.storage, &config.password_policy)?;
            let candidate = Candidate { password: statics::kept(&password), at: Wall::now() };
            self.record(&connection, &candidate).await?;
            let update = UpdateUser {
                username: config.username.clone(),
                change: Change::Password(password),
                statements: config.root_rotation_statements.clone(),
            };
            match instance.update_user(&self.call(&instance), &update).await {
                Ok(()) => return self.commit(queue, &candidate).await,
                Err(error) if error.is_definite() => {
                    self.drop_record(queue).await?;
                    if !error.refused_by_policy() || tries >= CANDIDATES {
                        return Err(driver_error(&error));
                    }
                    tries += 1;
                }
                Err(error) => return self.find_out(queue, &error).await,
            }
        }
    }

    /// After an attempt whose outcome is not known.
    async fn find_out(&self, queue: &Queue, error: &DriverError) -> Result<(), ApiError> {
        match self.recover(queue).await {
            Ok(Found::New) => Ok(()),
            Ok(Found::Nothing | Found::Neither) => Err(driver_error(error)),
            // The record stays; the active node goes on with it.
            Err(_) => Err(ApiError::outcome_unknown()),
        }
    }

    /// Finds out what came of a record, if there is one.
    async fn recover(&self, queue: &Queue) -> Result<Found, ApiError> {
        let Some(candidate) = self.storage.get::<Candidate>(&record_key(queue))? else {
            return Ok(Found::Nothing);
        };
        let Some(connection) = connection::by_queue(self.storage, queue)? else {
            self.drop_record(queue).await?;
            return Ok(Found::Nothing);
        };
        let instance = self.instance(&connection)?;
        let config = &connection.value.config;
        if self.works(&instance, &config.username, &candidate.value.password.clone().into()).await? {
            self.commit(queue, &candidate.value).await?;
            return Ok(Found::New);
        }
        if self.works(&instance, &config.username, &config.password).await? {
            self.drop_record(queue).await?;
            return Ok(Found::Nothing);
        }
        self.mark(&connection).await?;
        Ok(Found::Neither)
    }

    async fn works(
        &self,
        instance: &Instance,
        username: &str,
        password: &secrecy::SecretString,
    ) -> Result<bool, ApiError> {
        let call = self.call(instance);
        let works = instance.driver().verify_password(&call, username, password).await;
        works.map_err(|error| driver_error(&error))
    }

    /// Writes the candidate down. When that fails the database is not touched.
    async fn record(&self, connection: &Stored<Connection>, candidate: &Candidate) -> Result<(), ApiError> {
        let key = record_key(&connection.value.queue());
        let mut txn = self.storage.txn();
        txn.require_absent(&key);
        txn.require_present(&connection.value.key());
        txn.put(&key, candidate)?;
        txn.commit().await?;
        Ok(())
    }

    async fn drop_record(&self, queue: &Queue) -> Result<(), ApiError> {
        self.storage.delete(&record_key(queue)).await?;
        Ok(())
    }

    /// The new password becomes the configuration's, whatever else was written to it meanwhile.
    async fn commit(&self, queue: &Queue, candidate: &Candidate) -> Result<(), ApiError> {
        for _ in 0..COMMITS {
            let Some(Stored { value: mut connection, version }) = connection::by_queue(self.storage, queue)?
            else {
                return self.drop_record(queue).await;
            };
            connection.config.password = candidate.password.clone().into();
            connection.needs_attention.clear();
            let mut txn = self.storage.txn();
            txn.require_version(&connection.key(), version);
            txn.put(&connection.key(), &connection)?;
            txn.delete(&record_key(queue));
            match txn.commit().await {
                Err(error) if error.is_conflict() => {}
                done => {
                    done?;
                    self.hub.leases.databases().instances.retire(&queue.config_id);
                    return Ok(());
                }
            }
        }
        Err(ApiError::unavailable("the connection is being changed by other requests; try again"))
    }

    async fn mark(&self, connection: &Stored<Connection>) -> Result<(), ApiError> {
        if !connection.value.needs_attention.is_empty() {
            return Ok(());
        }
        tracing::error!(
            config = %connection.value.name,
            "after a rotation of the connection's own password neither the old nor the new one works"
        );
        let mut marked = connection.value.clone();
        "neither the old nor the new password of a rotation works".clone_into(&mut marked.needs_attention);
        let mut txn = self.storage.txn();
        txn.require_version(&marked.key(), connection.version);
        txn.put(&marked.key(), &marked)?;
        txn.commit().await?;
        Ok(())
    }

    fn connection(&self, queue: &Queue) -> Result<Stored<Connection>, ApiError> {
        connection::by_queue(self.storage, queue)?.ok_or_else(ApiError::missing)
    }

    fn instance(&self, connection: &Stored<Connection>) -> Result<Arc<Instance>, ApiError> {
        let instances = &self.hub.leases.databases().instances;
        let acquired = instances.acquire(self.term, &self.hub.metrics, connection);
        acquired.map_err(|error| driver_error(&error))
    }

    fn call(&self, instance: &Instance) -> Call {
        Call::new(tokio::time::Instant::now() + instance.timeout, self.cancel.child_token())
    }
}

/// Looks at records that a former active node, or a lost answer, left; until `cancel`.
pub async fn run(hub: Arc<Hub>, term: Term, cancel: CancellationToken) {
    let storage = hub.storage.fenced(term);
    let work = Work { hub: &hub, storage: &storage, term, cancel: &cancel };
    loop {
        if cancel.run_until_cancelled(work.recover_all()).await.is_none()
            || cancel.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none()
        {
            return;
        }
    }
}

impl Work<'_> {
    async fn recover_all(&self) {
        let records = self.storage.scan_keys(RECORDS, None, PAGE).unwrap_or_default();
        for key in records {
            let Some((mount_uuid, config_id)) = key.strip_prefix(RECORDS).and_then(|k| k.split_once('/'))
            else {
                continue;
            };
            let queue = Queue { mount_uuid: mount_uuid.to_owned(), config_id: config_id.to_owned() };
            let _held = self.hub.leases.databases().rotating.take(&lock(&queue)).await;
            if let Err(error) = self.recover(&queue).await {
                tracing::debug!(error = %error, "a rotation could not be recovered yet");
            }
        }
    }
}
