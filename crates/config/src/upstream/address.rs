//! Where an upstream is, `[SCHEME://]HOST:PORT`, and how a connection to it comes about.
//!
//! What must hold: connecting ends by its deadline; certificates are always checked.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_net::server_tls::provider;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::UpstreamTls;

/// How long connecting may take, all handshakes included.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// A place to connect to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) tls: bool,
    /// What follows the port, without the slash.
    pub(crate) path: String,
}

impl Address {
    /// Reads `HOST[:PORT]`, or the same behind `plain://` or `secure://`; without either, `tls` decides.
    pub(crate) fn parse(
        text: &str,
        (plain, secure): (&str, &str),
        port: u16,
        tls: bool,
    ) -> Result<Self, String> {
        let (tls, rest) = match text.split_once("://") {
            None => (tls, text),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case(plain) => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case(secure) => (true, rest),
            Some((scheme, _)) => return Err(format!("\"{scheme}\" is neither {plain} nor {secure}")),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // The text is not repeated: what stands before an @ is a secret.
        if authority.contains('@') {
            return Err("no credentials belong into an address".to_owned());
        }
        let authority = authority.parse::<http::uri::Authority>().map_err(|e| format!("\"{text}\": {e}"))?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(format!("\"{text}\" names no host"));
        }
        let port = match authority.as_str().strip_prefix(authority.host()) {
            None | Some("") => port,
            Some(_) => authority.port_u16().ok_or_else(|| format!("\"{text}\" has no usable port"))?,
        };
        Ok(Self { host, port, tls, path: path.to_owned() })
    }

    /// `HOST:PORT`
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Connects, with TLS where the address wants it.
    pub(crate) async fn connect(&self, tls: &Arc<ClientConfig>) -> io::Result<Box<dyn Connection>> {
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        tokio::time::timeout(CONNECT_WITHIN, self.dial(tls)).await.map_err(late)?
    }

    async fn dial(&self, tls: &Arc<ClientConfig>) -> io::Result<Box<dyn Connection>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        if !self.tls {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?;
        Ok(Box::new(stream))
    }
}

/// Any byte stream.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// What is wrong with TLS files.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file cannot be used.
    #[error("{path} cannot be used as PEM: {cause}")]
    Pem { path: PathBuf, cause: String },
    /// The key cannot be read, or others can read it.
    #[error(transparent)]
    Key(#[from] holdfast_ops::secret_file::Error),
    /// One of `cert` and `key` without the other.
    #[error("cert and key belong together")]
    Half,
    /// They do not fit.
    #[error("{0}")]
    Mismatch(String),
}

/// The client side of TLS towards an upstream, offering the protocols `alpn`.
pub(crate) fn client_tls(files: Option<&UpstreamTls>, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsError> {
    let Some(files) = files else { return Material::default().config(alpn) };
    let authorities = files.ca.as_deref().map(certificates).transpose()?;
    let identity = match (&files.cert, &files.key) {
        (None, None) => None,
        (Some(cert), Some(path)) => {
            let key = holdfast_ops::secret_file::read(path)?;
            let key = PrivateKeyDer::from_pem_slice(key.expose_secret()).map_err(|e| pem(path, &e))?;
            Some((certificates(cert)?, key))
        }
        _ => return Err(TlsError::Half),
    };
    Material { authorities, identity }.config(alpn)
}

/// Whom to trust, and who to be.
#[derive(Default)]
pub(crate) struct Material {
    /// The system's unless given.
    pub(crate) authorities: Option<Vec<CertificateDer<'static>>>,
    /// The certificate with its chain, and its key.
    pub(crate) identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl Material {
    /// The configuration, offering the protocols `alpn`.
    pub(crate) fn config(self, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsError> {
        let mismatch = |e: rustls::Error| TlsError::Mismatch(e.to_string());
        let mut roots = RootCertStore::empty();
        match self.authorities {
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
            Some(authorities) => {
                authorities.into_iter().try_for_each(|one| roots.add(one)).map_err(mismatch)?;
            }
        }
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(mismatch)?
            .with_root_certificates(roots);
        let mut config = match self.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(mismatch)?,
        };
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }
}

/// An HTTP client with this TLS, whose connections are probed: a stream that is silent for `idle` is dead.
pub(crate) fn http_client(tls: &ClientConfig, idle: Duration) -> reqwest::Result<reqwest::Client> {
    const PROBE: Duration = Duration::from_secs(15);
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls.clone())
        .user_agent(super::http_answer::USER_AGENT)
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(PROBE)
        .http2_keep_alive_timeout(idle.saturating_sub(PROBE).max(Duration::from_secs(2)))
        .tcp_keepalive(PROBE)
        .tcp_keepalive_interval(PROBE / 3)
        .tcp_user_timeout(idle)
        .build()
}

/// What an HTTP client speaks.
pub(crate) const HTTP: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The certificates of a file.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let list: Vec<_> = read.map_err(|e| pem(path, &e))?;
    if list.is_empty() {
        return Err(TlsError::Pem { path: path.to_owned(), cause: "it holds no certificate".into() });
    }
    Ok(list)
}

fn pem(path: &Path, error: &rustls_pki_types::pem::Error) -> TlsError {
    TlsError::Pem { path: path.to_owned(), cause: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, tls: bool) -> Result<Address, String> {
        Address::parse(text, ("http", "https"), 2379, tls)
    }

    #[test]
    fn addresses_with_and_without_scheme_and_port() {
        let address = |host: &str, port, tls, path: &str| Address {
            host: host.to_owned(),
            port,
            tls,
            path: path.to_owned(),
        };
        assert_eq!(parse("h:1", false).unwrap(), address("h", 1, false, ""));
        assert_eq!(parse("h", true).unwrap(), address("h", 2379, true, ""));
        assert_eq!(parse("HTTPS://h:1/3", false).unwrap(), address("h", 1, true, "3"));
        assert_eq!(parse("http://[::1]:1", true).unwrap(), address("::1", 1, false, ""));
        assert_eq!(parse("http://[::1]:1", true).unwrap().authority(), "[::1]:1");
    }

    #[test]
    fn what_is_no_address_is_refused_without_showing_credentials() {
        for bad in ["", "ftp://h:1", "http://", "h:port", "http://user:hunter2@h:1"] {
            let problem = parse(bad, false).unwrap_err();
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }

    /// A server with a certificate of its own, that greets.
    async fn greeter(dir: &Path) -> (u16, UpstreamTls) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(dir.join("ca.pem"), made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"hi").await;
                }
            }
        });
        (port, UpstreamTls { ca: Some(dir.join("ca.pem")), cert: None, key: None })
    }

    #[tokio::test]
    async fn certificates_are_checked_with_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let (port, files) = greeter(dir.path()).await;
        let trusting = client_tls(Some(&files), &[]).unwrap();
        let address = parse(&format!("https://localhost:{port}"), false).unwrap();
        let mut stream = address.connect(&trusting).await.unwrap();
        let mut greeting = [0; 2];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut greeting).await.unwrap();
        assert_eq!(&greeting, b"hi");
        let other_name = parse(&format!("https://127.0.0.1:{port}"), false).unwrap();
        assert!(other_name.connect(&trusting).await.is_err());
        let doubting = client_tls(None, &[]).unwrap();
        assert!(address.connect(&doubting).await.is_err());
        let half = UpstreamTls { cert: Some(dir.path().join("ca.pem")), ..files };
        assert!(matches!(client_tls(Some(&half), &[]), Err(TlsError::Half)));
    }
}
