//! One connection of a port: what is proven of its peer, whether it is busy, and how long it may be silent.
//!
//! What must hold: between two requests a connection ends in order after the limit of silence, and without ceremony when a
//! request's headers do not come to their end in time; while a request is under way neither limit counts.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use holdfast_ops::Tasks;
use http::Version;
use hyper::body::{Frame, SizeHint};
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Body, BodyError};

/// Who is at the other end of a Unix socket, as the kernel saw it when the connection was made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Process id, where the kernel tells it.
    pub pid: Option<i32>,
}

impl Credentials {
    pub(super) fn of(stream: &UnixStream) -> Option<Self> {
        let peer = stream.peer_cred().ok()?;
        Some(Self { uid: peer.uid(), gid: peer.gid(), pid: peer.pid() })
    }
}

/// A connection.
pub struct Connection {
    certificates: Option<Arc<[CertificateDer<'static>]>>,
    credentials: Option<Credentials>,
    /// Requests whose answer has not been written or given up.
    busy: AtomicUsize,
    /// Requests so far.
    requests: AtomicUsize,
    born: Instant,
    /// When the last request under way ended, in nanoseconds since `born`.
    ended: AtomicU64,
    h2: AtomicBool,
    h2_seen: Notify,
    idle_over: Notify,
    stalled: AtomicBool,
    cut: Cut,
    facts: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Connection {
    pub(super) fn new(
        certificates: Option<Arc<[CertificateDer<'static>]>>,
        credentials: Option<Credentials>,
    ) -> Arc<Self> {
        Arc::new(Self {
            certificates,
            credentials,
            busy: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            born: Instant::now(),
            ended: AtomicU64::new(0),
            h2: AtomicBool::new(false),
            h2_seen: Notify::new(),
            idle_over: Notify::new(),
            stalled: AtomicBool::new(false),
            cut: Cut::default(),
            facts: OnceLock::new(),
        })
    }

    /// A connection of which nothing is proven, for tests of services.
    pub fn unproven() -> Arc<Self> {
        Self::new(None, None)
    }

    /// A connection of a peer with this chain or these credentials, for tests of services.
    pub fn proven(
        chain: Option<Vec<CertificateDer<'static>>>,
        credentials: Option<Credentials>,
    ) -> Arc<Self> {
        Self::new(chain.map(Arc::from), credentials)
    }

    /// The certificate chain that the peer presented and the TLS layer verified, its own first; DER.
    pub fn certificates(&self) -> Option<&Arc<[CertificateDer<'static>]>> {
        self.certificates.as_ref()
    }

    /// Who the peer of a Unix socket is.
    pub const fn credentials(&self) -> Option<Credentials> {
        self.credentials
    }

    /// Ends the whole connection.
    pub const fn cut(&self) -> &Cut {
        &self.cut
    }

    /// Whether the connection was given up since its peer took nothing for too long.
    pub fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    /// What the service made of the peer with the connection's first request, kept for the others.
    pub fn facts<T: Send + Sync + 'static>(&self, make: impl FnOnce(&Self) -> T) -> Option<Arc<T>> {
        let facts = self.facts.get_or_init(|| Arc::new(make(self)));
        Arc::clone(facts).downcast().ok()
    }

    /// A request came.
    pub(super) fn begin(self: &Arc<Self>, version: Version) -> Busy {
        self.requests.fetch_add(1, Ordering::AcqRel);
        self.busy.fetch_add(1, Ordering::AcqRel);
        if version == Version::HTTP_2 && !self.h2.swap(true, Ordering::AcqRel) {
            self.h2_seen.notify_one();
        }
        Busy(Arc::clone(self))
    }

    /// When it was last busy.
    fn idle_since(&self) -> Instant {
        self.born + Duration::from_nanos(self.ended.load(Ordering::Acquire))
    }

    pub(super) async fn was_cut(&self) {
        self.cut.asked_for().await;
    }

    pub(super) async fn idle_is_over(&self) {
        self.idle_over.notified().await;
    }

    /// Resolves once a request of HTTP/2 was seen.
    pub(super) async fn speaks_h2(&self) {
        if !self.h2.load(Ordering::Acquire) {
            self.h2_seen.notified().await;
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let certified = self.certificates.is_some();
        f.debug_struct("Connection")
            .field("certified", &certified)
            .field("credentials", &self.credentials)
            .finish_non_exhaustive()
    }
}

/// Ends something of a connection at once: the whole of it, or one HTTP/2 stream.
#[derive(Clone, Debug, Default)]
pub struct Cut(Arc<Notify>);

impl Cut {
    /// Ends it.
    pub fn now(&self) {
        self.0.notify_one();
    }

    /// Resolves once it is to end, for whoever carries that out.
    pub async fn asked_for(&self) {
        self.0.notified().await;
    }
}

tokio::task_local! {
    static STREAM: Cut;
}

/// What ends the HTTP/2 stream that the caller is answering, and nothing else of its connection; none elsewhere.
pub fn stream_cut() -> Option<Cut> {
    STREAM.try_with(Clone::clone).ok()
}

/// Runs the streams of HTTP/2 connections as owned tasks that can be cut one by one.
#[derive(Clone, Debug)]
pub(super) struct Streams(Tasks);

impl Streams {
    pub(super) fn new(tasks: &Tasks) -> Self {
        Self(tasks.clone())
    }
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        let cut = Cut::default();
        self.0.spawn(
            "stream",
            STREAM.scope(cut.clone(), async move {
                tokio::select! {
                    _ = future => {}
                    () = cut.asked_for() => {}
                }
            }),
        );
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Busy(Arc<Connection>);

impl Drop for Busy {
    fn drop(&mut self) {
        let ended = u64::try_from(self.0.born.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.ended.fetch_max(ended, Ordering::AcqRel);
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The body of an answer, which keeps its request under way until it was written or given up.
pub(super) struct Tracked {
    body: Body,
    _busy: Busy,
}

impl Tracked {
    pub(super) const fn new(body: Body, busy: Busy) -> Self {
        Self { body, _busy: busy }
    }
}

impl hyper::body::Body for Tracked {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that keeps the limits of silence.
pub(super) struct Timed<S> {
    stream: S,
    /// For headers from their first byte, and for silence between requests.
    limits: Option<(Duration, Duration)>,
    connection: Arc<Connection>,
    /// The requests that were seen to begin.
    requests: usize,
    /// When the first byte of a request came whose headers are not at their end.
    head_since: Option<Instant>,
    /// Never later than the limit that counts; where it is earlier, it is set anew when it rings.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    pub(super) fn new(stream: S, limits: Option<(Duration, Duration)>, connection: &Arc<Connection>) -> Self {
        let connection = Arc::clone(connection);
        Self { stream, limits, connection, requests: 0, head_since: None, alarm: None }
    }

    /// Notes whether a request began since the last look.
    fn look(&mut self) {
        let requests = self.connection.requests.load(Ordering::Acquire);
        if requests != self.requests {
            self.requests = requests;
            self.head_since = None;
        }
    }

    fn is_busy(&self) -> bool {
        self.connection.busy.load(Ordering::Acquire) > 0
    }

    fn written<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &written
            && error.kind() == io::ErrorKind::TimedOut
        {
            self.connection.stalled.store(true, Ordering::Release);
        }
        written
    }

    fn bytes_came(&mut self) {
        self.look();
        // HTTP/2 says more than requests; its own pings find dead peers.
        if self.head_since.is_none() && !self.is_busy() && !self.connection.h2.load(Ordering::Acquire) {
            self.head_since = Some(Instant::now());
        }
    }

    fn nothing_came(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((header, idle)) = self.limits else { return Poll::Pending };
        self.look();
        let limit = self.limit(header, idle);
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(limit)));
        if alarm.deadline() > limit {
            alarm.as_mut().reset(limit);
        }
        ready!(alarm.as_mut().poll(cx));
        let (now, limit) = (Instant::now(), self.limit(header, idle));
        let next = if now < limit {
            limit
        } else if self.head_since.is_some() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        } else {
            self.connection.idle_over.notify_one();
            // The end in order follows; should it not, this rings again.
            now + idle
        };
        let Some(alarm) = &mut self.alarm else { return Poll::Pending };
        alarm.as_mut().reset(next);
        alarm.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// When the connection has been silent for too long. The alarm rings for a busy one too, since nobody looks here when
    /// its request ends.
    fn limit(&self, header: Duration, idle: Duration) -> Instant {
        if self.is_busy() {
            return Instant::now() + idle;
        }
        self.head_since.map_or_else(|| self.connection.idle_since() + idle, |since| since + header)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Pending => self.nothing_came(cx),
            read => {
                if self.limits.is_some() && buf.filled().len() > before {
                    self.bytes_came();
                }
                read
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
