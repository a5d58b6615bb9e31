//! Handshakes at the port of the spokes.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use serde_json::json;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::super::authority::Authority;
use super::{Fixture, csr, der, name, text};

/// What a spoke presents.
type Pair = Option<(Vec<u8>, Vec<u8>)>;

async fn enrolled(fixture: &Fixture, spoke: &str) -> Pair {
    let (_, token) = fixture.token(json!({})).await;
    let (csr, key) = csr(spoke);
    let got = fixture.enrol(&token, spoke, &csr).await.unwrap();
    Some((der(&text(&got, "cert_pem")), key.serialize_der()))
}

fn client(ca: &CertificateDer<'static>, pair: Pair) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(holdfast_net::server_tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
            builder.with_client_auth_cert(vec![CertificateDer::from(cert)], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// The name that the hub takes the client for, if it lets it in.
async fn shake(fixture: &Fixture, config: ClientConfig) -> Option<String> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let acceptor = TlsAcceptor::from(fixture.hub.relay.authority.tls().unwrap());
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost").unwrap();
    let (accepted, _connected) = tokio::join!(acceptor.accept(far), connector.connect(name, near));
    let accepted = accepted.ok()?;
    let (_, connection) = accepted.get_ref();
    assert_eq!(connection.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    assert_eq!(connection.alpn_protocol(), Some(&b"h2"[..]));
    Authority::spoke_name(connection.peer_certificates()?.first()?).map(|name| name.to_string())
}

#[tokio::test]
async fn a_spoke_is_known_by_its_certificate() {
    let fixture = Fixture::ready().await;
    let ca = fixture.hub.relay.authority.current().unwrap().ca.clone();
    let pair = enrolled(&fixture, "spoke-1").await;
    assert_eq!(shake(&fixture, client(&ca, pair.clone())).await.as_deref(), Some("spoke-1"));
    assert_eq!(shake(&fixture, client(&ca, None)).await, None);
    let strangers = Fixture::ready().await;
    assert_eq!(shake(&fixture, client(&ca, enrolled(&strangers, "spoke-1").await)).await, None);

    // The hub's own certificate is for the other side.
    let record = fixture.cx.storage.get::<super::super::record::CaRecord>("relay/ca").unwrap().unwrap().value;
    let key = rcgen::KeyPair::from_pem(secrecy::ExposeSecret::expose_secret(&record.hub_key_pem)).unwrap();
    let hub = Some((der(&record.hub_cert_pem), key.serialize_der()));
    assert_eq!(shake(&fixture, client(&ca, hub)).await, None);

    // That of the cluster is for its own port.
    let cluster = holdfast_net::cluster::ClusterIdentity::generate().unwrap();
    let cluster = Some((cluster.cert_der().to_vec(), cluster.key_der().to_vec()));
    assert_eq!(shake(&fixture, client(&ca, cluster)).await, None);

    // A denied one is known all the same: the service behind refuses it, and tells it why.
    fixture.write("denied-spokes/spoke-1", json!({})).await.unwrap();
    assert!(fixture.hub.relay.authority.is_denied(&name("spoke-1")));
    assert_eq!(shake(&fixture, client(&ca, pair)).await.as_deref(), Some("spoke-1"));
    fixture.call(crate::logical::Operation::Delete, "denied-spokes/spoke-1", json!({})).await.unwrap();
    assert!(!fixture.hub.relay.authority.is_denied(&name("spoke-1")));
}

#[tokio::test]
async fn a_rotation_counts_from_the_next_handshake_on() {
    let fixture = Fixture::ready().await;
    let ca = fixture.hub.relay.authority.current().unwrap().ca.clone();
    let pair = enrolled(&fixture, "spoke-1").await;
    fixture.write("ca/rotate", json!({})).await.unwrap();
    assert!(shake(&fixture, client(&ca, pair.clone())).await.is_some(), "the authority is the same");
    fixture.write("ca/rotate", json!({"full": true})).await.unwrap();
    let new = fixture.hub.relay.authority.current().unwrap().ca.clone();
    assert_eq!(shake(&fixture, client(&new, pair)).await, None);
    assert!(shake(&fixture, client(&new, enrolled(&fixture, "spoke-1").await)).await.is_some());
}

#[tokio::test]
async fn older_versions_of_tls_are_refused() {
    let fixture = Fixture::ready().await;
    let ca = fixture.hub.relay.authority.current().unwrap().ca.clone();
    let mut roots = RootCertStore::empty();
    roots.add(ca).unwrap();
    let config = ClientConfig::builder_with_provider(holdfast_net::server_tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    assert_eq!(shake(&fixture, config).await, None);
}
