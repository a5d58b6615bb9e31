//! Where the lines of a `file` device go: a file that is opened at the start and again when told.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::entry::DeviceEntry;

enum Target {
    File(PathBuf),
    Stdout,
    Discard,
}

/// The writing end of a device; lives in its thread.
pub(super) struct Sink {
    target: Target,
    mode: u32,
    open: Option<File>,
    /// The last write ended within a line.
    torn: bool,
}

impl Sink {
    pub(super) fn new(entry: &DeviceEntry) -> Self {
        let target = match entry.options.file_path.as_str() {
            "stdout" => Target::Stdout,
            "discard" => Target::Discard,
            path => Target::File(path.into()),
        };
        Self { target, mode: entry.options.mode, open: None, torn: false }
    }

    /// Opens the file, unless that could block: a pipe is opened with the first line.
    pub(super) fn open(&mut self) -> io::Result<()> {
        if let Target::File(path) = &self.target
            && !is_pipe(path)
        {
            self.open = Some(open(path, self.mode)?);
        }
        Ok(())
    }

    /// Forgets the open file: the next write opens it by name.
    pub(super) fn close(&mut self) {
        self.open = None;
        self.torn = false;
    }

    /// Writes lines, in one call where the system takes them whole. After a failure the file is opened anew.
    pub(super) fn write<'a>(&mut self, lines: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        let mut bytes = if self.torn { b"\n".to_vec() } else { Vec::new() };
        lines.for_each(|line| bytes.extend_from_slice(line));
        match &self.target {
            Target::Discard => Ok(()),
            Target::Stdout => io::stdout().lock().write_all(&bytes),
            Target::File(path) => {
                if self.open.is_none() {
                    self.open = Some(open(path, self.mode)?);
                }
                let Some(file) = &mut self.open else { return Err(io::ErrorKind::NotFound.into()) };
                let outcome = append(file, &bytes);
                let written = *outcome.as_ref().unwrap_or_else(|(written, _)| written);
                self.torn = written > 0 && written < bytes.len() || self.torn && written == 0;
                outcome.map(drop).map_err(|(_, error)| {
                    self.open = None;
                    error
                })
            }
        }
    }
}

/// Writes everything, or says how many bytes went out before the error.
fn append(file: &mut File, bytes: &[u8]) -> Result<usize, (usize, io::Error)> {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            Ok(n) => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((written, error)),
        }
    }
    Ok(written)
}

/// Opens what a device would write to, unless that is no file or one that could block.
pub(super) fn check(path: &str, mode: u32) -> io::Result<()> {
    let path = Path::new(path);
    if matches!(path.to_str(), Some("stdout" | "discard")) || is_pipe(path) {
        return Ok(());
    }
    open(path, mode).map(drop)
}

fn is_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}

/// Opens the file for appending; only its owner may read it unless the device says otherwise.
pub(super) fn open(path: &Path, mode: u32) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).mode(mode).open(path)?;
    let found = file.metadata()?;
    if found.is_file() && found.permissions().mode() & 0o777 != mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::entry::DeviceOptions;

    fn sink(path: &Path) -> Sink {
        let options =
            DeviceOptions { file_path: path.to_str().unwrap().to_owned(), ..DeviceOptions::default() };
        Sink::new(&DeviceEntry { options, ..DeviceEntry::default() })
    }

    #[test]
    fn lines_are_appended_and_the_file_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        std::fs::write(&path, "old\n").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut sink = sink(&path);
        sink.write([&b"a\n"[..], &b"b\n"[..]].into_iter()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old\na\nb\n");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn after_a_rotation_the_new_file_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut sink = sink(&path);
        sink.write([&b"a\n"[..]].into_iter()).unwrap();
        std::fs::rename(&path, dir.path().join("audit.1")).unwrap();
        sink.close();
        sink.write([&b"b\n"[..]].into_iter()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b\n");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut sink = sink(Path::new("/dev/full"));
        assert!(sink.write([&b"a\n"[..]].into_iter()).is_err());
        assert!(sink.write([&b"a\n"[..]].into_iter()).is_err());
    }
}
