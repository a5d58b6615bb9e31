//! Who the hub is to spokes, on every unsealed node: read from the store, and looked up anew for each handshake.
//!
//! What must hold: a certificate of the hub that its authority did not sign is never presented; a spoke is let in
//! by the authority that is stored now, and never under a denied name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use holdfast_core::SpokeName;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::sync::watch;

use super::KIND;
use super::identity::{Identity, IdentityError};
use super::record::{CA, CaRecord, DENIED, DeniedRecord};
use crate::cached::Cached;
use crate::mount::{ENTRIES, MountEntry};
use crate::storage::{Storage, StorageError};

/// What the derived state depends on.
const WATCHED: &[&str] = &[CA, DENIED, ENTRIES];

/// It is not known who the hub is to spokes. That says nothing about whether there is a relay.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// The store cannot be read.
    #[error("the relay's authority cannot be read")]
    Read(#[source] Arc<StorageError>),
    /// What is stored cannot be used.
    #[error("the relay's authority cannot be used")]
    Use(#[source] Arc<IdentityError>),
}

/// Who the hub is to spokes, and who they are to it.
pub struct Authority {
    inner: Arc<Inner>,
}

struct Inner {
    storage: Storage,
    state: Cached<State>,
    changed: watch::Sender<u64>,
}

/// What the store says.
#[derive(Default)]
struct State {
    mount: Option<MountEntry>,
    identity: Option<Result<Arc<Identity>, Arc<IdentityError>>>,
    denied: BTreeMap<SpokeName, DeniedRecord>,
}

impl Authority {
    /// Over the whole store.
    pub fn new(storage: Storage) -> Self {
        let state = Cached::watching(&storage, WATCHED);
        let changed = watch::Sender::new(0_u64);
        let tell = changed.clone();
        storage.store().on_applied(Arc::new(move |keys| {
            if keys.is_empty() || WATCHED.iter().any(|prefix| touches(keys, prefix)) {
                tell.send_modify(|n| *n = n.wrapping_add(1));
            }
        }));
        Self { inner: Arc::new(Inner { storage, state, changed }) }
    }

    /// The identity in force; none before the authority is made, and once the mount is being removed.
    pub fn current(&self) -> Option<Arc<Identity>> {
        self.inner.identity()
    }

    /// The port for spokes; none where there is no relay, or none with an authority.
    ///
    /// # Errors
    /// When that cannot be known now.
    pub fn port(&self) -> Result<Option<u16>, AuthorityError> {
        let state = self.inner.state().map_err(|error| AuthorityError::Read(Arc::new(error)))?;
        match &state.identity {
            None => Ok(None),
            Some(Ok(identity)) => Ok(Some(identity.port())),
            Some(Err(error)) => Err(AuthorityError::Use(Arc::clone(error))),
        }
    }

    /// The relay mount, when there is one that is not being removed.
    pub fn mount(&self) -> Option<MountEntry> {
        self.inner.state().ok().and_then(|state| state.mount.clone())
    }

    /// Changes of the authority, the hub's certificate, the denied names and the mount; told also when something
    /// near them changed.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }

    /// TLS for the port of the spokes: version 1.3, HTTP/2, both sides with a certificate, looked up for each
    /// handshake.
    ///
    /// # Errors
    /// When the crypto library lacks what TLS 1.3 needs.
    pub fn tls(&self) -> Result<Arc<ServerConfig>, Error> {
        let mut config = ServerConfig::builder_with_provider(holdfast_net::server_tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(Arc::new(Spokes(Arc::clone(&self.inner))))
            .with_cert_resolver(Arc::new(Spokes(Arc::clone(&self.inner))));
        config.alpn_protocols = vec![b"h2".to_vec()];
        // A resumed session would skip the look at authority and denied names.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// The spoke for which a verified certificate was made.
    pub fn spoke_name(cert_der: &[u8]) -> Option<SpokeName> {
        let (_, cert) = x509_parser::parse_x509_certificate(cert_der).ok()?;
        let mut names = cert.subject().iter_common_name();
        let name = names.next()?.as_str().ok()?.parse().ok()?;
        names.next().is_none().then_some(name)
    }

    /// Whether a name is denied; also when that cannot be known.
    pub fn is_denied(&self, spoke: &SpokeName) -> bool {
        self.inner.is_denied(spoke)
    }

    /// The denied names.
    pub fn denied(&self) -> Result<BTreeMap<SpokeName, DeniedRecord>, StorageError> {
        Ok(self.inner.state()?.denied.clone())
    }
}

impl Inner {
    fn identity(&self) -> Option<Arc<Identity>> {
        self.state().ok()?.identity.clone()?.ok()
    }

    fn is_denied(&self, spoke: &SpokeName) -> bool {
        self.state().map_or(true, |state| state.denied.contains_key(spoke))
    }

    fn state(&self) -> Result<Arc<State>, StorageError> {
        self.state.load(|| {
            let mounts = self.storage.scan::<MountEntry>(ENTRIES, None, usize::MAX)?;
            let mut mounts = mounts.into_iter().map(|(_, stored)| stored.value);
            let Some(mount) = mounts.find(|mount| mount.kind == KIND && !mount.tainted) else {
                return Ok(State::default());
            };
            let record = self.storage.get::<CaRecord>(CA)?;
            let identity = record.map(|stored| Identity::open(&stored.value).map(Arc::new).map_err(Arc::new));
            if let Some(Err(error)) = &identity {
                tracing::error!(%error, "the relay's authority cannot be used");
            }
            let denied = self.storage.scan::<DeniedRecord>(DENIED, None, usize::MAX)?;
            let named = |(key, stored): (String, crate::storage::Stored<DeniedRecord>)| {
                Some((key.strip_prefix(DENIED)?.parse().ok()?, stored.value))
            };
            Ok(State { mount: Some(mount), identity, denied: denied.into_iter().filter_map(named).collect() })
        })
    }
}

fn touches(keys: &BTreeSet<String>, prefix: &str) -> bool {
    let from = (Bound::Included(prefix), Bound::Unbounded);
    keys.range::<str, _>(from).next().is_some_and(|key| key.starts_with(prefix))
}

/// The two looks that each handshake takes at the store.
struct Spokes(Arc<Inner>);

impl std::fmt::Debug for Spokes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Spokes")
    }
}

impl Spokes {
    fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, Error> {
        let identity = self.0.identity().ok_or_else(|| Error::General("there is no authority".into()))?;
        Ok(identity.verifier())
    }
}

impl ResolvesServerCert for Spokes {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.identity().map(|identity| identity.hub_key())
    }
}

impl ClientCertVerifier for Spokes {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier()?.verify_client_cert(end_entity, intermediates, now)?;
        // A denied name gets this far and no further: refused here, it could not be told why.
        match Authority::spoke_name(end_entity) {
            Some(_) => Ok(verified),
            None => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        Err(Error::General("the port for spokes speaks TLS 1.3 only".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        self.verifier()?.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        holdfast_net::server_tls::provider().signature_verification_algorithms.supported_schemes()
    }
}

/// What verifies certificates of one authority.
pub(super) fn verifier(ca: CertificateDer<'static>) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca)?;
    let provider = holdfast_net::server_tls::provider();
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map(|verifier| verifier as Arc<dyn ClientCertVerifier>)
        .map_err(|error| Error::General(error.to_string()))
}
