//! The identity that all nodes of one cluster share: one P-256 certificate and its key.
//!
//! Possession of the key is membership. The certificate is never checked against an authority or a name: a peer
//! presents exactly this one, byte for byte, or it is refused.

use std::fmt;

use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

/// A cluster's certificate and private key.
#[derive(Clone)]
pub struct ClusterIdentity {
    cert_der: Vec<u8>,
    key_der: Zeroizing<Vec<u8>>,
}

/// An identity could not be made.
#[derive(Debug, thiserror::Error)]
#[error("making a cluster identity failed")]
pub struct IdentityError(#[from] rcgen::Error);

impl ClusterIdentity {
    /// A new identity, for the initialisation of a new cluster.
    ///
    /// # Errors
    /// When the key cannot be generated.
    pub fn generate() -> Result<Self, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(vec![tls_name().to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, "holdfast cluster");
        let cert = params.self_signed(&key)?;
        Ok(Self { cert_der: cert.der().to_vec(), key_der: Zeroizing::new(key.serialize_der()) })
    }

    /// The identity with this certificate (DER) and key (PKCS#8 DER), as they were stored or handed over.
    pub fn from_der(cert_der: Vec<u8>, key_der: Vec<u8>) -> Self {
        Self { cert_der, key_der: Zeroizing::new(key_der) }
    }

    /// The certificate, DER.
    pub fn cert_der(&self) -> &[u8] {
        &self.cert_der
    }

    /// The private key, PKCS#8 DER. A secret.
    pub fn key_der(&self) -> &[u8] {
        &self.key_der
    }

    pub(super) fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from(self.cert_der.clone())
    }

    pub(super) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key_der.to_vec()))
    }
}

impl fmt::Debug for ClusterIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterIdentity").finish_non_exhaustive()
    }
}

/// The name in the certificate and in the handshake; it carries no meaning.
pub(super) const fn tls_name() -> &'static str {
    "cluster.holdfast.internal"
}
