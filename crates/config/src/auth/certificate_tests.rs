//! What is an identity and what is not, with real handshakes: clients of all sorts against the three `client_auth` modes.

use std::sync::Arc;

use holdfast_core::Wall;
use http::HeaderMap;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, ServerConfig, ServerConnection,
    SignatureScheme,
};

use super::*;
use crate::config::{AuthSettings, ClientAuth, ListenerSettings, ListenerTls, SubjectFrom};

const NOW: Wall = Wall::from_micros(1_700_000_000_000_000);

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let der = params.self_signed(&key).unwrap().der().clone();
    Authority { issuer: Issuer::new(params, key), der }
}

type Client = (CertificateDer<'static>, PrivateKeyDer<'static>);

fn params(cn: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["svc.example".to_owned()]).unwrap();
    params.subject_alt_names.push(SanType::URI("spiffe://example/svc".try_into().unwrap()));
    params.distinguished_name = rcgen::DistinguishedName::new();
    cn.into_iter().for_each(|cn| params.distinguished_name.push(DnType::CommonName, cn));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn signed(params: CertificateParams, by: &Authority) -> Client {
    let key = KeyPair::generate().unwrap();
    let der = params.signed_by(&key, &by.issuer).unwrap().der().clone();
    (der, key_of(&key))
}

fn key_of(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::try_from(key.serialize_der()).unwrap()
}

/// Trusts every server: this is about clients.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        holdfast_net::server_tls::provider().signature_verification_algorithms.supported_schemes()
    }
}

fn server_config(ca: &Authority, mode: ClientAuth) -> Arc<ServerConfig> {
    let provider = holdfast_net::server_tls::provider;
    let mut roots = RootCertStore::empty();
    roots.add(ca.der.clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let builder =
        ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let builder = match mode {
        ClientAuth::None => builder.with_no_client_auth(),
        ClientAuth::Request => {
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
        }
        ClientAuth::Require => builder.with_client_cert_verifier(verifier.build().unwrap()),
    };
    let (cert, key) = signed(CertificateParams::new(vec!["server".to_owned()]).unwrap(), ca);
    Arc::new(builder.with_single_cert(vec![cert], key).unwrap())
}

fn client_config(
    client: Option<&Client>,
    version: &'static rustls::SupportedProtocolVersion,
) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(holdfast_net::server_tls::provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer));
    Arc::new(match client {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => builder.with_client_auth_cert(vec![cert.clone()], key.clone_key()).unwrap(),
    })
}

/// What a server knows of the client after the handshake; none when that failed.
fn handshake(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> Option<PeerFacts> {
    let mut server = ServerConnection::new(server).unwrap();
    let mut client = ClientConnection::new(client, ServerName::try_from("server").unwrap()).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut bytes = &wire[..];
        while !bytes.is_empty() {
            server.read_tls(&mut bytes).unwrap();
            server.process_new_packets().ok()?;
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut bytes = &wire[..];
        while !bytes.is_empty() {
            client.read_tls(&mut bytes).unwrap();
            client.process_new_packets().ok()?;
        }
    }
    let chain = server.peer_certificates();
    let certificate = chain
        .and_then(|chain| chain.first())
        .map(|first| Arc::new(ClientCertificate::of_verified(first).unwrap()));
    Some(PeerFacts { certificate, credentials: None })
}

fn authenticator(change: impl Fn(&mut AuthSettings)) -> Authenticator {
    let mut settings = AuthSettings { methods: vec!["mtls".to_owned()], ..AuthSettings::default() };
    change(&mut settings);
    let tls = ListenerTls {
        cert: "c".into(),
        key: "k".into(),
        client_ca: Some("ca".into()),
        client_auth: ClientAuth::None,
    };
    let listener = ListenerSettings { kind: "tcp".to_owned(), tls: Some(tls), ..ListenerSettings::default() };
    Authenticator::new(Some(&settings), &[listener]).unwrap()
}

fn ask(authenticator: &Authenticator, peer: &PeerFacts, now: Wall) -> String {
    match authenticator.authenticate(&RequestFacts { headers: &HeaderMap::new(), peer }, now) {
        Ok(identity) => identity.subject.to_string(),
        Err(rejection) => format!("{} {}", rejection.answer().0.http_status(), rejection.reason()),
    }
}

#[test]
fn only_a_chain_that_the_tls_layer_verified_is_an_identity() {
    let (ca, foreign) = (authority(), authority());
    let own_key = KeyPair::generate().unwrap();
    let self_signed = params(Some("svc")).self_signed(&own_key).unwrap().der().clone();
    let mut expired = params(Some("svc"));
    (expired.not_before, expired.not_after) =
        (rcgen::date_time_ymd(2019, 1, 1), rcgen::date_time_ymd(2020, 1, 1));
    let mut future = params(Some("svc"));
    (future.not_before, future.not_after) =
        (rcgen::date_time_ymd(2200, 1, 1), rcgen::date_time_ymd(2201, 1, 1));
    let mut of_servers = params(Some("svc"));
    of_servers.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let stolen = (signed(params(Some("svc")), &ca).0, key_of(&KeyPair::generate().unwrap()));
    let clients = [
        ("none", None),
        ("good", Some(signed(params(Some("svc")), &ca))),
        ("foreign", Some(signed(params(Some("svc")), &foreign))),
        ("self-signed", Some((self_signed, key_of(&own_key)))),
        ("expired", Some(signed(expired, &ca))),
        ("future", Some(signed(future, &ca))),
        ("of servers", Some(signed(of_servers, &ca))),
    ];
    let authenticator = authenticator(|_| {});
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for mode in [ClientAuth::None, ClientAuth::Request, ClientAuth::Require] {
            let server = server_config(&ca, mode);
            for (sort, client) in &clients {
                let peer = handshake(Arc::clone(&server), client_config(client.as_ref(), version));
                let answer = peer.map(|peer| ask(&authenticator, &peer, NOW));
                let expected = match (mode, *sort) {
                    (ClientAuth::None, _) | (ClientAuth::Request, "none") => Some("401 mtls=no_credential"),
                    (_, "good") => Some("svc"),
                    _ => None,
                };
                assert_eq!(answer.as_deref(), expected, "{sort} with {mode:?} over {version:?}");
            }
        }
    }
    // A certificate without its key cannot even be loaded by a client that is honest about it.
    let honest = ClientConfig::builder_with_provider(holdfast_net::server_tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_client_auth_cert(vec![stolen.0], stolen.1);
    assert!(honest.is_err());
}

fn peer(params: CertificateParams) -> PeerFacts {
    let (der, _) = signed(params, &authority());
    PeerFacts {
        certificate: Some(Arc::new(ClientCertificate::of_verified(&der).unwrap())),
        credentials: None,
    }
}

#[test]
fn the_subject_comes_from_where_it_is_configured() {
    let by = |from| authenticator(move |settings| settings.mtls.subject_from = from);
    let full = peer(params(Some("svc")));
    assert_eq!(ask(&by(SubjectFrom::Cn), &full, NOW), "svc");
    assert_eq!(ask(&by(SubjectFrom::DnsSan), &full, NOW), "svc.example");
    assert_eq!(ask(&by(SubjectFrom::UriSan), &full, NOW), "spiffe://example/svc");
    let nameless = "403 mtls=no_subject";
    assert_eq!(ask(&by(SubjectFrom::Cn), &peer(params(None)), NOW), nameless);
    assert_eq!(ask(&by(SubjectFrom::Cn), &peer(params(Some(""))), NOW), nameless);
    let mut bare = params(Some("svc"));
    bare.subject_alt_names.clear();
    let bare = peer(bare);
    assert_eq!(ask(&by(SubjectFrom::DnsSan), &bare, NOW), nameless);
    assert_eq!(ask(&by(SubjectFrom::UriSan), &bare, NOW), nameless);
    assert_eq!(ask(&by(SubjectFrom::Cn), &bare, NOW), "svc");
}

#[test]
fn lists_let_in_who_is_on_either() {
    let full = peer(params(Some("svc")));
    let text = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (cn, san, expected) in [
        (&["svc"][..], &[][..], "svc"),
        (&["other"], &[], "403 mtls=not_allowed"),
        (&["SVC"], &[], "403 mtls=not_allowed"),
        (&[], &["svc.example"], "svc"),
        (&[], &["spiffe://example/svc"], "svc"),
        (&[], &["svc"], "403 mtls=not_allowed"),
        (&["other"], &["svc.example"], "svc"),
        (&["svc.example"], &["svc"], "403 mtls=not_allowed"),
    ] {
        let listed = authenticator(|settings| {
            (settings.mtls.allow_cn, settings.mtls.allow_san) = (text(cn), text(san));
        });
        assert_eq!(ask(&listed, &full, NOW), expected, "{cn:?} {san:?}");
    }
}

#[test]
fn an_identity_ends_with_its_certificate_though_the_connection_goes_on() {
    let mut short = params(Some("svc"));
    short.not_after = rcgen::date_time_ymd(2023, 11, 15);
    let (peer, authenticator) = (peer(short), authenticator(|_| {}));
    let end = crate::date::parse("2023-11-15").unwrap();
    let identity =
        authenticator.authenticate(&RequestFacts { headers: &HeaderMap::new(), peer: &peer }, NOW).unwrap();
    assert_eq!(identity.expires, Some(end));
    let sans: Vec<&str> = identity.sans.iter().map(|san| &**san).collect();
    assert_eq!(sans, ["svc.example", "spiffe://example/svc"]);
    assert_eq!(authenticator.again(&identity, NOW).unwrap(), identity);
    assert_eq!(ask(&authenticator, &peer, end), "401 mtls=expired");
    assert_eq!(authenticator.again(&identity, end).unwrap_err().reason(), "mtls=expired");
}

#[test]
fn what_is_no_certificate_is_refused() {
    let (der, _) = signed(params(Some("svc")), &authority());
    for bad in [&b""[..], b"certificate", &der[..der.len() / 2]] {
        assert_eq!(ClientCertificate::of_verified(bad), Err(BadCertificate));
    }
    let mut two = params(Some("svc"));
    two.subject_alt_names = vec![SanType::Rfc822Name("a@example".try_into().unwrap())];
    let (der, _) = signed(two, &authority());
    let read = ClientCertificate::of_verified(&der).unwrap();
    assert_eq!((read.dns.len(), read.uris.len(), &*read.sans[0]), (0, 0, "a@example"));
}
