//! The spokes beside the database: they join as any spoke does and dial the nodes in turn.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_client::Client;
use holdfast_spoke::join::{self, JoinParams};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::nodes::{Node, Nodes};
use super::process::Daemon;
use super::setup::{Access, until};
use crate::args::DevArgs;

/// How long a bootstrap token is good: it is used at once.
const TOKEN_TTL: &str = "10m";
/// How long a dial to a node on this machine may take.
const DIAL: Duration = Duration::from_secs(1);

/// One spoke.
pub struct Spoke {
    /// Its process; the name is that of the spoke.
    pub daemon: Daemon,
    credentials: PathBuf,
}

/// All spokes.
pub struct Spokes {
    list: Vec<Spoke>,
}

impl Spokes {
    /// Makes their folders. Each dials another node first, the first spoke the second node, and has all of them to fall
    /// back to.
    pub fn prepare(home: &Path, args: &DevArgs, nodes: &Nodes) -> Result<Self> {
        let addresses: Vec<&str> = nodes.iter().map(Node::relay).collect();
        let mut list = Vec::new();
        for number in 1..=usize::from(args.spokes()) {
            let id = format!("spoke-{number}");
            let dir = home.join(&id);
            std::fs::create_dir_all(&dir)?;
            let credentials = dir.join("credentials");
            let mut servers = addresses.clone();
            servers.rotate_left(number % addresses.len().max(1));
            let mut command: Vec<OsString> = ["relay", "run", "--server"].map(Into::into).into();
            command.extend([
                servers.join(",").into(),
                "--credentials-dir".into(),
                credentials.clone().into(),
            ]);
            list.push(Spoke { daemon: Daemon::new(&id, &dir, command, &args.log), credentials });
        }
        Ok(Self { list })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Each spoke.
    pub fn iter(&self) -> impl Iterator<Item = &Spoke> {
        self.list.iter()
    }

    /// Each process.
    pub fn daemons(&mut self) -> impl Iterator<Item = &mut Daemon> {
        self.list.iter_mut().map(|spoke| &mut spoke.daemon)
    }

    /// Sets the relay up, lets the spokes join that have not, starts them, and waits until the hub lists all.
    pub async fn start(&mut self, nodes: &Nodes, access: &Access) -> Result<()> {
        let client = access.client(nodes)?;
        let pin = authority(nodes, &client).await?;
        for spoke in &mut self.list {
            spoke.join(nodes, &client, &pin).await?;
            spoke.daemon.start()?;
        }
        until("every spoke to be connected", async || {
            let view = client.read("relay/spokes").await?;
            let connected = view.data().get("connected_count").and_then(Value::as_u64).unwrap_or(0);
            Ok((connected >= self.list.len() as u64).then_some(()))
        })
        .await
    }
}

impl Spoke {
    async fn join(&self, nodes: &Nodes, client: &Client, pin: &str) -> Result<()> {
        if self.credentials.join("cert.pem").exists() {
            return Ok(());
        }
        let body = json!({"allowed_spoke_name": self.daemon.id, "max_uses": 1, "ttl": TOKEN_TTL});
        let made = client.write("relay/bootstrap-tokens", &body).await?;
        let token = made.data().get("token").and_then(Value::as_str).context("there is no token")?;
        let params = JoinParams {
            api: nodes.iter().map(Node::api).collect(),
            mount: "relay".to_owned(),
            token: join::token(token)?,
            pin: Some(pin.to_owned()),
            name: self.daemon.id.parse()?,
            dir: self.credentials.clone(),
            force: false,
        };
        join::join(&params).await.with_context(|| format!("{} cannot join", self.daemon.id))?;
        Ok(())
    }
}

/// Makes mount and authority unless they are there, and waits until every node takes spokes. Gives the pin.
async fn authority(nodes: &Nodes, client: &Client) -> Result<String> {
    if client.read("sys/mounts").await?.data().get("relay/").is_none() {
        client.write("sys/mounts/relay", &json!({"type": "relay"})).await?;
    }
    let endpoint = nodes.iter().next().context("there is no node")?.relay();
    let hosts: Vec<_> =
        nodes.iter().filter_map(|node| node.relay().rsplit_once(':')).map(|(host, _)| host).collect();
    let answer = match client.read("relay/ca/info").await {
        Ok(known) => known,
        Err(error) if error.status() == Some(400) => {
            client.write("relay/ca/init", &json!({"hub_endpoint": endpoint, "hub_ip_sans": hosts})).await?
        }
        Err(error) => return Err(error.into()),
    };
    let pin =
        answer.data().get("ca_cert_hash").and_then(Value::as_str).context("there is no pin")?.to_owned();
    until("every node to take spokes", async || {
        for node in nodes.iter() {
            if !matches!(timeout(DIAL, TcpStream::connect(node.relay())).await, Ok(Ok(_))) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .await?;
    Ok(pin)
}
