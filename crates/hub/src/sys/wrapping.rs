//! `sys/wrapping/`: wrap what the caller sends, and fetch or look at what was wrapped.

use secrecy::ExposeSecret as _;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::logical::{Cx, Operation, Request, Response};
use crate::wrapping;

/// Whether the path (after `sys/wrapping/`) needs no token but the wrapping token itself.
pub fn unauthenticated(rest: &str) -> bool {
    matches!(rest, "unwrap" | "lookup")
}

/// Answers `sys/wrapping/<rest>`.
pub async fn handle(cx: &Cx, rest: &str, request: &Request) -> Result<Response, ApiError> {
    match (rest, request.operation) {
        ("wrap", Operation::Write | Operation::Read) => wrap(request),
        ("unwrap", Operation::Write | Operation::Read) => wrapping::unwrap(cx, &token(request)?).await,
        ("lookup", Operation::Write | Operation::Read) => lookup(cx, request),
        ("wrap" | "unwrap" | "lookup", _) => Err(ApiError::unsupported_operation()),
        _ => Err(ApiError::unsupported_path()),
    }
}

/// Hands the request's fields back; the pipeline wraps them, because the caller asked for it.
fn wrap(request: &Request) -> Result<Response, ApiError> {
    match request.wrap_ttl {
        Some(ttl) if ttl > 0 => Ok(Response::data(request.data.as_map().clone())),
        _ => Err(ApiError::invalid("endpoint requires response wrapping to be used")),
    }
}

fn lookup(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    let known = wrapping::lookup(cx, &token(request)?)?;
    Ok(Response::data(Map::from_iter([
        ("creation_path".to_owned(), Value::from(known.creation_path)),
        ("creation_time".to_owned(), Value::from(known.creation_time)),
        ("creation_ttl".to_owned(), Value::from(known.creation_ttl)),
    ])))
}

/// The token in the body, else the one in the header; an unknown one when there is neither.
fn token(request: &Request) -> Result<String, ApiError> {
    let body = request.data.string("token")?.filter(|text| !text.is_empty());
    let header = || request.client_token.as_ref().map(|text| text.expose_secret().to_owned());
    Ok(body.or_else(header).unwrap_or_default())
}
