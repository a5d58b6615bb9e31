//! What all reads and watches of a client share.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_core::Mono;
use holdfast_core::failover::{Ended, Endpoints, Step, Timing, Walk};
use holdfast_core::time::Spread;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::divergence::Divergence;
use super::marks::Marks;
use super::transport::Link;

/// The header with the digest of a replica's configuration.
const CONFIG: &str = "holdfast-config";

/// A monotonic clock that stands still when the runtime's does.
#[derive(Clone, Copy, Debug)]
pub struct Clock(tokio::time::Instant);

impl Clock {
    /// A clock that begins now.
    pub fn new() -> Self {
        Self(tokio::time::Instant::now())
    }

    /// The instant now.
    pub fn now(self) -> Mono {
        Mono::ZERO.after(self.0.elapsed())
    }

    /// Waits until an instant; for ever without one.
    pub async fn sleep_until(self, at: Option<Mono>) {
        match at {
            Some(at) => tokio::time::sleep_until(self.0 + at.since(Mono::ZERO)).await,
            None => std::future::pending().await,
        }
    }
}

/// What all reads and watches of a client share.
pub struct Shared {
    names: Vec<Arc<str>>,
    /// The ways to the endpoints, in the order in which they were given.
    pub links: Vec<Box<dyn Link>>,
    get_only: Vec<AtomicBool>,
    endpoints: Mutex<Endpoints>,
    /// How long one endpoint may take.
    pub attempt_timeout: Duration,
    /// What the application has.
    pub marks: Marks,
    /// What the replicas say of their configurations.
    pub divergence: Mutex<Divergence>,
    /// Whether the client was closed.
    pub closed: watch::Sender<bool>,
    /// The clock of all decisions.
    pub clock: Clock,
}

impl Shared {
    /// A client over these links.
    pub fn new(links: Vec<(Arc<str>, Box<dyn Link>)>, attempt_timeout: Duration) -> Self {
        let (names, links): (Vec<_>, Vec<_>) = links.into_iter().unzip();
        let count = links.len();
        // The probe of an endpoint that failed is one attempt.
        let timing = Timing { probe: attempt_timeout, ..Timing::default() };
        let places = NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN);
        Self {
            names,
            links,
            get_only: (0..count).map(|_| AtomicBool::new(false)).collect(),
            endpoints: Mutex::new(Endpoints::new(places, timing)),
            attempt_timeout,
            marks: Marks::default(),
            divergence: Mutex::new(Divergence::new(count)),
            closed: watch::Sender::new(false),
            clock: Clock::new(),
        }
    }

    /// How an endpoint is called.
    pub fn name(&self, endpoint: usize) -> Arc<str> {
        self.names.get(endpoint).cloned().unwrap_or_default()
    }

    /// All names of endpoints.
    pub fn endpoint_names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Begins to ask endpoints, and names the first one.
    pub fn begin_walk(&self) -> (Walk, usize) {
        let (walk, first) = Walk::begin(&mut self.endpoints.lock(), self.clock.now());
        (walk, first.index())
    }

    /// The endpoint to ask next, after one attempt ended; none when it is over.
    pub fn go_on(&self, walk: &mut Walk, endpoint: usize, ended: Ended) -> Option<usize> {
        if ended.blames_endpoint() {
            self.gone(endpoint);
        }
        match walk.ended(&mut self.endpoints.lock(), self.clock.now(), ended) {
            Step::Try(next) => Some(next.index()),
            Step::Done(_) => None,
        }
    }

    /// What an endpoint said of its configuration no longer counts.
    pub fn gone(&self, endpoint: usize) {
        self.divergence.lock().gone(self.clock.now(), endpoint);
    }

    /// Notes the digest that an answer carries.
    pub fn heard(&self, endpoint: usize, headers: &HeaderMap) {
        // Eight digits today; a longer text is none of ours and is not kept.
        let digest = headers.get(CONFIG).and_then(|value| value.to_str().ok());
        if let Some(digest) = digest.filter(|digest| digest.len() <= 64) {
            self.divergence.lock().heard(self.clock.now(), endpoint, digest);
        }
    }

    /// Whether an endpoint knows no subscription by `POST`.
    pub fn is_get_only(&self, endpoint: usize) -> bool {
        self.get_only.get(endpoint).is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Remembers whether an endpoint knows subscriptions by `POST`.
    pub fn set_get_only(&self, endpoint: usize, get_only: bool) {
        if let Some(flag) = self.get_only.get(endpoint) {
            flag.store(get_only, Ordering::Relaxed);
        }
    }

    /// A stream of jitter that differs between clients.
    pub fn spread() -> Spread {
        Spread::new(RandomState::new().build_hasher().finish())
    }
}
