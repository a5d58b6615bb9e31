//! The stored authority, opened: ready for handshakes and for signing.

use std::net::IpAddr;
use std::sync::Arc;

use holdfast_net::enrol;
use rcgen::Issuer;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::ExposeSecret as _;

use super::record::CaRecord;
use super::{authority, ca};

/// A stored authority cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A part of it is not what it should be.
    #[error("the stored {0} cannot be read")]
    Part(&'static str),
    /// The hub's certificate is not of this authority.
    #[error("the hub's certificate does not chain to the authority")]
    Chain,
    /// The hub's certificate and key do not fit.
    #[error("the hub's certificate cannot be used")]
    Tls(#[source] rustls::Error),
}

/// `host:port`, where a host of IPv6 stands in brackets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port; never 0.
    pub port: u16,
}

impl Endpoint {
    /// Reads one; the error is the cause, for a person.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (host, port) = text.rsplit_once(':').ok_or("the port is missing")?;
        let port = port.parse::<u16>().ok().filter(|port| *port != 0).ok_or("the port is not 1 to 65535")?;
        let bare = match host.strip_prefix('[') {
            Some(rest) => {
                let bare = rest.strip_suffix(']').ok_or("the bracket is not closed")?;
                bare.parse::<std::net::Ipv6Addr>()
                    .map_err(|_| "what stands in brackets is no IPv6 address")?;
                bare
            }
            None if host.contains(':') => return Err("an IPv6 address needs brackets"),
            None => host,
        };
        if !is_host(bare) {
            return Err("the host is not a name or an address");
        }
        Ok(Self { host: bare.to_owned(), port })
    }
}

/// Whether a text can stand for a host in a certificate.
pub fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    text.parse::<IpAddr>().is_ok() || (text.len() <= 253 && text.split('.').all(label))
}

/// The authority, the hub's certificate under it, and where the hub is.
pub struct Identity {
    /// The authority's certificate.
    pub ca: CertificateDer<'static>,
    /// The same as PEM.
    pub ca_pem: String,
    /// Its pin.
    pub ca_hash: String,
    /// When it ends, in seconds since 1970.
    pub ca_not_after: i64,
    /// When the hub's certificate began, in seconds since 1970.
    pub hub_not_before: i64,
    /// When it ends.
    pub hub_not_after: i64,
    /// Where spokes dial.
    pub endpoint: Endpoint,
    /// The same as it was given.
    pub endpoint_text: String,
    /// The hosts of members that the hub's certificate is for.
    pub member_hosts: Vec<String>,
    hub: Arc<CertifiedKey>,
    verifier: Arc<dyn ClientCertVerifier>,
    issuer: ca::Authority,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("ca_hash", &self.ca_hash)
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// Opens a record, and refuses one whose parts do not fit each other.
    pub fn open(record: &CaRecord) -> Result<Self, IdentityError> {
        let part = IdentityError::Part;
        let ca = certificate(&record.ca_cert_pem).ok_or(part("authority"))?;
        let hub = certificate(&record.hub_cert_pem).ok_or(part("hub certificate"))?;
        let ca_not_after = lifetime(&ca).ok_or(part("authority"))?.1;
        let (hub_not_before, hub_not_after) = lifetime(&hub).ok_or(part("hub certificate"))?;
        if !signed_by(&hub, &ca) {
            return Err(IdentityError::Chain);
        }
        let key = ca::Key::from_pem(&record.ca_key_pem).ok_or(part("authority's key"))?;
        Ok(Self {
            ca_hash: enrol::pin(&ca).map_err(|_| part("authority"))?,
            issuer: Issuer::from_ca_cert_der(&ca, key).map_err(|_| part("authority"))?,
            verifier: authority::verifier(ca.clone()).map_err(IdentityError::Tls)?,
            hub: hub_key(hub, record)?,
            endpoint: Endpoint::parse(&record.hub_endpoint).map_err(|_| part("endpoint"))?,
            endpoint_text: record.hub_endpoint.clone(),
            member_hosts: record.member_hosts.clone(),
            ca_pem: record.ca_cert_pem.clone(),
            ca,
            ca_not_after,
            hub_not_before,
            hub_not_after,
        })
    }

    /// The port that the hub listens at for spokes.
    pub fn port(&self) -> u16 {
        self.endpoint.port
    }

    /// The hub's certificate and key.
    pub fn hub_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.hub)
    }

    /// What verifies the certificates of spokes.
    pub fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.verifier)
    }

    /// What signs.
    pub(super) fn issuer(&self) -> &ca::Authority {
        &self.issuer
    }
}

/// The one certificate in a PEM text.
fn certificate(pem: &str) -> Option<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes()).ok()
}

/// When a certificate begins and ends, in seconds since 1970.
fn lifetime(der: &[u8]) -> Option<(i64, i64)> {
    let (_, cert) = x509_parser::parse_x509_certificate(der).ok()?;
    Some((cert.validity().not_before.timestamp(), cert.validity().not_after.timestamp()))
}

fn signed_by(der: &[u8], ca: &[u8]) -> bool {
    let parse = x509_parser::parse_x509_certificate;
    let (Ok((_, cert)), Ok((_, ca))) = (parse(der), parse(ca)) else { return false };
    cert.issuer() == ca.subject() && cert.verify_signature(Some(ca.public_key())).is_ok()
}

fn hub_key(cert: CertificateDer<'static>, record: &CaRecord) -> Result<Arc<CertifiedKey>, IdentityError> {
    let key = PrivateKeyDer::from_pem_slice(record.hub_key_pem.expose_secret().as_bytes())
        .map_err(|_| IdentityError::Part("hub's key"))?;
    let provider = holdfast_net::server_tls::provider();
    CertifiedKey::from_der(vec![cert], key, &provider).map(Arc::new).map_err(IdentityError::Tls)
}
