//! `relay/spokes`: every spoke of the cluster and the node that holds its stream.
//!
//! What must hold: a node with no spoke and a node that is down both appear; a view of one node alone says so.

use std::collections::BTreeMap;

use holdfast_core::ownership::{Claim, NodeName};
use serde_json::{Map, Value, json};

use super::settings::STALE;
use crate::cluster::Member;
use crate::error::ApiError;
use crate::hub::Hub;
use crate::logical::{Operation, Request, Response};
use crate::wall;

/// What a reader of a partial view is told.
const PARTIAL: &str = "the active node did not answer; this view shows the streams of this node only";

/// The path inside the mount.
pub const PATH: &str = "spokes";

/// Answers `relay/spokes` on the active node.
pub fn handle(hub: &Hub, request: &Request) -> Result<Response, ApiError> {
    match request.operation {
        Operation::Read | Operation::List => Ok(Response::data(view(hub))),
        _ => Err(ApiError::unsupported_operation()),
    }
}

/// What a node that is not active shows when the active one does not answer.
pub fn partial(hub: &Hub) -> Response {
    Response::data(view(hub)).warn(PARTIAL)
}

/// Whether a path is that of the view.
pub fn is_view(hub: &Hub, operation: Operation, path: &str) -> bool {
    if !matches!(operation, Operation::Read | Operation::List) {
        return false;
    }
    let route = hub.mounts.route(path.trim_end_matches('/')).ok().flatten();
    route.is_some_and(|route| route.mount.kind == super::KIND && route.rest == PATH)
}

struct Row {
    claim: Claim,
    node: NodeName,
    reachable: bool,
}

/// The view of this node: of the whole cluster while it is active, else of its own streams.
pub fn view(hub: &Hub) -> Map<String, Value> {
    let spokes = &hub.spokes;
    let cluster = hub.cluster.view();
    let active = cluster.leader.as_ref().map(|leader| leader.node.0.clone());
    let active = if cluster.active.is_some() { Some(spokes.own.to_string()) } else { active };
    let partial = cluster.active.is_none();
    let members: BTreeMap<_, _> =
        hub.cluster.members().into_iter().map(|member| (member.node.0.clone(), member)).collect();
    let rows = rows(hub, partial);
    let listed: Vec<_> = rows.iter().map(|row| spoke(row, &members, active.as_deref())).collect();
    let healthy = rows.iter().filter(|row| row.claim.seen_age <= STALE).count();
    let nodes = nodes(hub, &members, &rows, active.as_deref());
    let mut view = Map::new();
    view.insert("connected_count".into(), listed.len().into());
    view.insert("healthy_count".into(), healthy.into());
    view.insert("spokes".into(), listed.into());
    view.insert("listener_port".into(), hub.relay.listener.port().unwrap_or(0).into());
    view.insert("stale_after_seconds".into(), STALE.as_secs().into());
    view.insert("hub_node_count".into(), nodes.len().into());
    view.insert("hub_nodes".into(), nodes.into());
    view.insert("partial".into(), partial.into());
    view
}

fn rows(hub: &Hub, partial: bool) -> Vec<Row> {
    let own = &hub.spokes.own;
    let mut rows = hub.spokes.with_registry(|registry, now| {
        let shown = registry.entries(now).filter(|entry| !partial || entry.node == own);
        shown
            .map(|entry| Row { claim: entry.claim, node: entry.node.clone(), reachable: entry.reachable })
            .collect::<Vec<_>>()
    });
    for row in rows.iter_mut().filter(|row| row.node == *own) {
        if let Some(stream) = hub.spokes.local(&row.claim.spoke) {
            // What the stream itself saw is newer than its last heartbeat.
            row.claim.seen_age = stream.seen_age(hub.spokes.now());
        }
    }
    rows
}

fn spoke(row: &Row, members: &BTreeMap<String, Member>, active: Option<&str>) -> Value {
    let now = wall::now_unix();
    let ago = |age: std::time::Duration| now - i64::try_from(age.as_secs()).unwrap_or(0);
    let member = members.get(row.node.as_str());
    let active = active == Some(row.node.as_str());
    json!({
        "name": row.claim.spoke.as_str(),
        "connected_at_unix": ago(row.claim.connected_age),
        "last_seen_unix": ago(row.claim.seen_age),
        "last_seen_seconds": row.claim.seen_age.as_secs(),
        "healthy": row.claim.seen_age <= STALE,
        "node_cluster_addr": member.map_or("", |m| m.address.cluster.as_str()),
        "node_id": row.node.as_str(),
        "node_is_active": active,
        "node_reachable": row.reachable && member.is_some_and(|m| m.reachable),
        "session_epoch": row.claim.stamp.epoch.into_inner(),
        "cert_not_after": row.claim.cert_not_after,
    })
}

fn nodes(hub: &Hub, members: &BTreeMap<String, Member>, rows: &[Row], active: Option<&str>) -> Vec<Value> {
    let announced: BTreeMap<String, Option<u64>> = hub.spokes.with_registry(|registry, now| {
        let peers = registry.peers(now);
        peers.map(|peer| (peer.node.to_string(), peer.last_announce.map(|age| age.as_secs()))).collect()
    });
    let node = |member: &Member| {
        let name = NodeName::new(&member.node.0);
        json!({
            "cluster_addr": member.address.cluster,
            "node_id": member.node.0,
            "is_active": active == Some(member.node.0.as_str()),
            "spoke_count": rows.iter().filter(|row| row.node == name).count(),
            "reachable": member.reachable,
            "last_announce_seconds": announced.get(&member.node.0).copied().flatten(),
            "listener_error": hub.spokes.listener_error(&name),
        })
    };
    members.values().map(node).collect()
}
