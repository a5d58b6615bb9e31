//! Reading files that hold secrets, and refusing those that others could have read.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use holdfast_core::Kind;
use secrecy::SecretSlice;
use zeroize::Zeroizing;

/// Secret files are short; a larger one is the wrong file.
const MAX_BYTES: u64 = 1 << 20;

/// Why a secret file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be opened or read.
    #[error("cannot read secret file {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Group or others have some right to it.
    #[error("secret file {path} has mode {mode:04o}; only its owner may have access: chmod 600 {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user owns it and could change it.
    #[error("secret file {path} belongs to user {uid}, not to the user this process runs as or to root")]
    Owner {
        /// The file.
        path: PathBuf,
        /// Who owns it.
        uid: u32,
    },
    /// It is no regular file, or implausibly large.
    #[error("secret file {path} is not a regular file of at most 1 MiB")]
    Shape {
        /// The file.
        path: PathBuf,
    },
}

impl Error {
    /// The class of the error.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Read { .. } => Kind::Unavailable,
            Self::Open { .. } | Self::Owner { .. } | Self::Shape { .. } => Kind::Invalid,
        }
    }
}

/// Reads a file that holds a secret.
///
/// # Errors
/// When it cannot be read, is no regular file, or anyone but its owner (this user or root) has rights to it.
pub fn read(path: &Path) -> Result<SecretSlice<u8>, Error> {
    let fail = |source| Error::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(fail)?;
    // The open file is judged, not the name, so that nobody can exchange it in between.
    let about = file.metadata().map_err(fail)?;
    if !about.is_file() || about.len() > MAX_BYTES {
        return Err(Error::Shape { path: path.to_owned() });
    }
    let mode = about.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(Error::Open { path: path.to_owned(), mode });
    }
    let me = std::fs::metadata("/proc/self").map_err(fail)?.uid();
    if about.uid() != me && about.uid() != 0 {
        return Err(Error::Owner { path: path.to_owned(), uid: about.uid() });
    }
    // Reserving the whole length first keeps the reader from leaving copies behind as it grows.
    let length = usize::try_from(about.len()).unwrap_or(usize::MAX);
    let mut bytes = Zeroizing::new(Vec::with_capacity(length.saturating_add(1)));
    file.read_to_end(&mut bytes).map_err(fail)?;
    Ok(SecretSlice::from(std::mem::take(&mut *bytes)))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    fn file_with_mode(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, b"0123456789abcdef").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn an_owner_only_file_is_read() {
        for mode in [0o600, 0o400] {
            let (_dir, path) = file_with_mode(mode);
            assert_eq!(read(&path).unwrap().expose_secret(), b"0123456789abcdef");
        }
    }

    #[test]
    fn a_file_that_others_may_touch_is_refused_with_what_to_do() {
        for mode in [0o640, 0o604, 0o620, 0o601] {
            let (_dir, path) = file_with_mode(mode);
            let error = read(&path).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn a_directory_and_a_missing_file_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read(dir.path()), Err(Error::Shape { .. })));
        assert!(matches!(read(&dir.path().join("none")), Err(Error::Read { .. })));
    }
}
