//! `read`, `write`, `patch`, `list` and `delete`: any path of the API.

use std::process::ExitCode;

use holdfast_client::Verb;
use serde_json::Value;

use super::{Outcome, Session};
use crate::args::{PathArgs, ReadArgs, WriteArgs};
use crate::input;

/// Reads a path; fields become query parameters.
pub async fn read(session: &Session, args: ReadArgs) -> Outcome {
    let query = input::fields(&args.fields)?;
    let path = match query.is_empty() {
        true => args.path,
        false => format!("{}?{}", args.path, encode(&query)),
    };
    let answer = session.client.read(&path).await?;
    session.print.answer(&answer, args.field.as_deref(), "The path has no data.")?;
    Ok(ExitCode::SUCCESS)
}

/// Writes fields.
pub async fn write(session: &Session, args: WriteArgs) -> Outcome {
    change(session, Verb::Write, args, "Success! Data written.").await
}

/// Merges fields.
pub async fn patch(session: &Session, args: WriteArgs) -> Outcome {
    change(session, Verb::Patch, args, "Success! Data patched.").await
}

/// Deletes a path.
pub async fn delete(session: &Session, args: WriteArgs) -> Outcome {
    let fields = input::fields(&args.fields)?;
    let path = match fields.is_empty() {
        true => args.path,
        false => format!("{}?{}", args.path, encode(&fields)),
    };
    let answer = session.client.delete(&path).await?;
    session.print.answer(&answer, args.field.as_deref(), "Success! Data deleted (if it was there).")?;
    Ok(ExitCode::SUCCESS)
}

/// Lists names.
pub async fn list(session: &Session, args: PathArgs) -> Outcome {
    let answer = session.client.list(&args.path).await?;
    session.print.keys(&answer);
    Ok(ExitCode::SUCCESS)
}

async fn change(session: &Session, verb: Verb, args: WriteArgs, done: &str) -> Outcome {
    if args.fields.is_empty() && !args.force {
        return Err(anyhow::anyhow!("give fields as key=value, or --force to send none").into());
    }
    let body = Value::Object(input::fields(&args.fields)?);
    let answer = session.client.send(verb, &args.path, Some(&body)).await?;
    session.print.answer(&answer, args.field.as_deref(), done)?;
    Ok(ExitCode::SUCCESS)
}

fn encode(fields: &serde_json::Map<String, Value>) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let escape = |text: &str| -> String {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
        text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
    };
    let pairs = fields.iter().map(|(key, value)| format!("{}={}", escape(key), escape(&text(value))));
    pairs.collect::<Vec<_>>().join("&")
}
