use holdfast_core::AnswerKind;
use holdfast_proto::etcd::ResponseHeader;

use super::super::super::subscriptions::{Subscriptions, WatchId};
use super::super::super::testing::{Recorder, object};
use super::*;
use crate::config::Scheme;

const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);

/// So many ids of watches.
fn ids(count: usize) -> Vec<WatchId> {
    let subscriptions = Subscriptions::new();
    let guards: Vec<_> =
        (0..count).map(|_| subscriptions.add(&object(Scheme::Etcd, "k"), Recorder::new())).collect();
    let ids = subscriptions.all().into_iter().map(|subscription| subscription.id).collect();
    drop(guards);
    ids
}

fn wanted(ids: &[WatchId]) -> Vec<(WatchId, String)> {
    ids.iter().map(|id| (*id, format!("{id:?}"))).collect()
}

fn created(watch_id: i64) -> WatchResponse {
    WatchResponse { watch_id, created: true, ..WatchResponse::default() }
}

/// As etcd refuses: without the watch's id.
fn refusal(reason: &str) -> WatchResponse {
    refused(NOT_ONE, reason)
}

fn refused(watch_id: i64, reason: &str) -> WatchResponse {
    WatchResponse { canceled: true, cancel_reason: reason.to_owned(), ..created(watch_id) }
}

fn want(book: &mut Book, ids: &[WatchId], now: Instant) -> Vec<Step> {
    let mut out = Vec::new();
    book.want(&wanted(ids), now, &mut out);
    out
}

fn on(book: &mut Book, stream: StreamId, answer: WatchResponse, now: Instant) -> Vec<Step> {
    let mut out = Vec::new();
    book.on(stream, answer, now, &mut out);
    out
}

fn tick(book: &mut Book, now: Instant) -> Vec<Step> {
    let mut out = Vec::new();
    book.tick(now, &mut out);
    out
}

fn asks(stream: StreamId, watch_id: i64, id: WatchId) -> Step {
    Step::Send(stream, create(watch_id, &format!("{id:?}")))
}

#[test]
fn all_watches_share_a_stream_and_each_tells_when_it_stands() {
    let (mut book, now, ids) = (Book::default(), Instant::now(), ids(3));
    let out = want(&mut book, &ids[..2], now);
    assert_eq!(out, [Step::Open(ONE), asks(ONE, 1, ids[0]), asks(ONE, 2, ids[1])]);
    assert_eq!(on(&mut book, ONE, created(1), now), [Step::Subscribed(ids[0])]);
    assert_eq!(on(&mut book, ONE, created(2), now), [Step::Subscribed(ids[1])]);
    let out = want(&mut book, &[ids[1], ids[2]], now);
    assert_eq!(out, [Step::Send(ONE, cancel(1)), asks(ONE, 3, ids[2])]);
    assert_eq!(on(&mut book, ONE, created(3), now), [Step::Subscribed(ids[2])]);
    assert_eq!(book.next_deadline(), None);
    assert_eq!(want(&mut book, &[ids[1], ids[2]], now), []);
}

#[test]
fn the_last_event_of_an_answer_counts_and_an_absence_is_read() {
    let (mut book, now, ids) = (Book::default(), Instant::now(), ids(1));
    want(&mut book, &ids, now);
    on(&mut book, ONE, created(1), now);
    let put = |revision| Event {
        r#type: EventType::Put.into(),
        kv: Some(KeyValue { mod_revision: revision, ..KeyValue::default() }),
    };
    let gone = Event { r#type: EventType::Delete.into(), kv: put(9).kv };
    let header = Some(ResponseHeader { cluster_id: 3, ..ResponseHeader::default() });
    let answer = |events| WatchResponse { watch_id: 1, events, header, ..WatchResponse::default() };
    let out = on(&mut book, ONE, answer(vec![put(7), gone.clone(), put(8)]), now);
    assert_eq!(out, [Step::Put(ids[0], put(8).kv.unwrap(), 3)]);
    assert_eq!(on(&mut book, ONE, answer(vec![gone]), now), [Step::Changed(ids[0])]);
}

#[test]
fn a_refused_watch_waits_and_one_that_was_compacted_is_asked_for_at_once() {
    let (mut book, now, ids) = (Book::default(), Instant::now(), ids(2));
    want(&mut book, &ids, now);
    let out = on(&mut book, ONE, refusal("etcdserver: permission denied"), now);
    assert_eq!(out, [Step::Refused(ids[0], Failure::of(AnswerKind::PermissionDenied))]);
    on(&mut book, ONE, created(2), now);
    let compacted = WatchResponse { compact_revision: 7, ..refused(2, "") };
    assert_eq!(on(&mut book, ONE, compacted, now), [asks(ONE, 3, ids[1])]);
    assert_eq!(want(&mut book, &ids, now), []);
    assert_eq!(book.next_retry(), Some(now + REFUSED));
    assert_eq!(want(&mut book, &ids, now + REFUSED), [asks(ONE, 4, ids[0])]);
}

#[test]
fn what_a_stream_leaves_unanswered_after_a_refusal_is_asked_for_on_another_one() {
    let (mut book, now, ids) = (Book::default(), Instant::now(), ids(4));
    want(&mut book, &ids[..3], now);
    on(&mut book, ONE, created(1), now);
    on(&mut book, ONE, refusal("etcdserver: permission denied"), now);
    assert_eq!(tick(&mut book, now + PATIENCE / 2), []);
    assert_eq!(book.next_deadline(), Some(now + PATIENCE));
    let later = now + PATIENCE;
    assert_eq!(tick(&mut book, later), [Step::Open(TWO), asks(TWO, 4, ids[2])]);
    assert_eq!(on(&mut book, TWO, created(4), later), [Step::Subscribed(ids[2])]);
    // The first watch stands where it stood; a late answer about the moved one is taken back.
    assert_eq!(on(&mut book, ONE, created(3), later), [Step::Send(ONE, cancel(3))]);
    let wanted = [ids[0], ids[2], ids[3]];
    assert_eq!(want(&mut book, &wanted, later), [asks(TWO, 5, ids[3])]);
}

#[test]
fn a_stream_that_never_answers_ends_the_session() {
    let (mut book, now, ids) = (Book::default(), Instant::now(), ids(1));
    want(&mut book, &ids, now);
    assert_eq!(tick(&mut book, now + PATIENCE), [Step::End]);
}

#[test]
fn a_token_that_is_over_is_renewed_before_the_next_stream() {
    let (mut book, now, ids) = (Book::default(), Instant::now(), ids(2));
    want(&mut book, &ids[..1], now);
    let out = on(&mut book, ONE, refused(1, "etcdserver: invalid auth token"), now);
    assert_eq!(out, [Step::LogIn, Step::Refused(ids[0], Failure::own_login())]);
    assert_eq!(want(&mut book, &ids, now), [Step::Open(TWO), asks(TWO, 2, ids[1])]);
}

#[test]
fn progress_tells_only_the_watches_that_stand_on_the_stream() {
    let (mut book, now, ids) = (Book::default(), Instant::now(), ids(2));
    want(&mut book, &ids, now);
    on(&mut book, ONE, created(1), now);
    let header = Some(ResponseHeader { revision: 12, ..ResponseHeader::default() });
    let answer = WatchResponse { watch_id: -1, header, ..WatchResponse::default() };
    assert_eq!(on(&mut book, ONE, answer, now), [Step::Progress(12, vec![ids[0]])]);
    assert_eq!(book.some_key(5), Some(format!("{:?}", ids[0]).as_str()));
    assert_eq!(Book::default().some_key(5), None);
}
