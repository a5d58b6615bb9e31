//! The hub nodes: their files, their ports, their start.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, sleep};

use super::process::Daemon;
use crate::args::DevArgs;

/// One node.
pub struct Node {
    /// Its process; the name is its node id.
    pub daemon: Daemon,
    config: PathBuf,
    api_port: u16,
    cluster_port: u16,
    relay: String,
}

impl Node {
    /// Its node id.
    pub fn id(&self) -> &str {
        &self.daemon.id
    }

    /// The URL of its API.
    pub fn api(&self) -> String {
        format!("http://127.0.0.1:{}", self.api_port)
    }

    /// The file of its configuration.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Its cluster address.
    pub fn cluster(&self) -> String {
        format!("127.0.0.1:{}", self.cluster_port)
    }

    /// Where it takes spokes, once there is a relay.
    pub fn relay(&self) -> &str {
        &self.relay
    }
}

/// All nodes.
pub struct Nodes {
    list: Vec<Node>,
}

impl Nodes {
    /// Writes the configuration of every node.
    pub fn prepare(home: &Path, args: &DevArgs) -> Result<Self> {
        let key = home.join("seal.key");
        if !key.exists() {
            write_key(&key)?;
        }
        let ports = ports(args)?;
        let relay_port = relay_port(home, args)?;
        let first = ports.first().map(|(api, _)| format!("http://127.0.0.1:{api}")).unwrap_or_default();
        let mut list = Vec::new();
        for (index, (api_port, cluster_port)) in ports.into_iter().enumerate() {
            let id = format!("hub-{index}");
            let dir = home.join(&id);
            std::fs::create_dir_all(&dir)?;
            let join = if index == 0 { String::new() } else { format!("{{ leader_api_addr = {first:?} }}") };
            let host = relay_host(index);
            let relay = format!("{host}:{relay_port}");
            let text = format!(
                "[server.hub]\nnode_id = {id:?}\ndata_dir = {:?}\napi.listen = \"127.0.0.1:{api_port}\"\n\
                 cluster.listen = \"127.0.0.1:{cluster_port}\"\nseal.type = \"keyfile\"\nseal.keyfile = {key:?}\n\
                 raft.retry_join = [{join}]\nmetrics.unauthenticated = true\nrelay.bind = {host:?}\n\
                 relay.advertise = {relay:?}\n",
                dir.join("data"),
            );
            let config = dir.join("hub.toml");
            std::fs::write(&config, text)?;
            let command = ["server", "--role", "hub", "--config"].into_iter().map(Into::into);
            let command = command.chain([config.clone().into_os_string()]).collect();
            let daemon = Daemon::new(&id, &dir, command, &args.log);
            list.push(Node { daemon, config, api_port, cluster_port, relay });
        }
        Ok(Self { list })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Each node.
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.list.iter()
    }

    /// Each process.
    pub fn daemons(&mut self) -> impl Iterator<Item = &mut Daemon> {
        self.list.iter_mut().map(|node| &mut node.daemon)
    }

    /// Starts all of them and waits until the first one's port is open.
    pub async fn start(&mut self) -> Result<()> {
        // Whoever answers there would be taken for a node of ours.
        for node in &self.list {
            for port in [node.api_port, node.cluster_port] {
                TcpListener::bind(("127.0.0.1", port)).with_context(|| {
                    format!(
                        "port {port} is in use: end the other platform, or use --port for another first one"
                    )
                })?;
            }
        }
        for daemon in self.daemons() {
            daemon.start()?;
        }
        let node = self.list.first_mut().context("there is no node")?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while tokio::net::TcpStream::connect(("127.0.0.1", node.api_port)).await.is_err() {
            if let Some(status) = node.daemon.ended() {
                bail!("{} ended with {status}:\n{}", node.id(), node.daemon.tail());
            }
            if Instant::now() > deadline {
                bail!("{} does not listen on port {}; see {:?}", node.id(), node.api_port, node.daemon.log());
            }
            sleep(Duration::from_millis(20)).await;
        }
        // Somebody may have been faster: then it is not the node that listens.
        for daemon in self.daemons() {
            if let Some(status) = daemon.ended() {
                bail!("{} ended with {status}:\n{}", daemon.id, daemon.tail());
            }
        }
        Ok(())
    }
}

/// The port for spokes is one for all nodes, so each has an address of its own.
fn relay_host(index: usize) -> String {
    format!("127.0.0.{}", index + 1)
}

fn ports(args: &DevArgs) -> Result<Vec<(u16, u16)>> {
    (0..u16::from(args.nodes))
        .map(|i| match args.port {
            0 => Ok((free_port()?, free_port()?)),
            first => {
                let api = first.checked_add(2 * i).context("--port is too high")?;
                Ok((api, api.checked_add(1).context("--port is too high")?))
            }
        })
        .collect()
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// A port that is free on every address where a node takes spokes. The authority keeps it, so a data directory does.
fn relay_port(home: &Path, args: &DevArgs) -> Result<u16> {
    let file = home.join("relay-port");
    if let Ok(text) = std::fs::read_to_string(&file) {
        return text.trim().parse().with_context(|| format!("{file:?} holds no port"));
    }
    for _ in 0..100 {
        let port = free_port()?;
        if (1..usize::from(args.nodes)).all(|index| TcpListener::bind((relay_host(index), port)).is_ok()) {
            std::fs::write(&file, port.to_string())?;
            return Ok(port);
        }
    }
    bail!("found no port that is free on the addresses of all nodes")
}

fn write_key(path: &Path) -> Result<()> {
    use std::io::Write;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&holdfast_ops::rand::bytes::<32>())?;
    file.sync_all()?;
    Ok(())
}
