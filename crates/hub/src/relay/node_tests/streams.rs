//! What one node does with the streams that end on it.

use holdfast_core::SpokeName;
use holdfast_core::ownership::Lookup;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame;
use holdfast_proto::relay::v1::spoke_frame::Frame as Out;
use tonic::Code;

use super::spoke::{Credentials, TestSpoke, dial, hello, is_let_in};
use super::world::World;
use crate::relay::RelaySettings;
use crate::relay::record::{CA, CaRecord, DENIED};
use crate::relay::stream::Order;
use crate::relay::{forward, leave, record};

#[tokio::test]
async fn a_spoke_is_welcomed_and_its_heartbeats_are_answered() {
    let world = World::new(1).await;
    let mut spoke = world.spoke("spoke-1", 0, 7, 1).await;
    let welcome = &spoke.welcome;
    assert_eq!((welcome.node_id.as_str(), welcome.heartbeat_interval_ms), ("n0", 15_000));
    assert_eq!((welcome.keepalive_interval_ms, welcome.keepalive_timeout_ms), (10_000, 10_000));
    assert_eq!(welcome.hub_endpoints, [format!("127.0.0.1:{}", world.port)]);
    spoke.send(Out::Heartbeat(proto::Heartbeat { seq: 41, running: 0, queued: 0 })).await;
    assert_eq!(spoke.next().await.unwrap(), Some(Frame::HeartbeatAck(proto::HeartbeatAck { seq: 41 })));
    spoke.send(Out::TokenRequest(proto::TokenRequest { audience: "x".into() })).await;
    let Some(Frame::Token(token)) = spoke.next().await.unwrap() else { panic!() };
    assert_eq!(token.error, "unknown audience");
    spoke.send(Out::Goodbye(proto::Goodbye { reason: "test".into() })).await;
    let name = SpokeName::parse("spoke-1").unwrap();
    world.until(|w| w.nodes[0].hub.spokes.lookup(&name) == Lookup::Unknown { lately: true }).await;
    drop(spoke);
    world.until(|w| w.nodes[0].hub.spokes.open_streams() == 0).await;
}

#[tokio::test]
async fn hello_comes_first_and_is_understood() {
    let world = World::new(1).await;
    let credentials = world.credentials("spoke-1");
    let heartbeat = Some(proto::SpokeFrame { frame: Some(Out::Heartbeat(proto::Heartbeat::default())) });
    let mut other = hello(1, 1);
    if let Some(Out::Hello(hello)) = &mut other.frame {
        hello.protocol = 2;
    }
    let mut no_boot = hello(1, 1);
    if let Some(Out::Hello(hello)) = &mut no_boot.frame {
        hello.boot_id = bytes::Bytes::from_static(b"short");
    }
    for first in [heartbeat, Some(other), Some(no_boot)] {
        let refused = dial(&credentials, 0, world.port, first).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    assert_eq!(world.nodes[0].hub.spokes.open_streams(), 0);
}

#[tokio::test]
async fn accepting_a_stream_writes_nothing() {
    let world = World::new(1).await;
    let storage = &world.nodes[0].hub.storage;
    let keys = || {
        let keys = storage.scan_keys("", None, usize::MAX).unwrap();
        keys.iter()
            .map(|key| (key.clone(), storage.store().read(key).unwrap().map(|v| v.version)))
            .collect::<Vec<_>>()
    };
    let before = keys();
    for epoch in 1..=20 {
        let _spoke = world.spoke("spoke-1", 0, epoch, 1).await;
    }
    assert_eq!(keys(), before);
}

#[tokio::test]
async fn a_newer_dial_takes_over_and_an_older_one_is_refused() {
    let world = World::new(1).await;
    let mut first = world.spoke("spoke-1", 0, 5, 1).await;
    let second = world.spoke("spoke-1", 0, 6, 1).await;
    let Some(Frame::Superseded(superseded)) = first.next().await.unwrap() else { panic!() };
    assert_eq!((superseded.by_epoch, superseded.alive), (6, true));
    assert!(first.end().await.is_none());
    let mut late = world.spoke("spoke-1", 0, 5, 2).await;
    let Some(Frame::Superseded(superseded)) = late.next().await.unwrap() else { panic!() };
    assert_eq!(
        (superseded.by_epoch, superseded.by_boot_id.as_ref(), superseded.alive),
        (6, &[1; 16][..], true)
    );
    assert!(late.end().await.is_none());
    world.until(|w| w.nodes[0].hub.spokes.open_streams() == 1).await;
    let held = world.nodes[0].hub.spokes.local(&SpokeName::parse("spoke-1").unwrap()).unwrap();
    assert_eq!(held.stamp.epoch.into_inner(), 6);
    drop(second);
    world.until(|w| w.nodes[0].hub.spokes.open_streams() == 0).await;
}

#[tokio::test]
async fn the_certificate_of_the_cluster_is_for_its_own_port() {
    let world = World::new(1).await;
    let spoke = world.credentials("spoke-1");
    assert!(is_let_in(&spoke, 0, world.port).await);
    let cluster = Credentials {
        ca: spoke.ca.clone(),
        cert: world.identity.cert_der().to_vec().into(),
        key: world.identity.key_der().to_vec(),
    };
    assert!(!is_let_in(&cluster, 0, world.port).await);
}

#[tokio::test]
async fn a_denied_spoke_is_gone_from_every_node() {
    let world = World::new(2).await;
    let mut spoke = world.spoke("spoke-1", 1, 1, 1).await;
    let denied = record::DeniedRecord { reason: "lost".into(), created_unix: 0 };
    world.nodes[0].hub.storage.put(&format!("{DENIED}spoke-1"), &denied).await.unwrap();
    let ended = spoke.end().await.unwrap();
    assert_eq!((ended.code(), ended.message()), (Code::PermissionDenied, "spoke \"spoke-1\" is denied"));
    world.until(|w| w.nodes[1].hub.spokes.open_streams() == 0).await;
    let credentials = world.credentials("spoke-1");
    for node in [0, 1] {
        let refused = dial(&credentials, node, world.port, Some(hello(2, 1))).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::PermissionDenied, ended.message()));
        let csr = crate::relay::tests::csr("spoke-1").0;
        let refused = super::spoke::renew(&credentials, node, world.port, csr).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::PermissionDenied, ended.message()));
        // It takes no place beside the spokes that may be there.
        let told = super::spoke::renew_until_cut(&credentials, node, world.port).await;
        assert!(!told.is_empty() && told.iter().all(|code| *code == Code::PermissionDenied), "{told:?}");
    }
}

#[tokio::test]
async fn a_node_that_takes_leave_tells_its_spokes_and_closes_its_port() {
    let world = World::new(2).await;
    let mut spoke = world.spoke("spoke-1", 1, 1, 1).await;
    let hub = &world.nodes[1].hub;
    leave::tell(hub, "hub node sealed");
    let Some(Frame::Drain(drain)) = spoke.next().await.unwrap() else { panic!() };
    assert_eq!((drain.reason.as_str(), drain.redirect.as_str()), ("hub node sealed", ""));
    assert!(drain.grace_ms >= 1000);
    let refused = world.until(|_| std::net::TcpStream::connect(("127.0.0.2", world.port)).is_err());
    refused.await;
    leave::end(hub, "hub node sealed").await;
    let ended = spoke.end().await.unwrap();
    assert_eq!((ended.code(), ended.message()), (Code::Unavailable, "hub node sealed"));
    assert_eq!(hub.spokes.open_streams(), 0);
}

#[tokio::test]
async fn a_spoke_that_moves_in_time_is_not_cut() {
    let world = World::new(2).await;
    let credentials = world.credentials("spoke-1");
    let mut old = TestSpoke::connect(&credentials, 1, world.port, 1, 1).await.unwrap();
    world.routable("spoke-1").await;
    leave::tell(&world.nodes[1].hub, "hub node shutting down");
    let Some(Frame::Drain(_)) = old.next().await.unwrap() else { panic!() };
    let new = TestSpoke::connect(&credentials, 0, world.port, 2, 1).await.unwrap();
    let Some(Frame::Superseded(superseded)) = old.next().await.unwrap() else { panic!() };
    assert_eq!(superseded.by_epoch, 2);
    assert!(old.end().await.is_none());
    world.until(|w| w.nodes[1].hub.spokes.open_streams() == 0).await;
    drop(new);
}

#[tokio::test]
async fn a_pinned_standby_refuses_with_the_place_to_dial_and_records_nothing() {
    let pin = |settings| RelaySettings { pin_spokes_to_active: true, ..settings };
    let world = World::with(2, pin).await;
    let credentials = world.credentials("spoke-1");
    let refused = dial(&credentials, 1, world.port, Some(hello(1, 1))).await.unwrap_err();
    // The leader's cluster host and our own port.
    let endpoint = format!("127.0.0.1:{}", world.port);
    assert_eq!(holdfast_proto::redirect_of(&refused), Some(endpoint));
    assert_eq!(world.nodes[1].hub.spokes.open_streams(), 0);
    let mut on_active = world.spoke("spoke-1", 0, 2, 1).await;
    // A new leader: the old one's spokes are told to move, and go on being served meanwhile.
    world.lead(Some(1), 2);
    let Some(Frame::Drain(drain)) = on_active.next().await.unwrap() else { panic!() };
    assert_eq!(drain.redirect, format!("127.0.0.2:{}", world.port));
    world.lead(None, 2);
    let refused = dial(&credentials, 1, world.port, Some(hello(3, 1))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
}

#[tokio::test]
async fn what_the_leader_advertises_goes_before_its_host() {
    let world = World::with(2, |settings| RelaySettings {
        advertise: Some(format!("{}.example:7443", settings.bind.replace('.', "-"))),
        pin_spokes_to_active: true,
        ..settings
    })
    .await;
    let leader = holdfast_core::ownership::NodeName::new("n0");
    world.until(|w| w.nodes[1].hub.spokes.endpoint_of(&leader).is_some()).await;
    let refused = dial(&world.credentials("spoke-1"), 1, world.port, Some(hello(1, 1))).await.unwrap_err();
    assert_eq!(holdfast_proto::redirect_of(&refused).as_deref(), Some("127-0-0-1.example:7443"));
}

#[tokio::test]
async fn an_authority_that_cannot_be_read_ends_nothing() {
    let world = World::new(1).await;
    let mut spoke = world.spoke("spoke-1", 0, 1, 1).await;
    let hub = &world.nodes[0].hub;
    let error = |w: &World| w.nodes[0].hub.spokes.listener_error(&w.nodes[0].hub.spokes.own);
    let good = hub.storage.get::<CaRecord>(CA).unwrap().unwrap().value;
    let unusable = CaRecord { hub_cert_pem: String::new(), ..good.clone() };
    hub.storage.put(CA, &unusable).await.unwrap();
    world.until(|w| error(w) == "the relay's authority cannot be used").await;
    hub.storage.put(CA, &"nonsense").await.unwrap();
    world.until(|w| error(w) == "the relay's authority cannot be read").await;
    assert!(spoke.is_quiet().await && hub.spokes.open_streams() == 1);
    std::net::TcpStream::connect(("127.0.0.1", world.port)).unwrap();
    assert!(hub.relay.authority.current().is_none(), "nobody new is let in");
    hub.storage.put(CA, &good).await.unwrap();
    world.until(|w| error(w).is_empty()).await;
    let _other = world.spoke("spoke-2", 0, 1, 1).await;

    hub.storage.delete(CA).await.unwrap();
    let ended = spoke.end().await.unwrap();
    assert_eq!((ended.code(), ended.message()), (Code::Unavailable, "there is no relay any more"));
    world.until(|w| w.nodes[0].hub.relay.listener.port().is_none()).await;
}

#[tokio::test]
async fn a_denied_spoke_that_is_leaving_is_gone_too() {
    let world = World::new(1).await;
    let mut spoke = world.spoke("spoke-1", 0, 1, 1).await;
    let hub = &world.nodes[0].hub;
    let name = SpokeName::parse("spoke-1").unwrap();
    let order = Order { method: proto::Method::Initialize, payload: bytes::Bytes::new(), key: None };
    let deadline = tokio::time::Instant::now() + super::world::SOON;
    let run = forward::run(&hub.spokes, &name, order, deadline);
    let rest = async {
        spoke.command().await;
        spoke.send(Out::Goodbye(proto::Goodbye { reason: "test".into() })).await;
        world.until(|w| w.nodes[0].hub.spokes.streams().is_empty()).await;
        assert_eq!(hub.spokes.open_streams(), 1, "a command is under way");
        let denied = record::DeniedRecord { reason: "lost".into(), created_unix: 0 };
        hub.storage.put(&format!("{DENIED}spoke-1"), &denied).await.unwrap();
        spoke.end().await.unwrap().code()
    };
    let (ran, ended) = tokio::join!(run, rest);
    assert!(ran.is_err() && ended == Code::PermissionDenied);
}

#[tokio::test]
async fn heartbeats_are_asked_for_before_a_stream_counts_as_silent() {
    let short = |settings| RelaySettings {
        keepalive_interval: holdfast_ops::Duration::from_secs(5),
        keepalive_timeout: holdfast_ops::Duration::from_secs(1),
        ..settings
    };
    let world = World::with(1, short).await;
    let welcome = world.spoke("spoke-1", 0, 1, 1).await.welcome;
    assert_eq!((welcome.keepalive_interval_ms, welcome.heartbeat_interval_ms), (5000, 4500));
}

#[tokio::test]
async fn spokes_that_are_sent_on_follow_the_next_leader() {
    let pin = |settings| RelaySettings { pin_spokes_to_active: true, ..settings };
    let world = World::with(3, pin).await;
    let (mut one, mut two) = (world.spoke("spoke-1", 0, 1, 1).await, world.spoke("spoke-2", 0, 1, 1).await);
    world.lead(Some(1), 2);
    // One is told at once, the other a while later; the next change comes between the two.
    let first = tokio::select! {
        frame = one.next() => frame,
        frame = two.next() => frame,
    };
    let Some(Frame::Drain(drain)) = first.unwrap() else { panic!() };
    assert_eq!(drain.redirect, format!("127.0.0.2:{}", world.port));
    world.lead(Some(2), 3);
    for spoke in [&mut one, &mut two] {
        loop {
            let Some(Frame::Drain(drain)) = spoke.next().await.unwrap() else { panic!() };
            if drain.redirect == format!("127.0.0.3:{}", world.port) {
                break;
            }
        }
    }
}
