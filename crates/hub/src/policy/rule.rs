//! One rule of a policy: a path pattern, what it grants, and under which conditions.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::logical::Data;

/// What a rule can grant or refuse.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u16)]
pub enum Capability {
    /// Write data that is not there yet.
    Create = 1,
    /// Read.
    Read = 2,
    /// Write data that is there.
    Update = 4,
    /// Merge into data.
    Patch = 8,
    /// Delete.
    Delete = 16,
    /// List names.
    List = 32,
    /// List names below all levels.
    Scan = 64,
    /// Use paths that are reserved to operators.
    Sudo = 128,
    /// Nothing at all, whatever else is granted.
    Deny = 256,
}

impl Capability {
    /// All, in the order in which clients are shown them.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::Create, "create"),
        (Self::Delete, "delete"),
        (Self::Deny, "deny"),
        (Self::List, "list"),
        (Self::Patch, "patch"),
        (Self::Read, "read"),
        (Self::Scan, "scan"),
        (Self::Sudo, "sudo"),
        (Self::Update, "update"),
    ];

    /// The capability with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(capability, _)| *capability)
    }
}

/// A set of capabilities.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Capabilities(u16);

impl Capabilities {
    /// Adds one.
    pub fn add(&mut self, capability: Capability) {
        self.0 |= capability as u16;
    }

    /// Everything that either has.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether it has one.
    pub fn has(self, capability: Capability) -> bool {
        self.0 & capability as u16 != 0
    }

    /// The names, in the order in which clients are shown them; `deny` alone when nothing is granted.
    pub fn names(self) -> Vec<&'static str> {
        if self.has(Capability::Deny) || self.0 == 0 {
            return vec!["deny"];
        }
        Capability::ALL.iter().filter(|(c, _)| self.has(*c)).map(|(_, name)| *name).collect()
    }
}

/// A path with wildcards: `+` stands for one whole segment, a trailing `*` for any rest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pattern {
    text: String,
}

/// How specific a pattern is; the greatest that matches decides.
pub type Rank<'a> = (usize, bool, std::cmp::Reverse<usize>, usize, &'a str);

impl Pattern {
    /// A pattern from a policy's text; a leading slash means nothing.
    pub fn new(text: &str) -> Self {
        Self { text: text.strip_prefix('/').unwrap_or(text).to_owned() }
    }

    /// The text, without a leading slash.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a path matches.
    pub fn matches(&self, path: &str) -> bool {
        let (base, open) = self.base();
        if self.plus_count() == 0 {
            return if open { path.starts_with(base) } else { path == base };
        }
        let mut wanted = base.split('/').peekable();
        let mut rest = path;
        while let Some(segment) = wanted.next() {
            let last = wanted.peek().is_none();
            if last && open {
                return rest.starts_with(segment);
            }
            let (found, tail) = match rest.split_once('/') {
                Some((found, tail)) => (found, Some(tail)),
                None => (rest, None),
            };
            if segment != "+" && segment != found {
                return false;
            }
            match (tail, last) {
                (None, true) => return true,
                (Some(tail), false) => rest = tail,
                _ => return false,
            }
        }
        false
    }

    /// Whether it matches anything at or below a mount, whose path ends with a slash.
    pub fn reaches(&self, mount: &str) -> bool {
        let text = self.text();
        let (body, open) = text.strip_suffix('*').map_or((text, false), |body| (body, true));
        let mut own = body.split('/').peekable();
        for segment in mount.trim_end_matches('/').split('/') {
            match own.next() {
                Some(last) if open && own.peek().is_none() => return segment.starts_with(last),
                Some(same) if same == "+" || same == segment => {}
                _ => return false,
            }
        }
        true
    }

    /// Exact before any wildcard; then the later first wildcard, no trailing `*`, fewer `+`, longer, greater text.
    pub fn rank(&self) -> Rank<'_> {
        let (base, open) = self.base();
        let plus = self.plus_position();
        let star = open.then_some(base.len());
        let first = plus.into_iter().chain(star).min().unwrap_or(usize::MAX);
        (first, !open, std::cmp::Reverse(self.plus_count()), self.text.len(), &self.text)
    }

    fn base(&self) -> (&str, bool) {
        self.text.strip_suffix('*').map_or((self.text.as_str(), false), |base| (base, true))
    }

    fn plus_count(&self) -> usize {
        self.base().0.split('/').filter(|segment| *segment == "+").count()
    }

    fn plus_position(&self) -> Option<usize> {
        let mut at = 0;
        for segment in self.base().0.split('/') {
            if segment == "+" {
                return Some(at);
            }
            at += segment.len() + 1;
        }
        None
    }
}

/// Values by lower-case parameter name; no values means any value.
pub type Parameters = BTreeMap<String, Vec<Value>>;

/// One `path` stanza.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Where it holds.
    pub pattern: Pattern,
    /// What it grants.
    pub capabilities: Capabilities,
    /// When not empty, only these parameters may be written; `*` for all others.
    pub allowed: Parameters,
    /// These parameters must not be written; `*` for any.
    pub denied: Parameters,
    /// These parameters must be there.
    pub required: Vec<String>,
    /// Seconds; the answer must be wrapped for at least this long.
    pub min_wrap: Option<u64>,
    /// Seconds; the answer must be wrapped for at most this long.
    pub max_wrap: Option<u64>,
}

impl Rule {
    /// A rule without conditions.
    pub fn new(pattern: &str, capabilities: Capabilities) -> Self {
        Self {
            pattern: Pattern::new(pattern),
            capabilities,
            allowed: Parameters::new(),
            denied: Parameters::new(),
            required: Vec::new(),
            min_wrap: None,
            max_wrap: None,
        }
    }

    /// Whether a write with these parameters holds nothing that the rule refuses.
    pub fn tolerates(&self, data: &Data) -> bool {
        let any = self.denied.contains_key("*") && !data.as_map().is_empty();
        !any && !data.as_map().iter().any(|(name, value)| {
            self.denied.get(&name.to_lowercase()).is_some_and(|values| lists(values, value))
        })
    }

    /// Whether a write with these parameters has all that the rule requires.
    pub fn has_required(&self, data: &Data) -> bool {
        let names: Vec<String> = data.as_map().keys().map(|name| name.to_lowercase()).collect();
        self.required.iter().all(|wanted| names.contains(wanted))
    }

    /// Whether the rule says how long answers are to be wrapped.
    pub fn bounds_wrapping(&self) -> bool {
        self.min_wrap.is_some() || self.max_wrap.is_some()
    }

    /// Whether the asked time of wrapping is within bounds.
    pub fn wrap_fits(&self, ttl: Option<i64>) -> bool {
        if !self.bounds_wrapping() {
            return true;
        }
        let Some(ttl) = ttl.and_then(|ttl| u64::try_from(ttl).ok()).filter(|ttl| *ttl > 0) else {
            return false;
        };
        self.min_wrap.is_none_or(|min| ttl >= min) && self.max_wrap.is_none_or(|max| ttl <= max)
    }
}

/// Whether rules that restrict the parameters of a write together allow these: each value must be in the list that
/// some rule has for its name. `*` stands for the names that no rule lists.
pub fn allowed_together(rules: &[&Rule], data: &Data) -> bool {
    data.as_map().iter().all(|(name, value)| {
        let name = name.to_lowercase();
        let mut listed = rules.iter().filter_map(|rule| rule.allowed.get(&name)).peekable();
        match listed.peek() {
            Some(_) => listed.any(|values| lists(values, value)),
            None => rules.iter().any(|rule| rule.allowed.contains_key("*")),
        }
    })
}

/// Whether a value is in the list, where no values mean any; texts may begin or end with `*`.
fn lists(values: &[Value], value: &Value) -> bool {
    values.is_empty()
        || values.iter().any(|known| match (known, value) {
            (Value::String(known), Value::String(given)) => glob(known, given),
            _ => known == value,
        })
}

fn glob(pattern: &str, text: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => {
            let middle = rest.strip_suffix('*').unwrap_or(rest);
            text.contains(middle)
        }
        (Some(end), None) => text.ends_with(end),
        (None, Some(start)) => text.starts_with(start),
        (None, None) => pattern == text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn data(value: Value) -> Data {
        Data::new(value.as_object().unwrap().clone())
    }

    #[test]
    fn wildcards_match_segments_and_rests() {
        for (pattern, path, matches) in [
            ("a/b", "a/b", true),
            ("/a/b", "a/b", true),
            ("a/b", "a/b/", false),
            ("a/*", "a/", true),
            ("a/*", "a/b/c", true),
            ("a/b*", "a/bc/d", true),
            ("a/b*", "a/c", false),
            ("*", "", true),
            ("a/+/c", "a/b/c", true),
            ("a/+/c", "a/b/d/c", false),
            ("a/+", "a/b", true),
            ("a/+", "a/b/c", false),
            ("+/+", "a/b", true),
            ("a/+/c*", "a/b/cd/e", true),
            ("a/+/*", "a/b/c/d", true),
            ("a/+/*", "a/b", false),
            ("a/+x", "a/yx", false),
            ("a/+x", "a/+x", true),
            ("a*b", "a*b", true),
            ("a*b", "axb", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(path), matches, "{pattern} on {path}");
        }
    }

    #[test]
    fn the_more_specific_pattern_ranks_higher() {
        let ordered = ["*", "+/*", "a/*", "a/+/+/*", "a/+/*", "a/+/+", "a/+/b*", "a/b/*", "a/b/+", "a/b/c"];
        for (low, high) in [
            ("*", "a/*"),
            ("a/+/*", "a/b/*"),
            ("a/*", "a/+"),
            ("a/+/+", "a/+/c"),
            ("a/+/c*", "a/+/cd*"),
            ("a/+/c", "a/+/d"),
            ("a/b*", "a/b/c"),
            ("a/+/c", "a/b/*"),
        ] {
            assert!(Pattern::new(low).rank() < Pattern::new(high).rank(), "{low} < {high}");
        }
        let mut patterns: Vec<Pattern> = ordered.iter().map(|p| Pattern::new(p)).collect();
        patterns.sort_by(|a, b| a.rank().cmp(&b.rank()));
        assert_eq!(patterns.last().unwrap().text(), "a/b/c");
    }

    #[test]
    fn parameters_are_restricted_by_name_and_value() {
        let mut rule = Rule::new("a", Capabilities::default());
        rule.allowed =
            Parameters::from([("ttl".into(), vec![json!("1h"), json!("2*")]), ("any".into(), vec![])]);
        let allows = |rule: &Rule, value| allowed_together(&[rule], &data(value));
        assert!(allows(&rule, json!({"TTL": "1h", "any": 5})));
        assert!(allows(&rule, json!({"ttl": "25h"})));
        assert!(!allows(&rule, json!({"ttl": "3h"})));
        assert!(!allows(&rule, json!({"other": 1})));
        rule.allowed.insert("*".into(), vec![]);
        assert!(allows(&rule, json!({"other": 1})));
        assert!(!allows(&rule, json!({"ttl": "3h"})));
        let mut more = Rule::new("a", Capabilities::default());
        more.allowed = Parameters::from([("ttl".into(), vec![json!("3h")])]);
        assert!(allowed_together(&[&rule, &more], &data(json!({"ttl": "3h", "any": 1}))));
        assert!(!allowed_together(&[&rule, &more], &data(json!({"ttl": "4h"}))));
        rule.required = vec!["ttl".into()];
        assert!(!rule.has_required(&data(json!({}))) && rule.has_required(&data(json!({"TTL": 1}))));
        rule.denied = Parameters::from([("x".into(), vec![json!(1)])]);
        assert!(rule.tolerates(&data(json!({"x": 2}))) && !rule.tolerates(&data(json!({"X": 1}))));
        rule.denied = Parameters::from([("*".into(), vec![])]);
        assert!(rule.tolerates(&data(json!({}))) && !rule.tolerates(&data(json!({"y": 1}))));
    }

    #[test]
    fn a_bound_on_wrapping_demands_wrapping() {
        let mut rule = Rule::new("a", Capabilities::default());
        assert!(rule.wrap_fits(None));
        (rule.min_wrap, rule.max_wrap) = (Some(10), Some(20));
        for (ttl, fits) in [(None, false), (Some(5), false), (Some(10), true), (Some(21), false)] {
            assert_eq!(rule.wrap_fits(ttl), fits, "{ttl:?}");
        }
    }
}
