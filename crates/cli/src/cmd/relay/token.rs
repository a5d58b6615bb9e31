//! `relay token`.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{Outcome, Session, moment};
use crate::args::relay::RelayToken;
use crate::output::cell;

/// Runs one of the commands.
pub async fn run(session: &Session, command: RelayToken) -> Outcome {
    match command {
        RelayToken::Create { place, ttl, allowed_spoke_name, description, max_uses } => {
            let body = json!({
                "ttl": ttl,
                "allowed_spoke_name": allowed_spoke_name,
                "description": description,
                "max_uses": max_uses,
            });
            let answer = session.client.write(&place.path("bootstrap-tokens"), &body).await?;
            // Standard output may be a pipe: what is no part of the answer must not get into it.
            answer.warnings().iter().for_each(|warning| session.print.note(format!("WARNING: {warning}")));
            print(session, answer.data());
        }
        RelayToken::List { place } => {
            let answer = session.client.list(&place.path("bootstrap-tokens")).await?;
            let data = answer.data();
            let row = |id: &String| {
                let info = data["key_info"].get(id).unwrap_or(&Value::Null);
                let text = |name: &str| info.get(name).map(cell).unwrap_or_default();
                let uses = format!("{} of {}", text("uses"), limit(&info["max_uses"]));
                let state = match (&info["error"], info["expired"].as_bool()) {
                    (Value::String(error), _) => error.clone(),
                    (_, Some(true)) => "expired".to_owned(),
                    _ => "good".to_owned(),
                };
                let expiration = moment(&info["expiration_unix"]);
                vec![id.clone(), state, expiration, text("allowed_spoke_name"), uses, text("description")]
            };
            let header = ["ID", "State", "Expiration", "Allowed Spoke", "Uses", "Description"];
            session.print.rows(data, &header, answer.keys().iter().map(row));
        }
        RelayToken::Revoke { place, id } => {
            let id = id.split('.').next().unwrap_or_default();
            session.client.delete(&place.path(&format!("bootstrap-tokens/{id}"))).await?;
            session.print.done("Revoked (if it was there).");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(session: &Session, data: &Value) {
    if session.print.json {
        return session.print.value(data);
    }
    let allowed = cell(&data["allowed_spoke_name"]);
    let allowed = if allowed.is_empty() { "(any)".to_owned() } else { allowed };
    session.print.pairs([
        ("token".to_owned(), data["token"].clone()),
        ("id".to_owned(), data["id"].clone()),
        ("expiration".to_owned(), Value::from(moment(&data["expiration_unix"]))),
        ("allowed_spoke".to_owned(), Value::from(allowed)),
    ]);
}

fn limit(max: &Value) -> String {
    match max.as_u64() {
        None | Some(0) => "any".to_owned(),
        Some(max) => max.to_string(),
    }
}
