//! The HTTP API: from a request to an answer.
//!
//! What must hold, for every request that can give out a value: it is authenticated, then counted against its caller's limit,
//! then parsed, then each name is judged, then looked up. Nothing about a name is looked up before it was allowed, so that a
//! denied name gives the same bytes whatever it is. Probes skip all of it.

mod answer;
mod body;
mod exchange;
mod probes;
mod request;
mod route;
mod status;
mod values;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use holdfast_core::readiness::Answer as Ready;
use holdfast_net::serve::{Answer, Body, Peer, Service};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use tokio::sync::watch::Receiver;

use self::exchange::Exchange;
use self::route::Path;
pub(crate) use self::status::standing;
pub use self::status::{StatusSource, UpstreamView};
use crate::audit::Audit;
use crate::clock::Clock;
use crate::fanout::board::Board;
use crate::fanout::hub::Hub;
use crate::fanout::resume::Boot;
use crate::load::Configuration;
use crate::metrics::{Meters, Route};
use crate::ratelimit::Limits;
use crate::upstream::hops::Hops;
use crate::wire::{Fault, message};

/// The configuration that requests are judged by.
pub struct World {
    /// Its number within the process, from 1.
    pub generation: u64,
    /// The whole of it.
    pub configuration: Arc<Configuration>,
}

/// What the API is made of.
pub struct Parts {
    /// Where values are.
    pub board: Arc<Board>,
    /// Where streams are.
    pub hub: Hub,
    /// Meters.
    pub meters: Meters,
    /// Audit.
    pub audit: Arc<Audit>,
    /// Limits of callers.
    pub limits: Arc<Limits>,
    /// What probes say.
    pub ready: Receiver<Ready>,
    /// The name of this process on the wire.
    pub boot: Boot,
    /// Through which servers requests came.
    pub hops: Arc<Hops>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// What `/v1/status` asks besides.
    pub status: Arc<dyn StatusSource>,
}

/// The API of one replica.
pub struct Api {
    parts: Parts,
    world: ArcSwap<World>,
    leaving: AtomicBool,
    ids: AtomicU64,
}

impl Api {
    /// The API.
    pub fn new(parts: Parts, world: World) -> Arc<Self> {
        let first = u64::from_le_bytes(holdfast_ops::rand::bytes());
        let world = ArcSwap::from_pointee(world);
        Arc::new(Self { parts, world, leaving: AtomicBool::new(false), ids: AtomicU64::new(first) })
    }

    /// What counts now.
    pub fn world(&self) -> Arc<World> {
        self.world.load_full()
    }

    /// Where values are.
    pub fn board(&self) -> &Arc<Board> {
        &self.parts.board
    }

    /// Another configuration counts for requests from now on.
    pub fn apply(&self, world: World) {
        self.world.store(Arc::new(world));
    }

    /// Answers ask their connections to close from now on.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Answers one request.
    pub async fn answer(self: Arc<Self>, peer: Peer, request: Request<Incoming>) -> Response<Body> {
        let (head, is_head) = (request.version(), request.method() == Method::HEAD);
        let mut response = self.dispatch(peer, request).await;
        let headers = response.headers_mut();
        // HTTP/2 says it otherwise, and forbids the header.
        if head < Version::HTTP_2 && self.leaving.load(Ordering::Acquire) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if is_head { answer::without_body(response) } else { response }
    }

    async fn dispatch(self: &Arc<Self>, peer: Peer, request: Request<Incoming>) -> Response<Body> {
        let path = Path::of(request.uri().path());
        let Some(allow) = path.methods() else {
            self.parts.meters.request(Route::None, 404, None, std::time::Duration::ZERO);
            return answer::text(StatusCode::NOT_FOUND, message::NO_ROUTE);
        };
        if !path.takes(request.method()) {
            let mut response = answer::text(StatusCode::METHOD_NOT_ALLOWED, message::BAD_METHOD);
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
            self.parts.meters.request(path.route(), 405, None, std::time::Duration::ZERO);
            return response;
        }
        match &path {
            Path::Health => probes::health(),
            Path::Ready => probes::ready(*self.parts.ready.borrow()),
            _ => Exchange::run(Arc::clone(self), path, peer, request).await,
        }
    }

    /// The next request's id: 16 hexadecimal digits, not to be guessed from one another at a glance, and no secret.
    fn request_id(&self) -> String {
        let count = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", holdfast_core::time::Spread::new(count).bits())
    }
}

impl Service for Api {
    fn call(self: Arc<Self>, peer: Peer, request: Request<Incoming>) -> Answer {
        Box::pin(self.answer(peer, request))
    }
}

/// The listener of `probe.addr`: the two probes and nothing else.
pub struct Probes(pub Receiver<Ready>);

impl Service for Probes {
    fn call(self: Arc<Self>, _: Peer, request: Request<Incoming>) -> Answer {
        let (path, is_head) = (Path::of(request.uri().path()), request.method() == Method::HEAD);
        let response = match path {
            Path::Health | Path::Ready if !path.takes(request.method()) => {
                answer::text(StatusCode::METHOD_NOT_ALLOWED, message::BAD_METHOD)
            }
            Path::Health => probes::health(),
            Path::Ready => probes::ready(*self.0.borrow()),
            _ => answer::text(StatusCode::NOT_FOUND, message::NO_ROUTE),
        };
        Box::pin(async move { if is_head { answer::without_body(response) } else { response } })
    }
}

/// The listener of `metrics.addr`: the meters, without authentication.
pub struct Scrape(pub Arc<dyn Fn() -> String + Send + Sync>);

impl Service for Scrape {
    fn call(self: Arc<Self>, _: Peer, request: Request<Incoming>) -> Answer {
        let path = Path::of(request.uri().path());
        let response = match path {
            Path::Metrics if path.takes(request.method()) => status::metrics((self.0)()),
            Path::Metrics => answer::text(StatusCode::METHOD_NOT_ALLOWED, message::BAD_METHOD),
            _ => answer::text(StatusCode::NOT_FOUND, message::NO_ROUTE),
        };
        Box::pin(async move { response })
    }
}

/// Why a request is refused as a whole.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Refused {
    fault: Fault,
    /// Whole seconds until it may come again.
    retry_after: Option<u64>,
    /// For the audit line alone.
    reason: String,
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self { fault, retry_after: None, reason: String::new() }
    }
}
