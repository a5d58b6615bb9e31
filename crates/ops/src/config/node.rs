//! The merged tree of all sources; each value remembers where it came from.

use std::collections::BTreeMap;
use std::rc::Rc;

/// A value and its source.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) source: Rc<str>,
    pub(super) value: Value,
}

/// What TOML, YAML, environment and flags have in common.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    /// Text of the environment or a flag, which has no type of its own: it is read as what the field wants.
    Loose(String),
    List(Vec<Node>),
    Table(BTreeMap<String, Node>),
}

impl Node {
    pub(super) fn table(source: &str) -> Self {
        Self { source: source.into(), value: Value::Table(BTreeMap::new()) }
    }

    /// Lays `over` on top: tables are merged, everything else is replaced.
    pub(super) fn merge(&mut self, over: Self) {
        match (&mut self.value, over.value) {
            (Value::Table(mine), Value::Table(theirs)) => {
                for (key, node) in theirs {
                    match mine.get_mut(&key) {
                        Some(held) => held.merge(node),
                        None => {
                            mine.insert(key, node);
                        }
                    }
                }
            }
            (held, value) => {
                *held = value;
                self.source = over.source;
            }
        }
    }

    /// Puts a leaf at a dotted key, making tables on the way. The error is the key in the way that is no table.
    pub(super) fn put(&mut self, key: &str, leaf: Self) -> Result<(), String> {
        let mut at = self;
        let mut path = String::new();
        for part in key.split('.') {
            let Value::Table(table) = &mut at.value else { return Err(path) };
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(part);
            at = table.entry(part.to_owned()).or_insert_with(|| Self::table(&leaf.source));
        }
        if matches!(&at.value, Value::Table(table) if !table.is_empty()) {
            return Err(path);
        }
        *at = leaf;
        Ok(())
    }

    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        key.split('.').try_fold(self, |node, part| match &node.value {
            Value::Table(table) => table.get(part),
            _ => None,
        })
    }

    /// Removes a key; whether it was there.
    pub(super) fn remove(&mut self, path: &[String]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        let Value::Table(table) = &mut self.value else { return false };
        if rest.is_empty() {
            return table.remove(first).is_some();
        }
        table.get_mut(first).is_some_and(|node| node.remove(rest))
    }

    /// The source of the value at a key, or of the closest table around it; `default` when nobody set it.
    pub(super) fn source_of(&self, key: &str) -> String {
        match self.get(key) {
            Some(node) => node.source.to_string(),
            None => "default".to_owned(),
        }
    }

    pub(super) fn from_toml(value: toml::Value, source: &Rc<str>) -> Self {
        let value = match value {
            toml::Value::String(text) => Value::Text(text),
            toml::Value::Integer(number) => Value::Int(number),
            toml::Value::Float(number) => Value::Float(number),
            toml::Value::Boolean(flag) => Value::Bool(flag),
            toml::Value::Datetime(time) => Value::Text(time.to_string()),
            toml::Value::Array(list) => {
                Value::List(list.into_iter().map(|item| Self::from_toml(item, source)).collect())
            }
            toml::Value::Table(table) => {
                Value::Table(table.into_iter().map(|(k, v)| (k, Self::from_toml(v, source))).collect())
            }
        };
        Self { source: Rc::clone(source), value }
    }

    pub(super) fn from_json(value: serde_json::Value, source: &Rc<str>) -> Self {
        let value = match value {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(flag) => Value::Bool(flag),
            serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Value::Int(number),
                (None, Some(number)) => Value::Unsigned(number),
                (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => Value::Text(text),
            serde_json::Value::Array(list) => {
                Value::List(list.into_iter().map(|item| Self::from_json(item, source)).collect())
            }
            serde_json::Value::Object(map) => {
                Value::Table(map.into_iter().map(|(k, v)| (k, Self::from_json(v, source))).collect())
            }
        };
        Self { source: Rc::clone(source), value }
    }
}
