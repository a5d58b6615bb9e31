//! Which API server, and who we are to it: a kubeconfig, or what the cluster puts into a pod.
//!
//! What must hold: certificates are always checked; a kubeconfig that wants a program to be run is refused.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use holdfast_core::freshness::Failure;
use reqwest::Url;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::super::address::{HTTP, Material, certificates, http_client};
use super::super::credential;
use super::super::wiped::Wiped;

/// Where the cluster puts a pod's account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// An API server with a login.
pub(super) struct Cluster {
    server: Url,
    token: Token,
    material: parking_lot::Mutex<Option<Material>>,
}

enum Token {
    None,
    Fixed(Wiped),
    File(PathBuf),
}

impl Cluster {
    /// From what the cluster gave to the pod that we are in.
    pub(super) fn of_this_pod() -> Result<Self, String> {
        let from =
            |name| std::env::var(name).map_err(|_| format!("is missing, and {name} is not set: no pod"));
        let (host, port) = (from("KUBERNETES_SERVICE_HOST")?, from("KUBERNETES_SERVICE_PORT")?);
        Self::of_pod(&host, &port, Path::new(ACCOUNT))
    }

    fn of_pod(host: &str, port: &str, account: &Path) -> Result<Self, String> {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let authorities = certificates(&account.join("ca.crt")).map_err(|e| e.to_string())?;
        let material = Material { authorities: Some(authorities), identity: None };
        Self::new(&format!("https://{host}:{port}"), Token::File(account.join("token")), material)
    }

    /// From the current context of a kubeconfig.
    pub(super) fn of_kubeconfig(file: &Path) -> Result<Self, String> {
        let text = holdfast_ops::secret_file::read(file).map_err(|e| e.to_string())?;
        let text = std::str::from_utf8(text.expose_secret()).map_err(|_| "is not text".to_owned())?;
        // The reason may show what stands there.
        let config: Kubeconfig = serde_saphyr::from_str(text).map_err(|_| "is no kubeconfig".to_owned())?;
        let home = file.parent().unwrap_or(Path::new("."));
        let context = named(&config.contexts, &config.current_context, "context")?.context.clone();
        let cluster = &named(&config.clusters, &context.cluster, "cluster")?.cluster;
        let user = &named(&config.users, &context.user, "user")?.user;
        if cluster.insecure_skip_tls_verify {
            return Err("insecure-skip-tls-verify is not supported".to_owned());
        }
        if user.exec.is_some() || user.auth_provider.is_some() || user.username.is_some() {
            return Err("a user needs a token or a client certificate".to_owned());
        }
        let authorities = pem_of(&cluster.certificate_authority_data, &cluster.certificate_authority, home)?;
        let authorities = authorities.map(|pem| chain(&pem)).transpose()?;
        let certificate = pem_of(&user.client_certificate_data, &user.client_certificate, home)?;
        let key = pem_of(&user.client_key_data, &user.client_key, home)?;
        let identity = match (certificate, key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| "its client key is no PEM key")?;
                Some((chain(&certificate)?, key))
            }
            _ => return Err("client certificate and key belong together".to_owned()),
        };
        let token = match (&user.token_file, &user.token) {
            (Some(token), _) => Token::File(home.join(token)),
            (None, Some(token)) => Token::Fixed(token.clone()),
            (None, None) => Token::None,
        };
        Self::new(&cluster.server, token, Material { authorities, identity })
    }

    fn new(server: &str, token: Token, material: Material) -> Result<Self, String> {
        let mut server = Url::parse(server).map_err(|e| format!("the server's URL: {e}"))?;
        let loopback =
            server.host_str().is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]"));
        if server.scheme() != "https" && !loopback {
            return Err("the server's URL must be https".to_owned());
        }
        if !server.path().ends_with('/') {
            server.set_path(&format!("{}/", server.path()));
        }
        Ok(Self { server, token, material: parking_lot::Mutex::new(Some(material)) })
    }

    /// The client for all calls; its connections are dead after such a silence.
    pub(super) fn http(&self, idle: Duration) -> Result<reqwest::Client, String> {
        let material = self.material.lock().take().unwrap_or_default();
        let tls = material.config(&HTTP).map_err(|e| e.to_string())?;
        http_client(&tls, idle).map_err(|e| e.to_string())
    }

    /// The URL that paths are joined to.
    pub(super) const fn server(&self) -> &Url {
        &self.server
    }

    /// The token now.
    pub(super) fn token(&self) -> Result<Option<Zeroizing<String>>, Failure> {
        match &self.token {
            Token::None => Ok(None),
            Token::Fixed(token) => Ok(Some(Zeroizing::new(token.to_string()))),
            // With the rights that the cluster gave it, not ours to judge.
            Token::File(file) => credential::projected(file).map(Some),
        }
    }
}

/// `...-data` in base64, or the file.
fn pem_of(
    data: &Option<Wiped>,
    file: &Option<PathBuf>,
    home: &Path,
) -> Result<Option<Zeroizing<Vec<u8>>>, String> {
    if let Some(data) = data {
        let decoded = BASE64_STANDARD.decode(data.trim()).map_err(|_| "holds data that is no base64")?;
        return Ok(Some(Zeroizing::new(decoded)));
    }
    let Some(file) = file else { return Ok(None) };
    let path = home.join(file);
    let read = std::fs::read(&path).map(Zeroizing::new);
    read.map(Some).map_err(|e| format!("names {}, which cannot be read: {e}", path.display()))
}

fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let list = read.unwrap_or_default();
    if list.is_empty() { Err("has no usable PEM certificate where one belongs".to_owned()) } else { Ok(list) }
}

trait Named {
    fn name(&self) -> &str;
}

fn named<'a, T: Named>(list: &'a [T], name: &str, what: &str) -> Result<&'a T, String> {
    list.iter().find(|one| one.name() == name).ok_or_else(|| format!("has no {what} \"{name}\""))
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: String,
    #[serde(default)]
    contexts: Vec<ContextEntry>,
    #[serde(default)]
    clusters: Vec<ClusterEntry>,
    #[serde(default)]
    users: Vec<UserEntry>,
}

#[derive(Deserialize)]
struct ContextEntry {
    name: String,
    context: Context,
}

#[derive(Clone, Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
struct ClusterEntry {
    name: String,
    cluster: ClusterSettings,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ClusterSettings {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<Wiped>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
struct UserEntry {
    name: String,
    user: User,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<Wiped>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<Wiped>,
    client_key: Option<PathBuf>,
    client_key_data: Option<Wiped>,
    username: Option<String>,
    exec: Option<serde::de::IgnoredAny>,
    auth_provider: Option<serde::de::IgnoredAny>,
}

macro_rules! named {
    ($($entry:ident)*) => {$(
        impl Named for $entry {
            fn name(&self) -> &str {
                &self.name
            }
        }
    )*};
}

named! { ContextEntry ClusterEntry UserEntry }

#[cfg(test)]
mod tests {
    use holdfast_tests::backends::secret_file;

    use super::super::super::tests::scripted::crypto;
    use super::*;

    fn of(text: &str) -> Result<Cluster, String> {
        crypto();
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::of_kubeconfig(&secret_file(dir.path(), "config", text));
        cluster.and_then(|cluster| cluster.http(Duration::from_secs(45)).map(|_| cluster))
    }

    fn config(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\ncontexts:\n- name: here\n  context:\n    cluster: c\n    \
             user: u\n    namespace: n\nclusters:\n- name: c\n  cluster:\n    {cluster}\nusers:\n- name: u\n  user:\n    {user}\n"
        )
    }

    #[test]
    fn a_kubeconfig_with_a_token_and_with_a_certificate() {
        let cluster = of(&config("server: https://k8s.internal:6443/clusters/a", "token: abc")).unwrap();
        assert_eq!(cluster.server().as_str(), "https://k8s.internal:6443/clusters/a/");
        assert_eq!(cluster.token().unwrap().unwrap().as_str(), "abc");
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let coded = |text: String| BASE64_STANDARD.encode(text);
        let cluster =
            format!("server: https://h\n    certificate-authority-data: {}", coded(made.cert.pem()));
        let (cert, key) = (coded(made.cert.pem()), coded(made.signing_key.serialize_pem()));
        let user = format!("client-certificate-data: {cert}\n    client-key-data: {key}");
        let cluster = of(&config(&cluster, &user)).unwrap();
        assert!(cluster.token().unwrap().is_none());
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_showing_secrets() {
        for (cluster, user, problem) in [
            ("server: http://h:6443", "token: hunter2", "the server's URL must be https"),
            (
                "server: https://h\n    insecure-skip-tls-verify: true",
                "token: hunter2",
                "insecure-skip-tls-verify is not supported",
            ),
            (
                "server: https://h",
                "exec:\n      command: aws",
                "a user needs a token or a client certificate",
            ),
            (
                "server: https://h",
                "client-key-data: aHVudGVyMg==",
                "client certificate and key belong together",
            ),
            ("server: https://h", "token: [hunter2]", "is no kubeconfig"),
        ] {
            assert_eq!(of(&config(cluster, user)).err().as_deref(), Some(problem));
        }
        let lost = config("server: https://h", "token: x").replace("cluster: c\n", "cluster: d\n");
        assert_eq!(of(&lost).err().as_deref(), Some("has no cluster \"d\""));
    }
}
