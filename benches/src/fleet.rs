//! Many spokes in this one process: the daemon of `holdfast relay run` with its own credentials, connection, TLS and
//! session for each, on one runtime. They enrol through the hub's API as any spoke does.
//!
//! What is not as in life: they share this process and its processors, and their files lie in memory where the system
//! has such a folder, since each real spoke has a disk of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use holdfast_ops::Tasks;
use holdfast_ops::shutdown::{Request, Signals};
use holdfast_spoke::cache::Databases;
use holdfast_spoke::daemon::{self, Options, Timing};
use holdfast_spoke::join::{self, JoinParams};
use holdfast_spoke::renewal::Schedule;
use holdfast_spoke::runner::Limits;
use holdfast_tests::api::Api;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options as ClusterOptions, PATIENCE};
use holdfast_tests::process::free_port;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How many enrol at once.
const ENROLLING: usize = 8;

/// A cluster of three nodes at default settings, but that a thousand spokes may enrol from one address in less than half
/// an hour.
pub async fn cluster() -> Cluster {
    // The nodes inherit it.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let extra = "relay.unauth_rate = 0".to_owned();
    Cluster::start_with(ClusterOptions { nodes: 3, extra, ..ClusterOptions::default() }).await
}

/// The relay of a cluster and the credentials of its spokes.
pub struct Fleet {
    port: u16,
    hosts: Vec<String>,
    dir: TempDir,
}

impl Fleet {
    /// Sets the relay up and enrols spokes of these names.
    pub async fn enrol(cluster: &Cluster, names: &[String]) -> Self {
        let (port, active) = (free_port(), cluster.active().await);
        let hosts: Vec<_> = cluster.nodes.iter().map(holdfast_tests::hub::Node::relay_host).collect();
        let api = cluster.api(active);
        api.put("sys/mounts/relay", json!({"type": "relay"})).await.expect(204);
        let body = json!({"hub_endpoint": format!("{}:{port}", hosts[0]), "hub_ip_sans": hosts});
        let pin = api.put("relay/ca/init", body).await.expect(200).text("ca_cert_hash");
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap();
        let fleet = Self { port, hosts, dir };
        let url = cluster.nodes[active].url();
        let joins = names.iter().map(|name| {
            let (api, url, pin, dir) = (&api, url.clone(), pin.clone(), fleet.credentials(name));
            async move {
                let body = json!({"allowed_spoke_name": name});
                let token = api.put("relay/bootstrap-tokens", body).await.expect(200).text("token");
                let params = JoinParams {
                    api: vec![url],
                    mount: "relay".into(),
                    token: join::token(&token).unwrap(),
                    pin: Some(pin),
                    name: name.parse().unwrap(),
                    dir,
                    force: false,
                };
                join::join(&params).await.unwrap()
            }
        });
        stream::iter(joins).for_each_concurrent(ENROLLING, |join| async { drop(join.await) }).await;
        for host in &fleet.hosts {
            let open = || async { tokio::net::TcpStream::connect((host.as_str(), port)).await.ok() };
            eventually_async(PATIENCE, "the node takes spokes", open).await;
        }
        fleet
    }

    fn credentials(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the daemon of a spoke that dials these nodes, the first one first.
    pub fn start(&self, name: &str, nodes: &[usize], timing: Timing) -> Member {
        let servers = nodes.iter().map(|i| format!("{}:{}", self.hosts[*i], self.port).parse().unwrap());
        let options = Options {
            servers: servers.collect(),
            credentials_dir: self.credentials(name),
            server_name: None,
            heartbeat: Some(Duration::from_secs(15)),
            limits: Limits::default(),
            renewal: Some(Schedule::default()),
            once: false,
            timing,
        };
        let (ask, signals) = Signals::manual();
        let tasks = Tasks::new("spoke");
        let own = tasks.clone();
        let run = tokio::spawn(async move {
            daemon::run_with(options, Arc::new(Databases), signals, &own).await.unwrap();
        });
        Member { ask, tasks, run }
    }
}

/// A spoke that runs. Dropped, it is gone without a word.
pub struct Member {
    ask: watch::Sender<Request>,
    tasks: Tasks,
    run: JoinHandle<()>,
}

impl Member {
    /// Ends it as an operator does.
    pub async fn stop(mut self) {
        let _ = self.ask.send(Request::Graceful);
        (&mut self.run).await.unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.run.abort();
        self.tasks.cancel();
    }
}

/// How many spokes the active node can route to through each node, by its view; none when it has no whole view.
pub async fn routable(api: &Api) -> Option<BTreeMap<String, usize>> {
    let reply = api.try_send("GET", "relay/spokes", None).await.ok()?;
    let data = reply.data();
    if reply.status != 200 || data["partial"] != Value::Bool(false) {
        return None;
    }
    let mut counts = BTreeMap::new();
    for spoke in data["spokes"].as_array()? {
        *counts.entry(spoke["node_id"].as_str()?.to_owned()).or_default() += 1;
    }
    Some(counts)
}

/// Waits until the active node can route to so many spokes, all of them elsewhere than on the `lost` node.
pub async fn wait_routable(api: &Api, count: usize, lost: Option<&str>, deadline: Duration) {
    eventually_async(deadline, "the spokes are routable", || async {
        let counts = routable(api).await?;
        let dead = lost.and_then(|lost| counts.get(lost)).copied().unwrap_or(0);
        (dead == 0 && counts.values().sum::<usize>() == count).then_some(())
    })
    .await;
}
