//! `kv`: versioned and plain secrets; asks the server which of the two a mount holds.

use std::process::ExitCode;

use holdfast_client::{Answer, Verb};
use serde_json::{Map, Value, json};

use super::{Outcome, Session};
use crate::args::{Kv, KvMetadata};
use crate::input;
use crate::output::Failure;

/// A secret's place: its mount, the path inside, and whether the mount keeps versions.
struct Place {
    mount: String,
    path: String,
    versioned: bool,
}

impl Place {
    async fn find(session: &Session, path: &str) -> Result<Self, Failure> {
        let path = path.trim_start_matches('/');
        let answer = session.client.read(&format!("sys/internal/ui/mounts/{path}")).await;
        // One answer for both, so that a caller without rights learns nothing.
        let answer = answer.map_err(|error| match error.status() {
            Some(403) => Failure::from(error).hinted(
                "No kv engine is mounted at that path, or the token has no rights there; `holdfast secrets list` shows \
                 what is mounted.",
            ),
            _ => Failure::from(error),
        })?;
        if let Some(kind) = answer.data().get("type").and_then(Value::as_str).filter(|kind| *kind != "kv") {
            return Err(anyhow::anyhow!("{path} belongs to a mount of the type {kind}, not kv").into());
        }
        let mount = answer.data().get("path").and_then(Value::as_str).unwrap_or_default().to_owned();
        let versioned = answer.data().pointer("/options/version").and_then(Value::as_str) == Some("2");
        let rest = path.strip_prefix(&mount).unwrap_or("").trim_matches('/').to_owned();
        Ok(Self { mount, path: rest, versioned })
    }

    fn at(&self, kind: &str) -> String {
        if self.versioned {
            format!("{}{kind}/{}", self.mount, self.path)
        } else {
            format!("{}{}", self.mount, self.path)
        }
    }

    fn versions_needed(&self) -> Result<(), Failure> {
        if self.versioned {
            return Ok(());
        }
        Err(anyhow::anyhow!(
            "{} keeps no versions: enable it with `holdfast secrets enable -version=2 kv`",
            self.mount
        )
        .into())
    }
}

/// Runs one of the commands.
pub async fn run(session: &Session, command: Kv) -> Outcome {
    match command {
        Kv::Get { field, version, path } => get(session, field, version, &path).await?,
        Kv::Put { cas, path, fields } => put(session, cas, &path, &fields).await?,
        Kv::Patch { path, fields } => patch(session, &path, &fields).await?,
        Kv::List { path } => {
            let place = Place::find(session, &path).await?;
            session.print.keys(&session.client.list(&place.at("metadata")).await?);
        }
        Kv::Delete { versions, path } => delete(session, &versions, &path).await?,
        Kv::Undelete { versions, path } => on_versions(session, "undelete", &versions, &path).await?,
        Kv::Destroy { versions, path } => on_versions(session, "destroy", &versions, &path).await?,
        Kv::Metadata(command) => metadata(session, command).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn get(
    session: &Session,
    field: Option<String>,
    version: Option<u64>,
    path: &str,
) -> Result<(), Failure> {
    let place = Place::find(session, path).await?;
    let query = version.map(|v| format!("?version={v}")).unwrap_or_default();
    let answer = session.client.read(&format!("{}{query}", place.at("data"))).await?;
    if !place.versioned {
        return session.print.answer(&answer, field.as_deref(), "No data.");
    }
    let secret = answer.data().get("data").cloned().unwrap_or(Value::Null);
    if let Some(field) = field {
        let inner = Answer { status: answer.status, body: json!({"data": secret}) };
        return session.print.answer(&inner, Some(&field), "");
    }
    if session.print.json {
        session.print.value(&answer.body);
        return Ok(());
    }
    session.print.line("Metadata");
    session.print.object(answer.data().get("metadata").and_then(Value::as_object).unwrap_or(&Map::new()));
    session.print.line("\nData");
    session.print.object(secret.as_object().unwrap_or(&Map::new()));
    Ok(())
}

async fn put(session: &Session, cas: Option<i64>, path: &str, args: &[String]) -> Result<(), Failure> {
    some(args)?;
    let place = Place::find(session, path).await?;
    let fields = Value::Object(input::fields(args)?);
    let body = if place.versioned {
        let options = cas.map(|cas| json!({"cas": cas})).unwrap_or(json!({}));
        json!({"data": fields, "options": options})
    } else {
        fields
    };
    let answer = session.client.write(&place.at("data"), &body).await?;
    session.print.answer(&answer, None, "Success! Data written.")
}

async fn patch(session: &Session, path: &str, args: &[String]) -> Result<(), Failure> {
    some(args)?;
    let place = Place::find(session, path).await?;
    place.versions_needed()?;
    let body = json!({"data": input::fields(args)?});
    let answer = session.client.send(Verb::Patch, &place.at("data"), Some(&body)).await?;
    session.print.answer(&answer, None, "Success! Data patched.")
}

/// A version without fields is hardly ever meant, and hides the one before.
fn some(args: &[String]) -> Result<(), Failure> {
    if args.is_empty() {
        return Err(anyhow::anyhow!(
            "give fields as key=value, or - with {{}} on standard input to write none"
        )
        .into());
    }
    Ok(())
}

async fn delete(session: &Session, versions: &[u64], path: &str) -> Result<(), Failure> {
    if !versions.is_empty() {
        return on_versions(session, "delete", versions, path).await;
    }
    let place = Place::find(session, path).await?;
    let answer = session.client.delete(&place.at("data")).await?;
    session.print.answer(&answer, None, "Success! Data deleted (if it was there).")
}

async fn on_versions(session: &Session, verb: &str, versions: &[u64], path: &str) -> Result<(), Failure> {
    let place = Place::find(session, path).await?;
    place.versions_needed()?;
    let answer = session.client.write(&place.at(verb), &json!({"versions": versions})).await?;
    session.print.answer(&answer, None, "Success!")
}

async fn metadata(session: &Session, command: KvMetadata) -> Result<(), Failure> {
    let (KvMetadata::Get { path } | KvMetadata::Put { path, .. } | KvMetadata::Delete { path }) = &command;
    let place = Place::find(session, path).await?;
    place.versions_needed()?;
    let at = place.at("metadata");
    let answer = match &command {
        KvMetadata::Get { .. } => session.client.read(&at).await?,
        KvMetadata::Put { fields, .. } => {
            session.client.write(&at, &Value::Object(input::fields(fields)?)).await?
        }
        KvMetadata::Delete { .. } => session.client.delete(&at).await?,
    };
    session.print.answer(&answer, None, "Success!")
}
