//! H-62, H-64: nodes take leave of their spokes, which go on elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use holdfast_tests::api::Api;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE, Seal};
use holdfast_tests::oracle::{Login, settled};
use holdfast_tests::spoke::{Relay, owned, setup_remote};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::task::JoinSet;

/// Clients that ask for logins without a pause.
struct Load {
    clients: JoinSet<()>,
    over: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    failed: Arc<parking_lot::Mutex<Vec<String>>>,
}

impl Load {
    fn start(api: &Api, clients: usize) -> Self {
        let mut load = Self {
            clients: JoinSet::new(),
            over: Arc::default(),
            served: Arc::default(),
            failed: Arc::default(),
        };
        for _ in 0..clients {
            let (api, over, served, failed) =
                (api.clone(), load.over.clone(), load.served.clone(), load.failed.clone());
            load.clients.spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let reply = api.get("database/creds/app").await;
                    if reply.status == 200 {
                        served.fetch_add(1, Ordering::SeqCst);
                    } else {
                        failed.lock().push(format!("{} {}", reply.status, reply.body));
                    }
                }
            });
        }
        load
    }

    /// Waits until some more were served.
    async fn goes_on(&self) {
        let from = self.served.load(Ordering::SeqCst);
        eventually_async(PATIENCE, "requests are served", || async {
            (self.served.load(Ordering::SeqCst) >= from + 10).then_some(())
        })
        .await;
    }

    /// Ends the clients, and gives what failed.
    async fn end(mut self) -> Vec<String> {
        self.over.store(true, Ordering::SeqCst);
        while let Some(client) = self.clients.join_next().await {
            client.unwrap();
        }
        std::mem::take(&mut *self.failed.lock())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leaves_hands_its_spokes_on() {
    let options = Options { seal: Seal::Shamir(1, 1), ..Options::calm() };
    let (mut cluster, database) = (Cluster::start_with(options).await, PostgresServer::start().await);
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    let (first, other) = (cluster.others(active)[0], cluster.others(active)[1]);
    let mut spoke = relay.spoke_on(&cluster, "spoke-1", first).await;
    setup_remote(&cluster, active, &database, "spoke-1", "1h").await;
    let api = cluster.api(active);

    // Sealed: nothing is accepted, and the spoke serves elsewhere.
    let load = Load::start(&api, 4);
    load.goes_on().await;
    relay.balancer.pick(other);
    cluster.api(first).put("sys/seal", json!({})).await.expect(204);
    eventually_async(PATIENCE, "the sealed node's port is closed", || async {
        (!relay.listens(&cluster, first)).then_some(())
    })
    .await;
    owned(&cluster, "spoke-1", other).await;
    load.goes_on().await;
    let failed = load.end().await;
    assert!(failed.is_empty(), "{failed:?}\n{}{}", cluster.log_ends(30), spoke.log());
    assert!(!relay.listens(&cluster, first) && relay.listens(&cluster, other));
    assert_eq!(spoke.log().matches("stream up").count(), 2, "{}", spoke.log());

    // Unsealed: bound again, and a spoke is served there.
    cluster.unseal(&cluster.nodes[first]).await;
    relay.wait_listening(&cluster).await;
    relay.balancer.pick(first);
    relay.balancer.cut();
    owned(&cluster, "spoke-1", first).await;
    assert!(Login::issue(&api, "database/creds/app").await.expect("a login").works(&database).await);

    // Stopped by an operator: no request fails.
    let load = Load::start(&api, 4);
    load.goes_on().await;
    relay.balancer.pick(other);
    cluster.nodes[first].process().signal(Signal::SIGTERM);
    owned(&cluster, "spoke-1", other).await;
    load.goes_on().await;
    assert_eq!(cluster.nodes[first].process().wait(PATIENCE).code(), Some(0));
    load.goes_on().await;
    let failed = load.end().await;
    assert!(failed.is_empty(), "{failed:?}\n{}{}", cluster.log_ends(30), spoke.log());
    settled(&api, &database, PATIENCE).await;
    assert_eq!(spoke.stop(), Some(0));
    cluster.check_logs(&[]);
}
