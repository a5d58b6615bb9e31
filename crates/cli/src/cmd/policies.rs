//! `policy`: who may touch which path.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{Outcome, Session};
use crate::args::Policy;
use crate::input;

/// Runs one of the commands.
pub async fn run(session: &Session, command: Policy) -> Outcome {
    match command {
        Policy::Read { name } => {
            let answer = session.client.read(&format!("sys/policies/acl/{name}")).await?;
            if session.print.json {
                session.print.value(&answer.body);
            } else {
                session
                    .print
                    .line(answer.data().get("policy").and_then(Value::as_str).unwrap_or_default().trim_end());
            }
        }
        Policy::Write { name, file } => {
            let text = if file == "-" { input::text_of("-")? } else { input::text_of(&format!("@{file}"))? };
            session.client.write(&format!("sys/policies/acl/{name}"), &json!({"policy": text})).await?;
            session.print.done(format!("The policy {name:?} is written."));
        }
        Policy::List => session.print.keys(&session.client.list("sys/policies/acl").await?),
        Policy::Delete { name } => {
            session.client.delete(&format!("sys/policies/acl/{name}")).await?;
            session.print.done(format!("The policy {name:?} is deleted."));
        }
    }
    Ok(ExitCode::SUCCESS)
}
