//! Text from a document that is wiped when it is no longer needed.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

/// A text that is never shown.
#[derive(Clone, Default)]
pub(crate) struct Wiped(Zeroizing<String>);

impl Wiped {
    /// Takes a text.
    pub(crate) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl Deref for Wiped {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Wiped {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(Self::new)
    }
}

/// Into another document that is wiped.
impl Serialize for Wiped {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}
