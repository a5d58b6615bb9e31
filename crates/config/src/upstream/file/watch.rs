//! Tells when a file may have changed: inotify on its directory and on the directory of every link on the way.
//!
//! What must hold: one inotify instance serves all objects, since a user has few; a directory is watched while an object
//! needs it; the lock that the event callback takes is never held while the watcher is asked for something.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A name in a directory whose change matters; none means every name there.
type Interest = (PathBuf, Option<OsString>);

/// The shared watcher.
#[derive(Default)]
pub(crate) struct Directories {
    routes: Arc<Routes>,
    watcher: Mutex<Watched>,
}

/// Whom an event concerns.
#[derive(Default)]
struct Routes(Mutex<BTreeMap<u64, Route>>);

struct Route {
    interests: BTreeSet<Interest>,
    dirty: Arc<Notify>,
}

#[derive(Default)]
struct Watched {
    watcher: Option<RecommendedWatcher>,
    next: u64,
    users: BTreeMap<PathBuf, usize>,
}

/// One object's share; its directories are let go when it is dropped.
pub(crate) struct Subscription {
    id: u64,
    directories: Arc<Directories>,
    held: BTreeSet<PathBuf>,
    /// Notified when the object may have changed.
    pub dirty: Arc<Notify>,
}

impl Directories {
    /// A subscription without directories; [`Subscription::aim`] gives it some.
    pub(crate) fn subscribe(self: &Arc<Self>) -> notify::Result<Subscription> {
        self.subscribe_with(Arc::default())
    }

    /// A subscription that tells the same as others.
    pub(crate) fn subscribe_with(self: &Arc<Self>, dirty: Arc<Notify>) -> notify::Result<Subscription> {
        let mut watched = self.watcher.lock();
        if watched.watcher.is_none() {
            let routes = Arc::clone(&self.routes);
            watched.watcher = Some(notify::recommended_watcher(move |event| routes.told(event))?);
        }
        watched.next += 1;
        let id = watched.next;
        drop(watched);
        let route = Route { interests: BTreeSet::new(), dirty: Arc::clone(&dirty) };
        self.routes.0.lock().insert(id, route);
        Ok(Subscription { id, directories: Arc::clone(self), held: BTreeSet::new(), dirty })
    }
}

impl Routes {
    fn told(&self, event: notify::Result<Event>) {
        let routes = self.0.lock();
        let Ok(event) = event else {
            routes.values().for_each(|route| route.dirty.notify_one());
            return;
        };
        // Reading a file is reported too; only writers matter.
        let reading =
            matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write));
        if reading && !event.need_rescan() {
            return;
        }
        for route in routes.values() {
            if event.need_rescan() || event.paths.iter().any(|path| route.concerns(path)) {
                route.dirty.notify_one();
            }
        }
    }
}

impl Route {
    fn concerns(&self, path: &Path) -> bool {
        let named = path.parent().zip(path.file_name()).is_some_and(|(dir, name)| {
            self.interests.contains(&(dir.to_owned(), Some(name.to_owned())))
                || self.interests.contains(&(dir.to_owned(), None))
        });
        named || self.interests.iter().any(|(dir, _)| dir == path)
    }
}

impl Subscription {
    /// Watches what the path depends on now, and nothing else.
    ///
    /// # Errors
    /// When a directory cannot be watched, such as at the system's limit.
    pub(crate) fn aim(&mut self, path: &Path, is_directory: bool) -> notify::Result<()> {
        let interests = interests(path, is_directory);
        let wanted: BTreeSet<PathBuf> = interests.iter().map(|(dir, _)| dir.clone()).collect();
        if let Some(route) = self.directories.routes.0.lock().get_mut(&self.id) {
            route.interests = interests;
        }
        let mut watched = self.directories.watcher.lock();
        let mut result = Ok(());
        for dir in &wanted {
            // Asked again even when held: a directory that was replaced under its name is another one.
            result = result.and(watched.watch(dir, !self.held.contains(dir)));
        }
        for dir in self.held.difference(&wanted) {
            watched.release(dir);
        }
        drop(watched);
        self.held = wanted;
        result
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.directories.routes.0.lock().remove(&self.id);
        let mut watched = self.directories.watcher.lock();
        for dir in &self.held {
            watched.release(dir);
        }
    }
}

impl Watched {
    fn watch(&mut self, dir: &Path, new: bool) -> notify::Result<()> {
        if new {
            *self.users.entry(dir.to_owned()).or_default() += 1;
        }
        match &mut self.watcher {
            Some(watcher) => watcher.watch(dir, RecursiveMode::NonRecursive),
            None => Ok(()),
        }
    }

    fn release(&mut self, dir: &Path) {
        let Some(users) = self.users.get_mut(dir) else { return };
        *users = users.saturating_sub(1);
        if *users == 0 {
            self.users.remove(dir);
            if let Some(watcher) = &mut self.watcher {
                // It may be gone already, and its watch with it.
                let _ = watcher.unwatch(dir);
            }
        }
    }
}

/// The most links that are followed, as the kernel does.
const MAX_LINKS: usize = 40;

/// Every name whose change can change what the path means: each link on the way, and the file itself.
fn interests(path: &Path, is_directory: bool) -> BTreeSet<Interest> {
    let mut found = BTreeSet::new();
    let end = walk(path, &mut found);
    if let Some(dir) = end.filter(|_| is_directory) {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                walk(&entry.path(), &mut found);
            }
        }
        found.insert((dir, None));
    }
    found
}

/// Follows a path part by part and notes each link and the end; returns where it leads, unless something is missing.
fn walk(path: &Path, found: &mut BTreeSet<Interest>) -> Option<PathBuf> {
    let mut parts: VecDeque<OsString> = parts(path);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = parts.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let about = std::fs::symlink_metadata(&next);
        let link = about.as_ref().is_ok_and(std::fs::Metadata::is_symlink);
        if link || about.is_err() || parts.is_empty() {
            found.insert((at.clone(), Some(part)));
        }
        about.ok()?;
        if !link {
            at = next;
            continue;
        }
        links += 1;
        let target = std::fs::read_link(&next).ok().filter(|_| links <= MAX_LINKS)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        for part in self::parts(&target).into_iter().rev() {
            parts.push_front(part);
        }
    }
    Some(at)
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    named.map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_on_the_way_and_the_end_are_watched() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("store/v1")).unwrap();
        std::fs::create_dir(root.join("etc")).unwrap();
        std::fs::write(root.join("store/v1/key"), "a").unwrap();
        std::os::unix::fs::symlink("v1", root.join("store/now")).unwrap();
        std::os::unix::fs::symlink("../store/now/key", root.join("etc/key")).unwrap();
        let found = interests(&root.join("etc/key"), false);
        let named = |dir: &str, name: &str| (root.join(dir), Some(OsString::from(name)));
        let expected = [named("etc", "key"), named("store", "now"), named("store/v1", "key")];
        assert_eq!(found, BTreeSet::from(expected));
        let missing = interests(&root.join("etc/none/deeper"), false);
        assert_eq!(missing, BTreeSet::from([named("etc", "none")]));
        let all = interests(&root.join("store/now"), true);
        assert_eq!(
            all,
            BTreeSet::from([named("store", "now"), named("store", "v1"), (root.join("store/v1"), None)])
        );
    }

    #[test]
    fn a_loop_of_links_ends() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("b", root.join("a")).unwrap();
        std::os::unix::fs::symlink("a", root.join("b")).unwrap();
        assert_eq!(interests(&root.join("a"), false).len(), 2);
    }
}
