//! TLS towards a database: which certificates are believed, and how far they are checked.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use secrecy::{ExposeSecret, SecretString};

use crate::error::DriverError;

/// How far the server's certificate is checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verification {
    /// Its chain and its name.
    Full,
    /// Its chain only.
    Chain,
    /// Not at all; the connection is only encrypted.
    Nothing,
}

/// Certificates and keys as PEM text; empty = none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Material {
    pub(crate) ca: String,
    pub(crate) certificate: String,
    pub(crate) key: SecretString,
}

/// A client configuration for `material`.
pub(crate) fn client_config(
    material: &Material,
    verification: Verification,
) -> Result<ClientConfig, DriverError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| DriverError::invalid(format!("TLS: {e}")))?;
    let verifier: Arc<dyn ServerCertVerifier> = match verification {
        Verification::Nothing => Arc::new(Lenient { inner: None, provider }),
        Verification::Chain => Arc::new(Lenient { inner: Some(strict(material, &provider)?), provider }),
        Verification::Full => strict(material, &provider)?,
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    if material.certificate.is_empty() {
        return Ok(builder.with_no_client_auth());
    }
    let chain = certificates(&material.certificate, "tls_certificate")?;
    let key = PrivateKeyDer::from_pem_slice(material.key.expose_secret().as_bytes())
        .map_err(|_| DriverError::invalid("private_key holds no usable PEM key"))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|_| DriverError::invalid("the client certificate and its key do not fit together"))
}

fn strict(
    material: &Material,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, DriverError> {
    let mut roots = RootCertStore::empty();
    if material.ca.is_empty() {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    } else {
        for certificate in certificates(&material.ca, "tls_ca")? {
            roots
                .add(certificate)
                .map_err(|_| DriverError::invalid("tls_ca holds a certificate that is no CA's"))?;
        }
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build().map_err(|_| {
        DriverError::invalid("there are no certificates to check the server's against; set tls_ca")
    })
}

/// The authorities that the system believes, for a client library that takes them one by one.
pub(crate) fn system_roots() -> Vec<CertificateDer<'static>> {
    let usable = |root: &CertificateDer<'static>| RootCertStore::empty().add(root.clone()).is_ok();
    rustls_native_certs::load_native_certs().certs.into_iter().filter(usable).collect()
}

fn certificates(pem: &str, field: &str) -> Result<Vec<CertificateDer<'static>>, DriverError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match found {
        Ok(list) if !list.is_empty() => Ok(list),
        _ => Err(DriverError::invalid(format!("{field} holds no usable PEM certificate"))),
    }
}

/// Checks less than the whole, because the operator asked for it.
#[derive(Debug)]
struct Lenient {
    /// Checks the chain; none = not even that.
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        // The chain is checked before the name, so a wrong name means that the chain is good.
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
