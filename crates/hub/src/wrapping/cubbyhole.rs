//! The mount `cubbyhole/`: a place of its own for every service token, which dies with it.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::auth::token::{Token, TokenType, Tokens};
use crate::error::ApiError;
use crate::logical::{Cx, Engine, Operation, Request, Response};
use crate::mount::MountEntry;

/// The engine of the mount type `cubbyhole`.
pub fn engine() -> Arc<dyn Engine> {
    Arc::new(Cubbyhole)
}

struct Cubbyhole;

#[async_trait]
impl Engine for Cubbyhole {
    async fn exists(&self, cx: &Cx, _mount: &MountEntry, request: &Request) -> Result<bool, ApiError> {
        let Some(token) = request.token.as_deref() else { return Ok(false) };
        Ok(cx.storage.get::<Map<String, Value>>(&key(token, &request.rest))?.is_some())
    }

    async fn handle(&self, cx: &Cx, _mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
        let token = owner(request)?;
        let key = key(token, &request.rest);
        match request.operation {
            Operation::List => list(cx, &key, request),
            _ if request.rest.is_empty() || request.rest.ends_with('/') => {
                Err(ApiError::unsupported_operation())
            }
            Operation::Read => {
                let found = cx.storage.get::<Map<String, Value>>(&key)?.ok_or_else(ApiError::missing)?;
                Ok(Response::data(found.value))
            }
            Operation::Write => {
                if request.data.as_map().is_empty() {
                    return Err(ApiError::invalid("missing data fields"));
                }
                let mut txn = cx.storage.txn();
                Tokens::require_live(&mut txn, token);
                txn.put(&key, request.data.as_map())?;
                match txn.commit().await {
                    Err(error) if error.is_conflict() => Err(ApiError::denied()),
                    done => done.map(|_| Response::no_content()).map_err(ApiError::from),
                }
            }
            Operation::Delete => {
                cx.storage.delete(&key).await?;
                Ok(Response::no_content())
            }
            Operation::Patch => Err(ApiError::unsupported_operation()),
        }
    }
}

fn owner(request: &Request) -> Result<&Token, ApiError> {
    let token = request.token.as_deref().ok_or_else(ApiError::denied)?;
    if token.token_type == TokenType::Batch {
        return Err(ApiError::invalid("cubbyhole operations are only supported by \"service\" type tokens"));
    }
    Ok(token)
}

fn list(cx: &Cx, prefix: &str, request: &Request) -> Result<Response, ApiError> {
    let (after, limit) = request.page()?;
    let prefix = if prefix.ends_with('/') { prefix.to_owned() } else { format!("{prefix}/") };
    let keys = cx.storage.list(&prefix, after.as_deref(), limit)?;
    if keys.is_empty() { Err(ApiError::missing()) } else { Ok(Response::keys(keys, None)) }
}

fn key(token: &Token, rest: &str) -> String {
    format!("cubbyhole/{}/{rest}", token.id)
}
