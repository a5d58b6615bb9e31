//! Images of the whole applied state: what a follower that is far behind is sent, and what a backup holds.
//!
//! Layout, all numbers little-endian: magic, format `u32`, head length `u32`, head; then rows, each a tag byte, key
//! length `u32`, key, version `u64`, value length `u32`, value; then an end tag, the number of rows `u64`, and the
//! SHA-256 of all before it. What must hold: an image is written under a temporary name, read back, synced and
//! renamed; one that fails its checksum or comes from a newer version is refused before anything changes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use rusqlite::Connection;

use super::apply::Head;
use super::db::sync_folder;

const MAGIC: &[u8; 8] = b"HFIMAGE\n";
const FORMAT: u32 = 1;
/// Longer heads, keys and values do not occur; a length beyond these is damage, not a reason to allocate.
const MAX_HEAD: u32 = 16 << 20;
const MAX_PART: u32 = 4 << 20;

/// A row of the state.
const TAG_ROW: u8 = 1;
/// A row of a restore that was under way.
const TAG_STAGED: u8 = 2;
const TAG_END: u8 = 0;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageError {
    #[error("reading or writing {} failed", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: &'static str },
    #[error("{} has image format {found}; this version reads up to {FORMAT}", path.display())]
    Newer { path: PathBuf, found: u32 },
    #[error("reading the state failed")]
    State(#[source] rusqlite::Error),
    #[error("encoding the head failed")]
    Head(#[source] postcard::Error),
}

/// One row of an image.
pub(super) struct ImageRow {
    pub staged: bool,
    pub key: Vec<u8>,
    pub version: u64,
    pub value: Vec<u8>,
}

/// Writes the state that `connection` sees to a new file at `path`, and reads it back.
pub(super) fn write(connection: &mut Connection, path: &Path) -> Result<Head, ImageError> {
    write_between(connection, path, |_| {})
}

/// As [`write`]; `between` sees the file before it is read back.
fn write_between(
    connection: &mut Connection,
    path: &Path,
    between: impl FnOnce(&Path),
) -> Result<Head, ImageError> {
    let temporary = path.with_extension("tmp");
    let written = write_to(connection, &temporary).and_then(|head| {
        between(&temporary);
        verify(&temporary).map(|_| head)
    });
    let renamed = written.and_then(|head| {
        fs::rename(&temporary, path).map_err(|source| io_error(path, source))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        sync_folder(folder.unwrap_or(Path::new(".")))
            .map_err(|error| io_error(path, io::Error::other(error)))?;
        Ok(head)
    });
    if renamed.is_err() {
        drop(fs::remove_file(&temporary));
    }
    renamed
}

fn write_to(connection: &mut Connection, path: &Path) -> Result<Head, ImageError> {
    let io = |source| io_error(path, source);
    let transaction = connection.transaction().map_err(ImageError::State)?;
    let head = Head::read(&transaction).map_err(ImageError::State)?.unwrap_or_default();
    let file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(io)?;
    let mut out = Summing { inner: BufWriter::with_capacity(1 << 20, file), sum: Context::new(&SHA256) };
    let encoded = postcard::to_stdvec(&head).map_err(ImageError::Head)?;
    out.write_all(MAGIC).map_err(io)?;
    out.write_all(&FORMAT.to_le_bytes()).map_err(io)?;
    put_part(&mut out, &encoded).map_err(io)?;
    let mut count = 0u64;
    for (tag, query) in [
        (TAG_ROW, "SELECT key, version, value FROM kv ORDER BY key"),
        (TAG_STAGED, "SELECT key, 0, value FROM staged ORDER BY key"),
    ] {
        let mut select = transaction.prepare(query).map_err(ImageError::State)?;
        let mut rows = select.query([]).map_err(ImageError::State)?;
        while let Some(row) = rows.next().map_err(ImageError::State)? {
            let blob = |at| row.get_ref(at).map_err(ImageError::State);
            let version: i64 = row.get(1).map_err(ImageError::State)?;
            out.write_all(&[tag]).map_err(io)?;
            put_part(&mut out, blob(0)?.as_blob().unwrap_or_default()).map_err(io)?;
            out.write_all(&version.to_le_bytes()).map_err(io)?;
            put_part(&mut out, blob(2)?.as_blob().unwrap_or_default()).map_err(io)?;
            count += 1;
        }
    }
    out.write_all(&[TAG_END]).map_err(io)?;
    out.write_all(&count.to_le_bytes()).map_err(io)?;
    let Summing { mut inner, sum } = out;
    inner.write_all(sum.finish().as_ref()).map_err(io)?;
    let file = inner.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)?;
    Ok(head)
}

/// Checks the whole file; returns its head and the number of its rows.
pub(super) fn verify(path: &Path) -> Result<(Head, u64), ImageError> {
    let mut image = Image::open(path)?;
    let mut count = 0;
    while image.next_row()?.is_some() {
        count += 1;
    }
    Ok((image.head, count))
}

/// An image that is being read; only [`verify`] says whether all of it is sound.
pub(super) struct Image {
    path: PathBuf,
    input: Summing<BufReader<File>>,
    pub head: Head,
    rows: u64,
    ended: bool,
}

impl Image {
    pub(super) fn open(path: &Path) -> Result<Self, ImageError> {
        let file = File::open(path).map_err(|source| io_error(path, source))?;
        let mut input =
            Summing { inner: BufReader::with_capacity(1 << 20, file), sum: Context::new(&SHA256) };
        let damaged = |what| ImageError::Damaged { path: path.to_owned(), what };
        let magic: [u8; 8] = fixed(&mut input).map_err(|_| damaged("it is too short"))?;
        if &magic != MAGIC {
            return Err(damaged("it is no image"));
        }
        let found = u32::from_le_bytes(fixed(&mut input).map_err(|_| damaged("it is too short"))?);
        if found > FORMAT {
            return Err(ImageError::Newer { path: path.to_owned(), found });
        }
        let encoded = part(&mut input, MAX_HEAD).map_err(|_| damaged("its head cannot be read"))?;
        let head = postcard::from_bytes(&encoded).map_err(|_| damaged("its head cannot be read"))?;
        Ok(Self { path: path.to_owned(), input, head, rows: 0, ended: false })
    }

    /// The next row; `None` at the end, when the checksum was right.
    pub(super) fn next_row(&mut self) -> Result<Option<ImageRow>, ImageError> {
        if self.ended {
            return Ok(None);
        }
        match self.read_row() {
            Ok(Some(row)) => {
                self.rows += 1;
                Ok(Some(row))
            }
            Ok(None) => self.finish().map(|()| None),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.damaged("it is cut off")),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(self.damaged("a row makes no sense"))
            }
            Err(source) => Err(io_error(&self.path, source)),
        }
    }

    fn read_row(&mut self) -> io::Result<Option<ImageRow>> {
        let [tag] = fixed(&mut self.input)?;
        let staged = match tag {
            TAG_END => return Ok(None),
            TAG_ROW => false,
            TAG_STAGED => true,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let key = part(&mut self.input, MAX_PART)?;
        let version = u64::from_le_bytes(fixed(&mut self.input)?);
        let value = part(&mut self.input, MAX_PART)?;
        Ok(Some(ImageRow { staged, key, version, value }))
    }

    fn finish(&mut self) -> Result<(), ImageError> {
        self.ended = true;
        let count =
            fixed(&mut self.input).map(u64::from_le_bytes).map_err(|_| self.damaged("it is cut off"))?;
        let computed = self.input.sum.clone().finish();
        let mut stored = [0; SHA256_OUTPUT_LEN];
        self.input.inner.read_exact(&mut stored).map_err(|_| self.damaged("it is cut off"))?;
        if stored != computed.as_ref() || count != self.rows {
            return Err(self.damaged("its checksum is wrong"));
        }
        match self.input.inner.read(&mut [0]) {
            Ok(0) => Ok(()),
            _ => Err(self.damaged("something follows its end")),
        }
    }

    fn damaged(&self, what: &'static str) -> ImageError {
        ImageError::Damaged { path: self.path.clone(), what }
    }
}

/// Sums up what passes through.
struct Summing<T> {
    inner: T,
    sum: Context,
}

impl<T: Write> Write for Summing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.sum.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Summing<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.sum.update(bytes.get(..read).unwrap_or_default());
        Ok(read)
    }
}

fn io_error(path: &Path, source: io::Error) -> ImageError {
    ImageError::Io { path: path.to_owned(), source }
}

fn fixed<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn part(input: &mut impl Read, max: u32) -> io::Result<Vec<u8>> {
    let length = u32::from_le_bytes(fixed(input)?);
    if length > max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn put_part(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::store::db;
    use crate::store::state::STATE;

    #[test]
    fn an_image_that_cannot_be_read_back_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = db::open(&folder.path().join("state.db"), &STATE).unwrap();
        state.execute("INSERT INTO kv (key, version, value) VALUES (x'61', 1, x'62')", []).unwrap();
        let path = folder.path().join("1.hfi");
        let damage = |file: &Path| {
            let middle = fs::metadata(file).unwrap().len() / 2;
            OpenOptions::new().write(true).open(file).unwrap().write_all_at(&[0xff], middle).unwrap();
        };
        let refused = write_between(&mut state, &path, damage).err().unwrap();
        assert!(matches!(refused, ImageError::Damaged { .. }), "{refused}");
        let left = || fs::read_dir(folder.path()).unwrap().flatten().map(|e| e.file_name());
        assert!(
            left().all(|name| name.to_string_lossy().starts_with("state.db")),
            "{:?}",
            left().collect::<Vec<_>>()
        );
        write(&mut state, &path).unwrap();
        assert_eq!(verify(&path).unwrap().1, 1);
    }
}
