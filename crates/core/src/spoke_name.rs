//! The name of a spoke: what its certificate is made for, and what configurations refer to it by.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest name, in bytes: what a common name of a certificate holds.
const LONGEST: usize = 63;
/// Common names of the relay's own certificates, which no spoke may have.
pub const RESERVED_NAMES: [&str; 2] = ["holdfast-spoke-ca", "holdfast-hub"];

/// The name of a spoke: `[A-Za-z0-9][A-Za-z0-9._-]{0,62}`, and none of the two reserved ones. Cheap
/// to copy.
#[derive(Clone, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct SpokeName(Arc<str>);

/// The text is no name of a spoke.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("spoke_name must match [A-Za-z0-9][A-Za-z0-9._-]{{0,62}} and must not be a reserved name")]
pub struct BadSpokeName;

impl SpokeName {
    /// Checks a name.
    ///
    /// # Errors
    /// When the text breaks the rule of the type.
    pub fn parse(text: &str) -> Result<Self, BadSpokeName> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let good = text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.len() <= LONGEST
            && text.chars().all(allowed)
            && !RESERVED_NAMES.iter().any(|reserved| text.eq_ignore_ascii_case(reserved));
        if good { Ok(Self(text.into())) } else { Err(BadSpokeName) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SpokeName {
    type Error = BadSpokeName;

    fn try_from(text: String) -> Result<Self, BadSpokeName> {
        Self::parse(&text)
    }
}

impl FromStr for SpokeName {
    type Err = BadSpokeName;

    fn from_str(text: &str) -> Result<Self, BadSpokeName> {
        Self::parse(text)
    }
}

impl From<SpokeName> for String {
    fn from(name: SpokeName) -> Self {
        name.as_str().to_owned()
    }
}

impl Borrow<str> for SpokeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SpokeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SpokeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fits_a_common_name_is_a_name() {
        let longest = "a".repeat(63);
        for good in ["a", "spoke-1", "9.x_y-z", "Spoke", longest.as_str()] {
            assert_eq!(good.parse::<SpokeName>().unwrap().as_str(), good);
        }
        let longer = "a".repeat(64);
        for bad in ["", "-a", ".a", "a b", "a/b", "ä", "a\n", "holdfast-hub", "Holdfast-Spoke-CA", &longer] {
            assert_eq!(bad.parse::<SpokeName>(), Err(BadSpokeName), "{bad:?}");
        }
    }
}
