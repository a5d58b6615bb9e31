//! `sys/policies/acl`, `sys/policy` and `sys/capabilities*`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::auth::token::Token;
use crate::error::ApiError;
use crate::logical::{Cx, Operation, Request, Response};

/// The two families of paths that differ in the names of their fields only.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Family {
    /// `sys/policies/acl`: the text is `policy`.
    Acl,
    /// `sys/policy`: the text is `rules` in answers.
    Legacy,
}

/// Answers `sys/policies/acl/<rest>` or `sys/policy/<rest>`.
pub async fn handle(cx: &Cx, family: Family, rest: &str, request: &Request) -> Result<Response, ApiError> {
    let name = rest.trim_end_matches('/').to_lowercase();
    let policies = &cx.hub.policies;
    match (request.operation, name.as_str()) {
        (Operation::List, "") => list(cx, family, request),
        (Operation::Read, "") if family == Family::Legacy => list(cx, family, request),
        (_, "") | (Operation::List | Operation::Patch, _) => Err(ApiError::unsupported_operation()),
        (Operation::Read, name) => {
            let text = policies.text(&cx.storage, name)?.ok_or_else(ApiError::missing)?;
            let field = if family == Family::Acl { "policy" } else { "rules" };
            Ok(Response::mirrored(Map::from_iter([
                ("name".to_owned(), Value::from(name)),
                (field.to_owned(), Value::from(text)),
            ])))
        }
        (Operation::Write, name) => {
            policies.write(cx, name, &text(request)?).await?;
            Ok(Response::no_content())
        }
        (Operation::Delete, name) => {
            policies.delete(cx, name).await?;
            Ok(Response::no_content())
        }
    }
}

fn list(cx: &Cx, family: Family, request: &Request) -> Result<Response, ApiError> {
    let (after, limit) = request.page()?;
    let names = cx.hub.policies.names(&cx.storage, after.as_deref(), limit)?;
    let mut data = Map::from_iter([("keys".to_owned(), Value::from(names.clone()))]);
    if family == Family::Legacy {
        data.insert("policies".to_owned(), Value::from(names));
    }
    Ok(Response::mirrored(data))
}

/// The text of a policy, which may come in base64.
fn text(request: &Request) -> Result<String, ApiError> {
    let field = |name: &str| request.data.string(name).map(|text| text.filter(|t| !t.trim().is_empty()));
    let text = match field("policy")? {
        Some(text) => Some(text),
        None => field("rules")?,
    };
    let text = text.ok_or_else(|| ApiError::invalid("'policy' parameter not supplied or empty"))?;
    let decoded = STANDARD.decode(text.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    Ok(decoded.unwrap_or(text))
}

/// Whose capabilities are asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Whose {
    /// The token in the body.
    Token,
    /// The caller.
    Own,
    /// The token with the accessor in the body.
    Accessor,
}

/// Answers `sys/capabilities`, `sys/capabilities-self` and `sys/capabilities-accessor`.
pub fn handle_capabilities(cx: &Cx, whose: Whose, request: &Request) -> Result<Response, ApiError> {
    if request.operation != Operation::Write {
        return Err(ApiError::unsupported_operation());
    }
    let token = subject(cx, whose, request)?;
    let mut paths = request.data.strings("paths")?.unwrap_or_default();
    if paths.is_empty() {
        paths = request.data.strings("path")?.unwrap_or_default();
    }
    let Some(first) = paths.first() else { return Err(ApiError::invalid("paths must be supplied")) };
    let capabilities = |path: &str| cx.hub.policies.capabilities(&token.policies, path).map(Value::from);
    let mut data = Map::from_iter([("capabilities".to_owned(), capabilities(first)?)]);
    for path in &paths {
        data.insert(path.clone(), capabilities(path)?);
    }
    Ok(Response::mirrored(data))
}

fn subject(cx: &Cx, whose: Whose, request: &Request) -> Result<Token, ApiError> {
    let found = match whose {
        Whose::Own => {
            // The token in the body is the caller's own; clients may send it again.
            return request.token.as_deref().cloned().ok_or_else(ApiError::denied);
        }
        Whose::Token => {
            let text = request.data.required("token", "missing token")?;
            cx.hub.tokens.lookup(&cx.storage, &text)?.ok_or("invalid token")
        }
        Whose::Accessor => {
            let accessor = request.data.required("accessor", "missing accessor")?;
            cx.hub.tokens.lookup_accessor(&cx.storage, &accessor)?.ok_or("invalid accessor")
        }
    };
    found.map_err(ApiError::invalid)
}
