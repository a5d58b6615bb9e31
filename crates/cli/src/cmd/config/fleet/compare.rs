//! In what replicas differ.
//!
//! What must hold: replicas are alike exactly when their digests are; each difference names the binding and the nodes.
//! Values that differ for a moment, or by age, are no difference of what the replicas are told to do, so a lag is told
//! and does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_client::config::{BindingStatus, Status};
use serde_json::{Value as Json, json};

use super::super::show::span;
use super::{Replica, short};

/// Two polls at the default pace, and two confirmations of a watch: what is older lags.
const LAG: u64 = 120_000;

/// One difference.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Difference {
    /// Of which sort: `unreachable`, `state`, `missing`, `ref`, `policy`, `settings`, `value`, `lag` or `twice`.
    pub sort: &'static str,
    /// The binding, where it is about one.
    pub binding: Option<String>,
    /// For people.
    pub text: String,
    /// Whether the replicas are not alike, or not ready, because of it.
    pub matters: bool,
}

impl Difference {
    fn new(sort: &'static str, binding: Option<&str>, text: String) -> Self {
        let matters = !matches!(sort, "lag" | "twice");
        Self { sort, binding: binding.map(str::to_owned), text, matters }
    }

    /// As JSON.
    pub fn json(&self) -> Json {
        json!({ "sort": self.sort, "binding": self.binding, "text": self.text, "matters": self.matters })
    }
}

/// A replica that answered.
struct Node<'a> {
    name: &'a str,
    status: &'a Status,
    bindings: BTreeMap<&'a str, &'a BindingStatus>,
}

/// All differences: of the replicas first, then of each binding.
pub fn compare(replicas: &[Replica]) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut nodes = Vec::new();
    for replica in replicas {
        match &replica.said {
            Err(error) => found.push(Difference::new("unreachable", None, format!("no status: {error}"))),
            Ok(status) => {
                let bindings = status.bindings.iter().map(|binding| (binding.name.as_str(), binding));
                nodes.push(Node { name: replica.name(), status, bindings: bindings.collect() });
            }
        }
    }
    for node in nodes.iter().filter(|node| node.status.state != "ready") {
        found.push(Difference::new("state", None, format!("{} is {}", node.name, node.status.state)));
    }
    twice(&nodes, &mut found);
    policy(&nodes, &mut found);
    let names: BTreeSet<&str> = nodes.iter().flat_map(|node| node.bindings.keys().copied()).collect();
    names.into_iter().for_each(|name| binding(name, &nodes, &mut found));
    settings(&nodes, &mut found);
    found
}

/// Endpoints behind which is one process: the comparison then says less than it seems.
fn twice(nodes: &[Node<'_>], found: &mut Vec<Difference>) {
    let mut boots = BTreeSet::new();
    for node in nodes.iter().filter(|node| !node.status.boot.is_empty()) {
        if !boots.insert(&node.status.boot) {
            let text = format!("{} answers at more than one endpoint", node.name);
            found.push(Difference::new("twice", None, text));
        }
    }
}

fn policy(nodes: &[Node<'_>], found: &mut Vec<Difference>) {
    if let Some(text) = differs(nodes, |node| Some(&node.status.config.policy_digest)) {
        found.push(Difference::new("policy", None, format!("policy differs: {text}")));
    }
}

/// Digests that differ without a difference found so far: no such replicas are alike, whatever it is.
fn settings(nodes: &[Node<'_>], found: &mut Vec<Difference>) {
    let explained = found.iter().any(|one| matches!(one.sort, "missing" | "ref" | "policy"));
    let Some(text) = differs(nodes, |node| Some(&node.status.config.digest)).filter(|_| !explained) else {
        return;
    };
    let bindings = differs(nodes, |node| Some(&node.status.config.bindings_digest));
    let what = if bindings.is_some() { "options of bindings" } else { "defaults or limits" };
    found.push(Difference::new("settings", None, format!("{what} differ: {text}")));
}

fn binding(name: &str, nodes: &[Node<'_>], found: &mut Vec<Difference>) {
    for node in nodes.iter().filter(|node| !node.bindings.contains_key(name)) {
        let text = format!("binding {name}: missing on {}", node.name);
        found.push(Difference::new("missing", Some(name), text));
    }
    if let Some(text) = differs(nodes, |node| Some(&node.bindings.get(name)?.ref_digest)) {
        found.push(Difference::new("ref", Some(name), format!("binding {name}: ref differs: {text}")));
        // Another source has other values.
        return;
    }
    if let Some(text) = differs(nodes, |node| node.bindings.get(name)?.value_digest.as_deref()) {
        found.push(Difference::new("value", Some(name), format!("binding {name}: value differs: {text}")));
    }
    lag(name, nodes, found);
}

fn lag(name: &str, nodes: &[Node<'_>], found: &mut Vec<Difference>) {
    let ages = nodes.iter().filter_map(|node| Some((node.bindings.get(name)?.age_ms?, node.name)));
    let ages: Vec<_> = ages.collect();
    let (Some((newest, first)), Some((oldest, last))) = (ages.iter().min(), ages.iter().max()) else {
        return;
    };
    let behind = oldest.saturating_sub(*newest);
    if behind > LAG {
        let behind = span(Duration::from_millis(behind));
        let text = format!("binding {name}: {last} is {behind} behind {first}");
        found.push(Difference::new("lag", Some(name), text));
    }
}

/// What each node has, when not all have the same; nodes that have none are left out.
fn differs<'a>(nodes: &[Node<'a>], what: impl Fn(&Node<'a>) -> Option<&'a str>) -> Option<String> {
    let has: Vec<_> = nodes.iter().filter_map(|node| Some((node.name, what(node)?))).collect();
    let first = has.first()?;
    if has.iter().all(|(_, what)| *what == first.1) {
        return None;
    }
    let each = has.iter().map(|(name, what)| format!("{name} {}", short(what)));
    Some(each.collect::<Vec<_>>().join(", "))
}
