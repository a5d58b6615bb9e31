//! P-12: what a cluster costs that does nothing.

use std::time::{Duration, Instant};

use holdfast_spoke::daemon::Timing;
use holdfast_tests::hub::{Cluster, PATIENCE};

use crate::fleet::{self, Fleet, wait_routable};
use crate::report::Row;

/// Processor time of a process so far.
fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may hold spaces; the fields that count come after its closing bracket.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields.iter().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// The share of a core that the busiest node takes, in percent.
async fn busiest(cluster: &mut Cluster, time: Duration) -> f64 {
    let pids: Vec<u32> = cluster.nodes.iter_mut().map(|node| node.process().pid()).collect();
    let (before, begun): (Vec<_>, _) = (pids.iter().map(|pid| cpu(*pid)).collect(), Instant::now());
    tokio::time::sleep(time).await;
    let took = begun.elapsed().as_secs_f64();
    let shares = pids.iter().zip(before).map(|(pid, b)| (cpu(*pid) - b).as_secs_f64() / took * 100.0);
    shares.fold(0.0, f64::max)
}

/// P-12; its hour of churn is `churn.rs`.
pub async fn cost(quick: bool) -> Vec<Row> {
    let time = Duration::from_secs(if quick { 3 } else { 60 });
    let mut cluster = fleet::cluster().await;
    let active = cluster.active().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let alone = busiest(&mut cluster, time).await;
    let names: Vec<_> = (0..10).map(|i| format!("spoke-{i}")).collect();
    let fleet = Fleet::enrol(&cluster, &names).await;
    let members = names.iter().enumerate();
    let members: Vec<_> =
        members.map(|(i, name)| fleet.start(name, &[i % cluster.nodes.len()], Timing::default())).collect();
    wait_routable(&cluster.api(active), names.len(), None, PATIENCE).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let with = busiest(&mut cluster, time).await;
    drop(members);
    let row = |what: &str, share: f64| {
        let measured = format!("busiest node {share:.1} % of a core");
        Row::new("P-12", what, measured, "-".into(), "<= 3 % of a core a node", share <= 3.0)
    };
    vec![
        row("idle cluster of three nodes, no spokes", alone),
        row("idle cluster of three nodes, 10 spokes", with),
    ]
}
