//! How long a scenario goes on, and the chance in it: short in the ordinary run, long in a soak, and repeatable.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// `usual` rounds in the ordinary run, `soak` rounds where `HOLDFAST_SOAK_ROUND` is set.
pub fn scaled(usual: usize, soak: usize) -> usize {
    if std::env::var_os("HOLDFAST_SOAK_ROUND").is_some() { soak } else { usual }
}

/// Chance from a seed that was printed, or given as `HOLDFAST_SEED`.
pub struct Seed(StdRng);

impl Seed {
    /// A fresh one; prints what repeats it.
    pub fn new(scenario: &str) -> Self {
        let given = std::env::var("HOLDFAST_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(rand::random::<u64>);
        println!("{scenario}: HOLDFAST_SEED={seed}");
        Self(StdRng::seed_from_u64(seed))
    }

    /// Waits for a moment by chance, shorter than `limit`: where something is to happen at any point of something else.
    pub async fn moment(&mut self, limit: Duration) {
        let limit = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_micros(self.below(limit))).await;
    }

    /// A number from 0 to `limit`, without it.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.random_range(0..limit)
    }
}
