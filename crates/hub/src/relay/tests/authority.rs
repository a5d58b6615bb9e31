//! The authority, the hub's certificate, and their changes.

use std::collections::BTreeSet;

use serde_json::json;
use x509_parser::extensions::{GeneralName, ParsedExtension};

use super::super::change;
use super::super::identity::{Endpoint, Identity};
use super::super::record::{ALL, CA, CaRecord};
use super::{Fixture, free_port, text};
use crate::cluster::{NodeAddress, NodeName};
use crate::logical::Data;
use crate::mount::change::{Family, disable, enable};
use crate::store::Store as _;
use crate::wall;

/// Names and addresses in the hub's certificate.
fn hosts(fixture: &Fixture) -> BTreeSet<String> {
    let identity = fixture.hub.relay.authority.current().unwrap();
    let hub = identity.hub_key();
    let (_, cert) = x509_parser::parse_x509_certificate(hub.cert.first().unwrap()).unwrap();
    let names = cert.subject_alternative_name().unwrap().unwrap().value;
    let shown = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => (*name).to_owned(),
        GeneralName::IPAddress(bytes) => bytes.iter().map(u8::to_string).collect::<Vec<_>>().join("."),
        other => panic!("{other:?}"),
    };
    names.general_names.iter().map(shown).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn there_is_one_relay_mount() {
    let fixture = Fixture::new().await;
    let data = Data::new(json!({"type": "relay"}).as_object().cloned().unwrap());
    let refused = enable(&fixture.cx, Family::Secret, "other", &data).await.unwrap_err();
    assert_eq!(
        (refused.status(), refused.to_string().as_str()),
        (400, "a relay mount exists already at relay/")
    );
    disable(&fixture.cx, Family::Secret, "relay").await.unwrap();
    assert!(fixture.hub.relay.authority.mount().is_none());
    enable(&fixture.cx, Family::Secret, "other", &data).await.unwrap();
}

#[tokio::test]
async fn what_init_is_given_is_checked_before_anything_is_saved() {
    let fixture = Fixture::new().await;
    let not_yet = (400, "CA not initialized; run \"holdfast relay init\"".to_owned());
    assert_eq!(fixture.read("ca/info").await, Err(not_yet.clone()));
    assert_eq!(fixture.write("ca/rotate", json!({})).await, Err(not_yet));
    let refused = async |body| fixture.write("ca/init", body).await.unwrap_err();
    assert_eq!(refused(json!({})).await, (400, "hub_endpoint is required".into()));
    for (endpoint, cause) in [
        ("hub", "the port is missing"),
        ("hub:0", "the port is not 1 to 65535"),
        ("hub:70000", "the port is not 1 to 65535"),
        ("::1:50053", "an IPv6 address needs brackets"),
        ("[::1:50053", "the bracket is not closed"),
        ("[hub]:50053", "what stands in brackets is no IPv6 address"),
        (":50053", "the host is not a name or an address"),
        ("a b:50053", "the host is not a name or an address"),
    ] {
        let text = format!("hub_endpoint must be host:port ({cause})");
        assert_eq!(refused(json!({"hub_endpoint": endpoint})).await, (400, text), "{endpoint}");
    }
    let body = json!({"hub_endpoint": "a:1", "hub_dns_sans": "10.0.0.1"});
    assert_eq!(refused(body).await.1, "hub_dns_sans: \"10.0.0.1\" is not a DNS name");
    let body = json!({"hub_endpoint": "a:1", "hub_ip_sans": ["x"]});
    assert_eq!(refused(body).await.1, "hub_ip_sans: \"x\" is not an IP address");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("127.0.0.1:{}", taken.local_addr().unwrap().port());
    let (status, text) = refused(json!({"hub_endpoint": endpoint})).await;
    assert!(status == 400 && text.starts_with("start relay listener: "), "{text}");
    assert_eq!(fixture.cx.storage.count(ALL).unwrap(), 0);
    assert_eq!(fixture.hub.relay.listener.port(), None);
}

#[tokio::test]
async fn an_authority_is_made_once_unless_forced() {
    let fixture = Fixture::new().await;
    let changes = fixture.hub.relay.authority.watch();
    let port = free_port();
    let body = json!({"hub_endpoint": format!("hub.example:{port}"), "hub_dns_sans": "a.example, b.example",
        "hub_ip_sans": ["192.0.2.1"]});
    let made = fixture.write("ca/init", body.clone()).await.unwrap();
    assert!(changes.has_changed().unwrap());
    assert_eq!(text(&made, "hub_endpoint"), format!("hub.example:{port}"));
    let info = fixture.read("ca/info").await.unwrap();
    assert_eq!(info["ca_cert_hash"], made["ca_cert_hash"]);
    assert_eq!(info["hub_dns_sans"], json!(["a.example", "b.example"]));
    assert_eq!(info["listener_port"], port);
    assert_eq!(text(&info, "ca_subject"), "CN=holdfast-spoke-ca, O=holdfast-spokes");
    assert_eq!(text(&info, "hub_cert_subject"), "CN=holdfast-hub");
    assert_eq!(hosts(&fixture), set(&["hub.example", "a.example", "b.example", "192.0.2.1", "127.0.0.1"]));
    let again = fixture.write("ca/init", body.clone()).await.unwrap_err();
    assert_eq!(again, (400, "CA already initialized; pass force=true to regenerate".into()));
    let mut forced = body;
    forced["force"] = json!("true");
    let new = fixture.write("ca/init", forced).await.unwrap();
    assert_ne!(new["ca_cert_hash"], made["ca_cert_hash"]);
    let raw = fixture.store.read(CA).unwrap().unwrap().value;
    assert!(!raw.windows(8).any(|w| w == b"PRIVATE " || w == b"hub_cert"), "it is encrypted");
}

#[tokio::test]
async fn the_certificates_are_what_they_are_said_to_be() {
    let fixture = Fixture::ready().await;
    let identity = fixture.hub.relay.authority.current().unwrap();
    let (_, ca) = x509_parser::parse_x509_certificate(&identity.ca).unwrap();
    let basic = ca.basic_constraints().unwrap().unwrap().value;
    assert!(basic.ca && basic.path_len_constraint == Some(0));
    let usage = ca.key_usage().unwrap().unwrap().value;
    assert!(usage.key_cert_sign() && usage.crl_sign() && usage.digital_signature());
    let now = wall::now_unix();
    let from = ca.validity().not_before.timestamp();
    assert!((now - 330..=now - 300).contains(&from), "five minutes before now");
    assert!((identity.ca_not_after - now - 3650 * 86_400).abs() < 60);
    assert!((identity.hub_not_after - now - 365 * 86_400).abs() < 60);
    let hub = identity.hub_key();
    let (_, cert) = x509_parser::parse_x509_certificate(hub.cert.first().unwrap()).unwrap();
    let usage = cert.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.server_auth && !usage.client_auth && !usage.any);
    assert!(cert.raw_serial().iter().any(|byte| *byte != 0) && cert.raw_serial().len() >= 14);
    let known =
        cert.extensions().iter().all(|e| !matches!(e.parsed_extension(), ParsedExtension::ParseError { .. }));
    assert!(known);
}

#[tokio::test]
async fn the_hubs_certificate_rotates_alone_or_with_the_authority() {
    let fixture = Fixture::ready().await;
    let before = fixture.hub.relay.authority.current().unwrap();
    let hub = fixture.write("ca/rotate", json!({"hub_dns_sans": ["x.example"]})).await.unwrap();
    assert_eq!((text(&hub, "rotated"), text(&hub, "ca_cert_hash")), ("hub".into(), before.ca_hash.clone()));
    assert!(hub.get("warnings").is_none() && hosts(&fixture).contains("x.example"));
    let between = fixture.hub.relay.authority.current().unwrap();
    assert_ne!(between.hub_key().cert, before.hub_key().cert);
    let all = fixture.write("ca/rotate", json!({"full": true})).await.unwrap();
    assert_eq!(text(&all, "rotated"), "ca+hub");
    assert_ne!(text(&all, "ca_cert_hash"), before.ca_hash);
    assert!(all["warnings"][0].as_str().unwrap().contains("every spoke must join again"));
    assert!(hosts(&fixture).contains("x.example"), "what was asked for is carried forward");
    assert_eq!(fixture.hub.relay.authority.current().unwrap().endpoint, before.endpoint);
}

#[tokio::test]
async fn the_endpoint_moves_and_its_port_does_not() {
    let fixture = Fixture::ready().await;
    let before = fixture.hub.relay.authority.current().unwrap();
    let port = before.port();
    fixture.write("ca/rotate", json!({"hub_dns_sans": ["kept.example"]})).await.unwrap();
    let other = json!({"hub_endpoint": format!("new.example:{}", port.wrapping_add(1).max(1))});
    let refused = fixture.write("ca/update-endpoint", other).await.unwrap_err();
    assert_eq!(refused, (400, format!("the port of hub_endpoint must stay {port}")));
    let moved = json!({"hub_endpoint": format!("new.example:{port}"), "hub_ip_sans": "192.0.2.9"});
    let info = fixture.write("ca/update-endpoint", moved).await.unwrap();
    assert_eq!(text(&info, "hub_endpoint"), format!("new.example:{port}"));
    assert_eq!(text(&info, "ca_cert_hash"), before.ca_hash);
    let hosts = hosts(&fixture);
    assert!(hosts.is_superset(&set(&["new.example", "kept.example", "192.0.2.9"])), "{hosts:?}");
    assert!(!hosts.contains("localhost"), "{hosts:?}");
}

#[tokio::test]
async fn changes_at_once_follow_one_another() {
    let fixture = Fixture::ready().await;
    let rotations = (0..8).map(|_| fixture.write("ca/rotate", json!({"full": true})));
    let all = futures_util::future::join_all(rotations).await;
    let hashes: BTreeSet<_> = all.into_iter().map(|made| text(&made.unwrap(), "ca_cert_hash")).collect();
    assert_eq!(hashes.len(), 8);
    assert!(hashes.contains(&fixture.hub.relay.authority.current().unwrap().ca_hash));
}

#[tokio::test]
async fn the_hubs_certificate_follows_the_members_and_its_age() {
    let fixture = Fixture::ready().await;
    let (cx, relay) = (&fixture.cx, &fixture.hub.relay);
    assert!(!change::reissue_if_needed(cx, true).await.unwrap());
    fixture.store.take_looks();
    assert!(!change::reissue_if_needed(cx, true).await.unwrap());
    assert_eq!(fixture.store.take_looks().reads, 0, "the keys are left alone while nothing is due");
    let address = NodeAddress { cluster: "node-2.example:8201".into(), api: "http://x".into() };
    let joined = NodeName("node-2".into());
    cx.hub.cluster.add(joined.clone(), address, false).await.unwrap();
    relay.tell_hosts(set(&["relay-2.example", "0.0.0.0"]));
    let before = relay.authority.current().unwrap();
    assert!(change::reissue_if_needed(cx, false).await.unwrap());
    assert_eq!(relay.authority.current().unwrap().ca_hash, before.ca_hash);
    assert_eq!(hosts(&fixture), set(&["localhost", "127.0.0.1", "node-2.example", "relay-2.example"]));
    cx.hub.cluster.remove(&joined).await.unwrap();
    relay.tell_hosts(BTreeSet::new());
    assert!(
        !change::reissue_if_needed(cx, false).await.unwrap(),
        "a host goes only once members had time to tell"
    );
    assert!(change::reissue_if_needed(cx, true).await.unwrap());
    assert_eq!(hosts(&fixture), set(&["localhost", "127.0.0.1"]));

    let record = cx.storage.get::<CaRecord>(CA).unwrap().unwrap().value;
    let identity = Identity::open(&record).unwrap();
    let due = |days: i64| change::is_due(cx, &identity, true, wall::now_unix() + days * 86_400);
    assert_eq!((due(180), due(184)), (false, true));
}

#[tokio::test]
async fn a_hub_certificate_of_another_authority_is_never_used() {
    let (one, two) = (Fixture::ready().await, Fixture::ready().await);
    let stored = |fixture: &Fixture| fixture.cx.storage.get::<CaRecord>(CA).unwrap().unwrap().value;
    let (first, second) = (stored(&one), stored(&two));
    let mixed = CaRecord {
        hub_cert_pem: second.hub_cert_pem.clone(),
        hub_key_pem: second.hub_key_pem,
        ..first.clone()
    };
    assert!(Identity::open(&mixed).is_err());
    one.cx.storage.put(CA, &mixed).await.unwrap();
    assert!(one.hub.relay.authority.current().is_none());
    let other_key = CaRecord { hub_key_pem: first.ca_key_pem.clone(), ..first };
    assert!(Identity::open(&other_key).is_err());
}

#[tokio::test]
async fn all_goes_with_the_mount() {
    let fixture = Fixture::ready().await;
    fixture.token(json!({})).await;
    disable(&fixture.cx, Family::Secret, "relay").await.unwrap();
    assert!(fixture.hub.relay.authority.current().is_none());
    assert_eq!(fixture.cx.storage.count(ALL).unwrap(), 0);
    let refused = fixture.write("bootstrap-tokens", json!({})).await;
    assert!(refused.is_err(), "a request of the former mount makes nothing");
}

#[test]
fn endpoints_are_not_split_at_the_first_colon() {
    let parsed = Endpoint::parse("[2001:db8::1]:50053").unwrap();
    assert_eq!((parsed.host.as_str(), parsed.port), ("2001:db8::1", 50053));
    assert_eq!(Endpoint::parse("hub-1.example:65535").unwrap().port, 65535);
}
