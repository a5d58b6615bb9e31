//! Where checks report to: it knows where each key stands, and what was found wrong before.

use std::path::Path;

use holdfast_ops::config::{Place, Tree};

use super::problems::Problems;
use crate::problem::Problem;

/// The prefix under which the loader names the role's keys.
const ROLE: &str = "server.config";

/// The collector of one load. Paths are the parts of keys; numbers lead into lists.
pub struct Report<'a> {
    tree: &'a Tree,
    wrong: &'a holdfast_ops::config::Problems,
    main: &'a Path,
    problems: Problems,
    doubtful: bool,
}

impl<'a> Report<'a> {
    /// Goes on from what the parser found.
    pub fn new(tree: &'a Tree, wrong: &'a holdfast_ops::config::Problems, main: &'a Path) -> Self {
        let mut report = Self { tree, wrong, main, problems: Problems::default(), doubtful: false };
        for problem in wrong.iter() {
            let place = report.or_main(problem.place.clone());
            report.problems.error(place, text_of(problem));
        }
        for twice in tree.twice() {
            let places = format!("({} and {})", twice.first.line(), twice.second.line());
            let text = match &*twice.path {
                [table, name] if table == "bindings" => {
                    format!("duplicate binding name \"{}\" {places}", name.escape_debug())
                }
                path => format!("{} is set twice {places}", path.join(".")),
            };
            report.problems.error(twice.second.clone(), text);
        }
        report
    }

    /// Where everything stands.
    pub const fn tree(&self) -> &'a Tree {
        self.tree
    }

    /// Reports what makes the configuration unusable, at the value of a key or of the closest one around it.
    pub fn error(&mut self, path: &[&str], text: impl Into<String>) {
        let place = self.place(path);
        self.problems.error(place, text);
    }

    /// The same at the key.
    pub fn error_at_key(&mut self, path: &[&str], text: impl Into<String>) {
        let place = self.tree.key_place(path).unwrap_or_else(|| self.place(path));
        self.problems.error(place, text);
    }

    /// The same at a place that is known.
    pub fn error_at(&mut self, place: Place, text: impl Into<String>) {
        self.problems.error(place, text);
    }

    /// Reports what is allowed, and probably not meant.
    pub fn warning(&mut self, path: &[&str], text: impl Into<String>) {
        let place = self.place(path);
        self.problems.warning(place, text);
    }

    /// Reports what another check found.
    pub fn problem(&mut self, problem: Problem) {
        let path: Vec<_> = problem.key.split('.').collect();
        match problem.at {
            Some(place) => self.error_at(place, problem.what),
            None if self.is_wrong(&path) => {}
            None => self.error(&path, problem.what),
        }
    }

    /// Whether the parser found something wrong with a key, around it or below it, so that its value may not be what was
    /// written.
    pub fn is_wrong(&self, path: &[&str]) -> bool {
        let key = format!("{}.", key_of(path));
        let lost = self.wrong.iter().filter(|problem| !problem.is_unknown_key());
        lost.map(|problem| format!("{}.", problem.key))
            .any(|wrong| wrong.starts_with(&key) || key.starts_with(&wrong))
    }

    /// Whether the parser said something about this very key.
    pub fn is_told(&self, path: &[&str]) -> bool {
        let key = key_of(path);
        self.wrong.iter().any(|problem| problem.key == key)
    }

    /// Notes that an upstream is missing because it is wrong.
    pub const fn doubt_upstreams(&mut self) {
        self.doubtful = true;
    }

    /// Whether an upstream is missing because it is wrong.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful || self.is_wrong(&["upstream"])
    }

    /// The place of a value, or of the closest one around it.
    pub fn place(&self, path: &[&str]) -> Place {
        let lengths = (1..=path.len()).rev();
        let found = lengths.filter_map(|length| path.get(..length)).find_map(|path| self.tree.place(path));
        found.unwrap_or_else(|| self.whole())
    }

    /// Everything that was reported.
    pub fn into_problems(self) -> Problems {
        self.problems
    }

    fn whole(&self) -> Place {
        Place::whole(self.main.display().to_string())
    }

    fn or_main(&self, place: Place) -> Place {
        if place.source == "default" { self.whole() } else { place }
    }
}

/// A key as the parser names it.
fn key_of(path: &[&str]) -> String {
    format!("{ROLE}.{}", path.join("."))
}

/// A problem of the parser in this role's words.
pub fn text_of(problem: &holdfast_ops::config::Problem) -> String {
    let key = problem.key.strip_prefix(ROLE).unwrap_or(&problem.key).trim_start_matches('.');
    let space = if key.is_empty() { "" } else { " " };
    // The place says the line already.
    let line = problem.place.at.map(|at| format!("(line {}: ", at.line)).unwrap_or_default();
    let what = if line.is_empty() { problem.what.clone() } else { problem.what.replacen(&line, "(", 1) };
    format!("{key}{space}{what}: {}", problem.fix)
}
