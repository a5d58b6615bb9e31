//! The metric registry of a daemon, shown in the Prometheus text format 0.0.4.
//!
//! Labels are enums, never ids: a label that grows with the data would grow the memory of whoever scrapes it.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::{Metric, Registry};

/// The `Content-Type` of what [`Metrics::render`] returns.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Buckets for things that take from half a millisecond to half a minute, in seconds.
pub const SECONDS: [f64; 15] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// A registry whose metrics share a prefix; clones are the same registry.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// A registry for metrics named `<prefix>_...`, for example `holdfast_hub`.
    pub fn new(prefix: &str) -> Self {
        Self { registry: Arc::new(Mutex::new(Registry::with_prefix(prefix))) }
    }

    /// Registers a metric under `<prefix>_<name>` and hands it back. A counter's name comes without `_total`,
    /// which the format adds.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.registry.lock().register(name, help, metric.clone());
        metric
    }

    /// All metrics as text. Empty when a collector failed to write itself.
    pub fn render(&self) -> String {
        let mut text = String::new();
        match prometheus_text::encode(&mut text, &self.registry.lock()) {
            Ok(()) => text,
            Err(_) => {
                tracing::error!("a metric could not be encoded");
                String::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;

    use super::*;

    #[test]
    fn the_text_is_what_a_scraper_of_0_0_4_reads() {
        let metrics = Metrics::new("holdfast_hub");
        let active: Gauge = metrics.register("active", "Whether this node is active", Gauge::default());
        let elections: Counter = metrics.register("elections", "Elections seen", Counter::default());
        let commit = metrics.register("commit_seconds", "Time to commit", Histogram::new(SECONDS));
        active.set(1);
        elections.inc();
        commit.observe(0.002);
        let text = metrics.render();
        for line in [
            "# TYPE holdfast_hub_active gauge",
            "holdfast_hub_active 1",
            "holdfast_hub_elections_total 1",
            "holdfast_hub_commit_seconds_bucket{le=\"0.0025\"} 1",
            "holdfast_hub_commit_seconds_count 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("# EOF"), "that is the other format:\n{text}");
        assert!(CONTENT_TYPE.contains("version=0.0.4"));
    }
}
