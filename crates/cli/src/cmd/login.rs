//! `login`: exchanges credentials for a token and keeps it.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use secrecy::SecretString;
use serde_json::{Map, Value, json};

use super::{Outcome, Session};
use crate::args::LoginArgs;
use crate::output::Failure;
use crate::{input, session};

/// Logs in.
pub async fn run(session: &Session, args: LoginArgs) -> Outcome {
    match args.method.as_str() {
        "token" => with_token(session, &args).await,
        "userpass" => {
            let mut fields = input::fields(&args.fields)?;
            let name = fields.remove("username").ok_or_else(|| anyhow!("username=… is needed"))?;
            let name = name.as_str().unwrap_or_default().to_owned();
            with_method(session, &args, &format!("login/{name}"), fields).await
        }
        "approle" => with_method(session, &args, "login", input::fields(&args.fields)?).await,
        other => Err(anyhow!("unknown login method {other:?}; there are token, userpass and approle").into()),
    }
}

async fn with_token(session: &Session, args: &LoginArgs) -> Outcome {
    let text = match args.fields.as_slice() {
        [] => input::text_of("-")?,
        [one] => one.strip_prefix("token=").map_or_else(|| input::text_of(one), |t| Ok(t.to_owned()))?,
        _ => return Err(anyhow!("give one token").into()),
    };
    let token = SecretString::from(text.trim().to_owned());
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
