//! A TLS client that offers what it is told to and reports what it was answered.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const DEADLINE: Duration = Duration::from_secs(30);

/// A certificate and its key.
pub struct Pair {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Pair {
    /// From two PEM files.
    pub fn read(certificate: &Path, key: &Path) -> Self {
        let certificate = CertificateDer::from_pem_file(certificate).unwrap();
        Self { certificate, key: PrivateKeyDer::from_pem_file(key).unwrap() }
    }

    /// One that nobody knows.
    pub fn stranger() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["cluster.holdfast.internal".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        Self { certificate: made.cert.der().clone(), key }
    }
}

/// What a server did.
#[derive(Debug)]
pub struct Answer {
    /// The protocol that it chose.
    pub protocol: Option<String>,
    /// Its certificate.
    pub certificate: Vec<u8>,
    /// Whether it then said anything, instead of ending the connection.
    pub let_in: bool,
}

/// Shakes hands with a server, offering one protocol, and waits for its first words.
///
/// # Errors
/// When the handshake itself fails.
pub async fn probe(address: &str, protocol: &str, own: Option<&Pair>) -> io::Result<Answer> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)));
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            builder.with_client_auth_cert(vec![own.certificate.clone()], own.key.clone_key()).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let name = ServerName::try_from("cluster.holdfast.internal").unwrap();
    let tcp = TcpStream::connect(address).await?;
    let connected = timeout(DEADLINE, TlsConnector::from(Arc::new(config)).connect(name, tcp)).await;
    let mut stream = connected.expect("the handshake ends")?;
    let (_, session) = stream.get_ref();
    let protocol = session.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
    let certificate = session.peer_certificates().unwrap()[0].to_vec();
    // With TLS 1.3 a client learns only now that its own certificate was refused.
    let first = timeout(DEADLINE, stream.read_u8()).await.expect("a server speaks first or hangs up");
    Ok(Answer { protocol, certificate, let_in: first.is_ok() })
}

/// Takes any certificate whose key the server has.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
