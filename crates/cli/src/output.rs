//! Rendering: aligned tables for people, JSON for machines, failures with their exit codes.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use holdfast_client::{Answer, ClientError};
use owo_colors::OwoColorize;
use serde_json::{Map, Value};

use crate::hints;

/// Why a command ended.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    error: anyhow::Error,
    /// The status of the server's refusal.
    status: Option<u16>,
    hint: Option<&'static str>,
}

impl Failure {
    /// Wrong use, or an error on this side.
    pub const LOCAL: u8 = 1;
    /// The server refused or did not answer.
    pub const API: u8 = 2;
    /// The same failure with another exit code.
    pub fn coded(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The status of the server's refusal, if it was one.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// The same failure with another word about what to do.
    pub fn hinted(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// Prints the failure with its causes and what to do, and gives the exit code.
    pub fn report(&self, json: bool) -> ExitCode {
        let mut stderr = std::io::stderr().lock();
        if json {
            let _ = writeln!(stderr, "{}", self.as_json());
            return ExitCode::from(self.code);
        }
        let head = if stderr.is_terminal() { "Error:".red().to_string() } else { "Error:".to_owned() };
        let _ = writeln!(stderr, "{head} {:#}", self.error);
        if let Some(hint) = self.hint {
            let _ = writeln!(stderr, "\n{hint}");
        }
        ExitCode::from(self.code)
    }

    fn as_json(&self) -> Value {
        serde_json::json!({
            "error": format!("{:#}", self.error), "hint": self.hint, "status": self.status, "exit_code": self.code,
        })
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let local =
            matches!(error, ClientError::Address { .. } | ClientError::Tls { .. } | ClientError::File { .. });
        let code = if local { Self::LOCAL } else { Self::API };
        let (hint, status, warnings) = (hints::of(&error), error.status(), warnings(&error));
        let mut error = anyhow::Error::from(error);
        if !warnings.is_empty() {
            error = anyhow::anyhow!("{error:#}{warnings}");
        }
        Self { code, error, status, hint }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { code: Self::LOCAL, error, status: None, hint: None }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        anyhow::Error::from(error).into()
    }
}

/// What the server said beside its errors.
fn warnings(error: &ClientError) -> String {
    let ClientError::Status { body: Some(body), .. } = error else { return String::new() };
    let warnings = body.get("warnings").and_then(Value::as_array).into_iter().flatten();
    warnings.map(|warning| format!("\n  * {}", cell(warning))).collect()
}

/// A table without lines, as command-line tools print them.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(header.to_vec());
    table.add_row(header.iter().map(|h| "-".repeat(h.len())).collect::<Vec<_>>());
    rows.into_iter().for_each(|row| {
        table.add_row(row);
    });
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 4));
    });
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// A value as a cell of a table.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "n/a".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(|i| !i.is_object() && !i.is_array()) => {
            format!("[{}]", items.iter().map(cell).collect::<Vec<_>>().join(" "))
        }
        other => other.to_string(),
    }
}

/// How answers are printed.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    /// JSON for machines.
    pub json: bool,
}

impl Printer {
    /// Prints text.
    pub fn line(self, text: impl AsRef<str>) {
        let _ = writeln!(std::io::stdout().lock(), "{}", text.as_ref());
    }

    /// Prints a remark to standard error, where it does no harm to what is piped.
    pub fn note(self, text: impl AsRef<str>) {
        let _ = writeln!(std::io::stderr().lock(), "{}", text.as_ref());
    }

    /// Prints a JSON value.
    pub fn value(self, value: &Value) {
        self.line(serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string()));
    }

    /// Prints rows, or in JSON mode the value.
    pub fn rows(self, json: &Value, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        if self.json { self.value(json) } else { self.line(table(header, rows)) }
    }

    /// Prints an object as key and value.
    pub fn object(self, map: &Map<String, Value>) {
        if self.json {
            return self.value(&Value::Object(map.clone()));
        }
        self.pairs(map.iter().map(|(k, v)| (k.clone(), v.clone())));
    }

    /// Prints keys and values in the order given.
    pub fn pairs(self, pairs: impl IntoIterator<Item = (String, Value)>) {
        self.line(table(&["Key", "Value"], pairs.into_iter().map(|(k, v)| vec![k, cell(&v)])));
    }

    /// Prints that a command without an answer is done; in JSON mode an object, so that each command prints one.
    pub fn done(self, text: impl AsRef<str>) {
        if self.json { self.value(&done()) } else { self.line(text) }
    }

    /// Prints how something goes on; nothing in JSON mode.
    pub fn progress(self, text: impl AsRef<str>) {
        if !self.json {
            self.line(text);
        }
    }

    /// Prints an answer of the API: one field, or everything.
    pub fn answer(self, answer: &Answer, field: Option<&str>, done: &str) -> Result<(), Failure> {
        answer.warnings().iter().for_each(|w| self.note(format!("WARNING: {w}")));
        if let Some(field) = field {
            let value = find_field(answer, field);
            let value = value.ok_or_else(|| anyhow::anyhow!("the answer has no field {field:?}"))?;
            self.line(if self.json { value.to_string() } else { cell(&value) });
            return Ok(());
        }
        if self.json {
            self.value(&json_of(answer));
            return Ok(());
        }
        let pairs = flatten(answer);
        if pairs.is_empty() {
            self.done(done);
        } else {
            self.nested(pairs);
        }
        Ok(())
    }

    /// Prints keys and values; lists and maps of objects become tables of their own below.
    fn nested(self, pairs: Vec<(String, Value)>) {
        let (below, plain): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(_, value)| rows_of(value).is_some());
        let apart = !plain.is_empty();
        if apart {
            self.pairs(plain);
        }
        for (index, (name, value)) in below.iter().enumerate() {
            let gap = if apart || index > 0 { "\n" } else { "" };
            let (header, rows) = rows_of(value).unwrap_or_default();
            let header: Vec<_> = header.iter().map(String::as_str).collect();
            self.line(format!("{gap}{name}\n{}", table(&header, rows)));
        }
    }

    /// Prints the names of a list.
    pub fn keys(self, answer: &Answer) {
        let keys = answer.keys();
        if self.json {
            return self.value(&Value::from(keys));
        }
        self.line(table(&["Keys"], keys.into_iter().map(|key| vec![key])));
    }
}

type Rows = (Vec<String>, Vec<Vec<String>>);

/// The table of a list of objects, or of a map of objects whose keys come first; none for anything else.
fn rows_of(value: &Value) -> Option<Rows> {
    let entries: Vec<(Option<&str>, &Map<String, Value>)> = match value {
        Value::Array(items) => {
            items.iter().map(|item| Some((None, item.as_object()?))).collect::<Option<_>>()?
        }
        Value::Object(map) => {
            let mut named: Vec<_> = map
                .iter()
                .map(|(key, item)| Some((Some(key.as_str()), item.as_object()?)))
                .collect::<Option<_>>()?;
            // Numbers of versions in their own order.
            named.sort_by_key(|(key, _)| key.and_then(|key| key.parse::<u64>().ok()));
            named
        }
        _ => return None,
    };
    let named = entries.first()?.0.is_some();
    let mut columns: Vec<&String> = Vec::new();
    for (_, item) in &entries {
        columns.extend(item.keys().filter(|key| !columns.contains(key)).collect::<Vec<_>>());
    }
    let row = |(key, item): &(Option<&str>, &Map<String, Value>)| {
        let cells = columns.iter().map(|column| item.get(*column).map(cell).unwrap_or_default());
        key.map(str::to_owned).into_iter().chain(cells).collect()
    };
    let rows = entries.iter().map(row).collect();
    let header =
        named.then(|| "Key".to_owned()).into_iter().chain(columns.iter().map(|c| (*c).clone())).collect();
    Some((header, rows))
}

/// What JSON mode prints for a command whose answer has no body.
fn done() -> Value {
    serde_json::json!({"ok": true})
}

fn json_of(answer: &Answer) -> Value {
    if answer.body.is_null() { done() } else { answer.body.clone() }
}

fn find_field(answer: &Answer, field: &str) -> Option<Value> {
    let places = [answer.data(), answer.auth(), answer.member("wrap_info"), &answer.body];
    let mut found = places.iter().filter_map(|place| place.get(field)).filter(|value| !value.is_null());
    found.next().cloned()
}

/// The members that people want to see of an envelope, the lease or token first.
fn flatten(answer: &Answer) -> Vec<(String, Value)> {
    if let Some(auth) = answer.auth().as_object() {
        return flatten_auth(auth);
    }
    if let Some(wrap) = answer.member("wrap_info").as_object() {
        return wrap.iter().map(|(k, v)| (format!("wrapping_{k}"), v.clone())).collect();
    }
    let mut pairs = Vec::new();
    if answer.member("lease_id").as_str().is_some_and(|id| !id.is_empty()) {
        for (from, to) in
            [("lease_id", "lease_id"), ("lease_duration", "lease_duration"), ("renewable", "lease_renewable")]
        {
            pairs.push((to.to_owned(), answer.member(from).clone()));
        }
    }
    let rest = match answer.data() {
        Value::Object(data) => Some(data),
        _ if answer.member("request_id").is_null() => answer.body.as_object(),
        _ => None,
    };
    pairs.extend(rest.into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
    pairs
}

fn flatten_auth(auth: &Map<String, Value>) -> Vec<(String, Value)> {
    const MEMBERS: [(&str, &str); 6] = [
        ("client_token", "token"),
        ("accessor", "token_accessor"),
        ("lease_duration", "token_duration"),
        ("renewable", "token_renewable"),
        ("token_policies", "token_policies"),
        ("policies", "policies"),
    ];
    let member = |(from, to): (&str, &str)| (to.to_owned(), auth.get(from).cloned().unwrap_or(Value::Null));
    let mut pairs: Vec<_> = MEMBERS.into_iter().map(member).collect();
    let meta = auth.get("metadata").and_then(Value::as_object);
    pairs.extend(meta.into_iter().flatten().map(|(k, v)| (format!("token_meta_{k}"), v.clone())));
    pairs
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_are_aligned() {
        let rows = vec![vec!["a".into(), "1".into()], vec!["long".into(), "2".into()]];
        assert_eq!(table(&["Key", "Value"], rows), "Key     Value\n---     -----\na       1\nlong    2");
    }

    #[test]
    fn an_answer_without_a_body_is_an_object_in_json() {
        let answer = |body| Answer { status: 204, body };
        assert_eq!(json_of(&answer(Value::Null)), json!({"ok": true}));
        assert_eq!(json_of(&answer(json!({"a": 1}))), json!({"a": 1}));
    }

    #[test]
    fn lists_and_maps_of_objects_are_tables() {
        let (header, rows) = rows_of(&json!([{"id": "a", "up": true}, {"id": "b", "age": 3}])).unwrap();
        assert_eq!(header, ["id", "up", "age"]);
        assert_eq!(rows, [["a", "true", ""], ["b", "", "3"]]);
        let (header, rows) = rows_of(&json!({"10": {"v": 1}, "9": {"v": 2}})).unwrap();
        assert_eq!(header, ["Key", "v"]);
        assert_eq!(rows, [["9", "2"], ["10", "1"]]);
        for plain in [json!([]), json!({}), json!([1]), json!({"a": 1}), json!("x"), json!([{"a": 1}, 2])] {
            assert!(rows_of(&plain).is_none(), "{plain}");
        }
    }

    #[test]
    fn a_failure_for_machines_is_one_object() {
        let refused = ClientError::Status {
            method: "GET".into(),
            path: "kv/a".into(),
            status: 404,
            errors: vec![],
            body: None,
        };
        let shown = Failure::from(refused).as_json();
        assert_eq!((&shown["status"], &shown["exit_code"]), (&json!(404), &json!(2)));
        assert!(shown["error"].is_string() && shown["hint"].is_string(), "{shown}");
        assert_eq!(Failure::from(anyhow::anyhow!("x")).as_json()["status"], Value::Null);
    }

    #[test]
    fn a_lease_comes_before_its_data() {
        let body = json!({"request_id": "x", "lease_id": "db/creds/a/1", "lease_duration": 60, "renewable": true,
            "data": {"username": "u"}, "auth": null});
        let pairs = flatten(&Answer { status: 200, body });
        let keys: Vec<_> = pairs.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["lease_id", "lease_duration", "lease_renewable", "username"]);
    }
}
