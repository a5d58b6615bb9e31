//! One stream of a spoke on this node: the commands under way on it, and what goes out.
//!
//! What must hold: a waiter is in the table before its frame is queued; a stream that ended takes nothing more and
//! lets every waiter go; what waits to go out is bounded, and so is what is under way.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream as FrameStream;
use holdfast_core::Mono;
use holdfast_core::SpokeName;
use holdfast_core::ownership::Stamp;
use holdfast_dbdriver::IdempotencyKey;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::{hub_frame, reply};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

use super::failure::CommandFailure;
use super::settings::QUEUE;

/// How long a command waits for room in the queue.
const QUEUE_WAIT: Duration = Duration::from_secs(1);
/// Acknowledgements, cancels and words of parting that wait for the spoke. One more is dropped: the spoke knows
/// deadlines itself, and a missing acknowledgement is what a stuck stream looks like.
const CONTROL: usize = 64;
/// Creations whose waiter went that are remembered for a late answer.
const LATE: usize = 64;

/// What a spoke is asked to do.
#[derive(Clone)]
pub struct Order {
    /// The method.
    pub method: proto::Method,
    /// The message that belongs to it.
    pub payload: Bytes,
    /// The creation that is meant, if one is.
    pub key: Option<IdempotencyKey>,
}

/// What a command brings.
pub type Answer = Result<Bytes, CommandFailure>;

/// Names a command on its stream.
type RequestId = [u8; 12];

/// Why a stream ends.
#[derive(Clone, Debug)]
pub enum End {
    /// The spoke left or its connection broke.
    Gone,
    /// Another stream of the same spoke won.
    Superseded {
        /// That one was made by the same daemon, which is moving: what is under way here may still finish.
        moving: bool,
    },
    /// This node ends it, with this status.
    Told(Status),
}

/// A stream of a spoke that ends on this node.
pub struct Stream {
    /// Whose it is, by its certificate.
    pub spoke: SpokeName,
    /// Which of the spoke's dials.
    pub stamp: Stamp,
    /// Since when.
    pub connected: Mono,
    frames: mpsc::Sender<proto::HubFrame>,
    control: mpsc::Sender<proto::HubFrame>,
    waiting: Mutex<Waiting>,
    idle: Notify,
    max_in_flight: usize,
    last_seen: AtomicU64,
    cert_not_after: AtomicI64,
    leaving: AtomicBool,
    sent_away: AtomicBool,
    renewing: AtomicBool,
    end: OnceLock<End>,
    ended: CancellationToken,
    /// Everything that was to go out has gone, or never will.
    flushed: CancellationToken,
    /// Ends the connection below.
    cut: CancellationToken,
}

#[derive(Default)]
struct Waiting {
    closed: bool,
    waiters: HashMap<RequestId, oneshot::Sender<Answer>>,
    /// Creations that nobody waits for any more.
    late: VecDeque<(RequestId, IdempotencyKey)>,
}

/// What a stream is made of beside what it makes itself.
pub struct Birth {
    /// Whose it is.
    pub spoke: SpokeName,
    /// Which of its dials.
    pub stamp: Stamp,
    /// Now.
    pub now: Mono,
    /// When its certificate ends, in seconds since 1970; 0 when that is unknown.
    pub cert_not_after: i64,
    /// The most commands under way.
    pub max_in_flight: usize,
    /// Ends the connection below.
    pub cut: CancellationToken,
}

impl Stream {
    /// A stream, and what goes out on it.
    pub fn new(birth: Birth) -> (Arc<Self>, Outgoing) {
        let (frames, queued) = mpsc::channel(QUEUE);
        let (control, urgent) = mpsc::channel(CONTROL);
        let stream = Arc::new(Self {
            spoke: birth.spoke,
            stamp: birth.stamp,
            connected: birth.now,
            frames,
            control,
            waiting: Mutex::default(),
            idle: Notify::new(),
            max_in_flight: birth.max_in_flight,
            last_seen: AtomicU64::new(millis(birth.now)),
            cert_not_after: AtomicI64::new(birth.cert_not_after),
            leaving: AtomicBool::new(false),
            sent_away: AtomicBool::new(false),
            renewing: AtomicBool::new(false),
            end: OnceLock::new(),
            ended: CancellationToken::new(),
            flushed: CancellationToken::new(),
            cut: birth.cut,
        });
        let ended = Box::pin(stream.ended.clone().cancelled_owned());
        let outgoing =
            Outgoing { control: urgent, frames: queued, ended, over: false, stream: Arc::clone(&stream) };
        (stream, outgoing)
    }

    /// Runs a command; dropping the future cancels it.
    pub async fn run(&self, order: Order, deadline: Instant) -> Answer {
        let mut waiter = self.enter(&order)?;
        let now = Instant::now();
        if deadline <= now {
            return Err(CommandFailure::Deadline { sent: false });
        }
        let room = match timeout_at(deadline.min(now + QUEUE_WAIT), self.frames.reserve()).await {
            Ok(Ok(room)) => room,
            Ok(Err(_)) => return Err(CommandFailure::NotConnected),
            Err(_) if Instant::now() >= deadline => return Err(CommandFailure::Deadline { sent: false }),
            Err(_) => return Err(CommandFailure::Busy),
        };
        if self.ended.is_cancelled() {
            return Err(CommandFailure::NotConnected);
        }
        waiter.sent = true;
        room.send(waiter.frame(order, deadline));
        match timeout_at(deadline, &mut waiter.answer).await {
            Ok(answer) => {
                waiter.sent = false;
                answer.unwrap_or(Err(CommandFailure::Lost { reconnected: false }))
            }
            Err(_) => Err(CommandFailure::Deadline { sent: true }),
        }
    }

    fn enter(&self, order: &Order) -> Result<Waiter<'_>, CommandFailure> {
        let id: RequestId = holdfast_ops::rand::bytes();
        let (send, answer) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        if waiting.closed || self.leaving.load(Ordering::Acquire) {
            return Err(CommandFailure::NotConnected);
        }
        if waiting.waiters.len() >= self.max_in_flight {
            return Err(CommandFailure::Busy);
        }
        waiting.waiters.insert(id, send);
        let creates = order.key.filter(|_| order.method == proto::Method::NewUser);
        Ok(Waiter { stream: self, id, answer, sent: false, creates })
    }

    /// Hands a reply to who waits for it. One that nobody waits for is dropped; if it reports that a user was made,
    /// the creation is returned.
    pub fn answer(&self, reply: proto::Reply) -> Option<IdempotencyKey> {
        let mut id = RequestId::default();
        hex::decode_to_slice(&reply.request_id, &mut id).ok()?;
        let made = matches!(reply.outcome, Some(reply::Outcome::Output(_)));
        let waiter = {
            let mut waiting = self.waiting.lock();
            let waiter = waiting.waiters.remove(&id);
            if waiter.is_none() {
                let at = waiting.late.iter().position(|(late, _)| *late == id)?;
                return waiting.late.remove(at).filter(|_| made).map(|(_, key)| key);
            }
            self.tell_idle(&waiting);
            waiter?
        };
        let answer = match reply.outcome {
            Some(reply::Outcome::Output(output)) => Ok(output),
            Some(reply::Outcome::Error(error)) => Err(error.into()),
            None => Err(proto::CommandError::default().into()),
        };
        // Whoever waited may have given up in this very moment.
        drop(waiter.send(answer));
        None
    }

    /// Something came on the stream.
    pub fn seen(&self, now: Mono) {
        self.last_seen.store(millis(now), Ordering::Relaxed);
    }

    /// How long ago the last frame came.
    pub fn seen_age(&self, now: Mono) -> Duration {
        Duration::from_millis(millis(now).saturating_sub(self.last_seen.load(Ordering::Relaxed)))
    }

    /// When the spoke's certificate ends, in seconds since 1970; 0 when that is unknown.
    pub fn cert_not_after(&self) -> i64 {
        self.cert_not_after.load(Ordering::Relaxed)
    }

    /// The certificate was renewed in place.
    pub fn set_cert_not_after(&self, at: i64) {
        self.cert_not_after.store(at, Ordering::Relaxed);
    }

    /// Commands under way.
    pub fn in_flight(&self) -> usize {
        self.waiting.lock().waiters.len()
    }

    /// Sends something that is no command. When the spoke takes nothing it is dropped.
    pub fn tell(&self, frame: hub_frame::Frame) {
        drop(self.control.try_send(proto::HubFrame { frame: Some(frame) }));
    }

    /// Takes no new commands; those under way go on.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// This node told the spoke to move.
    pub fn send_away(&self) {
        self.sent_away.store(true, Ordering::Release);
    }

    /// Whether this node told the spoke to move.
    pub fn is_sent_away(&self) -> bool {
        self.sent_away.load(Ordering::Acquire)
    }

    /// Takes the one place for a renewal; false while another is under way.
    pub fn begin_renewal(&self) -> bool {
        !self.renewing.swap(true, Ordering::AcqRel)
    }

    /// Gives it back.
    pub fn end_renewal(&self) {
        self.renewing.store(false, Ordering::Release);
    }

    /// Ends the stream: what waits to go out is dropped but for words of parting, and every waiter is let go.
    pub fn end(&self, end: End) {
        let reconnected = matches!(end, End::Superseded { .. });
        // The first reason stays.
        drop(self.end.set(end));
        let waiters = {
            let mut waiting = self.waiting.lock();
            waiting.closed = true;
            std::mem::take(&mut waiting.waiters)
        };
        for waiter in waiters.into_values() {
            drop(waiter.send(Err(CommandFailure::Lost { reconnected })));
        }
        self.idle.notify_waiters();
        self.ended.cancel();
    }

    /// Resolves when the stream ends.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Whether it ended.
    pub fn is_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Resolves when nothing is under way any more.
    pub async fn idle(&self) {
        loop {
            let mut notified = std::pin::pin!(self.idle.notified());
            notified.as_mut().enable();
            if self.in_flight() == 0 {
                return;
            }
            notified.await;
        }
    }

    /// Gives the last words `grace` to go out, then ends the connection.
    pub async fn cut_after(&self, grace: Duration) {
        drop(tokio::time::timeout(grace, self.flushed.cancelled()).await);
        self.cut.cancel();
    }

    fn tell_idle(&self, waiting: &Waiting) {
        if waiting.waiters.is_empty() {
            self.idle.notify_waiters();
        }
    }
}

fn millis(at: Mono) -> u64 {
    u64::try_from(at.since(Mono::ZERO).as_millis()).unwrap_or(u64::MAX)
}

/// A command that is waited for.
struct Waiter<'a> {
    stream: &'a Stream,
    id: RequestId,
    answer: oneshot::Receiver<Answer>,
    /// It was sent, and no answer came yet.
    sent: bool,
    creates: Option<IdempotencyKey>,
}

impl Waiter<'_> {
    fn frame(&self, order: Order, deadline: Instant) -> proto::HubFrame {
        let left = deadline.saturating_duration_since(Instant::now());
        let command = proto::Command {
            request_id: hex::encode(self.id),
            method: order.method.into(),
            payload: order.payload,
            deadline_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            idempotency_key: order.key.map(|key| Bytes::copy_from_slice(key.as_bytes())).unwrap_or_default(),
        };
        proto::HubFrame { frame: Some(hub_frame::Frame::Command(command)) }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.stream.waiting.lock();
        waiting.waiters.remove(&self.id);
        self.stream.tell_idle(&waiting);
        if !self.sent {
            return;
        }
        if let Some(key) = self.creates {
            if waiting.late.len() >= LATE {
                waiting.late.pop_front();
            }
            waiting.late.push_back((self.id, key));
        }
        drop(waiting);
        self.stream.tell(hub_frame::Frame::Cancel(proto::Cancel { request_id: hex::encode(self.id) }));
    }
}

/// What goes out on a stream, in order: words of the hub itself first, then commands.
pub struct Outgoing {
    control: mpsc::Receiver<proto::HubFrame>,
    frames: mpsc::Receiver<proto::HubFrame>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    over: bool,
    stream: Arc<Stream>,
}

impl FrameStream for Outgoing {
    type Item = Result<proto::HubFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(Some(frame)) = self.control.poll_recv(cx) {
            return Poll::Ready(Some(Ok(frame)));
        }
        if self.ended.as_mut().poll(cx).is_ready() {
            self.over = true;
            return Poll::Ready(match self.stream.end.get() {
                Some(End::Told(status)) => Some(Err(status.clone())),
                _ => None,
            });
        }
        match self.frames.poll_recv(cx) {
            Poll::Ready(Some(frame)) => Poll::Ready(Some(Ok(frame))),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // The connection is gone, or everything was said.
        self.stream.flushed.cancel();
        self.stream.end(End::Gone);
    }
}

#[cfg(test)]
mod tests;
