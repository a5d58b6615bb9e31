//! The node processes: their files, their start and their end.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::args::DevArgs;

/// One node.
pub struct Node {
    /// Its node id.
    pub id: String,
    api_port: u16,
    cluster_port: u16,
    dir: PathBuf,
    log_level: String,
    child: Option<Child>,
}

impl Node {
    /// The URL of its API.
    pub fn api(&self) -> String {
        format!("http://127.0.0.1:{}", self.api_port)
    }

    /// Its cluster address.
    pub fn cluster(&self) -> String {
        format!("127.0.0.1:{}", self.cluster_port)
    }

    /// Its log file.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// How it ended, once, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        self.child = None;
        Some(status)
    }

    fn spawn(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let child = Command::new(std::env::current_exe()?)
            .args(["server", "--role", "hub", "--config"])
            .arg(self.dir.join("hub.toml"))
            .env("HOLDFAST_LOG", &self.log_level)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // An interrupt typed at the terminal goes to this process alone, which then stops the nodes in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.id))?;
        self.child = Some(child);
        Ok(())
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
        let first = ports.first().map(|(api, _)| format!("http://127.0.0.1:{api}")).unwrap_or_default();
        let mut list = Vec::new();
        for (index, (api_port, cluster_port)) in ports.into_iter().enumerate() {
            let id = format!("hub-{index}");
            let dir = home.join(&id);
            std::fs::create_dir_all(&dir)?;
            let join = if index == 0 { String::new() } else { format!("{{ leader_api_addr = {first:?} }}") };
            let text = format!(
                "[server.hub]\nnode_id = {id:?}\ndata_dir = {:?}\napi.listen = \"127.0.0.1:{api_port}\"\n\
                 cluster.listen = \"127.0.0.1:{cluster_port}\"\nseal.type = \"keyfile\"\nseal.keyfile = {key:?}\n\
                 raft.retry_join = [{join}]\nmetrics.unauthenticated = true\nrelay.bind = \"127.0.0.{}\"\n",
                dir.join("data"),
                // The port for spokes is one for all nodes, so each has an address of its own.
                index + 1
            );
            std::fs::write(dir.join("hub.toml"), text)?;
            list.push(Node { id, api_port, cluster_port, dir, log_level: args.log.clone(), child: None });
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

    /// Each node.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.list.iter_mut()
    }

    /// Starts a node.
    pub fn start(&mut self, index: usize) -> Result<()> {
        self.list.get_mut(index).context("no such node")?.spawn()
    }

    /// Waits until a node's port is open.
    pub async fn wait_listening(&mut self, index: usize) -> Result<()> {
        let node = self.list.get_mut(index).context("no such node")?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while tokio::net::TcpStream::connect(("127.0.0.1", node.api_port)).await.is_err() {
            if let Some(status) = node.ended() {
                bail!("{} ended with {status}:\n{}", node.id, tail(&node.log()));
            }
            if Instant::now() > deadline {
                bail!("{} does not listen on port {}; see {:?}", node.id, node.api_port, node.log());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Asks every node to end, and ends those that do not.
    pub async fn stop(&mut self, grace: Duration) {
        for node in &self.list {
            if let Some(pid) = node.pid().and_then(|pid| i32::try_from(pid).ok()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
        let deadline = Instant::now() + grace;
        for node in &mut self.list {
            if let Some(mut child) = node.child.take()
                && timeout(deadline.saturating_duration_since(Instant::now()), child.wait()).await.is_err()
            {
                let _ = child.kill().await;
            }
        }
    }
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

fn write_key(path: &Path) -> Result<()> {
    use std::io::Write;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&holdfast_ops::rand::bytes::<32>())?;
    file.sync_all()?;
    Ok(())
}

/// The last lines of a log, for an error message.
fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines.get(lines.len().saturating_sub(15)..).unwrap_or_default().join("\n")
}
