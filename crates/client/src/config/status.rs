//! What a replica says of itself to an operator, `GET /v1/status`.

use serde::Deserialize;

use super::error::Error;
use super::shared::Shared;
use super::transport::{Call, MAX_BODY, collect};

/// What a replica says of itself. Fields that a version does not send are empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Status {
    /// The name of the node.
    pub node: String,
    /// The version of the program.
    pub version: String,
    /// `priming`, `ready` or `draining`.
    pub state: String,
    /// Names the process.
    pub boot: String,
    /// The configuration that it runs.
    pub config: ConfigStatus,
    /// Its backends.
    pub upstreams: Vec<UpstreamStatus>,
    /// Its bindings.
    pub bindings: Vec<BindingStatus>,
    /// Why the last reload was refused.
    pub last_reload_error: Option<String>,
}

/// Which configuration a replica runs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ConfigStatus {
    /// Counts the configurations that were applied.
    pub generation: u64,
    /// The digest of all that must be alike.
    pub digest: String,
    /// The digest of its bindings.
    pub bindings_digest: String,
    /// The digest of its policy.
    pub policy_digest: String,
}

/// One backend of a replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct UpstreamStatus {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: String,
    /// How it failed last.
    pub last_error_kind: Option<String>,
}

/// One binding of a replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct BindingStatus {
    /// Its name.
    pub name: String,
    /// The digest of its reference and options.
    pub ref_digest: String,
    /// `fresh`, `stale`, `failed` or `pending`.
    pub state: String,
    /// How its upstream currently fails.
    pub kind: Option<String>,
    /// The upstream's version of its value.
    pub version: Option<String>,
    /// When its value was last confirmed, RFC 3339.
    pub resolved_at: Option<String>,
    /// How old that is, in milliseconds.
    pub age_ms: Option<u64>,
    /// The keyed digest of its value, where the fleet has a key.
    pub value_digest: Option<String>,
}

impl Shared {
    /// Asks one endpoint for its status.
    pub async fn status(&self, endpoint: usize) -> Result<Status, Error> {
        let Some(link) = self.links.get(endpoint) else {
            return Err(self.unreachable(endpoint, "there is no such endpoint"));
        };
        let sent = link.send(Call::get("/v1/status".to_owned()));
        let work = async {
            let broken = |error: super::transport::Broken| self.unreachable(endpoint, &error.to_string());
            let reply = sent.await.map_err(broken)?;
            if reply.status != 200 {
                return Err(self.refusal(endpoint, reply).await);
            }
            let body = collect(reply, MAX_BODY).await.map_err(broken)?;
            serde_json::from_slice(&body).map_err(|_| self.unreachable(endpoint, "the answer is no status"))
        };
        let late = |_| Err(self.unreachable(endpoint, "the deadline of the attempt passed"));
        tokio::time::timeout(self.attempt_timeout, work).await.unwrap_or_else(late)
    }
}
