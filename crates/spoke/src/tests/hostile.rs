//! A hub that sends what it must not: the stream may end, the daemon goes on.

use holdfast_dbdriver::wire::Request;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame as FromHub;

use super::fake::{command, creation, instance};
use super::hub::{Authority, Hub, Spoke, options};

#[tokio::test]
async fn nothing_that_a_hub_sends_ends_the_daemon() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let spoke = Spoke::start(options(&dir, &[&hub.address]));
    let type_of = |id: &str| command(id, &Request::Type, proto::Instance::default());

    // Instead of a welcome: another frame, an end, nothing that can be read.
    let mut stream = hub.stream().await;
    stream.hello().await;
    stream.command(type_of("early")).await;
    assert_eq!(stream.next().await, None, "a command before the welcome ends the stream");
    drop(hub.stream().await);
    let mut stream = hub.stream().await;
    stream.hello().await;
    let nobody = proto::Superseded { by_epoch: u64::MAX, by_boot_id: vec![1; 3].into(), alive: true };
    stream.send(FromHub::Superseded(nobody)).await;
    assert_eq!(stream.next().await, None);

    // A second welcome.
    let (mut stream, _) = hub.welcomed().await;
    stream.welcome(&[]).await;
    assert_eq!(stream.next().await, None);

    // Larger than any frame may be.
    let (mut stream, _) = hub.welcomed().await;
    let huge = proto::Command { payload: vec![0; 17 << 20].into(), ..type_of("huge") };
    stream.command(huge).await;
    assert_eq!(stream.next().await, None);

    // What makes no sense within a stream leaves it open.
    let (mut stream, _) = hub.welcomed().await;
    stream.send(FromHub::HeartbeatAck(proto::HeartbeatAck { seq: u64::MAX })).await;
    stream.send(FromHub::Cancel(proto::Cancel { request_id: "nobody's".into() })).await;
    stream
        .send(FromHub::Renewed(proto::Renewed { request_id: "nobody's".into(), ..Default::default() }))
        .await;
    stream.send(FromHub::Token(proto::Token::default())).await;
    let garbage = proto::Command { payload: vec![255; 100].into(), method: 2, ..type_of("garbage") };
    stream.command(garbage).await;
    assert_eq!(stream.reply().await.request_id, "garbage");
    let far = proto::Command {
        deadline_ms: u64::MAX,
        ..command("far", &creation("a"), instance("x", 1, "quick", 0))
    };
    stream.command(far).await;
    assert_eq!(stream.reply().await.request_id, "far");
    stream.command(type_of("still here")).await;
    assert_eq!(stream.reply().await.request_id, "still here");
    assert_eq!(spoke.stop().await, 0);
}

#[tokio::test]
async fn a_hub_that_reads_no_replies_is_left() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let spoke = Spoke::start(options(&dir, &[&hub.address]));
    let (stream, _) = hub.welcomed().await;
    // Replies that are known at once have nowhere to go when the hub takes none; the id makes them large.
    let flood = async {
        for n in 0..4096 {
            let id = format!("{n}-{}", "x".repeat(60_000));
            let frame = FromHub::Command(command(&id, &Request::Type, proto::Instance::default()));
            if stream.try_send(frame).await.is_err() {
                return std::future::pending().await;
            }
        }
    };
    tokio::select! {
        next = hub.welcomed() => drop(next),
        () = flood => panic!("it keeps every reply"),
    }
    assert_eq!(spoke.stop().await, 0);
}
