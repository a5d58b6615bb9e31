//! What a client is made from, and which endpoints that means.
//!
//! What must hold: nothing is sent before all of it is known to be usable; an entry that is mistyped is an error and
//! never a replica that is silently missing; a password in an entry is in no error.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use reqwest::Url;
use secrecy::SecretString;

use super::error::{ConfigError, EndpointFault, EndpointProblem};

/// What a [`Client`](super::Client) is made from.
#[derive(Clone, Debug)]
pub struct Config {
    /// The only endpoint. Exactly one of this and `endpoints` is set.
    ///
    /// `unix:///path`, `https://host:port[/prefix]`, or `http://...` with `insecure_no_tls`.
    pub endpoint: Option<String>,
    /// The replicas, each in one of the forms of `endpoint`.
    pub endpoints: Vec<String>,
    /// Sent as a bearer token; none unless given.
    pub token: Option<SecretString>,
    /// Changes the headers of each request before it is sent, for other credentials or a token that changes.
    pub headers: Option<HeaderEditor>,
    /// Which certificates are trusted, and which one is shown.
    pub tls: Tls,
    /// Whether `http://` endpoints are allowed, over which everything is readable on its way; false.
    pub insecure_no_tls: bool,
    /// How long connecting may take, TLS included; 1 s.
    pub connect_timeout: Duration,
    /// How long one endpoint may take to answer, and to begin a stream; 3 s.
    pub attempt_timeout: Duration,
    /// How long a read may take over all endpoints; 10 s.
    pub total_timeout: Duration,
    /// Sent as `User-Agent`; `holdfast/VERSION`.
    pub user_agent: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            endpoint: None,
            endpoints: Vec::new(),
            token: None,
            headers: None,
            tls: Tls::default(),
            insecure_no_tls: false,
            connect_timeout: Duration::from_secs(1),
            attempt_timeout: Duration::from_secs(3),
            total_timeout: Duration::from_secs(10),
            user_agent: concat!("holdfast/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// PEM files, read once when the client is made.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// The authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificate to show, with its chain.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
}

/// Changes the headers of a request.
#[derive(Clone)]
pub struct HeaderEditor(Arc<dyn Fn(&mut HeaderMap) + Send + Sync>);

impl HeaderEditor {
    /// An editor that is called for each request, streams and repeated attempts included.
    pub fn new(edit: impl Fn(&mut HeaderMap) + Send + Sync + 'static) -> Self {
        Self(Arc::new(edit))
    }

    pub(super) fn edit(&self, headers: &mut HeaderMap) {
        (self.0)(headers);
    }
}

impl fmt::Debug for HeaderEditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderEditor")
    }
}

/// Where a replica is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Address {
    /// Under this URL, which has no slash at its end.
    Url(String),
    /// Behind this socket.
    Unix(PathBuf),
}

/// A replica that can be asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Endpoint {
    /// How it is called in values, events and errors.
    pub name: Arc<str>,
    pub address: Address,
}

impl Endpoint {
    pub(super) fn is_tls(&self) -> bool {
        matches!(&self.address, Address::Url(url) if url.starts_with("https"))
    }
}

impl Config {
    /// The endpoints that are meant.
    pub(super) fn parse_endpoints(&self) -> Result<Vec<Endpoint>, ConfigError> {
        let texts = match (&self.endpoint, self.endpoints.as_slice()) {
            (Some(_), [_, ..]) => return Err(ConfigError::Both),
            (None, []) => return Err(ConfigError::None),
            (Some(one), []) => std::slice::from_ref(one),
            (None, several) => several,
        };
        let mut found: Vec<(usize, Endpoint)> = Vec::new();
        let mut problems = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let fault = match parse(text, self.insecure_no_tls) {
                Err(reason) => EndpointFault::Bad { text: without_password(text), reason },
                Ok(endpoint) => match found.iter().find(|(_, other)| other.address == endpoint.address) {
                    Some((earlier, _)) => EndpointFault::Repeats(earlier + 1),
                    None => {
                        found.push((index, endpoint));
                        continue;
                    }
                },
            };
            problems.push(EndpointProblem { position: index + 1, count: texts.len(), fault });
        }
        if problems.is_empty() {
            Ok(found.into_iter().map(|(_, endpoint)| endpoint).collect())
        } else {
            Err(ConfigError::Endpoints(problems))
        }
    }
}

fn parse(text: &str, insecure_no_tls: bool) -> Result<Endpoint, &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("it holds white space");
    }
    let (scheme, rest) = text.split_once("://").ok_or("it is no URL with https:// or unix://")?;
    match scheme.to_ascii_lowercase().as_str() {
        "unix" => {
            if !rest.starts_with('/') || rest.ends_with('/') {
                return Err("the path of the socket is not absolute: unix:///path");
            }
            Ok(Endpoint { name: format!("unix://{rest}").into(), address: Address::Unix(rest.into()) })
        }
        "http" if !insecure_no_tls => Err("http:// needs insecure_no_tls"),
        "https" | "http" => parse_url(text, rest),
        _ => Err("the scheme is not https, unix or http"),
    }
}

fn parse_url(text: &str, rest: &str) -> Result<Endpoint, &'static str> {
    if rest.is_empty() || rest.starts_with(['/', ':', '?', '#']) {
        return Err("it names no host");
    }
    let url = Url::parse(text).map_err(|_| "it is no URL")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a credential has no place in an address");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("it has a query or a fragment");
    }
    if url.port() == Some(0) {
        return Err("the port is 0");
    }
    let base = url.as_str().trim_end_matches('/').to_owned();
    Ok(Endpoint { name: base.as_str().into(), address: Address::Url(base) })
}

/// The text with what may be a password left out.
fn without_password(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let start = clean.find("://").map_or(0, |at| at + 3);
    let Some((scheme, rest)) = clean.split_at_checked(start) else { return clean };
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}***@{host}"),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(endpoint: Option<&str>, endpoints: &[&str]) -> Config {
        Config {
            endpoint: endpoint.map(str::to_owned),
            endpoints: endpoints.iter().map(|text| (*text).to_owned()).collect(),
            ..Config::default()
        }
    }

    fn error(endpoint: Option<&str>, endpoints: &[&str]) -> String {
        config(endpoint, endpoints).parse_endpoints().unwrap_err().to_string()
    }

    #[test]
    fn exactly_one_field_is_set() {
        assert_eq!(error(Some("https://a"), &["https://b"]), "set exactly one of endpoint and endpoints");
        assert_eq!(error(None, &[]), "no endpoint");
    }

    #[test]
    fn every_form_may_stand_in_one_list() {
        let mut config = config(
            None,
            &["unix:///run/c.sock", "https://A.example:443/x/", "http://[::1]:8080", "HTTPS://b:1"],
        );
        config.insecure_no_tls = true;
        let endpoints = config.parse_endpoints().unwrap();
        let names: Vec<_> = endpoints.iter().map(|endpoint| &*endpoint.name).collect();
        assert_eq!(names, ["unix:///run/c.sock", "https://a.example/x", "http://[::1]:8080", "https://b:1"]);
        assert_eq!(endpoints[0].address, Address::Unix("/run/c.sock".into()));
        assert_eq!(endpoints.iter().map(Endpoint::is_tls).collect::<Vec<_>>(), [false, true, false, true]);
    }

    #[test]
    fn all_bad_entries_are_listed_with_their_places() {
        assert_eq!(
            error(None, &["https://a:8443", "htps://b:8443", "https://A:8443/", "http://c"]),
            "endpoint 2 of 4 \"htps://b:8443\": the scheme is not https, unix or http; \
             endpoint 3 of 4 repeats endpoint 1; endpoint 4 of 4 \"http://c\": http:// needs insecure_no_tls"
        );
        assert_eq!(error(Some(""), &[]), "endpoint 1 of 1 \"\": it is empty");
    }

    #[test]
    fn each_mistake_has_its_reason() {
        for (text, reason) in [
            ("config-a:8443", "it is no URL with https:// or unix://"),
            ("https://", "it names no host"),
            ("https:///path", "it names no host"),
            ("https://:8443", "it names no host"),
            ("https://a b", "it holds white space"),
            ("https://a:99999", "it is no URL"),
            ("https://a:0", "the port is 0"),
            ("https://a?x=1", "it has a query or a fragment"),
            ("https://a#x", "it has a query or a fragment"),
            ("unix://run/c.sock", "the path of the socket is not absolute: unix:///path"),
            ("unix://", "the path of the socket is not absolute: unix:///path"),
        ] {
            assert_eq!(error(Some(text), &[]), format!("endpoint 1 of 1 \"{text}\": {reason}"));
        }
    }

    #[test]
    fn a_password_is_in_no_error() {
        let text = error(Some("https://ann:geheim@a:8443"), &[]);
        assert_eq!(text, "endpoint 1 of 1 \"https://***@a:8443\": a credential has no place in an address");
        assert!(!error(Some("ftp://ann:ge@heim@a"), &[]).contains("heim"));
    }
}
