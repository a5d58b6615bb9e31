//! Real spokes, and a balancer that puts each dial on the node that a scenario picks.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;

use crate::cli::Cli;
use crate::db::{ADMIN, ADMIN_PASSWORD, PostgresServer};
use crate::eventually_async;
use crate::hub::{Cluster, PATIENCE};
use crate::process::{Process, binary, free_port};

/// The address of the balancer: not one of the nodes', which share its port.
pub const BALANCER: &str = "127.0.0.100";

/// The relay of a cluster, set up.
pub struct Relay {
    /// The port for spokes, the same on every node and at the balancer.
    pub port: u16,
    /// The pin of the authority.
    pub pin: String,
    /// What stands before the nodes.
    pub balancer: Balancer,
}

impl Relay {
    /// Mounts the relay, makes its authority and waits until every node listens.
    pub async fn set_up(cluster: &Cluster) -> Self {
        Self::set_up_at(cluster, free_port()).await
    }

    /// The same at a port that was chosen before.
    pub async fn set_up_at(cluster: &Cluster, port: u16) -> Self {
        let api = cluster.api(cluster.active().await);
        api.put("sys/mounts/relay", json!({"type": "relay"})).await.expect(204);
        let hosts: Vec<_> = cluster.nodes.iter().map(crate::hub::Node::relay_host).collect();
        let body = json!({"hub_endpoint": format!("{BALANCER}:{port}"), "hub_ip_sans": hosts});
        let pin = api.put("relay/ca/init", body).await.expect(200).text("ca_cert_hash");
        let backends = hosts.iter().map(|host| format!("{host}:{port}").parse().unwrap()).collect();
        let relay = Self { port, pin, balancer: Balancer::start(port, backends) };
        relay.wait_listening(cluster).await;
        relay
    }

    /// Waits until every node takes spokes.
    pub async fn wait_listening(&self, cluster: &Cluster) {
        for node in &cluster.nodes {
            let address = format!("{}:{}", node.relay_host(), self.port);
            eventually_async(PATIENCE, "the node takes spokes", || async {
                TcpStream::connect(&address).is_ok().then_some(())
            })
            .await;
        }
    }

    /// Whether a node takes connections of spokes.
    pub fn listens(&self, cluster: &Cluster, node: usize) -> bool {
        TcpStream::connect((cluster.nodes[node].relay_host(), self.port)).is_ok()
    }

    /// Where a node takes spokes.
    pub fn address(&self, cluster: &Cluster, node: usize) -> String {
        format!("{}:{}", cluster.nodes[node].relay_host(), self.port)
    }

    /// The certificate, DER, that a node shows to whoever dials its port for spokes.
    ///
    /// # Panics
    /// When it is not one of the authority, PEM.
    pub async fn served_certificate(&self, cluster: &Cluster, node: usize, ca_pem: &[u8]) -> Vec<u8> {
        let host = cluster.nodes[node].relay_host();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca_pem).unwrap()).unwrap();
        let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let tcp = tokio::net::TcpStream::connect((host.as_str(), self.port)).await.unwrap();
        let name = ServerName::try_from(host).unwrap();
        // The client's side is done before the hub has seen that no certificate comes.
        let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    }

    /// Where the balancer is.
    pub fn shared(&self) -> String {
        format!("{BALANCER}:{}", self.port)
    }

    /// A spoke that has joined and does not run yet.
    pub async fn join(&self, cluster: &Cluster, name: &str) -> Spoke {
        let api = cluster.api(cluster.active().await);
        let token = api.put("relay/bootstrap-tokens", json!({})).await.expect(200).text("token");
        self.join_with(cluster, name, &token).await
    }

    /// The same with a token that is there already.
    pub async fn join_with(&self, cluster: &Cluster, name: &str, token: &str) -> Spoke {
        let active = cluster.active().await;
        let dir = TempDir::new().unwrap();
        let credentials = dir.path().join("credentials");
        let line = format!(
            "relay join -hub-addr={} -hub-cert-hash={} -token={token} -spoke-name={name} -credentials-dir={}",
            cluster.nodes[active].url(),
            self.pin,
            credentials.display()
        );
        Cli::new(&cluster.nodes[active].url()).run(&line).await.expect(0);
        Spoke { name: name.to_owned(), credentials, log: dir.path().join("log"), process: None, dir }
    }

    /// A spoke that runs behind the balancer and lands on a node.
    pub async fn spoke_on(&self, cluster: &Cluster, name: &str, node: usize) -> Spoke {
        let mut spoke = self.join(cluster, name).await;
        self.balancer.pick(node);
        spoke.start(&self.shared(), &[]);
        owned(cluster, name, node).await;
        spoke
    }
}

/// The entry of a spoke in a view, asked through a node.
pub async fn entry(cluster: &Cluster, through: usize, name: &str) -> Option<Value> {
    let reply = cluster.api(through).get("relay/spokes").await;
    let spokes = reply.body["data"]["spokes"].as_array()?.clone();
    spokes.into_iter().find(|spoke| spoke["name"] == name)
}

/// Waits until the active node knows that a spoke's stream is on a node.
pub async fn owned(cluster: &Cluster, name: &str, node: usize) {
    eventually_async(PATIENCE, "the spoke is where it should be", || async {
        let active = cluster.active().await;
        let entry = entry(cluster, active, name).await?;
        (entry["node_id"] == cluster.nodes[node].id.as_str()).then_some(())
    })
    .await;
}

/// Writes a connection `pg` of a PostgreSQL that a spoke reaches, and a role `app`.
pub async fn setup_remote(
    cluster: &Cluster,
    through: usize,
    database: &PostgresServer,
    spoke: &str,
    ttl: &str,
) {
    cluster.api(through).put("sys/mounts/database", json!({"type": "database"})).await.expect(204);
    add_remote(cluster, through, database, spoke, ("pg", "app", ttl)).await;
}

/// Writes a connection to a PostgreSQL that a spoke reaches, and a role for it with leases of a length.
pub async fn add_remote(
    cluster: &Cluster,
    through: usize,
    database: &PostgresServer,
    spoke: &str,
    (config, role, ttl): (&str, &str, &str),
) {
    let api = cluster.api(through);
    api.put(&format!("database/config/{config}"), remote_config(database, spoke)).await.expect(204);
    let body = json!({
        "db_name": config, "default_ttl": ttl, "max_ttl": "24h",
        "creation_statements": crate::api::CREATE_ROLE,
    });
    api.put(&format!("database/roles/{role}"), body).await.expect(204);
}

/// The session epoch of a spoke, as the active node knows it.
pub async fn epoch(cluster: &Cluster, name: &str) -> u64 {
    let epoch = || async {
        let active = cluster.active().await;
        entry(cluster, active, name).await?["session_epoch"].as_u64()
    };
    eventually_async(PATIENCE, "the spoke has a stream", epoch).await
}

/// The configuration of a PostgreSQL that a spoke reaches.
pub fn remote_config(database: &PostgresServer, spoke: &str) -> Value {
    json!({
        "plugin_name": "remote-postgres-plugin", "spoke_name": spoke, "allowed_roles": "*",
        "connection_url": database.url_template(), "username": ADMIN, "password": ADMIN_PASSWORD,
    })
}

/// A spoke.
pub struct Spoke {
    /// Its name.
    pub name: String,
    /// Its credentials.
    pub credentials: PathBuf,
    log: PathBuf,
    process: Option<Process>,
    dir: TempDir,
}

impl Spoke {
    /// Starts the daemon towards one address or several, separated by commas.
    pub fn start(&mut self, servers: &str, more: &[&str]) {
        let mut command = Command::new(binary());
        command.args(["relay", "run"]).arg(format!("-server={servers}"));
        command.arg(format!("-credentials-dir={}", self.credentials.display())).args(more);
        self.process = Some(Process::start(&mut command, &self.log));
    }

    /// The running process.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the spoke is started")
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process().kill();
    }

    /// Ends the daemon as an operator does, and gives its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.process().signal(Signal::SIGTERM);
        self.process().wait(PATIENCE).code()
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Everything it printed.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

/// A TCP balancer that puts each new connection on the node that was picked.
pub struct Balancer {
    shared: Arc<Shared>,
    address: SocketAddr,
}

struct Shared {
    backends: Vec<SocketAddr>,
    picked: Mutex<Option<usize>>,
    open: Mutex<Vec<Arc<Link>>>,
    over: AtomicBool,
}

/// A connection of a spoke, and the one to the node that it was put on.
struct Link {
    near: TcpStream,
    far: TcpStream,
    /// The spoke's side is gone, and the node is not told.
    stranded: AtomicBool,
    /// The node ended its side.
    ended: AtomicBool,
}

impl Balancer {
    /// Listens at [`BALANCER`] on a port, in front of these backends; the first is picked.
    pub fn start(port: u16, backends: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind((BALANCER, port)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            backends,
            picked: Mutex::new(Some(0)),
            open: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &own));
        Self { shared, address }
    }

    /// Puts what is dialled from now on on a node.
    pub fn pick(&self, node: usize) {
        *self.shared.picked.lock().unwrap() = Some(node);
    }

    /// Refuses what is dialled from now on.
    pub fn refuse(&self) {
        *self.shared.picked.lock().unwrap() = None;
    }

    /// Breaks every connection.
    pub fn cut(&self) {
        for link in self.shared.open.lock().unwrap().drain(..) {
            link.close();
        }
    }

    /// Breaks every connection for the spokes alone: the nodes go on seeing them open, with a silent spoke.
    pub fn strand(&self) {
        for link in self.shared.open.lock().unwrap().iter() {
            link.stranded.store(true, Ordering::SeqCst);
            let _ = link.near.shutdown(Shutdown::Both);
        }
    }

    /// How many stranded connections the nodes have not ended.
    pub fn stranded(&self) -> usize {
        let open = self.shared.open.lock().unwrap();
        let stranded = open.iter().filter(|link| link.stranded.load(Ordering::SeqCst));
        stranded.filter(|link| !link.ended.load(Ordering::SeqCst)).count()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the accept loop.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.over.load(Ordering::SeqCst) {
            return;
        }
        let Ok(near) = stream else { continue };
        let Some(node) = *shared.picked.lock().unwrap() else { continue };
        let Ok(far) = TcpStream::connect(shared.backends[node]) else { continue };
        let link =
            Arc::new(Link { near, far, stranded: AtomicBool::new(false), ended: AtomicBool::new(false) });
        for stream in [&link.near, &link.far] {
            let _ = stream.set_nodelay(true);
        }
        shared.open.lock().unwrap().push(Arc::clone(&link));
        let back = Arc::clone(&link);
        std::thread::spawn(move || link.outward());
        std::thread::spawn(move || back.homeward());
    }
}

impl Link {
    fn outward(&self) {
        let _ = std::io::copy(&mut &self.near, &mut &self.far);
        if !self.stranded.load(Ordering::SeqCst) {
            self.close();
        }
    }

    fn homeward(&self) {
        let mut bytes = [0; 16 << 10];
        while let Ok(count @ 1..) = (&self.far).read(&mut bytes) {
            let passed = (&self.near).write_all(&bytes[..count]);
            if passed.is_err() && !self.stranded.load(Ordering::SeqCst) {
                break;
            }
        }
        self.ended.store(true, Ordering::SeqCst);
        self.close();
    }

    fn close(&self) {
        let _ = self.near.shutdown(Shutdown::Both);
        let _ = self.far.shutdown(Shutdown::Both);
    }
}
