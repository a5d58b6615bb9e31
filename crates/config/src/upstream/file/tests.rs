//! Reading and watching files, on real ones.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use nix::sys::stat::Mode;
use tokio::sync::mpsc;

use super::*;
use crate::config::Scheme;
use crate::upstream::content;

const SOON: Duration = Duration::from_secs(10);

struct Rig {
    dir: tempfile::TempDir,
    files: Arc<Files>,
}

fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("root")).unwrap();
    let settings = UpstreamSettings { roots: vec![dir.path().join("root")], ..UpstreamSettings::default() };
    let files = Arc::new(Files::new("file", &settings, &Tasks::new("test")).unwrap());
    Rig { dir, files }
}

fn object(path: &str) -> ObjectKey {
    ObjectKey { upstream: "file".into(), scheme: Scheme::File, path: path.into(), options: BTreeMap::new() }
}

impl Rig {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("root").join(name)
    }

    async fn fetch(&self, path: &str) -> Outcome<Value> {
        self.files.fetch(&object(path), None).await.outcome
    }

    async fn text(&self, path: &str) -> String {
        match self.fetch(path).await {
            Outcome::Value { value, .. } => String::from_utf8(value.bytes.expose().to_vec()).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_file_is_its_content_by_relative_and_absolute_path() {
    let rig = rig();
    fs::write(rig.path("a"), "one").unwrap();
    assert_eq!(rig.text("a").await, "one");
    let absolute = rig.path("a");
    let Outcome::Value { value, .. } = rig.fetch(absolute.to_str().unwrap()).await else { panic!() };
    assert_eq!(value.version, Some(content::version(b"one")));
    assert!(!value.sensitive);
    assert_eq!(rig.fetch("none").await, Outcome::Absent);
    assert_eq!(rig.fetch("none/deeper").await, Outcome::Absent);
}

#[tokio::test]
async fn what_leads_out_of_the_roots_is_denied_and_what_is_no_file_invalid() {
    let rig = rig();
    fs::write(rig.dir.path().join("outside"), "x").unwrap();
    symlink("../outside", rig.path("link")).unwrap();
    fs::create_dir(rig.path("dir")).unwrap();
    nix::unistd::mkfifo(&rig.path("fifo"), Mode::S_IRWXU).unwrap();
    symlink("loop", rig.path("loop")).unwrap();
    for path in ["link", "../outside", "/etc/passwd", "/dev/zero"] {
        assert_eq!(rig.fetch(path).await, content::failed(AnswerKind::PermissionDenied), "{path}");
    }
    for path in ["dir", "fifo", "loop"] {
        assert_eq!(rig.fetch(path).await, content::failed(AnswerKind::Invalid), "{path}");
    }
    fs::write(rig.path("shut"), "x").unwrap();
    fs::set_permissions(rig.path("shut"), fs::Permissions::from_mode(0o000)).unwrap();
    // Root reads it all the same.
    if !nix::unistd::geteuid().is_root() {
        assert_eq!(rig.fetch("shut").await, content::failed(AnswerKind::PermissionDenied));
    }
}

#[tokio::test]
async fn a_directory_is_a_json_object_of_its_files() {
    let rig = rig();
    fs::create_dir_all(rig.path("d/..v1")).unwrap();
    fs::write(rig.path("d/..v1/b"), "2\n").unwrap();
    fs::write(rig.path("d/..v1/a"), "\"1\"").unwrap();
    symlink("..v1", rig.path("d/..data")).unwrap();
    symlink("..data/a", rig.path("d/a")).unwrap();
    symlink("..data/b", rig.path("d/b")).unwrap();
    fs::write(rig.path("d/.hidden"), "x").unwrap();
    assert_eq!(rig.text("d/").await, r#"{"a":"\"1\"","b":"2\n"}"#);
    assert_eq!(rig.fetch("e/").await, Outcome::Absent);
    fs::write(rig.path("d/c"), b"\xff").unwrap();
    assert_eq!(rig.fetch("d/").await, content::failed(AnswerKind::Invalid));
    fs::remove_file(rig.path("d/c")).unwrap();
    fs::create_dir(rig.path("d/sub")).unwrap();
    assert_eq!(rig.fetch("d/").await, content::failed(AnswerKind::Invalid));
}

#[tokio::test]
async fn what_looks_half_written_is_read_once_more() {
    let rig = rig();
    let whole = Value { bytes: crate::value::Secret::new(b"0123456789".to_vec()), ..Value::default() };
    for half in ["", "0123"] {
        fs::write(rig.path("a"), half).unwrap();
        let key = object("a");
        let fetch = rig.files.fetch(&key, Some(&whole));
        let write = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            fs::write(rig.path("a"), "abcdefghij").unwrap();
        };
        let (fetched, ()) = tokio::join!(fetch, write);
        let Outcome::Value { value, .. } = fetched.outcome else { panic!() };
        assert_eq!(value.bytes.expose(), b"abcdefghij");
    }
    fs::write(rig.path("a"), "").unwrap();
    let Outcome::Value { value, .. } = rig.files.fetch(&object("a"), Some(&whole)).await.outcome else {
        panic!()
    };
    assert!(value.bytes.is_empty(), "an empty value is a value");
}

#[derive(Debug, Eq, PartialEq)]
enum Told {
    Subscribed,
    Changed,
}

struct Ear(mpsc::Sender<Told>);

impl Sink for Ear {
    fn subscribed(&self) {
        self.0.try_send(Told::Subscribed).unwrap();
    }
    fn changed(&self) {
        let _ = self.0.try_send(Told::Changed);
    }
    fn event(&self, _: Outcome<Value>) {}
    fn alive(&self) {}
    fn lost(&self, kind: AnswerKind) {
        panic!("{kind}");
    }
}

async fn hear(ear: &mut mpsc::Receiver<Told>) -> Option<Told> {
    tokio::time::timeout(SOON, ear.recv()).await.expect("nothing was told")
}

/// Reads after each notice until the content is as wanted.
async fn until(rig: &Rig, ear: &mut mpsc::Receiver<Told>, path: &str, text: &str) {
    while rig.fetch(path).await == Outcome::Absent || rig.text(path).await != text {
        assert_eq!(hear(ear).await, Some(Told::Changed));
    }
}

#[tokio::test]
async fn every_way_to_change_a_file_is_told() {
    let rig = rig();
    let (send, mut ear) = mpsc::channel(64);
    fs::create_dir(rig.path("v1")).unwrap();
    fs::create_dir(rig.path("v2")).unwrap();
    symlink("v1", rig.path("now")).unwrap();
    let guard = rig.files.watch(&object("now/key"), Arc::new(Ear(send))).unwrap();
    assert_eq!(hear(&mut ear).await, Some(Told::Subscribed));
    // It appears, is written in place, is replaced, and the link moves; then the place it moved to changes.
    fs::write(rig.path("v1/key"), "1").unwrap();
    until(&rig, &mut ear, "now/key", "1").await;
    fs::write(rig.path("v1/key"), "2").unwrap();
    until(&rig, &mut ear, "now/key", "2").await;
    fs::write(rig.path("v1/new"), "3").unwrap();
    fs::rename(rig.path("v1/new"), rig.path("v1/key")).unwrap();
    until(&rig, &mut ear, "now/key", "3").await;
    fs::write(rig.path("v2/key"), "4").unwrap();
    symlink("v2", rig.path("next")).unwrap();
    fs::rename(rig.path("next"), rig.path("now")).unwrap();
    until(&rig, &mut ear, "now/key", "4").await;
    fs::write(rig.path("v2/key"), "5").unwrap();
    until(&rig, &mut ear, "now/key", "5").await;
    fs::remove_file(rig.path("v2/key")).unwrap();
    while rig.fetch("now/key").await != Outcome::Absent {
        assert_eq!(hear(&mut ear).await, Some(Told::Changed));
    }
    drop(guard);
    while hear(&mut ear).await.is_some() {}
}

#[tokio::test]
async fn reading_is_no_change_and_a_neighbour_neither() {
    let rig = rig();
    let (send, mut ear) = mpsc::channel(64);
    fs::write(rig.path("a"), "1").unwrap();
    let _guard = rig.files.watch(&object("a"), Arc::new(Ear(send))).unwrap();
    assert_eq!(hear(&mut ear).await, Some(Told::Subscribed));
    for _ in 0..5 {
        rig.text("a").await;
        fs::write(rig.path("b"), "1").unwrap();
    }
    fs::write(rig.path("a"), "2").unwrap();
    assert_eq!(hear(&mut ear).await, Some(Told::Changed));
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert!(ear.try_recv().is_err(), "one write was told more than once");
}

#[tokio::test]
async fn a_reading_that_hangs_is_not_joined_by_another() {
    let rig = rig();
    fs::write(rig.path("a"), "1").unwrap();
    rig.files.reading.lock().insert(object("a"));
    assert_eq!(rig.fetch("a").await, content::failed(AnswerKind::Unavailable));
    rig.files.reading.lock().clear();
    assert_eq!(rig.text("a").await, "1");
}
