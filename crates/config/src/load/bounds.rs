//! The bounds of the keys that stand alone.

use std::time::Duration;

use super::report::Report;
use crate::config::{AuditSink, ConfigSettings};
use crate::policy::glob::Glob;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const HEARTBEAT: Duration = Duration::from_secs(15);

/// A span that must lie between two others, as texts show it.
pub struct Bounds {
    low: Duration,
    high: Duration,
    text: &'static str,
}

impl Bounds {
    /// Both ends belong to it.
    pub const fn new(low: Duration, high: Duration, text: &'static str) -> Self {
        Self { low, high, text }
    }

    /// What is wrong with a span, if anything.
    pub fn complaint(&self, value: Duration) -> Option<String> {
        let out = value < self.low || value > self.high;
        out.then(|| format!("is {}, out of bounds: use {}", shown(value), self.text))
    }

    fn check(&self, path: &[&str], value: holdfast_ops::Duration, report: &mut Report<'_>) {
        if let Some(complaint) = self.complaint(value.get()) {
            report.error(path, format!("{} {complaint}", path.join(".")));
        }
    }
}

/// A span in the largest unit that it is a multiple of.
pub fn shown(span: Duration) -> String {
    let millis = span.as_millis();
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    match units.into_iter().find(|(_, unit)| millis >= *unit && millis.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", millis / unit),
        None if millis == 0 => "0s".to_owned(),
        None => format!("{millis}ms"),
    }
}

/// Checks everything that stands alone.
pub fn check(settings: &ConfigSettings, report: &mut Report<'_>) {
    Bounds::new(Duration::ZERO, HOUR, "0s to 1h").check(&["drain_grace"], settings.drain_grace, report);
    check_watch(settings, report);
    let readiness = &settings.readiness;
    let path = ["readiness", "priming_deadline"];
    Bounds::new(SECOND, 10 * MINUTE, "1s to 10m").check(&path, readiness.priming_deadline, report);
    for (index, glob) in readiness.require.iter().enumerate() {
        if Glob::new(glob).is_err() {
            let path = ["readiness", "require", &index.to_string()];
            report.error(&path, format!("readiness.require: bad glob \"{}\"", glob.escape_debug()));
        }
    }
    Bounds::new(MINUTE, 30 * DAY, "1m to 30d").check(&["lkg", "max_age"], settings.lkg.max_age, report);
    let debounce = Bounds::new(Duration::from_millis(50), Duration::from_secs(10), "50ms to 10s");
    debounce.check(&["reload", "debounce"], settings.reload.debounce, report);
    if settings.node_id.as_ref().is_some_and(|node| node.trim().is_empty()) {
        report.error(&["node_id"], "node_id is empty");
    }
    if settings.audit.sink == AuditSink::File && settings.audit.path.is_none() {
        report.error(&["audit", "sink"], "audit.path is required with audit.sink = \"file\"");
    }
    if settings.lkg.dir.is_some() && settings.lkg.key_file.is_none() {
        report.error(&["lkg", "dir"], "lkg.key_file is required with lkg.dir");
    }
}

fn check_watch(settings: &ConfigSettings, report: &mut Report<'_>) {
    let watch = &settings.watch;
    let heartbeat = Bounds::new(SECOND, MINUTE, "1s to 60s");
    heartbeat.check(&["watch", "heartbeat"], watch.heartbeat, report);
    if watch.heartbeat.get() != HEARTBEAT && heartbeat.complaint(watch.heartbeat.get()).is_none() {
        let text = "watch.heartbeat is not 15s: clients and balancers are set up for that";
        report.warning(&["watch", "heartbeat"], text);
    }
    Bounds::new(SECOND, 10 * MINUTE, "1s to 10m").check(&["watch", "write_stall"], watch.write_stall, report);
    if !watch.max_age.get().is_zero() {
        let bounds = Bounds::new(MINUTE, DAY, "0s for none, or 1m to 24h");
        bounds.check(&["watch", "max_age"], watch.max_age, report);
    }
    let redate = Bounds::new(Duration::from_secs(10), HOUR, "10s to 1h");
    redate.check(&["watch", "redate"], watch.redate, report);
}
