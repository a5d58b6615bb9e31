//! The way to one upstream: how many calls may be under way, its breaker, and what it is known for.
//!
//! What must hold: no more calls than `concurrency` are under way, whatever they are for; every call has a deadline and is
//! dropped at it; a provider that panics fails this one call.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use holdfast_core::polling::{Admission, Breaker, BreakerTiming, Turn};
use holdfast_core::{AnswerKind, Mono, Wall};
use holdfast_ops::rand;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use zeroize::Zeroizing;

use super::ObjectId;
use crate::binding::scheme::UpstreamKind;
use crate::clock::Clock;
use crate::config::UpstreamSettings;
use crate::digest::Digest;
use crate::load::Upstream;
use crate::provider::Provider;

/// The window of `calls_per_minute`.
const MINUTE: Duration = Duration::from_secs(60);
/// The grain of that window.
const GRAIN: Duration = Duration::from_secs(1);

/// What an operator sees of an upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UpstreamStatus {
    /// Its name.
    pub name: Arc<str>,
    /// Its type.
    pub kind: UpstreamKind,
    /// Whether its breaker is open: it is down, and hardly asked.
    pub down: bool,
    /// Since when it is in that state.
    pub since: Wall,
    /// The kind of the last call that failed; none while the last one did not.
    pub last_error: Option<AnswerKind>,
    /// Bindings that come from it.
    pub bindings: usize,
    /// Calls that began in the last 60 s.
    pub calls_per_minute: u32,
}

/// One upstream.
pub(super) struct Gate {
    /// What it was made of.
    pub upstream: Upstream,
    /// What answers.
    pub provider: Arc<dyn Provider>,
    /// The digest of the files that its provider read when it was made.
    pub files: Digest,
    clock: Arc<dyn Clock>,
    permits: Semaphore,
    inner: Mutex<Inner>,
    /// How often the breaker closed.
    closings: watch::Sender<u64>,
}

struct Inner {
    breaker: Breaker,
    /// Objects whose failure counts in the run that may open the breaker.
    failing: BTreeSet<ObjectId>,
    /// Objects that come through here.
    objects: usize,
    since: Wall,
    last_error: Option<AnswerKind>,
    calls: VecDeque<(Mono, u32)>,
}

/// How a call ended.
pub(super) enum Ended<T> {
    /// With an answer, good or bad.
    Answer(T),
    /// The breaker is open: nobody was asked.
    Refused,
    /// The deadline passed.
    TimedOut,
    /// The provider panicked.
    Panicked,
}

impl Gate {
    pub(super) fn new(
        upstream: Upstream,
        provider: Arc<dyn Provider>,
        files: Digest,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let inner = Inner {
            breaker: Breaker::new(BreakerTiming::default()),
            failing: BTreeSet::new(),
            objects: 0,
            since: clock.now().wall,
            last_error: None,
            calls: VecDeque::new(),
        };
        let permits = Semaphore::new(upstream.concurrency.max(1));
        Self {
            upstream,
            provider,
            files,
            clock,
            permits,
            inner: Mutex::new(inner),
            closings: watch::Sender::new(0),
        }
    }

    /// Changes whenever the upstream comes back after its breaker was open.
    pub(super) fn closings(&self) -> watch::Receiver<u64> {
        self.closings.subscribe()
    }

    /// How many objects come through here.
    pub(super) fn set_objects(&self, objects: usize) {
        self.inner.lock().objects = objects;
    }

    pub(super) fn status(&self, bindings: usize) -> UpstreamStatus {
        let mut inner = self.inner.lock();
        inner.forget(self.clock.now().mono);
        UpstreamStatus {
            name: Arc::clone(&self.upstream.name),
            kind: self.upstream.kind,
            down: inner.breaker.is_open(),
            since: inner.since,
            last_error: inner.last_error,
            bindings,
            calls_per_minute: inner.calls.iter().map(|(_, count)| count).sum(),
        }
    }

    /// Makes one call when its turn comes, and judges the upstream by it. `kind` tells how an answer failed.
    pub(super) async fn call<T>(
        &self,
        object: ObjectId,
        timeout: Duration,
        call: impl Future<Output = T>,
        kind: impl FnOnce(&T) -> Option<AnswerKind>,
    ) -> Ended<T> {
        // An open breaker is no reason to stand in line.
        if self.shared_fate() && self.is_shut() {
            return Ended::Refused;
        }
        let Ok(_permit) = self.permits.acquire().await else { return Ended::Refused };
        let Some(turn) = self.enter() else { return Ended::Refused };
        let ended = tokio::time::timeout(timeout, AssertUnwindSafe(call).catch_unwind()).await;
        let ended = match ended {
            Ok(Ok(answer)) => Ended::Answer(answer),
            Ok(Err(_)) => {
                tracing::error!(upstream = %self.upstream.name, "a provider panicked; this attempt failed");
                Ended::Panicked
            }
            Err(_) => Ended::TimedOut,
        };
        let failed = match &ended {
            Ended::Answer(answer) => kind(answer),
            Ended::Panicked => Some(AnswerKind::Unknown),
            Ended::TimedOut | Ended::Refused => Some(AnswerKind::Unavailable),
        };
        turn.ended(object, failed);
        ended
    }

    fn shared_fate(&self) -> bool {
        self.provider.pace().shared_fate
    }

    fn is_shut(&self) -> bool {
        let now = self.clock.now().mono;
        self.inner.lock().breaker.next_probe().is_some_and(|at| at > now)
    }

    fn enter(&self) -> Option<Pass<'_>> {
        let now = self.clock.now().mono;
        let mut inner = self.inner.lock();
        let admitted = match self.shared_fate() {
            true => inner.breaker.admit(now),
            false => Admission::Call,
        };
        if admitted == Admission::Refuse {
            return None;
        }
        inner.count(now);
        Some(Pass { gate: self, admitted, told: false })
    }
}

/// The digest of the files that providers read when they are made: authorities, certificates with their keys, passwords.
/// Tokens are not among them, which are read whenever they are used.
pub(super) fn files(settings: &UpstreamSettings) -> Digest {
    let (cert, tls) = (settings.cert.as_ref(), settings.tls.as_ref());
    let files = [
        settings.ca_file.as_deref(),
        cert.map(|cert| cert.cert.as_path()),
        cert.map(|cert| cert.key.as_path()),
        tls.and_then(|tls| tls.ca.as_deref()),
        tls.and_then(|tls| tls.cert.as_deref()),
        tls.and_then(|tls| tls.key.as_deref()),
        settings.password_file.as_deref(),
        settings.dsn_file.as_deref(),
        settings.kubeconfig.as_deref(),
    ];
    let digests = files.map(|file| {
        let bytes = file.and_then(|file| std::fs::read(file).ok()).map(Zeroizing::new);
        bytes.map_or([0; 32], |bytes| *Digest::of(&bytes).bytes())
    });
    Digest::of(&digests.concat())
}

impl Inner {
    fn count(&mut self, now: Mono) {
        self.forget(now);
        match self.calls.back_mut() {
            Some((at, count)) if now.since(*at) < GRAIN => *count = count.saturating_add(1),
            _ => self.calls.push_back((now, 1)),
        }
    }

    fn forget(&mut self, now: Mono) {
        while self.calls.front().is_some_and(|(at, _)| now.since(*at) >= MINUTE) {
            self.calls.pop_front();
        }
    }

    /// Whether a failure of this object may bring the breaker nearer to opening. One object that fails again and again
    /// says little of the others, so it counts once until each of them had its turn.
    fn counts(&mut self, object: ObjectId) -> bool {
        if self.failing.len() >= self.objects {
            self.failing.clear();
        }
        self.failing.insert(object)
    }
}

/// A call that was admitted; if it is dropped before its end, another may take its place.
struct Pass<'a> {
    gate: &'a Gate,
    admitted: Admission,
    told: bool,
}

impl Pass<'_> {
    fn ended(mut self, object: ObjectId, kind: Option<AnswerKind>) {
        self.told = true;
        let now = self.gate.clock.now();
        let mut inner = self.gate.inner.lock();
        inner.last_error = kind;
        if !self.gate.shared_fate() {
            return;
        }
        if kind != Some(AnswerKind::Unavailable) {
            inner.failing.clear();
        } else if self.admitted == Admission::Call && !inner.counts(object) {
            return;
        }
        let turn = inner.breaker.ended(now.mono, self.admitted, kind, rand::unit());
        if turn.is_some() {
            inner.since = now.wall;
        }
        drop(inner);
        let upstream = &self.gate.upstream.name;
        match turn {
            Some(Turn::Opened) => {
                tracing::info!(%upstream, "an upstream is down; it is probed until it answers")
            }
            Some(Turn::Closed) => {
                tracing::info!(%upstream, "an upstream answers again");
                self.gate.closings.send_modify(|closings| *closings += 1);
            }
            None => {}
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if !self.told {
            let now = self.gate.clock.now().mono;
            self.gate.inner.lock().breaker.abandoned(now, self.admitted);
        }
    }
}
