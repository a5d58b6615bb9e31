//! The node's own files: the data directory with its lock, and replacing a file without ever showing half of it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

/// Why the data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process holds it.
    #[error("data_dir is in use: {0} is locked by another process")]
    InUse(PathBuf),
    /// It cannot be made or opened.
    #[error("data_dir {0} cannot be used")]
    Io(PathBuf, #[source] io::Error),
}

/// The data directory, locked for as long as this value lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: Flock<File>,
}

impl DataDir {
    /// Creates the directory (owner-only) when it is not there, and takes its lock.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let fail = |e| DataDirError::Io(path.to_owned(), e);
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fail)?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let file = options.open(path.join("lock")).map_err(fail)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            nix::errno::Errno::EWOULDBLOCK => DataDirError::InUse(path.to_owned()),
            errno => fail(errno.into()),
        })?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the log and the state are.
    pub fn store(&self) -> PathBuf {
        self.path.join("raft")
    }

    /// An empty directory for files that no restart needs.
    pub fn scratch(&self) -> io::Result<PathBuf> {
        let path = self.path.join("tmp");
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        Ok(path)
    }

    /// Removes what an earlier run left in the scratch directory.
    pub fn clear_scratch(&self) -> io::Result<()> {
        remove_tree(&self.path.join("tmp"))
    }

    /// Removes the log, the state and the seal: the node was never part of a cluster.
    pub fn wipe(&self) -> io::Result<()> {
        // The seal goes first: with it gone, a crash in between leaves an uninitialised node, not a broken one.
        match std::fs::remove_file(self.path.join(crate::barrier::seal::FILE)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => sync_dir(&self.path)?,
        }
        remove_tree(&self.store())
    }
}

/// Replaces the content of a file, owner-only: after a crash the old or the new content is there, never a mixture.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().ok_or_else(|| io::Error::other("the path has no directory"))?;
    let temporary = path.with_extension("tmp");
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    sync_dir(dir)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_second_user_of_the_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let first = DataDir::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let error = DataDir::open(&path).unwrap_err();
        assert!(error.to_string().contains("data_dir is in use"), "{error}");
        drop(first);
        DataDir::open(&path).unwrap();
    }

    #[test]
    fn a_replaced_file_is_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.json");
        replace(&path, b"1").unwrap();
        replace(&path, b"2").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
