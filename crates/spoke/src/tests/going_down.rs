//! How a daemon ends: by a signal at any moment, with its first stream, or before it begins.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use holdfast_core::epoch::dialer::Timing;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::reply::Outcome;
use holdfast_proto::relay::v1::spoke_frame::Frame as ToHub;
use tonic::Status;

use super::fake::{command, creation, eventually, instance};
use super::hub::{Authority, Hub, Spoke, options};
use crate::daemon::Options;

#[tokio::test]
async fn a_signal_says_goodbye_finishes_what_runs_and_closes_the_drivers() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let spoke = Spoke::start(options(&dir, &[&hub.address]));
    let fakes = spoke.fakes.clone();
    let (mut stream, _) = hub.welcomed().await;
    stream.command(command("ann", &creation("ann"), instance("x", 1, "slow", 16))).await;
    eventually("it runs", || fakes.running.load(SeqCst) == 1).await;
    spoke.signal();
    assert!(matches!(stream.next().await, Some(ToHub::Goodbye(_))));
    stream.command(command("late", &creation("late"), instance("x", 1, "slow", 16))).await;
    let late = stream.reply().await;
    assert_eq!(late.request_id, "late");
    let Some(Outcome::Error(error)) = late.outcome else { panic!("it was done") };
    let refused = Some(proto::command_error::Kind::NotConnected(proto::NotConnected::default()));
    assert_eq!(error.kind, refused);
    fakes.gate.cancel();
    assert_eq!(stream.reply().await.request_id, "ann");
    // Until the hub ends the stream nothing that it sent is left without an answer.
    stream.command(command("later", &creation("later"), instance("x", 1, "slow", 16))).await;
    let later = stream.reply().await;
    let Some(Outcome::Error(error)) = later.outcome else { panic!("it was done") };
    assert_eq!((later.request_id.as_str(), error.kind), ("later", refused));
    drop(stream);
    assert_eq!(spoke.ended().await.unwrap(), 0);
    assert_eq!((fakes.opened.load(SeqCst), fakes.closed.load(SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_signal_is_heeded_in_the_middle_of_a_back_off_and_of_a_dial() {
    let authority = Authority::new();
    let dir = authority.spoke();
    let hour = Duration::from_secs(3600);
    let timing = Timing { first: hour, ceiling: hour, ..Timing::default() };
    let spoke = Spoke::start(Options { timing, ..options(&dir, &["127.0.0.1:1"]) });
    eventually("it has dialled", || dir.path().join("session").exists()).await;
    assert_eq!(spoke.stop().await, 0);
    // A port that accepts and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let spoke = Spoke::start(options(&dir, &[&address]));
    let _held = silent.accept().await.unwrap();
    assert_eq!(spoke.stop().await, 0);
}

#[tokio::test]
async fn once_ends_with_the_stream_and_says_how_it_went() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let address = hub.address.clone();
    let once = || Spoke::start(Options { once: true, ..options(&dir, &[&address]) });
    let spoke = once();
    let (stream, _) = hub.welcomed().await;
    drop(stream);
    assert_eq!(spoke.ended().await.unwrap(), 0, "the stream ended in order");
    let spoke = once();
    let (stream, _) = hub.welcomed().await;
    stream.fail(Status::unavailable("hub node sealed")).await;
    assert_eq!(spoke.ended().await.unwrap(), 1, "the stream failed");
    let spoke = Spoke::start(Options { once: true, ..options(&dir, &["127.0.0.1:1"]) });
    assert_eq!(spoke.ended().await.unwrap(), 1, "there was none");
}

#[tokio::test]
async fn without_good_credentials_it_does_not_start_and_names_the_file() {
    let authority = Authority::new();
    for (file, text) in [("key.pem", None), ("cert.pem", None), ("ca.pem", None), ("cert.pem", Some("x"))] {
        let dir = authority.spoke();
        match text {
            None => std::fs::remove_file(dir.path().join(file)).unwrap(),
            Some(text) => std::fs::write(dir.path().join(file), text).unwrap(),
        }
        let error = Spoke::start(options(&dir, &["127.0.0.1:1"])).ended().await.unwrap_err();
        assert_eq!(error.exit_code(), 1);
        assert!(error.to_string().contains(file), "{error}");
    }
    let (one, other) = (authority.spoke(), authority.spoke());
    std::fs::copy(other.path().join("key.pem"), one.path().join("key.pem")).unwrap();
    let error = Spoke::start(options(&one, &["127.0.0.1:1"])).ended().await.unwrap_err();
    assert!(error.to_string().contains("key.pem"), "{error}");
}
