//! A configuration between reading and parsing: merged, and open for the files that it names.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::node::{Node, Twice, Value};
use super::place::Place;
use super::problems::Problems;
use super::{de, files};

/// What was read of a role, before it is parsed.
pub struct Draft {
    prefix: String,
    section: Node,
    problems: Problems,
    twice: Vec<Twice>,
    files: Vec<PathBuf>,
    broken: bool,
}

/// Where everything stands, to tell what is wrong with it.
#[derive(Debug)]
pub struct Tree {
    prefix: String,
    section: Node,
    twice: Vec<Twice>,
    files: Vec<PathBuf>,
}

/// What else stands at the top of an included file.
pub struct Beside {
    /// The key.
    pub key: String,
    /// Where it stands.
    pub place: Place,
}

impl Draft {
    pub(super) const fn new(
        prefix: String,
        section: Node,
        problems: Problems,
        twice: Vec<Twice>,
        files: Vec<PathBuf>,
        broken: bool,
    ) -> Self {
        Self { prefix, section, problems, twice, files, broken }
    }

    /// Whether a file could not be read as a whole, so that what is missing may only seem so.
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    /// The texts at a key that names files, one or a list, with where each stands. Anything else is left to the parser.
    pub fn texts(&self, key: &str) -> Vec<(String, Place)> {
        let Some(node) = self.section.get(key) else { return Vec::new() };
        let text = |node: &Node| match &node.value {
            Value::Text(text) => vec![(text.clone(), node.place())],
            Value::Loose(list) => {
                let items = list.split(',').map(str::trim).filter(|item| !item.is_empty());
                items.map(|item| (item.to_owned(), node.place())).collect()
            }
            _ => Vec::new(),
        };
        match &node.value {
            Value::List(list) => list.iter().flat_map(text).collect(),
            _ => text(node),
        }
    }

    /// The path that a text means at this place: relative to the file in which it stands.
    pub fn resolve(&self, text: &str, place: &Place) -> PathBuf {
        resolve(&self.files, Path::new(text), place)
    }

    /// Adds what a file says at its key `from` to the key `into` of the role: a table's entries, of which those that exist
    /// are not replaced but told as [`Tree::twice`], or a list's items. Gives what else stands at the top of the file.
    pub fn include(&mut self, file: &Path, from: &str, into: &str) -> Vec<Beside> {
        self.files.push(file.to_owned());
        let Some(parsed) = files::read_whole(file, true, &mut self.problems) else {
            self.broken = true;
            return Vec::new();
        };
        let source = file.display().to_string();
        let place = |at| Place { source: source.clone(), at: Some(at) };
        let duplicates = parsed.duplicates.into_iter().map(|mut duplicate| {
            if duplicate.path.first().is_some_and(|first| first == from) {
                duplicate.path.splice(..1, into.split('.').map(str::to_owned));
            }
            Twice { path: duplicate.path, first: place(duplicate.first), second: place(duplicate.second) }
        });
        self.twice.extend(duplicates);
        let Value::Table(mut top) = parsed.node.value else { return Vec::new() };
        match top.remove(from) {
            Some(node) => self.put(node, into),
            None => {
                self.broken = true;
                let what = format!("has no key {from}");
                self.problems.push(&Place::whole(source), "", what, "correct the file");
            }
        }
        top.into_iter().map(|(key, node)| Beside { key, place: node.key_place() }).collect()
    }

    /// Puts a value at a key of the role, as one more source of it. A list goes on where the one that stands there ends.
    fn put(&mut self, node: Node, into: &str) {
        let parts: Vec<_> = into.split('.').map(str::to_owned).collect();
        let node = match (self.section.at_path_mut(&parts).map(|node| &mut node.value), node) {
            (Some(Value::List(held)), Node { value: Value::List(mut more), .. }) => {
                held.append(&mut more);
                return;
            }
            (_, node) => node,
        };
        let whole = parts.iter().rev().fold(node, |node, part| {
            let mut table = Node::table(&node.source);
            (table.at, table.key) = (node.at, node.key);
            table.value = Value::Table([(part.clone(), node)].into());
            table
        });
        self.section.add(whole, &mut Vec::new(), &parts, &mut self.twice);
    }

    /// Parses what was read. The problems found so far go on; a struct that cannot be made whole is none.
    pub fn parse<T: DeserializeOwned>(mut self) -> (Option<T>, Tree, Problems) {
        let parsed = de::parse(self.section.clone(), &self.prefix, &mut self.problems);
        let tree = Tree { prefix: self.prefix, section: self.section, twice: self.twice, files: self.files };
        (parsed, tree, self.problems)
    }
}

impl Tree {
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) const fn section(&self) -> &Node {
        &self.section
    }

    /// Keys that were set twice; the first of them holds.
    pub fn twice(&self) -> &[Twice] {
        &self.twice
    }

    /// Every file that was read.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Whether somebody set the key, by any source.
    pub fn is_set<S: AsRef<str>>(&self, path: &[S]) -> bool {
        self.section.at_path(path).is_some()
    }

    /// The keys of a table.
    pub fn keys<S: AsRef<str>>(&self, path: &[S]) -> Vec<String> {
        match self.section.at_path(path).map(|node| &node.value) {
            Some(Value::Table(table)) => table.keys().cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// Where a value stands; none when nobody set it. Numbers lead into lists.
    pub fn place<S: AsRef<str>>(&self, path: &[S]) -> Option<Place> {
        self.section.at_path(path).map(Node::place)
    }

    /// Where the key of a value stands.
    pub fn key_place<S: AsRef<str>>(&self, path: &[S]) -> Option<Place> {
        self.section.at_path(path).map(Node::key_place)
    }

    /// The path that one at this place means: relative to the file in which it stands, or to the working directory when
    /// it stands in none.
    pub fn resolve(&self, path: &Path, place: Option<&Place>) -> PathBuf {
        match place {
            Some(place) => resolve(&self.files, path, place),
            None => path.to_owned(),
        }
    }
}

fn resolve(files: &[PathBuf], path: &Path, place: &Place) -> PathBuf {
    let file = files.iter().find(|file| file.display().to_string() == place.source);
    match file.and_then(|file| file.parent()) {
        Some(dir) => dir.join(path),
        None => path.to_owned(),
    }
}
