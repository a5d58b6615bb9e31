//! Bootstrap tokens, enrolment, renewals and denied names.

use std::collections::BTreeSet;

use holdfast_net::enrol::{BootstrapToken, check_pin, check_signature};
use proptest::prelude::*;
use rcgen::{Attribute, CertificateParams, DnType, KeyPair, KeyUsagePurpose, SanType};
use serde_json::{Value, json};

use super::super::bootstrap::create_drawn;
use super::super::csr::{self, CsrError};
use super::super::rate::OpenRate;
use super::{Fixture, csr as request, der, name, subject, text};
use crate::cluster::NodeName;
use crate::logical::{Data, Operation};
use crate::wall;

/// A request of an RSA key of 1024 bits for the name spoke-1.
const RSA_1024: &str = "\
-----BEGIN CERTIFICATE REQUEST-----
MIIBUTCBuwIBADASMRAwDgYDVQQDDAdzcG9rZS0xMIGfMA0GCSqGSIb3DQEBAQUA
A4GNADCBiQKBgQDfbQh+fMBJ1R7OXBU9B4ehIkBj5og1FQcf581p90ymgU1pWjrH
u9oxhe+1dL5skRxs3Ekw+hAkSTfP0U6qLNXdL1XrD2uEbcuNqmkWigMKDTTYQCbN
OUZDGKTOsram8waDyI8v8QKvyu5k/YLLUr70M6AJwQq5D4NbHH4E0N2E4QIDAQAB
oAAwDQYJKoZIhvcNAQELBQADgYEApK/bSnz1IArDrR7kRuWoGNqSPij1ChqfpKRv
+WVtS2unhLRMRyuU3eJU9fplCkCOX9Q+8GlG414/Ahy0BB97hw52Kj1yC7YAf76x
56SPtCkR7KqAivaUxQB1HBe5TSs3MRuwNocTpabCaJ5IsvTtP6tfaV+yo/Kgs34/
h6s86dg=
-----END CERTIFICATE REQUEST-----
";

#[tokio::test]
async fn a_token_is_shown_once() {
    let fixture = Fixture::ready().await;
    let made = fixture.write("bootstrap-tokens", json!({"description": "d", "max_uses": "2"})).await.unwrap();
    let (id, token) = (text(&made, "id"), text(&made, "token"));
    assert_eq!(BootstrapToken::parse(&token).unwrap().id(), id);
    assert!(made["warnings"][0].as_str().unwrap().contains("shown once"));
    assert!((made["expiration_unix"].as_i64().unwrap() - wall::now_unix() - 86_400).abs() < 60);
    assert_eq!(made["usages"], json!(["signing", "authentication"]));
    let shown = fixture.read(&format!("bootstrap-tokens/{id}")).await.unwrap();
    assert_eq!(
        (&shown["max_uses"], &shown["uses"], &shown["expired"]),
        (&json!(2), &json!(0), &json!(false))
    );
    let never = fixture.write("bootstrap-tokens", json!({"ttl": -1})).await.unwrap();
    assert_eq!(never["expiration_unix"], 0);
    fixture.cx.storage.put("relay/token/zzzzzz", &"nonsense").await.unwrap();
    let listed = fixture.call(Operation::List, "bootstrap-tokens", json!({})).await.unwrap();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 3);
    assert_eq!(listed["key_info"]["zzzzzz"], json!({"error": "unreadable"}));
    assert_eq!(listed["key_info"][&id]["expired"], false);
    let secret = BootstrapToken::parse(&token).unwrap().secret().to_owned();
    assert!(!format!("{shown}{listed}").contains(&secret));
    fixture.call(Operation::Delete, &format!("bootstrap-tokens/{id}"), json!({})).await.unwrap();
    assert_eq!(fixture.read(&format!("bootstrap-tokens/{id}")).await, Err((404, String::new())));
    for bad in [json!({"usages": "reading"}), json!({"max_uses": -1}), json!({"allowed_spoke_name": "a b"})] {
        assert_eq!(fixture.write("bootstrap-tokens", bad).await.unwrap_err().0, 400);
    }
}

#[tokio::test]
async fn a_token_whose_id_is_taken_is_drawn_anew() {
    let fixture = Fixture::ready().await;
    let (_, held) = fixture.token(json!({"description": "held"})).await;
    let taken = BootstrapToken::parse(&held).unwrap();
    let draws = std::cell::Cell::new(0);
    let draw = || {
        draws.set(draws.get() + 1);
        if draws.get() < 3 { BootstrapToken::parse(&held).unwrap() } else { BootstrapToken::random() }
    };
    create_drawn(&fixture.cx, &fixture.mount, &Data::default(), draw).await.unwrap();
    let shown = fixture.read(&format!("bootstrap-tokens/{}", taken.id())).await.unwrap();
    assert_eq!((draws.get(), &shown["description"]), (3, &json!("held")));
    let listed = fixture.call(Operation::List, "bootstrap-tokens", json!({})).await.unwrap();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn the_description_is_signed_with_the_token() {
    let fixture = Fixture::ready().await;
    let (id, token) = fixture.token(json!({})).await;
    let told = fixture.call(Operation::Read, "cluster-info", json!({"token_id": id})).await.unwrap();
    let (payload, signature) = (text(&told, "payload"), text(&told, "signature"));
    check_signature(&BootstrapToken::parse(&token).unwrap(), &payload, &signature).unwrap();
    let payload: Value = serde_json::from_str(&payload).unwrap();
    let info = fixture.read("ca/info").await.unwrap();
    assert_eq!(payload["hub_endpoint"], info["hub_endpoint"]);
    check_pin(&text(&info, "ca_cert_hash"), &der(&text(&payload, "ca_cert_pem"))).unwrap();
}

#[tokio::test]
async fn a_spoke_gets_a_certificate_for_its_name_and_nothing_else() {
    let fixture = Fixture::ready().await;
    let (id, token) = fixture.token(json!({})).await;
    let (csr, key) = request("spoke-1");
    let got = fixture.enrol(&token, "spoke-1", &csr).await.unwrap();
    assert_eq!(text(&got, "ca_cert_pem"), fixture.hub.relay.authority.current().unwrap().ca_pem);
    let der = der(&text(&got, "cert_pem"));
    let (_, cert) = x509_parser::parse_x509_certificate(&der).unwrap();
    assert_eq!(cert.subject().to_string(), "CN=spoke-1, O=holdfast-spokes");
    assert_eq!(cert.public_key().subject_public_key.data, rcgen::PublicKeyData::der_bytes(&key));
    let usage = cert.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth && cert.subject_alternative_name().unwrap().is_none());
    assert!((cert.validity().not_after.timestamp() - wall::now_unix() - 30 * 86_400).abs() < 60);
    assert_eq!(fixture.read(&format!("bootstrap-tokens/{id}")).await.unwrap()["uses"], 1);
    for (ttl, days) in [(json!(-5), 30), (json!("3600"), 0), (json!(i64::MAX), 90), (json!("100000000h"), 90)]
    {
        let body = json!({"token": token, "spoke_name": "spoke-1", "csr_pem": csr, "ttl": ttl});
        let got = fixture.write("sign-csr", body).await.unwrap();
        let der = super::der(&text(&got, "cert_pem"));
        let (_, cert) = x509_parser::parse_x509_certificate(&der).unwrap();
        assert_eq!((cert.validity().not_after.timestamp() - wall::now_unix() + 60) / 86_400, days, "{ttl}");
    }
    let missing = (400, "token, spoke_name, csr_pem are all required".to_owned());
    for field in ["token", "spoke_name", "csr_pem"] {
        let mut body = json!({"token": token, "spoke_name": "spoke-1", "csr_pem": csr});
        body.as_object_mut().unwrap().remove(field);
        assert_eq!(fixture.write("sign-csr", body).await, Err(missing.clone()));
    }
}

#[tokio::test]
async fn every_fault_of_a_token_is_told_alike() {
    let fixture = Fixture::ready().await;
    let (csr, _) = request("spoke-1");
    let refused = (400, "token unknown or expired".to_owned());
    let (_, good) = fixture.token(json!({})).await;
    let (short_id, short) = fixture.token(json!({"ttl": 1})).await;
    let (signing_id, signing) = fixture.token(json!({"usages": "signing"})).await;
    let (auth_id, _) = fixture.token(json!({"usages": "authentication"})).await;
    let (_, other) = fixture.token(json!({"allowed_spoke_name": "spoke-2"})).await;
    let (used_id, used) = fixture.token(json!({"max_uses": 1})).await;
    fixture.enrol(&used, "spoke-1", &csr).await.unwrap();
    let wrong = format!("{}.0000000000000000", BootstrapToken::parse(&good).unwrap().id());
    let expired =
        async || fixture.read(&format!("bootstrap-tokens/{short_id}")).await.unwrap()["expired"] == true;
    let started = std::time::Instant::now();
    while !expired().await {
        assert!(started.elapsed() < std::time::Duration::from_secs(20));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    for token in ["x", "zzzzzz.0000000000000000", &wrong, &short, &signing, &other, &used] {
        for csr in [csr.as_str(), "garbage"] {
            assert_eq!(fixture.enrol(token, "spoke-1", csr).await, Err(refused.clone()), "{token}");
        }
    }
    for id in ["", "zzzzzz", "../../ca", &short_id, &auth_id, &used_id] {
        let asked = fixture.call(Operation::Read, "cluster-info", json!({"token_id": id})).await;
        assert_eq!(asked, Err(refused.clone()), "{id}");
    }
    assert_eq!(fixture.call(Operation::Read, "cluster-info", json!({"token_id": ["x"]})).await, Err(refused));
    assert!(fixture.call(Operation::Read, "cluster-info", json!({"token_id": signing_id})).await.is_ok());
    assert!(fixture.enrol(&other, "spoke-2", &request("spoke-2").0).await.is_ok());
}

#[tokio::test]
async fn an_unknown_token_costs_what_a_known_one_does() {
    let fixture = Fixture::ready().await;
    let (csr, _) = request("spoke-1");
    let (_, good) = fixture.token(json!({})).await;
    let wrong = format!("{}.0000000000000000", BootstrapToken::parse(&good).unwrap().id());
    let mut costs = BTreeSet::new();
    // What is cached is read once, whoever asks first.
    assert!(fixture.hub.relay.authority.current().is_some());
    for token in ["zzzzzz.0000000000000000", "x", wrong.as_str()] {
        fixture.store.take_looks();
        fixture.enrol(token, "spoke-1", &csr).await.unwrap_err();
        costs.insert(fixture.store.take_looks());
        let id = token.split('.').next().unwrap();
        let asked = fixture.call(Operation::Read, "cluster-info", json!({"token_id": id})).await;
        assert_eq!(asked.is_ok(), token == wrong, "{token}");
        costs.insert(fixture.store.take_looks());
    }
    assert_eq!(costs.len(), 1, "as many looks at the store, and as many records read: {costs:?}");
}

#[tokio::test]
async fn a_token_is_used_as_often_as_it_may_be_and_not_once_more() {
    let fixture = Fixture::ready().await;
    let (id, token) = fixture.token(json!({"max_uses": 3})).await;
    let (csr, _) = request("spoke-1");
    let all = futures_util::future::join_all((0..6).map(|_| fixture.enrol(&token, "spoke-1", &csr))).await;
    assert_eq!(all.iter().filter(|got| got.is_ok()).count(), 3, "{all:?}");
    assert_eq!(fixture.read(&format!("bootstrap-tokens/{id}")).await.unwrap()["uses"], 3);
}

#[tokio::test]
async fn faults_of_a_request_use_nothing_up() {
    let fixture = Fixture::ready().await;
    let (id, token) = fixture.token(json!({"max_uses": 1})).await;
    let (csr, _) = request("other");
    assert_eq!(fixture.enrol(&token, "spoke-1", &csr).await.unwrap_err().0, 400);
    for reserved in ["holdfast-hub", "holdfast-spoke-ca", "-x", "a/b"] {
        let refused = fixture.enrol(&token, reserved, &request(reserved).0).await.unwrap_err();
        assert!(refused.0 == 400 && refused.1.starts_with("spoke_name must match"), "{refused:?}");
    }
    assert_eq!(fixture.read(&format!("bootstrap-tokens/{id}")).await.unwrap()["uses"], 0);
}

#[test]
fn a_hostile_request_is_refused() {
    let spoke = name("spoke-1");
    let key = KeyPair::generate().unwrap();
    let made =
        |params: CertificateParams, key: &KeyPair| params.serialize_request(key).unwrap().pem().unwrap();
    let good = made(subject("spoke-1"), &key);
    csr::check(&good, &spoke).unwrap();
    csr::check(&good.replace("CERTIFICATE REQ", "NEW CERTIFICATE REQ"), &spoke).unwrap();
    csr::check(&good.replace('\n', "\r\n"), &spoke).unwrap();
    let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    csr::check(&made(subject("spoke-1"), &p384), &spoke).unwrap();
    let rsa = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    csr::check(&made(subject("spoke-1"), &rsa), &spoke).unwrap();

    let mut named = subject("spoke-1");
    named.subject_alt_names.push(SanType::DnsName("hub.example".try_into().unwrap()));
    let mut used = subject("spoke-1");
    used.key_usages.push(KeyUsagePurpose::KeyCertSign);
    let mut twice = subject("spoke-2");
    twice.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 3]), "spoke-1");
    let ed = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    // An extension request under its other name, which parsers commonly skip.
    let hidden = Attribute { oid: &[1, 3, 6, 1, 4, 1, 311, 2, 1, 14], values: vec![0x31, 0x02, 0x30, 0x00] };
    let hidden =
        subject("spoke-1").serialize_request_with_attributes(&key, vec![hidden]).unwrap().pem().unwrap();
    for (csr, expected) in [
        (made(named, &key), CsrError::Extension),
        (made(used, &key), CsrError::Extension),
        (hidden, CsrError::Extension),
        (made(subject("spoke-2"), &key), CsrError::Name),
        (made(subject("SPOKE-1"), &key), CsrError::Name),
        (made(twice, &key), CsrError::Name),
        (made(subject("spoke-1"), &ed), CsrError::Key),
        (RSA_1024.to_owned(), CsrError::Key),
        (format!("{good}x"), CsrError::Pem),
        (format!("x{good}"), CsrError::Pem),
        (format!("{good}{good}"), CsrError::Pem),
        (good.replace("REQUEST", "REQUESTS"), CsrError::Pem),
        (good.replace(" REQUEST", ""), CsrError::Pem),
        (String::new(), CsrError::Pem),
        (
            "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----".into(),
            CsrError::Der,
        ),
        ("A".repeat(20_000), CsrError::Pem),
    ] {
        assert_eq!(csr::check(&csr, &spoke).err(), Some(expected), "{csr}");
    }
    assert_eq!(csr::check(&tampered(&good), &spoke).err(), Some(CsrError::Signature));
    assert_eq!(csr::check(&longer(&good), &spoke).err(), Some(CsrError::Der));
}

fn bytes(pem: &str) -> Vec<u8> {
    use rustls_pki_types::pem::PemObject as _;
    rustls_pki_types::CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

fn pem(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")
}

/// With another name than the one that was signed.
fn tampered(good: &str) -> String {
    let mut der = bytes(good);
    let at = der.windows(7).position(|window| window == b"spoke-1").unwrap();
    der[at] = b'S';
    pem(&der)
}

/// With something behind the request, inside the block.
fn longer(good: &str) -> String {
    let mut der = bytes(good);
    der.extend([0x30, 0x00]);
    pem(&der)
}

#[tokio::test]
async fn a_denied_spoke_neither_enrols_nor_renews() {
    let fixture = Fixture::ready().await;
    let (_, token) = fixture.token(json!({})).await;
    let (csr, _) = request("spoke-1");
    let node = NodeName("node-2".into());
    let authority = &fixture.hub.relay.authority;
    let renew = async |ttl| authority.sign_renewal(&fixture.cx, &name("spoke-1"), &csr, ttl, &node).await;
    let signed = renew(0).await.unwrap();
    assert!((signed.not_after - wall::now_unix() - 30 * 86_400).abs() < 60);
    let capped = renew(i64::MAX).await.unwrap();
    assert!((capped.not_after - wall::now_unix() - 90 * 86_400).abs() < 60);
    let refused = renew(-1).await.unwrap_err();
    assert_eq!((refused.status(), refused.to_string().as_str()), (400, "ttl must not be negative"));

    assert_eq!(fixture.call(Operation::List, "denied-spokes", json!({})).await, Err((404, String::new())));
    let changes = authority.watch();
    fixture.write("denied-spokes/spoke-1", json!({"reason": "stolen"})).await.unwrap();
    assert!(changes.has_changed().unwrap() && authority.is_denied(&name("spoke-1")));
    let told = (403, "spoke \"spoke-1\" is denied".to_owned());
    assert_eq!(fixture.enrol(&token, "spoke-1", &csr).await, Err(told.clone()));
    assert_eq!(renew(0).await.unwrap_err().status(), 403);
    let listed = fixture.call(Operation::List, "denied-spokes", json!({})).await.unwrap();
    assert_eq!(listed["key_info"]["spoke-1"]["reason"], "stolen");
    assert!(!authority.is_denied(&name("spoke-2")));
    assert_eq!(fixture.write("denied-spokes/a b", json!({})).await.unwrap_err().0, 400);
    fixture.call(Operation::Delete, "denied-spokes/spoke-1", json!({})).await.unwrap();
    fixture.enrol(&token, "spoke-1", &csr).await.unwrap();
    renew(0).await.unwrap();
}

#[tokio::test]
async fn a_node_that_does_not_lead_signs_nothing() {
    let fixture = Fixture::ready().await;
    let cluster = crate::testing::FakeCluster::active("node-1", holdfast_core::Term::new(1));
    let hub = crate::testing::hub_with(fixture.hub.storage.clone(), cluster.clone());
    let cx = crate::logical::Cx { hub: hub.clone(), ..fixture.cx.clone() };
    let (csr, _) = request("spoke-1");
    let node = NodeName("node-2".into());
    hub.relay.authority.sign_renewal(&cx, &name("spoke-1"), &csr, 0, &node).await.unwrap();
    cluster.lose_leader();
    let refused = hub.relay.authority.sign_renewal(&cx, &name("spoke-1"), &csr, 0, &node).await.unwrap_err();
    assert_eq!(refused.kind(), holdfast_core::Kind::NotLeader);
}

/// Has the node write its audit log to this file.
async fn audited(fixture: &Fixture, file: &std::path::Path) {
    let body = json!({"type": "file", "options": {"file_path": file.to_str().unwrap()}});
    let body = crate::logical::Data::new(body.as_object().cloned().unwrap());
    let device = crate::audit::entry::DeviceEntry::parse("main/", &body).unwrap();
    fixture.cx.storage.put("sys/audit/main/", &device).await.unwrap();
}

#[tokio::test]
async fn spokes_that_join_at_once_with_one_token_all_get_in() {
    let fixture = Fixture::ready().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.log");
    audited(&fixture, &file).await;
    let (id, token) = fixture.token(json!({})).await;
    let (csr, _) = request("spoke-1");
    let all = futures_util::future::join_all((0..24).map(|_| fixture.enrol(&token, "spoke-1", &csr))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(fixture.read(&format!("bootstrap-tokens/{id}")).await.unwrap()["uses"], 24);
    let lines = std::fs::read_to_string(&file).unwrap();
    assert_eq!(lines.lines().count(), 24, "none was signed in vain");

    // Whoever waits for the others does so no longer than it may; a bad token does not wait.
    let hub = std::sync::Arc::clone(&fixture.hub);
    let held = hub.relay.enrolments.lock().await;
    let soon = tokio::time::Instant::now() + std::time::Duration::from_millis(50);
    let hasty = Fixture { cx: crate::logical::Cx { deadline: soon, ..fixture.cx.clone() }, ..fixture };
    assert_eq!(hasty.enrol(&token, "spoke-1", &csr).await.unwrap_err().0, 503);
    let wrong = format!("{id}.0000000000000000");
    assert_eq!(hasty.enrol(&wrong, "spoke-1", &csr).await.unwrap_err().0, 400);
    drop(held);
}

#[tokio::test]
async fn a_certificate_that_cannot_be_recorded_uses_nothing_up() {
    let fixture = Fixture::ready().await;
    let (id, token) = fixture.token(json!({"max_uses": 1})).await;
    audited(&fixture, std::path::Path::new("/dev/null/audit.log")).await;
    let (csr, _) = request("spoke-1");
    assert!(fixture.enrol(&token, "spoke-1", &csr).await.unwrap_err().0 >= 500);
    assert_eq!(fixture.read(&format!("bootstrap-tokens/{id}")).await.unwrap()["uses"], 0);
}

#[tokio::test]
async fn each_signature_is_recorded_with_who_asked() {
    let fixture = Fixture::ready().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.log");
    audited(&fixture, &file).await;
    let (csr, _) = request("spoke-1");
    let (_, token) = fixture.token(json!({})).await;
    fixture.enrol(&token, "spoke-1", &csr).await.unwrap();
    let node = NodeName("node-2".into());
    let authority = &fixture.hub.relay.authority;
    let signed = authority.sign_renewal(&fixture.cx, &name("spoke-1"), &csr, 0, &node).await.unwrap();
    let lines = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let data = |line: &Value| line["request"]["data"].clone();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        (&data(&lines[0])["reason"], &data(&lines[0])["node_id"]),
        (&json!("enrol"), &json!("node-1"))
    );
    let renewal = data(&lines[1]);
    assert_eq!(renewal["spoke_name"], "spoke-1");
    assert_eq!(renewal["serial"], json!(signed.serial));
    assert_eq!(renewal["not_after"], json!(signed.not_after));
    assert_eq!((&renewal["reason"], &renewal["node_id"]), (&json!("renew"), &json!("node-2")));
    assert_eq!(lines[1]["request"]["path"], "relay/certificates");
}

#[tokio::test]
async fn an_address_asks_so_often_and_no_more() {
    let fixture = Fixture::new().await;
    let rate = OpenRate::per_minute(3);
    let check = |address: &str| rate.check(&fixture.hub, "relay/sign-csr", address.parse().unwrap());
    for _ in 0..3 {
        check("192.0.2.1").unwrap();
    }
    let refused = check("192.0.2.1").unwrap_err();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.to_string(), "request path \"relay/sign-csr\": rate limit quota exceeded");
    assert!(refused.retry_after.is_some_and(|s| (1..=20).contains(&s)), "{:?}", refused.retry_after);
    assert!(check("::ffff:192.0.2.1").is_err(), "the same address in its other form");
    check("192.0.2.2").unwrap();
    let off = OpenRate::per_minute(0);
    for _ in 0..1000 {
        off.check(&fixture.hub, "relay/sign-csr", "192.0.2.1".parse().unwrap()).unwrap();
    }
}

proptest! {
    #[test]
    fn nothing_that_strangers_send_panics(text in "\\PC*", bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let spoke = name("spoke-1");
        let _ = BootstrapToken::parse(&text);
        let token = BootstrapToken::parse("abc123.0123456789abcdef").unwrap();
        let _ = check_signature(&token, &text, &text);
        let _ = check_pin(&text, &bytes);
        let _ = csr::check(&text, &spoke);
        let _ = csr::check(&pem(&bytes), &spoke);
    }

    #[test]
    fn a_request_with_a_changed_byte_is_refused_or_the_same(at in 0usize..200, bit in 0u8..8) {
        let (good, _) = request("spoke-1");
        let mut der = bytes(&good);
        let at = at % der.len();
        der[at] ^= 1 << bit;
        // What lies outside of what is signed may be read leniently; it must not change what is certified.
        if let Ok(key) = csr::check(&pem(&der), &name("spoke-1")) {
            prop_assert_eq!(key, csr::check(&good, &name("spoke-1")).unwrap());
        }
    }
}
