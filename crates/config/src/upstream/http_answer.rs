//! What an HTTP answer of a backend means, unless its provider knows better, and how answers are read.

use std::time::Duration;

use bytes::Bytes;
use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome};
use http::{HeaderMap, StatusCode, header};
use zeroize::{Zeroize as _, Zeroizing};

use super::content::MAX_OBJECT;
use crate::value::Value;

/// The `User-Agent` of all calls to backends.
pub const USER_AGENT: &str = concat!("holdfast/", env!("CARGO_PKG_VERSION"));

/// The answer's meaning: an error, or absence; none when it is a success or a redirect.
pub fn meaning(status: StatusCode, headers: &HeaderMap) -> Option<Outcome<Value>> {
    let kind = match status.as_u16() {
        200..=299 => return None,
        304 => return None,
        400 => AnswerKind::Invalid,
        // The replica's own credential was refused, which says nothing about the value.
        401 | 407 => return Some(Outcome::Error(Failure::own_login())),
        403 => AnswerKind::PermissionDenied,
        404 => return Some(Outcome::Absent),
        429 => AnswerKind::RateLimited,
        500..=599 => AnswerKind::Unavailable,
        _ => AnswerKind::Unknown,
    };
    let retry_after = match kind {
        AnswerKind::RateLimited | AnswerKind::Unavailable => retry_after(headers),
        _ => None,
    };
    Some(Outcome::Error(Failure { kind, retry_after, own_login: false }))
}

/// `Retry-After`, in seconds or as a date.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp().as_microsecond();
    Some(holdfast_core::Wall::from_micros(at).since(crate::clock::wall()))
}

/// The body; none when it breaks off or is larger than an object may be with everything around it.
pub async fn body(mut response: reqwest::Response) -> Result<Zeroizing<Vec<u8>>, AnswerKind> {
    const MOST: usize = MAX_OBJECT + (1 << 20);
    let length = response.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    if length > MOST {
        return Err(AnswerKind::Invalid);
    }
    // Room for all of it at once leaves no copies behind as it grows.
    let mut bytes = Zeroizing::new(Vec::with_capacity(length));
    while let Some(chunk) = response.chunk().await.map_err(|_| AnswerKind::Unavailable)? {
        if bytes.len().saturating_add(chunk.len()) > MOST {
            return Err(AnswerKind::Invalid);
        }
        bytes.extend_from_slice(&chunk);
        wipe(chunk);
    }
    Ok(bytes)
}

/// Wipes a chunk that nobody else holds.
fn wipe(chunk: Bytes) {
    if let Ok(mut own) = chunk.try_into_mut() {
        own.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, retry: Option<&str>) -> Option<Outcome<Value>> {
        let mut headers = HeaderMap::new();
        if let Some(retry) = retry {
            headers.insert(header::RETRY_AFTER, retry.parse().unwrap());
        }
        meaning(StatusCode::from_u16(status).unwrap(), &headers)
    }

    #[test]
    fn statuses_mean_what_the_specification_says() {
        for (status, kind) in [
            (400, AnswerKind::Invalid),
            (403, AnswerKind::PermissionDenied),
            (429, AnswerKind::RateLimited),
            (500, AnswerKind::Unavailable),
            (503, AnswerKind::Unavailable),
            (418, AnswerKind::Unknown),
            (302, AnswerKind::Unknown),
        ] {
            assert_eq!(of(status, None), Some(Outcome::Error(Failure::of(kind))), "{status}");
        }
        assert_eq!(of(401, None), Some(Outcome::Error(Failure::own_login())));
        assert_eq!(of(404, None), Some(Outcome::Absent));
        assert_eq!((of(200, None), of(204, None), of(304, None)), (None, None, None));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let told = |retry| match of(429, Some(retry)) {
            Some(Outcome::Error(failure)) => failure.retry_after,
            other => panic!("{other:?}"),
        };
        assert_eq!(told("7"), Some(Duration::from_secs(7)));
        assert_eq!(told("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        assert!(told("Fri, 31 Dec 2100 23:59:59 GMT").unwrap() > Duration::from_secs(86_400));
        assert_eq!(told("soon"), None);
    }
}
