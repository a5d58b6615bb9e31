//! `relay list`: the spokes, and the node that holds the stream of each.

use std::process::ExitCode;

use serde_json::Value;

use super::super::{Outcome, Session};
use crate::args::relay::{Format, Place};
use crate::output::Failure;

const DAY: i64 = 86_400;
const INIT: &str = "There is no relay there yet: set it up with `holdfast relay init`.";

/// Runs the command.
pub async fn run(session: &Session, place: &Place, format: Format) -> Outcome {
    let answer = session.client.read(&place.path("spokes")).await.map_err(|error| match error.status() {
        Some(404) => Failure::from(error).hinted(INIT),
        _ => Failure::from(error),
    })?;
    for warning in answer.warnings() {
        session.print.note(format!("WARNING! {warning}"));
    }
    let data = answer.data();
    match format {
        Format::Table if !session.print.json => session.print.line(text(data, now())),
        Format::Yaml => {
            for (key, value) in data.as_object().into_iter().flatten() {
                // A JSON value is a YAML value.
                session.print.line(format!("{key}: {value}"));
            }
        }
        Format::Table | Format::Json => session.print.value(data),
    }
    Ok(ExitCode::SUCCESS)
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// The list as people read it.
fn text(data: &Value, now: i64) -> String {
    let number = |key: &str| data.get(key).and_then(Value::as_i64).unwrap_or(0);
    let port = number("listener_port");
    if port == 0 {
        return "Relay listener is not running.".to_owned();
    }
    let role = if data.get("partial") == Some(&Value::Bool(true)) {
        "(this node is standby; partial view)"
    } else {
        "(this node is active)"
    };
    let mut lines = vec![
        format!("Listener: :{port}   Nodes: {} {role}", number("hub_node_count")),
        format!(
            "Connected: {} total, {} healthy (stale after {}s)",
            number("connected_count"),
            number("healthy_count"),
            number("stale_after_seconds")
        ),
    ];
    let rows: Vec<_> = data.get("spokes").and_then(Value::as_array).into_iter().flatten().collect();
    if !rows.is_empty() {
        lines.push(String::new());
        let header = ["NAME", "NODE", "LAST SEEN", "UPTIME", "CERT EXP", "HEALTH"].map(str::to_owned);
        let rows: Vec<_> =
            std::iter::once(header).chain(rows.into_iter().map(|row| cells(row, now))).collect();
        lines.extend(aligned(&rows));
    }
    lines.join("\n")
}

fn cells(row: &Value, now: i64) -> [String; 6] {
    let text = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or("");
    let number = |key: &str| row.get(key).and_then(Value::as_i64);
    let is = |key: &str| row.get(key) == Some(&Value::Bool(true));
    let node = [text("node_id"), text("node_cluster_addr"), "-"].into_iter().find(|t| !t.is_empty());
    let role = if is("node_is_active") { "active" } else { "standby" };
    let up = number("connected_at_unix").filter(|at| *at > 0).map(|at| now - at);
    [
        text("name").to_owned(),
        format!("{} ({role})", node.unwrap_or("-")),
        number("last_seen_seconds").map_or_else(|| "-".to_owned(), |age| format!("{} ago", span(age))),
        up.map_or_else(|| "-".to_owned(), span),
        match number("cert_not_after").unwrap_or(0) {
            0 => "-".to_owned(),
            end if end <= now => "expired".to_owned(),
            end => span(end - now),
        },
        if is("healthy") { "OK" } else { "STALE" }.to_owned(),
    ]
}

/// The largest whole unit.
fn span(seconds: i64) -> String {
    match seconds.max(0) {
        s if s < 60 => format!("{s}s"),
        s if s < 3600 => format!("{}m", s / 60),
        s if s < DAY => format!("{}h", s / 3600),
        s => format!("{}d", s / DAY),
    }
}

/// Columns as wide as their widest cell, two spaces between them but one behind a node, which ends with its role.
fn aligned(rows: &[[String; 6]]) -> Vec<String> {
    let mut widths = [0_usize; 6];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; 6]| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn spoke(name: &str, node: &str, active: bool, seen: i64, up: i64, healthy: bool) -> Value {
        json!({
            "name": name, "node_id": node, "node_cluster_addr": "10.0.0.1:8201", "node_is_active": active,
            "last_seen_seconds": seen, "connected_at_unix": NOW - up, "healthy": healthy,
            "cert_not_after": NOW + 29 * DAY + 5,
        })
    }

    fn view(spokes: Vec<Value>, partial: bool) -> Value {
        json!({
            "listener_port": 50053, "hub_node_count": 3, "connected_count": spokes.len(), "healthy_count": 2,
            "stale_after_seconds": 45, "partial": partial, "spokes": spokes,
        })
    }

    #[test]
    fn the_list_has_its_form() {
        let spokes = vec![
            spoke("spoke-1", "hub-0", true, 0, 700, true),
            spoke("spoke-2", "hub-2", false, 1, 290, true),
        ];
        let lines: Vec<String> = text(&view(spokes, false), NOW)
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "Listener: :50053 Nodes: 3 (this node is active)",
                "Connected: 2 total, 2 healthy (stale after 45s)",
                "",
                "NAME NODE LAST SEEN UPTIME CERT EXP HEALTH",
                "spoke-1 hub-0 (active) 0s ago 11m 29d OK",
                "spoke-2 hub-2 (standby) 1s ago 4m 29d OK",
            ]
        );
    }

    #[test]
    fn the_header_is_exact_and_a_partial_view_says_so() {
        let text = text(&view(Vec::new(), true), NOW);
        assert!(
            text.starts_with("Listener: :50053   Nodes: 3 (this node is standby; partial view)\nConnected: ")
        );
    }

    #[test]
    fn what_is_unknown_or_past_is_told_as_such() {
        assert_eq!(text(&json!({"listener_port": 0}), NOW), "Relay listener is not running.");
        let mut row = spoke("a", "n", false, 50, -5, false);
        row["cert_not_after"] = json!(0);
        assert_eq!(cells(&row, NOW), ["a", "n (standby)", "50s ago", "0s", "-", "STALE"]);
        row["cert_not_after"] = json!(NOW - 1);
        row["connected_at_unix"] = json!(0);
        row["last_seen_seconds"] = Value::Null;
        assert_eq!(cells(&row, NOW), ["a", "n (standby)", "-", "-", "expired", "STALE"]);
    }

    #[test]
    fn durations_are_their_largest_whole_unit() {
        for (seconds, text) in
            [(-3, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (86_399, "23h"), (DAY, "1d")]
        {
            assert_eq!(span(seconds), text);
        }
    }
}
