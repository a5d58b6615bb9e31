//! What the policies of a token together say of one request.

use std::sync::Arc;

use super::parse::Policy;
use super::rule::{self, Capabilities, Capability, Rule};
use crate::error::ApiError;
use crate::logical::{Data, Operation};

/// A rule of one of the policies.
#[derive(Clone, Debug)]
struct Held {
    policy: Arc<Policy>,
    index: usize,
}

impl Held {
    fn rule(&self) -> Option<&Rule> {
        self.policy.rules.get(self.index)
    }
}

/// What the policies of a token say of a request.
///
/// Rules of the most specific matching pattern decide, all other patterns are ignored. Among the rules of that
/// pattern capabilities add up, and `deny` wins. Conditions belong to the path, whichever of the rules states them:
/// a rule without conditions lifts none. All denied parameters are denied and all required ones are required; what
/// may be given is what the rules that restrict it list together; wrapping keeps within the bounds of one of the rules
/// that bound it.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// Whether the operation is granted, its parameters and wrapping aside.
    pub allowed: bool,
    /// Whether `sudo` is granted too.
    pub sudo: bool,
    /// Whether the `root` policy decided: nothing else is looked at.
    pub root: bool,
    deciding: Vec<Held>,
}

impl Decision {
    /// The decision for the `root` policy.
    pub(super) fn root() -> Self {
        Self { allowed: true, sudo: true, root: true, ..Self::default() }
    }

    /// The decision of some policies on an operation; `exists` tells whether a write would be an update.
    pub(super) fn of(policies: &[Arc<Policy>], path: &str, operation: Operation, exists: bool) -> Self {
        let deciding = deciding(policies, path, operation == Operation::List);
        let granted = union(&deciding);
        let needed = needed(operation, exists);
        let open = !granted.has(Capability::Deny);
        Self {
            allowed: open && granted.has(needed),
            sudo: open && granted.has(Capability::Sudo),
            root: false,
            deciding,
        }
    }

    /// Whether the parameters of a write are allowed. Other operations carry none.
    pub fn parameters_allowed(&self, operation: Operation, data: &Data) -> bool {
        if self.root || !matches!(operation, Operation::Write | Operation::Patch) {
            return self.allowed;
        }
        let restricting: Vec<&Rule> = self.rules().filter(|rule| !rule.allowed.is_empty()).collect();
        self.allowed
            && self.rules().all(|rule| rule.tolerates(data) && rule.has_required(data))
            && (restricting.is_empty() || rule::allowed_together(&restricting, data))
    }

    /// Checks the asked time of wrapping in seconds against the bounds of the rules that have any.
    pub fn check_wrap(&self, ttl: Option<i64>) -> Result<(), ApiError> {
        let mut bounding = self.rules().filter(|rule| rule.bounds_wrapping()).peekable();
        if self.root || bounding.peek().is_none() || bounding.any(|rule| rule.wrap_fits(ttl)) {
            return Ok(());
        }
        Err(ApiError::invalid("the wrapping TTL is outside the bounds that the policy sets for this path"))
    }

    fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.deciding.iter().filter_map(Held::rule)
    }
}

/// What some policies grant on a path, listing included.
pub(super) fn granted(policies: &[Arc<Policy>], path: &str) -> Capabilities {
    union(&deciding(policies, path, true))
}

fn union(rules: &[Held]) -> Capabilities {
    let all = rules.iter().filter_map(Held::rule).map(|rule| rule.capabilities);
    all.fold(Capabilities::default(), Capabilities::union)
}

/// The rules with the most specific pattern that matches.
fn deciding(policies: &[Arc<Policy>], path: &str, list: bool) -> Vec<Held> {
    let bare = path.strip_suffix('/').filter(|_| list);
    let matching = policies.iter().flat_map(|policy| {
        let rules = policy.rules.iter().enumerate();
        rules
            .filter(|(_, rule)| {
                rule.pattern.matches(path) || bare.is_some_and(|bare| rule.pattern.matches(bare))
            })
            .map(move |(index, rule)| (rule, Held { policy: Arc::clone(policy), index }))
    });
    let mut best: Vec<(&Rule, Held)> = Vec::new();
    for (rule, held) in matching {
        let order = best.first().map_or(std::cmp::Ordering::Greater, |(leader, _)| {
            rule.pattern.rank().cmp(&leader.pattern.rank())
        });
        match order {
            std::cmp::Ordering::Greater => best = vec![(rule, held)],
            std::cmp::Ordering::Equal => best.push((rule, held)),
            std::cmp::Ordering::Less => {}
        }
    }
    best.into_iter().map(|(_, held)| held).collect()
}

const fn needed(operation: Operation, exists: bool) -> Capability {
    match operation {
        Operation::Read => Capability::Read,
        Operation::List => Capability::List,
        Operation::Write if exists => Capability::Update,
        Operation::Write => Capability::Create,
        Operation::Patch => Capability::Patch,
        Operation::Delete => Capability::Delete,
    }
}
