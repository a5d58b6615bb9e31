//! H-56 with a spoke: it is killed, its connection is cut and its node is killed while logins are made through it; at
//! rest no user is left without a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::{Login, settled};
use holdfast_tests::soak::{Seed, scaled};
use holdfast_tests::spoke::{Relay, setup_remote};
use tokio::task::JoinSet;

/// A swept user is looked for once more after a minute, and its spoke may have been away before that.
const QUIET: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, Debug)]
enum Victim {
    Spoke,
    Connection,
    Owner,
}

/// Clients that ask for logins until they are told to stop, each request within 5 s.
fn clients(cluster: &Cluster, stop: &Arc<AtomicBool>, issued: &Arc<AtomicUsize>) -> JoinSet<()> {
    let mut set = JoinSet::new();
    for index in 0..6 {
        let (api, stop, issued) = (cluster.api(index % 3), stop.clone(), issued.clone());
        set.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let asked = Login::issue(&api, "database/creds/app");
                match tokio::time::timeout(Duration::from_secs(5), asked).await {
                    Ok(Some(_)) => drop(issued.fetch_add(1, Ordering::Relaxed)),
                    // sleep: a spoke that is away is told at once.
                    Ok(None) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
    }
    set
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spoke_killed_at_random_points_of_creation_leaves_no_stray_user() {
    let mut seed = Seed::new("a_spoke_killed_at_random_points");
    // A database that acknowledges what a crash takes back would leave leases without users.
    let database = PostgresServer::with_settings(&["synchronous_commit=on"]).await;
    let mut cluster = Cluster::start_with(Options::calm()).await;
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    let mut at = cluster.others(active)[0];
    let mut spoke = relay.spoke_on(&cluster, "spoke-1", at).await;
    setup_remote(&cluster, active, &database, "spoke-1", "1h").await;
    let (stop, issued) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut running = clients(&cluster, &stop, &issued);
    for point in 0..scaled(18, 200) {
        let begun = issued.load(Ordering::Relaxed);
        let flows = || async { (issued.load(Ordering::Relaxed) > begun).then_some(()) };
        let flowing =
            tokio::time::timeout(PATIENCE * 2, eventually_async(PATIENCE * 4, "logins flow", flows));
        if flowing.await.is_err() {
            let reply = cluster.api(0).get("database/creds/app").await;
            let logs = cluster.log_ends(40);
            panic!("no logins at point {point}: {} {}\n{logs}{}", reply.status, reply.body, spoke.log());
        }
        let (from, to) = (at, (at + 1 + seed.below(2) as usize) % 3);
        at = to;
        seed.moment(Duration::from_millis(60)).await;
        match [Victim::Spoke, Victim::Connection, Victim::Spoke, Victim::Owner][point % 4] {
            Victim::Spoke => {
                spoke.kill();
                relay.balancer.pick(to);
                seed.moment(Duration::from_millis(300)).await;
                spoke.start(&relay.shared(), &[]);
            }
            Victim::Connection => {
                relay.balancer.pick(to);
                relay.balancer.cut();
            }
            Victim::Owner => {
                relay.balancer.pick(to);
                cluster.nodes[from].kill();
                seed.moment(Duration::from_secs(1)).await;
                cluster.nodes[from].start();
                cluster.nodes[from].wait_listening().await;
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    running.join_next().await;
    running.shutdown().await;
    cluster.wait_complete().await;
    let issued = issued.load(Ordering::Relaxed);
    println!("{issued} logins were issued");
    settled(&cluster.api(cluster.active().await), &database, QUIET).await;
    let left = database.users("v-").await.len();
    assert!(left >= issued, "{left} users are left of {issued} logins that clients hold");
    cluster.check_logs(&[]);
}
