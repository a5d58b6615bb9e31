//! From the merged tree to a role's struct, collecting problems instead of stopping at the first.
//!
//! A value that does not fit is reported, taken out of the tree, and the parse is tried again, so that its default
//! stands in while the rest is looked at. Unknown keys are seen where serde says which fields a struct has.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, EnumAccess, Expected, IntoDeserializer as _, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};

use super::node::{Node, Value};
use super::place::Place;
use super::problems::Problems;

/// The name under which a type that is a text or a table asks for a struct, so that the table's unknown keys are seen and
/// a text from the environment or a flag is taken too.
pub const TEXT_OR_TABLE: &str = "text or table";

/// Parses `section`; `None` when it cannot be made whole even without the faulty keys.
pub(super) fn parse<T: DeserializeOwned>(
    mut section: Node,
    prefix: &str,
    problems: &mut Problems,
) -> Option<T> {
    loop {
        let sink = RefCell::new(std::mem::take(problems));
        let result =
            T::deserialize(Reader { node: &section, path: Path { prefix, up: None, part: "" }, sink: &sink });
        *problems = sink.into_inner();
        let fault = match result {
            Ok(value) => return Some(value),
            Err(fault) => fault,
        };
        let mut path = fault.path.unwrap_or_default();
        let key = path.iter().fold(prefix.to_owned(), |key, part| format!("{key}.{part}"));
        // The closest table that somebody wrote, when the value itself is a default.
        let place = (0..=path.len()).rev().find_map(|length| {
            let node = section.at_path(path.get(..length)?)?;
            (length > 0).then(|| node.place())
        });
        let place = place.unwrap_or_else(|| Place::whole("default"));
        match &fault.missing {
            Some(field) => {
                problems.push(&place, &format!("{key}.{field}"), "is required", "set it");
            }
            None => problems.push(&place, &key, fault.text, "correct the value"),
        }
        // An item of a list is no key that could be left out: without it the whole list is.
        while !path.is_empty() && !section.remove(&path) {
            path.pop();
        }
        if path.is_empty() {
            return None;
        }
    }
}

#[derive(Clone, Copy)]
struct Path<'a> {
    prefix: &'a str,
    up: Option<&'a Path<'a>>,
    part: &'a str,
}

impl<'a> Path<'a> {
    fn parts(&self) -> Vec<String> {
        match self.up {
            None => Vec::new(),
            Some(up) => {
                let mut parts = up.parts();
                parts.push(self.part.to_owned());
                parts
            }
        }
    }

    fn key(&self) -> String {
        self.parts().iter().fold(self.prefix.to_owned(), |key, part| format!("{key}.{part}"))
    }

    fn down(&'a self, part: &'a str) -> Self {
        Self { prefix: self.prefix, up: Some(self), part }
    }
}

/// Why a value does not fit, and where; the place is added by the innermost reader that knows it.
#[derive(Debug)]
struct Fault {
    path: Option<Vec<String>>,
    text: String,
    missing: Option<&'static str>,
}

impl Fault {
    fn at(mut self, path: &Path<'_>) -> Self {
        self.path.get_or_insert_with(|| path.parts());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(text: T) -> Self {
        let text = text.to_string();
        let text =
            if text.starts_with("is ") || text.starts_with("has ") { text } else { format!("is {text}") };
        Self { path: None, text, missing: None }
    }

    // The value itself is left out of these two: it may be a secret in the wrong place.
    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("is {}, not {expected}", kind_of(found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("is {} that does not fit; it must be {expected}", kind_of(found)))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(format_args!("is none of {}", expected.join(", ")))
    }

    fn missing_field(field: &'static str) -> Self {
        Self { path: None, text: String::new(), missing: Some(field) }
    }
}

const fn kind_of(found: Unexpected<'_>) -> &'static str {
    match found {
        Unexpected::Bool(_) => "a boolean",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => "a number",
        Unexpected::Float(_) => "a number with a fraction",
        Unexpected::Str(_) | Unexpected::Char(_) => "text",
        Unexpected::Seq => "a list",
        Unexpected::Map => "a table",
        Unexpected::Unit | Unexpected::Option => "empty",
        _ => "something else",
    }
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    node: &'a Node,
    path: Path<'a>,
    sink: &'a RefCell<Problems>,
}

impl<'a> Reader<'a> {
    fn fault(&self, found: Unexpected<'_>, expected: &dyn Expected) -> Fault {
        <Fault as de::Error>::invalid_type(found, expected).at(&self.path)
    }

    fn any<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let path = self.path;
        let result = match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::Int(number) => match u64::try_from(*number) {
                Ok(number) => visitor.visit_u64(number),
                Err(_) => visitor.visit_i64(*number),
            },
            Value::Unsigned(number) => visitor.visit_u64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Text(text) | Value::Loose(text) => visitor.visit_str(text),
            Value::List(list) => visitor.visit_seq(Items { rest: list.iter().enumerate(), reader: self }),
            Value::Table(table) => visitor.visit_map(Entries::new(table, self)),
        };
        result.map_err(|fault| fault.at(&path))
    }

    /// Reads a loose text as `T`; anything else goes on as it is.
    fn number<'de, T, V>(
        self,
        visitor: V,
        visit: fn(V, T) -> Result<V::Value, Fault>,
    ) -> Result<V::Value, Fault>
    where
        T: std::str::FromStr,
        V: Visitor<'de>,
    {
        let Value::Loose(text) = &self.node.value else { return self.any(visitor) };
        let path = self.path;
        match text.trim().parse() {
            Ok(number) => visit(visitor, number).map_err(|fault| fault.at(&path)),
            Err(_) => Err(self.fault(Unexpected::Str(text), &visitor)),
        }
    }

    /// A loose text where a list or table is wanted: TOML's inline form, or for a list its items with commas.
    fn structured(&self, list: bool) -> Option<Result<Node, Fault>> {
        let Value::Loose(text) = &self.node.value else { return None };
        let text = text.trim();
        let source = &self.node.source;
        if text.starts_with(['[', '{']) {
            let parsed =
                format!("value = {text}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("value"));
            let json = || serde_json::from_str(text).ok().map(|value| Node::from_json(value, source));
            let node = parsed.map(|value| Node::from_toml(value, source)).or_else(json);
            let fault =
                || <Fault as de::Error>::custom("is neither an inline TOML value nor JSON").at(&self.path);
            return Some(node.ok_or_else(fault));
        }
        if !list {
            return Some(Err(self.fault(Unexpected::Str(text), &"a table")));
        }
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let node = |item: &str| Node::whole(source.clone(), Value::Loose(item.to_owned()));
        Some(Ok(Node::whole(source.clone(), Value::List(items.map(node).collect()))))
    }

    fn report_unknown(&self, fields: &[&str]) {
        let Value::Table(table) = &self.node.value else { return };
        for (key, node) in table.iter().filter(|(key, _)| !fields.contains(&key.as_str())) {
            let full = format!("{}.{key}", self.path.key());
            self.sink.borrow_mut().unknown(&node.key_place(), &full, fields);
        }
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            self.number::<$type, V>(visitor, V::$visit)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Reader<'_> {
    type Error = Fault;

    numbers! {
        deserialize_bool visit_bool bool;
        deserialize_i8 visit_i64 i64;
        deserialize_i16 visit_i64 i64;
        deserialize_i32 visit_i64 i64;
        deserialize_i64 visit_i64 i64;
        deserialize_u8 visit_u64 u64;
        deserialize_u16 visit_u64 u64;
        deserialize_u32 visit_u64 u64;
        deserialize_u64 visit_u64 u64;
        deserialize_f32 visit_f64 f64;
        deserialize_f64 visit_f64 f64;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.value {
            Value::Null => visitor.visit_none(),
            // An empty variable is how a container's environment says "not set".
            Value::Loose(text) if text.is_empty() => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let path = self.path;
        visitor.visit_newtype_struct(self).map_err(|fault| fault.at(&path))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.structured(true) {
            Some(node) => Reader { node: &node?, ..self }.any(visitor),
            None => self.any(visitor),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.structured(false) {
            Some(node) => Reader { node: &node?, ..self }.any(visitor),
            None => self.any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if name == TEXT_OR_TABLE && matches!(&self.node.value, Value::Loose(text) if !text.starts_with('{')) {
            return self.any(visitor);
        }
        let whole = self.structured(false).transpose()?;
        let reader = Reader { node: whole.as_ref().unwrap_or(self.node), ..self };
        reader.report_unknown(fields);
        reader.any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let path = self.path;
        let result = match &self.node.value {
            Value::Text(text) | Value::Loose(text) => {
                let text: StrDeserializer<'_, Fault> = text.as_str().into_deserializer();
                visitor.visit_enum(text)
            }
            Value::Table(table) if table.len() == 1 => match table.iter().next() {
                Some((name, node)) => {
                    let reader = Reader { node, path: self.path.down(name), sink: self.sink };
                    visitor.visit_enum(Variant { name, reader })
                }
                None => Err(self.fault(Unexpected::Map, &visitor)),
            },
            _ => return self.any(visitor),
        };
        result.map_err(|fault| fault.at(&path))
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct identifier ignored_any
    }
}

struct Items<'a> {
    rest: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
    reader: Reader<'a>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        let Some((index, node)) = self.rest.next() else { return Ok(None) };
        let part = index.to_string();
        let path = self.reader.path.down(&part);
        seed.deserialize(Reader { node, path, sink: self.reader.sink }).map(Some).map_err(|f| f.at(&path))
    }
}

struct Entries<'a> {
    rest: std::collections::btree_map::Iter<'a, String, Node>,
    current: Option<(&'a String, &'a Node)>,
    reader: Reader<'a>,
}

impl<'a> Entries<'a> {
    fn new(table: &'a BTreeMap<String, Node>, reader: Reader<'a>) -> Self {
        Self { rest: table.iter(), current: None, reader }
    }
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        self.current = self.rest.next();
        let Some((key, _)) = self.current else { return Ok(None) };
        let text: StringDeserializer<Fault> = key.clone().into_deserializer();
        let path = self.reader.path.down(key);
        seed.deserialize(text).map(Some).map_err(|fault| fault.at(&path))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let Some((key, node)) = self.current.take() else {
            return Err(<Fault as de::Error>::custom("is not a table"));
        };
        let path = self.reader.path.down(key);
        seed.deserialize(Reader { node, path, sink: self.reader.sink }).map_err(|fault| fault.at(&path))
    }
}

struct Variant<'a> {
    name: &'a str,
    reader: Reader<'a>,
}

impl<'a, 'de> EnumAccess<'de> for Variant<'a> {
    type Error = Fault;
    type Variant = Reader<'a>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Reader<'a>), Fault> {
        let name: StrDeserializer<'_, Fault> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self.reader))
    }
}

impl<'de> VariantAccess<'de> for Reader<'_> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        serde::Deserialize::deserialize(self)
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Fault> {
        let path = self.path;
        seed.deserialize(self).map_err(|fault| fault.at(&path))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        de::Deserializer::deserialize_seq(self, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        de::Deserializer::deserialize_struct(self, "", fields, visitor)
    }
}
