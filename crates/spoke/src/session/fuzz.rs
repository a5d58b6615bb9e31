//! Bytes of a hub that may be anything: the stream may end over them, the daemon may not.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use holdfast_dbdriver::wire::Request;
use holdfast_tests::fuzz::Fuzzer;
use http_body_util::StreamBody;
use hyper::body::Frame;
use prost::Message as _;
use tonic::codec::Codec as _;
use tonic_prost::ProstCodec;

use super::*;
use crate::address::Address;
use crate::cache::Cache;
use crate::link::MAX_FRAME;
use crate::runner::Limits;
use crate::tests::fake::{Opens, command, creation, instance, removal};

/// How often the other side's end of the stream lets commands go on before it comes.
const TURNS: usize = 16;

/// The stream of a hub that says this and then nothing more.
fn says(bytes: &[u8]) -> Streaming<proto::HubFrame> {
    let data = stream::iter([Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(bytes)))]);
    let rest = stream::once(async {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        Ok(Frame::data(Bytes::new()))
    });
    let decoder = ProstCodec::<proto::SpokeFrame, proto::HubFrame>::new().decoder();
    let body = StreamBody::new(data.chain(rest));
    Streaming::new_response(decoder, body, http::StatusCode::OK, None, Some(MAX_FRAME))
}

/// Frames as they are on the stream: each behind a byte that says that it is plain, and its length.
fn framed(frames: impl IntoIterator<Item = FromHub>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        let frame = proto::HubFrame { frame: Some(frame) }.encode_to_vec();
        bytes.push(0);
        bytes.extend(u32::try_from(frame.len()).unwrap().to_be_bytes());
        bytes.extend(frame);
    }
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let welcome = || {
        FromHub::Welcome(proto::Welcome {
            node_id: "hub-0".into(),
            heartbeat_interval_ms: 15_000,
            keepalive_interval_ms: 10_000,
            keepalive_timeout_ms: 10_000,
            hub_endpoints: vec!["hub-1:50053".into(), "[::1]:50053".into()],
        })
    };
    let asked = |request: &Request| FromHub::Command(command("one", request, instance("a", 1, "quick", 4)));
    let verify = Request::VerifyPassword { username: "u".into(), password: "right".to_owned().into() };
    let close = Request::Close { instance_id: "a".into(), config_version: 0 };
    let requests = [creation("a"), removal("a"), verify, close, Request::Type];
    let mut seeds: Vec<_> = requests.iter().map(|request| framed([welcome(), asked(request)])).collect();
    let superseded = |boot: u8| {
        FromHub::Superseded(proto::Superseded {
            by_epoch: u64::MAX,
            by_boot_id: vec![boot; 16].into(),
            alive: true,
        })
    };
    let words = [
        FromHub::HeartbeatAck(proto::HeartbeatAck { seq: 1 }),
        FromHub::Cancel(proto::Cancel { request_id: "one".into() }),
        FromHub::Renewed(proto::Renewed { request_id: "one".into(), ..Default::default() }),
        FromHub::Token(proto::Token::default()),
        FromHub::Drain(proto::Drain { reason: "r".into(), grace_ms: 1, redirect: "hub-2:1".into() }),
        superseded(1),
        superseded(2),
    ];
    seeds.extend(words.into_iter().map(|word| framed([welcome(), word])));
    seeds.push(framed([superseded(2)]));
    seeds
}

fn setup(runner: &Runner) -> Setup {
    let tls = rustls::ClientConfig::builder_with_provider(holdfast_net::server_tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let target = Target {
        address: "localhost:1".parse().unwrap(),
        server_name: None,
        tls: Arc::new(tls),
        keepalive: Keepalive::default(),
    };
    let stamp = Stamp { epoch: Epoch::new(7), boot: BootId::new([1; 16]) };
    Setup { target, stamp, heartbeat: None, concurrency: 4, runner: runner.clone() }
}

/// One whole stream; what came of it.
async fn stream_of(bytes: &[u8], runner: &Runner) -> String {
    let setup = setup(runner);
    let tasks = Tasks::new("stream");
    let (out, mut frames) = mpsc::channel(QUEUE);
    let mut inbound = says(bytes);
    let first = inbound.message().await;
    let opened = first.map_err(|status| over(&status)).and_then(welcome_of);
    let welcome = match opened {
        Ok(welcome) => welcome,
        Err(over) => return over.why,
    };
    let mut told: Vec<_> =
        welcome.hub_endpoints.iter().map(|text| text.parse::<Address>().is_ok().to_string()).collect();
    let (stream, _) = begin(&setup, inbound, out, CancellationToken::new(), welcome, &tasks);
    let (news, mut heard) = mpsc::channel(64);
    let (_orders, orders) = mpsc::channel(1);
    let over = stream.serve(orders, &news).await;
    told.push(over.why);
    drop(news);
    while let Some((_, news)) = heard.recv().await {
        told.push(format!("{news:?}"));
    }
    while let Ok(frame) = frames.try_recv() {
        told.push(match frame.frame {
            Some(ToHub::Reply(proto::Reply {
                outcome: Some(proto::reply::Outcome::Error(error)), ..
            })) => {
                format!("{error:?}")
            }
            other => format!("{other:?}"),
        });
    }
    let stopped = tasks.stop(Duration::from_secs(30)).await;
    assert!(tasks.failure().is_none(), "{:?}", tasks.failure());
    assert!(stopped.is_ok(), "commands of a stream that is over go on");
    told.join(" ")
}

#[tokio::test]
async fn fuzz_hub_frames() {
    let (opens, tasks) = (Opens::default(), Tasks::new("fuzz"));
    opens.0.gate.cancel();
    let runner = Runner::new(Cache::new(Arc::new(opens), &tasks), Limits::default());
    let seeds = seeds();
    let seeds: Vec<_> = seeds.iter().map(Vec::as_slice).collect();
    let words = [
        "\0\0\0\0\x02\x0a\0",
        "\u{8}\u{1}",
        "postgresql-database-plugin",
        "hub:1",
        "[::1]:1",
        "\"connection_url\":",
    ];
    let mut fuzzer = Fuzzer::new(&seeds, &words);
    while let Some(input) = fuzzer.input() {
        let watched = Fuzzer::watch(&input);
        let behaviour = stream_of(&input, &runner).await;
        assert!(tasks.failure().is_none(), "{:?}", tasks.failure());
        drop(watched);
        fuzzer.learn(input, &behaviour);
    }
    assert_eq!(
        runner.load(),
        crate::runner::Load::default(),
        "a command of a stream that is over has its place"
    );
}

#[test]
fn fuzz_redirects() {
    let detail = proto::RelayRedirect { relay_endpoint: "hub-1:50053".into() }.encode_to_vec();
    holdfast_tests::fuzz::fuzz(&[&detail], &["[::1]:1", "hub:", ":65536", "a@b:1"], |input| {
        let status = Status::with_details(tonic::Code::FailedPrecondition, "x", input.to_vec().into());
        let over = over(&status);
        let address = match &over.end {
            End::Redirected(to) => to.parse::<Address>().map(|address| address.server_name().is_ok()).is_ok(),
            _ => false,
        };
        format!("{:?} {address}", std::mem::discriminant(&over.end))
    });
}
