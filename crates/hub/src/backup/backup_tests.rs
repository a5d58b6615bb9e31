//! Backups over a cluster that remembers its image.

use std::io::{Read as _, Seek as _, Write as _};
use std::sync::Arc;

use holdfast_core::Term;

use super::*;
use crate::barrier::Keyring;
use crate::barrier::keyring::SecretKey;
use crate::barrier::seal::{SealPublic, SealType};
use crate::store::memory::MemoryStore;
use crate::store::{Batch, Op, Store as _};
use crate::testing::{self, FakeCluster};

struct Site {
    hub: Arc<Hub>,
    cluster: Arc<FakeCluster>,
    folder: TempDir,
}

async fn site(cluster_id: &str) -> Site {
    let store = MemoryStore::new();
    let public = SealPublic {
        cluster_id: cluster_id.into(),
        cluster_name: "n".into(),
        seal: SealType::Shamir,
        shares: 1,
        threshold: 1,
        wrapped_root: None,
    };
    let (root, keyring) = (SecretKey::random().unwrap(), Keyring::generate().unwrap());
    let record = SealRecord::new(public, &root, &keyring, b"identity").unwrap();
    let op = Op::Put { key: STORE_KEY.into(), value: record.to_bytes().unwrap() };
    store.commit(Batch { conditions: vec![], ops: vec![op] }).await.unwrap();
    let cluster = FakeCluster::active("n", Term::new(1));
    cluster.set_image(b"the state".repeat(50_000));
    let folder = tempfile::tempdir().unwrap();
    let mut hub = testing::hub_over(&store, Arc::clone(&cluster));
    Arc::get_mut(&mut hub).unwrap().scratch = folder.path().to_owned();
    Site { hub, cluster, folder }
}

impl Site {
    async fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        save(&self.hub).await.unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    async fn restore(&self, bytes: &[u8], force: bool) -> Result<(), String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        restore(&self.hub, file, force).await.map_err(|error| {
            assert_eq!(error.status(), 400, "{error:?}");
            error.to_string()
        })
    }

    fn left_behind(&self) -> usize {
        std::fs::read_dir(self.folder.path()).unwrap().count()
    }
}

#[tokio::test]
async fn a_backup_comes_back() {
    let site = site("one").await;
    let archive = site.save().await;
    site.cluster.set_image(b"later".to_vec());
    site.restore(&archive, false).await.unwrap();
    assert_eq!(site.cluster.image(), b"the state".repeat(50_000));
    assert_eq!(site.left_behind(), 0);
}

#[tokio::test]
async fn the_archive_is_a_tar_whose_last_file_seals_it() {
    let site = site("one").await;
    let archive = site.save().await;
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(&archive[..]));
    let names: Vec<_> = tar
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["meta.json", "state.bin", "SHA256SUMS", "SHA256SUMS.sealed"]);
}

#[tokio::test]
async fn damage_anywhere_changes_nothing() {
    let site = site("one").await;
    let archive = site.save().await;
    site.cluster.set_image(b"later".to_vec());
    for at in (0..archive.len()).step_by(archive.len() / 40 + 1) {
        // The gzip header has bytes that mean nothing: the modification time, flags, the system.
        if (4..10).contains(&at) {
            continue;
        }
        let mut bad = archive.clone();
        bad[at] ^= 0x40;
        site.restore(&bad, true).await.unwrap_err();
    }
    for cut in [0, 10, archive.len() / 2, archive.len() - 1] {
        site.restore(&archive[..cut], true).await.unwrap_err();
    }
    assert_eq!(site.cluster.image(), b"later");
    assert_eq!(site.left_behind(), 0);
}

#[tokio::test]
async fn another_clusters_backup_needs_force() {
    let (one, two) = (site("one").await, site("two").await);
    let archive = one.save().await;
    two.cluster.set_image(b"later".to_vec());
    let refused = two.restore(&archive, false).await.unwrap_err();
    assert!(refused.contains("cluster one"), "{refused}");
    assert_eq!(two.cluster.image(), b"later");
    two.restore(&archive, true).await.unwrap();
    assert_eq!(two.cluster.image(), b"the state".repeat(50_000));
}

#[tokio::test]
async fn a_backup_that_claims_to_be_ours_must_be_sealed_by_us() {
    let (ours, forged) = (site("one").await, site("one").await);
    let archive = forged.save().await;
    let refused = ours.restore(&archive, true).await.unwrap_err();
    assert!(refused.contains("not sealed by this cluster"), "{refused}");
}

#[tokio::test]
async fn strange_files_are_refused() {
    let site = site("one").await;
    let archive_of = |entries: &[(&str, &[u8])]| {
        let mut tar =
            tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        for (name, bytes) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, name, *bytes).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap()
    };
    for (entries, expected) in [
        (vec![("evil", &b"x"[..])], "does not belong"),
        (vec![("state.bin", &b"x"[..]), ("state.bin", b"y")], "does not belong"),
        (vec![("meta.json", &b"{}"[..])], "state.bin is missing"),
        (vec![("state.bin", &b"x"[..]), ("meta.json", b"{}"), ("SHA256SUMS", b"")], "sealed is missing"),
    ] {
        let refused = site.restore(&archive_of(&entries), true).await.unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
    assert!(site.restore(b"no archive", true).await.unwrap_err().contains("damaged"));
}

/// The parts of an archive; mutations are packed anew, so that they get behind the sum of the gzip stream.
#[tokio::test]
async fn fuzz_archives() {
    let site = site("one").await;
    site.cluster.set_image(b"the state".repeat(20));
    let packed = site.save().await;
    let mut tar = Vec::new();
    flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut tar).unwrap();
    let (folder, state) = (site.folder.path(), site.folder.path().join(STATE));
    let read = |bytes: &[u8]| {
        let mut file = tempfile::tempfile_in(folder).unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        archive::unpack(file, &state).map(|_| ()).map_err(|error| error.to_string())
    };
    let words = [
        "meta.json",
        STATE,
        "SHA256SUMS",
        "SHA256SUMS.sealed",
        "ustar",
        "0000777",
        "../x",
        "{",
        "\"Version\": 2",
    ];
    holdfast_tests::fuzz::fuzz(&[&tar, &tar[..512]], &words, |input| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(input).unwrap();
        let again = read(&gzip.finish().unwrap());
        assert!(
            again.is_err() || input.starts_with(&tar[..512]),
            "sums that are right belong to the archive"
        );
        format!("{again:?}")
    });
    holdfast_tests::fuzz::fuzz(&[&packed], &["\x1f\u{8b}"], |input| format!("{:?}", read(input)));
}
