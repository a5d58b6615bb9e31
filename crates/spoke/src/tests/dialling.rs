//! Epochs, addresses, redirects, rivals and drains, over real connections.

use std::time::Duration;

use holdfast_core::epoch::dialer::Timing;
use holdfast_dbdriver::wire::Request;
use holdfast_proto::redirect;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame as FromHub;
use holdfast_proto::relay::v1::spoke_frame::Frame as ToHub;
use tonic::Status;

use super::fake::{command, creation, eventually, instance};
use super::hub::{Authority, Hub, Spoke, options};

#[tokio::test]
async fn the_epoch_grows_with_every_dial_is_on_disk_before_it_and_survives_a_restart() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let on_disk = || std::fs::read_to_string(dir.path().join("session")).unwrap();
    let spoke = Spoke::start(options(&dir, &[&hub.address]));
    let (first, hello) = hub.welcomed().await;
    assert!(hello.session_epoch > 1_700_000_000_000, "it begins at the time");
    assert_eq!(on_disk(), format!("holdfast-session-1 {}\n", hello.session_epoch));
    assert_eq!(
        (hello.protocol, hello.boot_id.len(), hello.max_concurrency, hello.plugins.len()),
        (1, 16, 32, 2)
    );
    drop(first);
    let (_second, again) = hub.welcomed().await;
    assert_eq!((again.session_epoch, &again.boot_id), (hello.session_epoch + 1, &hello.boot_id));
    assert_eq!(spoke.stop().await, 0);
    let spoke = Spoke::start(options(&dir, &[&hub.address]));
    let (_third, restarted) = hub.welcomed().await;
    assert_eq!(restarted.session_epoch, again.session_epoch + 1);
    assert_ne!(restarted.boot_id, hello.boot_id);
    assert_eq!(spoke.stop().await, 0);
}

#[tokio::test]
async fn a_counter_that_cannot_be_written_lives_in_memory() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    // No file can take the place of a directory that is not empty.
    std::fs::create_dir_all(dir.path().join("session/x")).unwrap();
    let spoke = Spoke::start(options(&dir, &[&hub.address]));
    let (first, hello) = hub.welcomed().await;
    drop(first);
    let (_second, again) = hub.welcomed().await;
    assert_eq!(again.session_epoch, hello.session_epoch + 1);
    assert_eq!(spoke.stop().await, 0);
}

#[tokio::test]
async fn it_finds_the_node_that_lives_and_those_that_a_hub_told_of() {
    let authority = Authority::new();
    let (mut one, mut other, dir) =
        (Hub::start(&authority).await, Hub::start(&authority).await, authority.spoke());
    let spoke = Spoke::start(options(&dir, &["127.0.0.1:1", &one.address]));
    let mut stream = one.stream().await;
    stream.hello().await;
    stream.welcome(&[&other.address, "not an address"]).await;
    // A reply shows that the welcome was read.
    stream.command(command("t", &Request::Type, proto::Instance::default())).await;
    stream.reply().await;
    drop((stream, one));
    other.welcomed().await;
    assert_eq!(spoke.stop().await, 0);
}

#[tokio::test]
async fn a_redirect_is_followed_at_the_beginning_and_in_the_middle() {
    let authority = Authority::new();
    let (mut one, mut other, dir) =
        (Hub::start(&authority).await, Hub::start(&authority).await, authority.spoke());
    one.refusals.lock().push_back(redirect(other.address.clone()));
    let spoke = Spoke::start(options(&dir, &[&one.address]));
    let (stream, _) = other.welcomed().await;
    stream.fail(redirect(one.address.clone())).await;
    let (stream, _) = one.welcomed().await;
    // The code without the detail is an ordinary end: the last good address is dialled again.
    stream.fail(Status::failed_precondition("no detail")).await;
    one.welcomed().await;
    assert!(other.no_stream());
    assert_eq!(spoke.stop().await, 0);
}

#[tokio::test]
async fn two_nodes_that_redirect_to_each_other_are_left_alone_and_then_tried_anew() {
    let authority = Authority::new();
    let (mut one, other, dir) =
        (Hub::start(&authority).await, Hub::start(&authority).await, authority.spoke());
    for _ in 0..3 {
        one.refusals.lock().push_back(redirect(other.address.clone()));
        other.refusals.lock().push_back(redirect(one.address.clone()));
    }
    let timing = Timing { redirect_limit: Duration::from_millis(50), ..options(&dir, &["a:1"]).timing };
    let spoke = Spoke::start(daemon_options(&dir, &one, timing, false));
    let (_stream, hello) = one.welcomed().await;
    let first = hello.session_epoch - 6;
    assert!(
        first > 0 && one.refusals.lock().is_empty() && other.refusals.lock().is_empty(),
        "six dials, then anew"
    );
    assert_eq!(spoke.stop().await, 0);
    for _ in 0..6 {
        one.refusals.lock().push_back(redirect(other.address.clone()));
        other.refusals.lock().push_back(redirect(one.address.clone()));
    }
    let once = Spoke::start(daemon_options(&dir, &one, timing, true));
    assert_eq!(once.ended().await.unwrap(), 1);
    assert_eq!((one.refusals.lock().len(), other.refusals.lock().len()), (3, 3));
}

fn daemon_options(dir: &tempfile::TempDir, hub: &Hub, timing: Timing, once: bool) -> crate::daemon::Options {
    crate::daemon::Options { timing, once, ..options(dir, &[&hub.address]) }
}

#[tokio::test]
async fn a_dead_stream_of_another_daemon_is_outbid_at_once_and_a_living_one_waited_for() {
    let authority = Authority::new();
    let (mut hub, dir) = (Hub::start(&authority).await, authority.spoke());
    let timing = Timing { rival: Duration::from_millis(500), ..options(&dir, &["a:1"]).timing };
    let spoke = Spoke::start(daemon_options(&dir, &hub, timing, false));
    let mut stream = hub.stream().await;
    let hello = stream.hello().await;
    let by_epoch = hello.session_epoch + 1000;
    let superseded = |by_epoch, alive| {
        FromHub::Superseded(proto::Superseded { by_epoch, by_boot_id: vec![9; 16].into(), alive })
    };
    stream.send(superseded(by_epoch, false)).await;
    let (stream, hello) = hub.welcomed().await;
    assert_eq!(hello.session_epoch, by_epoch + 1);
    let before = std::time::Instant::now();
    stream.send(superseded(by_epoch + 2, true)).await;
    let (_stream, hello) = hub.welcomed().await;
    assert!(before.elapsed() >= Duration::from_millis(400), "it waited");
    assert!(hello.session_epoch > by_epoch + 1);
    assert_eq!(spoke.stop().await, 0);
}

#[tokio::test]
async fn a_draining_stream_is_left_only_when_the_next_one_stands() {
    let authority = Authority::new();
    let (mut hub, mut next, dir) =
        (Hub::start(&authority).await, Hub::start(&authority).await, authority.spoke());
    let spoke = Spoke::start(options(&dir, &[&hub.address]));
    let (mut old, hello) = hub.welcomed().await;
    old.command(command("ann", &creation("ann"), instance("pg", 1, "slow", 4))).await;
    eventually("it runs", || spoke.fakes.running.load(std::sync::atomic::Ordering::SeqCst) == 1).await;
    let drain = proto::Drain { reason: "restart".into(), grace_ms: 5000, redirect: next.address.clone() };
    old.send(FromHub::Drain(drain)).await;
    let mut new = next.stream().await;
    assert_eq!(new.hello().await.session_epoch, hello.session_epoch + 1);
    // Until the welcome the old one still takes commands.
    old.command(command("bob", &creation("bob"), instance("pg2", 1, "quick", 4))).await;
    assert_eq!(old.reply().await.request_id, "bob");
    new.welcome(&[]).await;
    assert!(matches!(old.next().await, Some(ToHub::Goodbye(_))));
    // What runs is finished on it, also after the goodbye.
    spoke.fakes.gate.cancel();
    let reply = old.reply().await;
    assert_eq!(reply.request_id, "ann");
    assert!(matches!(reply.outcome, Some(proto::reply::Outcome::Output(_))));
    assert_eq!(old.next().await, None);
    new.command(command("cid", &creation("cid"), instance("pg2", 1, "quick", 4))).await;
    assert_eq!(new.reply().await.request_id, "cid");
    assert_eq!(spoke.stop().await, 0);
}

#[tokio::test]
async fn an_impostor_gets_no_hello() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let (mut impostor, mut hub, dir) =
        (Hub::start(&foreign).await, Hub::start(&authority).await, authority.spoke());
    let spoke = Spoke::start(options(&dir, &[&impostor.address, &hub.address]));
    hub.welcomed().await;
    assert!(impostor.no_stream() && impostor.seen.lock().is_empty());
    assert_eq!(spoke.stop().await, 0);
}
