//! `secrets`, `auth` and `audit`: what is mounted where.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::{Outcome, Session};
use crate::args::{Audit, Mount};
use crate::input;
use crate::output::cell;

/// Which mount table is meant.
#[derive(Clone, Copy, Debug)]
pub enum Class {
    /// Secrets engines.
    Secrets,
    /// Login methods.
    Auth,
}

impl Class {
    fn base(self) -> &'static str {
        match self {
            Self::Secrets => "sys/mounts",
            Self::Auth => "sys/auth",
        }
    }
}

/// Runs one of the commands.
pub async fn run(session: &Session, class: Class, command: Mount) -> Outcome {
    let base = class.base();
    match command {
        Mount::Enable { path, description, version, default_lease_ttl, max_lease_ttl, kind } => {
            let path = path.unwrap_or_else(|| kind.clone());
            let mut config = Map::new();
            default_lease_ttl.map(|ttl| config.insert("default_lease_ttl".into(), ttl.into()));
            max_lease_ttl.map(|ttl| config.insert("max_lease_ttl".into(), ttl.into()));
            let options = version.map(|v| json!({"version": v})).unwrap_or(json!({}));
            let body = json!({"type": kind, "description": description.unwrap_or_default(), "config": config, "options": options});
            let answer = session.client.write(&format!("{base}/{}", path.trim_matches('/')), &body).await?;
            session.print.answer(
                &answer,
                None,
                &format!("Enabled {kind} at {}/.", path.trim_matches('/')),
            )?;
        }
        Mount::Disable { path } => {
            session.client.delete(&format!("{base}/{}", path.trim_matches('/'))).await?;
            session.print.done(format!("Disabled {}/ (if it was there).", path.trim_matches('/')));
        }
        Mount::List => {
            let answer = session.client.read(base).await?;
            let rows = mount_rows(answer.data());
            session.print.rows(&answer.body, &["Path", "Type", "Accessor", "Description"], rows);
        }
        Mount::Tune { default_lease_ttl, max_lease_ttl, description, path } => {
            let fields = [
                ("default_lease_ttl", default_lease_ttl),
                ("max_lease_ttl", max_lease_ttl),
                ("description", description),
            ];
            let body: Map<_, _> =
                fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into()))).collect();
            let path = format!("{base}/{}/tune", path.trim_matches('/'));
            if body.is_empty() {
                session.print.answer(&session.client.read(&path).await?, None, "")?;
            } else {
                let answer = session.client.write(&path, &Value::Object(body)).await?;
                session.print.answer(&answer, None, "Tuned.")?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs one of the audit commands.
pub async fn audit(session: &Session, command: Audit) -> Outcome {
    match command {
        Audit::Enable { path, kind, fields } => {
            let path = path.unwrap_or_else(|| kind.clone());
            let body = json!({"type": kind, "options": input::fields(&fields)?});
            session.client.write(&format!("sys/audit/{}", path.trim_matches('/')), &body).await?;
            session.print.done(format!("Enabled the {kind} device {}/.", path.trim_matches('/')));
        }
        Audit::Disable { path } => {
            session.client.delete(&format!("sys/audit/{}", path.trim_matches('/'))).await?;
            session.print.done(format!("Disabled {}/ (if it was there).", path.trim_matches('/')));
        }
        Audit::List => {
            let answer = session.client.read("sys/audit").await?;
            let rows = mount_rows(answer.data()).into_iter().map(|row| row.into_iter().take(2).collect());
            session.print.rows(&answer.body, &["Path", "Type"], rows);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn mount_rows(data: &Value) -> Vec<Vec<String>> {
    let mounts = data.as_object().into_iter().flatten().filter(|(_, entry)| entry.get("type").is_some());
    mounts
        .map(|(path, entry)| {
            let text = |name: &str| entry.get(name).map(cell).unwrap_or_default();
            vec![path.clone(), text("type"), text("accessor"), text("description")]
        })
        .collect()
}
