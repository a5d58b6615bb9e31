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
mod draft;
mod environment;
mod files;
mod node;
mod parse_toml;
mod parse_yaml;
mod place;
mod problems;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

pub use self::de::TEXT_OR_TABLE;
pub use self::draft::{Beside, Draft, Tree};
pub use self::node::Twice;
use self::node::{Node, Value};
pub use self::place::{Place, Position};
pub use self::problems::closest;
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
    variables: Option<&'static str>,
    own_files: bool,
    named: Option<&'static str>,
}

impl Loader {
    /// A loader for `server.<role>.`, which reads this process's environment.
    pub fn new(role: &'static str) -> Self {
        let environment = std::env::vars_os().collect();
        Self {
            role,
            path: None,
            environment,
            aliases: Vec::new(),
            flags: Vec::new(),
            variables: None,
            own_files: false,
            named: None,
        }
    }

    /// Reads files that are the role's own: its keys may stand at their top too, a directory gives its `*.toml`, and a key
    /// that is set twice is a problem. Variables with this prefix, such as `HOLDFAST_CONFIG__`, name keys of the role.
    /// Each entry of the table `named` is one thing with a name, which two files do not share.
    #[must_use]
    pub const fn own_files(mut self, variables: &'static str, named: &'static str) -> Self {
        self.variables = Some(variables);
        self.own_files = true;
        self.named = Some(named);
        self
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
        let (parsed, tree, mut problems) = self.read().parse::<T>();
        if let Some(parsed) = &parsed {
            parsed.validate(&mut Checker::new(tree.prefix(), tree.section(), &mut problems));
        }
        match parsed {
            Some(parsed) if problems.is_empty() => Ok(parsed),
            _ => Err(problems),
        }
    }

    /// Reads and merges everything, for a role whose files name other files.
    pub fn read(self) -> Draft {
        let mut problems = Problems::default();
        let mut twice = Vec::new();
        let mut tree = Node::table("default");
        let files = self.read_files(&mut tree, &mut twice, &mut problems);
        let broken = !problems.is_empty();
        environment::read_into(&self, &mut tree, &mut problems);
        for (key, value) in &self.flags {
            self.put_flag(key, value, &mut tree, &mut problems);
        }
        let section = self.section(tree, &mut problems);
        let prefix = format!("server.{}", self.role);
        Draft::new(prefix, section, problems, twice, files, broken)
    }

    /// Lays the files over `tree` and tells which they were.
    fn read_files(&self, tree: &mut Node, twice: &mut Vec<Twice>, problems: &mut Problems) -> Vec<PathBuf> {
        let Some(path) = &self.path else { return Vec::new() };
        let files = match files::list(path, self.own_files) {
            Ok(files) => files,
            Err(error) => {
                let fix = "name a file that ends in .toml, .yaml or .yml, or a directory with such files";
                let place = Place::whole(path.display().to_string());
                problems.push(&place, "", format!("cannot be read ({error})"), fix);
                return Vec::new();
            }
        };
        for file in &files {
            let Some(parsed) = files::read_whole(file, self.own_files, problems) else { continue };
            if self.own_files {
                self.add_own(file, parsed, tree, twice);
            } else if let Some(duplicate) = parsed.duplicates.first() {
                let place = Place { source: file.display().to_string(), at: Some(duplicate.second) };
                let what = format!("sets a key twice (line {})", duplicate.second.line);
                problems.push(&place, "", what, "correct the file");
            } else {
                tree.merge(parsed.node);
            }
        }
        files
    }

    /// Adds a file of the role's own, with the keys at its top.
    fn add_own(&self, file: &Path, parsed: files::Parsed, tree: &mut Node, twice: &mut Vec<Twice>) {
        let source = file.display().to_string();
        let mut inner = parsed.node.clone();
        let mut role = Node::table(&source);
        if let (Value::Table(top), Value::Table(keys)) = (&mut inner.value, &mut role.value) {
            let is_key = |key: &&String| key.as_str() != "server";
            let names: Vec<_> = top.keys().filter(is_key).cloned().collect();
            keys.extend(names.into_iter().filter_map(|name| top.remove_entry(&name)));
        }
        let mut roles = Node::table(&source);
        roles.value = Value::Table([(self.role.to_owned(), role)].into());
        let mut hoisted = Node::table(&source);
        hoisted.value = Value::Table([("server".to_owned(), roles)].into());
        let in_role = ["server", self.role].map(str::to_owned);
        let named: Vec<_> = in_role.iter().cloned().chain(self.named.map(str::to_owned)).collect();
        let mut found = Vec::new();
        tree.add(hoisted, &mut Vec::new(), &named, &mut found);
        tree.add(inner, &mut Vec::new(), &named, &mut found);
        let place = |at| Place { source: source.clone(), at: Some(at) };
        found.extend(parsed.duplicates.into_iter().map(|duplicate| Twice {
            path: duplicate.path,
            first: place(duplicate.first),
            second: place(duplicate.second),
        }));
        for entry in &mut found {
            if entry.path.starts_with(&in_role) {
                entry.path.drain(..in_role.len());
            }
        }
        twice.append(&mut found);
    }

    fn put_flag(&self, key: &str, value: &str, tree: &mut Node, problems: &mut Problems) {
        let place = Place::whole("flag");
        if key.is_empty() || key.split('.').any(str::is_empty) {
            problems.push(
                &place,
                key,
                "is not a key",
                "write key=value, with dots between the parts of the key",
            );
            return;
        }
        let full = if key.starts_with("server.") { key.to_owned() } else { self.full(key) };
        let leaf = Node::whole("flag".into(), Value::Loose(value.to_owned()));
        if let Err(at) = tree.put(&full, leaf) {
            problems.push(
                &place,
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
                problems.unknown(&node.key_place(), &key, &["server"]);
                continue;
            }
            let place = node.key_place();
            let Value::Table(roles) = node.value else {
                problems.push(
                    &place,
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
                    problems.unknown(&node.key_place(), &format!("server.{role}"), &ROLES);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod draft_tests;
#[cfg(test)]
mod tests;
