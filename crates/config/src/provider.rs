//! What a backend must be able to do. A provider knows nothing of bindings, readers or HTTP routes of ours.
//!
//! Deadlines, concurrency, back-off, breakers and leases' timing belong to the engine that calls it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::AnswerKind;
use holdfast_core::freshness::Outcome;

use crate::reference::ObjectKey;
use crate::value::Value;

/// A value with the lease under which the upstream gave it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fetched {
    /// How the attempt ended.
    pub outcome: Outcome<Value>,
    /// The lease of a leased value.
    pub lease: Option<Lease>,
}

impl From<Outcome<Value>> for Fetched {
    fn from(outcome: Outcome<Value>) -> Self {
        Self { outcome, lease: None }
    }
}

/// A lease on a value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lease {
    /// The upstream's name of it. Not a secret, but nobody else's business.
    pub id: String,
    /// How long it lasts from now.
    pub ttl: Duration,
    /// Whether it can be renewed.
    pub renewable: bool,
}

/// How the engine paces the reading of a provider's objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pace {
    /// The shortest time between two readings, whatever a binding asks; none.
    pub poll_floor: Duration,
    /// The longest time between two readings behind a watch, whatever `confirm` says; none.
    pub reread: Option<Duration>,
    /// Whether all objects come over one connection, so that failures of some tell of the others; else the breaker is
    /// left alone.
    pub shared_fate: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { poll_floor: Duration::ZERO, reread: None, shared_fate: true }
    }
}

/// One backend connection, `[upstream.NAME]`.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Fetches an object once. `held` is what is held now, for conditional requests; the answer may be a clone of it.
    async fn fetch(&self, object: &ObjectKey, held: Option<&Value>) -> Fetched;

    /// Begins to watch an object and reports to `sink` until the guard is dropped; none where this provider has no push.
    ///
    /// After every (re)subscription it calls [`Sink::subscribed`], so that the engine reads anew, since events of the gap
    /// are lost; on a loss it calls [`Sink::lost`] and subscribes again with back-off by itself.
    fn watch(&self, object: &ObjectKey, sink: Arc<dyn Sink>) -> Option<WatchGuard> {
        let _ = (object, sink);
        None
    }

    /// Renews a lease, asking for its former length.
    ///
    /// # Errors
    /// The kind of the failure.
    async fn renew(&self, lease: &Lease) -> Result<Lease, AnswerKind> {
        let _ = lease;
        Err(AnswerKind::Invalid)
    }

    /// Gives a lease back, best effort.
    async fn revoke(&self, lease: &Lease) {
        let _ = lease;
    }

    /// How its objects are paced.
    fn pace(&self) -> Pace {
        Pace::default()
    }

    /// Whether each fetch makes something new, such as a login, so that it must not be polled.
    fn mints(&self, object: &ObjectKey) -> bool {
        let _ = object;
        false
    }
}

/// Where a watch reports to. No call waits.
pub trait Sink: Send + Sync + 'static {
    /// The subscription stands; the engine reads the object now.
    fn subscribed(&self);
    /// The object may have changed; the engine reads it now.
    fn changed(&self);
    /// The object changed to this. The engine drops it when it is older by `order` than what is held.
    fn event(&self, outcome: Outcome<Value>);
    /// Sign of life of the connection, such as an answered ping.
    fn alive(&self);
    /// All changes up to now were reported, such as by a bookmark: what is held is what the upstream has.
    fn confirmed(&self) {
        self.alive();
    }
    /// The subscription broke; `kind` says how. The engine falls back to reading until the next [`Sink::subscribed`].
    fn lost(&self, kind: AnswerKind);
}

/// Ends its watch when dropped.
pub struct WatchGuard {
    _ends_when_dropped: Box<dyn Send + Sync>,
}

impl WatchGuard {
    /// Keeps something whose drop ends the watch.
    pub fn new(ends_when_dropped: impl Send + Sync + 'static) -> Self {
        Self { _ends_when_dropped: Box::new(ends_when_dropped) }
    }
}
