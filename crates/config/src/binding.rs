//! Bindings: names that an operator declared, each with the reference to where its value comes from.

pub mod fragment;
pub mod name;
pub mod reference;
pub mod scheme;
pub mod table;

use std::sync::Arc;
use std::time::Duration;

use crate::config::OnAbsent;
use crate::digest::Digest;
use crate::reference::Reference;

/// A binding that passed all checks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Binding {
    /// Its name.
    pub name: Arc<str>,
    /// Where its value comes from. Its upstream is one of the configuration's.
    pub reference: Reference,
    /// How it is kept.
    pub rules: BindingRules,
    /// Where it was declared, as `FILE:LINE`.
    pub declared: String,
    /// The digest of its reference as written, which no file layout and no directory changes.
    pub ref_digest: Digest,
}

/// How a binding's value is kept; the binding's own rules, or those of `defaults`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BindingRules {
    /// Time between two readings; 30 s (1 s-24 h).
    pub poll: Duration,
    /// The longest attempt; 10 s (100 ms-120 s).
    pub timeout: Duration,
    /// How old a value may get while the upstream fails (to 30 d); none when it may get any age.
    pub max_stale: Option<Duration>,
    /// What a definite absence does to a value that is held.
    pub on_absent: OnAbsent,
    /// Whether the value is a secret or none; none when the provider says.
    pub sensitive: Option<bool>,
    /// Whether it may be kept in the last-known-good file.
    pub persist: bool,
    /// The largest value, in bytes; 1 MiB (1 KiB-16 MiB).
    pub max_value_bytes: usize,
}

impl Default for BindingRules {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            max_stale: None,
            on_absent: OnAbsent::Keep,
            sensitive: None,
            persist: true,
            max_value_bytes: 1 << 20,
        }
    }
}
