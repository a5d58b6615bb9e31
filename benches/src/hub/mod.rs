//! The hub's rows.

mod churn;
mod creds;
mod failover;
mod idle;
mod kv;
mod leases;
mod relay;
mod spokes;

use std::time::Duration;

use crate::report::{Row, publish};

/// Measures what was asked for: rows, or so many minutes of churn.
pub async fn run(only: &[String], quick: bool, churn: Option<u64>) {
    let wanted =
        |id: &str| (only.is_empty() && churn.is_none()) || only.iter().any(|o| o.eq_ignore_ascii_case(id));
    let mut rows: Vec<Row> = Vec::new();
    if wanted("P-01") {
        rows.extend(failover::kill(if quick { 2 } else { 30 }).await);
    }
    if wanted("P-02") {
        rows.extend(failover::step_down(if quick { 2 } else { 20 }).await);
    }
    if wanted("P-03") {
        rows.extend(creds::throughput(quick).await);
    }
    if wanted("P-04") {
        rows.extend(creds::parallel(quick).await);
    }
    if wanted("P-05") || wanted("P-06") {
        rows.extend(relay::paths(quick).await);
    }
    if wanted("P-07") {
        rows.extend(leases::takeover(if quick { 1000 } else { 100_000 }, if quick { 2 } else { 15 }).await);
    }
    if wanted("P-08") {
        let (each, rounds) = if quick { (20, 2) } else { (500, 20) };
        rows.extend(spokes::election(each, rounds).await);
    }
    if wanted("P-09") {
        rows.extend(leases::due_at_once(if quick { 300 } else { 20_000 }).await);
    }
    if wanted("P-10") {
        rows.extend(kv::rates(quick).await);
    }
    if wanted("P-11") {
        let (count, more, quiet) = if quick { (40, 10, 6) } else { (1000, 200, 30) };
        rows.extend(spokes::crowd(count, more, Duration::from_secs(quiet)).await);
    }
    if wanted("P-12") {
        rows.extend(idle::cost(quick).await);
    }
    if let Some(minutes) = churn {
        rows.extend(churn::level(Duration::from_secs(60 * minutes)).await);
    }
    publish("hub", &rows);
}
