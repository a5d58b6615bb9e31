//! The merged tree of all sources; each value remembers where it came from.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::place::{Place, Position};

/// A value and its source.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) source: Rc<str>,
    /// Where the value begins.
    pub(super) at: Option<Position>,
    /// Where the key of the value begins.
    pub(super) key: Option<Position>,
    pub(super) value: Value,
}

/// A key that is set twice where once is allowed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Twice {
    /// The key, in parts.
    pub path: Vec<String>,
    /// Where it was set first; that is what holds.
    pub first: Place,
    /// Where it was set again.
    pub second: Place,
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
        Self::whole(source.into(), Value::Table(BTreeMap::new()))
    }

    /// A value without a position.
    pub(super) const fn whole(source: Rc<str>, value: Value) -> Self {
        Self { source, at: None, key: None, value }
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
                self.at = over.at;
                self.key = over.key;
            }
        }
    }

    /// Adds `more`: tables are merged, and what is set already stays as it is and is told in `twice`. The entries of the
    /// table at `whole` are not merged, since each is one thing with a name.
    pub(super) fn add(
        &mut self,
        more: Self,
        path: &mut Vec<String>,
        whole: &[String],
        twice: &mut Vec<Twice>,
    ) {
        let is_entry = !whole.is_empty() && path.split_last().is_some_and(|(_, above)| above == whole);
        match (&mut self.value, more.value) {
            (Value::Table(mine), Value::Table(theirs)) if !is_entry => {
                for (key, node) in theirs {
                    match mine.get_mut(&key) {
                        Some(held) => {
                            path.push(key);
                            held.add(node, path, whole, twice);
                            path.pop();
                        }
                        None => {
                            mine.insert(key, node);
                        }
                    }
                }
            }
            (_, value) => {
                let second = Self { source: more.source, at: more.at, key: more.key, value }.key_place();
                twice.push(Twice { path: path.clone(), first: self.key_place(), second });
            }
        }
    }

    /// The place of the value.
    pub(super) fn place(&self) -> Place {
        Place { source: self.source.to_string(), at: self.at.or(self.key) }
    }

    /// The place of its key.
    pub(super) fn key_place(&self) -> Place {
        Place { source: self.source.to_string(), at: self.key.or(self.at) }
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

    /// The value at a key with dots between its parts.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        self.descend(key.split('.'))
    }

    /// The value at a key of these parts, which may have dots in them; numbers lead into lists.
    pub(super) fn at_path<S: AsRef<str>>(&self, path: &[S]) -> Option<&Self> {
        self.descend(path.iter().map(AsRef::as_ref))
    }

    /// The value at a key of these parts, all of them in tables.
    pub(super) fn at_path_mut(&mut self, path: &[String]) -> Option<&mut Self> {
        path.iter().try_fold(self, |node, part| match &mut node.value {
            Value::Table(table) => table.get_mut(part),
            _ => None,
        })
    }

    fn descend<'k>(&self, mut path: impl Iterator<Item = &'k str>) -> Option<&Self> {
        path.try_fold(self, |node, part| match &node.value {
            Value::Table(table) => table.get(part),
            Value::List(list) => list.get(part.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// Removes a key, also of a table in a list, but no item of a list; whether it was there.
    pub(super) fn remove(&mut self, path: &[String]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        match &mut self.value {
            Value::Table(table) if rest.is_empty() => table.remove(first).is_some(),
            Value::Table(table) => table.get_mut(first).is_some_and(|node| node.remove(rest)),
            Value::List(list) if !rest.is_empty() => {
                let item = first.parse().ok().and_then(|index: usize| list.get_mut(index));
                item.is_some_and(|node| node.remove(rest))
            }
            _ => false,
        }
    }

    /// The place of the value at a key; `default` when nobody set it.
    pub(super) fn place_of(&self, key: &str) -> Place {
        self.get(key).map_or_else(|| Place::whole("default"), Self::place)
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
        Self::whole(Rc::clone(source), value)
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
        Self::whole(Rc::clone(source), value)
    }
}
