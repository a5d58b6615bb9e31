//! Renewals, and whose name counts.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use holdfast_core::{SpokeName, Term};
use holdfast_dbdriver::IdempotencyKey;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame;
use holdfast_proto::relay::v1::reply::Outcome;
use holdfast_proto::relay::v1::spoke_frame::Frame as Out;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;
use tokio::time::Instant;

use super::spoke::{TestSpoke, renew};
use super::world::{SOON, World};
use crate::cluster::{Cluster as _, Leader};
use crate::relay::authority::Authority;
use crate::relay::stream::Order;
use crate::relay::tests::csr;
use crate::relay::{forward, views};

const OTHER_NAME: &str = "the common name of the certificate request must be the spoke's name";

/// Asks on a stream for a certificate in a name.
async fn renewed(spoke: &mut TestSpoke, name: &str) -> proto::Renewed {
    let (csr_pem, _) = csr(name);
    spoke.send(Out::Renew(proto::Renew { request_id: "one".into(), csr_pem, ttl_seconds: 0 })).await;
    match spoke.next().await.unwrap() {
        Some(Frame::Renewed(renewed)) => renewed,
        other => panic!("{other:?}"),
    }
}

fn named(pem: &str) -> String {
    let der = rustls_pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    Authority::spoke_name(&der).unwrap().to_string()
}

/// Everything sent on a stream so far has been looked at.
async fn looked_at(spoke: &mut TestSpoke) {
    spoke.send(Out::Heartbeat(proto::Heartbeat { seq: 9, running: 0, queued: 0 })).await;
    assert!(matches!(spoke.next().await.unwrap(), Some(Frame::HeartbeatAck(_))));
}

#[tokio::test]
async fn a_frame_that_names_another_spoke_acts_on_the_name_of_the_certificate() {
    let world = World::new(2).await;
    let mut other = world.spoke("other", 0, 1, 1).await;
    let name = SpokeName::parse("other").unwrap();
    for node in [0, 1] {
        let credentials = world.credentials("spoke-1");
        let epoch = 10 + u64::try_from(node).unwrap();
        let mut spoke = TestSpoke::connect(&credentials, node, world.port, epoch, 1).await.unwrap();
        let refused = renewed(&mut spoke, "other").await;
        assert_eq!((refused.error.as_str(), refused.cert_pem.as_str()), (OTHER_NAME, ""));
        let signed = renewed(&mut spoke, "spoke-1").await;
        assert_eq!((signed.error.as_str(), named(&signed.cert_pem).as_str()), ("", "spoke-1"));
        // The same without a stream.
        let refused = renew(&credentials, node, world.port, csr("other").0).await.unwrap_err();
        assert_eq!(refused.message(), OTHER_NAME);
        let signed = renew(&credentials, node, world.port, csr("spoke-1").0).await.unwrap();
        assert_eq!(named(&signed.cert_pem), "spoke-1");

        // A reply to what another spoke was asked, and a goodbye.
        let key = Some(IdempotencyKey::from_bytes([3; 16]));
        let order = Order { method: proto::Method::NewUser, payload: Bytes::from_static(b"x"), key };
        let run = forward::run(&world.nodes[0].hub.spokes, &name, order, Instant::now() + SOON);
        let answers = async {
            let asked = other.command().await.request_id;
            spoke.reply(asked.clone(), Outcome::Output("not the other's".into())).await;
            looked_at(&mut spoke).await;
            other.reply(asked, Outcome::Output("the other's".into())).await;
        };
        let (answer, ()) = tokio::join!(run, answers);
        assert_eq!(answer.unwrap(), "the other's");
        spoke.send(Out::Goodbye(proto::Goodbye { reason: "other".into() })).await;
        looked_at(&mut spoke).await;
        assert!(world.nodes[0].hub.spokes.local(&name).is_some());
    }
    assert!(other.is_quiet().await);
}

#[tokio::test]
async fn a_renewal_through_a_standby_leaves_the_stream_and_moves_its_end() {
    let world = World::new(2).await;
    let mut spoke = world.spoke("spoke-1", 1, 7, 1).await;
    world.routable("spoke-1").await;
    let entry = |world: &World| Value::Object(views::view(&world.nodes[0].hub))["spokes"][0].clone();
    let before = entry(&world);
    assert_eq!(renewed(&mut spoke, "spoke-1").await.error, "");
    let end = |entry: &Value| entry["cert_not_after"].as_i64().unwrap();
    world.until(|w| end(&entry(w)) > end(&before)).await;
    let after = entry(&world);
    assert_eq!(after["session_epoch"], before["session_epoch"]);
    let since = |entry: &Value| entry["connected_at_unix"].as_i64().unwrap();
    assert!(since(&after).abs_diff(since(&before)) <= 1, "{before} {after}");
    assert!(spoke.is_quiet().await);
}

#[tokio::test]
async fn a_renewal_finds_the_node_that_leads_by_then() {
    let world = World::new(3).await;
    let mut spoke = world.spoke("spoke-1", 2, 1, 1).await;
    let holder = &world.nodes[2];
    let asked = |w: &World| w.nodes[2].peers.signs.load(Ordering::SeqCst);

    // It takes a node for the leader that is not active.
    let wrong = holder.cluster.members()[1].clone();
    let leader = Leader { node: wrong.node, address: wrong.address, term: Term::new(1) };
    holder.cluster.change(|view| view.leader = Some(leader));
    let corrected = async {
        world.until(|w| asked(w) > 0).await;
        world.lead(Some(0), 1);
    };
    let (signed, ()) = tokio::join!(renewed(&mut spoke, "spoke-1"), corrected);
    assert_eq!((signed.error.as_str(), named(&signed.cert_pem).as_str()), ("", "spoke-1"));

    // The leader has seen a newer term than the one that it is asked in.
    world.nodes[0].hub.spokes.admit(Term::new(9)).unwrap();
    let before = asked(&world);
    let corrected = async {
        world.until(|w| asked(w) > before).await;
        world.lead(Some(0), 9);
    };
    let (signed, ()) = tokio::join!(renewed(&mut spoke, "spoke-1"), corrected);
    assert_eq!((signed.error.as_str(), named(&signed.cert_pem).as_str()), ("", "spoke-1"));

    // What is refused by the node that leads is refused for good.
    let before = asked(&world);
    assert_eq!(renewed(&mut spoke, "other").await.error, OTHER_NAME);
    assert_eq!(asked(&world), before + 1);
}
