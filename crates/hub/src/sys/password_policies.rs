//! `sys/policies/password/<name>` and `.../generate`.

use secrecy::ExposeSecret as _;
use serde_json::{Map, json};

use crate::database::passwords::{POLICIES, StoredPolicy, generate, key, parse};
use crate::error::ApiError;
use crate::logical::{Cx, Operation, Request, Response};

/// Answers the path `rest` below `policies/password/`.
pub async fn handle(cx: &Cx, rest: &str, request: &Request) -> Result<Response, ApiError> {
    if request.operation == Operation::List {
        return list(cx, rest, request);
    }
    let (name, verb) = rest.split_once('/').unwrap_or((rest, ""));
    if name.is_empty() {
        return Err(ApiError::unsupported_operation());
    }
    match (verb, request.operation) {
        ("", Operation::Read) => match cx.storage.get::<StoredPolicy>(&key(name))? {
            Some(stored) => {
                Ok(Response::mirrored(Map::from_iter([("policy".to_owned(), json!(stored.value.policy))])))
            }
            None => Err(ApiError::missing()),
        },
        ("", Operation::Write) => write(cx, name, request).await,
        ("", Operation::Delete) => {
            cx.storage.delete(&key(name)).await?;
            Ok(Response::no_content())
        }
        ("generate", Operation::Read) => {
            if cx.storage.get::<StoredPolicy>(&key(name))?.is_none() {
                return Err(ApiError::missing());
            }
            let password = generate(&cx.storage, name)?;
            let data = Map::from_iter([("password".to_owned(), json!(password.expose_secret()))]);
            Ok(Response::mirrored(data))
        }
        ("" | "generate", _) => Err(ApiError::unsupported_operation()),
        _ => Err(ApiError::unsupported_path()),
    }
}

async fn write(cx: &Cx, name: &str, request: &Request) -> Result<Response, ApiError> {
    let policy = request.data.required("policy", "missing policy")?;
    parse(&policy)?;
    cx.storage.put(&key(name), &StoredPolicy { policy }).await?;
    Ok(Response::no_content())
}

fn list(cx: &Cx, rest: &str, request: &Request) -> Result<Response, ApiError> {
    if !rest.trim_matches('/').is_empty() {
        return Err(ApiError::unsupported_operation());
    }
    let (after, limit) = request.page()?;
    let names = cx.storage.list(POLICIES, after.as_deref(), limit)?;
    if names.is_empty() {
        return Err(ApiError::missing());
    }
    Ok(Response::mirrored(Map::from_iter([("keys".to_owned(), json!(names))])))
}
