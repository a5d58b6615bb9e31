//! From an answer or an error to bytes: the envelope with its eight keys, and the error list.

use holdfast_net::serve::Body as HttpBody;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, STRICT_TRANSPORT_SECURITY};
use http::{Response as HttpResponse, StatusCode};
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};

use super::body;
use crate::error::ApiError;
use crate::logical::{AuthGrant, Body, Logical, Response};

/// The content type of everything that is JSON, exactly.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const STRICT: HeaderValue = HeaderValue::from_static("max-age=31536000; includeSubDomains");

/// The answer on the wire.
pub fn render(request_id: &str, response: Response) -> HttpResponse<HttpBody> {
    let status = |default: u16| {
        StatusCode::from_u16(response.status.unwrap_or(default)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    };
    match response.body {
        Body::Empty => answer(status(204), None, body::empty()),
        Body::Logical(logical) => json_answer(status(200), &envelope(request_id, *logical)),
        Body::Json(value) => json_answer(status(200), &value),
        Body::Bytes { content_type, bytes } => {
            answer(status(200), Some(HeaderValue::from_static(content_type)), body::full(bytes))
        }
        Body::File { content_type, file } => {
            answer(status(200), Some(HeaderValue::from_static(content_type)), body::file(file))
        }
    }
}

/// The error on the wire.
pub fn render_error(error: &ApiError) -> HttpResponse<HttpBody> {
    let mut map = Map::from_iter([("errors".to_owned(), Value::from(error.errors().to_vec()))]);
    if let Some(data) = &error.data {
        map.insert("data".to_owned(), Value::Object(data.clone()));
    }
    if !error.warnings.is_empty() {
        map.insert("warnings".to_owned(), Value::from(error.warnings.clone()));
    }
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_answer(status, &Value::Object(map));
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Adds the headers that every answer carries.
pub fn finish(response: &mut HttpResponse<HttpBody>, tls: bool) {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, NO_STORE);
    if tls {
        headers.insert(STRICT_TRANSPORT_SECURITY, STRICT);
    }
}

/// The envelope with its eight keys; also what a wrapping token keeps.
pub fn envelope(request_id: &str, logical: Logical) -> Value {
    let lease = logical.lease.unwrap_or_default();
    let mut map = match &logical.data {
        Some(data) if logical.mirror => data.clone(),
        _ => Map::new(),
    };
    let eight = [
        ("request_id", Value::from(request_id)),
        ("lease_id", Value::from(lease.id)),
        ("renewable", Value::from(lease.renewable)),
        ("lease_duration", Value::from(lease.duration)),
        ("data", logical.data.map_or(Value::Null, Value::Object)),
        ("wrap_info", logical.wrap_info.map_or(Value::Null, |info| json!(info))),
        ("warnings", if logical.warnings.is_empty() { Value::Null } else { Value::from(logical.warnings) }),
        ("auth", logical.auth.map_or(Value::Null, |grant| auth(&grant))),
    ];
    map.extend(eight.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(map)
}

fn auth(grant: &AuthGrant) -> Value {
    json!({
        "client_token": grant.client_token.expose_secret(),
        "accessor": grant.accessor,
        "policies": grant.policies,
        "token_policies": grant.token_policies,
        "identity_policies": null,
        "metadata": if grant.metadata.is_empty() { Value::Null } else { json!(grant.metadata) },
        "lease_duration": grant.lease_duration,
        "renewable": grant.renewable,
        "entity_id": "",
        "token_type": grant.token_type,
        "orphan": grant.orphan,
        "mfa_requirement": null,
        "num_uses": grant.num_uses,
    })
}

fn json_answer(status: StatusCode, value: &Value) -> HttpResponse<HttpBody> {
    let mut text = value.to_string();
    text.push('\n');
    answer(status, Some(JSON), body::full(text))
}

fn answer(status: StatusCode, content_type: Option<HeaderValue>, body: HttpBody) -> HttpResponse<HttpBody> {
    let mut response = HttpResponse::new(body);
    *response.status_mut() = status;
    if let Some(kind) = content_type {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::logical::LeaseTicket;

    async fn text(response: HttpResponse<HttpBody>) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn the_envelope_has_its_eight_keys() {
        let response = render("id", Response::data(Map::from_iter([("a".to_owned(), json!(1))])));
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let value: Value = serde_json::from_str(&text(response).await).unwrap();
        let expected = json!({
            "request_id": "id", "lease_id": "", "renewable": false, "lease_duration": 0,
            "data": {"a": 1}, "wrap_info": null, "warnings": null, "auth": null,
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn mirrored_data_never_hides_one_of_the_eight() {
        let data = Map::from_iter([("secret/".to_owned(), json!({})), ("auth".to_owned(), json!("x"))]);
        let logical = Logical {
            data: Some(data),
            mirror: true,
            lease: Some(LeaseTicket { id: "l".into(), duration: 3, renewable: true }),
            ..Logical::default()
        };
        let value = envelope("id", logical);
        assert_eq!(value["secret/"], json!({}));
        assert_eq!(value["auth"], Value::Null);
        assert_eq!((&value["lease_id"], &value["lease_duration"]), (&json!("l"), &json!(3)));
    }

    #[tokio::test]
    async fn errors_are_a_list_with_what_comes_beside_it() {
        let missing = render_error(&ApiError::missing());
        assert_eq!(missing.status(), 404);
        assert_eq!(text(missing).await.trim(), "{\"errors\":[]}");
        let sealed = render_error(&ApiError::sealed());
        assert_eq!((sealed.status().as_u16(), &sealed.headers()[RETRY_AFTER]), (503, &HeaderValue::from(1)));
        assert_eq!(text(sealed).await.trim(), "{\"errors\":[\"Vault is sealed\"]}");
    }

    #[tokio::test]
    async fn nothing_is_204_without_a_content_type() {
        let mut response = render("id", Response::no_content());
        finish(&mut response, true);
        assert_eq!(response.status(), 204);
        assert!(!response.headers().contains_key(CONTENT_TYPE));
        assert!(response.headers().contains_key(STRICT_TRANSPORT_SECURITY));
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
    }
}
