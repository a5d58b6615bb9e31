//! Requests to the first address that takes them.
//!
//! What must hold: a redirect is followed to an address of the list only; what makes something is sent on only when it
//! provably did nothing before; no URL and no token gets into an error.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_core::AnswerKind;
use holdfast_core::freshness::Failure;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use reqwest::{Certificate, Identity, Response, Url, redirect};
use serde::Serialize;
use zeroize::Zeroizing;

use super::login::Token;
use crate::config::UpstreamSettings;
use crate::upstream::BuildError;
use crate::upstream::http_answer::{self, USER_AGENT};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(1);
/// How long one address of several may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Redirects of standbys that are followed.
const MAX_HOPS: usize = 3;

/// The addresses of one cluster.
pub(super) struct Link {
    http: reqwest::Client,
    addrs: Vec<Url>,
    /// The one that answered last.
    preferred: AtomicUsize,
    namespace: Option<HeaderValue>,
}

/// A request.
pub(super) struct Ask<'a> {
    method: Method,
    path: &'a str,
    token: Option<&'a Token>,
    body: Option<Zeroizing<Vec<u8>>>,
    /// Doing it twice differs from doing it once.
    once: bool,
}

/// An answer.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Zeroizing<Vec<u8>>,
}

/// What became of a request at one address.
enum Tried {
    Answered(Response),
    /// Nothing was done there.
    NotStarted,
    /// It may have been done.
    Broken,
}

impl<'a> Ask<'a> {
    pub(super) const fn new(method: Method, path: &'a str) -> Self {
        Self { method, path, token: None, body: None, once: false }
    }

    /// With the replica's token.
    pub(super) fn token(self, token: &'a Token) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Doing it twice differs from doing it once.
    pub(super) fn once(self, once: bool) -> Self {
        Self { once, ..self }
    }

    /// With a JSON body.
    pub(super) fn json(mut self, body: &impl Serialize) -> Self {
        self.body = serde_json::to_vec(body).ok().map(Zeroizing::new);
        self
    }
}

impl Link {
    pub(super) fn new(name: &str, settings: &UpstreamSettings) -> Result<Self, BuildError> {
        let wrong = |key, problem: &str| BuildError::setting(name, key, problem);
        let addrs = settings.addrs.iter().map(|addr| {
            let url = Url::parse(addr).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
            url.ok_or_else(|| wrong("addrs", "holds what is no http or https URL"))
        });
        let addrs: Vec<Url> = addrs.collect::<Result<_, _>>()?;
        if addrs.is_empty() {
            return Err(wrong("addrs", "is missing"));
        }
        let namespace = settings.namespace.as_deref().map(HeaderValue::try_from).transpose();
        Ok(Self {
            http: client(name, settings)?,
            addrs,
            preferred: AtomicUsize::new(0),
            namespace: namespace.map_err(|_| wrong("namespace", "cannot stand in a header"))?,
        })
    }

    /// Sends to each address in turn, the one that answered last first, until one can do it. The last answer stands when
    /// none can.
    pub(super) async fn send(&self, ask: Ask<'_>) -> Result<Reply, Failure> {
        let start = self.preferred.load(Ordering::Relaxed);
        let mut order: Vec<usize> = (0..self.addrs.len()).map(|n| (start + n) % self.addrs.len()).collect();
        order.reverse();
        let (mut hops, mut last) = (0, None);
        while let Some(index) = order.pop() {
            let response = match self.try_one(index, &ask, !order.is_empty()).await {
                Tried::Answered(response) => response,
                Tried::NotStarted => continue,
                Tried::Broken if ask.once => return Err(Failure::of(AnswerKind::Unavailable)),
                Tried::Broken => continue,
            };
            let status = response.status();
            if status.is_redirection() {
                if let Some(active) = self.target(&response).filter(|_| hops < MAX_HOPS) {
                    hops += 1;
                    order.retain(|index| *index != active);
                    order.push(active);
                }
                continue;
            }
            // 503 is a node that is sealed or knows no active one: it did nothing.
            if status == StatusCode::SERVICE_UNAVAILABLE || (status.is_server_error() && !ask.once) {
                last = Some(response);
                continue;
            }
            self.preferred.store(index, Ordering::Relaxed);
            return reply(response).await;
        }
        match last {
            Some(response) => reply(response).await,
            None => Err(Failure::of(AnswerKind::Unavailable)),
        }
    }

    async fn try_one(&self, index: usize, ask: &Ask<'_>, others: bool) -> Tried {
        let Some(addr) = self.addrs.get(index) else { return Tried::NotStarted };
        let mut url = addr.clone();
        url.set_path(&format!("{}/v1/{}", addr.path().trim_end_matches('/'), ask.path));
        let mut request = self.http.request(ask.method.clone(), url).header("X-Vault-Request", "true");
        if let Some(token) = ask.token {
            let Ok(mut text) = HeaderValue::try_from(token.expose()) else { return Tried::NotStarted };
            text.set_sensitive(true);
            request = request.header("X-Vault-Token", text);
        }
        if let Some(namespace) = &self.namespace {
            request = request.header("X-Vault-Namespace", namespace);
        }
        if let Some(body) = &ask.body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body.to_vec());
        }
        // The engine bounds the whole; with others to ask, one address gets a part of it.
        let sent = match others && !ask.once {
            true => tokio::time::timeout(ATTEMPT, request.send()).await,
            false => Ok(request.send().await),
        };
        match sent {
            Ok(Ok(response)) => Tried::Answered(response),
            Ok(Err(error)) if error.is_connect() => Tried::NotStarted,
            Ok(Err(_)) | Err(_) => Tried::Broken,
        }
    }

    /// The address of the list that a redirect names.
    fn target(&self, response: &Response) -> Option<usize> {
        let location = response.headers().get(header::LOCATION)?.to_str().ok()?;
        let target = response.url().join(location).ok()?;
        self.addrs.iter().position(|addr| addr.origin() == target.origin())
    }
}

fn client(name: &str, settings: &UpstreamSettings) -> Result<reqwest::Client, BuildError> {
    let wrong = |key, problem: &str| BuildError::setting(name, key, problem);
    let mut builder = reqwest::Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(CONNECT)
        .redirect(redirect::Policy::none());
    if let Some(file) = &settings.ca_file {
        let pem = std::fs::read(file).map_err(|error| BuildError::setting(name, "ca_file", error))?;
        let certs = Certificate::from_pem_bundle(&pem).ok().filter(|certs| !certs.is_empty());
        builder = builder.tls_certs_only(certs.ok_or_else(|| wrong("ca_file", "holds no certificates"))?);
    }
    if let Some(cert) = &settings.cert {
        let read = |file| std::fs::read(file).map_err(|error| BuildError::setting(name, "cert", error));
        let mut pem = Zeroizing::new(read(&cert.cert)?);
        pem.push(b'\n');
        pem.extend_from_slice(&Zeroizing::new(read(&cert.key)?));
        let identity = Identity::from_pem(&pem);
        builder = builder.identity(identity.map_err(|_| wrong("cert", "is no certificate with its key"))?);
    }
    builder.build().map_err(|_| wrong("addrs", "TLS cannot be set up"))
}

async fn reply(response: Response) -> Result<Reply, Failure> {
    let (status, headers) = (response.status(), response.headers().clone());
    let body = http_answer::body(response).await.map_err(Failure::of)?;
    Ok(Reply { status, headers, body })
}
