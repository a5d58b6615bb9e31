//! Rendering: aligned tables for people, JSON for machines, failures with their exit codes.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use holdfast_client::{Answer, ClientError};
use owo_colors::OwoColorize;
use serde_json::{Map, Value};

/// Why a command ended.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    error: anyhow::Error,
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

    /// Prints the failure with its causes and gives the exit code.
    pub fn report(&self) -> ExitCode {
        let mut stderr = std::io::stderr().lock();
        let head = if stderr.is_terminal() { "Error:".red().to_string() } else { "Error:".to_owned() };
        let _ = writeln!(stderr, "{head} {:#}", self.error);
        ExitCode::from(self.code)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let local =
            matches!(error, ClientError::Address { .. } | ClientError::Tls { .. } | ClientError::File { .. });
        let code = if local { Self::LOCAL } else { Self::API };
        let hint = match &error {
            ClientError::Unreachable { .. } => Some("Is the address right? Set HOLDFAST_ADDR or --address."),
            ClientError::Status { status: 403, .. } => Some(
                "The token is missing, has ended, or its policies do not allow this. See `holdfast token lookup`.",
            ),
            ClientError::Status { status: 503, errors, .. }
                if errors.iter().any(|e| e.contains("sealed")) =>
            {
                Some("Unseal the node with `holdfast operator unseal`.")
            }
            _ => None,
        };
        let error = anyhow::Error::from(error);
        let error = match hint {
            Some(hint) => anyhow::anyhow!("{error:#}\n\n{hint}"),
            None => error,
        };
        Self { code, error }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { code: Self::LOCAL, error }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self { code: Self::LOCAL, error: error.into() }
    }
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
            self.pairs(pairs);
        }
        Ok(())
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
    fn a_lease_comes_before_its_data() {
        let body = json!({"request_id": "x", "lease_id": "db/creds/a/1", "lease_duration": 60, "renewable": true,
            "data": {"username": "u"}, "auth": null});
        let pairs = flatten(&Answer { status: 200, body });
        let keys: Vec<_> = pairs.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["lease_id", "lease_duration", "lease_renewable", "username"]);
    }
}
