//! Fragments: one part of a JSON document.
//!
//! Without a leading `/` a fragment is a key at the top, literally; with one it is a pointer (RFC 6901). What is cut out
//! keeps its bytes: numbers, spaces and the order of keys stay as they are.

use std::fmt;

use holdfast_core::AnswerKind;
use holdfast_core::freshness::Failure;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::reference::Fragment;
use crate::value::{Secret, Value};

/// The text is no fragment.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BadFragment {
    /// There is nothing behind the `#`.
    #[error("empty fragment")]
    Empty,
    /// A `~` that neither `0` nor `1` follows.
    #[error("bad escape in fragment")]
    Escape,
}

impl Fragment {
    /// Reads what follows the `#`.
    ///
    /// # Errors
    /// When it is empty or has an escape that RFC 6901 does not know.
    pub fn parse(text: &str) -> Result<Self, BadFragment> {
        if text.is_empty() {
            return Err(BadFragment::Empty);
        }
        match text.strip_prefix('/') {
            None => Ok(Self::Key(text.to_owned())),
            Some(parts) => parts.split('/').map(unescape).collect::<Result<_, _>>().map(Self::Pointer),
        }
    }
}

impl fmt::Display for Fragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => f.write_str(key),
            Self::Pointer(parts) => {
                parts.iter().try_for_each(|part| write!(f, "/{}", part.replace('~', "~0").replace('/', "~1")))
            }
        }
    }
}

fn unescape(part: &str) -> Result<String, BadFragment> {
    let mut pieces = part.split('~');
    let mut whole = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = match piece.split_at_checked(1) {
            Some(("0", rest)) => {
                whole.push('~');
                rest
            }
            Some(("1", rest)) => {
                whole.push('/');
                rest
            }
            _ => return Err(BadFragment::Escape),
        };
        whole.push_str(rest);
    }
    Ok(whole)
}

/// Cuts a fragment out of a value; everything but the bytes stays. None when the document has no such part.
///
/// # Errors
/// `invalid`: the bytes are no JSON, or something that has no parts stands in the way.
pub fn cut(fragment: &Fragment, value: &Value) -> Result<Option<Value>, Failure> {
    let found = find(fragment, value.bytes.expose()).map_err(|NotCut| Failure::of(AnswerKind::Invalid))?;
    Ok(found.map(|bytes| Value { bytes, ..value.clone() }))
}

/// The document cannot be cut.
struct NotCut;

impl From<serde_json::Error> for NotCut {
    fn from(_: serde_json::Error) -> Self {
        Self
    }
}

fn find(fragment: &Fragment, document: &[u8]) -> Result<Option<Secret>, NotCut> {
    let mut here: &RawValue = serde_json::from_slice(document)?;
    match fragment {
        Fragment::Key(key) if here.get().starts_with('{') => match step(here, key)? {
            Some(below) => here = below,
            None => return Ok(None),
        },
        Fragment::Key(_) => return Err(NotCut),
        Fragment::Pointer(parts) => {
            for part in parts {
                match step(here, part)? {
                    Some(below) => here = below,
                    None => return Ok(None),
                }
            }
        }
    }
    content(here).map(Some)
}

/// One level down.
fn step<'a>(here: &'a RawValue, part: &str) -> Result<Option<&'a RawValue>, NotCut> {
    let mut reader = serde_json::Deserializer::from_str(here.get());
    match here.get().bytes().next() {
        Some(b'{') => Ok(Member(part).deserialize(&mut reader)?),
        Some(b'[') => {
            let digits = part.bytes().all(|byte| byte.is_ascii_digit());
            if part.is_empty() || !digits || (part.len() > 1 && part.starts_with('0')) {
                return Err(NotCut);
            }
            // No list has an item of an index that does not fit.
            let Ok(index) = part.parse() else { return Ok(None) };
            Ok(Item(index).deserialize(&mut reader)?)
        }
        _ => Err(NotCut),
    }
}

/// A text without its quotes, nothing for `null`, and anything else as it stands.
fn content(here: &RawValue) -> Result<Secret, NotCut> {
    let text = here.get();
    if text.starts_with('"') {
        return Ok(Secret::new(serde_json::from_str::<String>(text)?.into_bytes()));
    }
    Ok(if text == "null" { Secret::default() } else { Secret::new(text.as_bytes().to_vec()) })
}

/// Takes the member of this name out of an object; the last one of several.
struct Member<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_it) = map.next_key_seed(Is(self.0))? {
            if is_it {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Whether a key is this one.
struct Is<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

/// Takes the item of this index out of a list.
struct Item(usize);

impl<'de> DeserializeSeed<'de> for Item {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Item {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        for _ in 0..self.0 {
            if list.next_element::<IgnoredAny>()?.is_none() {
                return Ok(None);
            }
        }
        let found = list.next_element()?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
