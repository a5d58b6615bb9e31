//! The session counter of a spoke on disk: raised and fsynced before each dial.
//!
//! What must hold: the number that a start begins with is at least the last one that was dialled with, or else the
//! spoke's own time, which is far ahead of any count that began at an earlier time.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_core::Epoch;

const NAME: &str = "session";
/// What takes its place; always one name, so that a kill leaves no more than one file behind.
const NEW: &str = "session.new";
const HEAD: &str = "holdfast-session-1 ";

/// The file of one credentials directory.
#[derive(Clone, Debug)]
pub struct Counter {
    dir: PathBuf,
}

impl Counter {
    /// The counter in this directory.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The number that was used last. Without a file that can be read it is the number of milliseconds since 1970.
    pub fn read(&self) -> Epoch {
        let path = self.dir.join(NAME);
        match std::fs::read_to_string(&path) {
            Ok(text) => parse(&text).unwrap_or_else(|| {
                tracing::warn!(path = %path.display(), "the session counter cannot be read; it begins anew");
                now()
            }),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "the session counter cannot be read; it begins anew");
                }
                now()
            }
        }
    }

    /// Makes a number last.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write(&self, epoch: Epoch) -> io::Result<()> {
        let _held = crate::credentials::lock(&self.dir).map_err(io::Error::other)?;
        let new = self.dir.join(NEW);
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        writeln!(file, "{HEAD}{epoch}")?;
        file.sync_all()?;
        std::fs::rename(&new, self.dir.join(NAME))?;
        std::fs::File::open(&self.dir)?.sync_all()
    }
}

fn parse(text: &str) -> Option<Epoch> {
    text.strip_suffix('\n')?.strip_prefix(HEAD)?.parse().ok().map(Epoch::new)
}

fn now() -> Epoch {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Epoch::new(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_survives_and_a_missing_or_broken_file_begins_at_the_time() {
        let dir = tempfile::tempdir().unwrap();
        let counter = Counter::new(dir.path());
        let before = now();
        assert!(counter.read() >= before);
        counter.write(Epoch::new(7)).unwrap();
        assert_eq!(counter.read(), Epoch::new(7));
        // A start that was killed left this behind.
        std::fs::write(dir.path().join(NEW), "holdfast-sess").unwrap();
        counter.write(Epoch::new(8)).unwrap();
        assert_eq!(Counter::new(dir.path()).read(), Epoch::new(8));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
        for broken in ["", "7", "holdfast-session-1 8", "holdfast-session-1 x\n", "holdfast-session-2 9\n"] {
            std::fs::write(dir.path().join(NAME), broken).unwrap();
            assert!(counter.read() >= before, "{broken:?}");
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        let counter = Counter::new(Path::new("/does/not/exist"));
        assert!(counter.write(Epoch::new(1)).is_err());
    }
}
