//! The database is away while leases end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::leases;
use holdfast_tests::soak::scaled;
use tokio::task::JoinSet;

const LEASES: usize = 500;

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_end_while_the_database_is_away_are_revoked_when_it_is_back() {
    let (cluster, mut database) = (Cluster::start_with(Options::calm()).await, PostgresServer::start().await);
    let active = cluster.active().await;
    cluster.api(active).setup_postgres(&database, "20s").await;
    let mut clients = JoinSet::new();
    let api = Arc::new(cluster.api(active));
    let begun = Instant::now();
    for _ in 0..16 {
        let api = api.clone();
        clients.spawn(async move {
            for _ in 0..LEASES.div_ceil(16) {
                let begun = Instant::now();
                loop {
                    let reply = api.get("database/creds/app").await;
                    if reply.status == 200 {
                        break;
                    }
                    assert!(begun.elapsed() < PATIENCE * 4, "{} {}", reply.status, reply.body);
                    // sleep: until leadership has settled on a machine with more to do than it can.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        assert!(done.is_ok(), "{}", cluster.log_ends(20));
    }
    let issued = database.users("v-").await.len();
    println!("{issued} leases after {:?}", begun.elapsed());
    assert!(issued > LEASES / 2, "the first ones had not ended when the last one was made");
    database.stop();
    let away = Instant::now();
    // All of them end in this time, and the first tries fail many times over.
    let down = Duration::from_secs(scaled(30, 600) as u64);
    let kv = cluster.api(active);
    let waiting = || async {
        kv.health().await?;
        (away.elapsed() > down).then_some(())
    };
    eventually_async(down * 2, "the outage ends", waiting).await;
    assert_eq!(irrevocable(&cluster).await, 0);

    database.resume().await;
    let back = Instant::now();
    let gone = || async {
        let left = leases(&api, "database/creds/").await.len() + database.users("v-").await.len();
        (left == 0).then_some(())
    };
    // The product promises 60 s; a shared machine gets three times that.
    eventually_async(Duration::from_secs(180), "all leases and users are gone", gone).await;
    println!("all revoked {:?} after the return", back.elapsed());
    assert_eq!(irrevocable(&cluster).await, 0);
    cluster.check_logs(&[]);
}

async fn irrevocable(cluster: &Cluster) -> u64 {
    let reply = cluster.api(cluster.active().await).get("sys/leases?type=irrevocable").await.expect(200);
    reply.data()["lease_count"].as_u64().unwrap_or_else(|| panic!("no count in {}", reply.body))
}
