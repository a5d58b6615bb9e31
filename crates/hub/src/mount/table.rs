//! The mount table as a value: entries by path, and which of them serves a request.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::MountEntry;
use crate::logical::Engine;

/// One engine a mount type.
pub(super) type Engines = HashMap<&'static str, Arc<dyn Engine>>;

/// A mount that serves a path.
#[derive(Clone)]
pub struct Route {
    /// The entry.
    pub mount: Arc<MountEntry>,
    /// The engine of its type.
    pub engine: Arc<dyn Engine>,
    /// The path inside the mount.
    pub rest: String,
}

/// The mounts that are always there: path, type, description.
const BUILT_IN: [(&str, &str, &str); 3] = [
    ("sys/", "system", "system endpoints used for control, policy and debugging"),
    ("cubbyhole/", "cubbyhole", "per-token private secret storage"),
    ("auth/token/", "token", "token based credentials"),
];

/// All mounts.
#[derive(Default)]
pub(super) struct Table {
    entries: BTreeMap<String, Arc<MountEntry>>,
}

impl Table {
    /// The built-in mounts and the stored ones; a stored entry at a built-in path is that mount, tuned.
    pub(super) fn new(stored: impl IntoIterator<Item = MountEntry>) -> Self {
        let all = BUILT_IN.iter().map(built_in).chain(stored);
        Self { entries: all.map(|entry| (entry.path.clone(), Arc::new(entry))).collect() }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<MountEntry>> {
        self.entries.values()
    }

    pub(super) fn get(&self, path: &str) -> Option<&Arc<MountEntry>> {
        self.entries.get(path)
    }

    /// A mount whose path contains `path` or lies below it.
    pub(super) fn overlap(&self, path: &str) -> Option<&Arc<MountEntry>> {
        self.entries.values().find(|e| e.path.starts_with(path) || path.starts_with(&e.path))
    }

    /// The mount with the longest path that is a prefix of `path`. The final slash of a mount's own path may be
    /// missing.
    pub(super) fn route(&self, path: &str, engines: &Engines) -> Option<Route> {
        let found = prefixes(path).find_map(|prefix| self.entries.get(prefix));
        let mount = found.or_else(|| self.entries.get(&format!("{path}/")))?;
        let engine = engines.get(mount.kind.as_str())?;
        let rest = path.strip_prefix(mount.path.as_str()).unwrap_or_default().to_owned();
        Some(Route { mount: Arc::clone(mount), engine: Arc::clone(engine), rest })
    }
}

/// The prefixes of `path` that end with a slash, longest first.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    path.rmatch_indices('/').filter_map(|(at, _)| path.get(..=at))
}

fn built_in((path, kind, description): &(&str, &str, &str)) -> MountEntry {
    // The accessor and the store's part are the same in every cluster: nothing else can claim these names.
    MountEntry {
        path: (*path).to_owned(),
        kind: (*kind).to_owned(),
        uuid: (*kind).to_owned(),
        accessor: format!("{kind}_00000000"),
        description: (*description).to_owned(),
        local: *kind == "cubbyhole",
        ..MountEntry::default()
    }
}

/// Whether the path belongs to a mount that is always there, or to a name that must stay free.
pub(super) fn is_protected(path: &str) -> bool {
    path == "auth/" || BUILT_IN.iter().any(|(built_in, ..)| path.starts_with(built_in))
}

/// Whether the mount at exactly this path is always there.
pub(super) fn is_built_in(path: &str) -> bool {
    BUILT_IN.iter().any(|(built_in, ..)| *built_in == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(paths: &[&str]) -> (Table, Engines) {
        let entry = |path: &&str| MountEntry {
            path: (*path).to_owned(),
            kind: "kv".to_owned(),
            ..MountEntry::default()
        };
        let engines = Engines::from([("kv", crate::kv::engine()), ("system", crate::sys::engine())]);
        (Table::new(paths.iter().map(entry)), engines)
    }

    #[test]
    fn the_longest_prefix_serves() {
        let (table, engines) = table(&["a/", "a/b/"]);
        for (path, mount, rest) in [
            ("a/x", "a/", "x"),
            ("a/b/x/y", "a/b/", "x/y"),
            ("a/bc", "a/", "bc"),
            ("a/b", "a/", "b"),
            ("a", "a/", ""),
            ("sys/mounts", "sys/", "mounts"),
        ] {
            let route = table.route(path, &engines).unwrap();
            assert_eq!((route.mount.path.as_str(), route.rest.as_str()), (mount, rest), "{path}");
        }
        for none in ["", "b", "ab/x", "/a/x", "auth/nothing/login"] {
            assert!(table.route(none, &engines).is_none(), "{none}");
        }
    }

    #[test]
    fn overlaps_are_seen_both_ways() {
        let (table, _) = table(&["a/b/"]);
        assert!(table.overlap("a/").is_some());
        assert!(table.overlap("a/b/c/").is_some());
        assert!(table.overlap("a/bc/").is_none());
        assert!(is_protected("sys/x/") && is_protected("auth/") && !is_protected("auth/x/"));
    }
}
