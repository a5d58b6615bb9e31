//! The label `holdfast.dev/active` on the pod that this node runs in, so that a Service can select the active node.
//!
//! What must hold: the label says what health and `sys/leader` say, within a second of a change whenever the API
//! server takes it; and nothing else in the hub ever waits for it. It is a convenience: every node serves every path.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Kind;
use holdfast_core::label::{Label, Timing};
use holdfast_ops::config::Checker;
use holdfast_ops::{MonoClock, Tasks};
use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::node::Node;

/// The name of the label.
pub const LABEL: &str = "holdfast.dev/active";

/// How often the node looks at itself.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the API server may take over one call.
const CALL: Duration = Duration::from_secs(2);
/// How long the farewell may take: less than background tasks get to end.
const FAREWELL: Duration = Duration::from_secs(1);

/// `kubernetes.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct KubernetesConfig {
    /// Whether this node keeps the label on its own pod.
    pub label_pod: bool,
    /// URL of the API server; from `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.
    pub api: Option<String>,
    /// Name of the pod; `POD_NAME`, or else the node id.
    pub pod: Option<String>,
    /// Its namespace; the file `namespace` of the service account.
    pub namespace: Option<String>,
    /// Directory with `token`, `ca.crt` and `namespace` of the service account.
    pub service_account: PathBuf,
}

impl Default for KubernetesConfig {
    fn default() -> Self {
        Self {
            label_pod: false,
            api: None,
            pod: None,
            namespace: None,
            service_account: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount"),
        }
    }
}

impl KubernetesConfig {
    /// Finds what would keep the label from being written.
    pub fn validate(&self, at: &mut Checker<'_>, node_id: &str) {
        if !self.label_pod {
            return;
        }
        if !is_name(&self.pod(node_id)) {
            at.problem(
                "kubernetes.pod",
                format!("is no name of a pod: {:?}", self.pod(node_id)),
                "name the pod this node runs in; without this key it is POD_NAME or the node id",
            );
        }
        match self.url() {
            None => at.problem(
                "kubernetes.api",
                "is required",
                "KUBERNETES_SERVICE_HOST is not set, as it is in every pod: name the URL of the API server",
            ),
            Some(url) if !is_safe(&url) => at.problem(
                "kubernetes.api",
                "is not an https:// URL",
                "the token of the service account goes there; plain http:// is taken for loopback only",
            ),
            Some(_) => {}
        }
        if let Err(error) = read(&self.service_account.join("token")) {
            at.problem(
                "kubernetes.service_account",
                format!("has no token that can be read: {error}"),
                "let the pod mount the token of a service account that may patch pods",
            );
        }
        let tls = self.url().is_some_and(|url| url.starts_with("https"));
        if tls && let Err(error) = roots(&self.service_account.join("ca.crt")) {
            at.problem(
                "kubernetes.service_account",
                format!("has no authority that can be used: {error}"),
                "ca.crt there holds the certificates of the API server's authority",
            );
        }
        match self.namespace() {
            Err(_) => at.problem("kubernetes.namespace", "is required", "name the namespace of the pod"),
            Ok(name) if !is_name(&name) => at.problem(
                "kubernetes.namespace",
                format!("is no name of a namespace: {name:?}"),
                "name the namespace of the pod",
            ),
            Ok(_) => {}
        }
    }

    fn url(&self) -> Option<String> {
        let from_pod = || {
            let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?;
            let port = std::env::var("KUBERNETES_SERVICE_PORT").unwrap_or_else(|_| "443".to_owned());
            Some(if host.contains(':') {
                format!("https://[{host}]:{port}")
            } else {
                format!("https://{host}:{port}")
            })
        };
        self.api.clone().or_else(from_pod)
    }

    fn pod(&self, node_id: &str) -> String {
        let told = self.pod.clone().or_else(|| std::env::var("POD_NAME").ok());
        told.unwrap_or_else(|| node_id.to_owned())
    }

    fn namespace(&self) -> Result<String, LabelError> {
        match &self.namespace {
            Some(namespace) => Ok(namespace.clone()),
            None => read(&self.service_account.join("namespace")),
        }
    }
}

/// Whether the token may go there.
fn is_safe(url: &str) -> bool {
    let Ok(uri) = url.parse::<http::Uri>() else { return false };
    match uri.scheme_str() {
        Some("https") => uri.host().is_some(),
        Some("http") => matches!(uri.host(), Some("127.0.0.1" | "[::1]" | "localhost")),
        _ => false,
    }
}

/// Whether a name may stand in the path of a call: a DNS subdomain (RFC 1123), as names of pods and namespaces are.
fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let at_ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 253
        && name.chars().all(allowed)
        && name.starts_with(at_ends)
        && name.ends_with(at_ends)
        && !name.contains("..")
}

/// Why the label could not be written.
#[derive(Debug, thiserror::Error)]
enum LabelError {
    #[error("cannot read {}", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    #[error("{} holds no certificate that can be used", .0.display())]
    Certificate(PathBuf),
    #[error("cannot reach the API server")]
    Unreachable(#[from] reqwest::Error),
    #[error("the service account may not patch this pod: give it a role with the verb patch on pods")]
    Forbidden,
    #[error("there is no such pod: name it with kubernetes.pod")]
    Missing,
    #[error("the API server answered {0}")]
    Refused(StatusCode),
    #[error("kubernetes.api is not known")]
    NoUrl,
}

impl LabelError {
    const fn kind(&self) -> Kind {
        match self {
            Self::File(..) => Kind::Internal,
            Self::Certificate(_) | Self::NoUrl => Kind::Invalid,
            Self::Unreachable(_) | Self::Refused(_) => Kind::Unavailable,
            Self::Forbidden => Kind::Denied,
            Self::Missing => Kind::NotFound,
        }
    }
}

fn read(path: &Path) -> Result<String, LabelError> {
    let text = std::fs::read_to_string(path).map_err(|error| LabelError::File(path.to_owned(), error))?;
    Ok(text.trim().to_owned())
}

/// The pod's place at the API server.
struct Pod {
    http: reqwest::Client,
    url: String,
    token: PathBuf,
}

impl Pod {
    fn new(config: &KubernetesConfig, node_id: &str) -> Result<Self, LabelError> {
        let pod = config.pod(node_id);
        let base = config.url().ok_or(LabelError::NoUrl)?;
        let url =
            format!("{}/api/v1/namespaces/{}/pods/{pod}", base.trim_end_matches('/'), config.namespace()?);
        let ca = config.service_account.join("ca.crt");
        let roots = if base.starts_with("https") { roots(&ca)? } else { rustls::RootCertStore::empty() };
        let unusable = |_| LabelError::Certificate(ca.clone());
        let tls = rustls::ClientConfig::builder_with_provider(holdfast_net::server_tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(CALL)
            .tls_backend_preconfigured(tls)
            .build()?;
        Ok(Self { http, url, token: config.service_account.join("token") })
    }

    /// Writes the label. The token is read for each call, because it is replaced every hour or so.
    async fn label(&self, active: bool) -> Result<(), LabelError> {
        let token = SecretString::from(read(&self.token)?);
        let patch = json!({"metadata": {"labels": {LABEL: active.to_string()}}});
        let request = self
            .http
            .patch(&self.url)
            .bearer_auth(token.expose_secret())
            .header(CONTENT_TYPE, "application/merge-patch+json")
            .body(patch.to_string());
        match request.send().await?.status() {
            status if status.is_success() => Ok(()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(LabelError::Forbidden),
            StatusCode::NOT_FOUND => Err(LabelError::Missing),
            status => Err(LabelError::Refused(status)),
        }
    }
}

fn roots(ca: &Path) -> Result<rustls::RootCertStore, LabelError> {
    let text = read(ca)?;
    let unusable = || LabelError::Certificate(ca.to_owned());
    let mut roots = rustls::RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(text.as_bytes()) {
        roots.add(cert.map_err(|_| unusable())?).map_err(|_| unusable())?;
    }
    if roots.is_empty() { Err(unusable()) } else { Ok(roots) }
}

/// Keeps the label, if that is asked for, until the tasks are cancelled; says `false` then.
pub fn start(node: &Arc<Node>, config: &KubernetesConfig, node_id: &str, tasks: &Tasks) {
    if !config.label_pod {
        return;
    }
    let pod = match Pod::new(config, node_id) {
        Ok(pod) => pod,
        Err(error) => {
            tracing::error!(%error, "the pod is not labelled");
            return;
        }
    };
    let (node, tasks_end) = (Arc::clone(node), tasks.token());
    tasks.spawn("label", async move {
        tasks_end.run_until_cancelled(keep(&node, &pod)).await;
        // A node that goes down is not active, and the pod may outlive it.
        if let Ok(Err(error)) = timeout(FAREWELL, pod.label(false)).await {
            tracing::debug!(%error, "the pod keeps its label");
        }
    });
}

async fn keep(node: &Node, pod: &Pod) {
    let is_active = || node.running().is_some_and(|running| running.hub.cluster.view().active.is_some());
    let clock = MonoClock::new();
    let mut label = Label::new(Timing::default());
    // Each sort of failure is told once, until it works again.
    let mut failing = None;
    loop {
        let active = is_active();
        if !label.is_due(clock.now(), active) {
            sleep(LOOK_EVERY).await;
            continue;
        }
        match pod.label(active).await {
            Ok(()) => {
                label.written(clock.now(), active);
                if failing.take().is_some() {
                    tracing::info!(active, "the pod is labelled again");
                }
            }
            Err(error) => {
                label.failed(clock.now());
                if failing.replace(error.kind()) != Some(error.kind()) {
                    let error: &(dyn std::error::Error + 'static) = &error;
                    tracing::warn!(error, "the pod is not labelled; it is tried again");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_goes_nowhere_in_plain_text() {
        assert!(is_safe("https://10.0.0.1:443") && is_safe("https://[fd00::1]:6443"));
        assert!(is_safe("http://127.0.0.1:8001") && is_safe("http://[::1]:8001"));
        for url in ["http://10.0.0.1", "http://kubernetes.default", "10.0.0.1:443", "ftp://127.0.0.1", ""] {
            assert!(!is_safe(url), "{url}");
        }
    }

    #[test]
    fn only_names_of_kubernetes_stand_in_a_path() {
        for good in ["hub-0", "0", "hub-0.databases", &"a".repeat(253)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "Hub", "hub_0", "-hub", "hub-", "a/b", "..", "a..b", "a?x", "hub 0", &"a".repeat(254)]
        {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
