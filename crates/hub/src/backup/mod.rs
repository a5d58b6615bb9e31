//! Backups of the whole cluster: a gzip tar of the state with sums, and the way back.
//!
//! Contract: nothing of the cluster changes before the whole archive is read, its sums are right and it is known
//! whose it is. The state inside is ciphertext of the barrier, together with the sealed keys that open it.

mod archive;

use std::fs::File;
use std::path::Path;

use holdfast_core::Kind;
use holdfast_ops::Tasks;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::barrier::seal::{STORE_KEY, SealRecord};
use crate::barrier::{Barrier, BarrierError, MacPurpose};
use crate::cluster::ClusterError;
use crate::error::ApiError;
use crate::hub::Hub;
use crate::wall;
use archive::{ArchiveError, Unpacked};

/// The content type of an archive.
pub const CONTENT_TYPE: &str = "application/gzip";
/// The format of archives that this program writes.
const FORMAT: u32 = 1;
/// The name of the state inside an archive and while it is made.
const STATE: &str = "state.bin";

/// What an archive says of itself, in `meta.json`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Meta {
    /// The format of the archive; a newer one is refused.
    #[serde(rename = "Version")]
    pub version: u32,
    /// Names the backup.
    #[serde(rename = "ID")]
    pub id: String,
    /// The newest log index in the state.
    #[serde(rename = "Index")]
    pub index: u64,
    /// The term of that index.
    #[serde(rename = "Term")]
    pub term: u64,
    /// Bytes of the state.
    #[serde(rename = "Size")]
    pub size: u64,
    /// The cluster that it was made of.
    pub cluster_id: String,
    /// The version of the program.
    pub program: String,
    /// When it was made, RFC 3339.
    pub created: String,
}

/// Makes a backup: an open file without a name, at its start.
pub async fn save(hub: &Hub) -> Result<File, ApiError> {
    let place = temporary(&hub.scratch)?;
    let state = place.path().join(STATE);
    let (index, term) = hub.cluster.save_image(&state).await.map_err(cluster_error)?;
    let meta = Meta {
        version: FORMAT,
        id: format!("{term}-{index}-{}", wall::now().as_millisecond()),
        index,
        term,
        size: std::fs::metadata(&state).map_err(ApiError::internal)?.len(),
        cluster_id: cluster_id(hub)?,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        created: wall::rfc3339(wall::now()),
    };
    let mac = |barrier: &Barrier, sums: &[u8]| barrier.mac(MacPurpose::Backup, sums);
    let (storage, folder) = (hub.storage.clone(), hub.scratch.clone());
    let made = blocking("pack", move || {
        let out = archive::pack(&folder, &meta, &state, |sums| mac(storage.barrier(), sums));
        drop(place);
        out
    });
    made.await?.map_err(ApiError::internal)
}

/// Restores a backup on all nodes. Without `force` it must be one of this cluster.
///
/// # Errors
/// 400 when the archive is damaged, of a newer format or another cluster's; then nothing has changed.
pub async fn restore(hub: &Hub, archive: File, force: bool) -> Result<(), ApiError> {
    let place = temporary(&hub.scratch)?;
    let state = place.path().join(STATE);
    let target = state.clone();
    let unpacked = blocking("unpack", move || archive::unpack(archive, &target)).await?.map_err(refuse)?;
    check(hub, &unpacked, force)?;
    tracing::warn!(backup = %unpacked.meta.id, cluster = %unpacked.meta.cluster_id, "restoring a backup");
    hub.cluster.restore_image(&state).await.map_err(cluster_error)
}

/// Whether the archive may replace the state of this cluster.
fn check(hub: &Hub, unpacked: &Unpacked, force: bool) -> Result<(), ApiError> {
    let meta = &unpacked.meta;
    if meta.version > FORMAT {
        let text = format!("the backup has format {}, newer than the {FORMAT} that is known", meta.version);
        return Err(ApiError::invalid(text));
    }
    if meta.cluster_id != cluster_id(hub)? {
        return if force {
            Ok(())
        } else {
            Err(ApiError::invalid(format!(
                "the backup is of cluster {}; to restore it here all the same, use snapshot-force",
                meta.cluster_id
            )))
        };
    }
    let sealed = mac_text(hub.storage.barrier(), &unpacked.sums).map_err(barrier_error)?;
    // Both are public: anyone may read an archive. So this need not be constant-time.
    if sealed != unpacked.sealed.trim() {
        return Err(ApiError::invalid("the backup's sums were not sealed by this cluster"));
    }
    Ok(())
}

fn mac_text(barrier: &Barrier, sums: &[u8]) -> Result<String, BarrierError> {
    Ok(hex::encode(barrier.mac(MacPurpose::Backup, sums)?))
}

/// The id of this cluster, as the seal in the store has it.
fn cluster_id(hub: &Hub) -> Result<String, ApiError> {
    let found = hub.storage.store().read(STORE_KEY).map_err(ApiError::internal)?;
    let found = found.ok_or_else(|| ApiError::failed("the store holds no seal"))?;
    let record = SealRecord::from_bytes(STORE_KEY, &found.value).map_err(ApiError::internal)?;
    Ok(record.public.cluster_id)
}

fn temporary(folder: &Path) -> Result<TempDir, ApiError> {
    tempfile::Builder::new().prefix(".backup-").tempdir_in(folder).map_err(ApiError::internal)
}

async fn blocking<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = Tasks::new("backup").spawn_blocking(name, work).join().await;
    done.ok_or_else(|| ApiError::failed("internal error"))
}

fn refuse(error: ArchiveError) -> ApiError {
    match error {
        ArchiveError::Local(error) => ApiError::internal(error),
        ArchiveError::Library(error) => barrier_error(error),
        damaged => ApiError::invalid(format!("the backup cannot be used: {damaged}")),
    }
}

fn barrier_error(error: BarrierError) -> ApiError {
    if error == BarrierError::Sealed { ApiError::sealed() } else { ApiError::internal(error) }
}

fn cluster_error(error: ClusterError) -> ApiError {
    match error.kind() {
        Kind::NotLeader => ApiError::no_leader().caused_by(error),
        Kind::Invalid => ApiError::invalid(error.to_string()),
        Kind::Conflict => ApiError::unavailable(error.to_string()),
        Kind::Timeout => ApiError::outcome_unknown().caused_by(error),
        _ => ApiError::internal(error),
    }
}

#[cfg(test)]
#[path = "backup_tests.rs"]
mod tests;
