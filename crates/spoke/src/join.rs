//! Joining: from a token and a pin to a certificate.
//!
//! What must hold: the API's own TLS proves nothing here, so everything that comes through it is untrusted until
//! the token's signature and the pin say otherwise; no file is written before every check has passed.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_core::{Kind, SpokeName};
use holdfast_net::enrol::{self, BootstrapToken, EnrolError};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::credentials::{self, Credentials, CredentialsError, KeyRequest};

/// How long one call may take; a hub that has no leader answers before that.
const CALL: Duration = Duration::from_secs(30);
/// The largest answer that is read, in bytes.
const LARGEST: usize = 256 * 1024;

/// What to join, as whom.
#[derive(Debug)]
pub struct JoinParams {
    /// URLs of the hub's API, tried in their order.
    pub api: Vec<String>,
    /// The mount, without slashes around it.
    pub mount: String,
    /// The token.
    pub token: BootstrapToken,
    /// The pin of the hub's authority; none only when the operator gave up that check.
    pub pin: Option<String>,
    /// The name to join as.
    pub name: SpokeName,
    /// Where the files go.
    pub dir: PathBuf,
    /// Whether files that are there are replaced.
    pub force: bool,
}

/// A spoke that may run now.
#[derive(Debug)]
pub struct Joined {
    /// What was written.
    pub credentials: Credentials,
    /// `host:port` that the hub says to dial.
    pub hub_endpoint: String,
    /// The pin of its authority.
    pub ca_hash: String,
}

/// Why joining failed. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// There are credentials already.
    #[error("{0} exists already; use -force to replace it")]
    Occupied(PathBuf),
    /// What the hub sent does not prove who it is.
    #[error("the hub is not to be trusted")]
    Trust(#[from] EnrolError),
    /// The certificate came with another authority.
    #[error(
        "the hub is not to be trusted: the certificate came with another certificate authority than the pinned one"
    )]
    OtherAuthority,
    /// The hub refused.
    #[error("the hub refused ({status}): {text}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What it said.
        text: String,
    },
    /// The hub did not answer.
    #[error("cannot reach the hub at {url}")]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer is of another form.
    #[error("the hub's answer cannot be read")]
    Answer,
    /// The files.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

impl JoinError {
    /// The class of the failure.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Occupied(_) => Kind::Conflict,
            Self::Trust(_) | Self::OtherAuthority => Kind::Unauthenticated,
            Self::Refused { status: 429, .. } => Kind::RateLimited,
            Self::Refused { .. } => Kind::Denied,
            Self::Unreachable { .. } => Kind::Unavailable,
            Self::Answer => Kind::Invalid,
            Self::Credentials(error) => error.kind(),
        }
    }
}

/// The hub's description of itself.
#[derive(Deserialize)]
struct Description {
    ca_cert_pem: String,
    hub_endpoint: String,
}

/// Reads a bootstrap token.
///
/// # Errors
/// When the text is of another form.
pub fn token(text: &str) -> Result<BootstrapToken, EnrolError> {
    BootstrapToken::parse(text)
}

/// Joins.
///
/// # Errors
/// At the first check that fails; no file is written then.
pub async fn join(params: &JoinParams) -> Result<Joined, JoinError> {
    let taken = credentials::occupied(&params.dir).filter(|_| !params.force);
    if let Some(path) = taken {
        return Err(JoinError::Occupied(path));
    }
    let hub = Hub::new(params)?;
    let told = hub.get("cluster-info", &[("token_id", params.token.id())]).await?;
    let (description, ca) = check_description(params, &told)?;
    // A token is spent by what follows: a directory that takes no files must show before.
    credentials::prepare(&params.dir)?;
    let request = KeyRequest::new(&params.name)?;
    let body = json!({
        "token": params.token.text().as_str(),
        "spoke_name": params.name.as_str(),
        "csr_pem": request.csr_pem,
    });
    let signed = hub.post("sign-csr", &body).await?;
    if field(&signed, "ca_cert_pem")? != description.ca_cert_pem {
        return Err(JoinError::OtherAuthority);
    }
    let cert = field(&signed, "cert_pem")?;
    let credentials = Credentials::create(&params.dir, &request.key_pem, cert, &description.ca_cert_pem)?;
    Ok(Joined { credentials, hub_endpoint: description.hub_endpoint, ca_hash: enrol::pin(&ca)? })
}

/// What the hub says of itself, if the token's signature and the pin stand behind it.
fn check_description(
    params: &JoinParams,
    told: &Value,
) -> Result<(Description, CertificateDer<'static>), JoinError> {
    let payload = field(told, "payload")?;
    enrol::check_signature(&params.token, payload, field(told, "signature")?)?;
    let description: Description = serde_json::from_str(payload).map_err(|_| JoinError::Answer)?;
    let pem = description.ca_cert_pem.as_bytes();
    let ca = CertificateDer::from_pem_slice(pem).map_err(|_| EnrolError::Certificate)?;
    if let Some(pin) = &params.pin {
        enrol::check_pin(pin, &ca)?;
    }
    Ok((description, ca))
}

fn field<'a>(data: &'a Value, name: &str) -> Result<&'a str, JoinError> {
    data.get(name).and_then(Value::as_str).ok_or(JoinError::Answer)
}

/// The hub's API, whoever it is.
struct Hub<'a> {
    http: reqwest::Client,
    params: &'a JoinParams,
}

impl<'a> Hub<'a> {
    fn new(params: &'a JoinParams) -> Result<Self, JoinError> {
        let http = reqwest::Client::builder()
            .timeout(CALL)
            .connect_timeout(Duration::from_secs(5))
            .redirect(reqwest::redirect::Policy::limited(2))
            .tls_danger_accept_invalid_certs(true)
            .build();
        let url = params.api.first().cloned().unwrap_or_default();
        let http = http.map_err(|source| JoinError::Unreachable { url, source: source.into() })?;
        Ok(Self { http, params })
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, JoinError> {
        let query: Vec<String> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let path = format!("{path}?{}", query.join("&"));
        self.first_that_answers(&path, |url| self.http.get(url)).await
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, JoinError> {
        self.first_that_answers(path, |url| self.http.post(url).json(body)).await
    }

    /// The data of the first address that can be reached. A request that may have arrived is not sent again.
    async fn first_that_answers(
        &self,
        path: &str,
        request: impl Fn(String) -> reqwest::RequestBuilder,
    ) -> Result<Value, JoinError> {
        let mut last = JoinError::Answer;
        for api in &self.params.api {
            let base = api.trim_end_matches('/');
            let url = format!("{base}/v1/{}/{path}", self.params.mount.trim_matches('/'));
            match request(url).send().await {
                Ok(response) => return answer(base, response).await,
                Err(source) => {
                    let connected = !source.is_connect();
                    last = unreachable(base, source);
                    if connected {
                        return Err(last);
                    }
                }
            }
        }
        Err(last)
    }
}

fn unreachable(url: &str, source: reqwest::Error) -> JoinError {
    // The address with the token's id in it is left out of the text.
    JoinError::Unreachable { url: url.to_owned(), source: source.without_url().into() }
}

async fn answer(url: &str, mut response: reqwest::Response) -> Result<Value, JoinError> {
    let status = response.status().as_u16();
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|source| unreachable(url, source))? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > LARGEST {
            return Err(JoinError::Answer);
        }
    }
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    if status == 200 {
        return body.get("data").cloned().ok_or(JoinError::Answer);
    }
    let errors = body.get("errors").and_then(Value::as_array).cloned().unwrap_or_default();
    let texts: Vec<&str> = errors.iter().filter_map(Value::as_str).collect();
    Err(JoinError::Refused { status, text: texts.join("; ") })
}
