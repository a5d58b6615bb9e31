//! The seeds of the lossy worlds: the same ones in every test run, fresh ones in each round of `./dev soak`.

use std::ops::Range;

/// `count` seeds. `HOLDFAST_SOAK_ROUND` is the number of the round; a seed that failed replays with the round in
/// which it failed.
pub fn seeds(count: u64) -> Range<u64> {
    let round = std::env::var("HOLDFAST_SOAK_ROUND").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let first = count.saturating_mul(round);
    first..first.saturating_add(count)
}
