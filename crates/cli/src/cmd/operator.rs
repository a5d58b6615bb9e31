//! `operator`: the life of a cluster.

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use super::{Outcome, Session, status};
use crate::args::{InitArgs, Operator, Raft, Snapshot, UnsealArgs};
use crate::output::{Failure, cell};
use crate::terminal;

/// Runs one of the commands.
pub async fn run(session: &Session, command: Operator) -> Outcome {
    match command {
        Operator::Init(args) => init(session, args).await,
        Operator::Unseal(args) => unseal(session, args).await,
        Operator::Seal => {
            session.client.write("sys/seal", &json!({})).await?;
            session.print.done("The node is sealed.");
            Ok(ExitCode::SUCCESS)
        }
        Operator::StepDown => {
            session.client.write("sys/step-down", &json!({})).await?;
            session.print.done("The active node handed leadership over.");
            Ok(ExitCode::SUCCESS)
        }
        Operator::Raft(command) => raft(session, command).await,
    }
}

async fn init(session: &Session, args: InitArgs) -> Outcome {
    if args.status {
        let answer = session.client.read("sys/init").await?;
        let initialized = answer.member("initialized").as_bool().unwrap_or(false);
        session.print.object(answer.body.as_object().unwrap_or(&Map::new()));
        return Ok(ExitCode::from(if initialized { 0 } else { 2 }));
    }
    let mut body = Map::new();
    for (name, value) in [
        ("secret_shares", args.key_shares),
        ("secret_threshold", args.key_threshold),
        ("recovery_shares", args.recovery_shares),
        ("recovery_threshold", args.recovery_threshold),
    ] {
        value.map(|v| body.insert(name.to_owned(), v.into()));
    }
    let answer = session.client.write("sys/init", &Value::Object(body)).await?;
    if session.print.json {
        session.print.value(&answer.body);
        return Ok(ExitCode::SUCCESS);
    }
    let shares = |name: &str, label: &str| {
        let list = answer.member(name).as_array().cloned().unwrap_or_default();
        for (i, share) in list.iter().enumerate() {
            session.print.line(format!("{label} {}: {}", i + 1, cell(share)));
        }
    };
    shares("keys_base64", "Unseal Key");
    shares("recovery_keys_base64", "Recovery Key");
    session.print.line(format!("\nInitial Root Token: {}", cell(answer.member("root_token"))));
    session.print.line("\nKeep the keys apart from each other: they are shown only now.");
    Ok(ExitCode::SUCCESS)
}

async fn unseal(session: &Session, args: UnsealArgs) -> Outcome {
    let body = match (args.reset, args.key) {
        (true, _) => json!({"reset": true}),
        (false, Some(key)) if key != "-" => json!({"key": key}),
        (false, _) if terminal::is_there() => {
            json!({"key": terminal::secret("Unseal key (not shown)")?.trim()})
        }
        (false, _) => {
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line).context("cannot read standard input")?;
            json!({"key": line.trim()})
        }
    };
    let answer = session.client.write("sys/unseal", &body).await?;
    status::print_seal(session, &answer);
    Ok(ExitCode::SUCCESS)
}

async fn raft(session: &Session, command: Raft) -> Outcome {
    let change = async |path: &str, id: String, done: &str| -> Outcome {
        session.client.write(path, &json!({"server_id": id})).await?;
        session.print.done(done);
        Ok(ExitCode::SUCCESS)
    };
    match command {
        Raft::Join { leader, leader_ca_cert, non_voter } => {
            join(session, leader, leader_ca_cert, non_voter, false).await
        }
        Raft::Rejoin { leader, leader_ca_cert, yes } => {
            let wipe = "This wipes the data of the addressed node";
            let agreed = yes || terminal::is_there() && terminal::agrees(wipe)?;
            if !agreed {
                return Err(anyhow!("this wipes the data of the addressed node; add --yes to go on").into());
            }
            join(session, leader, leader_ca_cert, false, true).await
        }
        Raft::ListPeers => list_peers(session).await,
        Raft::RemovePeer { id } => change("sys/storage/raft/remove-peer", id, "The member is removed.").await,
        Raft::Promote { id } => change("sys/storage/raft/promote", id, "The member votes.").await,
        Raft::Demote { id } => change("sys/storage/raft/demote", id, "The member does not vote.").await,
        Raft::Snapshot(command) => snapshot(session, command).await,
    }
}

async fn join(
    session: &Session,
    leader: String,
    ca_cert: Option<std::path::PathBuf>,
    non_voter: bool,
    rejoin: bool,
) -> Outcome {
    let mut body = json!({"leader_api_addr": leader, "non_voter": non_voter});
    if let (Some(file), Some(map)) = (ca_cert, body.as_object_mut()) {
        let pem = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file:?}"))?;
        map.insert("leader_ca_cert".into(), pem.into());
    }
    if let (true, Some(map)) = (rejoin, body.as_object_mut()) {
        map.insert("rejoin".into(), true.into());
    }
    let answer = session.client.write("sys/storage/raft/join", &body).await?;
    session.print.answer(&answer, None, "Joined.")?;
    Ok(ExitCode::SUCCESS)
}

async fn list_peers(session: &Session) -> Outcome {
    let answer = session.client.read("sys/storage/raft/configuration").await?;
    let servers =
        answer.data().pointer("/config/servers").and_then(Value::as_array).cloned().unwrap_or_default();
    let rows = servers.iter().map(|server| {
        let text = |name: &str| server.get(name).map(cell).unwrap_or_default();
        let flag = |name: &str| server.get(name).and_then(Value::as_bool).unwrap_or(false);
        let state = if flag("leader") { "leader" } else { "follower" };
        vec![text("node_id"), text("address"), state.to_owned(), flag("voter").to_string()]
    });
    session.print.rows(&answer.body, &["Node", "Address", "State", "Voter"], rows);
    Ok(ExitCode::SUCCESS)
}

async fn snapshot(session: &Session, command: Snapshot) -> Outcome {
    match command {
        Snapshot::Save { file, force } => {
            let bytes = save(session, &file, force).await?;
            session.print.done(format!("Saved {bytes} bytes to {}.", file.display()));
        }
        Snapshot::Restore { file, force, yes } => {
            if !yes && terminal::is_there() && !terminal::agrees("This replaces everything in the cluster")? {
                return Err(anyhow!("nothing was done").into());
            }
            let progress = spinner(session, "restoring the backup on all nodes");
            let path = if force { "sys/storage/raft/snapshot-force" } else { "sys/storage/raft/snapshot" };
            session.client.upload(path, &file).await?;
            progress.finish_and_clear();
            session.print.done("Restored on all nodes.");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a backup beside its place and moves it there once it is whole.
async fn save(session: &Session, file: &Path, force: bool) -> Result<u64, Failure> {
    if file == Path::new("-") {
        return Err(anyhow!("a backup goes into a file, not to standard output; ./- names a file").into());
    }
    match std::fs::symlink_metadata(file) {
        Ok(found) if force && found.is_file() => {}
        Ok(found) if found.is_file() => {
            return Err(anyhow!("{file:?} is there already; -force replaces it").into());
        }
        Ok(_) => return Err(anyhow!("{file:?} is there already and no file").into()),
        Err(_) => {}
    }
    let mut partial = file.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let _ = std::fs::remove_file(&partial);
    let progress = spinner(session, "saving the backup");
    let saved = session.client.download("sys/storage/raft/snapshot", &partial).await;
    progress.finish_and_clear();
    if saved.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    let bytes = saved?;
    std::fs::rename(&partial, file).with_context(|| format!("cannot write {file:?}"))?;
    Ok(bytes)
}

/// A spinner on a terminal; silent otherwise and in JSON mode.
fn spinner(session: &Session, what: &'static str) -> ProgressBar {
    if session.print.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(what);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        anyhow::Error::from(error).into()
    }
}
