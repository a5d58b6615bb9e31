//! `config fleet`: whether the replicas are alike and ready.

mod compare;

use std::process::ExitCode;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_client::config::{Client, Error, Status};
use serde_json::{Value as Json, json};

use super::super::Outcome;
use super::replicas::{self, code};
use super::{REFUSED, UNREACHABLE, show};
use crate::args::Global;
use crate::args::config::FleetArgs;
use crate::output::Printer;
use compare::{Difference, compare};

/// How often `--watch` looks.
const EVERY: Duration = Duration::from_secs(2);
/// How much of a digest people see.
const DIGITS: usize = 8;

/// What one endpoint said.
struct Replica {
    endpoint: String,
    said: Result<Status, Error>,
}

impl Replica {
    /// How it is called: by its node, or by its endpoint while it has said nothing.
    fn name(&self) -> &str {
        match &self.said {
            Ok(status) if !status.node.is_empty() => &status.node,
            _ => &self.endpoint,
        }
    }
}

/// Runs the command.
pub async fn run(global: &Global, print: Printer, args: &FleetArgs) -> Outcome {
    let client = replicas::client(global, &args.replicas)?;
    let mut told = None;
    loop {
        let replicas = ask(&client, args.replicas.timeout).await;
        let differences = compare(&replicas);
        let code = exit_code(&replicas, &differences);
        let report = json(&replicas, &differences, code);
        if !args.watch || told.as_ref() != Some(&without_ages(&report)) {
            show_report(print, args.watch, &report, &replicas, &differences);
            told = Some(without_ages(&report));
        }
        if !args.watch {
            return Ok(ExitCode::from(code));
        }
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::from(code)),
            // sleep: a replica tells no one that its state changed, so it is asked again and again
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn ask(client: &Client, timeout: Duration) -> Vec<Replica> {
    let one = async |(place, endpoint): (usize, &std::sync::Arc<str>)| {
        let said = tokio::time::timeout(timeout, client.status(place)).await;
        Replica { endpoint: endpoint.to_string(), said: said.unwrap_or(Err(Error::Deadline(timeout))) }
    };
    join_all(client.endpoints().iter().enumerate().map(one)).await
}

fn exit_code(replicas: &[Replica], differences: &[Difference]) -> u8 {
    let errors = || replicas.iter().filter_map(|replica| replica.said.as_ref().err());
    if errors().any(|error| code(error) == REFUSED) {
        return REFUSED;
    }
    if errors().count() == replicas.len() {
        return UNREACHABLE;
    }
    let ready = replicas.iter().all(|replica| replica.said.as_ref().is_ok_and(|s| s.state == "ready"));
    u8::from(!ready || differences.iter().any(|difference| difference.matters))
}

fn show_report(print: Printer, watch: bool, report: &Json, replicas: &[Replica], differences: &[Difference]) {
    if print.json {
        // One line a report, where several come.
        return if watch { print.line(report.to_string()) } else { print.value(report) };
    }
    let header = ["NODE", "STATE", "GEN", "DIGEST", "BINDINGS", "STALE", "OLDEST"];
    print.rows(report, &header, replicas.iter().map(cells));
    for difference in differences {
        print.line(&difference.text);
    }
    if watch {
        print.line("");
    }
}

fn cells(replica: &Replica) -> Vec<String> {
    let name = replica.name().to_owned();
    let status = match &replica.said {
        Ok(status) => status,
        Err(error) => {
            let state = if code(error) == REFUSED { "refused" } else { "unreachable" };
            let dash = || "-".to_owned();
            return vec![name, state.to_owned(), dash(), dash(), dash(), dash(), dash()];
        }
    };
    let oldest = oldest(status).map_or_else(|| "-".to_owned(), |age| show::span(Duration::from_millis(age)));
    vec![
        name,
        status.state.clone(),
        status.config.generation.to_string(),
        short(&status.config.digest),
        status.bindings.len().to_string(),
        stale(status).to_string(),
        oldest,
    ]
}

fn stale(status: &Status) -> usize {
    status.bindings.iter().filter(|binding| binding.state == "stale").count()
}

fn oldest(status: &Status) -> Option<u64> {
    status.bindings.iter().filter_map(|binding| binding.age_ms).max()
}

/// The first digits of a digest.
fn short(digest: &str) -> String {
    if digest.is_empty() { "-".to_owned() } else { digest.chars().take(DIGITS).collect() }
}

fn json(replicas: &[Replica], differences: &[Difference], code: u8) -> Json {
    let one = |replica: &Replica| match &replica.said {
        Ok(status) => json!({
            "endpoint": replica.endpoint, "node": status.node, "version": status.version, "state": status.state,
            "generation": status.config.generation, "digest": status.config.digest,
            "bindings": status.bindings.len(), "stale": stale(status), "oldest_ms": oldest(status),
        }),
        Err(error) => json!({
            "endpoint": replica.endpoint,
            "error": { "kind": error.answer_kind().label(), "message": error.to_string() },
        }),
    };
    json!({
        "alike": code == 0,
        "replicas": replicas.iter().map(one).collect::<Vec<_>>(),
        "differences": differences.iter().map(Difference::json).collect::<Vec<_>>(),
    })
}

/// The report without what changes all the time.
fn without_ages(report: &Json) -> Json {
    let mut report = report.clone();
    for replica in report.get_mut("replicas").and_then(Json::as_array_mut).into_iter().flatten() {
        replica.as_object_mut().map(|replica| replica.remove("oldest_ms"));
    }
    // How far a replica lags grows, too; that it does is what matters.
    for difference in report.get_mut("differences").and_then(Json::as_array_mut).into_iter().flatten() {
        let map = difference.as_object_mut();
        map.filter(|map| map.get("sort") == Some(&json!("lag"))).map(|map| map.remove("text"));
    }
    report
}

#[cfg(test)]
mod tests;
