//! The certificate is renewed with a new key: over the stream when it is due, or in one call.

use std::time::Duration;

use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame as FromHub;
use holdfast_proto::relay::v1::spoke_frame::Frame as ToHub;
use tonic::Status;

use super::fake::eventually;
use super::hub::{Authority, Hub, Spoke, Stream, options};
use crate::credentials::Credentials;
use crate::daemon::Options;
use crate::renewal::{self, Schedule};

async fn renew(stream: &mut Stream) -> proto::Renew {
    match stream.next().await {
        Some(ToHub::Renew(renew)) => renew,
        other => panic!("no renewal: {other:?}"),
    }
}

#[tokio::test]
async fn a_certificate_that_is_due_is_renewed_on_the_stream_and_used_from_the_next_dial() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let read = |file| std::fs::read(dir.path().join(file)).unwrap();
    let (key, cert) = (read("key.pem"), read("cert.pem"));
    // More than a whole life: it is always due.
    let renewal = Some(Schedule { check_every: Duration::from_millis(50), threshold: 1.1 });
    let spoke = Spoke::start(Options { renewal, ..options(&dir, &[&hub.address]) });
    let (mut stream, _) = hub.welcomed().await;
    let refused = renew(&mut stream).await;
    let no = proto::Renewed { request_id: refused.request_id, error: "not now".into(), ..Default::default() };
    stream.send(FromHub::Renewed(no)).await;
    // The next look asks again, with another key.
    let asked = renew(&mut stream).await;
    assert_ne!(asked.csr_pem, refused.csr_pem);
    assert_eq!((read("key.pem"), read("cert.pem")), (key.clone(), cert.clone()));
    let (cert_pem, ca_cert_pem) = (authority.sign(&asked.csr_pem), authority.pem.clone());
    let request_id = asked.request_id;
    stream
        .send(FromHub::Renewed(proto::Renewed { request_id, cert_pem, ca_cert_pem, error: String::new() }))
        .await;
    eventually("the files are replaced", || read("cert.pem") != cert && read("key.pem") != key).await;
    // The next request shows that the renewal was taken in; then the stream is cut.
    renew(&mut stream).await;
    drop(stream);
    hub.welcomed().await;
    let seen = hub.seen.lock().clone();
    assert_ne!(seen.first(), seen.last());
    assert_eq!(spoke.stop().await, 0);
    Credentials::load(dir.path()).unwrap();
}

#[tokio::test]
async fn a_certificate_for_another_name_or_key_changes_nothing() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let before = std::fs::read(dir.path().join("cert.pem")).unwrap();
    let renewal = Some(Schedule { check_every: Duration::from_millis(20), threshold: 1.1 });
    let spoke = Spoke::start(Options { renewal, ..options(&dir, &[&hub.address]) });
    let (mut stream, _) = hub.welcomed().await;
    let first = renew(&mut stream).await;
    let foreign = Authority::new().sign(&first.csr_pem);
    let answer = |request_id, cert_pem| proto::Renewed { request_id, cert_pem, ..Default::default() };
    stream.send(FromHub::Renewed(answer(first.request_id, foreign))).await;
    let second = renew(&mut stream).await;
    stream.send(FromHub::Renewed(answer(second.request_id, authority.sign(&first.csr_pem)))).await;
    renew(&mut stream).await;
    assert_eq!(std::fs::read(dir.path().join("cert.pem")).unwrap(), before);
    assert_eq!(spoke.stop().await, 0);
}

#[tokio::test]
async fn one_call_renews_at_the_first_node_that_answers() {
    let authority = Authority::new();
    let (hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let before = std::fs::read(dir.path().join("cert.pem")).unwrap();
    let servers = ["127.0.0.1:1", &hub.address].map(|server| server.parse().unwrap());
    hub.refusals.lock().push_back(Status::permission_denied("denied"));
    let refused = renewal::once(dir.path(), &servers, None, 0).await.unwrap_err();
    assert_eq!(refused.to_string(), "the hub refused: denied");
    let renewed = renewal::once(dir.path(), &servers, None, 0).await.unwrap();
    assert_eq!(renewed.name.as_str(), "spoke-1");
    assert_ne!(std::fs::read(dir.path().join("cert.pem")).unwrap(), before);
    Credentials::load(dir.path()).unwrap();
    let nobody = renewal::once(dir.path(), &servers[..1], None, 0).await.unwrap_err();
    assert!(nobody.to_string().contains("127.0.0.1:1"), "{nobody}");
}
