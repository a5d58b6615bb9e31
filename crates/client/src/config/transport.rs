//! One connection pool an endpoint, and what goes over it.
//!
//! What must hold: one call is one request, never repeated and never redirected here; no body is kept that is longer
//! than its cap; what a text about a failure says is never a part of a body or a credential.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt as _};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use secrecy::ExposeSecret as _;
use zeroize::Zeroizing;

use super::error::ConfigError;
use super::settings::{Address, Config, Endpoint, HeaderEditor};
use crate::http::chain;

/// The largest body of a success, in bytes: 24 MiB.
pub const MAX_BODY: usize = 24 * 1024 * 1024;
/// The largest body of a failure, in bytes: 8 KiB.
pub const MAX_ERROR_BODY: usize = 8 * 1024;
/// A little less than the server keeps an idle connection, so that none is used that is just being closed.
const IDLE: Duration = Duration::from_secs(45);
/// How long a connection may be silent before a peer that is gone is noticed, so that it swallows no later request.
const PROBE: Duration = Duration::from_secs(10);
/// Connections wait so long for the answer to a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Unread bytes of one HTTP/2 stream, and of all: a watch that is not polled must not hold reads back.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 32 * 1024 * 1024;

/// A request.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Path and query, from `/v1` on.
    pub target: String,
    /// A JSON body.
    pub body: Option<Bytes>,
    /// `Last-Event-ID`, of a stream.
    pub last_event_id: Option<String>,
}

impl Call {
    /// A `GET`.
    pub const fn get(target: String) -> Self {
        Self { method: Method::GET, target, body: None, last_event_id: None }
    }

    /// A `POST` of a body.
    pub fn post(target: &str, body: Vec<u8>) -> Self {
        Self { method: Method::POST, target: target.to_owned(), body: Some(body.into()), last_event_id: None }
    }
}

/// An answer whose body is still coming.
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, as it comes.
    pub body: BoxStream<'static, Result<Bytes, Broken>>,
}

/// No answer, or not all of it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub Arc<str>);

/// A way to one endpoint.
pub trait Link: Send + Sync {
    /// Sends one request and gives the head of its answer.
    fn send(&self, call: Call) -> BoxFuture<'static, Result<Reply, Broken>>;
}

/// A connection pool.
pub struct Pool {
    client: reqwest::Client,
    base: String,
    headers: HeaderMap,
    editor: Option<HeaderEditor>,
}

impl Pool {
    /// A pool for an endpoint. Nothing is dialled.
    pub fn new(config: &Config, endpoint: &Endpoint, tls: &Identity) -> Result<Self, ConfigError> {
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .referer(false)
            .user_agent(header(&config.user_agent, "user_agent")?)
            .connect_timeout(config.connect_timeout)
            .pool_idle_timeout(IDLE)
            .tcp_nodelay(true)
            .tcp_keepalive(PROBE)
            .http2_keep_alive_interval(PROBE)
            .http2_keep_alive_timeout(PROBE_TIMEOUT)
            .http2_keep_alive_while_idle(true)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW);
        #[cfg(target_os = "linux")]
        {
            builder = builder.tcp_user_timeout(PROBE + PROBE_TIMEOUT);
        }
        builder = tls.apply(builder, endpoint.is_tls());
        let base = match &endpoint.address {
            Address::Url(base) => base.clone(),
            Address::Unix(path) => {
                builder = builder.unix_socket(path.as_path());
                "http://localhost".to_owned()
            }
        };
        let client = builder.build().map_err(|source| tls.fault(source))?;
        Ok(Self { client, base, headers: credentials(config)?, editor: config.headers.clone() })
    }
}

fn header(text: &str, what: &'static str) -> Result<HeaderValue, ConfigError> {
    HeaderValue::from_str(text).map_err(|_| ConfigError::Header(what))
}

fn credentials(config: &Config) -> Result<HeaderMap, ConfigError> {
    let mut headers = HeaderMap::new();
    if let Some(token) = &config.token {
        let text = Zeroizing::new(format!("Bearer {}", token.expose_secret()));
        let mut value = header(&text, "the token")?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(headers)
}

impl Link for Pool {
    fn send(&self, call: Call) -> BoxFuture<'static, Result<Reply, Broken>> {
        const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
        let mut headers = self.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        if call.body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        // An id that no header can carry is none: the stream begins anew.
        if let Some(id) = call.last_event_id.and_then(|id| HeaderValue::from_str(&id).ok()) {
            headers.insert(LAST_EVENT_ID, id);
        }
        if let Some(editor) = &self.editor {
            editor.edit(&mut headers);
        }
        let mut request = self.client.request(call.method, format!("{}{}", self.base, call.target));
        request = request.headers(headers);
        if let Some(body) = call.body {
            request = request.body(body);
        }
        Box::pin(async move {
            let response = request.send().await.map_err(broken)?;
            Ok(Reply {
                status: response.status().as_u16(),
                headers: response.headers().clone(),
                body: response.bytes_stream().map(|chunk| chunk.map_err(broken)).boxed(),
            })
        })
    }
}

/// What happened, without the URL, which names the binding.
fn broken(error: reqwest::Error) -> Broken {
    Broken(chain(&error.without_url()).into())
}

/// Reads a body up to a cap.
///
/// # Errors
/// When it breaks off or is longer.
pub async fn collect(reply: Reply, cap: usize) -> Result<Zeroizing<Vec<u8>>, Broken> {
    let mut body = reply.body;
    let mut bytes = Zeroizing::new(Vec::new());
    while let Some(chunk) = body.next().await {
        let chunk = chunk?;
        if bytes.len().saturating_add(chunk.len()) > cap {
            return Err(Broken(format!("the answer is longer than {cap} bytes").into()));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// What TLS needs, read from the files once.
#[derive(Default)]
pub struct Identity {
    authorities: Option<Vec<reqwest::Certificate>>,
    own: Option<reqwest::Identity>,
    file: String,
}

impl Identity {
    /// Reads the files.
    pub fn read(config: &Config) -> Result<Self, ConfigError> {
        let tls = &config.tls;
        let mut identity = Self { file: "the system's authorities".to_owned(), ..Self::default() };
        if let Some(file) = &tls.ca_file {
            let name = file.display().to_string();
            let pem = std::fs::read(file).map_err(|source| fault(&name, source))?;
            let found = reqwest::Certificate::from_pem_bundle(&pem).map_err(|source| fault(&name, source))?;
            if found.is_empty() {
                return Err(fault(&name, std::io::Error::other("it holds no certificate")));
            }
            (identity.authorities, identity.file) = (Some(found), name);
        }
        match (&tls.cert_file, &tls.key_file) {
            (None, None) => {}
            (Some(cert), Some(key)) => {
                let name = format!("{} and {}", cert.display(), key.display());
                let read = |file| std::fs::read(file).map_err(|source| fault(&name, source));
                let mut pem = Zeroizing::new(read(cert)?);
                pem.push(b'\n');
                pem.extend_from_slice(&Zeroizing::new(read(key)?));
                let own = reqwest::Identity::from_pem(&pem).map_err(|source| fault(&name, source))?;
                identity.own = Some(own);
            }
            _ => return Err(ConfigError::HalfIdentity),
        }
        Ok(identity)
    }

    fn apply(&self, builder: reqwest::ClientBuilder, used: bool) -> reqwest::ClientBuilder {
        if !used {
            // A machine without authorities can still use a socket.
            return builder.tls_certs_only([]);
        }
        let builder = match &self.authorities {
            Some(authorities) => builder.tls_certs_only(authorities.iter().cloned()),
            None => builder,
        };
        match &self.own {
            Some(own) => builder.identity(own.clone()),
            None => builder,
        }
    }

    fn fault(&self, source: reqwest::Error) -> ConfigError {
        fault(&self.file, source)
    }
}

fn fault(file: &str, source: impl std::error::Error + Send + Sync + 'static) -> ConfigError {
    ConfigError::Tls { file: file.to_owned(), source: Box::new(source) }
}
