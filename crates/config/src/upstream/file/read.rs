//! Reads a file or a directory whole, or says why not.
//!
//! What must hold: what is read lies under a root after all links are followed; nothing but a regular file is opened for
//! long; bytes that changed while they were read are never returned.

use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use holdfast_core::AnswerKind;
use nix::libc::{ELOOP, O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK};
use zeroize::Zeroizing;

use crate::upstream::content::MAX_OBJECT;

/// Why there are no bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Missing {
    /// There is no such file.
    Absent,
    /// Reading it failed so.
    Failed(AnswerKind),
}

/// How often something that changes while it is read is read at most.
const TRIES: usize = 3;

impl From<io::Error> for Missing {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Absent,
            io::ErrorKind::PermissionDenied => Self::Failed(AnswerKind::PermissionDenied),
            io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::InvalidInput => Self::Failed(AnswerKind::Invalid),
            _ if error.raw_os_error() == Some(ELOOP) => Self::Failed(AnswerKind::Invalid),
            _ => Self::Failed(AnswerKind::Unavailable),
        }
    }
}

/// The bytes of a file.
pub(super) fn file(roots: &[PathBuf], path: &Path) -> Result<Vec<u8>, Missing> {
    for _ in 0..TRIES {
        let real = inside(roots, path)?;
        let mut file = open(&real)?;
        let before = file.metadata()?;
        if !before.is_file() {
            return Err(Missing::Failed(AnswerKind::Invalid));
        }
        let bytes = whole(&mut file, &before)?;
        // The name is looked up once more: it may mean another file by now.
        let after = inside(roots, path).and_then(|real| Ok(std::fs::symlink_metadata(real)?));
        if after.is_ok_and(|after| identity(&before) == identity(&after)) {
            return Ok(bytes);
        }
    }
    Err(Missing::Failed(AnswerKind::Unavailable))
}

/// A directory as a JSON object of file name to text; names that begin with a dot are left out.
pub(super) fn directory(roots: &[PathBuf], path: &Path) -> Result<Vec<u8>, Missing> {
    let mut before = list(roots, path)?;
    for _ in 0..TRIES {
        let texts = before.iter().map(|(name, entry)| Ok((name.as_str(), text(roots, &entry.path)?)));
        let texts: Result<BTreeMap<_, _>, Missing> = texts.collect();
        let after = list(roots, path)?;
        if before == after {
            let texts: BTreeMap<_, _> = texts?;
            let plain: BTreeMap<_, &str> = texts.iter().map(|(name, text)| (*name, text.as_str())).collect();
            return serde_json::to_vec(&plain).map_err(|_| Missing::Failed(AnswerKind::Invalid));
        }
        before = after;
    }
    Err(Missing::Failed(AnswerKind::Unavailable))
}

/// One file of a directory, as it was when it was listed.
#[derive(Debug, Eq, PartialEq)]
struct Listed {
    path: PathBuf,
    real: PathBuf,
    identity: [i64; 7],
}

fn list(roots: &[PathBuf], path: &Path) -> Result<BTreeMap<String, Listed>, Missing> {
    let mut listed = BTreeMap::new();
    for entry in std::fs::read_dir(inside(roots, path)?)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name else { return Err(Missing::Failed(AnswerKind::Invalid)) };
        if name.starts_with('.') {
            continue;
        }
        let real = inside(roots, &path)?;
        let about = std::fs::symlink_metadata(&real)?;
        if !about.is_file() {
            return Err(Missing::Failed(AnswerKind::Invalid));
        }
        listed.insert(name.to_owned(), Listed { real, identity: identity(&about), path: path.clone() });
    }
    Ok(listed)
}

fn text(roots: &[PathBuf], path: &Path) -> Result<Zeroizing<String>, Missing> {
    let text = String::from_utf8(file(roots, path)?);
    text.map(Zeroizing::new).map_err(|_| Missing::Failed(AnswerKind::Invalid))
}

/// Where a path leads after all links, if that lies under a root.
fn inside(roots: &[PathBuf], path: &Path) -> Result<PathBuf, Missing> {
    let real = std::fs::canonicalize(path)?;
    let mut roots = roots.iter().filter_map(|root| std::fs::canonicalize(root).ok());
    match roots.any(|root| real.starts_with(root)) {
        true => Ok(real),
        false => Err(Missing::Failed(AnswerKind::PermissionDenied)),
    }
}

/// Opens without waiting, which the open of a FIFO would do.
fn open(real: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC).open(real)
}

fn whole(file: &mut File, about: &Metadata) -> Result<Vec<u8>, Missing> {
    let length = usize::try_from(about.len()).unwrap_or(usize::MAX);
    if length > MAX_OBJECT {
        return Err(Missing::Failed(AnswerKind::Invalid));
    }
    // Room for all of it at once, so that the reader leaves no copies behind as it grows.
    let mut bytes = Vec::with_capacity(length.saturating_add(64));
    file.take(MAX_OBJECT as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What differs when a file was written to or replaced.
fn identity(about: &Metadata) -> [i64; 7] {
    let signed = |number: u64| i64::from_ne_bytes(number.to_ne_bytes());
    let times = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
    let [mtime, mtime_nsec, ctime, ctime_nsec] = times;
    [signed(about.dev()), signed(about.ino()), signed(about.len()), mtime, mtime_nsec, ctime, ctime_nsec]
}
