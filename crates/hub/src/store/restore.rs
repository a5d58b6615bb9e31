//! Replacing the state of the whole cluster by an image: its rows travel through the log, so that every node, also
//! one that is away now, comes to the same state.

use std::path::{Path, PathBuf};
use std::time::Duration;

use openraft::error::{ClientWriteError, RaftError};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::core::Core;
use super::image::{self, Image, ImageError};
use super::types::{Command, Outcome, Raft, Reply, Row};
use crate::cluster::ClusterError;

/// Bytes of keys and values in one entry.
const PIECE: usize = 512 << 10;
/// How long one entry may take; the last one replaces the whole state.
const ENTRY: Duration = Duration::from_secs(60);

/// Restores the image at `path`. Nothing changes on any node unless all of it could be read and was sound.
pub(super) async fn run(core: &Core, path: &Path) -> Result<(), ClusterError> {
    let raft = core.raft().ok_or(ClusterError::NotLeader)?;
    if core.gate.active().is_none() {
        return Err(ClusterError::NotLeader);
    }
    let checked = path.to_owned();
    let verified = core.tasks.spawn_blocking("store-verify", move || image::verify(&checked));
    let (_, _) = verified.join().await.unwrap_or_else(|| Err(closed())).map_err(refused)?;
    let id = u64::from_le_bytes(holdfast_ops::rand::bytes());
    let (pieces, mut queue) = mpsc::channel(2);
    let reading = path.to_owned();
    let read = core.tasks.spawn_blocking("store-restore", move || read(&reading, &pieces));
    propose(raft, Command::RestoreBegin { id }).await?;
    let mut rows = 0;
    while let Some(piece) = queue.recv().await {
        rows += u64::try_from(piece.len()).unwrap_or(0);
        propose(raft, Command::RestoreRows { id, rows: piece }).await?;
    }
    read.join().await.unwrap_or_else(|| Err(closed())).map_err(refused)?;
    match propose(raft, Command::RestoreEnd { id, rows }).await?.outcomes.first() {
        Some(Outcome::Applied(_)) => Ok(()),
        _ => Err(ClusterError::Invalid("another restore began meanwhile".into())),
    }
}

fn closed() -> ImageError {
    ImageError::Io { path: PathBuf::new(), source: std::io::ErrorKind::Interrupted.into() }
}

fn refused(error: ImageError) -> ClusterError {
    match error {
        ImageError::Damaged { .. } | ImageError::Newer { .. } => ClusterError::Image(error.to_string()),
        _ => ClusterError::Internal(Box::new(error)),
    }
}

fn read(path: &Path, pieces: &mpsc::Sender<Vec<Row>>) -> Result<(), ImageError> {
    let mut image = Image::open(path)?;
    let (mut piece, mut bytes) = (Vec::new(), 0);
    while let Some(row) = image.next_row()? {
        if row.staged {
            continue;
        }
        let key = String::from_utf8(row.key)
            .map_err(|_| ImageError::Damaged { path: path.to_owned(), what: "a key is no text" })?;
        bytes += key.len() + row.value.len();
        piece.push(Row { key, value: row.value });
        if bytes >= PIECE {
            bytes = 0;
            if pieces.blocking_send(std::mem::take(&mut piece)).is_err() {
                return Err(closed());
            }
        }
    }
    if !piece.is_empty() && pieces.blocking_send(piece).is_err() {
        return Err(closed());
    }
    Ok(())
}

async fn propose(raft: &Raft, command: Command) -> Result<Reply, ClusterError> {
    match timeout(ENTRY, raft.client_write(command)).await {
        Ok(Ok(written)) => Ok(written.data),
        Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => Err(ClusterError::NotLeader),
        Ok(Err(error)) => Err(ClusterError::Internal(Box::new(error))),
        Err(_) => Err(ClusterError::Timeout),
    }
}
