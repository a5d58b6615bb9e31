//! TOML to a tree with positions, with every fault of the text and not its first one.

use std::ops::Range;
use std::rc::Rc;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, de};

use super::files::{Duplicate, Fault, Parsed};
use super::node::{Node, Value};
use super::place::Position;

/// What the parser says of a key that was set before.
const DUPLICATE: &str = "duplicate key";

/// Reads a text. What could be read is in the tree, however many faults there are.
pub(super) fn parse(text: &str, source: &Rc<str>) -> Parsed {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader { text, source, faults: Vec::new() };
    let node = reader.table(table.get_ref(), 0);
    let mut faults = reader.faults;
    let (twice, other): (Vec<_>, Vec<_>) = errors.iter().partition(|error| error.message() == DUPLICATE);
    faults.extend(other.iter().map(|error| Fault {
        at: error.span().map(|span| Position::of(text, span.start)),
        text: first_line(error.message()).to_owned(),
    }));
    let spans: Vec<_> = twice.iter().filter_map(|error| error.span()).collect();
    let duplicates = duplicates(text, &spans, &node);
    let told: Vec<_> = duplicates.iter().map(|duplicate| duplicate.second).collect();
    for span in spans {
        let at = Position::of(text, span.start);
        if !told.contains(&at) {
            faults.push(Fault { at: Some(at), text: DUPLICATE.to_owned() });
        }
    }
    faults.sort_by_key(|fault| fault.at);
    // What a line says after its first fault follows from that.
    faults.dedup_by_key(|fault| fault.at.map(|at| at.line));
    Parsed { node, faults, duplicates }
}

/// Finds where the keys at `spans` belong: each is given a name of its own and the text is read again, so that they
/// show in the tree beside the first of their kind.
fn duplicates(text: &str, spans: &[Range<usize>], first: &Node) -> Vec<Duplicate> {
    if spans.is_empty() {
        return Vec::new();
    }
    let mut marked = String::with_capacity(text.len());
    let mut from = 0;
    for (index, span) in spans.iter().enumerate() {
        let Some(before) = text.get(from..span.start) else { return Vec::new() };
        marked.push_str(before);
        marked.push_str(&format!("\"\\u0001{index}\\u0001\""));
        from = span.end;
    }
    marked.push_str(text.get(from..).unwrap_or_default());
    let (table, _) = DeTable::parse_recoverable(&marked);
    let mut found = Vec::new();
    for (index, span) in spans.iter().enumerate() {
        let marker = format!("\u{1}{index}\u{1}");
        let Some(mut path) = path_of(table.get_ref(), &marker) else { continue };
        let Some(name) = text.get(span.clone()).and_then(key_of) else { continue };
        path.push(name);
        let parts: Vec<_> = path.iter().map(String::as_str).collect();
        let at = first.at_path(&parts).and_then(|node| node.key.or(node.at));
        if let Some(first) = at {
            found.push(Duplicate { path, first, second: Position::of(text, span.start) });
        }
    }
    found
}

/// The keys that lead to the table in which `marker` is a key; lists are not looked into.
fn path_of(table: &DeTable<'_>, marker: &str) -> Option<Vec<String>> {
    for (key, value) in table {
        if key.get_ref() == marker {
            return Some(Vec::new());
        }
        if let DeValue::Table(below) = value.get_ref()
            && let Some(mut path) = path_of(below, marker)
        {
            path.insert(0, key.get_ref().to_string());
            return Some(path);
        }
    }
    None
}

/// The key that a piece of TOML spells.
fn key_of(text: &str) -> Option<String> {
    let table: toml::Table = format!("{text} = 0").parse().ok()?;
    table.into_iter().next().map(|(key, _)| key)
}

/// No message quotes the file, which may hold a secret.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}

struct Reader<'a> {
    text: &'a str,
    source: &'a Rc<str>,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    fn node(&self, value: Value, at: usize) -> Node {
        let at = Some(Position::of(self.text, at));
        Node { source: Rc::clone(self.source), at, key: None, value }
    }

    fn table(&mut self, table: &DeTable<'_>, at: usize) -> Node {
        let entry = |reader: &mut Self, (key, value): (&Spanned<de::DeString<'_>>, &Spanned<DeValue<'_>>)| {
            let mut node = reader.value(value);
            node.key = Some(Position::of(reader.text, key.span().start));
            (key.get_ref().to_string(), node)
        };
        let entries = table.iter().map(|pair| entry(self, pair)).collect();
        self.node(Value::Table(entries), at)
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>) -> Node {
        let at = value.span().start;
        let value = match value.get_ref() {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => Value::Int(number),
                Err(_) => self.fault(at, "number too large"),
            },
            DeValue::Float(number) => match number.as_str().parse() {
                Ok(number) => Value::Float(number),
                Err(_) => self.fault(at, "number too large"),
            },
            DeValue::Boolean(flag) => Value::Bool(*flag),
            DeValue::Datetime(time) => Value::Text(time.to_string()),
            DeValue::Array(list) => Value::List(list.iter().map(|item| self.value(item)).collect()),
            DeValue::Table(table) => return self.table(table, at),
        };
        self.node(value, at)
    }

    fn fault(&mut self, at: usize, text: &str) -> Value {
        self.faults.push(Fault { at: Some(Position::of(self.text, at)), text: text.to_owned() });
        Value::Null
    }
}
