//! YAML to a tree with positions. YAML 1.2, in which `y` and `no` are text.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::files::{Duplicate, Fault, Parsed};
use super::node::{Node, Value};
use super::place::Position;

/// Reads a text; what it says once too often is told beside the tree, in which the first wins.
pub(super) fn parse(text: &str, source: &Rc<str>) -> Parsed {
    let empty = Parsed { node: Node::table(source), faults: Vec::new(), duplicates: Vec::new() };
    if text.trim().is_empty() {
        return empty;
    }
    match serde_saphyr::from_str_with_options::<Spanned<Tree>>(text, options()) {
        Ok(tree) => {
            let mut duplicates = Vec::new();
            let node = node_of(tree, source, &mut Vec::new(), &mut duplicates);
            match node.value {
                Value::Null => empty,
                Value::Table(_) => Parsed { node, faults: Vec::new(), duplicates },
                _ => {
                    let fault = Fault { at: node.at, text: "is not a table at its top".to_owned() };
                    Parsed { faults: vec![fault], ..empty }
                }
            }
        }
        Err(error) => {
            let text = error.to_string();
            // Only the message's first line: what follows may quote the file, which may hold a secret.
            let text = text.lines().next().unwrap_or_default().to_owned();
            let fault = Fault { at: error.location().and_then(|at| position(&at)), text };
            Parsed { faults: vec![fault], ..empty }
        }
    }
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::PassThrough,
    }
}

fn position(at: &Location) -> Option<Position> {
    let number = |number: u64| usize::try_from(number).ok().filter(|number| *number > 0);
    Some(Position { line: number(at.line())?, column: number(at.column())? })
}

fn node_of(
    tree: Spanned<Tree>,
    source: &Rc<str>,
    path: &mut Vec<String>,
    duplicates: &mut Vec<Duplicate>,
) -> Node {
    let at = position(&tree.referenced);
    let value = match tree.value {
        Tree::Scalar(value) => value,
        Tree::List(items) => {
            // A list has no key of its own, so what stands twice inside is reported at the list's.
            Value::List(items.into_iter().map(|item| node_of(item, source, path, duplicates)).collect())
        }
        Tree::Map(entries) => {
            let mut table = BTreeMap::<String, Node>::new();
            for (key, value) in entries {
                let here = position(&key.referenced).or_else(|| position(&value.referenced));
                path.push(key.value);
                let mut node = node_of(value, source, path, duplicates);
                node.key = here;
                let name = path.last().cloned().unwrap_or_default();
                match table.get(&name) {
                    Some(held) => duplicates.extend(held.key.zip(here).map(|(first, second)| Duplicate {
                        path: path.clone(),
                        first,
                        second,
                    })),
                    None => {
                        table.insert(name, node);
                    }
                }
                path.pop();
            }
            Value::Table(table)
        }
    };
    Node { source: Rc::clone(source), at, key: None, value }
}

/// Anything that YAML can say, in order and with whatever stands twice.
enum Tree {
    Scalar(Value),
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<String>, Spanned<Self>)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(Self)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Bool(flag)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Int(number)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(i64::try_from(number).map_or(Value::Unsigned(number), Value::Int)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Float(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key()? {
            let value = map.next_value()?;
            entries.push((key, value));
            if entries.len() > 1_000_000 {
                return Err(A::Error::custom("too many keys"));
            }
        }
        Ok(Tree::Map(entries))
    }
}
