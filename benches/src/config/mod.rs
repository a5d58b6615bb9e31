//! The config server's rows.

mod fanout;
mod fleet;
mod reads;
mod start;
mod watchers;

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::report::{Row, publish};

/// Measures what was asked for.
pub async fn run(only: &[String], quick: bool) {
    // The servers inherit it.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let wanted = |id: &str| only.is_empty() || only.iter().any(|o| o.eq_ignore_ascii_case(id));
    let seconds = |full: u64| Duration::from_secs(if quick { 2 } else { full });
    let streams = if quick { 500 } else { 10_000 };
    let mut rows: Vec<Row> = Vec::new();
    if wanted("CP-01") {
        rows.extend(reads::against_nginx(seconds(10)).await);
    }
    if wanted("CP-02") {
        rows.extend(reads::on_one_core(seconds(10)).await);
    }
    if wanted("CP-03") {
        rows.extend(fanout::many_names(streams, seconds(60)).await);
    }
    if wanted("CP-04") {
        rows.extend(fanout::one_name(streams, if quick { 2 } else { 10 }).await);
    }
    if wanted("CP-05") {
        rows.extend(fanout::idle(streams, seconds(60)).await);
    }
    if wanted("CP-06") {
        rows.extend(fleet::rolling_restart(seconds(60)).await);
    }
    if wanted("CP-07") {
        rows.extend(fleet::killed(seconds(20)).await);
    }
    if wanted("CP-08") {
        rows.extend(start::upstream_load(seconds(30)).await);
    }
    if wanted("CP-09") {
        rows.extend(start::cold(if quick { 100 } else { 1000 }).await);
    }
    if wanted("CP-10") {
        rows.extend(start::outage(if quick { 100 } else { 1000 }).await);
    }
    if wanted("CP-11") {
        rows.extend(reads::reloaded(seconds(10)).await);
    }
    if wanted("CP-12") {
        rows.extend(start::idle().await);
    }
    publish("config", &rows);
}
