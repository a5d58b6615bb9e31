//! What a node tells of itself in any state: health, seal status, leader, initialisation, unsealing, joining.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::head::Head;
use super::place::{Bootstrap, Open};
use crate::barrier::seal::SealType;
use crate::cluster::View;
use crate::error::ApiError;
use crate::logical::data::parse_bool;
use crate::logical::{Data, Response};
use crate::node::challenge::Answer;
use crate::node::init::InitParams;
use crate::node::join::JoinParams;
use crate::node::unseal::decode_share;
use crate::node::{Node, State};
use crate::wall;

/// The version that answers show.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// When the program was built, where the build says so.
const BUILD_DATE: &str = match option_env!("HOLDFAST_BUILD_DATE") {
    Some(date) => date,
    None => "1970-01-01T00:00:00Z",
};

/// Answers one of the open paths.
pub async fn answer(
    node: &Arc<Node>,
    draining: bool,
    open: Open,
    head: &Head,
    data: &Data,
) -> Result<Response, ApiError> {
    match open {
        Open::Health => health(node, draining, head),
        Open::SealStatus => Ok(seal_status(node)),
        Open::Leader => leader(node),
        Open::InitStatus => {
            let initialised = !matches!(node.state(), State::Uninitialised);
            Ok(Response::json(200, json!({ "initialized": initialised })))
        }
        Open::Init => init(node, data).await,
        Open::Unseal => unseal(node, data).await,
        Open::Join => {
            node.join(JoinParams::parse(data)?).await?;
            Ok(Response::json(200, json!({ "joined": true })))
        }
    }
}

/// Answers the cluster's side of a join; the node is unsealed and active.
pub async fn bootstrap(node: &Arc<Node>, step: Bootstrap, data: Data) -> Result<Response, ApiError> {
    let reply = match step {
        Bootstrap::Challenge => {
            let server_id = data.required("server_id", "server_id must be specified")?;
            let nonce = data.string("nonce")?.unwrap_or_default();
            serde_json::to_value(node.challenge(&server_id, &nonce)?)
        }
        Bootstrap::Answer => {
            let answer: Answer = serde_json::from_value(Value::Object(data.into_map()))
                .map_err(|_| ApiError::invalid("server_id, answer and cluster_addr must be specified"))?;
            serde_json::to_value(node.admit(answer).await?)
        }
    };
    match reply.map_err(ApiError::internal)? {
        Value::Object(map) => Ok(Response::data(map)),
        _ => Err(ApiError::internal("a reply is always an object")),
    }
}

/// What `?help=1` answers: the family of paths, so that it tells nothing of mounts.
pub fn help(path: &str) -> Response {
    let text = match path.split('/').next().unwrap_or("") {
        "sys" => "Paths of the system: mounts, login methods, policies, leases, audit, quotas, the cluster.",
        "auth" => "Paths of login methods; auth/token/ is always there.",
        "cubbyhole" => "A store of its own for each token: read, write, list and delete cubbyhole/<path>.",
        _ => "A path of a mount. GET sys/internal/ui/mounts tells which mounts a token can use.",
    };
    Response::json(200, json!({ "help": text }))
}

fn health(node: &Arc<Node>, draining: bool, head: &Head) -> Result<Response, ApiError> {
    let codes = Codes::parse(head)?;
    let (state, view) = (node.state(), view(node));
    let unsealed = matches!(state, State::Unsealed(_));
    let active = view.active.is_some();
    let status = if view.removed {
        codes.removed
    } else if matches!(state, State::Uninitialised) {
        codes.uninitialised
    } else if !unsealed || !view.storage_healthy || draining {
        codes.sealed
    } else if active || codes.standby_ok {
        codes.active
    } else {
        codes.standby
    };
    let seal = node.seal_public().filter(|_| unsealed);
    let mut body = json!({
        "initialized": !matches!(state, State::Uninitialised),
        "sealed": !unsealed,
        "standby": !active,
        "performance_standby": false,
        "replication_performance_mode": "disabled",
        "replication_dr_mode": "disabled",
        "server_time_utc": wall::now_unix(),
        "version": VERSION,
        "storage_healthy": unsealed && view.storage_healthy,
    });
    if let Some(map) = body.as_object_mut() {
        if let Some(seal) = seal {
            map.insert("cluster_name".to_owned(), seal.cluster_name.into());
            map.insert("cluster_id".to_owned(), seal.cluster_id.into());
        }
        if view.removed {
            map.insert("removed_from_cluster".to_owned(), true.into());
        }
    }
    Ok(Response::json(status, body))
}

/// The statuses of the health answer, as the caller wants them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Codes {
    active: u16,
    standby: u16,
    sealed: u16,
    uninitialised: u16,
    removed: u16,
    standby_ok: bool,
}

impl Codes {
    fn parse(head: &Head) -> Result<Self, ApiError> {
        let field =
            |name: &str| head.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let code = |name: &str, default: u16| match field(name) {
            None | Some("") => Ok(default),
            Some(text) => {
                let parsed = text.parse().ok().filter(|code| (200..=599).contains(code));
                parsed.ok_or_else(|| {
                    ApiError::invalid(format!("{name} must be an HTTP status from 200 to 599"))
                })
            }
        };
        let flag = |name: &str| match field(name) {
            None => Ok(false),
            Some("") => Ok(true),
            Some(text) => {
                parse_bool(text).ok_or_else(|| ApiError::invalid(format!("{name} must be a boolean")))
            }
        };
        // Accepted for the sake of clients; there is no such node here.
        code("drsecondarycode", 472)?;
        code("performancestandbycode", 473)?;
        Ok(Self {
            active: code("activecode", 200)?,
            standby: code("standbycode", 429)?,
            sealed: code("sealedcode", 503)?,
            uninitialised: code("uninitcode", 501)?,
            removed: code("removedcode", 530)?,
            standby_ok: flag("standbyok")? | flag("perfstandbyok")?,
        })
    }
}

/// The view of an unsealed node; of any other one that takes no part.
fn view(node: &Arc<Node>) -> View {
    node.running().map_or_else(View::default, |running| running.hub.cluster.view())
}

fn seal_status(node: &Arc<Node>) -> Response {
    let state = node.state();
    let unsealed = matches!(state, State::Unsealed(_));
    let seal = node.seal_public();
    let kind = seal.as_ref().map_or(node.shared.config.seal.kind, |seal| seal.seal);
    let (progress, nonce) = node.unseal_progress();
    let (n, t) = seal.as_ref().map_or((0, 0), |seal| (seal.shares, seal.threshold));
    let mut body = json!({
        "type": kind.name(),
        "initialized": seal.is_some(),
        "sealed": !unsealed,
        "t": t,
        "n": n,
        "progress": progress,
        "nonce": nonce,
        "version": VERSION,
        "build_date": BUILD_DATE,
        "commit_date": BUILD_DATE,
        "migration": false,
        "recovery_seal": kind == SealType::Keyfile,
        "storage_type": "raft",
    });
    if let (Some(map), Some(seal), true) = (body.as_object_mut(), seal, unsealed) {
        map.insert("cluster_name".to_owned(), seal.cluster_name.into());
        map.insert("cluster_id".to_owned(), seal.cluster_id.into());
    }
    // Only then: who knows the body from elsewhere finds it as it is there.
    if let (Some(map), State::Unsealed(running)) = (body.as_object_mut(), &state)
        && !running.hub.audit.works()
    {
        map.insert("audit_working".to_owned(), false.into());
    }
    Response::json(200, body)
}

fn leader(node: &Arc<Node>) -> Result<Response, ApiError> {
    let running = node.running().ok_or_else(ApiError::sealed)?;
    let view = running.hub.cluster.view();
    let since = view.active.and(view.active_since).map(wall::rfc3339_unix);
    let (api, cluster) =
        view.leader.map(|leader| (leader.address.api, leader.address.cluster)).unwrap_or_default();
    let body = json!({
        "ha_enabled": true,
        "is_self": view.active.is_some(),
        "active_time": since.unwrap_or_else(|| "0001-01-01T00:00:00Z".to_owned()),
        "leader_address": api,
        "leader_cluster_address": cluster,
        "performance_standby": false,
        "performance_standby_last_remote_wal": 0,
        "raft_committed_index": view.committed_index,
        "raft_applied_index": view.applied_index,
    });
    Ok(Response::json(200, body))
}

async fn init(node: &Arc<Node>, data: &Data) -> Result<Response, ApiError> {
    if !matches!(node.state(), State::Uninitialised) {
        return Err(ApiError::invalid("Vault is already initialized"));
    }
    let kind = node.shared.config.seal.kind;
    let made = node.init(InitParams::parse(kind, data)?).await?;
    let (hex, base64) = (made.keys_hex(), made.keys_base64());
    let mut body = Map::new();
    let (own, other) = match kind {
        SealType::Shamir => ("keys", None),
        SealType::Keyfile => ("recovery_keys", Some("keys")),
    };
    body.insert(own.to_owned(), hex.into());
    body.insert(format!("{own}_base64"), base64.into());
    if let Some(other) = other {
        body.insert(other.to_owned(), json!([]));
        body.insert(format!("{other}_base64"), json!([]));
    }
    body.insert("root_token".to_owned(), secrecy::ExposeSecret::expose_secret(&made.root_token).into());
    Ok(Response::json(200, Value::Object(body)))
}

async fn unseal(node: &Arc<Node>, data: &Data) -> Result<Response, ApiError> {
    if data.bool("reset")?.unwrap_or(false) {
        node.unseal_reset();
        return Ok(seal_status(node));
    }
    let missing = "'key' must be specified in request body as JSON, or 'reset' set to true";
    let key = data.string("key")?.map(zeroize::Zeroizing::new).filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| ApiError::invalid(missing))?;
    node.unseal(decode_share(&key)?).await?;
    Ok(seal_status(node))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;

    fn codes(query: &str) -> Result<Codes, ApiError> {
        Codes::parse(&Head::parse(&Method::GET, "/v1/sys/health", Some(query), &HeaderMap::new()).unwrap())
    }

    #[test]
    fn health_codes_can_be_overridden_one_by_one() {
        let defaults = codes("").unwrap();
        assert_eq!(
            (defaults.active, defaults.standby, defaults.sealed, defaults.uninitialised, defaults.removed),
            (200, 429, 503, 501, 530)
        );
        let all =
            codes("activecode=201&standbycode=202&sealedcode=203&uninitcode=204&removedcode=205").unwrap();
        assert_eq!(
            (all.active, all.standby, all.sealed, all.uninitialised, all.removed),
            (201, 202, 203, 204, 205)
        );
        assert!(codes("standbyok").unwrap().standby_ok && codes("perfstandbyok=true").unwrap().standby_ok);
        assert!(!codes("standbyok=false").unwrap().standby_ok);
        for bad in
            ["activecode=x", "drsecondarycode=1.5", "sealedcode=99", "standbycode=1000", "standbyok=maybe"]
        {
            assert_eq!(codes(bad).unwrap_err().status(), 400, "{bad}");
        }
    }
}
