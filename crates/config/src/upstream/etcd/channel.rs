//! The one connection to a cluster: HTTP/2 to one member at a time, the token, and the walk to the next member.
//!
//! What must hold: dialling happens once at a time; a member that does not answer is left; the password is read from
//! its file at each login and kept nowhere.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use holdfast_core::AnswerKind;
use holdfast_core::freshness::Failure;
use holdfast_net::stall::Stalling;
use holdfast_ops::Tasks;
use holdfast_proto::etcd::auth_client::AuthClient;
use holdfast_proto::etcd::kv_client::KvClient;
use holdfast_proto::etcd::{AuthenticateRequest, RangeRequest, RangeResponse};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ClientConfig;
use tokio::sync::Mutex;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use super::super::address::Address;
use super::super::credential;
use super::super::http_answer::USER_AGENT;
use super::errors::{Remedy, failure, is_auth_off, remedy};

/// Between the pings of a connection that carries a watch; etcd cuts off who pings more often than each 5 s.
const PING: Duration = Duration::from_secs(15);
/// How long one member may take to answer while there are others.
const PATIENCE: Duration = Duration::from_secs(3);
/// The largest answer: the largest value and room for what stands around it.
pub(super) const MAX_ANSWER: usize = 20 << 20;

/// Who to log in as.
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password_file: PathBuf,
}

/// The way to a cluster.
pub(super) struct Channel {
    addresses: Vec<Address>,
    tls: Arc<ClientConfig>,
    login: Option<Login>,
    token: Arc<ArcSwapOption<HeaderValue>>,
    /// A connection that is silent so long is dead.
    idle: Duration,
    tasks: Tasks,
    /// The member that is dialled next.
    next: AtomicUsize,
    current: Mutex<Option<Link>>,
}

impl Channel {
    pub(super) fn new(
        addresses: Vec<Address>,
        tls: Arc<ClientConfig>,
        login: Option<Login>,
        idle: Duration,
        tasks: Tasks,
    ) -> Self {
        // Replicas should not all lean on the first member.
        let first = usize::from(u16::from_le_bytes(holdfast_ops::rand::bytes())) % addresses.len().max(1);
        let (next, current) = (AtomicUsize::new(first), Mutex::new(None));
        Self { addresses, tls, login, token: Arc::default(), idle, tasks, next, current }
    }

    /// The connection, made if there is none.
    pub(super) async fn link(&self) -> Result<Link, Failure> {
        let mut current = self.current.lock().await;
        if let Some(link) = current.as_ref().filter(|link| !link.sender.is_closed()) {
            return Ok(link.clone());
        }
        *current = None;
        let mut failed = Failure::of(AnswerKind::Unavailable);
        for _ in &self.addresses {
            match self.dial().await {
                Ok(link) => {
                    *current = Some(link.clone());
                    return Ok(link);
                }
                Err(other) => failed = other,
            }
        }
        Err(failed)
    }

    /// Leaves a connection; whoever still uses it goes on.
    pub(super) async fn leave(&self, link: &Link) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|now| Arc::ptr_eq(&now.origin, &link.origin)) {
            *current = None;
        }
    }

    async fn dial(&self) -> Result<Link, Failure> {
        // Moved on first: who asked may give up while we wait for this one.
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.addresses.len().max(1);
        let Some(address) = self.addresses.get(at) else { return Err(Failure::of(AnswerKind::Unavailable)) };
        let sender = self.connect(address).await.map_err(|error| {
            tracing::debug!(address = address.authority(), %error, "no connection to etcd");
            Failure::of(AnswerKind::Unavailable)
        })?;
        let scheme = if address.tls { "https" } else { "http" };
        let origin = Uri::builder().scheme(scheme).authority(address.authority()).path_and_query("/").build();
        let origin = origin.map_err(|_| Failure::of(AnswerKind::Unavailable))?;
        let link = Link { sender, origin: Arc::new(origin), token: Arc::clone(&self.token) };
        self.log_in(&link).await?;
        Ok(link)
    }

    async fn connect(&self, address: &Address) -> io::Result<http2::SendRequest<Body>> {
        let stream = address.connect(&self.tls).await?;
        let handshake = http2::Builder::new(Streams(self.tasks.clone()))
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(self.idle.saturating_sub(PING).max(Duration::from_secs(2)))
            .handshake(TokioIo::new(Stalling::new(stream, self.idle)));
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let made = tokio::time::timeout(PATIENCE, handshake).await.map_err(late)?;
        let (sender, connection) = made.map_err(io::Error::other)?;
        let peer = address.authority();
        self.tasks.spawn_until_cancelled("connection", async move {
            if let Err(error) = connection.await {
                tracing::debug!(peer, %error, "the connection to etcd ended");
            }
        });
        Ok(sender)
    }

    /// Gets a token, where there is a login.
    pub(super) async fn log_in(&self, link: &Link) -> Result<(), Failure> {
        let Some(login) = &self.login else { return Ok(()) };
        let password = credential::text(&login.password_file)?;
        let name = login.user.clone();
        let request = AuthenticateRequest { name, password: password.as_str().to_owned() };
        // Without the former token, which may be what is wrong.
        let bare = Link { token: Arc::default(), ..link.clone() };
        let mut client = AuthClient::with_origin(bare, Uri::clone(&link.origin));
        let answer = tokio::time::timeout(PATIENCE, client.authenticate(request)).await;
        let token = match answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer to a login"))) {
            Ok(answer) => answer.into_inner().token,
            Err(status) if is_auth_off(&status) => return Ok(()),
            Err(status) => return Err(failure(&status)),
        };
        let mut token = HeaderValue::try_from(token).map_err(|_| Failure::own_login())?;
        token.set_sensitive(true);
        self.token.store(Some(Arc::new(token)));
        Ok(())
    }

    /// Reads, from another member or with another token where that may help.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        let (mut members, mut may_log_in) = (self.addresses.len(), self.login.is_some());
        let patience = if members > 1 { PATIENCE } else { Duration::MAX };
        loop {
            let link = self.link().await?;
            let mut client = KvClient::with_origin(link.clone(), Uri::clone(&link.origin))
                .max_decoding_message_size(MAX_ANSWER);
            let answer = tokio::time::timeout(patience, client.range(request.clone())).await;
            let late = |_| Err(Status::deadline_exceeded("the member does not answer"));
            let status = match answer.unwrap_or_else(late) {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            };
            match remedy(&status) {
                Remedy::LogIn if may_log_in => {
                    may_log_in = false;
                    self.log_in(&link).await?;
                }
                Remedy::Elsewhere if members > 1 => {
                    members -= 1;
                    self.leave(&link).await;
                }
                _ => return Err(failure(&status)),
            }
        }
    }
}

/// The sending half of a connection.
#[derive(Clone)]
pub(super) struct Link {
    sender: http2::SendRequest<Body>,
    /// The member's URL, and by its place in memory the connection's identity.
    pub(super) origin: Arc<Uri>,
    token: Arc<ArcSwapOption<HeaderValue>>,
}

impl Service<Request<Body>> for Link {
    type Response = Response<Incoming>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // What the connection says is said by the call, with its code.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let headers = request.headers_mut();
        headers.insert(http::header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        if let Some(token) = self.token.load_full() {
            headers.insert("token", HeaderValue::clone(&token));
        }
        let mut sender = self.sender.clone();
        Box::pin(async move {
            let broken = |error: hyper::Error| Status::unavailable(error.to_string());
            sender.ready().await.map_err(broken)?;
            sender.send_request(request).await.map_err(broken)
        })
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
        self.0.spawn_until_cancelled("stream", async move {
            future.await;
        });
    }
}
