//! All that is wrong with a configuration, as `FILE:LINE:COLUMN: error: TEXT`, one a line.

use std::fmt;
use std::path::Path;

use holdfast_ops::config::Place;

/// How bad it is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can, and is probably not what is meant.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong. No value of a secret is ever in it.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{}: {severity}: {}", self.place, self.text)
    }
}

/// Everything that keeps a configuration from being used, with what else was noticed; in the order of files and lines.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Problems {
    list: Vec<Problem>,
}

impl Problems {
    /// One problem of a whole file.
    pub fn of(path: &Path, text: impl Into<String>) -> Self {
        let mut problems = Self::default();
        problems.error(Place::whole(path.display().to_string()), text);
        problems
    }

    /// Adds an error.
    pub fn error(&mut self, place: Place, text: impl Into<String>) {
        self.list.push(Problem { place, severity: Severity::Error, text: text.into() });
    }

    /// Adds a warning.
    pub fn warning(&mut self, place: Place, text: impl Into<String>) {
        self.list.push(Problem { place, severity: Severity::Warning, text: text.into() });
    }

    /// Adds what another collector found.
    pub fn append(&mut self, other: Self) {
        self.list.extend(other.list);
    }

    /// In the order of files and lines, each once.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.list.sort_by(|a, b| a.place.cmp(&b.place));
        self.list.dedup();
        self
    }

    /// The problems.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// Whether there is an error.
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// The exit code of a process that cannot go on because of them.
    pub const fn exit_code(&self) -> u8 {
        holdfast_ops::exit::CONFIG
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}
