//! What callers may do: rules that allow and rules that deny.
//!
//! What must hold: a rule that denies wins; what no rule allows is denied; the policy never learns which names are
//! bound, so that its answer to a name says nothing about it.

pub mod glob;
mod rule;

use holdfast_core::Wall;
use holdfast_ops::config::Place;

use self::rule::Rule;
use crate::auth::Identity;
use crate::config::{PolicySettings, Verb};
use crate::problem::Problem;

/// A longer name is judged by as much of it: no binding has one, and the work stays bounded.
const LONGEST_NAME: usize = 254;

/// The rules that are in force.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    /// Places in `rules`: those that deny first, so that the first that applies decides.
    order: Vec<usize>,
    allow_all: bool,
}

/// What the policy says of one request for one name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision {
    /// Whether it may be done.
    pub allow: bool,
    /// The number of the rule that decided, from 1; none when no rule applied.
    pub rule: Option<usize>,
}

impl Policy {
    /// Checks a policy. `place` says where rule `n`, from 0, of `policy.rule` stands; the loader has put the rules of
    /// `policy.file` behind those of the configuration itself.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn new(
        settings: Option<&PolicySettings>,
        place: impl Fn(usize) -> Place,
    ) -> Result<Self, Vec<Problem>> {
        let none = PolicySettings::default();
        let settings = settings.unwrap_or(&none);
        let mut problems = Vec::new();
        if settings.rule.is_empty() && !settings.allow_all {
            let what = "no policy configured: add [[policy.rule]] or policy.allow_all = true";
            problems.push(Problem::new("policy", what));
        }
        let mut rules = Vec::new();
        for (n, rule) in settings.rule.iter().enumerate() {
            match Rule::new(rule, n + 1, place(n)) {
                Ok(rule) => rules.push(rule),
                Err(faults) => problems.extend(faults),
            }
        }
        if problems.is_empty() { Ok(Self::of(rules, settings.allow_all)) } else { Err(problems) }
    }

    fn of(rules: Vec<Rule>, allow_all: bool) -> Self {
        let numbered = || rules.iter().enumerate();
        let denying = numbered().filter(|(_, rule)| rule.denies());
        let allowing = numbered().filter(|(_, rule)| !rule.denies());
        let order = denying.chain(allowing).map(|(n, _)| n).collect();
        Self { rules, order, allow_all }
    }

    /// Whether a caller may do this to a name, whatever bytes it has. For `status` and `metrics` the name does not count.
    pub fn decide(&self, identity: &Identity, verb: Verb, name: &[u8], now: Wall) -> Decision {
        let name = name.get(..LONGEST_NAME).unwrap_or(name);
        for n in &self.order {
            let Some(rule) = self.rules.get(*n) else { continue };
            if rule.applies(identity, verb, name, now) {
                return Decision { allow: !rule.denies(), rule: Some(n + 1) };
            }
        }
        Decision { allow: self.allow_all, rule: None }
    }

    /// A decision in words, such as `allow: rule 3 (config.toml:41)` or `deny: no rule matched`.
    pub fn explain(&self, decision: Decision) -> String {
        let effect = if decision.allow { "allow" } else { "deny" };
        let place =
            |n: usize| self.rules.get(n.wrapping_sub(1)).map(|rule| rule.place.line()).unwrap_or_default();
        match decision.rule {
            Some(n) => format!("{effect}: rule {n} ({})", place(n)),
            None if decision.allow => format!("{effect}: policy.allow_all"),
            None => format!("{effect}: no rule matched"),
        }
    }

    /// When the next rule ceases to count after `now`; open streams are judged again then.
    pub fn next_change(&self, now: Wall) -> Option<Wall> {
        self.rules.iter().filter_map(Rule::until).filter(|until| *until > now).min()
    }

    /// What replicas with the same policy have in common, for the digest.
    pub fn canonical(&self) -> serde_json::Value {
        let rules: Vec<_> = self.rules.iter().map(Rule::canonical).collect();
        serde_json::json!({ "rules": rules, "allow_all": self.allow_all })
    }
}

#[cfg(test)]
#[path = "policy/policy_tests.rs"]
mod tests;
