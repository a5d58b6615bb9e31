//! The one configuration loader of all roles.
//!
//! Files (TOML or YAML by their ending, a directory merged in name order) < environment < flags. Unknown keys and
//! every other problem are reported together, each with its source, its key and what to do, before anything
//! binds. Keys of a role stand under `server.<role>.`.
//!
//! A role's struct derives `Deserialize` with `#[serde(default)]`, names units by their types
//! ([`Duration`](crate::Duration), [`ByteSize`](crate::ByteSize)), and implements [`Validate`]. It needs no
//! `deny_unknown_fields`: the loader sees which keys the struct has. `#[serde(flatten)]` would hide them; do not use it.

mod de;
mod environment;
mod files;
mod node;
mod place;
mod problems;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use self::node::{Node, Value};
pub use self::place::{Place, Position};
pub use self::problems::{Checker, Problem, Problems};

/// The roles; a file may hold the keys of several.
pub const ROLES: [&str; 5] = ["hub", "config", "relay", "branchd", "pair"];

/// The checks of a role's struct that its types cannot make.
pub trait Validate {
    /// Reports each value that is out of bounds or does not fit another one.
    fn validate(&self, at: &mut Checker<'_>);
}

/// Collects the sources of one role's configuration.
#[derive(Debug)]
pub struct Loader {
    role: &'static str,
    path: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
    aliases: Vec<(&'static str, &'static str)>,
    flags: Vec<(String, String)>,
}

impl Loader {
    /// A loader for `server.<role>.`, which reads this process's environment.
    pub fn new(role: &'static str) -> Self {
        let environment = std::env::vars_os().collect();
        Self { role, path: None, environment, aliases: Vec::new(), flags: Vec::new() }
    }

    /// Reads this file, or all files of this directory.
    #[must_use]
    pub fn path(mut self, path: impl AsRef<Path>) -> Self {
        self.path = Some(path.as_ref().to_owned());
        self
    }

    /// Takes another environment than the process's.
    #[must_use]
    pub fn environment<K: Into<OsString>, V: Into<OsString>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.environment = variables.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        self
    }

    /// Lets an environment variable stand for a key of the role, for example
    /// `alias("HOLDFAST_LEASE_REVOCATION_WORKERS", "lease.revoke_workers")`. The first alias that is set wins.
    #[must_use]
    pub fn alias(mut self, variable: &'static str, key: &'static str) -> Self {
        self.aliases.push((variable, key));
        self
    }

    /// Sets a key of the role as a flag does; the strongest source.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.flags.push((key.into(), value.into()));
        self
    }

    /// Takes a flag's text `key=value`, with the key in full (`server.hub.node_id`) or from the role on (`node_id`).
    #[must_use]
    pub fn flag(mut self, text: &str) -> Self {
        match text.split_once('=') {
            Some((key, value)) => self.flags.push((key.trim().to_owned(), value.to_owned())),
            None => self.flags.push((text.trim().to_owned(), String::new())),
        }
        self
    }

    /// Reads, merges, parses and checks everything.
    ///
    /// # Errors
    /// All problems at once; the process should print them and exit with [`crate::exit::CONFIG`].
    pub fn load<T: DeserializeOwned + Validate>(self) -> Result<T, Problems> {
        let mut problems = Problems::default();
        let mut tree = Node::table("default");
        if let Some(path) = &self.path {
            files::read_into(path, &mut tree, &mut problems);
        }
        environment::read_into(&self, &mut tree, &mut problems);
        for (key, value) in &self.flags {
            self.put_flag(key, value, &mut tree, &mut problems);
        }
        let section = self.section(tree, &mut problems);
        let prefix = format!("server.{}", self.role);
        let parsed: Option<T> = de::parse(section.clone(), &prefix, &mut problems);
        if let Some(parsed) = &parsed {
            parsed.validate(&mut Checker::new(&prefix, &section, &mut problems));
        }
        match parsed {
            Some(parsed) if problems.is_empty() => Ok(parsed),
            _ => Err(problems),
        }
    }

    fn put_flag(&self, key: &str, value: &str, tree: &mut Node, problems: &mut Problems) {
        let source = "flag";
        if key.is_empty() || key.split('.').any(str::is_empty) {
            problems.push(
                source,
                key,
                "is not a key",
                "write key=value, with dots between the parts of the key",
            );
            return;
        }
        let full = if key.starts_with("server.") { key.to_owned() } else { self.full(key) };
        let leaf = Node { source: source.into(), value: Value::Loose(value.to_owned()) };
        if let Err(at) = tree.put(&full, leaf) {
            problems.push(
                source,
                &full,
                format!("{at} holds a value already, not a table"),
                "remove one of the two",
            );
        }
    }

    fn full(&self, key: &str) -> String {
        format!("server.{}.{key}", self.role)
    }

    /// Takes the role's table out of the tree; what stands beside it must be another role's.
    fn section(&self, tree: Node, problems: &mut Problems) -> Node {
        let mut found = Node::table("default");
        let Value::Table(top) = tree.value else { return found };
        for (key, node) in top {
            if key != "server" {
                problems.unknown(&node.source, &key, &["server"]);
                continue;
            }
            let source = node.source.clone();
            let Value::Table(roles) = node.value else {
                problems.push(
                    &source,
                    "server",
                    "is not a table",
                    "put the keys of each role under server.<role>",
                );
                continue;
            };
            for (role, node) in roles {
                if role == self.role {
                    found = node;
                } else if !ROLES.contains(&role.as_str()) {
                    problems.unknown(&node.source, &format!("server.{role}"), &ROLES);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
