//! H-74: hostile certificate requests are refused, and use nothing up.

use holdfast_tests::hub::Options;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, SanType};
use serde_json::json;

use super::h42_join::{Trusted, csr};

/// A request of an RSA key of 1024 bits for the name spoke-1.
const RSA_1024: &str = "\
-----BEGIN CERTIFICATE REQUEST-----
MIIBUTCBuwIBADASMRAwDgYDVQQDDAdzcG9rZS0xMIGfMA0GCSqGSIb3DQEBAQUA
A4GNADCBiQKBgQCs55q5KZxGipWDwSxxm37lL63Xarq3MlYivE+Oh+WJpRFJ0lBS
bUoigRvoIFObwNOWPla85sBQviYuaQAsAXNhjw2w6i9UJmlRexxtbIqagHCIIryn
D5rY+vnjNNKlQ4yEpE2K0v/Gd7XAfpfQ+M0630wsJPf3FWZJiVqUrLVaUwIDAQAB
oAAwDQYJKoZIhvcNAQELBQADgYEAcVZq/5OWh40hsL00qJlEcH/IsN7wzYbAsqKU
eBcICy2ixYrCudk5+grxfRh2CyhTfVgn4v/t/TWAK1bR8IrFcC/Xi9wnWuvwspN3
ljV0r5yDmiS03rtJbb+c2p06v4/jKtP8Ij3xVaUpKV723Rilno3tHmY/RXDdWeeJ
Go7R3Fc=
-----END CERTIFICATE REQUEST-----
";

fn asking_for(change: impl FnOnce(&mut CertificateParams)) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "spoke-1");
    change(&mut params);
    params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_requests_are_refused_and_use_nothing_up() {
    let trusted = Trusted::start(Options { nodes: 1, ..Options::default() }).await;
    let token = trusted.token(json!({"max_uses": 1})).await;
    let api = trusted.cluster.nodes[0].api();
    let good = csr("spoke-1");
    let hub = asking_for(|p| p.subject_alt_names.push(SanType::DnsName("localhost".try_into().unwrap())));
    let server = asking_for(|p| p.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth));
    let authority = asking_for(|p| p.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
    for (name, csr, text) in [
        ("spoke-1", csr("spoke-2"), "the common name"),
        ("spoke-1", csr("holdfast-hub"), "the common name"),
        ("holdfast-hub", csr("holdfast-hub"), "must not be a reserved name"),
        ("holdfast-spoke-ca", csr("holdfast-spoke-ca"), "must not be a reserved name"),
        ("spoke 1", csr("spoke 1"), "spoke_name must match"),
        ("spoke-1", RSA_1024.to_owned(), "RSA of 2048"),
        ("spoke-1", hub, "must not ask for"),
        ("spoke-1", server, "must not ask for"),
        ("spoke-1", authority, "must not ask for"),
        ("spoke-1", format!("{good}trailing"), "one PEM block"),
        ("spoke-1", format!("{good}{good}"), "one PEM block"),
        ("spoke-1", format!("leading\n{good}"), "one PEM block"),
        ("spoke-1", good.replace("CERTIFICATE REQUEST", "CERTIFICATE"), "one PEM block"),
    ] {
        let body = json!({"token": token, "spoke_name": name, "csr_pem": csr});
        let refused = api.put("relay/sign-csr", body).await.expect(400);
        assert!(refused.errors()[0].contains(text), "{name} {csr}: {:?}", refused.errors());
    }
    assert_eq!(trusted.uses(&token).await, 0);
    let body = json!({"token": token, "spoke_name": "spoke-1", "csr_pem": good});
    api.put("relay/sign-csr", body.clone()).await.expect(200);
    api.put("relay/sign-csr", body).await.expect_error(400, "token unknown or expired");
    trusted.cluster.check_logs(&[]);
}
