//! The names of spokes and nodes.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The name of a spoke: the common name of its certificate. Letters, digits, `.`, `_` and `-`, at most 63, a letter or
/// digit first, and none of the names that the hub's own certificates bear. Cheap to copy.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SpokeName(Arc<str>);

/// The text is no spoke name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid spoke name")]
pub struct InvalidSpokeName;

impl SpokeName {
    /// Common names of the hub's own certificates; no spoke may bear one.
    pub const RESERVED: [&'static str; 2] = ["holdfast-spoke-ca", "holdfast-hub"];
    /// The longest name, in bytes.
    pub const LONGEST: usize = 63;

    /// Checks a name.
    ///
    /// # Errors
    /// When the text breaks the rule of the type.
    pub fn parse(text: &str) -> Result<Self, InvalidSpokeName> {
        let tail = |b: &u8| b.is_ascii_alphanumeric() || b"._-".contains(b);
        let head = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        let fits = text.len() <= Self::LONGEST && head && text.as_bytes().iter().all(tail);
        if fits && !Self::RESERVED.contains(&text) { Ok(Self(text.into())) } else { Err(InvalidSpokeName) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for SpokeName {
    type Error = InvalidSpokeName;

    fn try_from(text: &str) -> Result<Self, InvalidSpokeName> {
        Self::parse(text)
    }
}

impl std::str::FromStr for SpokeName {
    type Err = InvalidSpokeName;

    fn from_str(text: &str) -> Result<Self, InvalidSpokeName> {
        Self::parse(text)
    }
}

/// The name of a hub node: its `node_id`. Cheap to copy.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// Wraps a name that configuration or membership already checked.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

macro_rules! text {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text!(SpokeName);
text!(NodeName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_of_spoke_names() {
        for good in ["a", "Spoke-1", "0.a_b-c", &"x".repeat(63)] {
            assert_eq!(SpokeName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".a", "a b", "ä", "a/b", &"x".repeat(64), "holdfast-hub", "holdfast-spoke-ca"]
        {
            assert_eq!(SpokeName::parse(bad), Err(InvalidSpokeName), "{bad}");
        }
    }
}
