//! The names of nodes.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

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

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for NodeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}
