//! H-34, H-35: the active node knows at once where each spoke is; what was blocked is made good within an interval.

use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::netns::Network;
use holdfast_tests::oracle::Login;
use holdfast_tests::spoke::{Relay, entry, owned, setup_remote};

/// Far more than what is promised, far less than the interval, a keepalive and an expiry.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A number of a node's metrics; 0 while there is none.
async fn metric(cluster: &Cluster, node: usize, name: &str) -> u64 {
    let reply = cluster.nodes[node].api().get("sys/metrics").await.expect(200);
    let text = String::from_utf8(reply.bytes).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or(0)
}

async fn announces(cluster: &Cluster, node: usize, trigger: &str) -> u64 {
    metric(cluster, node, &format!("holdfast_relay_announce_total{{trigger=\"{trigger}\"}}")).await
}

/// Waits until the active node knows of a spoke on a node, or of none.
async fn known(cluster: &Cluster, active: usize, name: &str, node: Option<usize>, deadline: Duration) {
    let want = node.map(|node| cluster.nodes[node].id.clone());
    eventually_async(deadline, "the active node knows", || async {
        let now = entry(cluster, active, name).await.map(|e| e["node_id"].as_str().unwrap().to_owned());
        (now == want).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_active_node_knows_at_once_where_a_spoke_is() {
    let mut options = Options::calm();
    options.extra.push_str(
        "\nmetrics.unauthenticated = true\nrelay.announce_interval = \"60s\"\n\
         relay.keepalive_interval = \"30s\"\nrelay.keepalive_timeout = \"10s\"",
    );
    let (cluster, database) = (Cluster::start_with(options).await, PostgresServer::start().await);
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    for (name, node) in [("spoke-1", cluster.others(active)[0]), ("spoke-2", cluster.others(active)[1])] {
        let (connects, drops) =
            (announces(&cluster, node, "connect").await, announces(&cluster, node, "drop").await);
        let mut spoke = relay.join(&cluster, name).await;
        spoke.start(&relay.address(&cluster, node), &[]);
        known(&cluster, active, name, Some(node), AT_ONCE).await;
        spoke.kill();
        known(&cluster, active, name, None, AT_ONCE).await;
        spoke.start(&relay.address(&cluster, node), &[]);
        known(&cluster, active, name, Some(node), AT_ONCE).await;
        assert_eq!(spoke.stop(), Some(0));
        known(&cluster, active, name, None, AT_ONCE).await;
        assert!(announces(&cluster, node, "connect").await >= connects + 2);
        // Two of those sets at least had a stream in them, with its name, boot id and node.
        assert!(metric(&cluster, node, "holdfast_relay_announce_bytes_total").await >= 100);
        assert!(announces(&cluster, node, "drop").await >= drops + 2);
    }
    a_later_dial_wins(&cluster, &relay, &database).await;
    cluster.check_logs(&[]);
}

/// A spoke dials another node while the node of its stream still sees that open.
async fn a_later_dial_wins(cluster: &Cluster, relay: &Relay, database: &PostgresServer) {
    let active = cluster.active().await;
    let (first, second) = (cluster.others(active)[0], cluster.others(active)[1]);
    let _spoke = relay.spoke_on(cluster, "spoke-3", first).await;
    setup_remote(cluster, active, database, "spoke-3", "1h").await;
    let api = cluster.api(active);
    // From one standby to another, to the active node, and away from it.
    for (from, to) in [(first, second), (second, active), (active, first)] {
        let superseded = metric(cluster, from, "holdfast_relay_superseded_total").await;
        let epoch = entry(cluster, active, "spoke-3").await.unwrap()["session_epoch"].as_u64().unwrap();
        relay.balancer.pick(to);
        relay.balancer.strand();
        known(cluster, active, "spoke-3", Some(to), AT_ONCE).await;
        let shown = entry(cluster, active, "spoke-3").await.unwrap();
        assert!(shown["session_epoch"].as_u64().unwrap() > epoch);
        let login = Login::issue(&api, "database/creds/app").await.expect("the new owner routes");
        assert!(login.works(database).await);
        eventually_async(AT_ONCE, "the former owner ends the old stream", || async {
            let open = metric(cluster, from, "holdfast_relay_streams").await;
            (open == 0 && relay.balancer.stranded() == 0).then_some(())
        })
        .await;
        assert_eq!(metric(cluster, from, "holdfast_relay_superseded_total").await, superseded + 1);
        // The gauge follows once a second.
        eventually_async(AT_ONCE, "the new owner counts one stream", || async {
            (metric(cluster, to, "holdfast_relay_streams").await == 1).then_some(())
        })
        .await;
    }
}

#[test]
fn announces_that_were_blocked_are_made_good() {
    let network = Arc::new(Network::enter(3));
    let mut options = Options { network: Some(network.clone()), ..Options::calm() };
    options.extra.push_str("\nmetrics.unauthenticated = true");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = Cluster::start_with(options).await;
        let relay = Relay::set_up(&cluster).await;
        let active = cluster.active().await;
        let standby = cluster.others(active)[0];
        let stays = relay.spoke_on(&cluster, "stays", standby).await;
        let mut leaves = relay.spoke_on(&cluster, "leaves", standby).await;
        let mut comes = relay.join(&cluster, "comes").await;
        network.cut(standby, active);
        comes.start(&relay.address(&cluster, standby), &[]);
        eventually_async(PATIENCE, "the standby has it", || async {
            comes.log().contains("stream up").then_some(())
        })
        .await;
        assert_eq!(leaves.stop(), Some(0));
        for (name, there) in [("stays", true), ("leaves", true), ("comes", false)] {
            assert_eq!(entry(&cluster, active, name).await.is_some(), there, "{name}");
        }
        network.heal(standby);
        owned(&cluster, "comes", standby).await;
        let now = cluster.active().await;
        known(&cluster, now, "leaves", None, PATIENCE).await;
        known(&cluster, now, "stays", Some(standby), PATIENCE).await;
        // The interval is the default of 5 s, and goes on when nothing changes.
        let ticks = announces(&cluster, standby, "tick").await;
        eventually_async(PATIENCE, "the whole set is told again and again", || async {
            (announces(&cluster, standby, "tick").await >= ticks + 2).then_some(())
        })
        .await;
        drop(stays);
    });
}
