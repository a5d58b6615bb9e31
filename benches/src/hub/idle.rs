//! P-12: what a cluster costs that does nothing.

use std::time::{Duration, Instant};

use holdfast_tests::hub::Cluster;

use crate::report::Row;

/// Processor time of a process so far.
fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may hold spaces; the fields that count come after its closing bracket.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields.iter().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// P-12, the part of a hub without spokes.
pub async fn cost(quick: bool) -> Vec<Row> {
    let mut cluster = Cluster::start(3).await;
    cluster.active().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let pids: Vec<u32> = cluster.nodes.iter_mut().map(|node| node.process().pid()).collect();
    let (before, begun): (Vec<_>, _) = (pids.iter().map(|pid| cpu(*pid)).collect(), Instant::now());
    tokio::time::sleep(Duration::from_secs(if quick { 3 } else { 30 })).await;
    let took = begun.elapsed().as_secs_f64();
    let shares: Vec<f64> =
        pids.iter().zip(before).map(|(pid, b)| (cpu(*pid) - b).as_secs_f64() / took * 100.0).collect();
    let worst = shares.iter().copied().fold(0.0, f64::max);
    vec![Row::new(
        "P-12",
        "idle cluster of three nodes, no spokes",
        format!("busiest node {worst:.1} % of a core"),
        "-".into(),
        "<= 3 % of a core a node",
        worst <= 3.0,
    )]
}
