//! `sys/metrics`: this node's own values in the Prometheus text format.

use bytes::Bytes;

use crate::error::ApiError;
use crate::hub::Hub;
use crate::logical::{Body, Operation, Request, Response};

/// Answers `GET sys/metrics`; any node answers for itself.
pub fn handle(hub: &Hub, request: &Request) -> Result<Response, ApiError> {
    if request.operation != Operation::Read {
        return Err(ApiError::unsupported_operation());
    }
    match request.query("format") {
        None | Some("" | "prometheus") => {}
        Some(_) => return Err(ApiError::invalid("the only format of metrics is prometheus")),
    }
    let bytes = Bytes::from(hub.metrics.render(&*hub.cluster));
    let body = Body::Bytes { content_type: holdfast_ops::metrics::CONTENT_TYPE, bytes };
    Ok(Response { status: None, body })
}
