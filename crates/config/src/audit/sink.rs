//! Where audit lines go, and the rotation of a file.
//!
//! What must hold: a line is in one file whole, whatever happened in between; a rotated file is never written again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::config::{AuditSettings, AuditSink};

/// The writing end.
#[derive(Debug)]
pub(super) enum Sink {
    Off,
    Stdout { torn: Torn },
    File(LogFile),
}

/// Whether the last byte that went out was within a line.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Torn {
    #[default]
    No,
    /// The rest of the line is still to come.
    Unfinished,
    /// The rest of the line was given up: a newline must come first.
    GivenUp,
}

/// A file that is rotated.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    /// Bytes from which on it is rotated.
    max_size: u64,
    /// How many rotated ones stay.
    keep: u32,
    open: Option<Open>,
    torn: Torn,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// None for what is no file, such as a pipe, and is not rotated.
    size: Option<u64>,
    /// Device and inode.
    id: (u64, u64),
}

/// Not everything was written.
#[derive(Debug)]
pub(super) struct Failed {
    /// The bytes that were.
    pub(super) written: usize,
    /// Why.
    pub(super) error: io::Error,
}

impl Sink {
    /// Opens what the settings say.
    pub(super) fn open(settings: &AuditSettings) -> io::Result<Self> {
        match (settings.sink, &settings.path) {
            (AuditSink::Off, _) => Ok(Self::Off),
            (AuditSink::Stdout, _) => Ok(Self::Stdout { torn: Torn::No }),
            (AuditSink::File, None) => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "audit.path is not set"))
            }
            (AuditSink::File, Some(path)) => {
                let open = Some(Open::at(path)?);
                let (max_size, keep) = (settings.max_size.get(), settings.keep);
                Ok(Self::File(LogFile { path: path.clone(), max_size, keep, open, torn: Torn::No }))
            }
        }
    }

    /// Writes lines, each with its newline. After a failure the rest comes again, or [`Sink::give_up`].
    pub(super) fn write(&mut self, lines: &[u8]) -> Result<(), Failed> {
        match self {
            Self::Off => Ok(()),
            Self::Stdout { torn } => {
                // The buffer of the standard library would hide how much went out.
                let mut stdout = Descriptor(io::stdout());
                append(&mut stdout, lines, torn)
            }
            Self::File(file) => file.write(lines),
        }
    }

    /// Whether it stands within a line.
    pub(super) fn is_torn(&self) -> bool {
        let (Self::Stdout { torn } | Self::File(LogFile { torn, .. })) = self else { return false };
        *torn == Torn::Unfinished
    }

    /// The rest of what failed will not come.
    pub(super) fn give_up(&mut self) {
        let (Self::Stdout { torn } | Self::File(LogFile { torn, .. })) = self else { return };
        if *torn == Torn::Unfinished {
            *torn = Torn::GivenUp;
        }
    }
}

impl LogFile {
    fn write(&mut self, lines: &[u8]) -> Result<(), Failed> {
        let mut written = 0;
        while let Some(rest) = lines.get(written..).filter(|rest| !rest.is_empty()) {
            let part = self
                .write_part(rest)
                .map_err(|failed| Failed { written: written + failed.written, error: failed.error });
            written += part?;
        }
        Ok(())
    }

    /// Writes as many lines as the file has room for, and says how many bytes.
    fn write_part(&mut self, rest: &[u8]) -> Result<usize, Failed> {
        let failed = |error| Failed { written: 0, error };
        self.reopen_if_moved().map_err(failed)?;
        let size = self.open.as_ref().and_then(|open| open.size);
        let room = size.map_or(u64::MAX, |size| self.max_size.saturating_sub(size));
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let fits = rest.get(..room.min(rest.len())).unwrap_or_default();
        let first = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        let length = match fits.iter().rposition(|byte| *byte == b'\n') {
            // A line that began in this file ends in it.
            _ if self.torn == Torn::Unfinished => first,
            Some(at) => at + 1,
            None if size > Some(0) => {
                self.rotate();
                return Ok(0);
            }
            None => first,
        };
        let part = rest.get(..length).unwrap_or(rest);
        let Some(open) = &mut self.open else { return Err(failed(io::ErrorKind::NotFound.into())) };
        let outcome = append(&mut open.file, part, &mut self.torn);
        let done = outcome.as_ref().map_or_else(|failed| failed.written, |()| part.len());
        let grown = u64::try_from(done).unwrap_or(u64::MAX);
        open.size = open.size.map(|size| size.saturating_add(grown));
        outcome.map(|()| done)
    }

    /// Whoever moved or removed the file wants a new one.
    fn reopen_if_moved(&mut self) -> io::Result<()> {
        let there = std::fs::metadata(&self.path).ok().map(|about| (about.dev(), about.ino()));
        if self.open.as_ref().is_some_and(|open| Some(open.id) == there) {
            return Ok(());
        }
        self.open = None;
        self.open = Some(Open::at(&self.path)?);
        if self.torn == Torn::GivenUp {
            self.torn = Torn::No;
        }
        Ok(())
    }

    /// Moves the file away. When that fails it goes on being written: a long file is better than none.
    fn rotate(&mut self) {
        let outcome = self.shift();
        if let Err(error) = outcome {
            tracing::warn!(path = %self.path.display(), %error, "the audit file cannot be rotated");
            if let Some(open) = &mut self.open {
                open.size = Some(0);
            }
        }
    }

    fn shift(&self) -> io::Result<()> {
        let numbered = |n: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{n}"));
            PathBuf::from(name)
        };
        if self.keep == 0 {
            return std::fs::remove_file(&self.path);
        }
        for n in (1..self.keep).rev() {
            match std::fs::rename(numbered(n), numbered(n + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, numbered(1))
    }
}

impl Open {
    /// Opens for appending, for the owner alone when it is new.
    fn at(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let about = file.metadata()?;
        let size = about.is_file().then_some(about.len());
        Ok(Self { file, size, id: (about.dev(), about.ino()) })
    }
}

struct Descriptor<T>(T);

impl<T: std::os::fd::AsFd> io::Write for Descriptor<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        nix::unistd::write(&self.0, bytes).map_err(io::Error::from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes everything, after a newline for a line that was given up.
fn append(out: &mut impl io::Write, bytes: &[u8], torn: &mut Torn) -> Result<(), Failed> {
    if *torn == Torn::GivenUp {
        out.write_all(b"\n").map_err(|error| Failed { written: 0, error })?;
        *torn = Torn::No;
    }
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        let error = match out.write(rest) {
            Ok(0) => io::ErrorKind::WriteZero.into(),
            Ok(n) => {
                written += n;
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => error,
        };
        match written.checked_sub(1).and_then(|last| bytes.get(last)) {
            Some(b'\n') => *torn = Torn::No,
            Some(_) => *torn = Torn::Unfinished,
            None => {}
        }
        return Err(Failed { written, error });
    }
    *torn = Torn::No;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use holdfast_ops::ByteSize;

    use super::*;

    fn settings(path: &Path, max_size: u64, keep: u32) -> AuditSettings {
        let path = Some(path.to_owned());
        AuditSettings {
            sink: AuditSink::File,
            path,
            max_size: ByteSize::bytes(max_size),
            keep,
            ..AuditSettings::default()
        }
    }

    fn text(path: &Path, suffix: &str) -> Option<String> {
        std::fs::read_to_string(format!("{}{suffix}", path.display())).ok()
    }

    #[test]
    fn lines_are_appended_and_a_new_file_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        Sink::open(&settings(&path, 100, 2)).unwrap().write(b"a\nb\n").unwrap();
        Sink::open(&settings(&path, 100, 2)).unwrap().write(b"c\n").unwrap();
        assert_eq!(text(&path, "").unwrap(), "a\nb\nc\n");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_is_rotated_between_lines_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut sink = Sink::open(&settings(&path, 8, 2)).unwrap();
        sink.write(b"1aa\n2bb\n3cc\n4dd\n").unwrap();
        assert_eq!([text(&path, ""), text(&path, ".1")].map(Option::unwrap), ["3cc\n4dd\n", "1aa\n2bb\n"]);
        sink.write(b"5ee\n").unwrap();
        sink.write(b"a line that is longer than a file\n6\n").unwrap();
        assert_eq!(text(&path, "").unwrap(), "6\n");
        assert_eq!(text(&path, ".1").unwrap(), "a line that is longer than a file\n");
        assert_eq!(text(&path, ".2").unwrap(), "5ee\n");
        assert_eq!(text(&path, ".3"), None);
    }

    #[test]
    fn nothing_is_kept_when_nothing_is_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        Sink::open(&settings(&path, 4, 0)).unwrap().write(b"1aa\n2bb\n").unwrap();
        assert_eq!((text(&path, "").unwrap(), text(&path, ".1")), ("2bb\n".to_owned(), None));
    }

    #[test]
    fn who_moves_the_file_gets_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut sink = Sink::open(&settings(&path, 100, 2)).unwrap();
        sink.write(b"a\n").unwrap();
        std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        sink.write(b"b\n").unwrap();
        assert_eq!(text(&path, "").unwrap(), "b\n");
    }

    #[test]
    fn a_full_disk_is_a_failure_that_says_how_much_went_out() {
        let mut sink = Sink::open(&settings(Path::new("/dev/full"), 100, 2)).unwrap();
        let failed = sink.write(b"a\n").unwrap_err();
        assert_eq!((failed.written, failed.error.kind()), (0, io::ErrorKind::StorageFull));
        sink.give_up();
        assert!(sink.write(b"b\n").is_err());
    }

    /// Takes so many bytes and then none, once.
    struct Limited(Vec<u8>, usize);

    impl io::Write for Limited {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = self.1 - self.0.len().min(self.1);
            if room == 0 {
                self.1 = usize::MAX;
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = &bytes[..room.min(bytes.len())];
            self.0.extend_from_slice(taken);
            Ok(taken.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_torn_line_is_finished_or_ended_but_never_joined() {
        for (room, torn) in [(0, Torn::No), (1, Torn::Unfinished), (4, Torn::No), (5, Torn::Unfinished)] {
            let (mut out, mut state) = (Limited(Vec::new(), room), Torn::No);
            let lines = b"1aa\n2bb\n";
            let failed = append(&mut out, lines, &mut state).unwrap_err();
            assert_eq!((failed.written, state), (room, torn));
            append(&mut out, &lines[failed.written..], &mut state).unwrap();
            assert_eq!((&out.0[..], state), (&lines[..], Torn::No));
        }
        let (mut out, mut state) = (Limited(Vec::new(), 5), Torn::No);
        append(&mut out, b"1aa\n2bb\n", &mut state).unwrap_err();
        let mut sink = Sink::Stdout { torn: state };
        sink.give_up();
        let Sink::Stdout { mut torn } = sink else { panic!() };
        append(&mut out, b"3cc\n", &mut torn).unwrap();
        assert_eq!(out.0, b"1aa\n2\n3cc\n");
    }
}
