//! The head of a request, parsed: what is wanted, of which path, by whom. The rules of the API that concern no
//! mount are all here.

use http::{HeaderMap, Method};
use secrecy::SecretString;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::logical::data::{is_under_a_second, parse_bool, parse_seconds};
use crate::logical::{Data, Operation};

/// What every path starts with.
const PREFIX: &str = "/v1/";
/// The longest path, in bytes.
const MAX_PATH: usize = 4096;
/// The most fields of a query.
const MAX_FIELDS: usize = 256;
/// What a merge patch is declared as.
const MERGE_PATCH: &str = "application/merge-patch+json";

/// A parsed head.
#[derive(Clone, Debug)]
pub struct Head {
    /// What is wanted.
    pub operation: Operation,
    /// The path without `/v1/`; lists end with a slash.
    pub path: String,
    /// The query's fields in order.
    pub query: Vec<(String, String)>,
    /// Whether only the headers of the answer are wanted.
    pub bodiless: bool,
    /// Whether help on the path is wanted, not the path.
    pub help: bool,
    /// The token, when one came.
    pub token: Option<SecretString>,
    /// Whether the namespace named is the only one there is.
    pub root_namespace: bool,
    /// The time for which the answer is to be wrapped, in seconds.
    pub wrap_ttl: Option<i64>,
    /// Whether the client wants to be sent to the active node instead of being forwarded.
    pub redirect: bool,
}

impl Head {
    /// Parses; the errors are those of malformed requests.
    pub fn parse(
        method: &Method,
        path: &str,
        query: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<Self, ApiError> {
        let raw = path.strip_prefix(PREFIX).ok_or_else(ApiError::missing)?;
        let mut path = clean_path(raw)?;
        let query = parse_query(query.unwrap_or(""))?;
        let field = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let flag = |name: &str| match field(name) {
            None => Ok(false),
            Some(text) => parse_bool(text)
                .ok_or_else(|| ApiError::invalid(format!("query parameter {name:?} must be a boolean"))),
        };
        let operation = match method.as_str() {
            "GET" if flag("list")? => Operation::List,
            "GET" => Operation::Read,
            "HEAD" if path == "sys/health" => Operation::Read,
            "LIST" => Operation::List,
            "PUT" | "POST" => Operation::Write,
            "PATCH" => patch(headers)?,
            "DELETE" => Operation::Delete,
            _ => return Err(ApiError::unsupported_operation()),
        };
        if operation == Operation::List {
            path.push('/');
        }
        let namespace = text(headers, "x-vault-namespace")?.unwrap_or("");
        Ok(Self {
            operation,
            bodiless: *method == Method::HEAD,
            help: operation == Operation::Read && flag("help")?,
            token: token(headers)?,
            root_namespace: matches!(namespace.trim_matches('/'), "" | "root"),
            wrap_ttl: wrap_ttl(headers)?,
            redirect: text(headers, "x-vault-no-request-forwarding")?.is_some_and(is_on),
            path,
            query,
        })
    }

    /// Whether the body is a backup, which has no size limit and is not JSON.
    pub fn is_upload(&self) -> bool {
        self.operation == Operation::Write
            && matches!(self.path.as_str(), "sys/storage/raft/snapshot" | "sys/storage/raft/snapshot-force")
    }

    /// The fields that a handler sees, from the query or from the body, as the operation has it.
    pub fn data(&self, body: &[u8]) -> Result<Data, ApiError> {
        let map = match self.operation {
            Operation::Read | Operation::List => self.query_fields(),
            Operation::Write | Operation::Patch => object(body)?,
            Operation::Delete => {
                let mut map = self.query_fields();
                map.extend(object(body)?);
                map
            }
        };
        Ok(Data::new(map))
    }

    fn query_fields(&self) -> Map<String, Value> {
        let mut map = Map::new();
        for (key, value) in self.query.iter().filter(|(key, _)| !matches!(key.as_str(), "list" | "help")) {
            let value = Value::from(value.as_str());
            match map.get_mut(key) {
                None => {
                    map.insert(key.clone(), value);
                }
                Some(Value::Array(list)) => list.push(value),
                Some(first) => *first = Value::Array(vec![first.take(), value]),
            }
        }
        map
    }
}

/// An empty body is an empty object; anything but an object is refused.
fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    // The parser's own text could quote a secret.
    serde_json::from_slice(body).map_err(|_| ApiError::invalid("error parsing JSON"))
}

fn patch(headers: &HeaderMap) -> Result<Operation, ApiError> {
    let provided = text(headers, "content-type")?.unwrap_or("");
    let kind = provided.split(';').next().unwrap_or("").trim();
    if kind.eq_ignore_ascii_case(MERGE_PATCH) {
        return Ok(Operation::Patch);
    }
    let error = format!("PATCH requires Content-Type of {MERGE_PATCH}, provided {kind}");
    Err(ApiError::with_status(holdfast_core::Kind::Invalid, 415, error))
}

fn token(headers: &HeaderMap) -> Result<Option<SecretString>, ApiError> {
    if let Some(token) = text(headers, "x-vault-token")?.filter(|t| !t.is_empty()) {
        return Ok(Some(token.into()));
    }
    let Some((scheme, token)) = text(headers, "authorization")?.and_then(|a| a.split_once(' ')) else {
        return Ok(None);
    };
    let token = token.trim();
    Ok((scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.into()))
}

fn wrap_ttl(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    let Some(text) = text(headers, "x-vault-wrap-ttl")?.filter(|t| !t.is_empty()) else { return Ok(None) };
    let seconds = parse_seconds(text).ok_or_else(|| ApiError::invalid("wrap ttl is not a duration"))?;
    if seconds < 0 {
        return Err(ApiError::invalid("requested wrap ttl cannot be negative"));
    }
    if is_under_a_second(text) {
        return Err(ApiError::invalid("requested wrap ttl cannot be less than one second"));
    }
    Ok((seconds > 0).then_some(seconds))
}

/// Whether a header that is either there or not is on.
fn is_on(value: &str) -> bool {
    !matches!(value.trim(), "" | "0" | "false")
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, ApiError> {
    let value = headers.get(name).map(|value| value.to_str());
    value.transpose().map_err(|_| ApiError::invalid(format!("header {name} is not text")))
}

/// Decodes a path, refuses what no mount should ever see, and drops empty segments: `a//b/` is `a/b`.
fn clean_path(raw: &str) -> Result<String, ApiError> {
    if raw.len() > MAX_PATH {
        return Err(ApiError::invalid("path is too long"));
    }
    let path = decode(raw, false).ok_or_else(|| ApiError::invalid("path is not valid text"))?;
    if path.split('/').any(|segment| segment == "..") {
        return Err(ApiError::invalid("path cannot contain parent references"));
    }
    if path.chars().any(char::is_control) {
        return Err(ApiError::invalid("path cannot contain control characters"));
    }
    // Handlers and the policy must mean the same by a path: what one of them would overlook is gone before either sees it.
    let path = path.split('/').filter(|segment| !segment.is_empty()).collect::<Vec<_>>().join("/");
    if path.is_empty() {
        return Err(ApiError::missing());
    }
    Ok(path)
}

fn parse_query(query: &str) -> Result<Vec<(String, String)>, ApiError> {
    let parts: Vec<_> = query.split('&').filter(|part| !part.is_empty()).collect();
    if parts.len() > MAX_FIELDS {
        return Err(ApiError::invalid("query has too many parameters"));
    }
    let field = |part: &str| {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        Some((decode(key, true)?, decode(value, true)?))
    };
    let fields: Option<Vec<_>> = parts.into_iter().map(field).collect();
    fields.ok_or_else(|| ApiError::invalid("query is not valid text"))
}

/// Undoes percent-encoding; none when a sequence is cut or the result is not UTF-8.
fn decode(text: &str, plus: bool) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => hex_digit(bytes.next()?)? << 4 | hex_digit(bytes.next()?)?,
            b'+' if plus => b' ',
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;
    use secrecy::ExposeSecret as _;

    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    fn parse(method: &str, target: &str, list: &[(&'static str, &str)]) -> Result<Head, ApiError> {
        let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
        Head::parse(&Method::from_bytes(method.as_bytes()).unwrap(), path, query, &headers(list))
    }

    fn refused(method: &str, target: &str, list: &[(&'static str, &str)]) -> (u16, String) {
        let error = parse(method, target, list).unwrap_err();
        (error.status(), error.errors().first().cloned().unwrap_or_default())
    }

    #[test]
    fn verbs_that_mean_the_same_parse_the_same() {
        let list = |m, t| parse(m, t, &[]).map(|h| (h.operation, h.path)).unwrap();
        assert_eq!(list("LIST", "/v1/a/b"), (Operation::List, "a/b/".into()));
        assert_eq!(list("GET", "/v1/a/b?list=true"), list("LIST", "/v1/a/b/"));
        assert_eq!(list("GET", "/v1/a/b?list=false").0, Operation::Read);
        assert_eq!(list("PUT", "/v1/a"), list("POST", "/v1/a"));
        assert_eq!(refused("GET", "/v1/a?list=maybe", &[]).0, 400);
        assert_eq!(refused("HEAD", "/v1/secret/x", &[]).0, 405);
        assert!(parse("HEAD", "/v1/sys/health", &[]).unwrap().bodiless);
        assert_eq!(refused("BREW", "/v1/a", &[]).0, 405);
    }

    #[test]
    fn a_patch_names_what_was_provided() {
        let patch = |kind| parse("PATCH", "/v1/a", &[("content-type", kind)]);
        assert!(patch("application/merge-patch+json; charset=utf-8").is_ok());
        let error = patch("application/json").unwrap_err();
        assert_eq!(error.status(), 415);
        assert_eq!(
            error.errors(),
            ["PATCH requires Content-Type of application/merge-patch+json, provided application/json"]
        );
    }

    #[test]
    fn paths_cannot_climb_or_hide() {
        for target in ["/v1/secret/../sys/x", "/v1/secret/%2e%2e/x", "/v1/..", "/v1/a%2f..%2fb"] {
            assert_eq!(
                refused("GET", target, &[]),
                (400, "path cannot contain parent references".into()),
                "{target}"
            );
        }
        for target in ["/v1/a%00b", "/v1/a%0ab", "/v1/%ff", "/v1/%4", "/v1/%zz"] {
            assert_eq!(refused("GET", target, &[]).0, 400, "{target}");
        }
        assert_eq!(parse("GET", "/v1/a%20b/c..d/%C3%A9", &[]).unwrap().path, "a b/c..d/é");
        assert_eq!(refused("GET", "/ui/", &[]).0, 404);
        assert_eq!(refused("GET", "/v1/", &[]).0, 404);
        assert_eq!(refused("GET", "/v1///", &[]).0, 404);
    }

    #[test]
    fn a_path_has_one_form_whatever_slashes_it_came_with() {
        for target in ["/v1/auth/token/create", "/v1/auth/token/create/", "/v1//auth//token/%2fcreate//"] {
            assert_eq!(parse("POST", target, &[]).unwrap().path, "auth/token/create", "{target}");
        }
        for target in ["/v1/secret/metadata", "/v1/secret//metadata///"] {
            assert_eq!(parse("LIST", target, &[]).unwrap().path, "secret/metadata/", "{target}");
        }
    }

    #[test]
    fn the_token_header_comes_before_the_bearer() {
        let token =
            |list: &[_]| parse("GET", "/v1/a", list).unwrap().token.map(|t| t.expose_secret().to_owned());
        assert_eq!(token(&[("authorization", "Bearer b")]).as_deref(), Some("b"));
        assert_eq!(token(&[("authorization", "bearer b"), ("x-vault-token", "t")]).as_deref(), Some("t"));
        assert_eq!(token(&[("authorization", "Basic b")]), None);
        assert_eq!(token(&[("x-vault-token", "")]), None);
    }

    #[test]
    fn headers_that_change_the_answer() {
        for (namespace, root) in [("", true), ("/", true), ("root", true), ("root/", true), ("team", false)] {
            assert_eq!(
                parse("GET", "/v1/a", &[("x-vault-namespace", namespace)]).unwrap().root_namespace,
                root
            );
        }
        let wrap = |ttl| parse("GET", "/v1/a", &[("x-vault-wrap-ttl", ttl)]).map(|h| h.wrap_ttl);
        assert_eq!(wrap("5m").unwrap(), Some(300));
        assert_eq!(wrap("0").unwrap(), None);
        assert_eq!(wrap("100ms").unwrap_err().status(), 400, "never in clear what was to be wrapped");
        assert_eq!(wrap("soon").unwrap_err().status(), 400);
        assert!(parse("GET", "/v1/a", &[("x-vault-no-request-forwarding", "true")]).unwrap().redirect);
    }

    #[test]
    fn fields_come_from_where_the_verb_says() {
        let read = parse("GET", "/v1/a?x=1&y=a+b&x=2&list=false", &[]).unwrap().data(b"{\"z\":1}").unwrap();
        assert_eq!(Value::Object(read.into_map()), serde_json::json!({"x": ["1", "2"], "y": "a b"}));
        let write = |body: &[u8]| parse("PUT", "/v1/a?x=1", &[]).unwrap().data(body);
        assert_eq!(write(b" \n").unwrap(), Data::default());
        assert!(write(b"{\"a\":1}").unwrap().has("a"));
        for bad in [&b"[]"[..], b"1", b"{", b"\"secret\"", b"{}{}", b"\xff"] {
            let error = write(bad).unwrap_err();
            assert_eq!((error.status(), error.errors()), (400, &["error parsing JSON".to_owned()][..]));
        }
    }

    proptest! {
        #[test]
        fn no_request_panics(
            method in "[A-Z]{1,8}",
            path in "\\PC{0,40}",
            query in prop::option::of("\\PC{0,40}"),
            name in "[a-z-]{1,20}",
            value in prop::collection::vec(any::<u8>(), 0..40),
            body in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut headers = HeaderMap::new();
            for name in [name.as_str(), "authorization", "content-type", "x-vault-wrap-ttl"] {
                if let (Ok(name), Ok(value)) = (http::HeaderName::try_from(name), HeaderValue::from_bytes(&value)) {
                    headers.insert(name, value);
                }
            }
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            for path in [path.clone(), format!("/v1/{path}")] {
                if let Ok(head) = Head::parse(&method, &path, query.as_deref(), &headers) {
                    prop_assert!(!head.path.split('/').any(|s| s == ".."));
                    prop_assert!(!head.path.chars().any(char::is_control));
                    let _ = head.data(&body);
                }
            }
        }
    }
}
