//! The meters of the role, `holdfast_config_...`. Labels are enums, never names, subjects or addresses.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use holdfast_core::AnswerKind;
use holdfast_ops::metrics::{Metrics, SECONDS};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::label::label;
use crate::ratelimit::Limit;

label! {
    /// What was asked for.
    Route {
        /// `GET /v1/values/{name}`
        Value = "value",
        /// `POST /v1/values`
        Batch = "batch",
        /// `/v1/watch`
        Watch = "watch",
        /// `GET /v1/healthz`
        Health = "healthz",
        /// `GET /v1/readyz`
        Ready = "readyz",
        /// `GET /v1/status`
        Status = "status",
        /// `GET /metrics`
        Metrics = "metrics",
        /// Anything else.
        None = "none",
    }
}

label! {
    /// Why a stream ended.
    StreamEnd {
        /// The client went away.
        Client = "client",
        /// It took nothing for too long.
        Slow = "slow",
        /// The replica went down.
        Draining = "draining",
        /// It reached its age.
        MaxAge = "max_age",
        /// Its caller is no longer known.
        Unauthenticated = "unauthenticated",
    }
}

label! {
    /// What became of a changed configuration.
    Reload {
        /// It counts.
        Applied = "applied",
        /// It is bad; the former one counts on.
        Rejected = "rejected",
    }
}

label! {
    /// How a binding stands.
    Standing {
        /// Its value is as fresh as its upstream's polling makes it.
        Fresh = "fresh",
        /// Its value is last-known-good.
        Stale = "stale",
        /// It has no value to serve.
        Failed = "failed",
        /// It has had no outcome yet.
        Pending = "pending",
    }
}

/// The kind of an answer, or none for a good one.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct KindLabel(pub Option<AnswerKind>);

impl EncodeLabelValue for KindLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.0.map_or("", AnswerKind::label), encoder)
    }
}

/// The labels of `requests_total`.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct RequestLabels {
    /// The route.
    pub route: Route,
    /// The HTTP status.
    pub status: u16,
    /// The kind of a refusal.
    pub kind: KindLabel,
}

/// One label called `route`.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct RouteLabel {
    /// The route.
    pub route: Route,
}

/// One label called `reason`.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct ReasonLabel {
    /// Why.
    pub reason: StreamEnd,
}

/// One label called `event`.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct EventLabel {
    /// The type of a frame.
    pub event: &'static str,
}

/// One label called `limit`.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct LimitLabel {
    /// Which.
    pub limit: Limit,
}

/// One label called `result`.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct ResultLabel {
    /// What came of it.
    pub result: &'static str,
}

/// One label called `state`.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct StateLabel {
    /// How bindings stand.
    pub state: Standing,
}

/// The labels of `attempts_total`.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct AttemptLabels {
    /// The scheme of the reference.
    pub scheme: &'static str,
    /// `value`, `absent`, or the kind of the failure.
    pub outcome: &'static str,
}

/// One label called `scheme`.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct SchemeLabel {
    /// The scheme of the reference.
    pub scheme: &'static str,
}

/// The labels of `auth_failures_total`.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct AuthLabels {
    /// The method; empty when none was asked.
    pub method: &'static str,
    /// The check that failed.
    pub reason: &'static str,
}

/// Makes the histograms of a family.
#[derive(Clone, Copy, Debug)]
pub struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(SECONDS)
    }
}

type Float = Gauge<f64, AtomicU64>;

/// All meters of a replica; clones are the same meters.
#[derive(Clone, Debug)]
pub struct Meters {
    registry: Metrics,
    /// Requests answered.
    pub requests: Family<RequestLabels, Counter>,
    /// From request to answer, of a stream to its headers.
    pub request_seconds: Family<RouteLabel, Histogram, Seconds>,
    /// Open streams.
    pub streams: Gauge,
    /// Streams that ended.
    pub streams_closed: Family<ReasonLabel, Counter>,
    /// Frames written.
    pub frames: Family<EventLabel, Counter>,
    /// From publication to the socket.
    pub delivery_seconds: Histogram,
    /// How bindings stand.
    pub bindings: Family<StateLabel, Gauge>,
    /// The age of the oldest value that is served.
    pub oldest_value: Float,
    /// Attempts that ended.
    pub attempts: Family<AttemptLabels, Counter>,
    /// How long they took.
    pub attempt_seconds: Family<SchemeLabel, Histogram, Seconds>,
    /// Upstreams whose breaker is open.
    pub upstreams_down: Gauge,
    /// Configurations that were read again.
    pub reloads: Family<ResultLabel, Counter>,
    /// The number of the configuration in use.
    pub generation: Gauge,
    /// Records of the last-known-good file.
    pub lkg_restores: Family<ResultLabel, Counter>,
    /// Audit lines that were lost.
    pub audit_dropped: Counter,
    /// Callers that were not let in.
    pub auth_failures: Family<AuthLabels, Counter>,
    /// Requests and streams refused by a limit.
    pub rate_limited: Family<LimitLabel, Counter>,
    /// Until the first of the listeners' certificates ends.
    pub tls_cert_expiry: Float,
    /// Descriptors that can still be opened.
    pub descriptors_free: Gauge,
}

impl Default for Meters {
    fn default() -> Self {
        let r = Metrics::new("holdfast_config");
        let seconds = Family::<RouteLabel, Histogram, Seconds>::new_with_constructor(Seconds);
        let attempt_seconds = Family::<SchemeLabel, Histogram, Seconds>::new_with_constructor(Seconds);
        Self {
            requests: r.register("requests", "Requests answered", Family::default()),
            request_seconds: r.register("request_seconds", "Time to the answer", seconds),
            streams: r.register("streams", "Open streams", Gauge::default()),
            streams_closed: r.register("streams_closed", "Streams that ended", Family::default()),
            frames: r.register("frames", "Frames written to streams", Family::default()),
            delivery_seconds: r.register(
                "delivery_seconds",
                "From the publication of a change to its write to a stream",
                Histogram::new(SECONDS),
            ),
            bindings: r.register("bindings", "Bindings by state", Family::default()),
            oldest_value: r.register("oldest_value_seconds", "Age of the oldest value", Float::default()),
            attempts: r.register("attempts", "Attempts to fetch from upstreams", Family::default()),
            attempt_seconds: r.register("attempt_seconds", "Time of an attempt", attempt_seconds),
            upstreams_down: r.register("upstreams_down", "Upstreams that fail as a whole", Gauge::default()),
            reloads: r.register("reload", "Configurations read again", Family::default()),
            generation: r.register(
                "config_generation",
                "Number of the configuration in use",
                Gauge::default(),
            ),
            lkg_restores: r.register("lkg_restore", "Uses of the last-known-good file", Family::default()),
            audit_dropped: r.register("audit_dropped", "Audit lines that were lost", Counter::default()),
            auth_failures: r.register("auth_failures", "Callers that were not let in", Family::default()),
            rate_limited: r.register("rate_limited", "Refused by a limit", Family::default()),
            tls_cert_expiry: r.register(
                "tls_cert_expiry_seconds",
                "Until the first certificate of a listener ends",
                Float::default(),
            ),
            descriptors_free: r.register(
                "file_descriptors_free",
                "Descriptors that can still be opened",
                Gauge::default(),
            ),
            registry: r,
        }
    }
}

impl Meters {
    /// All of them as text.
    pub fn render(&self) -> String {
        self.registry.render()
    }

    /// One request was answered.
    pub fn request(&self, route: Route, status: u16, kind: Option<AnswerKind>, took: Duration) {
        self.requests.get_or_create(&RequestLabels { route, status, kind: KindLabel(kind) }).inc();
        self.request_seconds.get_or_create(&RouteLabel { route }).observe(took.as_secs_f64());
    }

    /// A configuration was read again.
    pub fn reload(&self, result: Reload) {
        self.reloads.get_or_create(&ResultLabel { result: result.label() }).inc();
    }

    /// A limit refused something.
    pub fn limited(&self, limit: Limit) {
        self.rate_limited.get_or_create(&LimitLabel { limit }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_those_of_the_manual() {
        let meters = Meters::default();
        meters.request(Route::Value, 404, Some(AnswerKind::NotFound), Duration::from_millis(2));
        meters.request(Route::Value, 200, None, Duration::from_millis(2));
        meters.streams_closed.get_or_create(&ReasonLabel { reason: StreamEnd::Slow }).inc();
        meters.frames.get_or_create(&EventLabel { event: "update" }).inc();
        meters.reload(Reload::Rejected);
        meters.limited(Limit::StreamsTotal);
        meters.bindings.get_or_create(&StateLabel { state: Standing::Stale }).set(3);
        let text = meters.render();
        for line in [
            r#"holdfast_config_requests_total{route="value",status="404",kind="not_found"} 1"#,
            r#"holdfast_config_requests_total{route="value",status="200",kind=""} 1"#,
            r#"holdfast_config_request_seconds_count{route="value"} 2"#,
            r#"holdfast_config_streams_closed_total{reason="slow"} 1"#,
            r#"holdfast_config_frames_total{event="update"} 1"#,
            r#"holdfast_config_reload_total{result="rejected"} 1"#,
            r#"holdfast_config_rate_limited_total{limit="streams_total"} 1"#,
            r#"holdfast_config_bindings{state="stale"} 3"#,
            "holdfast_config_audit_dropped_total 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }
}
