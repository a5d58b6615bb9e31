//! Unix sockets to listen on.
//!
//! What must hold: a socket is never open to more than its mode says, not even for a moment; a path that a living process
//! serves is not taken unless that is asked for; a path is removed only while it is still ours.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// A process that serves a socket takes a connection at once, since the kernel does it.
const PROBE: Duration = Duration::from_secs(1);

/// What a socket shall be.
#[derive(Clone, Debug)]
pub struct UnixOptions {
    /// Its path.
    pub path: PathBuf,
    /// Its permission bits, whatever the umask.
    pub mode: u32,
    /// Its owner; the process's own unless given.
    pub owner: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
    /// Whether it is taken from a process that serves it.
    pub takeover: bool,
}

/// Why a socket cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum UnixError {
    /// A living process answers on it.
    #[error("socket {} is served by another process", .0.display())]
    Served(PathBuf),
    /// Something else is at its path.
    #[error("{} is not a socket", .0.display())]
    Foreign(PathBuf),
    /// The system refused.
    #[error("cannot listen on {}", .0.display())]
    Io(PathBuf, #[source] io::Error),
}

/// A path in the file system that is ours as long as its inode is.
#[derive(Clone, Debug)]
pub struct OwnedPath {
    path: PathBuf,
    identity: (u64, u64),
}

impl OwnedPath {
    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the path, unless someone else has put a socket of his own there. To be called while the listener is still
    /// open, since an inode that is free may be given to another file.
    pub fn remove(&self) {
        let ours =
            std::fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.identity);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a socket could not be removed");
        }
    }
}

/// Binds a socket, after it looked whether somebody serves its path.
pub async fn bind(options: &UnixOptions) -> Result<(UnixListener, OwnedPath), UnixError> {
    let fail = |error| UnixError::Io(options.path.clone(), error);
    look(options).await?;
    // Made beside its place and moved there whole: nobody meets it before its mode is set, and a path that is taken over
    // answers at every moment.
    let beside = beside(&options.path);
    let made = make(options, &beside).inspect_err(|_| drop(std::fs::remove_file(&beside)));
    made.map_err(fail)
}

async fn look(options: &UnixOptions) -> Result<(), UnixError> {
    let path = &options.path;
    let about = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        about => about.map_err(|error| UnixError::Io(path.clone(), error))?,
    };
    if !about.file_type().is_socket() {
        return Err(UnixError::Foreign(path.clone()));
    }
    let answer = tokio::time::timeout(PROBE, UnixStream::connect(path)).await;
    // Only a refusal shows that nobody serves it; a full backlog or missing rights do not.
    let dead = matches!(&answer, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused);
    if dead || options.takeover { Ok(()) } else { Err(UnixError::Served(path.clone())) }
}

fn make(options: &UnixOptions, beside: &Path) -> io::Result<(UnixListener, OwnedPath)> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(beside)?;
    std::fs::set_permissions(beside, std::fs::Permissions::from_mode(options.mode))?;
    if options.owner.is_some() || options.group.is_some() {
        std::os::unix::fs::chown(beside, options.owner, options.group)?;
    }
    let listener = socket.listen(BACKLOG)?;
    let about = std::fs::symlink_metadata(beside)?;
    std::fs::rename(beside, &options.path)?;
    Ok((listener, OwnedPath { path: options.path.clone(), identity: (about.dev(), about.ino()) }))
}

/// A name in the same directory, short, since the path of a socket has little room.
fn beside(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{}", holdfast_ops::rand::base62(6)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dir: &Path) -> UnixOptions {
        UnixOptions { path: dir.join("s"), mode: 0o600, owner: None, group: None, takeover: false }
    }

    #[tokio::test]
    async fn a_socket_has_its_mode_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let (_listener, path) = bind(&UnixOptions { mode: 0o622, ..options(dir.path()) }).await.unwrap();
        let mode = std::fs::metadata(path.path()).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o622);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        path.remove();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_path_that_is_served_is_refused_and_a_dead_one_is_reclaimed() {
        let dir = tempfile::tempdir().unwrap();
        let first = bind(&options(dir.path())).await.unwrap();
        let error = bind(&options(dir.path())).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("socket {} is served by another process", dir.path().join("s").display())
        );
        drop(first);
        assert!(dir.path().join("s").exists(), "a process that died leaves its path");
        bind(&options(dir.path())).await.unwrap();
    }

    #[tokio::test]
    async fn who_lost_a_path_leaves_the_new_socket_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (_old, lost) = bind(&options(dir.path())).await.unwrap();
        let (_new, path) = bind(&UnixOptions { takeover: true, ..options(dir.path()) }).await.unwrap();
        lost.remove();
        UnixStream::connect(path.path()).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_of_another_sort_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("s"), "data").unwrap();
        let asked = UnixOptions { takeover: true, ..options(dir.path()) };
        assert!(matches!(bind(&asked).await, Err(UnixError::Foreign(_))));
        assert_eq!(std::fs::read_to_string(dir.path().join("s")).unwrap(), "data");
    }
}
