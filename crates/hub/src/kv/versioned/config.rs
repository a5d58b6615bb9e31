//! `config`: what holds for all secrets of the mount.

use serde_json::{Map, json};

use super::record::{Config, duration_text};
use super::{CONFIG, Kv};
use crate::error::ApiError;
use crate::logical::{Data, Operation, Request, Response};

pub(super) async fn handle(kv: &Kv<'_>, request: &Request) -> Result<Response, ApiError> {
    match request.operation {
        Operation::Read => read(kv),
        Operation::Write => write(kv, &request.data).await,
        _ => Err(ApiError::unsupported_operation()),
    }
}

fn read(kv: &Kv<'_>) -> Result<Response, ApiError> {
    let config = kv.config()?;
    Ok(Response::data(Map::from_iter([
        ("cas_required".to_owned(), json!(config.cas_required)),
        ("delete_version_after".to_owned(), json!(duration_text(config.delete_version_after))),
        ("max_versions".to_owned(), json!(config.max_versions)),
    ])))
}

/// Fields that are left out stay as they are.
async fn write(kv: &Kv<'_>, data: &Data) -> Result<Response, ApiError> {
    let old = kv.config()?;
    let config = Config {
        max_versions: max_versions(data)?.unwrap_or(old.max_versions),
        cas_required: data.bool("cas_required")?.unwrap_or(old.cas_required),
        delete_version_after: data.seconds("delete_version_after")?.unwrap_or(old.delete_version_after),
    };
    kv.store.put(CONFIG, &config).await?;
    Ok(Response::no_content())
}

/// How many versions to keep.
pub(super) fn max_versions(data: &Data) -> Result<Option<u64>, ApiError> {
    data.int("max_versions")?
        .map(|n| u64::try_from(n).map_err(|_| ApiError::invalid("max_versions must not be negative")))
        .transpose()
}
