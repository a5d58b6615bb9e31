//! H-40, H-41: where spokes are kept at the active node, a standby sends them on.

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::Login;
use holdfast_tests::process::free_port;
use holdfast_tests::spoke::{Relay, owned, setup_remote};
use serde_json::{Value, json};

/// How many spokes each node holds, in the order of the nodes.
async fn counts(cluster: &Cluster, through: usize) -> Vec<Value> {
    let view = cluster.api(through).get("relay/spokes").await.expect(200);
    let nodes = view.data()["hub_nodes"].as_array().unwrap().clone();
    let of = |id: &str| nodes.iter().find(|n| n["node_id"] == id).unwrap()["spoke_count"].clone();
    cluster.nodes.iter().map(|node| of(&node.id)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_spoke_is_at_the_active_node() {
    let port = free_port();
    let mut options = Options::calm();
    options
        .extra
        .push_str(&format!("\nmetrics.unauthenticated = true\nrelay.advertise = \"RELAY_HOST:{port}\""));
    options.env.push(("HOLDFAST_RELAY_PIN_SPOKES_TO_ACTIVE".into(), "TRUE".into()));
    let (cluster, database) = (Cluster::start_with(options).await, PostgresServer::start().await);
    let relay = Relay::set_up_at(&cluster, port).await;
    let active = cluster.active().await;
    let standby = cluster.others(active)[0];

    // Only the standby is known to it, and each dial there is sent on.
    let mut spoke = relay.join(&cluster, "spoke-1").await;
    spoke.start(&relay.address(&cluster, standby), &[]);
    owned(&cluster, "spoke-1", active).await;
    let place = relay.address(&cluster, active);
    assert!(spoke.log().contains(&format!("redirected to {place}")), "{}", spoke.log());
    assert_eq!(spoke.log().matches("stream up").count(), 1, "{}", spoke.log());
    for through in 0..3 {
        let want: Vec<_> = (0..3).map(|node| json!(usize::from(node == active))).collect();
        assert_eq!(counts(&cluster, through).await, want);
    }
    assert!(!cluster.nodes[standby].log().contains("a spoke connected"), "it left no trace on the standby");
    for why in ["connect", "drop"] {
        let announced = format!("holdfast_relay_announce_total{{trigger=\"{why}\"}}");
        assert_eq!(cluster.api(standby).metric(&announced).await, 0, "it was not announced");
    }
    assert_eq!(
        cluster.api(active).metric("holdfast_relay_superseded_total").await,
        0,
        "there was no other claim"
    );
    setup_remote(&cluster, standby, &database, "spoke-1", "1h").await;
    let api = cluster.api(standby);
    assert!(Login::issue(&api, "database/creds/app").await.expect("a login").works(&database).await);

    // The spoke follows the leader, and serves all the while.
    api.put("sys/step-down", json!({})).await.expect(204);
    let next = eventually_async(PATIENCE, "another node is active", || async {
        let now = cluster.active().await;
        (now != active).then_some(now)
    })
    .await;
    let served = || async { Login::issue(&api, "database/creds/app").await };
    eventually_async(PATIENCE, "a login after the change", served).await;
    owned(&cluster, "spoke-1", next).await;
    assert!(Login::issue(&api, "database/creds/app").await.expect("a login").works(&database).await);
    assert_eq!(spoke.stop(), Some(0));
    cluster.check_logs(&[]);
}

#[test]
fn the_guide_says_when_to_pin() {
    let guide = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/relay.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let section =
        guide.split("\n## ").find(|part| part.starts_with("Pinning spokes")).expect("a section of its own");
    for said in
        ["HOLDFAST_RELAY_PIN_SPOKES_TO_ACTIVE", "| pin | do not pin |", "Leave it off behind one balancer"]
    {
        assert!(section.contains(said), "the guide does not say {said:?}");
    }
    let rows = section.lines().skip_while(|line| !line.starts_with("| pin |")).skip(2);
    assert!(rows.take_while(|line| line.starts_with('|')).count() >= 2, "reasons for both");
}
