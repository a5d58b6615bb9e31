//! Answers in HTTP's terms.

use bytes::Bytes;
use holdfast_net::serve::Body;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Full};

use crate::wire;

/// A whole body.
pub(super) fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn response(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// JSON.
pub(super) fn json(status: StatusCode, body: Bytes) -> Response<Body> {
    streamed_json(status, full(body))
}

/// JSON that is made while it is sent.
pub(super) fn streamed_json(status: StatusCode, body: Body) -> Response<Body> {
    response(status, "application/json", body)
}

/// Plain text.
pub(super) fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    response(status, "text/plain; charset=utf-8", full(Bytes::from_static(text.as_bytes())))
}

/// A stream of events, or its headers.
pub(super) fn events(body: Body) -> Response<Body> {
    let mut response = response(StatusCode::OK, "text/event-stream", body);
    // A proxy that gathers answers would hold changes back.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A refusal as its envelope.
pub(super) fn refusal(fault: wire::Fault) -> Response<Body> {
    let status = StatusCode::from_u16(fault.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(status, wire::envelope(fault))
}

/// The same headers without the body, for HEAD.
pub(super) fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = hyper::body::Body::size_hint(&body).exact() {
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(
        parts,
        Empty::new().map_err(|never: std::convert::Infallible| match never {}).boxed_unsync(),
    )
}
