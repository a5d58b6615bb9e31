//! `token` and `unwrap`.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::{Outcome, Session};
use crate::args::{Token, UnwrapArgs};
use crate::input;

const TOKEN: &str = "Token (not shown)";

/// Runs one of the commands.
pub async fn run(session: &Session, command: Token) -> Outcome {
    let client = &session.client;
    let (answer, done) = match command {
        command @ Token::Create { .. } => {
            let (path, body) = creation(command);
            (client.write(&path, &body).await?, "")
        }
        Token::Lookup { accessor, token } => {
            let answer = match (accessor, token) {
                (true, Some(accessor)) => {
                    client.write("auth/token/lookup-accessor", &json!({"accessor": accessor})).await?
                }
                (true, None) => return Err(anyhow::anyhow!("give the accessor").into()),
                (false, Some(token)) => {
                    client
                        .write("auth/token/lookup", &json!({"token": input::secret_of(&token, TOKEN)?}))
                        .await?
                }
                (false, None) => client.read("auth/token/lookup-self").await?,
            };
            (answer, "")
        }
        Token::Renew { increment, token } => {
            let increment = increment.unwrap_or_else(|| "0".into());
            let answer = match token {
                Some(token) => {
                    client.write("auth/token/renew", &json!({"token": token, "increment": increment})).await?
                }
                None => client.write("auth/token/renew-self", &json!({"increment": increment})).await?,
            };
            (answer, "")
        }
        Token::Revoke { accessor, own, token } => {
            let answer = match (own, accessor, token) {
                (true, _, None) => client.write("auth/token/revoke-self", &json!({})).await?,
                (false, true, Some(accessor)) => {
                    client.write("auth/token/revoke-accessor", &json!({"accessor": accessor})).await?
                }
                (false, false, Some(token)) => {
                    client.write("auth/token/revoke", &json!({"token": token})).await?
                }
                _ => {
                    return Err(
                        anyhow::anyhow!("give a token, an accessor with --accessor, or --self").into()
                    );
                }
            };
            (answer, "Revoked (if it was there).")
        }
    };
    session.print.answer(&answer, None, done)?;
    Ok(ExitCode::SUCCESS)
}

/// Fetches a wrapped answer.
pub async fn unwrap(session: &Session, args: UnwrapArgs) -> Outcome {
    let body = match args.token {
        Some(token) => json!({"token": input::secret_of(&token, TOKEN)?}),
        None => json!({}),
    };
    let answer = session.client.write("sys/wrapping/unwrap", &body).await?;
    session.print.answer(&answer, args.field.as_deref(), "The wrapped answer was empty.")?;
    Ok(ExitCode::SUCCESS)
}

fn creation(command: Token) -> (String, Value) {
    let Token::Create { policy, ttl, explicit_max_ttl, period, use_limit, display_name, role, kind, orphan } =
        command
    else {
        return (String::new(), Value::Null);
    };
    let mut body = Map::new();
    if !policy.is_empty() {
        body.insert("policies".into(), policy.into());
    }
    for (name, value) in [
        ("ttl", ttl),
        ("explicit_max_ttl", explicit_max_ttl),
        ("period", period),
        ("display_name", display_name),
        ("type", kind),
    ] {
        value.map(|v| body.insert(name.into(), v.into()));
    }
    use_limit.map(|n| body.insert("num_uses".into(), n.into()));
    let path = match (role, orphan) {
        (Some(role), _) => format!("auth/token/create/{role}"),
        (None, true) => "auth/token/create-orphan".to_owned(),
        (None, false) => "auth/token/create".to_owned(),
    };
    (path, Value::Object(body))
}
