//! `login`: exchanges credentials for a token and keeps it.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use secrecy::SecretString;
use serde_json::{Map, Value, json};

use super::{Outcome, Session};
use crate::args::LoginArgs;
use crate::output::Failure;
use crate::{input, session, terminal};

const TOKEN: &str = "Token (not shown)";

/// Logs in.
pub async fn run(session: &Session, args: LoginArgs) -> Outcome {
    match args.method.as_str() {
        "token" => with_token(session, &args).await,
        "userpass" => {
            let mut fields = asked(&args, &[("username", Shown::Yes), ("password", Shown::No)])?;
            let name = fields.remove("username").ok_or_else(|| anyhow!("username=… is needed"))?;
            let name = name.as_str().unwrap_or_default().to_owned();
            with_method(session, &args, &format!("login/{name}"), fields).await
        }
        "approle" => {
            // Not every role wants a secret id: it is asked for only together with the rest.
            let wanted = [("role_id", Shown::Yes), ("secret_id", Shown::No)];
            let wanted = if args.fields.is_empty() { &wanted[..] } else { &[] };
            with_method(session, &args, "login", asked(&args, wanted)?).await
        }
        other => Err(anyhow!("unknown login method {other:?}; there are token, userpass and approle").into()),
    }
}

/// Whether a field is shown while it is typed.
#[derive(Clone, Copy, Debug)]
enum Shown {
    Yes,
    No,
}

/// The fields that were given; at a terminal those that are missing are asked for.
fn asked(args: &LoginArgs, wanted: &[(&str, Shown)]) -> Result<Map<String, Value>, Failure> {
    let mut fields = input::fields(&args.fields)?;
    for (name, shown) in wanted.iter().filter(|_| terminal::is_there()) {
        if !fields.contains_key(*name) {
            let value = match shown {
                Shown::Yes => terminal::text(name)?,
                Shown::No => terminal::secret(&format!("{name} (not shown)"))?,
            };
            fields.insert((*name).to_owned(), value.into());
        }
    }
    Ok(fields)
}

async fn with_token(session: &Session, args: &LoginArgs) -> Outcome {
    let text = match args.fields.as_slice() {
        [] => input::secret_of("-", TOKEN)?,
        [one] => input::secret_of(one.strip_prefix("token=").unwrap_or(one), TOKEN)?,
        _ => return Err(anyhow!("give one token").into()),
    };
    if text.is_empty() {
        return Err(anyhow!("no token was given").into());
    }
    let token = SecretString::from(text);
    let answer =
        session::with_token(&session.global, Some(token.clone()))?.read("auth/token/lookup-self").await?;
    keep(session, args, &token)?;
    session.print.answer(&answer, None, "Logged in.")?;
    Ok(ExitCode::SUCCESS)
}

async fn with_method(session: &Session, args: &LoginArgs, path: &str, fields: Map<String, Value>) -> Outcome {
    let mount = args.path.as_deref().unwrap_or(&args.method).trim_matches('/');
    let answer = session.client.write(&format!("auth/{mount}/{path}"), &json!(fields)).await?;
    let token =
        answer.auth().get("client_token").and_then(Value::as_str).context("the answer holds no token")?;
    keep(session, args, &SecretString::from(token.to_owned()))?;
    session.print.answer(&answer, None, "Logged in.")?;
    Ok(ExitCode::SUCCESS)
}

fn keep(session: &Session, args: &LoginArgs, token: &SecretString) -> Result<(), Failure> {
    if !args.no_store {
        let file = session::keep_token(token)?;
        session.print.note(format!("The token is kept in {}.", file.display()));
    }
    Ok(())
}
