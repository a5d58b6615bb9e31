use futures_util::StreamExt as _;
use holdfast_core::Epoch;
use holdfast_core::ownership::BootId;

use super::*;

const LONG: Duration = Duration::from_secs(30);

fn stream(max_in_flight: usize) -> (Arc<Stream>, Outgoing) {
    Stream::new(Birth {
        spoke: SpokeName::parse("spoke-1").unwrap(),
        stamp: Stamp { epoch: Epoch::new(1), boot: BootId::new([1; 16]) },
        now: Mono::ZERO,
        cert_not_after: 0,
        max_in_flight,
        cut: CancellationToken::new(),
    })
}

fn order(method: proto::Method) -> Order {
    Order { method, payload: Bytes::from_static(b"x"), key: Some(IdempotencyKey::from_bytes([9; 16])) }
}

fn output(request_id: String) -> proto::Reply {
    proto::Reply { request_id, outcome: Some(reply::Outcome::Output(Bytes::from_static(b"done"))) }
}

async fn next(outgoing: &mut Outgoing) -> Frame {
    outgoing.next().await.unwrap().unwrap().frame.unwrap()
}

use hub_frame::Frame;

async fn command(outgoing: &mut Outgoing) -> proto::Command {
    match next(outgoing).await {
        Frame::Command(command) => command,
        other => panic!("{other:?}"),
    }
}

fn run(stream: &Arc<Stream>, method: proto::Method, limit: Duration) -> tokio::task::JoinHandle<Answer> {
    let stream = Arc::clone(stream);
    #[allow(clippy::disallowed_methods)]
    tokio::spawn(async move { stream.run(order(method), Instant::now() + limit).await })
}

#[tokio::test(start_paused = true)]
async fn a_reply_reaches_the_one_who_waits() {
    let (stream, mut outgoing) = stream(4);
    let first = run(&stream, proto::Method::DeleteUser, LONG);
    let second = run(&stream, proto::Method::NewUser, LONG);
    let (a, b) = (command(&mut outgoing).await, command(&mut outgoing).await);
    assert_eq!((a.request_id.len(), a.deadline_ms), (24, 30_000));
    assert_ne!(a.request_id, b.request_id);
    assert_eq!(
        (a.method(), a.payload.as_ref(), a.idempotency_key.len()),
        (proto::Method::DeleteUser, &b"x"[..], 16)
    );
    assert!(stream.answer(output(b.request_id)).is_none());
    assert_eq!(second.await.unwrap().unwrap(), "done");
    assert!(stream.answer(output("no id".into())).is_none() && !first.is_finished());
    stream.answer(output(a.request_id));
    first.await.unwrap().unwrap();
    assert_eq!(stream.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_command_too_many_is_busy_at_once_and_a_full_queue_is_after_a_second() {
    let (stream, _outgoing) = stream(QUEUE + 2);
    let filling: Vec<_> = (0..QUEUE).map(|_| run(&stream, proto::Method::NewUser, LONG)).collect();
    tokio::task::yield_now().await;
    let before = Instant::now();
    let waits = run(&stream, proto::Method::NewUser, LONG);
    assert!(matches!(waits.await.unwrap(), Err(CommandFailure::Busy)));
    assert_eq!(before.elapsed(), QUEUE_WAIT);
    let late = run(&stream, proto::Method::NewUser, QUEUE_WAIT / 2);
    assert!(matches!(late.await.unwrap(), Err(CommandFailure::Deadline { sent: false })));
    let _more = [run(&stream, proto::Method::NewUser, LONG), run(&stream, proto::Method::NewUser, LONG)];
    tokio::task::yield_now().await;
    let before = Instant::now();
    let over = run(&stream, proto::Method::NewUser, LONG);
    assert!(matches!(over.await.unwrap(), Err(CommandFailure::Busy)));
    assert_eq!(before.elapsed(), Duration::ZERO);
    drop(filling);
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_has_the_command_cancelled_and_a_late_user_is_told_of() {
    let (stream, mut outgoing) = stream(4);
    let dropped = run(&stream, proto::Method::NewUser, LONG);
    let late = run(&stream, proto::Method::NewUser, Duration::from_secs(2));
    let (a, b) = (command(&mut outgoing).await, command(&mut outgoing).await);
    dropped.abort();
    let Frame::Cancel(cancel) = next(&mut outgoing).await else { panic!() };
    assert_eq!(cancel.request_id, a.request_id);
    assert!(matches!(late.await.unwrap(), Err(CommandFailure::Deadline { sent: true })));
    let Frame::Cancel(cancel) = next(&mut outgoing).await else { panic!() };
    assert_eq!(cancel.request_id, b.request_id);
    assert_eq!(stream.answer(output(b.request_id.clone())), Some(IdempotencyKey::from_bytes([9; 16])));
    assert_eq!(stream.answer(output(b.request_id)), None, "a second reply is dropped");
    let failed = proto::Reply {
        request_id: a.request_id,
        outcome: Some(reply::Outcome::Error(proto::CommandError::default())),
    };
    assert_eq!(stream.answer(failed), None, "nothing was made");
}

#[tokio::test(start_paused = true)]
async fn the_end_lets_every_waiter_go_and_takes_nothing_more() {
    for (end, reconnected) in [(End::Superseded { moving: false }, true), (End::Gone, false)] {
        let (stream, mut outgoing) = stream(4);
        let waits = run(&stream, proto::Method::NewUser, LONG);
        command(&mut outgoing).await;
        stream.tell(Frame::Superseded(proto::Superseded::default()));
        stream.end(end);
        let failure = waits.await.unwrap().unwrap_err();
        assert!(
            matches!(failure, CommandFailure::Lost { reconnected: r } if r == reconnected),
            "{failure:?}"
        );
        let refused = run(&stream, proto::Method::NewUser, LONG).await.unwrap();
        assert!(matches!(refused, Err(CommandFailure::NotConnected)));
        assert!(matches!(next(&mut outgoing).await, Frame::Superseded(_)), "last words go out");
        assert!(outgoing.next().await.is_none());
    }
    let (stream, mut outgoing) = stream(4);
    stream.end(End::Told(Status::unavailable("hub node sealed")));
    let status = outgoing.next().await.unwrap().unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, "hub node sealed"));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_left_finishes_what_is_under_way() {
    let (stream, mut outgoing) = stream(4);
    let waits = run(&stream, proto::Method::NewUser, LONG);
    let command = command(&mut outgoing).await;
    stream.leave();
    let refused = run(&stream, proto::Method::NewUser, LONG).await.unwrap();
    assert!(matches!(refused, Err(CommandFailure::NotConnected)));
    assert!(tokio::time::timeout(LONG / 2, stream.idle()).await.is_err());
    stream.answer(output(command.request_id));
    waits.await.unwrap().unwrap();
    tokio::time::timeout(LONG, stream.idle()).await.unwrap();
}
