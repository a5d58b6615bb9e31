//! `relay ca`.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::{Outcome, Session, add_sans, moment, print};
use crate::args::relay::RelayCa;

/// Runs one of the commands.
pub async fn run(session: &Session, command: RelayCa) -> Outcome {
    match command {
        RelayCa::Status { place, format } => {
            let answer = session.client.read(&place.path("ca/info")).await?;
            print(session, format, answer.data(), rows(answer.data()));
        }
        RelayCa::Rotate { place, sans, full, yes, format } => {
            if full && !yes {
                let text = "-full replaces the certificate authority, and every spoke must join again; add -yes to go on";
                return Err(anyhow::anyhow!(text).into());
            }
            let mut body = Map::from_iter([("full".to_owned(), json!(full))]);
            add_sans(&mut body, &sans);
            let answer = session.client.write(&place.path("ca/rotate"), &Value::Object(body)).await?;
            answer.warnings().iter().for_each(|warning| session.print.note(format!("WARNING: {warning}")));
            let shown =
                ["rotated", "ca_cert_hash"].map(|name| (name.to_owned(), answer.data()[name].clone()));
            print(session, format, answer.data(), shown.to_vec());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What people want to see: names and ends, without PEM.
fn rows(info: &Value) -> Vec<(String, Value)> {
    const NAMES: [&str; 8] = [
        "hub_endpoint",
        "listener_port",
        "ca_cert_hash",
        "ca_subject",
        "ca_not_after",
        "hub_cert_subject",
        "hub_cert_not_after",
        "created_unix",
    ];
    let shown = |name: &str| match name {
        "ca_not_after" | "hub_cert_not_after" | "created_unix" => Value::from(moment(&info[name])),
        _ => info[name].clone(),
    };
    let label = |name: &str| if name == "created_unix" { "created".to_owned() } else { name.to_owned() };
    let mut rows: Vec<_> = NAMES.iter().map(|name| (label(name), shown(name))).collect();
    rows.extend(["hub_dns_sans", "hub_ip_sans"].map(|name| (name.to_owned(), info[name].clone())));
    rows
}
