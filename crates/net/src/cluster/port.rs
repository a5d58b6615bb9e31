//! The listening side of the cluster port: one TLS listener, and ALPN picks the service.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_ops::Tasks;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::{ClusterIdentity, HANDSHAKE, KEEPALIVE, PeerBody, tls};

/// The most connections at once; a cluster has a handful of peers with a few protocols each.
const MAX_CONNECTIONS: usize = 512;
/// How long open requests may go on once the port is told to close.
const DRAIN: Duration = Duration::from_secs(10);

/// What answers the requests of one protocol of the cluster port.
pub trait PeerService: Send + Sync + 'static {
    /// Answers one request that came from `peer`.
    fn call(
        self: Arc<Self>,
        peer: SocketAddr,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<PeerBody>>;
}

/// Why the port cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The identity is no certificate with its key.
    #[error("the cluster identity cannot be used")]
    Identity(#[from] rustls::Error),
}

/// A bound cluster port. Register its protocols, then let it serve.
pub struct ClusterPort {
    listener: TcpListener,
    local: SocketAddr,
    identity: ClusterIdentity,
    services: BTreeMap<Vec<u8>, Arc<dyn PeerService>>,
}

impl ClusterPort {
    /// Binds `address`, a `host:port`; nothing is accepted before [`ClusterPort::serve`].
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind(address: &str, identity: ClusterIdentity) -> Result<Self, PortError> {
        let bind = |source| PortError::Bind { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let local = listener.local_addr().map_err(bind)?;
        Ok(Self { listener, local, identity, services: BTreeMap::new() })
    }

    /// The address that was bound.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Serves the protocol named `alpn`, over HTTP/2.
    pub fn register(&mut self, alpn: &str, service: Arc<dyn PeerService>) {
        self.services.insert(alpn.as_bytes().to_vec(), service);
    }

    /// Accepts connections until `tasks` is cancelled; then finishes what is open, for 10 s at most.
    ///
    /// # Errors
    /// When the identity cannot be used.
    pub fn serve(self, tasks: &Tasks) -> Result<(), PortError> {
        let config = tls::server(&self.identity, self.services.keys().cloned().collect())?;
        let shared = Arc::new(Shared {
            acceptor: TlsAcceptor::from(config),
            services: self.services,
            tasks: tasks.clone(),
            slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        });
        tasks.spawn_until_cancelled("cluster-accept", accept(self.listener, shared));
        Ok(())
    }
}

struct Shared {
    acceptor: TlsAcceptor,
    services: BTreeMap<Vec<u8>, Arc<dyn PeerService>>,
    tasks: Tasks,
    slots: Arc<Semaphore>,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        // A full house waits in the kernel's backlog.
        let Ok(slot) = Arc::clone(&shared.slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let own = Arc::clone(&shared);
                shared.tasks.spawn("cluster-connection", async move {
                    serve(&own, stream, peer).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accepting on the cluster port failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(shared: &Shared, stream: TcpStream, peer: SocketAddr) {
    // Small messages that wait for an answer: delaying them costs a round trip each.
    let _ = stream.set_nodelay(true);
    let handshake = tokio::select! {
        done = timeout(HANDSHAKE, shared.acceptor.accept(stream)) => done,
        () = shared.tasks.cancelled() => return,
    };
    let stream = match handshake {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "handshake on the cluster port failed");
            return;
        }
        Err(_) => {
            tracing::debug!(%peer, "handshake on the cluster port took too long");
            return;
        }
    };
    // A client that offers no ALPN at all passes the handshake.
    let picked = stream.get_ref().1.alpn_protocol().and_then(|alpn| shared.services.get(alpn));
    let Some(service) = picked.cloned() else { return };
    let calls = service_fn(move |request| {
        let answer = Arc::clone(&service).call(peer, request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http2::Builder::new(OwnedTasks(shared.tasks.clone()))
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .max_concurrent_streams(4096)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(8 << 20)
        .serve_connection(TokioIo::new(stream), calls);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shared.tasks.cancelled() => {
            connection.as_mut().graceful_shutdown();
            timeout(DRAIN, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection of the cluster port ended");
    }
}

/// Lets hyper start its tasks in our group.
#[derive(Clone)]
pub(super) struct OwnedTasks(pub(super) Tasks);

impl<F> hyper::rt::Executor<F> for OwnedTasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn("cluster-stream", future);
    }
}
