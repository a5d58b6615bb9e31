//! The paths `config`, `config/<name>` and `reset/<name>`.

use holdfast_dbdriver::{Call, Driver, DriverConfig, DriverError, Reason};
use serde_json::Value;
use std::sync::Arc;

use super::connection::{self, Connection, Named, pointer_key};
use super::instances::timed;
use super::paths::{Place, check_name};
use super::{names, root};
use crate::error::ApiError;
use crate::lease::record::Queue;
use crate::lease::{Guard, Mail};
use crate::logical::{Operation, Request, Response};
use crate::metrics::DatabaseOp;
use crate::storage::Stored;

/// Answers `config` and `config/<name>`.
pub async fn handle(place: &Place<'_>, request: &Request, name: &str) -> Result<Response, ApiError> {
    match (request.operation, name) {
        (Operation::List, "") => place.list(request, connection::NAMES),
        (Operation::Read, "") => Err(ApiError::unsupported_operation()),
        (Operation::Read, _) => match connection::by_name(place, name)? {
            Some(named) => Ok(read(&named.connection.value)),
            None => Err(ApiError::missing()),
        },
        (Operation::Write, _) => write(place, request, name).await,
        (Operation::Delete, _) => delete(place, name).await,
        _ => Err(ApiError::unsupported_operation()),
    }
}

/// Answers `reset/<name>`: closes the connections, so that the next request makes new ones.
pub fn reset(place: &Place<'_>, name: &str) -> Result<Response, ApiError> {
    let named = required(place, name)?;
    place.databases().instances.retire(&named.connection.value.id);
    Ok(Response::no_content())
}

/// The configuration of a name that a request depends on.
pub fn required(place: &Place<'_>, name: &str) -> Result<Named, ApiError> {
    connection::by_name(place, name)?
        .ok_or_else(|| ApiError::failed(format!("failed to find entry for connection with name: {name:?}")))
}

fn read(connection: &Connection) -> Response {
    let mut view = connection.config.view();
    if !connection.needs_attention.is_empty() {
        view.insert("needs_attention".to_owned(), Value::from(connection.needs_attention.clone()));
    }
    Response::data(view)
}

async fn write(place: &Place<'_>, request: &Request, name: &str) -> Result<Response, ApiError> {
    check_name(name)?;
    // A rotation under way ends first: its password must not become that of another login.
    let found = connection::by_name(place, name)?.map(|named| named.connection.value.queue());
    let _held = match found {
        Some(queue) => Some(held(place, &queue).await?),
        None => None,
    };
    let stored = connection::by_name(place, name)?;
    let old = stored.as_ref().map(|named| &named.connection.value);
    let config = DriverConfig::merged(old.map(|c| &c.config), request.data.as_map())
        .map_err(|e| refused(&e.to_string()))?;
    let id = old.map_or_else(|| uuid::Uuid::new_v4().to_string(), |c| c.id.clone());
    let driver = verified(place, &id, &config).await?;
    let connection = Connection {
        id,
        mount_uuid: place.mount.uuid.clone(),
        name: name.to_owned(),
        deleted: false,
        // Writing it is what an operator does after looking.
        needs_attention: String::new(),
        config,
    };
    let connections = usize::try_from(connection.config.max_open_connections).unwrap_or(1);
    let queue = connection.queue();
    let risky_url = connection.config.url_holds_password();
    let version = match save(place, stored.as_ref(), &connection).await {
        Ok(version) => version,
        Err(error) => {
            driver.close().await;
            return Err(error);
        }
    };
    let stored = Stored { value: connection, version };
    let cx = place.cx;
    drop(place.databases().instances.install(cx.term, &cx.hub.metrics, &stored, driver));
    cx.hub.leases.tell(Mail::Connections(queue, connections));
    let warning = "the connection_url holds a password, which whoever reads the configuration's backups sees; \
                   use the fields username and password with {{username}} and {{password}} in the URL";
    Ok(if risky_url { Response::no_content().warn(warning) } else { Response::no_content() })
}

/// Takes the lock of a configuration's own login.
async fn held(place: &Place<'_>, queue: &Queue) -> Result<Guard<String>, ApiError> {
    let lock = root::lock(queue);
    let taken = tokio::time::timeout_at(place.cx.deadline, place.databases().rotating.take(&lock));
    taken.await.map_err(|_| ApiError::unavailable("the connection's own password is being rotated"))
}

/// A driver for the configuration, after it logged in if that is asked for.
async fn verified(place: &Place<'_>, id: &str, config: &DriverConfig) -> Result<Arc<dyn Driver>, ApiError> {
    let text = |e: DriverError| match e.reason() {
        // Leadership went; nothing was done that the next leader cannot do again.
        Reason::Closed | Reason::Cancelled => ApiError::no_leader(),
        _ => refused(e.client_text()),
    };
    let driver = place.databases().instances.open(id, config).map_err(text)?;
    let deadline = place.cx.deadline.min(tokio::time::Instant::now() + config.operation_timeout);
    let call = Call::new(deadline, place.cx.cancel.child_token());
    let work = driver.initialize(&call, config.verify_connection);
    match timed(&place.cx.hub.metrics, &*driver, DatabaseOp::Initialize, work).await {
        Ok(()) => Ok(driver),
        Err(error) => {
            driver.close().await;
            // Only a lost leadership cancels a request that somebody still waits for; nothing was saved, so the
            // next leader may do it all anew.
            Err(if error.reason() == Reason::Cancelled { ApiError::no_leader() } else { text(error) })
        }
    }
}

fn refused(cause: &str) -> ApiError {
    ApiError::invalid(format!("error creating database object: {cause}"))
}

async fn save(place: &Place<'_>, old: Option<&Named>, connection: &Connection) -> Result<u64, ApiError> {
    let pointer = format!("{}{}", place.storage.prefix(), pointer_key(&connection.name));
    let mut txn = place.cx.storage.txn();
    place.mount.require_mounted(&mut txn);
    match old {
        Some(named) => {
            txn.require_version(&pointer, named.pointer.version);
            txn.require_version(&connection.key(), named.connection.version);
        }
        None => {
            txn.require_absent(&pointer);
            txn.put(&pointer, &connection.id)?;
        }
    }
    txn.put(&connection.key(), connection)?;
    Ok(txn.commit().await?.version)
}

/// Takes a configuration's name away; its record stays while something refers to it.
pub async fn delete(place: &Place<'_>, name: &str) -> Result<Response, ApiError> {
    let Some(named) = connection::by_name(place, name)? else { return Ok(Response::no_content()) };
    let pointer = format!("{}{}", place.storage.prefix(), pointer_key(name));
    let Stored { value: mut record, version } = named.connection;
    record.deleted = true;
    let mut txn = place.cx.storage.txn();
    txn.require_version(&pointer, named.pointer.version);
    txn.require_version(&record.key(), version);
    txn.delete(&pointer);
    txn.put(&record.key(), &record)?;
    txn.commit().await?;
    // From here on nothing new can refer to it, so the count only falls.
    let count = names::count(&place.cx.storage, &record.mount_uuid, &record.id)?;
    if count == 0 {
        place.cx.hub.leases.collect(&place.cx.storage, &record.queue()).await?;
        return Ok(Response::no_content());
    }
    let warning = format!(
        "{count} leases, users being removed or static roles still refer to this connection; it stays, hidden, \
         until they are gone"
    );
    Ok(Response::no_content().warn(warning))
}
