//! Our own accept loop: HTTP/1.1 and HTTP/2 on one port, every connection an owned task that can be told to drain.
//!
//! What must hold: a peer that is slow in its handshake or its headers holds nothing but its own connection; the
//! number of connections is bounded; an answer that nobody reads is given up; after [`Server::stop_accepting`] no new connection is taken, idle ones close,
//! busy ones end with their last answer, and [`Server::cut`] ends the rest.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use holdfast_ops::Tasks;

use crate::server_tls::ServerTls;
use crate::stall::Stalling;

/// What can go wrong while a body is produced.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;
/// A future that a [`Service`] returns.
pub type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Connections open at once on one port; one more waits in the listener's backlog.
const MAX_CONNECTIONS: usize = 8192;
/// A TLS handshake, and the headers of a request, must be there within this time.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// The most bytes of headers.
const MAX_HEADERS: u32 = 64 * 1024;
/// A peer that takes nothing of its answer for so long is given up.
const STALLED: Duration = Duration::from_secs(30);
/// An HTTP/2 peer is pinged this often and must answer within the same time again.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// The far end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub tls: bool,
}

/// What answers requests.
pub trait Service: Send + Sync + 'static {
    /// Answers one request. The future is dropped when the client goes away.
    fn call(self: Arc<Self>, peer: Peer, request: Request<Incoming>) -> Answer;
}

/// A listening port.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    accept: CancellationToken,
    tasks: Tasks,
}

struct Shared {
    service: Arc<dyn Service>,
    tls: Option<Arc<ServerTls>>,
    tasks: Tasks,
    accept: CancellationToken,
    room: Arc<Semaphore>,
}

impl Server {
    /// Starts to accept on a bound listener.
    pub fn start(
        listener: TcpListener,
        tls: Option<Arc<ServerTls>>,
        service: Arc<dyn Service>,
        parent: &Tasks,
        name: &str,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let tasks = parent.child(name);
        let accept = tasks.token().child_token();
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let shared = Shared { service, tls, tasks: tasks.clone(), accept: accept.clone(), room };
        tasks.spawn("accept", accept_loop(listener, Arc::new(shared)));
        Ok(Self { address, accept, tasks })
    }

    /// The address that was bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.tasks.running().iter().filter(|name| name.ends_with("/connection")).count()
    }

    /// Closes the listener and tells every connection to end with the requests that are under way.
    pub fn stop_accepting(&self) {
        self.accept.cancel();
    }

    /// Waits until every connection has ended.
    ///
    /// # Errors
    /// When some had not ended by then.
    pub async fn drained(&self, deadline: Duration) -> Result<(), holdfast_ops::tasks::Unfinished> {
        self.tasks.wait(deadline).await
    }

    /// Ends every connection at once.
    pub fn cut(&self) {
        self.accept.cancel();
        self.tasks.cancel();
        self.tasks.abort();
    }
}

async fn accept_loop(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let accepted = tokio::select! {
            () = shared.accept.cancelled() => return,
            accepted = accept(&listener, &shared.room) => accepted,
        };
        let (stream, address, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or a peer that was gone at once: neither ends the loop.
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let connection = Arc::clone(&shared);
        shared.tasks.spawn("connection", async move {
            serve(stream, address, &connection).await;
            drop(permit);
        });
    }
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, permit))
}

async fn serve(stream: TcpStream, address: SocketAddr, shared: &Arc<Shared>) {
    // Answers are small; waiting to fill a segment would only delay them.
    let _ = stream.set_nodelay(true);
    let Some(tls) = &shared.tls else {
        return http(stream, Peer { address, tls: false }, shared).await;
    };
    let handshake = tokio::time::timeout(HANDSHAKE, tls.acceptor().accept(stream));
    let accepted = tokio::select! {
        () = shared.accept.cancelled() => return,
        accepted = handshake => accepted,
    };
    match accepted {
        Ok(Ok(stream)) => http(stream, Peer { address, tls: true }, shared).await,
        Ok(Err(error)) => tracing::debug!(peer = %address, %error, "a TLS handshake failed"),
        Err(_) => tracing::debug!(peer = %address, "a TLS handshake took too long"),
    }
}

async fn http<S>(stream: S, peer: Peer, shared: &Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = Arc::clone(&shared.service);
    let service = service_fn(move |request| {
        let answer = Arc::clone(&service).call(peer, request);
        async move { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    let builder = builder(&shared.tasks);
    let mut connection =
        pin!(builder.serve_connection(TokioIo::new(Stalling::new(stream, STALLED)), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shared.accept.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %peer.address, error, "a connection ended early");
    }
}

fn builder(tasks: &Tasks) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(Streams(tasks.clone()));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE)
        .max_buf_size(MAX_HEADERS as usize)
        .half_close(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .adaptive_window(true)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE);
    builder
}

/// Runs the streams of HTTP/2 connections as owned tasks.
#[derive(Clone, Debug)]
struct Streams(Tasks);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn("stream", future);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Notify;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// Answers once it was let go.
    struct Gate {
        arrived: Arc<Notify>,
        go: Arc<Notify>,
    }

    impl Service for Gate {
        fn call(self: Arc<Self>, _: Peer, _: Request<Incoming>) -> Answer {
            let (arrived, go) = (Arc::clone(&self.arrived), Arc::clone(&self.go));
            Box::pin(async move {
                arrived.notify_one();
                go.notified().await;
                Response::new(Full::from("done").map_err(|never| match never {}).boxed_unsync())
            })
        }
    }

    async fn start(tasks: &Tasks) -> (Server, Arc<Notify>, Arc<Notify>) {
        let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gate = Gate { arrived: Arc::clone(&arrived), go: Arc::clone(&go) };
        (Server::start(listener, None, Arc::new(gate), tasks, "api").unwrap(), arrived, go)
    }

    async fn ask(server: &Server) -> TcpStream {
        let mut client = TcpStream::connect(server.address()).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        client
    }

    #[tokio::test]
    async fn a_request_under_way_is_answered_and_then_the_connection_ends() {
        let tasks = Tasks::new("test");
        let (server, arrived, go) = start(&tasks).await;
        let mut busy = ask(&server).await;
        arrived.notified().await;
        let mut idle = TcpStream::connect(server.address()).await.unwrap();
        server.stop_accepting();
        // Ended in order when it was accepted before, reset when it still waited in the listener's queue.
        let ended = tokio::time::timeout(SOON, idle.read(&mut [0; 8])).await.unwrap();
        assert!(
            ended.as_ref().map_or_else(|e| e.kind() == std::io::ErrorKind::ConnectionReset, |n| *n == 0),
            "{ended:?}"
        );
        go.notify_one();
        let mut text = String::new();
        tokio::time::timeout(SOON, busy.read_to_string(&mut text)).await.unwrap().unwrap();
        assert!(text.ends_with("done"), "{text}");
        server.drained(SOON).await.unwrap();
        assert!(TcpStream::connect(server.address()).await.is_err());
    }

    #[tokio::test]
    async fn a_request_that_never_ends_is_cut_at_the_deadline() {
        let tasks = Tasks::new("test");
        let (server, arrived, _go) = start(&tasks).await;
        let mut client = ask(&server).await;
        arrived.notified().await;
        server.stop_accepting();
        assert!(server.drained(Duration::from_millis(50)).await.is_err());
        assert_eq!(server.open(), 1);
        server.cut();
        server.drained(SOON).await.unwrap();
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(SOON, client.read_to_end(&mut rest)).await.unwrap();
        assert!(rest.is_empty());
    }
}
