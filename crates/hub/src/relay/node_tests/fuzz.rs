//! Bytes of spokes and of other nodes that may be anything.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use holdfast_core::ownership::registry::{Effect, Event, Registry, Ticket, Timing};
use holdfast_core::ownership::{BootId, Claim, NodeName, Seq, SpokeSet, Stamp};
use holdfast_core::{Epoch, Mono, SpokeName, Term};
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::spoke_frame::Frame as Out;
use holdfast_tests::fuzz::{Fuzzer, fuzz};
use http_body_util::Full;
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::codec::Codec as _;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::spoke::hello;
use super::world::{SOON, World};
use crate::relay::convert::{self, Sender};
use crate::relay::failure::CommandFailure;
use crate::relay::gateway::{Gateway, Session};
use crate::relay::settings::MAX_FRAME;
use crate::relay::tests::csr;
use proto::spoke_gateway_server::SpokeGateway as _;

/// Frames as they are on a stream: each behind a byte that says that it is plain, and its length.
fn framed(frames: &[proto::SpokeFrame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        let frame = frame.encode_to_vec();
        bytes.push(0);
        bytes.extend(u32::try_from(frame.len()).unwrap().to_be_bytes());
        bytes.extend(frame);
    }
    bytes
}

fn streams() -> Vec<Vec<u8>> {
    let request_id = || "0".repeat(24);
    let failure = proto::CommandError {
        kind: Some(proto::command_error::Kind::Driver(proto::DriverFailure {
            text: "no".into(),
            sqlstate: "42501".into(),
            reason: "denied".into(),
            maybe_done: true,
        })),
    };
    let reply = |outcome| Out::Reply(proto::Reply { request_id: request_id(), outcome: Some(outcome) });
    let said = [
        Out::Heartbeat(proto::Heartbeat { seq: 1, running: 1, queued: 1 }),
        reply(proto::reply::Outcome::Output(Bytes::from_static(b"x"))),
        reply(proto::reply::Outcome::Error(failure)),
        Out::Renew(proto::Renew { request_id: "one".into(), csr_pem: csr("web").0, ttl_seconds: 3600 }),
        Out::TokenRequest(proto::TokenRequest { audience: "a".into() }),
        Out::Goodbye(proto::Goodbye { reason: "r".into() }),
    ];
    said.into_iter().map(|said| framed(&[hello(7, 1), proto::SpokeFrame { frame: Some(said) }])).collect()
}

/// One whole stream of a spoke that says this and then nothing more; what it is told.
async fn stream_of(world: &World, bytes: &[u8]) -> String {
    let decoder = ProstCodec::<proto::HubFrame, proto::SpokeFrame>::new().decoder();
    let body = Full::new(Bytes::copy_from_slice(bytes));
    let frames = Streaming::new_request(decoder, body, None, Some(MAX_FRAME));
    let mut request = Request::new(frames);
    request.extensions_mut().insert(Session {
        spoke: "web".parse().unwrap(),
        cert_not_after: 0,
        address: "127.0.0.1:1".parse().unwrap(),
        cut: CancellationToken::new(),
    });
    let connected = Gateway::new(world.nodes[0].hub.clone()).connect(request).await;
    let outgoing = match connected {
        Ok(response) => response.into_inner(),
        Err(status) => return status.message().to_owned(),
    };
    let told: Vec<_> = outgoing.map(|frame| format!("{frame:?}")).collect().await;
    told.join(" ")
}

#[tokio::test]
async fn fuzz_spoke_frames() {
    let world = World::new(1).await;
    let streams = streams();
    let seeds: Vec<_> = streams.iter().map(Vec::as_slice).collect();
    let words = ["\0\0\0\0\x02", "-----BEGIN CERTIFICATE REQUEST-----\n", "000000000000000000000000"];
    let mut fuzzer = Fuzzer::new(&seeds, &words);
    while let Some(input) = fuzzer.input() {
        let watched = Fuzzer::watch(&input);
        let ended = tokio::time::timeout(SOON, stream_of(&world, &input)).await;
        let behaviour = ended.expect("a stream that says no more ends");
        let failed = world.nodes[0].hub.spokes.tasks.failure();
        assert!(failed.is_none(), "{failed:?}");
        drop(watched);
        fuzzer.learn(input, &behaviour);
    }
    world
        .until(|w| w.nodes[0].hub.spokes.with_registry(|registry, now| registry.own_streams(now).is_empty()))
        .await;
    // It still serves.
    let spoke = world.spoke("web", 0, u64::MAX, 9).await;
    assert_eq!(spoke.welcome.node_id, "n0");
}

fn claim(spoke: &str, epoch: u64, boot: u8) -> Claim {
    Claim {
        spoke: spoke.parse().unwrap(),
        stamp: Stamp { epoch: Epoch::new(epoch), boot: BootId::new([boot; 16]) },
        connected_age: Duration::from_secs(60),
        seen_age: Duration::from_secs(1),
        cert_not_after: 1,
    }
}

fn set(node: &str, seq: u64, spokes: Vec<Claim>) -> SpokeSet {
    SpokeSet { term: Term::new(3), node: NodeName::new(node), seq: Seq::new(seq), spokes }
}

/// The registry of the active node `a`, which has `own`; `b` has `there` and `both`.
fn registry(now: Mono) -> Registry {
    let mut registry = Registry::new(Timing::default(), NodeName::new("a"));
    let members: BTreeSet<_> = ["a", "b", "c"].map(NodeName::new).into();
    for event in [
        Event::Members(members),
        Event::Activated(Term::new(3)),
        Event::Opened(claim("own", 5, 5)),
        Event::Announced(Ticket::new(1), set("b", 10, vec![claim("there", 5, 5), claim("both", 5, 5)])),
    ] {
        registry.on(now, event, &mut Vec::new());
    }
    registry
}

/// What a registry makes of a set, however it comes, and of the passing of time after it.
fn announce(set: &SpokeSet) -> String {
    let now = Mono::ZERO.after(Duration::from_secs(100));
    let mut told = Vec::new();
    for way in [
        Event::Announced(Ticket::new(2), set.clone()),
        Event::Pulled(set.node.clone(), Term::new(3), Some(set.clone())),
    ] {
        let mut registry = registry(now);
        let before = registry.entries(now).count();
        let (mut out, announced) = (Vec::new(), matches!(way, Event::Announced(..)));
        registry.on(now, way.clone(), &mut out);
        registry.on(now, way, &mut out);
        let answers = out.iter().filter(|effect| matches!(effect, Effect::Answer(..))).count();
        assert_eq!(answers, if announced { 2 } else { 0 }, "each announce is answered once");
        let names: BTreeSet<_> = set.spokes.iter().map(|claim| claim.spoke.clone()).collect();
        assert!(registry.entries(now).count() <= before + names.len());
        if set.node != NodeName::new("b") && !names.contains(&"there".parse::<SpokeName>().unwrap()) {
            let there = registry.entries(now).find(|entry| entry.claim.spoke.as_str() == "there");
            assert_eq!(
                there.map(|entry| entry.node.to_string()).as_deref(),
                Some("b"),
                "a set changed another node's"
            );
        }
        let mut at = now;
        for _ in 0..8 {
            let Some(next) = registry.next_deadline() else { break };
            assert!(next > at || next >= now, "a deadline that does not pass");
            at = next.max(at);
            registry.on(at, Event::Tick, &mut out);
        }
        let left: Vec<_> = registry.entries(at).map(|entry| entry.node.to_string()).collect();
        told.push(format!("{left:?}"));
        told.extend(out.iter().map(|effect| format!("{effect:?}").chars().take(12).collect()));
    }
    told.join(" ")
}

#[test]
fn fuzz_announce_sets() {
    let sender = Sender { address: "a:1", boot: &[7; 16], endpoint: "b:2", listener_error: "" };
    let sets = [
        set("b", 11, vec![claim("there", 5, 5), claim("both", 6, 1)]),
        set("c", 1, vec![claim("both", 5, 6), claim("own", 6, 1)]),
        set("c", 2, vec![claim("there", 4, 9), claim("own", 5, 4), claim("new", 1, 1)]),
        set("b", 9, vec![]),
    ];
    let sets = sets.map(|set| convert::set_to_wire(set, &sender).encode_to_vec());
    let seeds: Vec<_> = sets.iter().map(Vec::as_slice).collect();
    fuzz(&seeds, &["there", "both", "own", "new", "\u{a}\u{1}b", "\u{12}\u{1}a"], |input| {
        match proto::SpokeSet::decode(input).map(convert::set_from_wire) {
            Ok(Ok(set)) => announce(&set),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        }
    });
}

#[test]
fn fuzz_answers_of_nodes() {
    let lost = proto::SupersededStream {
        spoke_name: "own".into(),
        session_epoch: 5,
        boot_id: vec![5; 16].into(),
        by_epoch: 6,
        by_boot_id: vec![1; 16].into(),
        alive: true,
    };
    let stale = proto::command_error::Kind::StaleTerm(proto::StaleTerm { term: 9 });
    let error = Some(proto::CommandError { kind: Some(stale) });
    let announced =
        proto::AnnounceReply { term: 3, superseded: vec![lost], newest_seq: 4, ..Default::default() };
    let refused = proto::AnnounceReply { error: error.clone(), ..Default::default() };
    let ran = proto::RunCommandReply { outcome: error.map(proto::run_command_reply::Outcome::Error) };
    let seeds = [announced.encode_to_vec(), refused.encode_to_vec(), ran.encode_to_vec()];
    let seeds: Vec<_> = seeds.iter().map(Vec::as_slice).collect();
    fuzz(&seeds, &["own", "\u{a}\u{3}own"], |input| {
        let mut told = Vec::new();
        if let Ok(reply) = proto::AnnounceReply::decode(input) {
            told.push(format!("{:?}", reply.error.map(CommandFailure::from)));
            let now = Mono::ZERO.after(Duration::from_secs(100));
            if let Ok(lost) = convert::superseded_from_wire(reply.superseded) {
                let (mut registry, mut out) = (registry(now), Vec::new());
                registry.on(now, Event::Told(Term::new(reply.term), lost), &mut out);
                told.extend(out.iter().map(|effect| format!("{effect:?}").chars().take(12).collect()));
            }
        }
        if let Ok(proto::RunCommandReply { outcome: Some(proto::run_command_reply::Outcome::Error(error)) }) =
            proto::RunCommandReply::decode(input)
        {
            let failure = CommandFailure::from(error);
            let spoke = "own".parse().unwrap();
            let again = CommandFailure::from(failure.to_wire(&spoke, "b:1"));
            told.push(format!("{again:?} {:?}", failure.into_driver_error(&spoke).effect()));
        }
        told.join(" ")
    });
}
