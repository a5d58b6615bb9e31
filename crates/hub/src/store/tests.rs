//! The log and the state by themselves: the library's own suite, queries, images, a full disk.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use holdfast_ops::Tasks;
use openraft::storage::RaftStateMachine as _;
use openraft::testing::{StoreBuilder, Suite};
use openraft::{EntryPayload, RaftSnapshotBuilder as _};
use tempfile::TempDir;

use super::apply::{self, Changed, Head};
use super::health::Health;
use super::image;
use super::log::LogStore;
use super::state::StateHandle;
use super::types::{Command, Entry, Outcome, StorageError, TypeConfig};
use super::{Batch, Condition, Op};

struct Files;

struct Guard {
    tasks: Tasks,
    health: Arc<Health>,
    _folder: TempDir,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.health.close();
        self.tasks.cancel();
    }
}

fn files(folder: &Path, health: &Arc<Health>, tasks: &Tasks) -> (LogStore, StateHandle) {
    let state = StateHandle::open(folder, Arc::clone(health), tasks).unwrap();
    let (log, thread) = LogStore::open(&folder.join("log.db"), 1, state.clone(), Arc::clone(health)).unwrap();
    tasks.spawn_thread("store-log", thread).unwrap();
    (log, state)
}

impl StoreBuilder<TypeConfig, LogStore, StateHandle, Guard> for Files {
    async fn build(&self) -> Result<(Guard, LogStore, StateHandle), StorageError> {
        let (folder, health, tasks) = (TempDir::new().unwrap(), Arc::new(Health::new()), Tasks::new("test"));
        let (log, state) = files(folder.path(), &health, &tasks);
        Ok((Guard { tasks, health, _folder: folder }, log, state))
    }
}

#[test]
fn the_librarys_suite_passes() {
    Suite::test_all(Files).unwrap();
}

fn put(key: &str, value: &str) -> Op {
    Op::Put { key: key.into(), value: value.into() }
}

fn entry(term: u64, index: u64, batches: Vec<Batch>) -> Entry {
    Entry {
        log_id: openraft::testing::log_id(term, 0, index),
        payload: EntryPayload::Normal(Command::Group { origin: 0, number: index, batches }),
    }
}

fn puts(keys: &[&str]) -> Batch {
    Batch { conditions: vec![], ops: keys.iter().map(|key| put(key, "v")).collect() }
}

#[tokio::test]
async fn batches_of_one_entry_stand_for_themselves() {
    let (guard, _log, mut state) = Files.build().await.unwrap();
    let refused = Batch { conditions: vec![Condition::Absent("a".into())], ops: vec![put("b", "x")] };
    let late = Batch { conditions: vec![Condition::Term(2.into_term())], ops: vec![put("c", "x")] };
    let replies = state.apply([entry(3, 1, vec![puts(&["a"]), refused, late, puts(&["d"])])]).await.unwrap();
    let expected = [Outcome::Applied(1), Outcome::Refused(0), Outcome::Refused(0), Outcome::Applied(2)];
    assert_eq!(replies[0].outcomes, expected);
    assert_eq!(state.readers().scan_keys("", None, 10).unwrap(), ["a", "d"]);
    assert_eq!(state.readers().read("d").unwrap().unwrap().version, 2);
    drop(guard);
}

trait IntoTerm {
    fn into_term(self) -> holdfast_core::Term;
}

impl IntoTerm for u64 {
    fn into_term(self) -> holdfast_core::Term {
        holdfast_core::Term::new(self)
    }
}

#[tokio::test]
async fn hooks_see_the_new_state_before_the_writer_is_answered() {
    let (guard, _log, mut state) = Files.build().await.unwrap();
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (log, reading) = (Arc::clone(&seen), state.clone());
    state.add_hook(Arc::new(move |keys| {
        let values: Vec<_> = keys.iter().map(|key| reading.readers().read(key).unwrap().is_some()).collect();
        log.lock().push((keys.clone(), values));
    }));
    state.apply([entry(1, 1, vec![puts(&["a", "b"])])]).await.unwrap();
    assert_eq!(*seen.lock(), [(["a".to_owned(), "b".to_owned()].into(), vec![true, true])]);
    drop(guard);
}

#[tokio::test]
async fn queries_follow_the_order_of_keys() {
    let (guard, _log, mut state) = Files.build().await.unwrap();
    let keys = ["x/a", "x/b", "x/b-1", "x/b/1", "x/b/2/deep", "x/c/1", "xy", "y/a", "é/1"];
    state.apply([entry(1, 1, vec![puts(&keys)])]).await.unwrap();
    let readers = state.readers();
    assert_eq!(readers.list("x/", None, 10).unwrap(), ["a", "b", "b-1", "b/", "c/"]);
    assert_eq!(readers.list("x/", Some("b"), 2).unwrap(), ["b-1", "b/"]);
    assert_eq!(readers.list("x/", Some("b/"), 10).unwrap(), ["c/"]);
    assert_eq!(readers.list("", None, 10).unwrap(), ["x/", "xy", "y/", "é/"]);
    assert_eq!(readers.scan_keys("x/b/", None, 10).unwrap(), ["x/b/1", "x/b/2/deep"]);
    assert_eq!(readers.scan_keys("x/", Some("x/b/1"), 10).unwrap(), ["x/b/2/deep", "x/c/1"]);
    assert_eq!(readers.scan("x/", Some("x/"), 1).unwrap()[0].0, "x/a");
    assert_eq!((readers.count("x/").unwrap(), readers.count("").unwrap()), (6, 9));
    drop(guard);
}

#[tokio::test]
async fn a_damaged_or_newer_image_is_refused() {
    let (guard, _log, mut state) = Files.build().await.unwrap();
    state.apply([entry(1, 1, vec![puts(&["a", "b"])])]).await.unwrap();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("image.hfi");
    state.save_image(path.clone()).await.unwrap();
    assert_eq!(image::verify(&path).unwrap().1, 2);
    let sound = fs::read(&path).unwrap();
    for place in [0, 9, sound.len() / 2, sound.len() - 1] {
        let mut damaged = sound.clone();
        damaged[place] ^= 1;
        fs::write(&path, damaged).unwrap();
        let refused = image::verify(&path).unwrap_err().to_string();
        assert!(refused.contains("image.hfi"), "{refused}");
    }
    fs::write(&path, &sound[..sound.len() - 5]).unwrap();
    assert!(image::verify(&path).is_err());
    drop(guard);
}

#[tokio::test]
async fn a_damaged_log_refuses_to_open_and_names_the_file() {
    let (folder, health, tasks) = (TempDir::new().unwrap(), Arc::new(Health::new()), Tasks::new("test"));
    let (log, state) = files(folder.path(), &health, &tasks);
    assert!(log.set_node_id(7).await);
    log.close().await;
    let path = folder.path().join("log.db");
    let broken = rusqlite::Connection::open(&path).unwrap();
    broken.execute("INSERT INTO log (at, sum, entry) VALUES (1, 5, x'00')", []).unwrap();
    drop(broken);
    let refused = LogStore::open(&path, 1, state.clone(), Arc::clone(&health)).err().unwrap().to_string();
    assert!(refused.contains("log.db"), "{refused}");
    let newer = rusqlite::Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    let refused = LogStore::open(&path, 1, state, Arc::clone(&health)).err().unwrap().to_string();
    assert!(refused.contains("log.db") && refused.contains("99"), "{refused}");
    health.close();
    tasks.cancel();
}

#[tokio::test]
async fn a_built_image_outlives_the_process_and_its_remains_are_cleaned_up() {
    let (folder, health, tasks) = (TempDir::new().unwrap(), Arc::new(Health::new()), Tasks::new("test"));
    let (_log, mut state) = files(folder.path(), &health, &tasks);
    state.apply([entry(1, 1, vec![puts(&["a"])])]).await.unwrap();
    let built = state.get_snapshot_builder().await.build_snapshot().await.unwrap();
    state.close().await;
    let remains = folder.path().join("images/half.tmp");
    fs::write(&remains, b"x").unwrap();
    let mut again = StateHandle::open(folder.path(), Arc::clone(&health), &tasks).unwrap();
    let current = again.get_current_snapshot().await.unwrap().unwrap();
    assert_eq!(current.meta, built.meta);
    assert!(!remains.exists());
    assert_eq!(again.applied().unwrap().index, 1);
    again.close().await;
    tasks.cancel();
}

#[test]
fn a_restore_that_was_overtaken_changes_nothing() {
    let mut connection = rusqlite::Connection::open_in_memory().unwrap();
    connection.execute_batch(super::state::STATE.tables).unwrap();
    let transaction = connection.transaction().unwrap();
    let (mut head, mut changed) = (Head::default(), Changed::default());
    let run = |index, command| Entry {
        log_id: openraft::testing::log_id(1, 0, index),
        payload: EntryPayload::Normal(command),
    };
    let rows = vec![super::types::Row { key: "k".into(), value: b"v".to_vec() }];
    let entries = [
        entry(1, 1, vec![puts(&["old"])]),
        run(2, Command::RestoreBegin { id: 1 }),
        run(3, Command::RestoreRows { id: 1, rows: rows.clone() }),
        run(4, Command::RestoreBegin { id: 2 }),
        run(5, Command::RestoreEnd { id: 1, rows: 1 }),
        run(6, Command::RestoreBegin { id: 3 }),
        run(7, Command::RestoreRows { id: 3, rows }),
    ];
    let replies = apply::entries(&transaction, &mut head, &entries, &mut changed).unwrap();
    assert_eq!(replies[4].outcomes, [Outcome::Refused(0)]);
    assert!(!changed.everything);
    let end = [run(8, Command::RestoreEnd { id: 3, rows: 1 })];
    let replies = apply::entries(&transaction, &mut head, &end, &mut changed).unwrap();
    assert_eq!(replies[0].outcomes, [Outcome::Applied(2)]);
    let keys: Vec<Vec<u8>> = transaction
        .prepare("SELECT key FROM kv")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(keys, [b"k".to_vec()]);
    assert!(changed.everything);
}
