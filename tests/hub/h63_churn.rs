//! H-63: spokes come, go, move and die, and nodes with them; what the active node knows is what is open.

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::soak::{Seed, scaled};
use holdfast_tests::spoke::{Relay, Spoke};

/// What the active node lists: spokes with the nodes of their streams.
async fn listed(cluster: &Cluster) -> Option<(usize, BTreeSet<(String, String)>)> {
    let active = cluster.active().await;
    let reply = cluster.api(active).get("relay/spokes").await;
    if reply.status != 200 || reply.data()["partial"] != false {
        return None;
    }
    let spokes = reply.data()["spokes"].as_array()?.clone();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let pairs: BTreeSet<_> = spokes.iter().map(|s| (text(&s["name"]), text(&s["node_id"]))).collect();
    (pairs.len() == spokes.len()).then_some((active, pairs))
}

/// Waits until exactly the running spokes are listed, and each node has as many streams as it is listed with.
async fn settled(cluster: &Cluster, running: &BTreeSet<String>) {
    let equal = || async {
        let (active, pairs) = listed(cluster).await?;
        let names: BTreeSet<_> = pairs.iter().map(|(name, _)| name.clone()).collect();
        if names != *running {
            return None;
        }
        for (index, node) in cluster.nodes.iter().enumerate() {
            let want = pairs.iter().filter(|(_, id)| *id == node.id).count() as u64;
            if cluster.api(index).metric("holdfast_relay_streams").await != want {
                return None;
            }
        }
        let entries = cluster.api(active).metric("holdfast_relay_registry_entries").await;
        (entries == running.len() as u64).then_some(())
    };
    eventually_async(PATIENCE * 2, "the active node knows exactly the open streams", equal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_many_churns_the_registry_is_the_open_streams() {
    let mut seed = Seed::new("after_many_churns");
    let mut cluster = Cluster::start_with(Options::calm()).await;
    let relay = Relay::set_up(&cluster).await;
    let mut spokes: Vec<Spoke> = Vec::new();
    for index in 0..4 {
        spokes.push(relay.spoke_on(&cluster, &format!("spoke-{index}"), index % 3).await);
    }
    let mut running: BTreeSet<String> = spokes.iter().map(|spoke| spoke.name.clone()).collect();
    settled(&cluster, &running).await;
    for churn in 0..scaled(24, 200) {
        let victim = seed.below(4) as usize;
        relay.balancer.pick(seed.below(3) as usize);
        match seed.below(8) {
            0..3 => {
                let spoke = &mut spokes[victim];
                match (running.remove(&spoke.name), churn % 2) {
                    (true, 0) => spoke.kill(),
                    (true, _) => assert_eq!(spoke.stop(), Some(0)),
                    (false, _) => {
                        running.insert(spoke.name.clone());
                        spoke.start(&relay.shared(), &[]);
                    }
                }
            }
            3..7 => relay.balancer.cut(),
            _ => {
                let node = seed.below(3) as usize;
                cluster.nodes[node].kill();
                seed.moment(Duration::from_millis(500)).await;
                cluster.nodes[node].start();
                cluster.nodes[node].wait_listening().await;
            }
        }
        seed.moment(Duration::from_millis(400)).await;
    }
    cluster.wait_complete().await;
    relay.wait_listening(&cluster).await;
    settled(&cluster, &running).await;
    for spoke in spokes.iter_mut().filter(|spoke| running.contains(&spoke.name)) {
        assert_eq!(spoke.stop(), Some(0));
    }
    settled(&cluster, &BTreeSet::new()).await;
    cluster.check_logs(&[]);
}
