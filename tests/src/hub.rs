//! Clusters of real hub processes on loopback.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::Api;
use crate::eventually_async;
use crate::netns::Network;
use crate::process::{Process, binary, free_port};

/// How long anything that the product promises within a second or two may take here.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How the nodes are sealed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Seal {
    /// The nodes unseal themselves with a key file that they share.
    Keyfile,
    /// Shares and threshold of Shamir's scheme.
    Shamir(u8, u8),
}

/// What differs between clusters.
#[derive(Clone)]
pub struct Options {
    /// How many nodes.
    pub nodes: usize,
    /// How they are sealed.
    pub seal: Seal,
    /// More lines for the table `[server.hub]` of each configuration file, as inline keys such as `limits.forward_hold = "1s"`.
    /// `API_PORT` in them is the port of the node, `RELAY_HOST` the address where it takes spokes.
    pub extra: String,
    /// More environment for each node.
    pub env: Vec<(String, String)>,
    /// A program and arguments put before the binary, such as `faketime`.
    pub wrapper: Vec<String>,
    /// A private network in which each node is a host of its own, instead of loopback.
    pub network: Option<Arc<Network>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 3,
            seal: Seal::Keyfile,
            extra: String::new(),
            env: Vec::new(),
            wrapper: Vec::new(),
            network: None,
        }
    }
}

impl Options {
    /// Three nodes that stay calm on a machine with more to do than it can: for scenarios whose subject is not how
    /// fast leadership moves.
    pub fn calm() -> Self {
        let raft = "raft.heartbeat_ms = 250\nraft.election_min_ms = 1500\nraft.election_max_ms = 3000";
        Self { extra: raft.to_owned(), ..Self::default() }
    }
}

/// One node.
pub struct Node {
    /// Its node id.
    pub id: String,
    /// The port of its API.
    pub api_port: u16,
    /// The port of its cluster listener.
    pub cluster_port: u16,
    /// Its folder: configuration, data, log.
    pub dir: PathBuf,
    host: String,
    options: Options,
    process: Option<Process>,
}

impl Node {
    /// Writes the configuration of a node that joins through `join`, without starting it.
    pub fn prepare(root: &Path, index: usize, options: &Options, join: &[String]) -> Self {
        let id = format!("n{index}");
        let dir = root.join(&id);
        std::fs::create_dir_all(&dir).unwrap();
        let mut node = Self {
            id,
            api_port: free_port(),
            cluster_port: free_port(),
            dir,
            host: options
                .network
                .as_ref()
                .map_or_else(|| "127.0.0.1".to_owned(), |_| Network::address(index)),
            options: options.clone(),
            process: None,
        };
        if let Some(network) = &options.network {
            node.options.wrapper.splice(0..0, network.wrapper(index));
            node.options.extra.push_str("\napi.i_accept_plaintext = true");
        }
        node.write_config(root, join);
        node
    }

    /// Gives the node another port for its cluster listener, from its next start on.
    pub fn move_cluster_port(&mut self) {
        let text = std::fs::read_to_string(self.config()).unwrap();
        let before = format!("cluster.listen = \"{}:{}\"", self.host, self.cluster_port);
        assert!(text.contains(&before), "{text}");
        self.cluster_port = free_port();
        let after = format!("cluster.listen = \"{}:{}\"", self.host, self.cluster_port);
        std::fs::write(self.config(), text.replace(&before, &after)).unwrap();
    }

    fn write_config(&self, root: &Path, join: &[String]) {
        let join: Vec<String> = join.iter().map(|url| format!("{{ leader_api_addr = \"{url}\" }}")).collect();
        let seal = match self.options.seal {
            Seal::Keyfile => format!("seal.type = \"keyfile\"\nseal.keyfile = {:?}\n", root.join("seal.key")),
            Seal::Shamir(..) => "seal.type = \"shamir\"\n".to_owned(),
        };
        let text = format!(
            "[server.hub]\nnode_id = {:?}\ndata_dir = {:?}\napi.listen = \"{}:{}\"\n\
             cluster.listen = \"{}:{}\"\nrelay.bind = {:?}\n{seal}raft.retry_join = [{}]\n{}\n",
            self.id,
            self.dir.join("data"),
            self.host,
            self.api_port,
            self.host,
            self.cluster_port,
            self.relay_host(),
            join.join(", "),
            self.options
                .extra
                .replace("API_PORT", &self.api_port.to_string())
                .replace("RELAY_HOST", &self.relay_host()),
        );
        std::fs::write(self.config(), text).unwrap();
    }

    /// The address at which it listens for spokes: the port is the same for all nodes, so each has an address of its
    /// own, on loopback too.
    pub fn relay_host(&self) -> String {
        match self.options.network {
            Some(_) => self.host.clone(),
            None => format!("127.0.0.{}", self.id.trim_start_matches('n').parse::<usize>().unwrap() + 1),
        }
    }

    /// Its configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir.join("hub.toml")
    }

    /// Starts the process.
    pub fn start(&mut self) {
        let mut words = self.options.wrapper.clone();
        words.push(binary().display().to_string());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["server", "--role", "hub", "--config"]).arg(self.config());
        command.envs(self.options.env.iter().map(|(k, v)| (k, v)));
        self.process = Some(Process::start(&mut command, &self.dir.join("log")));
    }

    /// The running process.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the node is started")
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process().kill();
    }

    /// Freezes the process.
    pub fn pause(&mut self) {
        self.process().signal(Signal::SIGSTOP);
    }

    /// Lets a frozen process go on.
    pub fn resume(&mut self) {
        self.process().signal(Signal::SIGCONT);
    }

    /// Its API without a token.
    pub fn api(&self) -> Api {
        Api::new(self.url())
    }

    /// The URL of its API.
    pub fn url(&self) -> String {
        format!("http://{}:{}", self.host, self.api_port)
    }

    /// Everything it printed since its first start.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.join("log")).unwrap_or_default()).into_owned()
    }

    /// Waits until the API answers at all.
    pub async fn wait_listening(&mut self) {
        let api = self.api();
        for _ in 0..3000 {
            if api.health().await.is_some() {
                return;
            }
            if let Some(status) = self.process().exited() {
                panic!("{} ended with {status} before it listened:\n{}", self.id, self.log());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} does not listen:\n{}", self.id, self.log());
    }
}

/// A cluster.
pub struct Cluster {
    /// Its nodes in the order of their start.
    pub nodes: Vec<Node>,
    /// The root token.
    pub root: String,
    /// The unseal shares in base64; empty for a keyfile seal.
    pub keys: Vec<String>,
    options: Options,
    dir: TempDir,
}

impl Cluster {
    /// A cluster with `nodes` nodes and defaults, initialised, unsealed and complete.
    pub async fn start(nodes: usize) -> Self {
        Self::start_with(Options { nodes, ..Options::default() }).await
    }

    /// A cluster, initialised, unsealed and complete: every node votes.
    pub async fn start_with(options: Options) -> Self {
        let mut cluster = Self::prepare(options);
        cluster.start_first().await;
        for index in 1..cluster.options.nodes {
            cluster.add_node(index).await;
        }
        cluster.wait_complete().await;
        cluster
    }

    /// Nodes that listen and will find each other, but that nobody has initialised or unsealed.
    pub async fn start_unopened(options: Options) -> Self {
        let mut cluster = Self::prepare(options);
        for index in 0..cluster.options.nodes {
            let join: Vec<String> = cluster.nodes.first().map(Node::url).into_iter().collect();
            let mut node = Node::prepare(cluster.dir.path(), index, &cluster.options, &join);
            node.start();
            node.wait_listening().await;
            cluster.nodes.push(node);
        }
        cluster
    }

    /// An empty cluster: folder and key file only.
    pub fn prepare(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("seal.key");
        std::fs::write(&key, rand::random::<[u8; 32]>()).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        Self { nodes: Vec::new(), root: String::new(), keys: Vec::new(), options, dir }
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts and initialises the first node.
    pub async fn start_first(&mut self) {
        let mut node = Node::prepare(self.dir.path(), 0, &self.options, &[]);
        node.start();
        node.wait_listening().await;
        let body = match self.options.seal {
            Seal::Keyfile => json!({}),
            Seal::Shamir(shares, threshold) => {
                json!({"secret_shares": shares, "secret_threshold": threshold})
            }
        };
        let reply = node.api().put("sys/init", body).await.expect(200);
        self.root = reply.body["root_token"].as_str().unwrap().to_owned();
        let keys = reply.body["keys_base64"].as_array().cloned().unwrap_or_default();
        self.keys = keys.iter().map(|k| k.as_str().unwrap().to_owned()).collect();
        self.unseal(&node).await;
        let api = node.api();
        eventually_async(PATIENCE, "the first node is active", || async {
            (api.health().await? == 200).then_some(())
        })
        .await;
        self.nodes.push(node);
    }

    /// Starts one more node that joins; does not wait until it votes.
    pub async fn add_node(&mut self, index: usize) {
        let join: Vec<String> = self.nodes.iter().map(Node::url).collect();
        let mut node = Node::prepare(self.dir.path(), index, &self.options, &join);
        node.start();
        node.wait_listening().await;
        self.unseal(&node).await;
        self.nodes.push(node);
    }

    /// Gives a Shamir-sealed node its shares, once it knows what it is to open.
    pub async fn unseal(&self, node: &Node) {
        let Seal::Shamir(_, threshold) = self.options.seal else { return };
        let api = node.api();
        let initialised =
            || async { (api.get("sys/seal-status").await.body["initialized"] == true).then_some(()) };
        eventually_async(PATIENCE, "the node has seal data", initialised).await;
        for key in self.keys.iter().take(threshold.into()) {
            api.put("sys/unseal", json!({"key": key})).await.expect(200);
        }
    }

    /// Waits until every node is unsealed and votes.
    pub async fn wait_complete(&self) {
        let want = self.nodes.len();
        let voters = || async {
            let reply = self.try_leader_get("sys/storage/raft/configuration").await?;
            let servers = reply["data"]["config"]["servers"].as_array()?.clone();
            (servers.iter().filter(|s| s["voter"] == true).count() == want).then_some(())
        };
        eventually_async(PATIENCE, "every node votes", voters).await;
        for node in &self.nodes {
            let api = node.api();
            eventually_async(PATIENCE, "every node serves", || async {
                matches!(api.health().await?, 200 | 429).then_some(())
            })
            .await;
        }
    }

    async fn try_leader_get(&self, path: &str) -> Option<Value> {
        for node in &self.nodes {
            let api = node.api().with_token(&self.root);
            if api.health().await == Some(200) {
                let reply = api.try_send("GET", path, None).await.ok()?;
                return (reply.status == 200).then_some(reply.body);
            }
        }
        None
    }

    /// The API of a node with the root token.
    pub fn api(&self, index: usize) -> Api {
        self.nodes[index].api().with_token(&self.root)
    }

    /// The index of the active node; waits for one.
    pub async fn active(&self) -> usize {
        self.active_within(PATIENCE).await
    }

    /// The index of the active node, within a deadline.
    pub async fn active_within(&self, deadline: Duration) -> usize {
        let find = || async {
            for (index, node) in self.nodes.iter().enumerate() {
                if node.process.is_some() && node.api().health().await == Some(200) {
                    return Some(index);
                }
            }
            None
        };
        eventually_async(deadline, "there is an active node", find).await
    }

    /// Indices of the nodes that are not active, given the active one.
    pub fn others(&self, active: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|i| *i != active).collect()
    }

    /// The last lines of each node's log, for the message of a failure.
    pub fn log_ends(&self, lines: usize) -> String {
        let end = |node: &Node| {
            let log = node.log();
            let all: Vec<_> = log.lines().collect();
            format!("--- {}\n{}\n", node.id, all[all.len().saturating_sub(lines)..].join("\n"))
        };
        self.nodes.iter().map(end).collect()
    }

    /// Fails on ERROR lines in any log, except those that contain one of `expected`.
    #[track_caller]
    pub fn check_logs(&self, expected: &[&str]) {
        for node in &self.nodes {
            let log = node.log();
            let bad = log.lines().find(|line| {
                let error = line.contains("\"level\":\"ERROR\"")
                    || line.contains(" ERROR ")
                    || line.contains("panicked");
                error && !expected.iter().any(|text| line.contains(text))
            });
            assert!(bad.is_none(), "{} logged: {}", node.id, bad.unwrap_or_default());
        }
    }
}
