//! The two notations of a policy, read into one tree.
//!
//! HCL is a whole expression language; policies need literals only. So the text passes a scanner first that lets
//! through names, strings without interpolation, numbers, lists and objects, a few levels deep. What it refuses,
//! the parser never sees: no text can drive the parser's recursion deep, and a key that stands twice, which the
//! parser would merge silently, is an error.

use std::collections::BTreeSet;
use std::fmt;

use hcl::expr::ObjectKey;
use hcl::structure::{Block, Structure};
use hcl::{Body, Expression};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

/// Levels of brackets; a policy needs three.
const MAX_DEPTH: usize = 8;

/// A literal. Objects keep the order of their members, and members that stand twice.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Members.
    Object(Members),
}

/// The members of an object.
pub type Members = Vec<(String, Node)>;

impl Node {
    /// As a JSON value.
    pub fn into_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(b) => Value::Bool(b),
            Self::Number(n) => Value::Number(n),
            Self::Text(s) => Value::String(s),
            Self::List(items) => items.into_iter().map(Self::into_value).collect(),
            Self::Object(members) => {
                Value::Object(members.into_iter().map(|(name, node)| (name, node.into_value())).collect())
            }
        }
    }
}

/// The `path` stanzas of a policy's text in either notation.
pub fn stanzas(text: &str) -> Result<Vec<(String, Members)>, String> {
    if text.trim_start().starts_with('{') { from_json(text) } else { from_hcl(text) }
}

fn from_json(text: &str) -> Result<Vec<(String, Members)>, String> {
    let node: Node = serde_json::from_str(text).map_err(|error| format!("not valid JSON: {error}"))?;
    let Node::Object(members) = node else { return Err("not an object".into()) };
    let mut out = Vec::new();
    for (name, node) in members {
        if name != "path" {
            return Err(format!("unknown key {name:?}"));
        }
        let groups = match node {
            Node::List(groups) => groups,
            other => vec![other],
        };
        for group in groups {
            let Node::Object(paths) = group else { return Err("\"path\" must hold objects".into()) };
            for (path, stanza) in paths {
                let Node::Object(fields) = stanza else {
                    return Err(format!("path {path:?} must be an object"));
                };
                out.push((path, fields));
            }
        }
    }
    Ok(out)
}

fn from_hcl(text: &str) -> Result<Vec<(String, Members)>, String> {
    scan(text)?;
    let body: Body = hcl::parse(text).map_err(|error| format!("not valid HCL: {error}"))?;
    body.into_inner().into_iter().map(stanza).collect()
}

fn stanza(structure: Structure) -> Result<(String, Members), String> {
    let block = match structure {
        Structure::Block(block) => block,
        Structure::Attribute(attribute) => return Err(format!("unknown key {:?}", attribute.key())),
    };
    let Block { identifier, labels, body } = block;
    if identifier.as_str() != "path" {
        return Err(format!("unknown stanza {:?}", identifier.as_str()));
    }
    let mut labels = labels.into_iter();
    let (Some(path), None) = (labels.next(), labels.next()) else {
        return Err("a path stanza has exactly one path".into());
    };
    let path = path.into_inner();
    let mut fields = Vec::new();
    for structure in body.into_inner() {
        match structure {
            Structure::Attribute(attribute) => {
                fields.push((attribute.key().to_owned(), literal(attribute.expr().clone())?));
            }
            Structure::Block(block) => {
                return Err(format!("path {path:?}: unknown stanza {:?}", block.identifier()));
            }
        }
    }
    Ok((path, fields))
}

fn literal(expression: Expression) -> Result<Node, String> {
    Ok(match expression {
        Expression::Null => Node::Null,
        Expression::Bool(b) => Node::Bool(b),
        Expression::Number(n) => {
            let exact = n.as_u64().map(Number::from).or_else(|| Number::from_f64(n.as_f64()?));
            Node::Number(exact.ok_or("a number is out of range")?)
        }
        Expression::String(s) => Node::Text(s),
        Expression::Array(items) => {
            Node::List(items.into_iter().map(literal).collect::<Result<_, String>>()?)
        }
        Expression::Object(members) => {
            let members = members.into_iter().map(|(key, value)| Ok((object_key(key)?, literal(value)?)));
            Node::Object(members.collect::<Result<_, String>>()?)
        }
        _ => return Err("only literals are possible".into()),
    })
}

fn object_key(key: ObjectKey) -> Result<String, String> {
    match key {
        ObjectKey::Identifier(name) => Ok(name.to_string()),
        ObjectKey::Expression(Expression::String(name)) => Ok(name),
        _ => Err("a key must be a name or a string".into()),
    }
}

/// Where the scanner is.
#[derive(Default)]
struct Scanner {
    /// The keys seen in each open bracket.
    open: Vec<BTreeSet<String>>,
    /// The last name or string.
    word: String,
    top: BTreeSet<String>,
}

/// Refuses what a policy does not need, before the parser sees it.
fn scan(text: &str) -> Result<(), String> {
    let mut scanner = Scanner::default();
    let mut chars = text.chars().peekable();
    let mut in_word = false;
    while let Some(c) = chars.next() {
        let part_of_word = c.is_alphanumeric() || c == '_' || (c == '-' && in_word) || c == '.';
        match c {
            _ if part_of_word => {
                if !in_word {
                    scanner.word.clear();
                }
                scanner.word.push(c);
            }
            '"' => scanner.word = string(&mut chars)?,
            '#' => skip_line(&mut chars),
            '/' => match chars.next() {
                Some('/') => skip_line(&mut chars),
                Some('*') => skip_block(&mut chars)?,
                _ => return Err("unexpected \"/\"".into()),
            },
            '[' | '{' => scanner.open()?,
            ']' | '}' => drop(scanner.open.pop()),
            '=' | ':' => scanner.key()?,
            ',' | ' ' | '\t' | '\r' | '\n' => {}
            other => return Err(format!("unexpected {other:?}")),
        }
        in_word = part_of_word;
    }
    Ok(())
}

impl Scanner {
    fn open(&mut self) -> Result<(), String> {
        self.open.push(BTreeSet::new());
        if self.open.len() > MAX_DEPTH { Err("nested too deeply".into()) } else { Ok(()) }
    }

    fn key(&mut self) -> Result<(), String> {
        let keys = self.open.last_mut().unwrap_or(&mut self.top);
        if keys.insert(self.word.clone()) { Ok(()) } else { Err(format!("{:?} stands twice", self.word)) }
    }
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// The rest of a string after its opening quote.
fn string(chars: &mut Chars<'_>) -> Result<String, String> {
    let mut out = String::new();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Ok(out),
            '\\' => {
                out.push(c);
                out.extend(chars.next());
            }
            '$' | '%' if chars.peek() == Some(&'{') => return Err("interpolation is not possible".into()),
            '\n' => return Err("a string ends on its line".into()),
            other => out.push(other),
        }
    }
    Err("a string does not end".into())
}

fn skip_line(chars: &mut Chars<'_>) {
    let _ = chars.find(|c| *c == '\n');
}

fn skip_block(chars: &mut Chars<'_>) -> Result<(), String> {
    let mut star = false;
    for c in chars {
        if star && c == '/' {
            return Ok(());
        }
        star = c == '*';
    }
    Err("a comment does not end".into())
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Node, E> {
        Ok(Node::Bool(b))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Node, E> {
        Ok(Node::Number(n.into()))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Node, E> {
        Ok(Node::Number(n.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, n: f64) -> Result<Node, E> {
        Number::from_f64(n).map(Node::Number).ok_or_else(|| E::custom("a number is out of range"))
    }

    fn visit_str<E>(self, s: &str) -> Result<Node, E> {
        Ok(Node::Text(s.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Node::Object(members))
    }
}
