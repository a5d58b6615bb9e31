//! What the connection knows of its far end, read once for each connection.

use std::sync::Arc;

use holdfast_core::Wall;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The far end of a connection, as far as it concerns authentication.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PeerFacts {
    /// The certificate of a chain that the TLS layer verified against the listener's `client_ca`; never one that was
    /// only shown.
    pub certificate: Option<Arc<ClientCertificate>>,
    /// The credentials of the peer of a Unix socket, as of accept.
    pub credentials: Option<UnixCredentials>,
}

/// `SO_PEERCRED`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnixCredentials {
    /// The user.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
    /// The process.
    pub pid: i32,
}

/// What a client certificate says of its holder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClientCertificate {
    /// The common name, when there is exactly one.
    pub cn: Option<Arc<str>>,
    /// The DNS names, in order.
    pub dns: Vec<Arc<str>>,
    /// The URIs, in order.
    pub uris: Vec<Arc<str>>,
    /// All alternative names that are text: DNS names, URIs and mail addresses.
    pub sans: Arc<[Arc<str>]>,
    /// When it ends.
    pub not_after: Wall,
}

/// The bytes are no certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the client certificate cannot be read")]
pub struct BadCertificate;

impl ClientCertificate {
    /// Reads the first certificate of a chain that the TLS layer has verified, in DER.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of_verified(der: &[u8]) -> Result<Self, BadCertificate> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| BadCertificate)?;
        let mut names = certificate.subject().iter_common_name().map(|name| name.as_str());
        let cn = match (names.next(), names.next()) {
            (Some(Ok(name)), None) if !name.is_empty() => Some(Arc::from(name)),
            _ => None,
        };
        let (mut dns, mut uris, mut sans) = (Vec::new(), Vec::new(), Vec::<Arc<str>>::new());
        let extension = certificate.subject_alternative_name().map_err(|_| BadCertificate)?;
        for name in extension.iter().flat_map(|extension| &extension.value.general_names) {
            let (text, list) = match name {
                GeneralName::DNSName(text) => (*text, Some(&mut dns)),
                GeneralName::URI(text) => (*text, Some(&mut uris)),
                GeneralName::RFC822Name(text) => (*text, None),
                _ => continue,
            };
            let text: Arc<str> = Arc::from(text);
            sans.push(Arc::clone(&text));
            list.into_iter().for_each(|list| list.push(Arc::clone(&text)));
        }
        let end = certificate.validity().not_after.timestamp();
        let not_after = Wall::from_micros(end.saturating_mul(1_000_000));
        Ok(Self { cn, dns, uris, sans: sans.into(), not_after })
    }
}
