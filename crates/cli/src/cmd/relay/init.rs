//! `relay init`: from nothing to the command with which a spoke joins.

use std::process::ExitCode;

use holdfast_client::Answer;
use serde_json::{Map, Value, json};

use super::{Outcome, Session, add_sans};
use crate::args::relay::RelayInit;
use crate::output::{Failure, cell};
use crate::session;

/// Runs the command.
pub async fn run(session: &Session, args: RelayInit) -> Outcome {
    mount(session, &args).await?;
    let info = authority(session, &args).await?;
    let body = json!({
        "ttl": args.token_ttl,
        "allowed_spoke_name": args.allowed_spoke_name,
        "description": args.description,
        "max_uses": args.max_uses,
    });
    let token = session.client.write(&args.place.path("bootstrap-tokens"), &body).await?;
    let line = join_line(session, &args, info.data(), token.data());
    if session.print.json {
        let mut data = token.data().as_object().cloned().unwrap_or_default();
        data.insert("ca_cert_hash".to_owned(), info.data()["ca_cert_hash"].clone());
        data.insert("hub_endpoint".to_owned(), info.data()["hub_endpoint"].clone());
        data.insert("join_command".to_owned(), Value::from(line));
        session.print.value(&Value::Object(data));
        return Ok(ExitCode::SUCCESS);
    }
    if args.print_join_only {
        session.print.line(line);
        return Ok(ExitCode::SUCCESS);
    }
    token.warnings().iter().for_each(|warning| session.print.note(format!("WARNING: {warning}")));
    session.print.line(format!("Endpoint for spokes:  {}", cell(&info.data()["hub_endpoint"])));
    session.print.line(format!("Authority:            {}", cell(&info.data()["ca_cert_hash"])));
    session.print.line("\nOn the machine beside the databases, run:\n");
    session.print.line(line);
    Ok(ExitCode::SUCCESS)
}

/// Mounts the relay unless it is there.
async fn mount(session: &Session, args: &RelayInit) -> Result<(), Failure> {
    let mounts = session.client.read("sys/mounts").await?;
    let path = args.place.path("");
    if mounts.data().get(&path).is_some() {
        return Ok(());
    }
    let path = format!("sys/mounts/{}", path.trim_end_matches('/'));
    session.client.write(&path, &json!({ "type": "relay" })).await?;
    Ok(())
}

/// Makes the authority unless it is there, or anew with -force; returns what is known of it.
async fn authority(session: &Session, args: &RelayInit) -> Result<Answer, Failure> {
    let info = args.place.path("ca/info");
    let known = session.client.read(&info).await;
    let missing = match &known {
        Ok(_) => false,
        Err(error) => error.status() == Some(400),
    };
    if !missing && !args.force {
        return Ok(known?);
    }
    let endpoint = args.hub_endpoint.as_deref();
    let endpoint =
        endpoint.ok_or_else(|| anyhow::anyhow!("-hub-endpoint=host:port is needed: where spokes dial"))?;
    let mut body = Map::new();
    body.insert("hub_endpoint".to_owned(), json!(endpoint));
    body.insert("force".to_owned(), json!(args.force));
    add_sans(&mut body, &args.sans);
    session.client.write(&args.place.path("ca/init"), &Value::Object(body)).await?;
    Ok(session.client.read(&info).await?)
}

fn join_line(session: &Session, args: &RelayInit, info: &Value, token: &Value) -> String {
    let address = session::address(&session.global);
    let name = match args.allowed_spoke_name.as_str() {
        "" => "NAME",
        name => name,
    };
    let mount = match args.place.mount.trim_matches('/') {
        "relay" => String::new(),
        other => format!(" -mount={other}"),
    };
    format!(
        "HOLDFAST_ADDR={address} holdfast relay join{mount} -hub-addr={} -hub-cert-hash={} -token={} -spoke-name={name}",
        cell(&info["hub_endpoint"]),
        cell(&info["ca_cert_hash"]),
        cell(&token["token"]),
    )
}
