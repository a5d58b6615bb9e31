//! The archive itself: `meta.json`, `state.bin`, `SHA256SUMS` and, last, `SHA256SUMS.sealed`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use super::{Meta, STATE};
use crate::barrier::BarrierError;

const META: &str = "meta.json";
const SUMS: &str = "SHA256SUMS";
const SEALED: &str = "SHA256SUMS.sealed";
/// The largest of the small files, in bytes.
const MAX_SMALL: u64 = 64 * 1024;
const CHUNK: usize = 128 * 1024;

/// Why an archive cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArchiveError {
    /// The local disk failed.
    #[error("a temporary file cannot be used")]
    Local(#[source] io::Error),
    /// The barrier failed.
    #[error("the sums cannot be sealed")]
    Library(#[from] BarrierError),
    /// It is no gzip tar, or cut off.
    #[error("it is damaged or incomplete ({0})")]
    Unreadable(io::Error),
    /// A file is not there.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A file is there that must not be, or twice, or too large.
    #[error("{0:?} does not belong into it")]
    Unexpected(String),
    /// A sum is not right.
    #[error("the sum of {0} is wrong")]
    Sum(&'static str),
    /// What it says of itself cannot be read.
    #[error("meta.json cannot be read")]
    Meta(#[source] serde_json::Error),
}

/// A whole archive with right sums. The state was written to where it was asked for.
#[derive(Debug)]
pub(super) struct Unpacked {
    pub meta: Meta,
    pub sums: Vec<u8>,
    pub sealed: String,
}

/// Packs the state file into a new archive without a name below `folder`.
pub(super) fn pack(
    folder: &Path,
    meta: &Meta,
    state: &Path,
    seal: impl FnOnce(&[u8]) -> Result<[u8; 32], BarrierError>,
) -> Result<File, ArchiveError> {
    let meta_text = serde_json::to_vec_pretty(meta).map_err(ArchiveError::Meta)?;
    let state_sum = sum_of(File::open(state)).map_err(ArchiveError::Local)?;
    let sums = format!("{}  {META}\n{state_sum}  {STATE}\n", sum(&meta_text)).into_bytes();
    let sealed = format!("{}\n", hex::encode(seal(&sums)?));
    let write = || {
        // The state is ciphertext: better compression would cost time and gain nothing.
        let gzip = GzEncoder::new(tempfile::tempfile_in(folder)?, Compression::fast());
        let mut tar = tar::Builder::new(gzip);
        append(&mut tar, META, &meta_text)?;
        let mut file = File::open(state)?;
        let mut header = header(file.metadata()?.len());
        tar.append_data(&mut header, STATE, &mut file)?;
        append(&mut tar, SUMS, &sums)?;
        append(&mut tar, SEALED, sealed.as_bytes())?;
        let mut file = tar.into_inner()?.finish()?;
        file.rewind()?;
        Ok(file)
    };
    write().map_err(ArchiveError::Local)
}

fn append(tar: &mut tar::Builder<impl Write>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    tar.append_data(&mut header(size), name, bytes)
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o600);
    header.set_entry_type(tar::EntryType::Regular);
    header
}

/// Reads an archive to its end, writes the state to `state` and checks every sum.
pub(super) fn unpack(archive: File, state: &Path) -> Result<Unpacked, ArchiveError> {
    let mut gzip = GzDecoder::new(BufReader::new(archive));
    let mut small: BTreeMap<&'static str, Vec<u8>> = BTreeMap::new();
    let mut state_sum = None;
    {
        let mut tar = tar::Archive::new(&mut gzip);
        for entry in tar.entries().map_err(ArchiveError::Unreadable)? {
            let entry = entry.map_err(ArchiveError::Unreadable)?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let regular = entry.header().entry_type().is_file();
            match [META, STATE, SUMS, SEALED].into_iter().find(|known| *known == name) {
                Some(STATE) if regular && state_sum.is_none() => state_sum = Some(extract(entry, state)?),
                Some(known) if regular && known != STATE && entry.size() <= MAX_SMALL => {
                    if small.insert(known, bytes_of(entry)?).is_some() {
                        return Err(ArchiveError::Unexpected(name));
                    }
                }
                _ => return Err(ArchiveError::Unexpected(name)),
            }
        }
    }
    // What follows the last file is padding; reading it checks the sum of the gzip stream.
    io::copy(&mut gzip, &mut io::sink()).map_err(ArchiveError::Unreadable)?;
    verify(small, state_sum.ok_or(ArchiveError::Missing(STATE))?)
}

fn verify(mut small: BTreeMap<&'static str, Vec<u8>>, state_sum: String) -> Result<Unpacked, ArchiveError> {
    let mut take = |name| small.remove(name).ok_or(ArchiveError::Missing(name));
    let (meta_text, sums, sealed) = (take(META)?, take(SUMS)?, take(SEALED)?);
    let listed = String::from_utf8_lossy(&sums).into_owned();
    for (name, found) in [(META, sum(&meta_text)), (STATE, state_sum)] {
        if !listed.lines().any(|line| line == format!("{found}  {name}")) {
            return Err(ArchiveError::Sum(name));
        }
    }
    let meta = serde_json::from_slice(&meta_text).map_err(ArchiveError::Meta)?;
    Ok(Unpacked { meta, sums, sealed: String::from_utf8_lossy(&sealed).into_owned() })
}

fn bytes_of(entry: impl Read) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = Vec::new();
    entry.take(MAX_SMALL).read_to_end(&mut bytes).map_err(ArchiveError::Unreadable)?;
    Ok(bytes)
}

/// Writes what is read to a file and returns its sum.
fn extract(mut from: impl Read, path: &Path) -> Result<String, ArchiveError> {
    let mut file = File::create(path).map_err(ArchiveError::Local)?;
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0u8; CHUNK];
    loop {
        let count = from.read(&mut buffer).map_err(ArchiveError::Unreadable)?;
        let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else { break };
        context.update(read);
        file.write_all(read).map_err(ArchiveError::Local)?;
    }
    file.sync_all().map_err(ArchiveError::Local)?;
    Ok(hex::encode(context.finish()))
}

fn sum_of(file: io::Result<File>) -> io::Result<String> {
    let (mut file, mut context) = (file?, Context::new(&SHA256));
    let mut buffer = vec![0u8; CHUNK];
    loop {
        let count = file.read(&mut buffer)?;
        match buffer.get(..count) {
            Some(read) if !read.is_empty() => context.update(read),
            _ => return Ok(hex::encode(context.finish())),
        }
    }
}

fn sum(bytes: &[u8]) -> String {
    hex::encode(aws_lc_rs::digest::digest(&SHA256, bytes))
}
