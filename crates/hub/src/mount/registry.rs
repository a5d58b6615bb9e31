//! The mount types this program knows: one line each.

use std::sync::Arc;

use crate::logical::Engine;

/// What sort of paths a type may be mounted at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Class {
    /// Anywhere but below `auth/`.
    Secret,
    /// Below `auth/`.
    Auth,
    /// Always there, once, at its own path.
    System,
}

/// A mount type.
pub struct MountType {
    /// The name in mount entries.
    pub name: &'static str,
    /// Where it may be mounted.
    pub class: Class,
    /// Makes the one engine that serves all mounts of the type.
    pub engine: fn() -> Arc<dyn Engine>,
}

/// Every mount type.
pub const TYPES: &[MountType] = &[
    MountType { name: "system", class: Class::System, engine: crate::sys::engine },
    MountType { name: "cubbyhole", class: Class::System, engine: crate::wrapping::cubbyhole::engine },
    MountType { name: "token", class: Class::System, engine: crate::auth::token::engine::engine },
    MountType { name: "approle", class: Class::Auth, engine: crate::auth::approle::engine },
    MountType { name: "userpass", class: Class::Auth, engine: crate::auth::userpass::engine },
    MountType { name: "kv", class: Class::Secret, engine: crate::kv::engine },
    MountType { name: "database", class: Class::Secret, engine: crate::database::engine },
    MountType { name: "relay", class: Class::Secret, engine: crate::relay::engine::engine },
];

/// Options as a name of a type implies them.
pub type Implied = &'static [(&'static str, &'static str)];

/// Another name under which a type is enabled, with the options that it implies.
pub struct Alias {
    /// The other name.
    pub name: &'static str,
    /// The type's own name.
    pub kind: &'static str,
    /// Options that the other name sets.
    pub options: Implied,
}

/// Other names of mount types.
pub const ALIASES: &[Alias] = &[
    Alias { name: "kv-v2", kind: "kv", options: &[("version", "2")] },
    Alias { name: "kv-v1", kind: "kv", options: &[("version", "1")] },
    Alias { name: "generic", kind: "kv", options: &[("version", "1")] },
];

/// The type with this name, which may be another name of it.
pub fn find(name: &str) -> Option<(&'static MountType, Implied)> {
    let alias = ALIASES.iter().find(|alias| alias.name == name);
    let (kind, options) = alias.map_or((name, [].as_slice()), |alias| (alias.kind, alias.options));
    TYPES.iter().find(|t| t.name == kind).map(|t| (t, options))
}
