//! A file of rules, `[[rule]]`, beside the configuration.

use std::path::Path;

use holdfast_ops::config::{Place, Position};
use serde::Deserialize;
use toml::Spanned;

use crate::config::{RuleEffect, RuleSettings, Verb};
use crate::date::DateText;
use crate::problem::{Problem, toml_fault};

/// The key that names the file.
const KEY: &str = "policy.file";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Spanned<Entry>>,
}

/// The keys of [`RuleSettings`], which the loader of the main file checks for unknown ones; here nobody else does.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Entry {
    subjects: Vec<String>,
    groups: Vec<String>,
    sans: Vec<String>,
    uids: Vec<u32>,
    gids: Vec<u32>,
    everyone: bool,
    names: Vec<String>,
    verbs: Option<Vec<Verb>>,
    effect: RuleEffect,
    until: Option<DateText>,
}

impl From<Entry> for RuleSettings {
    fn from(entry: Entry) -> Self {
        Self {
            subjects: entry.subjects,
            groups: entry.groups,
            sans: entry.sans,
            uids: entry.uids,
            gids: entry.gids,
            everyone: entry.everyone,
            names: entry.names,
            verbs: entry.verbs,
            effect: entry.effect,
            until: entry.until.map(|date| date.to_string()),
        }
    }
}

/// The rules of a file, each with its place.
pub(super) fn read(path: &Path) -> Result<Vec<(RuleSettings, Place)>, Problem> {
    let shown = path.display();
    let place = |at| Place { source: shown.to_string(), at: Some(at) };
    let text = std::fs::read_to_string(path)
        .map_err(|error| Problem::new(KEY, format!("policy file {shown} cannot be read: {error}")))?;
    let file: File = toml::from_str(&text).map_err(|error| {
        let (what, at) = toml_fault(&text, &error);
        Problem::new(KEY, format!("policy file: {what}")).at(place(at))
    })?;
    if file.rule.is_empty() {
        return Err(Problem::new(KEY, format!("policy file {shown} holds no rule")));
    }
    let rule = |entry: Spanned<Entry>| {
        let place = place(Position::of(&text, entry.span().start));
        (RuleSettings::from(entry.into_inner()), place)
    };
    Ok(file.rule.into_iter().map(rule).collect())
}
