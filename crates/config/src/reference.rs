//! References: where a binding's value comes from, as `scheme://path[#fragment][?option=v&...]` or `scheme:rest`.

use std::collections::BTreeMap;

use crate::config::Scheme;

/// A parsed reference. Neither it nor its object shows the value of an option that is a secret.
#[derive(Clone, Eq, Ord, PartialEq, PartialOrd)]
pub struct Reference {
    /// What is fetched.
    pub object: ObjectKey,
    /// What is cut out of it; the whole unless given.
    pub fragment: Option<Fragment>,
}

/// What one upstream call fetches. Bindings that differ only in their fragment share one object.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ObjectKey {
    /// The name of the upstream, `[upstream.NAME]`; `static` for the scheme of that name.
    pub upstream: String,
    /// The scheme.
    pub scheme: Scheme,
    /// The path, without fragment and options; for `https` without the upstream's name and the `/` after it, for `file`
    /// possibly relative to the upstream's first root.
    pub path: String,
    /// The provider's options, decoded; neither `via` nor `optional` is one.
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
