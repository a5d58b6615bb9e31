//! The three files that make a daemon a spoke: its key, its certificate, and the authority of the hub.
//!
//! What must hold: files appear whole or not at all; certificate and key are replaced in that order, so that what
//! a crash leaves behind can be completed; nothing that could complete a set is removed while the set is not good;
//! nothing starts with files that do not belong together. Whoever changes a file holds the lock of the directory.

use std::fs::TryLockError;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_core::{Kind, SpokeName};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

/// The private key, PKCS#8 PEM; for the owner only.
pub const KEY: &str = "key.pem";
/// The certificate, PEM.
pub const CERT: &str = "cert.pem";
/// The authority that signed the certificate and signs the hub's, PEM.
pub const CA: &str = "ca.pem";
/// What is appended to the name of a file that is about to take another one's place.
const NEW: &str = ".new";
/// How long another process may hold the directory: it writes three files.
const LOCK_WITHIN: Duration = Duration::from_secs(10);

/// Why credentials cannot be used or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// A file cannot be read or written.
    #[error("{path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{path} holds no usable {what}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What was expected in it.
        what: &'static str,
    },
    /// Certificate and key are not of one pair.
    #[error("{key} is not the key of the certificate {cert}")]
    Mismatch {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// Another authority signed the certificate.
    #[error("the certificate {cert} does not chain to {ca}")]
    Chain {
        /// The certificate.
        cert: PathBuf,
        /// The authority.
        ca: PathBuf,
    },
    /// TLS refuses them.
    #[error("the credentials in {dir} cannot be used for TLS")]
    Tls {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The library refused.
    #[error("making a key or a certificate request failed")]
    Library(#[from] rcgen::Error),
}

impl CredentialsError {
    /// The class of the failure.
    pub fn kind(&self) -> Kind {
        match self {
            Self::File { source, .. } if source.kind() == io::ErrorKind::NotFound => Kind::NotFound,
            Self::File { .. } => Kind::Unavailable,
            Self::Content { .. } | Self::Mismatch { .. } | Self::Chain { .. } => Kind::Invalid,
            Self::Tls { .. } | Self::Library(_) => Kind::Internal,
        }
    }
}

/// What a spoke presents, and whom it trusts.
pub struct Credentials {
    /// The name that the certificate is for.
    pub name: SpokeName,
    /// When the certificate begins, in seconds since 1970.
    pub not_before: i64,
    /// When it ends.
    pub not_after: i64,
    dir: PathBuf,
    ca: CertificateDer<'static>,
    cert: CertificateDer<'static>,
    key: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("name", &self.name)
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// A fresh key with a request for a certificate of it.
pub struct KeyRequest {
    /// The key, PKCS#8 PEM.
    pub key_pem: Zeroizing<String>,
    /// The request, PEM.
    pub csr_pem: String,
}

impl KeyRequest {
    /// A new P-256 key, and a request for this name and nothing else.
    ///
    /// # Errors
    /// When the library refuses.
    pub fn new(name: &SpokeName) -> Result<Self, CredentialsError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        let csr_pem = params.serialize_request(&key)?.pem()?;
        Ok(Self { key_pem: Zeroizing::new(key.serialize_pem()), csr_pem })
    }
}

impl Credentials {
    /// Reads the files of a directory, after completing a replacement that a crash interrupted.
    ///
    /// # Errors
    /// When one is missing or they do not belong together; the error names the file.
    pub fn load(dir: &Path) -> Result<Self, CredentialsError> {
        let _held = lock(dir)?;
        Self::settle(dir)
    }

    /// The set that is in place, or the one that a crash kept from getting there; under the lock.
    fn settle(dir: &Path) -> Result<Self, CredentialsError> {
        let in_place = Self::read_set(dir, CERT, KEY);
        let waiting = |name| format!("{name}{NEW}");
        let found = if in_place.is_ok() {
            in_place
        } else if let Ok(late) = Self::read_set(dir, CERT, &waiting(KEY)) {
            put_in_place(dir, KEY)?;
            tracing::warn!(dir = %dir.display(), "completed a replacement of the key that was interrupted");
            Ok(late)
        } else if let Ok(late) = Self::read_set(dir, &waiting(CERT), &waiting(KEY)) {
            put_in_place(dir, CERT)?;
            put_in_place(dir, KEY)?;
            tracing::warn!(dir = %dir.display(), "completed a replacement of the credentials that was interrupted");
            Ok(late)
        } else {
            in_place
        };
        if found.is_ok() {
            forget_leftovers(dir);
        }
        found
    }

    /// Reads the files as they are and changes none: somebody else may be about to replace them.
    ///
    /// # Errors
    /// When one is missing or they do not belong together, if only for a moment.
    pub fn peek(dir: &Path) -> Result<Self, CredentialsError> {
        Self::read_set(dir, CERT, KEY)
    }

    /// The set of the authority in place and these two files.
    fn read_set(dir: &Path, cert: &str, key: &str) -> Result<Self, CredentialsError> {
        let ca = certificate(&dir.join(CA), &read(&dir.join(CA))?)?;
        let text = |name| {
            let bytes = Zeroizing::new(read(&dir.join(name))?);
            Ok::<_, CredentialsError>(Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned()))
        };
        let cert = text(cert)?;
        Self::parse(dir, ca, &text(key)?, &cert)
    }

    /// Writes the files of a new spoke; the directory is made when absent.
    ///
    /// # Errors
    /// When they do not belong together, in which case nothing is written, or a file cannot be written.
    pub fn create(dir: &Path, key_pem: &str, cert_pem: &str, ca_pem: &str) -> Result<Self, CredentialsError> {
        let ca = certificate(&dir.join(CA), ca_pem.as_bytes())?;
        let made = Self::parse(dir, ca, key_pem, cert_pem)?;
        prepare(dir)?;
        let _held = lock(dir)?;
        // A set that needs its leftovers is completed before they are overwritten; a broken one is replaced.
        drop(Self::settle(dir));
        write_new(dir, KEY, key_pem, 0o600)?;
        write_new(dir, CERT, cert_pem, 0o644)?;
        write_new(dir, CA, ca_pem, 0o644)?;
        for name in [CA, CERT, KEY] {
            put_in_place(dir, name)?;
        }
        Ok(made)
    }

    /// Replaces certificate and key after a renewal.
    ///
    /// # Errors
    /// When they do not belong together, in which case nothing is written, or a file cannot be written.
    pub fn replace(&self, key_pem: &str, cert_pem: &str) -> Result<Self, CredentialsError> {
        let made = Self::parse(&self.dir, self.ca.clone(), key_pem, cert_pem)?;
        if made.name != self.name {
            return Err(CredentialsError::Content {
                path: self.dir.join(CERT),
                what: "certificate of this spoke",
            });
        }
        let _held = lock(&self.dir)?;
        // Another process may have been killed halfway since these were read, or have made another spoke of this directory:
        // then what was renewed is of no use, and what is there is not ours to replace.
        match Self::settle(&self.dir) {
            Ok(found) if found.name != self.name || found.ca != self.ca => {
                return Err(CredentialsError::Content {
                    path: self.dir.join(CERT),
                    what: "certificate of this spoke any more",
                });
            }
            Err(CredentialsError::File { path, source }) if source.kind() != io::ErrorKind::NotFound => {
                return Err(CredentialsError::File { path, source });
            }
            _ => {}
        }
        write_new(&self.dir, KEY, key_pem, 0o600)?;
        write_new(&self.dir, CERT, cert_pem, 0o644)?;
        put_in_place(&self.dir, CERT)?;
        put_in_place(&self.dir, KEY)?;
        Ok(made)
    }

    /// TLS towards the hub: version 1.3, HTTP/2, no authority but the hub's.
    ///
    /// # Errors
    /// When TLS refuses the credentials.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, CredentialsError> {
        let tls = |source| CredentialsError::Tls { dir: self.dir.clone(), source };
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.clone()).map_err(tls)?;
        let key = PrivateKeyDer::try_from(self.key.to_vec())
            .map_err(|_| CredentialsError::Content { path: self.dir.join(KEY), what: "key" })?;
        let mut config = ClientConfig::builder_with_provider(holdfast_net::server_tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls)?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![self.cert.clone()], key)
            .map_err(tls)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// How much of the certificate's life is left: 1 at its beginning, 0 at its end and later.
    pub fn life_left(&self, now_unix: i64) -> f64 {
        let whole = self.not_after.saturating_sub(self.not_before).max(1);
        let left = self.not_after.saturating_sub(now_unix).clamp(0, whole);
        #[allow(clippy::cast_precision_loss, reason = "seconds of a certificate's life fit a double")]
        let share = left as f64 / whole as f64;
        share
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The authority's certificate, DER.
    pub fn ca_der(&self) -> &[u8] {
        &self.ca
    }

    fn parse(
        dir: &Path,
        ca: CertificateDer<'static>,
        key_pem: &str,
        cert_pem: &str,
    ) -> Result<Self, CredentialsError> {
        let cert = certificate(&dir.join(CERT), cert_pem.as_bytes())?;
        let key = key(&dir.join(KEY), key_pem)?;
        if !is_pair(&cert, &key) {
            return Err(CredentialsError::Mismatch { cert: dir.join(CERT), key: dir.join(KEY) });
        }
        Self::check(dir, ca, cert, key)
    }

    /// The name and life of a certificate that chains to the authority.
    fn check(
        dir: &Path,
        ca: CertificateDer<'static>,
        cert: CertificateDer<'static>,
        key: KeyPair,
    ) -> Result<Self, CredentialsError> {
        let content = |what| CredentialsError::Content { path: dir.join(CERT), what };
        let parse = x509_parser::parse_x509_certificate;
        let (_, parsed) = parse(&cert).map_err(|_| content("certificate"))?;
        let (_, authority) =
            parse(&ca).map_err(|_| CredentialsError::Content { path: dir.join(CA), what: "certificate" })?;
        let chains = parsed.issuer() == authority.subject()
            && parsed.verify_signature(Some(authority.public_key())).is_ok();
        if !chains {
            return Err(CredentialsError::Chain { cert: dir.join(CERT), ca: dir.join(CA) });
        }
        let common = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let name = common.and_then(|name| name.parse().ok()).ok_or(content("certificate of a spoke"))?;
        let life = parsed.validity();
        let (not_before, not_after) = (life.not_before.timestamp(), life.not_after.timestamp());
        let key = Zeroizing::new(key.serialize_der());
        Ok(Self { name, not_before, not_after, dir: dir.to_owned(), ca, cert, key })
    }
}

/// The first of the three files that is there.
pub fn occupied(dir: &Path) -> Option<PathBuf> {
    [KEY, CERT, CA].iter().map(|name| dir.join(name)).find(|path| path.symlink_metadata().is_ok())
}

/// Makes the directory when it is absent, private to its owner, and sees whether files can be made in it.
///
/// # Errors
/// When they cannot.
pub fn prepare(dir: &Path) -> Result<(), CredentialsError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| CredentialsError::File { path, source }
    };
    // What lies above is not the spoke's alone: other users must get through it.
    if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(above).map_err(file(above))?;
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(file(dir))?;
    tempfile::tempfile_in(dir).map(drop).map_err(file(dir))
}

/// Holds the directory against every other process that changes files in it, until the file is dropped.
pub(crate) fn lock(dir: &Path) -> Result<std::fs::File, CredentialsError> {
    let file = |source| CredentialsError::File { path: dir.to_owned(), source };
    let held = std::fs::File::open(dir).map_err(file)?;
    let deadline = Instant::now() + LOCK_WITHIN;
    loop {
        match held.try_lock() {
            Ok(()) => return Ok(held),
            Err(TryLockError::Error(error)) => return Err(file(error)),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(file(io::Error::new(io::ErrorKind::TimedOut, "another process holds its lock")));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn is_pair(cert: &CertificateDer<'_>, key: &KeyPair) -> bool {
    x509_parser::parse_x509_certificate(cert)
        .is_ok_and(|(_, cert)| *cert.public_key().subject_public_key.data == *key.public_key_raw())
}

/// Removes what an interrupted replacement left behind and nothing needs.
fn forget_leftovers(dir: &Path) {
    for name in [KEY, CERT, CA] {
        let path = dir.join(format!("{name}{NEW}"));
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "a file of an interrupted replacement stays");
            }
            _ => {}
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CredentialsError> {
    std::fs::read(path).map_err(|source| CredentialsError::File { path: path.to_owned(), source })
}

fn certificate(path: &Path, pem: &[u8]) -> Result<CertificateDer<'static>, CredentialsError> {
    let content = || CredentialsError::Content { path: path.to_owned(), what: "certificate" };
    let der = CertificateDer::from_pem_slice(pem).map_err(|_| content())?;
    match x509_parser::parse_x509_certificate(&der) {
        Ok(_) => Ok(der),
        Err(_) => Err(content()),
    }
}

fn key(path: &Path, pem: &str) -> Result<KeyPair, CredentialsError> {
    KeyPair::from_pem(pem).map_err(|_| CredentialsError::Content { path: path.to_owned(), what: "key" })
}

/// Writes a file beside the one that it will replace, down to the disk.
fn write_new(dir: &Path, name: &str, text: &str, mode: u32) -> Result<(), CredentialsError> {
    let path = dir.join(format!("{name}{NEW}"));
    let write = || {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|source| CredentialsError::File { path: path.clone(), source })
}

fn put_in_place(dir: &Path, name: &str) -> Result<(), CredentialsError> {
    let path = dir.join(name);
    let rename = || {
        std::fs::rename(dir.join(format!("{name}{NEW}")), &path)?;
        std::fs::File::open(dir)?.sync_all()
    };
    rename().map_err(|source| CredentialsError::File { path: path.clone(), source })
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
