//! `relay join`: a machine beside the databases becomes a spoke.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use holdfast_spoke::address::Address;
use holdfast_spoke::join::{JoinError, JoinParams, Joined, join};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::{Outcome, Session};
use crate::args::relay::RelayJoin;
use crate::output::Failure;
use crate::{input, session};

/// Runs the command.
pub async fn run(session: &Session, args: RelayJoin) -> Outcome {
    let (params, server) = params(session, &args)?;
    if params.pin.is_none() {
        session.print.note(
            "WARNING: the hub's certificate authority is not checked: whoever has the token is trusted",
        );
    }
    let joined = join(&params).await.map_err(failure)?;
    let server = server.unwrap_or_else(|| joined.hub_endpoint.clone());
    report(session, &args, &joined, &server);
    Ok(ExitCode::SUCCESS)
}

/// What to join, and where the spoke dials when the hub is not asked for that.
fn params(session: &Session, args: &RelayJoin) -> Result<(JoinParams, Option<String>), Failure> {
    let (api, server) = places(session, args)?;
    let pin = match (&args.hub_cert_hash, args.skip_cert_hash_check) {
        (_, true) => None,
        (Some(pin), false) => Some(pin.clone()),
        (None, false) => {
            return Err(anyhow!("-hub-cert-hash is needed; `holdfast relay ca status` shows it").into());
        }
    };
    let read = match args.token.expose_secret() {
        "-" => Some(SecretString::from(input::secret_of("-", "Bootstrap token (not shown)")?)),
        _ => None,
    };
    let text = read.as_ref().unwrap_or(&args.token).expose_secret();
    let token = holdfast_spoke::join::token(text.trim()).context("-token")?;
    let api = api.split(',').map(str::trim).filter(|url| !url.is_empty()).map(str::to_owned).collect();
    let params = JoinParams {
        api,
        mount: args.place.mount.clone(),
        token,
        pin,
        name: args.spoke_name.parse().map_err(anyhow::Error::from)?,
        dir: args.credentials_dir.clone(),
        force: args.force,
    };
    Ok((params, server))
}

/// The hub's API, and where the spoke dials when that was given. Looked at before anything is sent: a token may be good
/// for one attempt only.
fn places(session: &Session, args: &RelayJoin) -> Result<(String, Option<String>), Failure> {
    let is_url = |text: &str| text.starts_with("http://") || text.starts_with("https://");
    match args.hub_addr.as_deref() {
        None => Ok((session::address(&session.global), None)),
        Some(url) if is_url(url) => Ok((url.to_owned(), None)),
        Some(server) => {
            for address in server.split(',') {
                address.parse::<Address>().context(
                    "-hub-addr takes what the spoke dials, such as hub.example:50053, or the URL of the API",
                )?;
            }
            Ok((session::address(&session.global), Some(server.to_owned())))
        }
    }
}

fn failure(error: JoinError) -> Failure {
    let from_hub = matches!(error, JoinError::Refused { .. } | JoinError::Unreachable { .. });
    let code = if from_hub { Failure::API } else { Failure::LOCAL };
    Failure::from(anyhow::Error::from(error)).coded(code)
}

fn report(session: &Session, args: &RelayJoin, joined: &Joined, server: &str) {
    let dir = args.credentials_dir.display();
    let line = format!("holdfast relay run -server={server} -credentials-dir={dir}");
    if session.print.json {
        return session.print.value(&json!({
            "spoke_name": joined.credentials.name.as_str(),
            "hub_endpoint": joined.hub_endpoint,
            "ca_cert_hash": joined.ca_hash,
            "credentials_dir": dir.to_string(),
            "cert_not_after": joined.credentials.not_after,
            "run_command": line,
        }));
    }
    session.print.line(format!(
        "Joined as {}; the credentials are in {dir}. Start the spoke with:\n",
        joined.credentials.name
    ));
    session.print.line(line);
}
