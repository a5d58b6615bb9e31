//! Digests of what replicas must have in common: two replicas are alike if and only if their digests are equal.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::binding::{Binding, BindingRules};
use crate::config::{LimitSettings, OnAbsent};
use crate::policy::Policy;

/// A SHA-256.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
        let mut whole = [0; 32];
        whole.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
        Self(whole)
    }

    /// Its bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Its first 8 hexadecimal characters, as in `Holdfast-Config`.
    pub fn short(&self) -> String {
        hex::encode(self.0).chars().take(8).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// JSON in its one form: keys sorted, no spaces, numbers whole.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Canonical {
    /// `null`, for what is not set.
    Null,
    /// `true` or `false`.
    Flag(bool),
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// An object.
    Object(BTreeMap<String, Self>),
}

impl Canonical {
    /// An object of these members.
    pub fn object<'a>(members: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        Self::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// A list of these items.
    pub fn list(items: impl IntoIterator<Item = Self>) -> Self {
        Self::List(items.into_iter().collect())
    }

    /// The digest of its text.
    pub fn digest(&self) -> Digest {
        Digest::of(self.to_string().as_bytes())
    }
}

impl fmt::Display for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl From<&str> for Canonical {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Canonical {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Canonical {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<u32> for Canonical {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<serde_json::Value> for Canonical {
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(flag) => Self::Flag(flag),
            serde_json::Value::Number(number) => match number.as_u64() {
                Some(number) => Self::Number(number),
                None => Self::Text(number.to_string()),
            },
            serde_json::Value::String(text) => Self::Text(text),
            serde_json::Value::Array(items) => Self::list(items.into_iter().map(Self::from)),
            serde_json::Value::Object(map) => {
                Self::Object(map.into_iter().map(|(key, value)| (key, value.into())).collect())
            }
        }
    }
}

/// In milliseconds.
impl From<Duration> for Canonical {
    fn from(span: Duration) -> Self {
        Self::Number(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }
}

impl<T: Into<Self>> From<Option<T>> for Canonical {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// The digests of one configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Digests {
    /// Of everything that replicas must have in common.
    pub whole: Digest,
    /// Of the bindings alone.
    pub bindings: Digest,
    /// Of the policy alone.
    pub policy: Digest,
}

impl Digests {
    /// Of what replicas must have in common. Defaults are those that hold, and so are the rules of each binding: whether
    /// a default is spelt out makes no difference.
    pub fn new(
        bindings: &BTreeMap<Arc<str>, Binding>,
        policy: &Policy,
        defaults: &BindingRules,
        limits: &LimitSettings,
    ) -> Self {
        let bindings = Canonical::list(bindings.values().map(binding));
        let policy = Canonical::from(policy.canonical());
        let (bindings_digest, policy_digest) = (bindings.digest(), policy.digest());
        let whole = Canonical::object([
            ("bindings", bindings),
            ("policy", policy),
            ("defaults", rules(defaults)),
            ("limits", self::limits(limits)),
        ]);
        Self { whole: whole.digest(), bindings: bindings_digest, policy: policy_digest }
    }
}

fn binding(binding: &Binding) -> Canonical {
    Canonical::object([
        ("name", (&*binding.name).into()),
        ("ref", binding.ref_digest.to_string().into()),
        ("options", rules(&binding.rules)),
    ])
}

fn rules(rules: &BindingRules) -> Canonical {
    let on_absent = match rules.on_absent {
        OnAbsent::Keep => "keep",
        OnAbsent::Drop => "drop",
    };
    Canonical::object([
        ("poll", rules.poll.into()),
        ("timeout", rules.timeout.into()),
        ("max_stale", rules.max_stale.into()),
        ("on_absent", on_absent.into()),
        ("sensitive", rules.sensitive.into()),
        ("persist", rules.persist.into()),
        ("max_value_bytes", Canonical::Number(u64::try_from(rules.max_value_bytes).unwrap_or(u64::MAX))),
    ])
}

fn limits(limits: &LimitSettings) -> Canonical {
    Canonical::object([
        ("requests_per_second", limits.requests_per_second.into()),
        ("burst", limits.burst.into()),
        ("streams_per_subject", limits.streams_per_subject.into()),
        ("streams_total", limits.streams_total.into()),
        ("connections", limits.connections.into()),
        ("names_per_stream", limits.names_per_stream.into()),
        ("batch_names", limits.batch_names.into()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PolicySettings, RuleSettings, Verb};

    #[test]
    fn canonical_json_has_one_form() {
        let value = Canonical::object([
            ("b", Canonical::list([true.into(), Canonical::Null, 7u32.into()])),
            ("a", "x\"\u{1}é".into()),
            ("c", Duration::from_millis(1500).into()),
            ("d", serde_json::json!({"z": [1, "x"], "y": null}).into()),
        ]);
        assert_eq!(
            value.to_string(),
            r#"{"a":"x\"\u0001é","b":[true,null,7],"c":1500,"d":{"y":null,"z":[1,"x"]}}"#
        );
        let empty = Digest::of(b"");
        assert_eq!(empty.to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(empty.short(), "e3b0c442");
    }

    fn policy(settings: PolicySettings) -> Policy {
        Policy::new(Some(&settings), |n| holdfast_ops::config::Place::whole(format!("f:{n}"))).unwrap()
    }

    #[test]
    fn what_means_the_same_has_one_digest() {
        let digest = |rules: Vec<RuleSettings>| {
            let policy = policy(PolicySettings { rule: rules, ..PolicySettings::default() });
            Digests::new(&BTreeMap::new(), &policy, &BindingRules::default(), &LimitSettings::default())
                .policy
        };
        let rule = |subjects: &[&str], verbs: Option<Vec<Verb>>| RuleSettings {
            subjects: subjects.iter().map(ToString::to_string).collect(),
            names: vec!["**".into()],
            verbs,
            ..RuleSettings::default()
        };
        let one = digest(vec![rule(&["a", "b"], None), rule(&["c"], None)]);
        let verbs = Some(vec![Verb::Watch, Verb::Read]);
        assert_eq!(one, digest(vec![rule(&["b", "a", "a"], verbs), rule(&["c"], None)]));
        assert_ne!(one, digest(vec![rule(&["c"], None), rule(&["a", "b"], None)]), "rules have an order");
        assert_ne!(one, digest(vec![rule(&["a", "b"], Some(vec![Verb::Read])), rule(&["c"], None)]));
    }

    #[test]
    fn bindings_policy_defaults_and_limits_count() {
        let all = policy(PolicySettings { allow_all: true, ..PolicySettings::default() });
        let one = RuleSettings { everyone: true, names: vec!["*".into()], ..RuleSettings::default() };
        let some = policy(PolicySettings { rule: vec![one], ..PolicySettings::default() });
        let (rules, limits) = (BindingRules::default(), LimitSettings::default());
        let base = Digests::new(&BTreeMap::new(), &all, &rules, &limits);
        let other = Digests::new(&BTreeMap::new(), &some, &rules, &limits);
        assert_eq!(base.bindings, other.bindings);
        assert!(base.policy != other.policy && base.whole != other.whole);
        let persist = BindingRules { persist: false, ..rules };
        let other = Digests::new(&BTreeMap::new(), &all, &persist, &limits);
        assert_eq!((base.bindings, base.policy), (other.bindings, other.policy));
        assert_ne!(base.whole, other.whole);
        let limits = LimitSettings { burst: 1, ..limits };
        assert_ne!(base.whole, Digests::new(&BTreeMap::new(), &all, &rules, &limits).whole);
    }
}
