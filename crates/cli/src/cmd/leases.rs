//! `lease`: what was issued and until when.

use std::process::ExitCode;

use serde_json::json;

use super::{Outcome, Session};
use crate::args::Lease;

/// Runs one of the commands.
pub async fn run(session: &Session, command: Lease) -> Outcome {
    let client = &session.client;
    let (answer, done) = match command {
        Lease::Lookup { id } => (client.write("sys/leases/lookup", &json!({"lease_id": id})).await?, ""),
        Lease::Renew { increment, id } => {
            let body = json!({"lease_id": id, "increment": increment.unwrap_or_else(|| "0".into())});
            (client.write("sys/leases/renew", &body).await?, "")
        }
        Lease::Revoke { prefix, force, sync, id } => {
            let path = match (prefix, force) {
                (true, true) => format!("sys/leases/revoke-force/{id}"),
                (true, false) => format!("sys/leases/revoke-prefix/{id}"),
                (false, _) => "sys/leases/revoke".to_owned(),
            };
            let body = if prefix { json!({"sync": sync}) } else { json!({"lease_id": id, "sync": sync}) };
            (
                client.write(&path, &body).await?,
                if sync { "Revoked." } else { "The revocation is under way." },
            )
        }
        Lease::List { prefix } => {
            let answer = client.list(&format!("sys/leases/lookup/{prefix}")).await?;
            session.print.keys(&answer);
            return Ok(ExitCode::SUCCESS);
        }
    };
    session.print.answer(&answer, None, done)?;
    Ok(ExitCode::SUCCESS)
}
