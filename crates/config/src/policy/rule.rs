//! One rule of a policy, checked.

use std::sync::Arc;

use holdfast_core::Wall;
use holdfast_ops::config::Place;
use serde_json::{Value, json};

use super::glob::Glob;
use crate::auth::Identity;
use crate::config::{RuleEffect, RuleSettings, Verb};
use crate::date;
use crate::problem::Problem;

/// What a rule says, and where.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    settings: RuleSettings,
    names: Vec<Glob>,
    verbs: Vec<Verb>,
    until: Option<Wall>,
    pub(super) place: Place,
}

impl Rule {
    /// Checks a rule; `number` counts from 1.
    pub(super) fn new(settings: &RuleSettings, number: usize, place: Place) -> Result<Self, Vec<Problem>> {
        let mut faults = Vec::new();
        let mut fault = |what: String| faults.push(format!("policy rule {number}: {what}"));
        let verbs = settings.verbs.clone().unwrap_or_else(|| vec![Verb::Read, Verb::Watch]);
        if verbs.is_empty() {
            fault("verbs is empty".to_owned());
        }
        if settings.names.is_empty() && verbs.iter().any(|verb| verb.has_name()) {
            fault("names is empty".to_owned());
        }
        if settings.everyone && settings.names_identities() {
            fault("everyone = true stands beside other identity keys".to_owned());
        }
        if !settings.everyone && !settings.names_identities() {
            fault("no identity: set subjects, groups, sans, uids, gids or everyone = true".to_owned());
        }
        let mut names = Vec::new();
        for glob in &settings.names {
            match Glob::new(glob) {
                Ok(compiled) => names.push(compiled),
                Err(_) => fault(format!("bad glob \"{glob}\"")),
            }
        }
        let until = settings.until.as_ref().and_then(|text| {
            let date = date::parse(text);
            if date.is_none() {
                fault(format!("until is not a date: \"{text}\""));
            }
            date
        });
        if faults.is_empty() {
            Ok(Self { settings: settings.clone(), names, verbs, until, place })
        } else {
            let key = format!("policy.rule.{}", number.saturating_sub(1));
            Err(faults.into_iter().map(|what| Problem::new(key.as_str(), what)).collect())
        }
    }

    pub(super) fn denies(&self) -> bool {
        self.settings.effect == RuleEffect::Deny
    }

    /// When it no longer counts.
    pub(super) fn until(&self) -> Option<Wall> {
        self.until
    }

    /// Whether it is about this.
    pub(super) fn applies(&self, identity: &Identity, verb: Verb, name: &[u8], now: Wall) -> bool {
        self.until.is_none_or(|until| now < until)
            && self.verbs.contains(&verb)
            && self.is_about(identity)
            && (!verb.has_name() || self.names.iter().any(|glob| glob.matches(name)))
    }

    /// Every key that is given must hold; one entry of a key is enough. An empty subject is nobody's name.
    fn is_about(&self, identity: &Identity) -> bool {
        let rule = &self.settings;
        let texts = |own: &[String], theirs: &[Arc<str>]| {
            own.is_empty() || theirs.iter().any(|name| own.iter().any(|entry| **entry == **name))
        };
        let numbers = |own: &[u32], theirs: Option<u32>| {
            own.is_empty() || theirs.is_some_and(|number| own.contains(&number))
        };
        let subject = std::slice::from_ref(&identity.subject);
        texts(&rule.subjects, if identity.subject.is_empty() { &[] } else { subject })
            && texts(&rule.groups, &identity.groups)
            && texts(&rule.sans, &identity.sans)
            && numbers(&rule.uids, identity.uid)
            && numbers(&rule.gids, identity.gid)
    }

    /// What two replicas must have in common: lists are sets, defaults are written out.
    pub(super) fn canonical(&self) -> Value {
        let rule = &self.settings;
        let texts = |list: &[String]| sorted(list);
        json!({
            "subjects": texts(&rule.subjects),
            "groups": texts(&rule.groups),
            "sans": texts(&rule.sans),
            "uids": sorted(&rule.uids),
            "gids": sorted(&rule.gids),
            "everyone": rule.everyone,
            "names": texts(&rule.names),
            "verbs": sorted(&self.verbs),
            "effect": rule.effect,
            "until": self.until.map(date::show),
        })
    }
}

impl Verb {
    /// Whether it is done to a binding.
    pub(super) const fn has_name(self) -> bool {
        matches!(self, Self::Read | Self::Watch)
    }
}

impl RuleSettings {
    fn names_identities(&self) -> bool {
        let texts = [&self.subjects, &self.groups, &self.sans];
        texts.iter().any(|list| !list.is_empty()) || !self.uids.is_empty() || !self.gids.is_empty()
    }
}

fn sorted<T: Clone + Ord>(list: &[T]) -> Vec<T> {
    let mut list = list.to_vec();
    list.sort();
    list.dedup();
    list
}
