//! One audit entry as a line of JSON, with every secret hashed.

use serde_json::{Map, Value, json};

use super::AuditEntry;
use super::entry::DeviceOptions;
use crate::auth::token::{Token, TokenType};
use crate::barrier::{Barrier, BarrierError, MacPurpose};
use crate::logical::{AuthGrant, Body, Logical, Request, Response, WrapInfo};
use crate::relay::metrics::Route;
use crate::relay::work::Work;
use secrecy::ExposeSecret;

/// What an entry tells of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stage {
    Request,
    Response,
}

impl Stage {
    const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Response => "response",
        }
    }
}

/// The hash under which a value appears in entries.
pub fn hash(barrier: &Barrier, text: &str) -> Result<String, BarrierError> {
    Ok(format!("hmac-sha256:{}", hex::encode(barrier.mac(MacPurpose::Audit, text.as_bytes())?)))
}

/// Renders an entry for a device.
pub(super) fn render(
    barrier: &Barrier,
    options: &DeviceOptions,
    stage: Stage,
    time: &str,
    entry: &AuditEntry<'_>,
) -> Result<Vec<u8>, BarrierError> {
    let writer = Writer { barrier, raw: options.log_raw, hmac_accessor: options.hmac_accessor };
    let mut line = Map::new();
    line.insert("time".to_owned(), json!(time));
    line.insert("type".to_owned(), json!(stage.name()));
    line.insert("auth".to_owned(), writer.auth(entry)?);
    line.insert("request".to_owned(), writer.request(entry)?);
    if stage == Stage::Response {
        let response = entry.response.map(|response| writer.response(response, entry)).transpose()?;
        line.insert("response".to_owned(), response.unwrap_or_else(|| json!({})));
    }
    if let Some(error) = entry.error {
        line.insert("error".to_owned(), json!(error.to_string()));
    }
    if let Some(work) = entry.relay {
        line.insert("relay".to_owned(), relay(work));
    }
    let mut bytes = options.prefix.clone().into_bytes();
    bytes.extend_from_slice(Value::Object(line).to_string().as_bytes());
    bytes.push(b'\n');
    Ok(bytes)
}

/// Names of spokes and nodes are no secrets.
fn relay(work: &Work) -> Value {
    json!({
        "spoke": work.spoke.as_str(),
        "node_id": work.node.as_str(),
        "route": match work.route {
            Route::Local => "local",
            Route::Forwarded => "forwarded",
        },
        "duration_ms": u64::try_from(work.took.as_millis()).unwrap_or(u64::MAX),
    })
}

struct Writer<'a> {
    barrier: &'a Barrier,
    raw: bool,
    hmac_accessor: bool,
}

impl Writer<'_> {
    fn text(&self, text: &str) -> Result<Value, BarrierError> {
        match (self.raw, text.is_empty()) {
            (true, _) | (_, true) => Ok(json!(text)),
            _ => hash(self.barrier, text).map(Value::String),
        }
    }

    fn accessor(&self, text: &str) -> Result<Value, BarrierError> {
        if self.hmac_accessor { self.text(text) } else { Ok(json!(text)) }
    }

    fn auth(&self, entry: &AuditEntry<'_>) -> Result<Value, BarrierError> {
        let Some(token) = entry.token else { return Ok(json!({})) };
        Ok(json!({
            "accessor": self.accessor(&token.accessor)?,
            "client_token": self.client_token(entry.request)?,
            "display_name": token.display_name,
            "policies": token.policies,
            "token_type": type_name(token),
        }))
    }

    fn client_token(&self, request: &Request) -> Result<Value, BarrierError> {
        self.text(request.client_token.as_ref().map_or("", |token| token.expose_secret()))
    }

    fn request(&self, entry: &AuditEntry<'_>) -> Result<Value, BarrierError> {
        let request = entry.request;
        let accessor = entry.token.map_or("", |token| token.accessor.as_str());
        let mut map = Map::new();
        map.insert("id".to_owned(), json!(request.id));
        map.insert("operation".to_owned(), json!(request.operation.name()));
        map.insert("path".to_owned(), json!(request.path));
        map.insert("data".to_owned(), self.map(request.data.as_map(), clear(entry))?);
        map.insert("remote_address".to_owned(), json!(request.remote.to_string()));
        map.insert("client_token".to_owned(), self.client_token(request)?);
        map.insert("client_token_accessor".to_owned(), self.accessor(accessor)?);
        map.insert("mount_type".to_owned(), json!(entry.mount_type));
        if let Some(seconds) = request.wrap_ttl {
            map.insert("wrap_ttl".to_owned(), json!(seconds));
        }
        Ok(Value::Object(map))
    }

    fn response(&self, response: &Response, entry: &AuditEntry<'_>) -> Result<Value, BarrierError> {
        let mut map = Map::from_iter([("mount_type".to_owned(), json!(entry.mount_type))]);
        if let Some(status) = response.status {
            map.insert("status".to_owned(), json!(status));
        }
        match &response.body {
            Body::Empty => {}
            Body::Logical(logical) => self.logical(&mut map, logical, clear(entry))?,
            Body::Json(value) => {
                map.insert("data".to_owned(), self.value(value)?);
            }
            Body::Bytes { content_type, .. } | Body::File { content_type, .. } => {
                map.insert("content_type".to_owned(), json!(content_type));
            }
        }
        Ok(Value::Object(map))
    }

    fn logical(
        &self,
        map: &mut Map<String, Value>,
        logical: &Logical,
        clear: &[&str],
    ) -> Result<(), BarrierError> {
        if let Some(lease) = logical.lease.as_ref().filter(|lease| !lease.id.is_empty()) {
            map.insert("secret".to_owned(), json!({"lease_id": lease.id}));
        }
        if let Some(data) = &logical.data {
            map.insert("data".to_owned(), self.map(data, clear)?);
        }
        if let Some(grant) = &logical.auth {
            map.insert("auth".to_owned(), self.grant(grant)?);
        }
        if let Some(wrap) = &logical.wrap_info {
            map.insert("wrap_info".to_owned(), self.wrap(wrap)?);
        }
        if !logical.warnings.is_empty() {
            map.insert("warnings".to_owned(), json!(logical.warnings));
        }
        Ok(())
    }

    fn grant(&self, grant: &AuthGrant) -> Result<Value, BarrierError> {
        Ok(json!({
            "accessor": self.accessor(&grant.accessor)?,
            "client_token": self.text(grant.client_token.expose_secret())?,
            "policies": grant.policies,
            "token_policies": grant.token_policies,
            "metadata": grant.metadata,
            "token_type": grant.token_type,
            "token_ttl": grant.lease_duration,
        }))
    }

    fn wrap(&self, wrap: &WrapInfo) -> Result<Value, BarrierError> {
        Ok(json!({
            "token": self.text(&wrap.token)?,
            "accessor": self.accessor(&wrap.accessor)?,
            "ttl": wrap.ttl,
            "creation_time": wrap.creation_time,
            "creation_path": wrap.creation_path,
            "wrapped_accessor": self.accessor(&wrap.wrapped_accessor)?,
        }))
    }

    /// The outermost members may be in clear by name; what lies deeper belongs to callers and never is.
    fn map(&self, map: &Map<String, Value>, clear: &[&str]) -> Result<Value, BarrierError> {
        let member = |(key, value): (&String, &Value)| {
            let value = if clear.contains(&key.as_str()) { value.clone() } else { self.value(value)? };
            Ok((key.clone(), value))
        };
        map.iter().map(member).collect::<Result<Map<_, _>, _>>().map(Value::Object)
    }

    fn value(&self, value: &Value) -> Result<Value, BarrierError> {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(map) => self.map(map, &[]),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
        }
    }
}

/// The names in clear. What is wrapped has names that its caller chose.
fn clear<'a>(entry: &AuditEntry<'a>) -> &'a [&'a str] {
    if entry.request.path.starts_with("sys/wrapping/") { &[] } else { entry.clear }
}

fn type_name(token: &Token) -> &'static str {
    match token.token_type {
        TokenType::Service => "service",
        TokenType::Batch => "batch",
    }
}
