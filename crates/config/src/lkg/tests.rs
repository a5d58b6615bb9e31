//! What is kept, what is used again, and what is set aside.

use std::os::unix::fs::PermissionsExt as _;

use holdfast_core::Now;
use holdfast_tests::fuzz::Fuzzer;
use proptest::prelude::*;

use super::*;
use crate::config::LkgSettings;
use crate::value::Secret;

const DAY: Duration = Duration::from_secs(86_400);

/// A clock that stands at a day after the epoch, and tokio's time.
struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Now {
        let mono = Mono::ZERO.after(tokio::time::Instant::now().duration_since(origin()));
        Now { mono, wall: Wall::default().after(2 * DAY) }
    }
}

fn origin() -> tokio::time::Instant {
    static ORIGIN: std::sync::OnceLock<tokio::time::Instant> = std::sync::OnceLock::new();
    *ORIGIN.get_or_init(tokio::time::Instant::now)
}

#[derive(Default)]
struct Shelf(Mutex<(Records, u64)>);

impl Shelf {
    fn set(&self, name: &str, kept: Kept) {
        let mut inner = self.0.lock();
        let before = inner.0.insert(name.into(), kept.clone());
        if before.is_none_or(|before| before.value != kept.value) {
            inner.1 += 1;
        }
    }
}

impl Source for Shelf {
    fn records(&self) -> Records {
        self.0.lock().0.clone()
    }
    fn changes(&self) -> u64 {
        self.0.lock().1
    }
}

struct Rig {
    dir: tempfile::TempDir,
    shelf: Arc<Shelf>,
    settings: ConfigSettings,
    tasks: Tasks,
}

fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    crate::upstream::tests::scripted::secret(&key, &"0f".repeat(32));
    let lkg =
        LkgSettings { dir: Some(dir.path().join("lkg")), key_file: Some(key), ..LkgSettings::default() };
    let settings = ConfigSettings { lkg, ..ConfigSettings::default() };
    Rig { dir, shelf: Arc::default(), settings, tasks: Tasks::new("test") }
}

impl Rig {
    fn keeper(&self) -> Keeper {
        let source: Arc<dyn Source> = Arc::clone(&self.shelf) as Arc<dyn Source>;
        Keeper::open(&self.settings, source, Arc::new(Fixed), &self.tasks).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("lkg").join(name)
    }
}

fn kept(text: &str, resolved_at: Duration) -> Kept {
    let value = Value {
        bytes: Secret::new(text.as_bytes().to_vec()),
        version: Some("7".into()),
        order: Some(7),
        epoch: Some("e".into()),
        sensitive: true,
        not_after: None,
        metadata: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
    };
    Kept { value, resolved_at: Wall::default().after(resolved_at), ref_digest: [9; 32] }
}

#[tokio::test]
async fn what_was_written_is_read_again_by_the_same_fleet_only() {
    let mut rig = rig();
    assert!(rig.keeper().read().is_empty(), "a missing file is no trouble");
    rig.shelf.set("a", kept("canary-value", 2 * DAY));
    rig.keeper().write_last().await;
    assert_eq!(rig.keeper().read(), rig.shelf.records());
    let mode = std::fs::metadata(rig.path(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let raw = std::fs::read(rig.path(FILE)).unwrap();
    assert!(!raw.windows(6).any(|window| window == b"canary"), "plain text on the disk");
    rig.settings.fleet.id = "other".into();
    assert!(rig.keeper().read().is_empty());
    assert!(rig.path("last-known-good.bad").exists() && !rig.path(FILE).exists());
}

#[tokio::test]
async fn what_is_too_old_or_leased_is_neither_written_nor_used() {
    let rig = rig();
    let at_the_edge = kept("edge", DAY);
    rig.shelf.set("edge", at_the_edge.clone());
    rig.shelf.set("old", kept("old", DAY - Duration::from_micros(1)));
    let mut leased = kept("leased", 2 * DAY);
    leased.value.not_after = Some(Wall::default().after(3 * DAY));
    rig.shelf.set("leased", leased);
    rig.keeper().write_last().await;
    assert_eq!(rig.keeper().read(), Records::from([("edge".into(), at_the_edge)]));
}

#[tokio::test]
async fn a_damaged_or_newer_file_is_set_aside() {
    for (at, what) in [(0, "magic"), (8, "format"), (20, "salt"), (45, "nonce"), (60, "content")] {
        let rig = rig();
        rig.shelf.set("a", kept("x", 2 * DAY));
        rig.keeper().write_last().await;
        let mut raw = std::fs::read(rig.path(FILE)).unwrap();
        raw[at] ^= 1;
        std::fs::write(rig.path(FILE), raw).unwrap();
        assert!(rig.keeper().read().is_empty(), "{what}");
        assert!(rig.path("last-known-good.bad").exists(), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn changes_are_written_within_5_s_and_dates_within_300() {
    let rig = rig();
    rig.shelf.set("a", kept("1", DAY + DAY / 2));
    let keeper = rig.keeper();
    let written = || std::fs::read(rig.path(FILE)).ok();
    tokio::time::advance(Duration::from_secs(1)).await;
    keeper.write_if_due().await;
    let first = written().unwrap();
    rig.shelf.set("a", kept("1", 2 * DAY));
    tokio::time::advance(Duration::from_secs(298)).await;
    keeper.write_if_due().await;
    assert_eq!(written().unwrap(), first, "only a date moved");
    tokio::time::advance(Duration::from_secs(2)).await;
    keeper.write_if_due().await;
    let second = written().unwrap();
    assert_ne!(second, first);
    rig.shelf.set("a", kept("2", 2 * DAY));
    keeper.write_if_due().await;
    assert_ne!(written().unwrap(), second);
}

#[tokio::test]
async fn a_disk_that_cannot_be_written_to_is_no_reason_to_stop() {
    let rig = rig();
    std::fs::write(rig.dir.path().join("lkg"), "in the way").unwrap();
    let keeper = rig.keeper();
    keeper.write_last().await;
    std::fs::remove_file(rig.dir.path().join("lkg")).unwrap();
    keeper.write_last().await;
    assert!(rig.path(FILE).exists());
}

proptest! {
    #[test]
    fn all_records_survive_the_way_to_the_disk_and_back(
        texts in prop::collection::btree_map("[a-z/]{1,8}", (prop::collection::vec(any::<u8>(), 0..64), any::<i64>()), 0..8),
    ) {
        let records: Records = texts
            .into_iter()
            .map(|(name, (bytes, date))| {
                let mut kept = kept("", DAY);
                kept.value.bytes = Secret::new(bytes);
                kept.resolved_at = Wall::from_micros(date);
                (name.into(), kept)
            })
            .collect();
        let key = Key::new([3; 32]);
        let sealed = format::seal(&key, "f", &records).unwrap();
        prop_assert_eq!(format::open(&key, "f", &sealed), Ok(records));
    }
}

/// A file of format 1, as the first version wrote it: later ones must read it.
#[test]
fn the_first_format_is_read_for_ever() {
    let text = [&[1, 1, b'a'][..], &[9; 32], &[2, 1, b'x', 0, 0, 0, 1, 1, 1, b'k', 1, b'v']].concat();
    let records = format::decode(&text).unwrap();
    let expected = &records["a"];
    assert_eq!(
        (expected.resolved_at, expected.value.bytes.expose()),
        (Wall::from_micros(1), b"x".as_slice())
    );
    assert!(expected.value.sensitive && expected.value.metadata["k"] == "v");
}

#[test]
fn fuzz_last_known_good_files() {
    let key = Key::new([3; 32]);
    let records = Records::from([("a/b".into(), kept("value", DAY)), ("c".into(), kept("", DAY))]);
    let sealed = format::seal(&key, "f", &records).unwrap();
    let text = [&[1, 1, b'a'][..], &[9; 32], &[2, 1, b'x', 0, 0, 0, 1, 1, 1, b'k', 1, b'v']].concat();
    let seeds: [&[u8]; 3] = [&sealed, &text, b"HFASTLKG\0\x01"];
    let mut fuzzer = Fuzzer::new(&seeds, &["HFASTLKG", "\u{1}", "\u{7f}"]);
    while let Some(input) = fuzzer.input() {
        let watched = Fuzzer::watch(&input);
        let opened = format::open(&key, "f", &input).map(|records| records.len());
        let decoded = format::decode(&input).map(|records| records.len());
        drop(watched);
        let behaviour = format!("{opened:?} {decoded:?}");
        fuzzer.learn(input, &behaviour);
    }
}
