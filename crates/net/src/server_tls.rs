//! The TLS side of a listening port, from PEM files that can be read again while it listens.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwap;
use holdfast_core::Kind;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::ExposeSecret as _;
use tokio_rustls::TlsAcceptor;

/// Where certificate, key and client authorities are.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// PEM certificate chain, the server's own first.
    pub cert: PathBuf,
    /// PEM private key.
    pub key: PathBuf,
    /// PEM authorities; when given, clients must show a certificate of one of them.
    pub client_ca: Option<PathBuf>,
}

/// Whether clients are asked for a certificate.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ClientCertificate {
    /// Never, whatever authorities are known.
    None,
    /// Asked for. A client may come without; with one that cannot be verified it is refused.
    Request,
    /// Mandatory, where authorities are known.
    #[default]
    Require,
}

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds no PEM of the wanted kind.
    #[error("{path} cannot be used as PEM: {cause}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// The key file cannot be read, or others than its owner can read it.
    #[error(transparent)]
    Key(#[from] holdfast_ops::secret_file::Error),
    /// They do not fit each other.
    #[error("the TLS files do not fit: {0}")]
    Mismatch(String),
}

impl TlsError {
    /// The class of the failure.
    pub const fn kind(&self) -> Kind {
        Kind::Invalid
    }
}

/// TLS of a port; the newest good files count for new connections.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsFiles,
    clients: ClientCertificate,
    config: ArcSwap<ServerConfig>,
    expires: AtomicI64,
}

impl ServerTls {
    /// Reads the files. Clients must show a certificate when there are authorities for them.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        Self::load_for(files, ClientCertificate::Require)
    }

    /// Reads the files, and says whether clients are asked for a certificate.
    pub fn load_for(files: TlsFiles, clients: ClientCertificate) -> Result<Arc<Self>, TlsError> {
        let (config, expires) = read(&files, clients)?;
        Ok(Arc::new(Self { files, clients, config: ArcSwap::from(config), expires: AtomicI64::new(expires) }))
    }

    /// Reads the files again. When they are bad the former ones stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let (config, expires) = read(&self.files, self.clients)?;
        self.config.store(config);
        self.expires.store(expires, Ordering::Release);
        Ok(())
    }

    /// When the certificate in use ends, in seconds since the Unix epoch.
    pub fn expires(&self) -> i64 {
        self.expires.load(Ordering::Acquire)
    }

    /// An acceptor for the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }
}

/// The one crypto library as TLS uses it.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// What the files say, and when the certificate ends.
fn read(files: &TlsFiles, clients: ClientCertificate) -> Result<(Arc<ServerConfig>, i64), TlsError> {
    let chain = certificates(&files.cert)?;
    let expires = chain.first().map(|own| expiry(own)).transpose()?.unwrap_or(i64::MAX);
    let key = holdfast_ops::secret_file::read(&files.key)?;
    let key = PrivateKeyDer::from_pem_slice(key.expose_secret()).map_err(|e| pem(&files.key, &e))?;
    let mismatch = |e: rustls::Error| TlsError::Mismatch(e.to_string());
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(mismatch)?;
    let builder = match &files.client_ca {
        Some(path) if clients != ClientCertificate::None => {
            let mut roots = rustls::RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(mismatch)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
            let verifier = match clients {
                ClientCertificate::Request => verifier.allow_unauthenticated().build(),
                _ => verifier.build(),
            };
            builder.with_client_cert_verifier(verifier.map_err(|e| TlsError::Mismatch(e.to_string()))?)
        }
        _ => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(mismatch)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(config), expires))
}

fn expiry(certificate: &CertificateDer<'_>) -> Result<i64, TlsError> {
    let parsed = x509_parser::parse_x509_certificate(certificate);
    let (_, parsed) = parsed.map_err(|e| TlsError::Mismatch(e.to_string()))?;
    Ok(parsed.validity().not_after.timestamp())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
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

    fn write(dir: &Path, name: &str) -> TlsFiles {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let files = TlsFiles {
            cert: dir.join(format!("{name}.pem")),
            key: dir.join(format!("{name}.key")),
            client_ca: None,
        };
        std::fs::write(&files.cert, made.cert.pem()).unwrap();
        std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        restrict(&files.key, 0o600);
        files
    }

    fn restrict(path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let files = write(dir.path(), "a");
        let tls = ServerTls::load(files.clone()).unwrap();
        restrict(&files.key, 0o640);
        for refused in [ServerTls::load(files).err(), tls.reload().err()] {
            let text = refused.unwrap().to_string();
            assert!(text.contains("a.key") && text.contains("0640"), "{text}");
        }
    }

    #[test]
    fn bad_files_leave_the_former_ones_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let files = write(dir.path(), "a");
        let tls = ServerTls::load(files.clone()).unwrap();
        let before = tls.config.load_full();
        std::fs::write(&files.cert, "nothing").unwrap();
        assert!(tls.reload().unwrap_err().to_string().contains("a.pem"));
        assert!(Arc::ptr_eq(&before, &tls.config.load_full()));
        write(dir.path(), "a");
        tls.reload().unwrap();
        assert!(!Arc::ptr_eq(&before, &tls.config.load_full()));
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (write(dir.path(), "a"), write(dir.path(), "b"));
        let mixed = TlsFiles { key: b.key, ..a };
        assert!(matches!(ServerTls::load(mixed), Err(TlsError::Mismatch(_))));
    }
}
