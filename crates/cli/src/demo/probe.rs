//! What is asked again and again while the active node goes away: who is active, where the spokes are, and logins.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use holdfast_client::Client;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::dev::platform::{Card, Login, NodeCard};

/// Between two questions of a kind.
const EVERY: Duration = Duration::from_millis(50);
/// How long a node may take to say whether it is active.
const HEALTH: Duration = Duration::from_millis(500);
/// How long any other answer may take; longer than a request is held while nobody is active.
const PATIENCE: Duration = Duration::from_secs(15);

/// Where a spoke's stream ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Place {
    /// The node.
    pub node: String,
    /// The number of the stream; a spoke that dials again has a greater one.
    pub epoch: u64,
}

/// A login that was asked for.
pub struct Attempt {
    /// Which role.
    pub path: String,
    /// When it was asked for.
    pub asked: Instant,
    /// When the answer came.
    pub answered: Instant,
    /// The lease, or why there is none.
    pub outcome: Result<String, String>,
}

/// All that was seen. Written by the probes, read by the one who waits.
#[derive(Default)]
pub struct Seen {
    /// The first time at which another node said that it is active, with its name.
    pub leader: Option<(String, Instant)>,
    /// The first time at which the new active node knew a spoke, and where.
    pub known: BTreeMap<String, (Place, Instant)>,
    /// Every login.
    pub logins: Vec<Attempt>,
    /// The node that was killed, and when.
    pub killed: Option<(String, Instant)>,
    /// No more questions.
    pub over: bool,
}

impl Seen {
    /// The first login through a role that was asked for after the node was killed and given.
    pub fn routable(&self, path: &str) -> Option<&Attempt> {
        let (_, killed) = self.killed.as_ref()?;
        self.logins.iter().find(|l| l.path == path && l.asked >= *killed && l.outcome.is_ok())
    }
}

/// A client as root.
pub fn client(card: &Card, nodes: &[NodeCard], timeout: Duration) -> Result<Client> {
    Ok(Client::builder()
        .addresses(nodes.iter().map(|node| node.api.clone()))
        .token(Some(card.root_token.clone()))
        .timeout(timeout)
        .build()?)
}

/// A client as root that waits as long as an answer may take.
pub fn patient(card: &Card, nodes: &[NodeCard]) -> Result<Client> {
    client(card, nodes, PATIENCE)
}

/// Where every spoke is, as the active node knows it; none when the answer is another node's own view.
pub async fn places(client: &Client) -> Option<BTreeMap<String, Place>> {
    let view = client.read("relay/spokes").await.ok()?;
    if view.data().get("partial") == Some(&Value::Bool(true)) {
        return None;
    }
    let entries = view.data().get("spokes").and_then(Value::as_array)?;
    let place = |entry: &Value| {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        let reachable = entry.get("node_reachable") == Some(&Value::Bool(true));
        let epoch = entry.get("session_epoch").and_then(Value::as_u64).unwrap_or(0);
        reachable.then_some(())?;
        Some((text("name")?, Place { node: text("node_id")?, epoch }))
    };
    Some(entries.iter().filter_map(place).collect())
}

/// The node that says that it is active.
pub async fn active(card: &Card, nodes: &[NodeCard]) -> Option<NodeCard> {
    for node in nodes {
        let Ok(client) = client(card, std::slice::from_ref(node), HEALTH) else { continue };
        if client.read("sys/health").await.is_ok() {
            return Some(node.clone());
        }
    }
    None
}

/// Asks the survivors who is active until one says so.
pub async fn leader(card: &Card, survivors: &[NodeCard], seen: &RefCell<Seen>) {
    while !seen.borrow().over && seen.borrow().leader.is_none() {
        if seen.borrow().killed.is_some()
            && let Some(node) = active(card, survivors).await
        {
            seen.borrow_mut().leader = Some((node.node, Instant::now()));
        }
        sleep(EVERY).await;
    }
}

/// Asks for the places of all spokes once there is another leader.
pub async fn spokes(client: &Client, seen: &RefCell<Seen>) {
    while !seen.borrow().over {
        let led = seen.borrow().leader.is_some();
        if led && let Some(now) = places(client).await {
            let mut seen = seen.borrow_mut();
            let gone = seen.killed.as_ref().map(|(node, _)| node.clone());
            // A stream on the node that was killed is nobody's any more.
            for (name, place) in now.into_iter().filter(|(_, place)| Some(&place.node) != gone.as_ref()) {
                seen.known.entry(name).or_insert((place, Instant::now()));
            }
        }
        sleep(EVERY).await;
    }
}

/// Asks for a login again and again, through all nodes as a client does that knows them.
pub async fn logins(client: &Client, login: &Login, seen: &RefCell<Seen>) {
    while !seen.borrow().over {
        let asked = Instant::now();
        let answer = client.read(&login.path).await;
        let outcome = match answer {
            Ok(answer) => match answer.member("lease_id").as_str() {
                Some(lease) => Ok(lease.to_owned()),
                None => Err("an answer without a lease".to_owned()),
            },
            Err(error) => Err(format!("{:#}", anyhow::Error::from(error))),
        };
        let path = login.path.clone();
        seen.borrow_mut().logins.push(Attempt { path, asked, answered: Instant::now(), outcome });
        sleep(EVERY).await;
    }
}
