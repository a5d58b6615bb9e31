//! `status`: seal, leadership and store of the addressed node.

use std::process::ExitCode;

use holdfast_client::Answer;
use serde_json::{Map, Value};

use super::{Outcome, Session};
use crate::output::Failure;

/// Prints the status; the exit code tells a script whether the node is sealed.
pub async fn run(session: &Session) -> Outcome {
    // 2 is kept for a sealed node, so that scripts can tell it from a node that does not answer.
    let failed = |error| Failure::from(error).coded(Failure::LOCAL);
    let seal = session.client.read("sys/seal-status").await.map_err(failed)?;
    let sealed = seal.member("sealed").as_bool().unwrap_or(true);
    let mut body = seal.body.as_object().cloned().unwrap_or_default();
    if !sealed && let Ok(leader) = session.client.read("sys/leader").await {
        body.extend(leader.body.as_object().cloned().unwrap_or_default());
    }
    if session.print.json {
        session.print.value(&Value::Object(body));
    } else {
        session.print.pairs(rows(&body));
    }
    Ok(ExitCode::from(if sealed { 2 } else { 0 }))
}

/// Prints the answer of an unseal step.
pub fn print_seal(session: &Session, answer: &Answer) {
    let body = answer.body.as_object().cloned().unwrap_or_default();
    if session.print.json { session.print.value(&answer.body) } else { session.print.pairs(rows(&body)) }
}

fn rows(body: &Map<String, Value>) -> Vec<(String, Value)> {
    const ROWS: [(&str, &str); 15] = [
        ("type", "Seal Type"),
        ("initialized", "Initialized"),
        ("sealed", "Sealed"),
        ("n", "Total Shares"),
        ("t", "Threshold"),
        ("progress", "Unseal Progress"),
        ("version", "Version"),
        ("storage_type", "Storage Type"),
        ("cluster_name", "Cluster Name"),
        ("cluster_id", "Cluster ID"),
        ("is_self", "Active"),
        ("leader_address", "Active Node Address"),
        ("raft_committed_index", "Raft Committed Index"),
        ("raft_applied_index", "Raft Applied Index"),
        ("audit_working", "Audit Working"),
    ];
    let shown =
        ROWS.iter().filter_map(|(key, label)| body.get(*key).map(|v| ((*label).to_owned(), v.clone())));
    shown.collect()
}
