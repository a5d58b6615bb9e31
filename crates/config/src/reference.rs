//! References: where a binding's value comes from, as `scheme://path[#fragment][?option=v&...]` or `scheme:rest`.

use std::collections::BTreeMap;

use crate::config::Scheme;

/// A parsed reference.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Reference {
    /// What is fetched.
    pub object: ObjectKey,
    /// What is cut out of it; the whole unless given.
    pub fragment: Option<Fragment>,
}

/// What one upstream call fetches. Bindings that differ only in their fragment share one object.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ObjectKey {
    /// The name of the upstream, `[upstream.NAME]`; the scheme's own name for `static`, and wherever the only upstream
    /// of the scheme's type is meant.
    pub upstream: String,
    /// The scheme.
    pub scheme: Scheme,
    /// The path, without fragment and options.
    pub path: String,
    /// The provider's options.
    pub options: BTreeMap<String, String>,
}

/// What is cut out of a JSON object.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Fragment {
    /// A key at the top, literally.
    Key(String),
    /// A pointer of RFC 6901, its parts unescaped.
    Pointer(Vec<String>),
}
