//! H-30, H-32, H-33: every node takes spokes whoever leads, stores nothing of it, and lets in who belongs there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::probe::{Pair, probe};
use holdfast_tests::spoke::{Relay, Spoke, entry, owned};
use serde_json::json;
use tokio::net::TcpStream;

/// Each of three spokes so often.
const CONNECTS: usize = 34;

#[tokio::test(flavor = "multi_thread")]
async fn every_node_takes_spokes_whoever_leads_and_stores_nothing_of_it() {
    let mut options = Options::calm();
    options.extra.push_str("\nmetrics.unauthenticated = true");
    let cluster = Cluster::start_with(options).await;
    let relay = Relay::set_up(&cluster).await;
    let mut spokes = Vec::new();
    for index in 0..3 {
        spokes.push(relay.join(&cluster, &format!("spoke-{index}")).await);
    }
    only_who_belongs_there_gets_in(&cluster, &relay, &spokes[0]).await;
    connects_write_nothing(&cluster, &relay, &mut spokes).await;
    a_step_down_leaves_ports_and_streams(&cluster, &relay, &mut spokes).await;
    cluster.check_logs(&[]);
}

async fn only_who_belongs_there_gets_in(cluster: &Cluster, relay: &Relay, spoke: &Spoke) {
    let own = Pair::read(&spoke.credentials.join("cert.pem"), &spoke.credentials.join("key.pem"));
    let stranger = Pair::stranger();
    let mut shown = BTreeSet::new();
    for (index, node) in cluster.nodes.iter().enumerate() {
        let address = format!("127.0.0.1:{}", node.cluster_port);
        for protocol in ["holdfast-raft/1", "holdfast-req/1", "holdfast-relay/1"] {
            for who in [None, Some(&stranger), Some(&own)] {
                let answer = probe(&address, protocol, who).await.unwrap();
                assert_eq!(answer.protocol.as_deref(), Some(protocol));
                assert!(!answer.let_in, "{protocol}");
                shown.insert(answer.certificate);
            }
        }
        for protocol in ["h2", "http/1.1", "holdfast-relay/2"] {
            let refused = probe(&address, protocol, Some(&own)).await.unwrap_err();
            assert!(refused.to_string().contains("NoApplicationProtocol"), "{protocol}: {refused}");
        }
        // The port for spokes: who joined is let in on every node, active or not.
        let address = relay.address(cluster, index);
        assert!(probe(&address, "h2", Some(&own)).await.unwrap().let_in);
        for who in [None, Some(&stranger)] {
            assert!(!probe(&address, "h2", who).await.unwrap().let_in);
        }
        probe(&address, "holdfast-relay/1", Some(&own)).await.unwrap_err();
    }
    assert_eq!(shown.len(), 1, "one certificate for every node and protocol");
}

/// What each node has stored: the index of its log, and bytes.
async fn stored(cluster: &Cluster) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for node in &cluster.nodes {
        let api = node.api();
        let leader = api.get("sys/leader").await.expect(200);
        let text = String::from_utf8(api.get("sys/metrics").await.expect(200).bytes).unwrap();
        let line = text.lines().find(|line| line.starts_with("holdfast_hub_store_bytes ")).unwrap();
        let bytes = line.split(' ').nth(1).unwrap().parse().unwrap();
        all.push((leader.body["raft_applied_index"].as_u64().unwrap(), bytes));
    }
    all
}

/// As [`stored`], once every node is at the same place.
async fn stored_everywhere(cluster: &Cluster) -> Vec<(u64, u64)> {
    eventually_async(PATIENCE, "every node has applied the same", || async {
        let all = stored(cluster).await;
        all.iter().all(|(index, _)| *index == all[0].0).then_some(all)
    })
    .await
}

async fn connects_write_nothing(cluster: &Cluster, relay: &Relay, spokes: &mut [Spoke]) {
    let active = cluster.active().await;
    cluster.api(active).put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    let begun = stored_everywhere(cluster).await;
    cluster.api(active).put("kv/one", json!({"v": 1})).await.expect(204);
    let before = stored_everywhere(cluster).await;
    assert!(before.iter().zip(&begun).all(|(after, before)| after.0 > before.0), "a write shows");
    let mut epochs = BTreeSet::new();
    for round in 0..CONNECTS {
        for (index, spoke) in spokes.iter_mut().enumerate() {
            spoke.start(&relay.address(cluster, (index + round) % 3), &[]);
        }
        for (index, spoke) in spokes.iter_mut().enumerate() {
            owned(cluster, &spoke.name, (index + round) % 3).await;
            let shown = entry(cluster, active, &spoke.name).await.unwrap();
            epochs.insert((index, shown["session_epoch"].as_u64().unwrap()));
            assert_eq!(spoke.stop(), Some(0));
        }
    }
    assert_eq!(epochs.len(), 3 * CONNECTS, "each was a connection of its own");
    assert_eq!(stored_everywhere(cluster).await, before);
}

/// Dials the ports for spokes until it is told to stop; gives how many dials were refused.
async fn watch(addresses: Vec<String>, stop: Arc<AtomicBool>) -> usize {
    let mut refused = 0;
    while !stop.load(Ordering::SeqCst) {
        for address in &addresses {
            refused += usize::from(TcpStream::connect(address).await.is_err());
        }
        // sleep: often enough to see a port that closes for a moment, and no busy loop.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    refused
}

async fn a_step_down_leaves_ports_and_streams(cluster: &Cluster, relay: &Relay, spokes: &mut [Spoke]) {
    let mut before = Vec::new();
    let active = cluster.active().await;
    for (index, spoke) in spokes.iter_mut().enumerate() {
        spoke.start(&relay.address(cluster, index), &[]);
        owned(cluster, &spoke.name, index).await;
        before.push(entry(cluster, active, &spoke.name).await.unwrap()["session_epoch"].clone());
    }
    let addresses = (0..3).map(|index| relay.address(cluster, index)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(watch(addresses, Arc::clone(&stop)));
    cluster.api(active).put("sys/step-down", json!({})).await.expect(204);
    let next = eventually_async(PATIENCE, "another node leads", || async {
        let now = cluster.active().await;
        (now != active).then_some(now)
    })
    .await;
    for (index, spoke) in spokes.iter_mut().enumerate() {
        owned(cluster, &spoke.name, index).await;
        let shown = entry(cluster, next, &spoke.name).await.unwrap();
        assert_eq!(shown["session_epoch"], before[index], "the stream is the same");
        assert_eq!(shown["node_is_active"], index == next);
    }
    stop.store(true, Ordering::SeqCst);
    assert_eq!(watching.await.unwrap(), 0, "a port was closed meanwhile");
    for spoke in spokes {
        assert_eq!(spoke.stop(), Some(0));
    }
}
