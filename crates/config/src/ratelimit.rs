//! The limits on what one caller, and all together, may ask for; counted by subject.
//!
//! What must hold: one subject's flood takes nothing from another but its share of `streams_total`; what a stream took it
//! gives back when it ends, however it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_core::Mono;
use holdfast_core::quota::{Concurrency, Full, Rate, RateQuota, Verdict};
use parking_lot::Mutex;

use crate::config::LimitSettings;
use crate::label::label;

/// When a stream that found no room may try again: streams live long.
const STREAM_RETRY: Duration = Duration::from_secs(5);
/// How often subjects that are as good as new are forgotten.
const SWEEP: Duration = Duration::from_secs(1);

label! {
    /// The limit that was reached; the names are those of `limits`.
    Limit {
        /// Requests of one subject.
        Requests = "requests_per_second",
        /// Streams of one subject.
        StreamsPerSubject = "streams_per_subject",
        /// All streams.
        StreamsTotal = "streams_total",
    }
}

/// 429 `rate limited`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("rate limited")]
pub struct Limited {
    /// The limit that was reached.
    pub limit: Limit,
    /// `Retry-After`, in whole seconds, at least 1.
    pub retry_after: u64,
}

/// The limits of one replica.
#[derive(Debug)]
pub struct Limits {
    /// Whether requests are counted at all.
    counts_requests: AtomicBool,
    requests: Mutex<Requests>,
    streams: Mutex<Concurrency<Arc<str>>>,
}

#[derive(Debug)]
struct Requests {
    rate: Rate,
    quota: RateQuota<Arc<str>>,
    swept: Mono,
}

/// A stream's place; dropping it gives the place back.
#[derive(Debug)]
pub struct StreamPermit {
    limits: Arc<Limits>,
    subject: Arc<str>,
}

impl Limited {
    fn new(limit: Limit, wait: Duration) -> Self {
        let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
        Self { limit, retry_after: seconds.max(1) }
    }
}

impl Limits {
    /// Limits that nothing counts against yet.
    pub fn new(settings: &LimitSettings) -> Arc<Self> {
        let rate = rate(settings);
        Arc::new(Self {
            counts_requests: AtomicBool::new(settings.requests_per_second > 0),
            requests: Mutex::new(Requests { rate, quota: RateQuota::new(rate), swept: Mono::ZERO }),
            streams: Mutex::new(Concurrency::new(
                settings.streams_per_subject.into(),
                settings.streams_total.into(),
            )),
        })
    }

    /// Puts other limits in force. Streams that are open stay open and go on to count.
    pub fn apply(&self, settings: &LimitSettings) {
        let rate = rate(settings);
        let mut requests = self.requests.lock();
        if requests.rate != rate {
            (requests.rate, requests.quota) = (rate, RateQuota::new(rate));
        }
        drop(requests);
        self.counts_requests.store(settings.requests_per_second > 0, Ordering::Release);
        self.streams.lock().limit(settings.streams_per_subject.into(), settings.streams_total.into());
    }

    /// Counts a request of a subject.
    ///
    /// # Errors
    /// When it comes too early; it does not count then.
    pub fn request(&self, subject: &Arc<str>, now: Mono) -> Result<(), Limited> {
        if !self.counts_requests.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut requests = self.requests.lock();
        if now.since(requests.swept) >= SWEEP {
            requests.quota.sweep(now);
            requests.swept = now;
        }
        match requests.quota.check(now, subject) {
            Verdict::Allow => Ok(()),
            Verdict::Refuse { retry_after } => Err(Limited::new(Limit::Requests, retry_after)),
        }
    }

    /// Takes a place for a stream of a subject.
    ///
    /// # Errors
    /// When there is none.
    pub fn stream(self: &Arc<Self>, subject: &Arc<str>) -> Result<StreamPermit, Limited> {
        let limit = match self.streams.lock().enter(subject) {
            Ok(()) => return Ok(StreamPermit { limits: Arc::clone(self), subject: Arc::clone(subject) }),
            Err(Full::Client) => Limit::StreamsPerSubject,
            Err(Full::Total) => Limit::StreamsTotal,
        };
        Err(Limited::new(limit, STREAM_RETRY))
    }

    /// How many streams are open.
    pub fn streams(&self) -> u64 {
        self.streams.lock().held()
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.limits.streams.lock().leave(&self.subject);
    }
}

fn rate(settings: &LimitSettings) -> Rate {
    let rate = Rate::per_second(settings.requests_per_second.into());
    Rate { burst: (settings.burst > 0).then(|| settings.burst.into()), ..rate }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(
        requests_per_second: u32,
        burst: u32,
        streams_per_subject: u32,
        streams_total: u32,
    ) -> LimitSettings {
        LimitSettings {
            requests_per_second,
            burst,
            streams_per_subject,
            streams_total,
            ..LimitSettings::default()
        }
    }

    fn of(name: &str) -> Arc<str> {
        Arc::from(name)
    }

    const REFUSED: Result<(), Limited> = Err(Limited { limit: Limit::Requests, retry_after: 1 });

    #[test]
    fn a_subject_has_its_burst_and_then_its_rate_and_others_theirs() {
        let limits = Limits::new(&limits(10, 3, 0, 0));
        let ask = |name: &str, at| limits.request(&of(name), Mono::from_millis(at));
        assert_eq!([ask("a", 0), ask("a", 0), ask("a", 0), ask("a", 0)], [Ok(()), Ok(()), Ok(()), REFUSED]);
        assert_eq!([ask("b", 0), ask("", 0)], [Ok(()), Ok(())]);
        assert_eq!([ask("a", 99), ask("a", 100), ask("a", 100)], [REFUSED, Ok(()), REFUSED]);
    }

    #[test]
    fn without_a_burst_a_second_comes_at_once_and_without_a_rate_nothing_is_counted() {
        let counted = Limits::new(&limits(2, 0, 0, 0));
        let ask = |limits: &Limits| limits.request(&of("a"), Mono::ZERO);
        assert_eq!([ask(&counted), ask(&counted), ask(&counted)], [Ok(()), Ok(()), REFUSED]);
        counted.apply(&limits(0, 5, 0, 0));
        assert!((0..1000).all(|_| ask(&counted) == Ok(())));
        assert_eq!(counted.requests.lock().quota.clients(), 0);
    }

    #[test]
    fn the_wait_is_in_whole_seconds_and_enough() {
        let limits = Limits::new(&limits(1, 1, 0, 0));
        let ask = |at| limits.request(&of("a"), Mono::from_millis(at));
        assert_eq!(ask(0), Ok(()));
        for (wait, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_000, 59)] {
            let limited = Limited::new(Limit::Requests, Duration::from_millis(wait));
            assert_eq!(limited.retry_after, seconds, "{wait} ms");
        }
        assert_eq!([ask(500), ask(1500)], [REFUSED, Ok(())]);
    }

    #[test]
    fn streams_count_by_subject_and_in_all_until_they_end() {
        let limits = Limits::new(&limits(0, 0, 2, 3));
        let open = |name: &str| limits.stream(&of(name));
        let (first, _second) = (open("a").unwrap(), open("a").unwrap());
        assert_eq!(open("a").unwrap_err(), Limited { limit: Limit::StreamsPerSubject, retry_after: 5 });
        let other = open("b").unwrap();
        assert_eq!(open("c").unwrap_err(), Limited { limit: Limit::StreamsTotal, retry_after: 5 });
        drop(first);
        drop(other);
        assert_eq!(limits.streams(), 1);
        assert!(open("a").is_ok());
    }

    #[test]
    fn lower_limits_end_no_stream() {
        let shared = Limits::new(&limits(0, 0, 0, 0));
        let mut open: Vec<_> = (0..5).map(|_| shared.stream(&of("a")).unwrap()).collect();
        shared.apply(&limits(0, 0, 2, 0));
        assert!(shared.stream(&of("a")).is_err());
        open.truncate(1);
        assert!(shared.stream(&of("a")).is_ok());
    }
}
