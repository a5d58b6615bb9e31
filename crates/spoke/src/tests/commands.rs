//! Commands from the wire to the database and back.

use std::sync::atomic::Ordering::SeqCst;

use holdfast_dbdriver::wire::{Output, Request};
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::command_error::Kind as Failure;
use holdfast_proto::relay::v1::hub_frame::Frame as FromHub;
use holdfast_proto::relay::v1::reply::Outcome;
use holdfast_proto::relay::v1::spoke_frame::Frame as ToHub;

use super::fake::{command, creation, eventually, instance};
use super::hub::{Authority, Hub, Spoke, options};

fn failure(reply: proto::Reply) -> Failure {
    match reply.outcome {
        Some(Outcome::Error(error)) => error.kind.unwrap(),
        _ => panic!("no failure"),
    }
}

#[tokio::test]
async fn commands_run_side_by_side_and_a_cancel_reaches_one_that_runs() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let spoke = Spoke::start(options(&dir, &[&hub.address]));
    let (mut stream, _) = hub.welcomed().await;
    for n in 0..20 {
        stream
            .command(command(&format!("slow-{n}"), &creation(&format!("s{n}")), instance("x", 1, "slow", 16)))
            .await;
    }
    eventually("the pool is full", || spoke.fakes.running.load(SeqCst) == 16).await;
    for password in ["right", "wrong"] {
        let ask = Request::VerifyPassword { username: "u".into(), password: password.to_owned().into() };
        stream.command(command(password, &ask, instance("y", 1, "quick", 16))).await;
        let reply = stream.reply().await;
        let Some(Outcome::Output(output)) = reply.outcome else { panic!("{reply:?}") };
        let accepted = Output::decode(proto::Method::VerifyPassword, &output).unwrap();
        assert_eq!((reply.request_id.as_str(), accepted), (password, Output::Accepted(password == "right")));
    }
    stream.send(FromHub::Cancel(proto::Cancel { request_id: "slow-0".into() })).await;
    let reply = stream.reply().await;
    assert_eq!(reply.request_id, "slow-0");
    assert!(matches!(failure(reply), Failure::Driver(f) if f.reason == "cancelled"));
    spoke.fakes.gate.cancel();
    for _ in 0..19 {
        assert!(matches!(stream.reply().await.outcome, Some(Outcome::Output(_))));
    }
    assert_eq!(spoke.fakes.users.lock().len(), 19);
    assert_eq!(spoke.stop().await, 0);
}

#[tokio::test]
async fn what_a_stream_ran_is_cancelled_when_it_is_cut() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let spoke = Spoke::start(options(&dir, &[&hub.address]));
    let (stream, _) = hub.welcomed().await;
    stream.command(command("ann", &creation("ann"), instance("x", 1, "slow", 16))).await;
    eventually("it runs", || spoke.fakes.running.load(SeqCst) == 1).await;
    drop(stream);
    eventually("it ends", || spoke.fakes.running.load(SeqCst) == 0).await;
    let (mut stream, _) = hub.welcomed().await;
    stream.command(command("t", &Request::Type, proto::Instance::default())).await;
    assert_eq!(stream.reply().await.request_id, "t");
    assert!(spoke.fakes.users.lock().is_empty());
    assert_eq!(spoke.stop().await, 0);
}

#[tokio::test]
async fn heartbeats_tell_the_load_and_are_sent_as_long_as_they_are_answered() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let heartbeat = Some(std::time::Duration::from_millis(20));
    let spoke = Spoke::start(crate::daemon::Options { heartbeat, ..options(&dir, &[&hub.address]) });
    let (mut stream, _) = hub.welcomed().await;
    stream.command(command("ann", &creation("ann"), instance("x", 1, "slow", 16))).await;
    let mut seen = Vec::new();
    loop {
        let Some(ToHub::Heartbeat(beat)) = stream.next().await else { panic!("no heartbeat") };
        stream.send(FromHub::HeartbeatAck(proto::HeartbeatAck { seq: beat.seq })).await;
        seen.push(beat.seq);
        if beat.running == 1 && seen.len() >= 3 {
            break;
        }
    }
    assert!(seen.iter().copied().eq(1..=seen.last().copied().unwrap()), "{seen:?}");
    assert_eq!(spoke.stop().await, 0);
}
