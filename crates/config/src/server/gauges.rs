//! Meters that are looked up when they are shown, and those of the engine.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::freshness::Served;
use holdfast_net::server_tls::ServerTls;

use super::Core;
use crate::api::standing;
use crate::clock::wall;
use crate::config::Scheme;
use crate::metrics::{AttemptLabels, Meters, ResultLabel, SchemeLabel, Standing, StateLabel};
use crate::upstream::meter::{Ending, Meter};

/// Counts the engine's attempts.
pub(super) struct Attempts(pub(super) Meters);

impl Meter for Attempts {
    fn attempt(&self, scheme: Scheme, ending: Ending, took: Option<Duration>) {
        let scheme = scheme.name();
        self.0.attempts.get_or_create(&AttemptLabels { scheme, outcome: ending.label() }).inc();
        if let Some(took) = took {
            self.0.attempt_seconds.get_or_create(&SchemeLabel { scheme }).observe(took.as_secs_f64());
        }
    }
}

/// All meters as text, the looked-up ones as they are now.
pub(super) fn render(core: &Core, tls: &[Arc<ServerTls>]) -> String {
    let meters = &core.meters;
    let (now, mut oldest) = (wall(), Duration::ZERO);
    let mut counts = [0_i64; Standing::ALL.len()];
    for entry in core.api.board().entries().values() {
        let record = entry.load();
        let stands = standing(&record);
        if let Some(count) =
            Standing::ALL.iter().position(|one| *one == stands).and_then(|n| counts.get_mut(n))
        {
            *count += 1;
        }
        if let (Served::Value { .. }, Some(at)) = (record.state.served, record.state.resolved_at) {
            oldest = oldest.max(now.since(at));
        }
    }
    for (state, count) in Standing::ALL.iter().zip(counts) {
        meters.bindings.get_or_create(&StateLabel { state: *state }).set(count);
    }
    meters.oldest_value.set(oldest.as_secs_f64());
    let down = core.engine.upstreams().iter().filter(|upstream| upstream.down).count();
    meters.upstreams_down.set(i64::try_from(down).unwrap_or(i64::MAX));
    let restored = core.engine.restored();
    for (result, count) in [("used", restored.used), ("discarded", restored.discarded)] {
        let counter = meters.lkg_restores.get_or_create(&ResultLabel { result });
        counter.inc_by(count.saturating_sub(counter.get()));
    }
    if let Some(ends) = tls.iter().map(|tls| tls.expires()).min() {
        let left = ends.saturating_sub(now.as_micros() / 1_000_000);
        #[allow(clippy::cast_precision_loss, reason = "seconds")]
        meters.tls_cert_expiry.set(left as f64);
    }
    meters.descriptors_free.set(descriptors_free());
    meters.render()
}

/// Descriptors that can still be opened.
fn descriptors_free() -> i64 {
    use nix::sys::resource::{Resource, getrlimit};
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_sub(i64::try_from(open).unwrap_or(i64::MAX))
}
