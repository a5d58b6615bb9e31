//! `relay`: one file a family of commands.

mod ca;
mod init;
mod join;
mod list;
mod token;

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::{Outcome, Session};
use crate::args::relay::{Format, Relay, Sans};
use crate::output::cell;

/// Runs one of the commands.
pub async fn run(session: &Session, command: Relay) -> Outcome {
    match command {
        Relay::Init(args) => init::run(session, args).await,
        Relay::Join(args) => join::run(session, args).await,
        // Daemon and renewal talk to the spoke port and need no client.
        Relay::Run(_) | Relay::Renew(_) => Ok(ExitCode::SUCCESS),
        Relay::List { place, format } => list::run(session, &place, format).await,
        Relay::Token(command) => token::run(session, command).await,
        Relay::Ca(command) => ca::run(session, command).await,
        Relay::Deny { place, reason, name } => {
            let path = place.path(&format!("denied-spokes/{name}"));
            session.client.write(&path, &json!({ "reason": reason })).await?;
            session.print.done(format!("The spoke {name} is denied."));
            Ok(ExitCode::SUCCESS)
        }
        Relay::Allow { place, name } => {
            session.client.delete(&place.path(&format!("denied-spokes/{name}"))).await?;
            session.print.done(format!("The spoke {name} is not denied."));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Adds the names that were asked for; what was not asked for stays as the hub has it.
fn add_sans(body: &mut Map<String, Value>, sans: &Sans) {
    for (name, list) in [("hub_dns_sans", &sans.hub_dns_sans), ("hub_ip_sans", &sans.hub_ip_sans)] {
        if !list.is_empty() {
            body.insert(name.to_owned(), json!(list));
        }
    }
}

/// Prints an object in one of the formats; `rows` is what people see of it.
fn print(session: &Session, format: Format, data: &Value, rows: Vec<(String, Value)>) {
    match format {
        Format::Table if !session.print.json => session.print.pairs(rows),
        Format::Yaml => {
            for (key, value) in data.as_object().into_iter().flatten() {
                // A JSON value is a YAML value.
                session.print.line(format!("{key}: {value}"));
            }
        }
        Format::Table | Format::Json => session.print.value(data),
    }
}

/// A moment in seconds since 1970, for people.
fn moment(unix: &Value) -> String {
    match unix.as_i64() {
        Some(0) => "never".to_owned(),
        Some(at) => jiff::Timestamp::from_second(at).map_or_else(|_| at.to_string(), |at| at.to_string()),
        None => cell(unix),
    }
}
