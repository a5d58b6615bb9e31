//! A watch session: the streams of one connection, run by the book.
//!
//! What must hold: the watches are called alive only when they told everything up to a revision that a quorum
//! confirmed after the question was asked.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, SelectAll};
use futures_util::{FutureExt as _, Stream, StreamExt as _, TryFutureExt as _, TryStreamExt as _, stream};
use holdfast_core::AnswerKind;
use holdfast_core::freshness::Outcome;
use holdfast_proto::etcd::watch_client::WatchClient;
use holdfast_proto::etcd::{RangeRequest, WatchRequest, WatchResponse};
use http::Uri;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::metadata::MetadataValue;
use tonic::{Status, Streaming};

use super::super::subscriptions::{Subscriptions, WatchId};
use super::book::{Book, Step, StreamId};
use super::channel::{Channel, Link, MAX_ANSWER};
use super::errors::failure;
use crate::config::UpstreamSettings;
use crate::provider::Sink;

/// The longest time between two questions how far the streams have told.
const BEAT: Duration = Duration::from_secs(20);

/// How often things happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Between two questions how far the streams have told.
    pub(super) beat: Duration,
    /// Silence after which a connection is dead.
    pub(super) idle: Duration,
}

impl Times {
    pub(super) fn of(settings: &UpstreamSettings) -> Self {
        let or = |set: Option<holdfast_ops::Duration>, seconds| {
            set.map_or(Duration::from_secs(seconds), Into::into)
        };
        let (confirm, idle) = (or(settings.confirm, 60), or(settings.watch_idle, 45));
        Self { beat: (confirm.min(idle) / 3).clamp(Duration::from_secs(1), BEAT), idle }
    }
}

/// Keeps all watches on one connection until it breaks; returns how.
pub(super) async fn session(
    channel: &Arc<Channel>,
    subscriptions: &Subscriptions,
    times: Times,
) -> AnswerKind {
    let link = match channel.link().await {
        Ok(link) => link,
        Err(failure) => return failure.kind,
    };
    let session = Session {
        link: &link,
        channel,
        subscriptions,
        book: Book::default(),
        outboxes: BTreeMap::new(),
        streams: SelectAll::new(),
        probe: None,
        confirmed: None,
    };
    let kind = session.run(times).await;
    channel.leave(&link).await;
    kind
}

type Said = (StreamId, Result<Option<WatchResponse>, Status>);

struct Session<'a> {
    link: &'a Link,
    channel: &'a Arc<Channel>,
    subscriptions: &'a Subscriptions,
    book: Book,
    outboxes: BTreeMap<StreamId, Arc<Outbox>>,
    streams: SelectAll<BoxStream<'static, Said>>,
    /// Asks a quorum for its revision.
    probe: Option<BoxFuture<'static, Option<i64>>>,
    /// What the quorum said.
    confirmed: Option<i64>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.outboxes.values().for_each(|outbox| outbox.close());
    }
}

impl Session<'_> {
    async fn run(mut self, times: Times) -> AnswerKind {
        let mut changes = self.subscriptions.changes();
        let mut beat = tokio::time::interval_at(Instant::now() + times.beat, times.beat);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut turn = 0;
        let mut steps = Vec::new();
        self.want(&mut steps);
        loop {
            if let Err(kind) = self.take(std::mem::take(&mut steps)).await {
                return kind;
            }
            let due = self.book.next_deadline().into_iter().chain(self.book.next_retry()).min();
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() { return AnswerKind::Unavailable; }
                    self.want(&mut steps);
                }
                Some((stream, said)) = self.streams.next(), if !self.streams.is_empty() => match said {
                    Ok(Some(answer)) => self.book.on(stream, answer, Instant::now(), &mut steps),
                    Ok(None) => return AnswerKind::Unavailable,
                    Err(status) => return failure(&status).kind,
                },
                confirmed = until(&mut self.probe) => {
                    self.probe = None;
                    self.confirmed = confirmed;
                    if confirmed.is_some() { self.book.ask_progress(&mut steps); }
                }
                _ = beat.tick() => { turn += 1; self.begin_probe(turn); }
                () = sleep_until(due) => {
                    self.book.tick(Instant::now(), &mut steps);
                    self.want(&mut steps);
                }
            }
        }
    }

    fn want(&mut self, steps: &mut Vec<Step>) {
        let wanted: Vec<_> =
            self.subscriptions.all().into_iter().map(|one| (one.id, one.object.path)).collect();
        self.book.want(&wanted, Instant::now(), steps);
    }

    async fn take(&mut self, steps: Vec<Step>) -> Result<(), AnswerKind> {
        for step in steps {
            match step {
                Step::Open(stream) => self.open(stream),
                Step::Send(stream, request) => {
                    if let Some(outbox) = self.outboxes.get(&stream) {
                        outbox.put(request);
                    }
                }
                Step::LogIn => self.channel.log_in(self.link).await.map_err(|failure| failure.kind)?,
                Step::Subscribed(id) => self.subscriptions.subscribed(id),
                Step::Put(id, kv, cluster) => {
                    let value = super::value(kv, cluster);
                    self.tell(id, |sink| sink.event(Outcome::Value { value: value.clone(), passed: None }));
                }
                Step::Changed(id) => self.tell(id, |sink| sink.changed()),
                Step::Refused(id, failure) => self.subscriptions.lost(id, failure.kind),
                Step::Progress(revision, ids) => {
                    if self.confirmed.is_some_and(|confirmed| revision >= confirmed) {
                        ids.into_iter().for_each(|id| self.tell(id, |sink| sink.confirmed()));
                    }
                }
                Step::End => return Err(AnswerKind::Unavailable),
            }
        }
        Ok(())
    }

    fn tell(&self, id: WatchId, what: impl Fn(&dyn Sink)) {
        if let Some(subscription) = self.subscriptions.one(id) {
            what(subscription.sink.as_ref());
        }
    }

    fn open(&mut self, stream: StreamId) {
        let outbox = Arc::new(Outbox::default());
        self.outboxes.insert(stream, Arc::clone(&outbox));
        let mut request = tonic::Request::new(Requests(outbox));
        // A member that lost the leader ends the stream instead of going on in silence.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut client = WatchClient::with_origin(self.link.clone(), Uri::clone(&self.link.origin))
            .max_decoding_message_size(MAX_ANSWER);
        let answers: BoxFuture<'static, Result<Streaming<WatchResponse>, Status>> =
            Box::pin(async move { Ok(client.watch(request).await?.into_inner()) });
        let answers = answers.try_flatten_stream().map_ok(Some).chain(stream::iter([Ok(None)]));
        self.streams.push(answers.map(move |said| (stream, said)).boxed());
    }

    fn begin_probe(&mut self, turn: usize) {
        let Some(key) = self.book.some_key(turn).filter(|_| self.probe.is_none()) else { return };
        let key = key.to_owned().into();
        let request = RangeRequest { key, count_only: true, ..RangeRequest::default() };
        let channel = Arc::clone(self.channel);
        let ask = async move { channel.range(request).await.ok()?.header.map(|header| header.revision) };
        self.probe = Some(ask.boxed());
    }
}

async fn until<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        // sleep: a deadline of the book
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// What is to be sent on a stream: at most a request a change of the watches, and one a beat.
#[derive(Default)]
struct Outbox(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    requests: VecDeque<WatchRequest>,
    closed: bool,
    waker: Option<Waker>,
}

impl Outbox {
    fn put(&self, request: WatchRequest) {
        self.wake(|queue| queue.requests.push_back(request));
    }

    /// Ends the sending side of the stream.
    fn close(&self) {
        self.wake(|queue| queue.closed = true);
    }

    fn wake(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.0.lock();
        change(&mut queue);
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
    }
}

/// The sending side of a stream.
struct Requests(Arc<Outbox>);

impl Stream for Requests {
    type Item = WatchRequest;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchRequest>> {
        let mut queue = self.0.0.lock();
        if queue.closed {
            return Poll::Ready(None);
        }
        let first = queue.requests.pop_front();
        if first.is_none() {
            queue.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(first)
    }
}
