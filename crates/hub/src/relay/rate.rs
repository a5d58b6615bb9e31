//! How often one source address may ask at the paths that need no token.

use std::net::IpAddr;
use std::time::Duration;

use holdfast_core::Mono;
use holdfast_core::quota::{Rate, RateQuota, Verdict};
use holdfast_ops::MonoClock;
use parking_lot::Mutex;

use crate::error::ApiError;
use crate::hub::Hub;

/// What the number of requests refers to.
const INTERVAL: Duration = Duration::from_secs(60);
/// How often addresses that make no difference any more are forgotten.
const SWEEP: Duration = Duration::from_secs(1);

/// The limit, counted on the active node, apart from the quotas of the cluster and on top of them.
pub struct OpenRate {
    clock: MonoClock,
    state: Option<Mutex<(RateQuota<IpAddr>, Mono)>>,
}

impl OpenRate {
    /// So many requests a minute; 0 for no limit.
    pub fn per_minute(requests: u32) -> Self {
        let rate = Rate { interval: INTERVAL, ..Rate::per_second(f64::from(requests)) };
        let state = (requests > 0).then(|| Mutex::new((RateQuota::new(rate), Mono::ZERO)));
        Self { clock: MonoClock::new(), state }
    }

    /// Counts a request, or refuses it with 429.
    pub fn check(&self, hub: &Hub, path: &str, remote: IpAddr) -> Result<(), ApiError> {
        let Some(state) = &self.state else { return Ok(()) };
        let now = self.clock.now();
        let verdict = {
            let mut state = state.lock();
            if now.since(state.1) >= SWEEP {
                state.0.sweep(now);
                state.1 = now;
            }
            state.0.check(now, &remote.to_canonical())
        };
        match verdict {
            Verdict::Allow => Ok(()),
            Verdict::Refuse { retry_after } => Err(hub.quotas.refuse_rate(path, retry_after)),
        }
    }
}
