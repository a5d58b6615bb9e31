//! The TLS side of a listening port, from PEM files that can be read again while it listens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    config: ArcSwap<ServerConfig>,
}

impl ServerTls {
    /// Reads the files.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let config = ArcSwap::from(read(&files)?);
        Ok(Arc::new(Self { files, config }))
    }

    /// Reads the files again. When they are bad the former ones stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.config.store(read(&self.files)?);
        Ok(())
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

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(&files.cert)?;
    let key = holdfast_ops::secret_file::read(&files.key)?;
    let key = PrivateKeyDer::from_pem_slice(key.expose_secret()).map_err(|e| pem(&files.key, &e))?;
    let mismatch = |e: rustls::Error| TlsError::Mismatch(e.to_string());
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(mismatch)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = rustls::RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(mismatch)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
            builder.with_client_cert_verifier(verifier.map_err(|e| TlsError::Mismatch(e.to_string()))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(mismatch)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
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
