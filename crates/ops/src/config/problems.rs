//! All that is wrong with a configuration, told at once.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use super::node::Node;
use super::place::Place;
use crate::exit;

/// What is wrong with a key that nobody knows.
const UNKNOWN_KEY: &str = "is not a known key";

/// One thing that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// Where the value came from.
    pub place: Place,
    /// The key in full, with dots.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub fix: String,
}

impl Problem {
    /// Whether the key does not exist, so that no value was lost.
    pub fn is_unknown_key(&self) -> bool {
        self.what == UNKNOWN_KEY
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.source.as_str() {
            "default" => {}
            source => write!(f, "{source}: ")?,
        }
        if !self.key.is_empty() {
            write!(f, "{} ", self.key)?;
        }
        write!(f, "{}: {}", self.what, self.fix)
    }
}

/// The collector of problems; as an error it shows one a line.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Problems {
    list: Vec<Problem>,
    keys: BTreeSet<String>,
}

impl Problems {
    /// Adds a problem. A key is reported once: what follows from the first fault would only distract.
    pub fn push(&mut self, place: &Place, key: &str, what: impl Into<String>, fix: impl Into<String>) {
        if key.is_empty() || self.keys.insert(key.to_owned()) {
            let problem =
                Problem { place: place.clone(), key: key.to_owned(), what: what.into(), fix: fix.into() };
            self.list.push(problem);
        }
    }

    /// Adds a key that does not exist, with the closest one that does.
    pub(super) fn unknown(&mut self, place: &Place, key: &str, known: &[&str]) {
        let last = key.rsplit('.').next().unwrap_or(key);
        let fix = match closest(last, known) {
            Some(name) => format!("did you mean {name}?"),
            None if known.is_empty() => "remove it".to_owned(),
            None => format!("remove it, or use one of {}", known.join(", ")),
        };
        self.push(place, key, UNKNOWN_KEY, fix);
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The problems in the order they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// The exit code of a process that cannot go on because of them.
    pub const fn exit_code(&self) -> u8 {
        exit::CONFIG
    }

    /// Whether this key, or a part of it, is known to be wrong.
    fn covers(&self, key: &str) -> bool {
        self.keys.iter().any(|k| k == key || k.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.list.len();
        write!(f, "the configuration has {count} problem{}", if count == 1 { "" } else { "s" })?;
        self.list.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}

/// What [`Validate`](super::Validate) reports to; keys are relative to the role.
pub struct Checker<'a> {
    prefix: &'a str,
    section: &'a Node,
    problems: &'a mut Problems,
}

impl<'a> Checker<'a> {
    pub(super) fn new(prefix: &'a str, section: &'a Node, problems: &'a mut Problems) -> Self {
        Self { prefix, section, problems }
    }

    /// Reports a value; does nothing when the key was found wrong before.
    pub fn problem(&mut self, key: &str, what: impl Into<String>, fix: impl Into<String>) {
        let full = format!("{}.{key}", self.prefix);
        if !self.problems.covers(&full) {
            let place = self.section.place_of(key);
            self.problems.push(&place, &full, what, fix);
        }
    }

    /// Whether the operator set the key, by any source.
    pub fn is_set(&self, key: &str) -> bool {
        self.section.get(key).is_some()
    }

    /// Reports a key that has no default and was not set.
    pub fn require<T>(&mut self, key: &str, value: Option<&T>, fix: &str) {
        if value.is_none() {
            self.problem(key, "is required", fix);
        }
    }

    /// Reports a value outside its bounds.
    pub fn range<T: PartialOrd + fmt::Display>(&mut self, key: &str, value: T, bounds: RangeInclusive<T>) {
        if !bounds.contains(&value) {
            let fix = format!("use {} to {}", bounds.start(), bounds.end());
            self.problem(key, format!("is {value}, out of bounds"), fix);
        }
    }
}

/// The known name that differs least, if it differs little.
pub fn closest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let allowed = name.chars().count() / 3 + 1;
    let scored = known.iter().map(|k| (distance(name, k), *k));
    scored.filter(|(d, _)| *d <= allowed).min().map(|(_, k)| k)
}

/// How many characters must be added, removed or replaced to turn one name into the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, to) in row.iter_mut().skip(1).zip(b.chars()) {
            let replace = diagonal + usize::from(from != to);
            diagonal = *cell;
            left = replace.min(left + 1).min(*cell + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}
