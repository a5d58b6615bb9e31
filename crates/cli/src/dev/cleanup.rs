//! The logins that a platform leaves behind, and their end while there is still somebody who knows of them.

use std::time::Duration;

use anyhow::Result;
use futures_util::future::join_all;
use holdfast_client::{Client, ClientError};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::nodes::Nodes;
use super::setup::{Access, retriable};

/// How long it may take: a login that a killed node left half-made is removed 5 s after its time was over.
const WITHIN: Duration = Duration::from_secs(40);
/// Between looks. The hub works on what is half-made once a second.
const LOOK: Duration = Duration::from_millis(1200);

/// Removes what was made in the database.
pub struct Cleanup {
    cluster: Client,
    nodes: Vec<Client>,
}

impl Cleanup {
    /// For logins of these nodes.
    pub fn new(nodes: &Nodes, access: &Access) -> Result<Self> {
        Ok(Self { cluster: access.client(nodes)?, nodes: access.each(nodes)? })
    }

    /// Revokes all logins and waits until no user is left. Why not, if not.
    pub async fn run(&self) -> Result<(), String> {
        match timeout(WITHIN, self.until_quiet()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it was not done in time".to_owned()),
        }
    }

    /// What was asked for just before is under way now: only a second look says that there is nothing.
    async fn until_quiet(&self) -> Result<(), ClientError> {
        let mut quiet = 0;
        while quiet < 2 {
            if quiet > 0 {
                sleep(LOOK).await;
            }
            match self.look().await {
                Ok(true) => quiet += 1,
                Ok(false) => quiet = 0,
                Err(error) if retriable(&error) => quiet = 0,
                Err(error) => return Err(error),
            }
            if quiet == 0 {
                sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// Whether nothing was half-made before everything that was made was revoked.
    async fn look(&self) -> Result<bool, ClientError> {
        let shown = join_all(self.nodes.iter().map(|node| node.text("sys/metrics"))).await;
        // Only the active node knows of intents: without its word nothing is known.
        let known = shown.iter().flatten().any(|text| is_active(text));
        let quiet = known && !shown.iter().flatten().any(|text| is_making(text));
        self.cluster.write("sys/leases/revoke-prefix/database/creds", &json!({"sync": true})).await?;
        Ok(quiet)
    }
}

/// Whether the metrics are those of the active node.
fn is_active(metrics: &str) -> bool {
    metrics.lines().any(|line| line == "holdfast_hub_active 1")
}

/// Whether a node's metrics tell of users that it is making or has not removed yet. One that is only verified is gone.
fn is_making(metrics: &str) -> bool {
    let intents = metrics.lines().filter_map(|line| line.strip_prefix("holdfast_hub_intents{"));
    let counts = intents.filter(|rest| !rest.contains("\"verify\"")).filter_map(|rest| rest.rsplit_once(' '));
    counts.into_iter().any(|(_, count)| count != "0")
}

#[cfg(test)]
mod tests {
    use super::{is_active, is_making};

    #[test]
    fn users_that_are_half_made_are_waited_for_and_removed_ones_are_not() {
        let shown = |open, sweep, verify| {
            format!(
                "# TYPE holdfast_hub_intents gauge\nholdfast_hub_intents{{state=\"open\"}} {open}\n\
                 holdfast_hub_intents{{state=\"sweep\"}} {sweep}\n\
                 holdfast_hub_intents{{state=\"verify\"}} {verify}\nholdfast_hub_active 1\n"
            )
        };
        assert!(!is_making(&shown(0, 0, 3)) && !is_making("holdfast_hub_active 1\n"));
        assert!(is_active(&shown(0, 0, 0)) && !is_active("holdfast_hub_active 0\n"));
        assert!(is_making(&shown(1, 0, 0)) && is_making(&shown(0, 12, 0)));
    }
}
