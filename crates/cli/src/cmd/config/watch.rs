//! `config watch`: one line for each event.

use std::collections::HashSet;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::anyhow;
use holdfast_client::config::{Event, State};
use holdfast_core::AnswerKind;
use serde_json::{Value as Json, json};

use super::super::Outcome;
use super::replicas;
use super::show::{self, Show};
use super::{REFUSED, UNREACHABLE};
use crate::args::Global;
use crate::args::config::WatchArgs;
use crate::output::{Failure, Printer};

/// One line.
struct Line {
    event: &'static str,
    name: Arc<str>,
    detail: String,
    endpoint: Arc<str>,
    json: Json,
}

/// Runs the command.
pub async fn run(global: &Global, print: Printer, args: &WatchArgs) -> Outcome {
    let client = replicas::client(global, &args.replicas)?;
    let watch = client.watch(args.names.iter().map(String::as_str));
    let mut watch = watch.map_err(|error| anyhow!("{error}"))?;
    let show = Show::new(args.show);
    let names: HashSet<&str> = args.names.iter().map(String::as_str).collect();
    let mut denied: HashSet<Arc<str>> = HashSet::new();
    // Whoever was reached once is waited for; who never was is reported.
    let patience = tokio::time::sleep(args.replicas.timeout);
    tokio::pin!(patience);
    let mut reached = false;
    let mut trouble = None;
    loop {
        let event = tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
            event = watch.next() => event,
            () = &mut patience, if !reached => {
                let text = trouble.unwrap_or_else(|| "no replica took the watch".to_owned());
                return Err(Failure::from(anyhow!(text)).coded(UNREACHABLE));
            }
        };
        let Some(event) = event else { return Ok(ExitCode::SUCCESS) };
        match &event {
            Event::State(State::Live { .. }) => reached = true,
            Event::State(State::Reconnecting { error, .. }) => {
                trouble = error.as_ref().map(ToString::to_string);
            }
            Event::State(State::Refused { error }) if replicas::code(error) == REFUSED => {
                return Err(Failure::from(anyhow!("{error}")).coded(REFUSED));
            }
            Event::Error { name, kind: AnswerKind::PermissionDenied, .. } => {
                denied.insert(Arc::clone(name));
            }
            Event::Update(value) => {
                denied.remove(&value.name);
            }
            _ => {}
        }
        // A reader that is gone ends it.
        if let Some(line) = line(&event, show)
            && !write(print, &line)
        {
            return Ok(ExitCode::SUCCESS);
        }
        if denied.len() == names.len() {
            return Ok(ExitCode::from(REFUSED));
        }
    }
}

/// What an event is to a reader; none for one that is of no interest.
fn line(event: &Event, show: Show) -> Option<Line> {
    let state = |event, detail: String, endpoint: &Arc<str>| {
        let json = json!({ "event": event, "detail": detail, "endpoint": &**endpoint });
        Line { event, name: "-".into(), detail, endpoint: Arc::clone(endpoint), json }
    };
    Some(match event {
        Event::Update(value) => {
            let (text, age) = (show.text(value), show::age(value, show::now()));
            let version = value.version.as_deref().unwrap_or("-");
            let stale = if value.stale { format!(" stale={}", show::stale(value)) } else { String::new() };
            Line {
                event: "update",
                name: Arc::clone(&value.name),
                detail: format!("{text} version={version} age={age}{stale}"),
                endpoint: Arc::clone(&value.endpoint),
                json: json!({ "event": "update", "value": show.json(value) }),
            }
        }
        Event::Error { name, kind, message, endpoint } => Line {
            event: "error",
            name: Arc::clone(name),
            detail: format!("{kind}: {message}"),
            endpoint: Arc::clone(endpoint),
            json: json!({ "event": "error", "name": &**name, "kind": kind.label(), "message": &**message,
                "endpoint": &**endpoint }),
        },
        Event::State(State::Live { endpoint }) => state("live", String::new(), endpoint),
        Event::State(State::Reconnecting { error, .. }) => {
            state("reconnecting", error.as_ref().map(ToString::to_string).unwrap_or_default(), &"-".into())
        }
        Event::State(State::Refused { error }) => state("refused", error.to_string(), &"-".into()),
        Event::ConfigDiffers { between: [(a, at), (b, but)] } => {
            state("config-differs", format!("{at} there, {but} at {b}"), a)
        }
        _ => return None,
    })
}

/// Writes a line; false when nobody reads.
fn write(print: Printer, line: &Line) -> bool {
    let time = show::date(show::now()).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    let written = if print.json {
        let mut json = line.json.clone();
        json.as_object_mut().map(|map| map.insert("time".into(), json!(time)));
        writeln!(out, "{json}")
    } else {
        let Line { event, name, detail, endpoint, .. } = line;
        let text = format!("{time}  {event:<12}  {name}  {detail}");
        writeln!(out, "{}  {endpoint}", text.trim_end())
    };
    written.and_then(|()| out.flush()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_a_line_with_the_replica_that_told_it() {
        let show = Show::new(true);
        let (kind, message) = (AnswerKind::NotFound, "binding not found".into());
        let event = Event::Error { name: "a".into(), kind, message, endpoint: "https://a".into() };
        let line = super::line(&event, show).unwrap();
        assert_eq!((line.event, &*line.name, &*line.endpoint), ("error", "a", "https://a"));
        assert_eq!(line.detail, "not_found: binding not found");
        assert_eq!(line.json["kind"], "not_found");
        let live = Event::State(State::Live { endpoint: "https://a".into() });
        let line = super::line(&live, show).unwrap();
        assert_eq!(
            (line.event, &*line.endpoint, line.json["event"].as_str()),
            ("live", "https://a", Some("live"))
        );
        let between = [("https://a".into(), "aaaa".into()), ("https://b".into(), "bbbb".into())];
        let line = super::line(&Event::ConfigDiffers { between }, show).unwrap();
        assert_eq!(line.detail, "aaaa there, bbbb at https://b");
        assert!(super::line(&Event::Closed, show).is_none());
    }
}
