//! Paths.

use http::Method;
use percent_encoding::percent_decode_str;

use crate::metrics::Route;

/// What a path asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Path {
    /// `/v1/values/{name}`, the name decoded once; it may be anything.
    Value(Box<[u8]>),
    /// `/v1/values`
    Batch,
    /// `/v1/watch`
    Watch,
    /// `/v1/healthz`
    Health,
    /// `/v1/readyz`
    Ready,
    /// `/v1/status`
    Status,
    /// `/metrics`
    Metrics,
    /// No route.
    None,
}

impl Path {
    pub(super) fn of(path: &str) -> Self {
        match path {
            "/v1/values" => Self::Batch,
            "/v1/watch" => Self::Watch,
            "/v1/healthz" => Self::Health,
            "/v1/readyz" => Self::Ready,
            "/v1/status" => Self::Status,
            "/metrics" => Self::Metrics,
            _ => match path.strip_prefix("/v1/values/") {
                // One segment: a `/` of the name travels as `%2F`.
                Some(name) if !name.is_empty() && !name.contains('/') => {
                    Self::Value(percent_decode_str(name).collect())
                }
                _ => Self::None,
            },
        }
    }

    pub(super) const fn route(&self) -> Route {
        match self {
            Self::Value(_) => Route::Value,
            Self::Batch => Route::Batch,
            Self::Watch => Route::Watch,
            Self::Health => Route::Health,
            Self::Ready => Route::Ready,
            Self::Status => Route::Status,
            Self::Metrics => Route::Metrics,
            Self::None => Route::None,
        }
    }

    /// What `Allow` says; none where there is no route.
    pub(super) const fn methods(&self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Batch => Some("POST"),
            Self::Watch => Some("GET, HEAD, POST"),
            _ => Some("GET, HEAD"),
        }
    }

    pub(super) fn takes(&self, method: &Method) -> bool {
        self.methods().is_some_and(|methods| methods.split(", ").any(|allowed| allowed == method.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &[u8]) -> Path {
        Path::Value(name.into())
    }

    #[test]
    fn a_name_is_one_segment_decoded_once() {
        for (path, expected) in [
            ("/v1/values/db-password", value(b"db-password")),
            ("/v1/values/orders%2Fdb", value(b"orders/db")),
            ("/v1/values/a%252Fb", value(b"a%2Fb")),
            ("/v1/values/%FF%00", value(b"\xff\0")),
            ("/v1/values/a+b", value(b"a+b")),
            ("/v1/values/orders/db", Path::None),
            ("/v1/values/", Path::None),
            ("/v1/values", Path::Batch),
            ("/v1/watch/", Path::None),
            ("/v2/values/a", Path::None),
            ("/", Path::None),
            ("*", Path::None),
        ] {
            assert_eq!(Path::of(path), expected, "{path}");
        }
    }

    #[test]
    fn methods() {
        assert!(value(b"a").takes(&Method::HEAD) && !value(b"a").takes(&Method::POST));
        assert!(Path::Watch.takes(&Method::POST) && !Path::Batch.takes(&Method::GET));
        assert!(!Path::None.takes(&Method::GET));
    }
}
