//! A request on its way to the active node, and the answer back: which headers travel, and the ones we add.
//!
//! The added headers are believed on the cluster port only; from a client they are dropped.

use std::net::IpAddr;
use std::time::Duration;

use holdfast_net::serve::Body;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use tokio::time::Instant;

use super::body;

/// The client's address.
const REMOTE: HeaderName = HeaderName::from_static("x-holdfast-remote");
/// Milliseconds left.
const LEFT: HeaderName = HeaderName::from_static("x-holdfast-deadline-ms");
/// Marks the typed answer of a node that is not active and did nothing.
const NOT_ACTIVE: HeaderName = HeaderName::from_static("x-holdfast-not-active");

/// What concerns one connection and not the message.
const HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    header::PROXY_AUTHORIZATION,
];

/// Who a forwarded request came from, and when it ends.
#[derive(Clone, Copy, Debug)]
pub struct Forwarded {
    /// The client's address.
    pub remote: IpAddr,
    /// When the answer is no longer wanted.
    pub deadline: Instant,
}

/// The request as it is sent to another node.
pub fn request(parts: &Parts, body: Body, remote: IpAddr, deadline: Instant) -> Option<Request<Body>> {
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let uri = Uri::builder().scheme("https").authority("cluster").path_and_query(target).build().ok()?;
    let mut request = Request::new(body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    *headers = travelling(&parts.headers);
    headers.remove(header::CONTENT_LENGTH);
    let left = deadline.saturating_duration_since(Instant::now());
    headers.insert(LEFT, HeaderValue::from(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
    headers.insert(REMOTE, HeaderValue::from_str(&remote.to_string()).ok()?);
    Some(request)
}

/// Reads what the forwarding node added; `longest` bounds the deadline.
pub fn forwarded(headers: &HeaderMap, longest: Duration) -> Option<Forwarded> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let left = Duration::from_millis(text(&LEFT)?.parse().ok()?).min(longest);
    Some(Forwarded { remote: text(&REMOTE)?.parse().ok()?, deadline: Instant::now() + left })
}

/// The answer as it goes on to the client.
pub fn response(mut response: Response<Body>) -> Response<Body> {
    let headers = travelling(response.headers());
    *response.headers_mut() = headers;
    response
}

/// The typed answer of a node that is not active.
pub fn not_active() -> Response<Body> {
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(NOT_ACTIVE, HeaderValue::from_static("1"));
    response
}

/// Whether an answer is that of a node that is not active.
pub fn is_not_active(response: &Response<Body>) -> bool {
    response.headers().contains_key(&NOT_ACTIVE)
}

fn travelling(headers: &HeaderMap) -> HeaderMap {
    let stays = |name: &HeaderName| HOP.contains(name) || name.as_str().starts_with("x-holdfast-");
    headers.iter().filter(|(name, _)| !stays(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_cannot_speak_for_the_cluster() {
        let (parts, ()) = Request::put("http://a/v1/x?list=true")
            .header("x-holdfast-remote", "10.0.0.1")
            .header("connection", "keep-alive")
            .header("x-vault-token", "t")
            .body(())
            .unwrap()
            .into_parts();
        let deadline = Instant::now() + Duration::from_secs(5);
        let sent = request(&parts, body::empty(), "192.0.2.7".parse().unwrap(), deadline).unwrap();
        assert_eq!(sent.uri().path_and_query().unwrap(), "/v1/x?list=true");
        assert_eq!(sent.headers()["x-vault-token"], "t");
        assert!(!sent.headers().contains_key("connection"));
        let got = forwarded(sent.headers(), Duration::from_secs(2)).unwrap();
        assert_eq!(got.remote, "192.0.2.7".parse::<IpAddr>().unwrap());
        assert!(got.deadline <= Instant::now() + Duration::from_secs(2));
        assert!(forwarded(&HeaderMap::new(), Duration::from_secs(2)).is_none());
    }

    #[test]
    fn the_typed_answer_is_known_again() {
        assert!(is_not_active(&not_active()));
        assert!(!is_not_active(&response(not_active())), "it never reaches a client");
    }
}
