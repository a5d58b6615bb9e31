//! `sys/step-down`, `sys/ha-status` and `sys/storage/raft/`: the cluster as operators see and change it.

use serde_json::{Map, Value, json};

use crate::cluster::{Member, NodeName};
use crate::error::ApiError;
use crate::logical::{Cx, Operation, Request, Response};
use crate::node::challenge::cluster_error;
use crate::wall;

/// What clients expect here; the raft protocol has no version they could use.
const PROTOCOL_VERSION: &str = "3";

/// Answers `PUT sys/step-down`.
pub async fn handle_step_down(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    if request.operation != Operation::Write {
        return Err(ApiError::unsupported_operation());
    }
    cx.hub.handover.step_down(&*cx.hub.cluster, 1).await.map_err(cluster_error)?;
    Ok(Response::no_content())
}

/// Answers `GET sys/ha-status`.
pub fn handle_ha_status(cx: &Cx, request: &Request) -> Result<Response, ApiError> {
    if request.operation != Operation::Read {
        return Err(ApiError::unsupported_operation());
    }
    let nodes: Vec<Value> = cx.hub.cluster.members().iter().map(status).collect();
    Ok(Response::mirrored(Map::from_iter([("nodes".to_owned(), Value::from(nodes))])))
}

/// Answers what stands under `sys/storage/raft/`, backups aside.
pub async fn handle_raft(cx: &Cx, rest: &str, request: &Request) -> Result<Response, ApiError> {
    let cluster = &cx.hub.cluster;
    match (rest, request.operation) {
        ("configuration", Operation::Read) => return Ok(configuration(cx)),
        ("remove-peer" | "promote" | "demote", Operation::Write) => {}
        ("configuration" | "remove-peer" | "promote" | "demote", _) => {
            return Err(ApiError::unsupported_operation());
        }
        _ => return Err(ApiError::unsupported_path()),
    }
    let node = NodeName(request.data.required("server_id", "server_id must be specified")?);
    let changed = match rest {
        "remove-peer" => cluster.remove(&node).await,
        "promote" => cluster.promote(&node).await,
        _ => cluster.demote(&node).await,
    };
    changed.map_err(cluster_error)?;
    Ok(Response::no_content())
}

fn configuration(cx: &Cx) -> Response {
    let cluster = &cx.hub.cluster;
    let servers: Vec<Value> = cluster.members().iter().map(server).collect();
    let config = json!({ "index": cluster.membership_index(), "servers": servers });
    Response::data(Map::from_iter([("config".to_owned(), config)]))
}

fn server(member: &Member) -> Value {
    json!({
        "node_id": member.node,
        "address": member.address.cluster,
        "leader": member.leader,
        "voter": member.voter,
        "protocol_version": PROTOCOL_VERSION,
    })
}

fn status(member: &Member) -> Value {
    let echo = member.last_echo_ms.map(|age| {
        let age = i64::try_from(age).unwrap_or(i64::MAX) / 1000;
        wall::rfc3339_unix(wall::now_unix().saturating_sub(age))
    });
    json!({
        "hostname": member.node,
        "api_address": member.address.api,
        "cluster_address": member.address.cluster,
        "active_node": member.leader,
        "last_echo": echo.filter(|_| !member.leader),
        "version": member.version,
        "reachable": member.reachable,
    })
}

#[cfg(test)]
mod tests {
    use crate::cluster::{NodeAddress, NodeName};
    use crate::logical::Body;
    use crate::testing::{hub, request};

    use super::*;

    fn data(response: Response) -> Map<String, Value> {
        match response.body {
            Body::Logical(logical) => logical.data.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn members_are_listed_changed_and_removed() {
        let (_, _, cx) = hub();
        let address = NodeAddress { cluster: "127.0.0.1:8301".into(), api: "http://127.0.0.1:8300".into() };
        cx.hub.cluster.add(NodeName("node-2".into()), address, true).await.unwrap();
        let voters = |cx: &Cx| {
            let config = data(configuration(cx));
            let servers = config["config"]["servers"].as_array().unwrap().clone();
            servers.iter().map(|s| s["voter"] == true).collect::<Vec<_>>()
        };
        assert_eq!(voters(&cx), [true, false]);
        let ask = |rest, id| request(Operation::Write, "sys/", rest, json!({ "server_id": id }));
        handle_raft(&cx, "promote", &ask("storage/raft/promote", "node-2")).await.unwrap();
        assert_eq!(voters(&cx), [true, true]);
        handle_raft(&cx, "remove-peer", &ask("storage/raft/remove-peer", "node-2")).await.unwrap();
        assert_eq!(voters(&cx), [true]);
        let again = handle_raft(&cx, "remove-peer", &ask("storage/raft/remove-peer", "node-2")).await;
        assert_eq!(again.unwrap_err().status(), 400);
        let status =
            handle_ha_status(&cx, &request(Operation::Read, "sys/", "ha-status", json!({}))).unwrap();
        assert_eq!(data(status)["nodes"][0]["active_node"], true);
    }
}
