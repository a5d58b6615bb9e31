//! The two probes: a bare status and nothing else, without a credential, never limited, never audited.

use holdfast_core::readiness::Answer;
use holdfast_net::serve::Body;
use http::{Response, StatusCode, header};

use super::answer;
use crate::wire;

/// Is this process alive?
pub(super) fn health() -> Response<Body> {
    let mut response = answer::json(StatusCode::OK, wire::status("ok"));
    response.headers_mut().remove(header::CACHE_CONTROL);
    response
}

/// Should this replica get traffic?
pub(super) fn ready(answer: Answer) -> Response<Body> {
    let status = if answer == Answer::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer::json(status, wire::status(answer.label()))
}
