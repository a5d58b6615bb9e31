//! Our own accept loop: HTTP/1.1 and HTTP/2 on one port, every connection an owned task that can be told to drain.
//!
//! What must hold: a peer that is slow in its handshake or its headers holds nothing but its own connection; the
//! number of connections is bounded; an answer that nobody reads is given up; only what the TLS layer verified and what
//! the kernel says of a peer is told of it; after [`Server::leave`] everything is served on, but clients are told to move;
//! after [`Server::stop_accepting`] no new connection is taken, idle ones close, busy ones end with their last answer, and
//! [`Server::cut`] ends the rest.

mod connection;

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use holdfast_ops::Tasks;

pub use self::connection::{Connection, Credentials, Cut, stream_cut};
use self::connection::{Streams, Timed, Tracked};
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

/// Stands for the address of what has none.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The far end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address; the unspecified one for a peer on a Unix socket.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// The connection, with what is proven of the peer.
    pub connection: Arc<Connection>,
}

/// How a port treats its connections.
#[derive(Clone, Debug)]
pub struct Options {
    /// Room for connections, shared by all ports that hold the same; one more waits in the listener's backlog. 8192.
    pub room: Arc<Semaphore>,
    /// The longest wait for a TLS handshake, and from the first byte of a request to the end of its headers; 10 s.
    pub header: Duration,
    /// The longest silence between two requests of a connection; `header` counts for it unless given.
    pub idle: Option<Duration>,
    /// A peer that takes nothing of its answer for so long is given up; 30 s. Read anew for each connection.
    pub write_stall: WriteStall,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            room: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            header: HANDSHAKE,
            idle: None,
            write_stall: WriteStall::new(STALLED),
        }
    }
}

/// A limit that can be changed while ports are open; it counts for connections that come after.
#[derive(Clone, Debug)]
pub struct WriteStall(Arc<AtomicU64>);

impl WriteStall {
    /// A limit.
    pub fn new(limit: Duration) -> Self {
        let stall = Self(Arc::default());
        stall.set(limit);
        stall
    }

    /// Changes it, to the millisecond.
    pub fn set(&self, limit: Duration) {
        self.0.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The limit now.
    pub fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
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
    leave: CancellationToken,
    tasks: Tasks,
    open: Arc<AtomicUsize>,
}

struct Shared {
    service: Arc<dyn Service>,
    tls: Option<Arc<ServerTls>>,
    tasks: Tasks,
    accept: CancellationToken,
    leave: CancellationToken,
    options: Options,
    open: Arc<AtomicUsize>,
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
        Self::start_with(Listener::Tcp(listener), tls, service, Options::default(), &parent.child(name))
    }

    /// Starts to accept on a bound listener; `tasks` is the group of its connections alone.
    ///
    /// # Errors
    /// When the listener has no address.
    pub fn start_with(
        listener: Listener,
        tls: Option<Arc<ServerTls>>,
        service: Arc<dyn Service>,
        options: Options,
        tasks: &Tasks,
    ) -> io::Result<Self> {
        let address = match &listener {
            Listener::Tcp(listener) => listener.local_addr()?,
            Listener::Unix(_) => NOWHERE,
        };
        let (accept, leave) = (tasks.token().child_token(), tasks.token().child_token());
        let open = Arc::new(AtomicUsize::new(0));
        let shared = Shared {
            service,
            tls,
            tasks: tasks.clone(),
            accept: accept.clone(),
            leave: leave.clone(),
            options,
            open: Arc::clone(&open),
        };
        tasks.spawn("accept", accept_loop(listener, Arc::new(shared)));
        Ok(Self { address, accept, leave, tasks: tasks.clone(), open })
    }

    /// The address that was bound; the unspecified one of a Unix socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Tells HTTP/2 clients to take another connection, present ones and those to come; everything is served on. (What
    /// tells HTTP/1.1 clients is the header `Connection: close` on an answer, which is the service's business.)
    pub fn leave(&self) {
        self.leave.cancel();
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

/// A connection that was taken.
enum Taken {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

/// Counts one open connection.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn one(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn accept_loop(listener: Listener, shared: Arc<Shared>) {
    loop {
        let accepted = tokio::select! {
            () = shared.accept.cancelled() => return,
            accepted = accept(&listener, &shared.options.room) => accepted,
        };
        let (taken, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or a peer that was gone at once: neither ends the loop.
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (connection, open) = (Arc::clone(&shared), Open::one(&shared.open));
        shared.tasks.spawn("connection", async move {
            serve(taken, &connection).await;
            drop((permit, open));
        });
    }
}

async fn accept(listener: &Listener, room: &Arc<Semaphore>) -> io::Result<(Taken, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    let taken = match listener {
        Listener::Tcp(listener) => listener.accept().await.map(|(stream, from)| Taken::Tcp(stream, from))?,
        Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| Taken::Unix(stream))?,
    };
    Ok((taken, permit))
}

async fn serve(taken: Taken, shared: &Arc<Shared>) {
    let (stream, address) = match taken {
        Taken::Tcp(stream, address) => (stream, address),
        Taken::Unix(stream) => {
            let credentials = Credentials::of(&stream);
            let peer = Peer { address: NOWHERE, tls: false, connection: Connection::new(None, credentials) };
            return http(stream, peer, shared).await;
        }
    };
    // Answers are small; waiting to fill a segment would only delay them.
    let _ = stream.set_nodelay(true);
    let Some(tls) = &shared.tls else {
        return http(stream, Peer { address, tls: false, connection: Connection::new(None, None) }, shared)
            .await;
    };
    let handshake = tokio::time::timeout(shared.options.header, tls.acceptor().accept(stream));
    let accepted = tokio::select! {
        () = shared.accept.cancelled() => return,
        accepted = handshake => accepted,
    };
    match accepted {
        Ok(Ok(stream)) => {
            // Present only when the verifier of the port took the chain; a resumed session keeps it.
            let chain = stream.get_ref().1.peer_certificates().map(Arc::from);
            http(stream, Peer { address, tls: true, connection: Connection::new(chain, None) }, shared).await;
        }
        Ok(Err(error)) => tracing::debug!(peer = %address, %error, "a TLS handshake failed"),
        Err(_) => tracing::debug!(peer = %address, "a TLS handshake took too long"),
    }
}

async fn http<S>(stream: S, peer: Peer, shared: &Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (service, about, from) = (Arc::clone(&shared.service), Arc::clone(&peer.connection), peer.address);
    let service = service_fn(move |request: Request<Incoming>| {
        let busy = peer.connection.begin(request.version());
        let answer = Arc::clone(&service).call(peer.clone(), request);
        async move { Ok::<_, std::convert::Infallible>(answer.await.map(|body| Tracked::new(body, busy))) }
    });
    let options = &shared.options;
    let stream = Stalling::new(stream, options.write_stall.get());
    let stream = Timed::new(stream, options.idle.map(|idle| (options.header, idle)), &about);
    let builder = builder(&shared.tasks, options);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut told = false;
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            () = about.was_cut() => return,
            () = told_to_end(shared, &about), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %from, error, "a connection ended early");
    }
}

/// Resolves when the connection shall end with what is under way.
async fn told_to_end(shared: &Shared, connection: &Connection) {
    let leaving = async {
        shared.leave.cancelled().await;
        connection.speaks_h2().await;
    };
    tokio::select! {
        () = shared.accept.cancelled() => {}
        () = connection.idle_is_over() => {}
        () = leaving => {}
    }
}

fn builder(tasks: &Tasks, options: &Options) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(Streams::new(tasks));
    // With a limit of its own for silence, the stream below keeps both.
    let header = options.idle.is_none().then_some(options.header);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(header)
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

#[cfg(test)]
mod option_tests;
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
