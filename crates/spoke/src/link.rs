//! One connection to a hub node: TCP, mutual TLS 1.3, HTTP/2, on which the generated client puts its calls.
//!
//! What must hold: connecting ends by its deadline; a peer that vanished without a word, or takes nothing of what is
//! sent, is noticed within interval and timeout of the pings.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use holdfast_net::stall::Stalling;
use holdfast_ops::Tasks;
use holdfast_proto::relay::v1::spoke_gateway_client::SpokeGatewayClient;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tower_service::Service;

use crate::address::Address;

/// How long connecting may take, all handshakes included.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// One of several addresses of a name has this long before the next one is tried.
const CONNECT_ONE: Duration = Duration::from_secs(2);
/// A hub that takes nothing of what is sent for so long is given up.
const STALLED: Duration = Duration::from_secs(30);
/// The largest frame either way.
pub(crate) const MAX_FRAME: usize = 16 << 20;

/// How often the connection is probed, and how long the answer may take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Keepalive {
    /// Between probes; 10 s. Hubs cut off who probes more often than each 5 s.
    pub interval: Duration,
    /// For the answer; 10 s.
    pub timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), timeout: Duration::from_secs(10) }
    }
}

impl Keepalive {
    /// What a hub asks for, within what is sensible.
    pub fn told(interval_ms: u64, timeout_ms: u64) -> Self {
        let default = Self::default();
        let within = |ms: u64, default: Duration, least: u64| match ms {
            0 => default,
            ms => Duration::from_millis(ms).clamp(Duration::from_secs(least), Duration::from_secs(30)),
        };
        Self {
            interval: within(interval_ms, default.interval, 5),
            timeout: within(timeout_ms, default.timeout, 1),
        }
    }
}

/// Whom to connect to, and as whom.
#[derive(Clone, Debug)]
pub struct Target {
    /// The address.
    pub address: Address,
    /// The name that the hub's certificate must bear, when it is not the address's host.
    pub server_name: Option<ServerName<'static>>,
    /// The spoke's certificate and the authority that the hub's must come from.
    pub tls: Arc<ClientConfig>,
    /// The probes.
    pub keepalive: Keepalive,
}

/// A client of the gateway over one connection.
pub(crate) type Client = SpokeGatewayClient<Link>;

/// The sending half of a connection. The connection itself is a task that ends with its group.
#[derive(Clone)]
pub(crate) struct Link {
    sender: http2::SendRequest<Body>,
}

/// Connects; the connection lives in `tasks`.
pub(crate) async fn connect(target: &Target, tasks: &Tasks) -> io::Result<Client> {
    let deadline = Instant::now() + CONNECT_WITHIN;
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let link = timeout_at(deadline, establish(target, tasks)).await.map_err(late)??;
    let origin =
        Uri::builder().scheme("https").authority(target.address.to_string()).path_and_query("/").build();
    let client = SpokeGatewayClient::with_origin(link, origin.map_err(io::Error::other)?);
    Ok(client.max_decoding_message_size(MAX_FRAME).max_encoding_message_size(MAX_FRAME))
}

async fn establish(target: &Target, tasks: &Tasks) -> io::Result<Link> {
    let name = match &target.server_name {
        Some(name) => name.clone(),
        None => target.address.server_name().map_err(io::Error::other)?,
    };
    let stream = dial(&target.address).await?;
    stream.set_nodelay(true)?;
    let stream = TlsConnector::from(Arc::clone(&target.tls)).connect(name, stream).await?;
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(io::Error::other("the peer does not speak HTTP/2"));
    }
    let (sender, connection) = http2::Builder::new(Streams(tasks.clone()))
        .timer(TokioTimer::new())
        .keep_alive_interval(target.keepalive.interval)
        .keep_alive_timeout(target.keepalive.timeout)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(Stalling::new(stream, STALLED)))
        .await
        .map_err(io::Error::other)?;
    let peer = target.address.to_string();
    tasks.spawn_until_cancelled("connection", async move {
        if let Err(error) = connection.await {
            tracing::debug!(peer, %error, "the connection to a hub ended");
        }
    });
    Ok(Link { sender })
}

/// Tries the addresses of a name in turn, so that one that swallows packets does not use up all the time.
async fn dial(address: &Address) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in tokio::net::lookup_host((address.host(), address.port())).await? {
        match tokio::time::timeout(CONNECT_ONE, TcpStream::connect(candidate)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}

impl Service<Request<Body>> for Link {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sender.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}

/// Runs the streams of a connection as owned tasks.
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
    use super::*;

    #[test]
    fn what_a_hub_asks_of_the_probes_is_kept_within_bounds() {
        assert_eq!(Keepalive::told(0, 0), Keepalive::default());
        let told = |a, b| {
            let told = Keepalive::told(a, b);
            (told.interval.as_millis(), told.timeout.as_millis())
        };
        assert_eq!(told(20_000, 5_000), (20_000, 5_000));
        assert_eq!(told(1, 1), (5_000, 1_000));
        assert_eq!(told(u64::MAX, u64::MAX), (30_000, 30_000));
    }
}
