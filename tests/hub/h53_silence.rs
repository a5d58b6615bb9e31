//! H-52 with spokes, H-53, H-54, H-55: packets between the active node and others are dropped, in one direction or both.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::netns::Network;
use holdfast_tests::oracle::{Login, settled};
use holdfast_tests::spoke::{Relay, Spoke, add_remote, entry, epoch, owned, setup_remote};
use serde_json::Value;

/// Three nodes on a network of their own, and a spoke on a standby that serves logins.
struct Scene {
    network: Arc<Network>,
    cluster: Cluster,
    database: PostgresServer,
    relay: Relay,
    spoke: Spoke,
    active: usize,
    owner: usize,
}

impl Scene {
    /// Drops what a standby says to the active node; what that asks still gets through.
    fn silence(&self, standby: usize) {
        self.network.block(standby, self.active, self.cluster.nodes[self.active].cluster_port);
    }

    /// What the active node knows of a node.
    async fn node(&self, index: usize) -> Value {
        let reply = self.cluster.api(self.active).get("relay/spokes").await.expect(200);
        let nodes = reply.data()["hub_nodes"].as_array().unwrap().clone();
        nodes.into_iter().find(|node| node["node_id"] == self.cluster.nodes[index].id.as_str()).unwrap()
    }

    async fn login(&self) {
        let api = self.cluster.api(self.active);
        let login = || async { Login::issue(&api, "database/creds/app").await };
        let login = eventually_async(PATIENCE, "a login", login).await;
        assert!(login.works(&self.database).await);
    }
}

fn scene<F: Future<Output = ()>>(scenario: impl FnOnce(Scene) -> F) {
    let network = Arc::new(Network::enter(3));
    let options = Options { network: Some(network.clone()), ..Options::calm() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async move {
        let (cluster, database) = (Cluster::start_with(options).await, PostgresServer::start().await);
        let relay = Relay::set_up(&cluster).await;
        let active = cluster.active().await;
        let owner = cluster.others(active)[0];
        let spoke = relay.spoke_on(&cluster, "spoke-1", owner).await;
        setup_remote(&cluster, active, &database, "spoke-1", "1h").await;
        scenario(Scene { network, cluster, database, relay, spoke, active, owner }).await;
    });
}

#[test]
fn the_spoke_of_a_silent_owner_expires_after_three_intervals_and_not_before() {
    scene(|scene| async move {
        let before = epoch(&scene.cluster, "spoke-1").await;
        scene.silence(scene.owner);
        // Three intervals of 5 s after the last announce. Its age is told in whole seconds, so it was heard after
        // `latest` at the soonest; these bounds hold on a slow machine too.
        let latest = Mutex::new(None);
        let gone = || async {
            let asked = Instant::now();
            let node = scene.node(scene.owner).await;
            if node["spoke_count"] == 0 {
                return Some(Instant::now());
            }
            let age = node["last_announce_seconds"].as_u64().expect("who is listed was heard");
            assert!(age <= 15, "listed {age} s after the last announce");
            *latest.lock().unwrap() = asked.checked_sub(Duration::from_secs(age + 1));
            None
        };
        let gone = eventually_async(PATIENCE * 2, "the entry expires", gone).await;
        let silent = gone - latest.lock().unwrap().expect("it was listed for a while");
        assert!(silent >= Duration::from_secs(15), "expired {silent:?} after the last announce or sooner");
        assert!(entry(&scene.cluster, scene.active, "spoke-1").await.is_none());
        let api = scene.cluster.api(scene.active);
        assert_eq!(api.metric("holdfast_relay_registry_expired_total").await, 1);
        let streams = scene.cluster.api(scene.owner).metric("holdfast_relay_streams").await;
        assert_eq!(streams, 1, "the stream itself is open");
        scene.network.heal(scene.owner);
        owned(&scene.cluster, "spoke-1", scene.owner).await;
        scene.login().await;
        assert_eq!(epoch(&scene.cluster, "spoke-1").await, before, "the spoke noticed nothing");
        settled(&api, &scene.database, PATIENCE).await;
        scene.cluster.check_logs(&[]);
    });
}

#[test]
fn a_stale_entry_is_resolved_once_more_and_then_told() {
    scene(|mut scene| async move {
        scene.login().await;
        let api = scene.cluster.api(scene.active);
        let other = scene.cluster.others(scene.active)[1];
        let forwarded = |outcome: &str| {
            let name = format!("holdfast_relay_commands_total{{route=\"forwarded\",outcome=\"{outcome}\"}}");
            let api = api.clone();
            async move { api.metric(&name).await }
        };
        let again = |outcome: &str| {
            let name = format!("holdfast_relay_reresolve_total{{outcome=\"{outcome}\"}}");
            let api = api.clone();
            async move { api.metric(&name).await }
        };
        assert_eq!(again("found").await + again("failed").await, 0);
        // The spoke moves, and neither node gets to say so.
        scene.silence(scene.owner);
        scene.silence(other);
        scene.relay.balancer.pick(other);
        scene.relay.balancer.cut();
        let moved =
            || async { (scene.cluster.api(other).metric("holdfast_relay_streams").await == 1).then_some(()) };
        eventually_async(PATIENCE, "the spoke is on the other node", moved).await;
        let shown = entry(&scene.cluster, scene.active, "spoke-1").await.expect("the stale entry");
        assert_eq!(shown["node_id"], scene.cluster.nodes[scene.owner].id.as_str());
        let login = Login::issue(&api, "database/creds/app").await.expect("the new owner is found");
        assert!(login.works(&scene.database).await);
        assert_eq!((again("found").await, again("failed").await), (1, 0));
        let shown = entry(&scene.cluster, scene.active, "spoke-1").await.expect("the new entry");
        assert_eq!(shown["node_id"], scene.cluster.nodes[other].id.as_str());

        // It goes, and nobody gets to say so: the one who is asked does not have it, and nobody else has.
        let done = forwarded("done").await;
        scene.relay.balancer.refuse();
        scene.spoke.kill();
        let gone =
            || async { (scene.cluster.api(other).metric("holdfast_relay_streams").await == 0).then_some(()) };
        eventually_async(PATIENCE, "the stream has ended", gone).await;
        assert!(entry(&scene.cluster, scene.active, "spoke-1").await.is_some(), "the entry is stale");
        let reply = api.get("database/creds/app").await.expect(503);
        assert!(reply.body.to_string().contains("spoke not connected: \\\"spoke-1\\\""), "{}", reply.body);
        assert_eq!((again("found").await, again("failed").await), (1, 1));
        assert_eq!((forwarded("not_connected").await, forwarded("done").await), (1, done));
        assert!(entry(&scene.cluster, scene.active, "spoke-1").await.is_none(), "the entry is forgotten");
        scene.cluster.check_logs(&[]);
    });
}

#[test]
fn an_owner_whose_cluster_port_is_blocked_is_named_and_stays_listed() {
    scene(|scene| async move {
        scene.login().await;
        let port = scene.cluster.nodes[scene.owner].cluster_port;
        scene.network.block(scene.active, scene.owner, port);
        let api = scene.cluster.api(scene.active);
        let text = format!("cannot reach spoke owner {}:{port}: ", Network::address(scene.owner));
        // What was on its way over the old connection first ends with that.
        let told = || async {
            let reply = api.get("database/creds/app").await.expect(503);
            reply.errors().iter().any(|error| error.contains(&text)).then_some(())
        };
        eventually_async(PATIENCE * 2, "the owner that cannot be reached is named", told).await;
        let shown = entry(&scene.cluster, scene.active, "spoke-1").await.expect("still listed");
        assert_eq!(shown["node_id"], scene.cluster.nodes[scene.owner].id.as_str());
        assert_eq!(shown["node_reachable"], false);
        assert_eq!(scene.node(scene.owner).await["spoke_count"], 1);
        scene.network.heal(scene.active);
        scene.login().await;
        let shown = entry(&scene.cluster, scene.active, "spoke-1").await.expect("still listed");
        assert_eq!(shown["node_reachable"], true);
        settled(&api, &scene.database, PATIENCE * 5).await;
    });
}

#[test]
fn streams_ride_out_a_partition_of_the_active_node() {
    scene(|scene| async move {
        // The whole of it, so that the spoke lives on.
        let scene = &scene;
        let (cluster, database) = (&scene.cluster, &scene.database);
        // Spokes still reach the node that the other nodes do not reach.
        let _second = scene.relay.spoke_on(cluster, "spoke-2", scene.active).await;
        add_remote(cluster, scene.active, database, "spoke-2", ("pg2", "app2", "1h")).await;
        let before = (epoch(cluster, "spoke-1").await, epoch(cluster, "spoke-2").await);
        scene.relay.balancer.refuse();
        scene.network.isolate(scene.active);
        for through in cluster.others(scene.active) {
            let api = cluster.api(through);
            let login = || async { Login::issue(&api, "database/creds/app").await };
            let login = eventually_async(PATIENCE, "a login on the side of the majority", login).await;
            assert!(login.works(database).await);
        }
        let refused = cluster.api(scene.owner).get("database/creds/app2").await.expect(503);
        assert!(refused.body.to_string().contains("spoke not connected"), "{}", refused.body);
        scene.network.heal(scene.active);
        owned(cluster, "spoke-2", scene.active).await;
        let api = cluster.api(scene.owner);
        let login = || async { Login::issue(&api, "database/creds/app2").await };
        let login = eventually_async(PATIENCE, "a login through the returned node", login).await;
        assert!(login.works(database).await);
        assert_eq!((epoch(cluster, "spoke-1").await, epoch(cluster, "spoke-2").await), before);
        settled(&cluster.api(cluster.active().await), database, PATIENCE * 5).await;
        cluster.check_logs(&[]);
    });
}
