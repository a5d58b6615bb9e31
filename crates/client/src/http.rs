//! Sending requests: one connection pool, several endpoints, safe failover.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Method;
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use zeroize::Zeroizing;

use crate::answer::Answer;
use crate::endpoints::Endpoints;
use crate::error::ClientError;

/// What is asked of a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verb {
    /// `GET`.
    Read,
    /// `LIST`.
    List,
    /// `PUT`.
    Write,
    /// `PATCH` with a merge patch.
    Patch,
    /// `DELETE`.
    Delete,
}

impl Verb {
    fn method(self) -> Method {
        match self {
            Self::Read => Method::GET,
            Self::List => Method::from_bytes(b"LIST").unwrap_or(Method::GET),
            Self::Write => Method::PUT,
            Self::Patch => Method::PATCH,
            Self::Delete => Method::DELETE,
        }
    }

    /// Whether sending it twice does no harm. Reading credentials makes a login, and unwrapping works once.
    fn is_repeatable(self, path: &str) -> bool {
        let makes = |segment: &str| matches!(segment, "creds" | "unwrap" | "wrap");
        matches!(self, Self::List) || matches!(self, Self::Read) && !path.split('/').any(makes)
    }
}

/// How a [`Client`] is made.
#[derive(Debug, Default)]
pub struct ClientBuilder {
    addresses: Vec<String>,
    token: Option<SecretString>,
    ca_cert: Option<PathBuf>,
    skip_verify: bool,
    client_cert: Option<(PathBuf, PathBuf)>,
    wrap_ttl: Option<String>,
    timeout: Option<Duration>,
}

impl ClientBuilder {
    /// URLs of hub nodes; each text may hold several, separated by commas.
    #[must_use]
    pub fn addresses(mut self, addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.addresses = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// The token sent with each request.
    #[must_use]
    pub fn token(mut self, token: Option<SecretString>) -> Self {
        self.token = token;
        self
    }

    /// A PEM file with the authorities to trust, instead of the system's.
    #[must_use]
    pub fn ca_cert(mut self, file: Option<PathBuf>) -> Self {
        self.ca_cert = file;
        self
    }

    /// PEM files with the certificate (and its chain) and the key that the client presents.
    #[must_use]
    pub fn client_cert(mut self, files: Option<(PathBuf, PathBuf)>) -> Self {
        self.client_cert = files;
        self
    }

    /// Trusts any certificate. For experiments only.
    #[must_use]
    pub fn skip_verify(mut self, skip: bool) -> Self {
        self.skip_verify = skip;
        self
    }

    /// Asks for wrapped answers with this life.
    #[must_use]
    pub fn wrap_ttl(mut self, ttl: Option<String>) -> Self {
        self.wrap_ttl = ttl;
        self
    }

    /// How long one request may take; 95 s unless given, a little over the server's own deadline.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Makes the client.
    pub fn build(self) -> Result<Client, ClientError> {
        let endpoints = Endpoints::parse(&self.addresses)?;
        let mut builder = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(3))
            .timeout(self.timeout.unwrap_or(Duration::from_secs(95)))
            .redirect(reqwest::redirect::Policy::limited(2));
        if let Some(file) = &self.ca_cert {
            builder = builder.tls_certs_only(read_certificates(file)?);
        }
        if let Some((cert, key)) = &self.client_cert {
            builder = builder.identity(read_identity(cert, key)?);
        }
        if self.skip_verify {
            builder = builder.tls_danger_accept_invalid_certs(true);
        }
        let tls = |source: reqwest::Error| ClientError::Tls {
            file: self.ca_cert.as_deref().unwrap_or(Path::new("system trust")).display().to_string(),
            source: source.into(),
        };
        let http = builder.build().map_err(tls)?;
        Ok(Client { http, endpoints, token: self.token, wrap_ttl: self.wrap_ttl })
    }
}

/// A client of a hub cluster.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    endpoints: Endpoints,
    token: Option<SecretString>,
    wrap_ttl: Option<String>,
}

impl Client {
    /// How to make one.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Reads a path.
    pub async fn read(&self, path: &str) -> Result<Answer, ClientError> {
        self.send(Verb::Read, path, None).await
    }

    /// Lists below a path.
    pub async fn list(&self, path: &str) -> Result<Answer, ClientError> {
        self.send(Verb::List, path, None).await
    }

    /// Writes to a path.
    pub async fn write(&self, path: &str, body: &Value) -> Result<Answer, ClientError> {
        self.send(Verb::Write, path, Some(body)).await
    }

    /// Deletes a path.
    pub async fn delete(&self, path: &str) -> Result<Answer, ClientError> {
        self.send(Verb::Delete, path, None).await
    }

    /// Sends a request to the first endpoint that takes it.
    ///
    /// What changes something moves on to another endpoint only when no connection could be made, so that nothing is
    /// done twice; so does everything whose answer is to be wrapped.
    pub async fn send(&self, verb: Verb, path: &str, body: Option<&Value>) -> Result<Answer, ClientError> {
        let mut tried = Vec::new();
        for (index, base) in self.endpoints.rotation() {
            match self.request(base, verb.method(), path, body).send().await {
                Ok(response) => {
                    self.endpoints.prefer(index);
                    return finish(verb, path, base, response).await;
                }
                Err(error) if error.is_connect() || (self.wrap_ttl.is_none() && verb.is_repeatable(path)) => {
                    tried.push(format!("{base}: {}", chain(&error)))
                }
                Err(error) => {
                    let endpoint = base.to_string();
                    return Err(ClientError::OutcomeUnknown { endpoint, source: error.into() });
                }
            }
        }
        Err(ClientError::Unreachable { tried })
    }

    /// Reads an answer that is not JSON; an error of the server is told as ever.
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        let mut tried = Vec::new();
        for (index, base) in self.endpoints.rotation() {
            match self.request(base, Method::GET, path, None).send().await {
                Ok(response) if response.status().is_success() => {
                    self.endpoints.prefer(index);
                    let broke = |source: reqwest::Error| ClientError::Answer {
                        endpoint: base.to_string(),
                        source: source.into(),
                    };
                    return response.text().await.map_err(broke);
                }
                Ok(response) => {
                    finish(Verb::Read, path, base, response).await?;
                    return Ok(String::new());
                }
                Err(error) => tried.push(format!("{base}: {}", chain(&error))),
            }
        }
        Err(ClientError::Unreachable { tried })
    }

    /// Streams the answer of a read into a new file that only its owner can read; returns the number of bytes.
    pub async fn download(&self, path: &str, file: &Path) -> Result<u64, ClientError> {
        let io = |source| ClientError::File { file: file.display().to_string(), source };
        let mut tried = Vec::new();
        for (index, base) in self.endpoints.rotation() {
            let mut response = match self.request(base, Method::GET, path, None).send().await {
                Ok(response) => response,
                Err(error) => {
                    tried.push(format!("{base}: {}", chain(&error)));
                    continue;
                }
            };
            self.endpoints.prefer(index);
            if !response.status().is_success() {
                finish(Verb::Read, path, base, response).await?;
                return Ok(0);
            }
            let mut new = tokio::fs::OpenOptions::new();
            let mut out = new.write(true).create_new(true).mode(0o600).open(file).await.map_err(io)?;
            let mut bytes = 0;
            loop {
                let broke = |source: reqwest::Error| ClientError::Answer {
                    endpoint: base.to_string(),
                    source: source.into(),
                };
                let Some(chunk) = response.chunk().await.map_err(broke)? else { break };
                out.write_all(&chunk).await.map_err(io)?;
                bytes += chunk.len() as u64;
            }
            out.sync_all().await.map_err(io)?;
            return Ok(bytes);
        }
        Err(ClientError::Unreachable { tried })
    }

    /// Sends a file as the body of a write.
    pub async fn upload(&self, path: &str, file: &Path) -> Result<Answer, ClientError> {
        let io = |source| ClientError::File { file: file.display().to_string(), source };
        let bytes = tokio::fs::read(file).await.map_err(io)?;
        let mut tried = Vec::new();
        for (index, base) in self.endpoints.rotation() {
            match self.request(base, Method::POST, path, None).body(bytes.clone()).send().await {
                Ok(response) => {
                    self.endpoints.prefer(index);
                    return finish(Verb::Write, path, base, response).await;
                }
                Err(error) if error.is_connect() => tried.push(format!("{base}: {}", chain(&error))),
                Err(error) => {
                    let endpoint = base.to_string();
                    return Err(ClientError::OutcomeUnknown { endpoint, source: error.into() });
                }
            }
        }
        Err(ClientError::Unreachable { tried })
    }

    fn request(
        &self,
        base: &Url,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> reqwest::RequestBuilder {
        let patch = method == Method::PATCH;
        let url = format!("{}v1/{}", base.as_str(), path.trim_start_matches('/'));
        let mut request = self.http.request(method, url).header("X-Vault-Request", "true");
        if let Some(token) = &self.token {
            request = request.header("X-Vault-Token", token.expose_secret());
        }
        if let Some(ttl) = &self.wrap_ttl {
            request = request.header("X-Vault-Wrap-TTL", ttl);
        }
        match body {
            Some(body) if patch => {
                request.header("Content-Type", "application/merge-patch+json").body(body.to_string())
            }
            Some(body) => request.json(body),
            None => request,
        }
    }
}

async fn finish(
    verb: Verb,
    path: &str,
    base: &Url,
    response: reqwest::Response,
) -> Result<Answer, ClientError> {
    let broke =
        |source: reqwest::Error| ClientError::Answer { endpoint: base.to_string(), source: source.into() };
    let status = response.status();
    let bytes = response.bytes().await.map_err(broke)?;
    let parsed = if bytes.is_empty() { Ok(Value::Null) } else { serde_json::from_slice::<Value>(&bytes) };
    if status.is_success() {
        let body = parsed
            .map_err(|source| ClientError::Answer { endpoint: base.to_string(), source: source.into() })?;
        return Ok(Answer { status: status.as_u16(), body });
    }
    let body = parsed.ok();
    let errors = body
        .as_ref()
        .and_then(|b| b.get("errors"))
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|e| e.as_str().map(str::to_owned))
        .collect();
    let method = verb.method().to_string();
    Err(ClientError::Status {
        method,
        path: path.to_owned(),
        status: status.as_u16(),
        errors,
        body: body.map(Box::new),
    })
}

fn read_certificates(file: &Path) -> Result<Vec<reqwest::Certificate>, ClientError> {
    let name = || file.display().to_string();
    let pem = std::fs::read(file).map_err(|source| ClientError::File { file: name(), source })?;
    reqwest::Certificate::from_pem_bundle(&pem)
        .map_err(|source| ClientError::Tls { file: name(), source: source.into() })
}

fn read_identity(cert: &Path, key: &Path) -> Result<reqwest::Identity, ClientError> {
    let read = |file: &Path| {
        std::fs::read(file).map_err(|source| ClientError::File { file: file.display().to_string(), source })
    };
    let mut pem = Zeroizing::new(read(cert)?);
    pem.push(b'\n');
    pem.extend_from_slice(&Zeroizing::new(read(key)?));
    let file = || format!("{} and {}", cert.display(), key.display());
    reqwest::Identity::from_pem(&pem)
        .map_err(|source| ClientError::Tls { file: file(), source: source.into() })
}

/// An error with its causes on one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_something_is_sent_once() {
        for (verb, path, repeatable) in [
            (Verb::Read, "secret/data/a", true),
            (Verb::Read, "database/static-creds/r", true),
            (Verb::List, "database/roles", true),
            (Verb::Read, "database/creds/r", false),
            (Verb::Read, "sys/wrapping/unwrap", false),
            (Verb::Write, "secret/data/a", false),
            (Verb::Delete, "secret/data/a", false),
        ] {
            assert_eq!(verb.is_repeatable(path), repeatable, "{path}");
        }
    }

    #[test]
    fn a_client_certificate_that_is_missing_or_none_is_told_by_its_file() {
        let build = |cert: &str, key: &str| {
            let files = Some((PathBuf::from(cert), PathBuf::from(key)));
            let builder = Client::builder().addresses(["https://127.0.0.1:1"]).client_cert(files);
            builder.build().unwrap_err().to_string()
        };
        assert!(build("/nowhere/cert.pem", "/nowhere/key.pem").contains("/nowhere/cert.pem"));
        assert!(build("/dev/null", "/dev/null").contains("/dev/null"));
    }
}
