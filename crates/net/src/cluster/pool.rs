//! The dialling side: one multiplexed connection per peer and protocol.
//!
//! What must hold: a dial is made once for all who wait for it, and goes on when they give up, because the
//! deadlines of heartbeats are shorter than a handshake on a busy machine. A connection on which anything failed
//! is not used again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdfast_ops::Tasks;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::port::OwnedTasks;
use super::{ClusterIdentity, HANDSHAKE, KEEPALIVE, PeerBody, identity, tls};

/// Why a request to a peer got no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// No connection could be made; nothing was sent.
    #[error("cannot connect to {address}")]
    Dial {
        /// The peer's `host:port`.
        address: String,
        /// Why.
        #[source]
        source: Arc<io::Error>,
    },
    /// The connection was gone before the request could be put on it; nothing was sent.
    #[error("the connection to {address} was closed")]
    NotSent {
        /// The peer's `host:port`.
        address: String,
    },
    /// The connection failed with the request under way.
    #[error("the connection to {address} failed")]
    Lost {
        /// The peer's `host:port`.
        address: String,
        /// Why.
        #[source]
        source: Arc<hyper::Error>,
    },
    /// The connection was closed on purpose with the request under way: the peer no longer leads.
    #[error("the connection to {address} was cut")]
    Cut {
        /// The peer's `host:port`.
        address: String,
    },
}

impl PeerError {
    /// Whether the peer provably saw nothing of the request.
    pub const fn did_not_start(&self) -> bool {
        matches!(self, Self::Dial { .. } | Self::NotSent { .. })
    }
}

type Dialled = Option<Result<PeerConnection, PeerError>>;
type Key = (String, String);

/// The connections of one node to its peers. Clones share them.
#[derive(Clone)]
pub struct PeerPool {
    shared: Arc<Shared>,
}

struct Shared {
    identity: ClusterIdentity,
    configs: Mutex<HashMap<String, Arc<ClientConfig>>>,
    slots: Mutex<HashMap<Key, Slot>>,
    next: AtomicU64,
    isolated: AtomicBool,
    tasks: Tasks,
}

/// The connection that new requests to a peer go on, made or in the making.
struct Slot {
    dialled: watch::Receiver<Dialled>,
    /// Cuts every connection there has been since the peer was closed last: requests may still be under way on one
    /// that takes no more and was replaced.
    cut: CancellationToken,
}

/// One connection to a peer. Clones share it.
#[derive(Clone)]
pub struct PeerConnection {
    id: u64,
    address: Arc<str>,
    sender: http2::SendRequest<PeerBody>,
    /// Closed on purpose: what is under way fails.
    closed: CancellationToken,
    /// Takes no more requests; what is under way may end.
    spent: CancellationToken,
}

impl PeerPool {
    /// A pool whose connections end with `tasks`.
    pub fn new(identity: ClusterIdentity, tasks: &Tasks) -> Self {
        let shared = Shared {
            identity,
            configs: Mutex::default(),
            slots: Mutex::default(),
            next: AtomicU64::new(1),
            isolated: AtomicBool::new(false),
            tasks: tasks.clone(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The connection to `address` (`host:port`) for the protocol `alpn`; dials when there is none.
    ///
    /// # Errors
    /// [`PeerError::Dial`] when it cannot be made within 5 s.
    pub async fn connection(&self, address: &str, alpn: &str) -> Result<PeerConnection, PeerError> {
        let mut slot = self.slot(address, alpn);
        let dialled = slot.wait_for(Option::is_some).await.ok().and_then(|dialled| dialled.clone());
        dialled.unwrap_or_else(|| Err(PeerError::NotSent { address: address.to_owned() }))
    }

    /// Sends one request to `address` and waits for the head of the answer. The caller sets the deadline; when it
    /// gives up, it should [`PeerPool::close`] the connection if the peer is silent.
    ///
    /// # Errors
    /// When there is no connection or it failed; a failed connection is dropped.
    pub async fn send(
        &self,
        address: &str,
        alpn: &str,
        request: Request<PeerBody>,
    ) -> Result<Response<Incoming>, PeerError> {
        self.connection(address, alpn).await?.send(request).await
    }

    /// Closes the connection to `address` for `alpn`, or for every protocol: requests under way on it fail.
    pub fn close(&self, address: &str, alpn: Option<&str>) {
        self.close_where(|peer, protocol| peer == address && alpn.is_none_or(|alpn| alpn == protocol));
    }

    /// Plays a node that cannot reach anyone, for tests of partitions: closes everything and refuses to dial.
    #[doc(hidden)]
    pub fn isolate(&self, isolated: bool) {
        self.shared.isolated.store(isolated, Ordering::Relaxed);
        if isolated {
            self.close_where(|_, _| true);
        }
    }

    fn close_where(&self, which: impl Fn(&str, &str) -> bool) {
        self.shared.slots.lock().retain(|(peer, protocol), slot| {
            let ours = which(peer, protocol);
            if ours {
                slot.cut.cancel();
            }
            !ours
        });
    }

    /// Takes the connection to `address` for `alpn` out of use: nothing new goes on it, and what is under way has
    /// `grace` left before it is cut.
    pub fn retire(&self, address: &str, alpn: &str, grace: Duration) {
        let slot = self.shared.slots.lock().remove(&(address.to_owned(), alpn.to_owned()));
        let Some(slot) = slot else { return };
        self.shared.tasks.spawn_until_cancelled("cluster-retire", async move {
            tokio::time::sleep(grace).await;
            slot.cut.cancel();
        });
    }

    fn slot(&self, address: &str, alpn: &str) -> watch::Receiver<Dialled> {
        let key = (address.to_owned(), alpn.to_owned());
        let mut slots = self.shared.slots.lock();
        match slots.entry(key.clone()) {
            Entry::Occupied(slot) if is_usable(&slot.get().dialled) => slot.get().dialled.clone(),
            Entry::Occupied(mut slot) => {
                let slot = slot.get_mut();
                slot.dialled = self.dial(key, slot.cut.child_token());
                slot.dialled.clone()
            }
            Entry::Vacant(slot) => {
                let cut = CancellationToken::new();
                let dialled = self.dial(key, cut.child_token());
                slot.insert(Slot { dialled, cut }).dialled.clone()
            }
        }
    }

    fn dial(&self, key: Key, closed: CancellationToken) -> watch::Receiver<Dialled> {
        let (done, slot) = watch::channel(None);
        let shared = Arc::clone(&self.shared);
        self.shared.tasks.spawn_until_cancelled("cluster-dial", async move {
            let dialled = timeout(HANDSHAKE, connect(&shared, &key.0, &key.1, closed))
                .await
                .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)));
            let dialled =
                dialled.map_err(|error| PeerError::Dial { address: key.0.clone(), source: Arc::new(error) });
            // Nobody waits any more: the next one who asks finds the connection all the same.
            drop(done.send_replace(Some(dialled)));
        });
        slot
    }
}

fn is_usable(slot: &watch::Receiver<Dialled>) -> bool {
    match &*slot.borrow() {
        None => slot.has_changed().is_ok(),
        Some(Ok(connection)) => !connection.is_closed(),
        Some(Err(_)) => false,
    }
}

impl PeerConnection {
    /// Sends one request and waits for the head of its answer.
    ///
    /// # Errors
    /// When the connection failed; it is not used again.
    pub async fn send(&self, request: Request<PeerBody>) -> Result<Response<Incoming>, PeerError> {
        let mut sender = self.sender.clone();
        let not_sent = || PeerError::NotSent { address: self.address.to_string() };
        if self.closed.is_cancelled() {
            return Err(not_sent());
        }
        let answer = tokio::select! {
            // An answer that came just before the end is an answer.
            biased;
            answer = sender.try_send_request(request) => answer,
            () = self.closed.cancelled() => return Err(self.cut()),
        };
        answer.map_err(|mut error| {
            self.spent.cancel();
            match error.take_message() {
                Some(_) => not_sent(),
                None if self.closed.is_cancelled() => self.cut(),
                None => PeerError::Lost {
                    address: self.address.to_string(),
                    source: Arc::new(error.into_error()),
                },
            }
        })
    }

    /// Whether the connection can take no more requests.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled() || self.spent.is_cancelled() || self.sender.is_closed()
    }

    /// Ends the connection; what is under way on it fails.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// A number that no other connection of the pool has.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Plays a request that failed, for tests.
    #[cfg(test)]
    pub(super) fn spend(&self) {
        self.spent.cancel();
    }

    fn cut(&self) -> PeerError {
        PeerError::Cut { address: self.address.to_string() }
    }
}

async fn connect(
    shared: &Shared,
    address: &str,
    alpn: &str,
    closed: CancellationToken,
) -> io::Result<PeerConnection> {
    if shared.isolated.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::NetworkUnreachable.into());
    }
    let config = client_config(shared, alpn)?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(identity::tls_name()).map_err(io::Error::other)?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    let (sender, connection) = http2::Builder::new(OwnedTasks(shared.tasks.clone()))
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(8 << 20)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let spent = CancellationToken::new();
    let (cut, ended, peer) = (closed.clone(), spent.clone(), address.to_owned());
    shared.tasks.spawn_until_cancelled("cluster-client", async move {
        let result = cut.run_until_cancelled(connection).await;
        if let Some(Err(error)) = result {
            tracing::debug!(%peer, %error, "the connection to a peer ended");
        }
        ended.cancel();
    });
    let id = shared.next.fetch_add(1, Ordering::Relaxed);
    Ok(PeerConnection { id, address: Arc::from(address), sender, closed, spent })
}

fn client_config(shared: &Shared, alpn: &str) -> io::Result<Arc<ClientConfig>> {
    if let Some(config) = shared.configs.lock().get(alpn) {
        return Ok(Arc::clone(config));
    }
    let config = tls::client(&shared.identity, alpn).map_err(io::Error::other)?;
    shared.configs.lock().insert(alpn.to_owned(), Arc::clone(&config));
    Ok(config)
}
