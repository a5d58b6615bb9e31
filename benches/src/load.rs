//! Closed-loop load: so many clients, each sending its next request when the last was answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

/// What a load run saw.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Latencies of what succeeded, sorted.
    pub latencies: Vec<Duration>,
    /// How many failed.
    pub failed: usize,
    /// How long it ran.
    pub took: Duration,
}

impl Load {
    /// Successes a second.
    pub fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }

    /// A percentile of the latency.
    pub fn percentile(&self, percent: f64) -> Duration {
        percentile(&self.latencies, percent)
    }
}

/// A percentile of sorted values; zero when there are none.
pub fn percentile(sorted: &[Duration], percent: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * percent / 100.0).round() as usize).copied().unwrap_or_default()
}

/// Runs `clients` loops for `time`; `work` gets the number of its client and of its round and tells success.
pub async fn closed_loop<F>(
    clients: usize,
    time: Duration,
    work: impl Fn(usize, usize) -> F + Send + Sync + 'static,
) -> Load
where
    F: Future<Output = bool> + Send,
{
    closed_loop_until(clients, tokio::time::sleep(time), work).await
}

/// The same until something has come to its end.
pub async fn closed_loop_until<F>(
    clients: usize,
    end: impl Future<Output = ()>,
    work: impl Fn(usize, usize) -> F + Send + Sync + 'static,
) -> Load
where
    F: Future<Output = bool> + Send,
{
    let (work, stop) = (Arc::new(work), Arc::new(AtomicBool::new(false)));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let (work, stop) = (work.clone(), stop.clone());
        tasks.spawn(async move {
            let (mut latencies, mut failed) = (Vec::new(), 0);
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let begun = Instant::now();
                match work(client, round).await {
                    true => latencies.push(begun.elapsed()),
                    false => failed += 1,
                }
            }
            (latencies, failed)
        });
    }
    end.await;
    stop.store(true, Ordering::Relaxed);
    let mut load = Load::default();
    for (latencies, failed) in tasks.join_all().await {
        load.latencies.extend(latencies);
        load.failed += failed;
    }
    load.took = started.elapsed();
    load.latencies.sort();
    load
}
