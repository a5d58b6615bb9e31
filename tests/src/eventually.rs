//! Waiting for conditions, never for time.

use std::time::{Duration, Instant};

/// Polls a condition until it yields a value; panics with `what` when the deadline passes.
pub fn eventually<T>(deadline: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// As [`eventually`], for conditions that ask a server.
pub async fn eventually_async<T, F>(deadline: Duration, what: &str, mut condition: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let start = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
