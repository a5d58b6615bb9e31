//! Audit over running devices: what is shown, and what holds when devices fail.

use std::io::Read as _;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::barrier::keyring::SecretKey;
use crate::barrier::seal::{SealPublic, SealType};
use crate::barrier::{Barrier, Keyring};
use crate::error::ApiError;
use crate::logical::{Operation, Response};
use crate::metrics::DeviceState;
use crate::store::memory::MemoryStore;
use crate::store::{Batch, Op};
use crate::testing;

const SOON: Duration = Duration::from_secs(10);

fn audit(write_timeout: Duration) -> Audit {
    let storage = Storage::new(MemoryStore::new(), Barrier::opened(Keyring::generate().unwrap()));
    Audit::with(storage, Tasks::new("audit"), Metrics::new(), write_timeout)
}

async fn enable(audit: &Audit, name: &str, options: Value) {
    let fields = json!({"type": "file", "options": options});
    let data = crate::logical::Data::new(fields.as_object().unwrap().clone());
    let entry = DeviceEntry::parse(name, &data).unwrap();
    audit.storage().put(&format!("{DEVICES}{name}/"), &entry).await.unwrap();
}

async fn record(audit: &Audit) -> Result<(), ApiError> {
    let request = testing::request(Operation::Write, "kv/", "a", json!({"password": "hunter2"}));
    let entry = AuditEntry {
        request: &request,
        token: None,
        mount_type: "kv",
        clear: &[],
        response: None,
        error: None,
        relay: None,
    };
    audit.request(&entry).await
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn states(audit: &Audit) -> Vec<DeviceState> {
    audit.running.lock().values().map(|device| device.state()).collect()
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn strings_are_hashed_and_listed_names_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = audit(SOON);
    enable(&audit, "main", json!({"file_path": path.to_str().unwrap()})).await;
    let body = json!({"role": "ro", "deep": {"role": "s3cret"}, "list": ["s3cret"], "n": 5, "b": true});
    let mut request = testing::request(Operation::Write, "database/", "roles/x", body);
    request.client_token = Some("hvs.s3cret".into());
    let token = Token {
        accessor: "s3cret-accessor".into(),
        display_name: "root".into(),
        policies: vec!["root".into()],
        ..Token::default()
    };
    let response = Response::data(json!({"password": "s3cret"}).as_object().unwrap().clone());
    let error = ApiError::invalid("no such thing");
    let entry = AuditEntry {
        request: &request,
        token: Some(&token),
        mount_type: "database",
        clear: &["role"],
        response: None,
        error: None,
        relay: None,
    };
    audit.request(&entry).await.unwrap();
    audit.response(&AuditEntry { response: Some(&response), error: Some(&error), ..entry }).await.unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("s3cret"), "{text}");
    let lines = lines(&path);
    let hashed = hash(audit.storage().barrier(), "s3cret").unwrap();
    assert!(hashed.starts_with("hmac-sha256:") && hashed.len() == 12 + 64);
    let data = json!({"role": "ro", "deep": {"role": hashed}, "list": [hashed], "n": 5, "b": true});
    assert_eq!(lines[0]["request"]["data"], data);
    assert_eq!(lines[0]["type"], "request");
    assert_eq!(lines[0]["request"]["path"], "database/roles/x");
    assert_eq!(lines[0]["request"]["operation"], "update");
    assert_eq!(lines[0]["request"]["remote_address"], "127.0.0.1");
    assert_eq!(lines[0]["auth"]["display_name"], "root");
    assert_eq!(lines[0]["auth"]["token_type"], "service");
    assert_eq!(lines[1]["type"], "response");
    assert_eq!(lines[1]["response"]["data"]["password"], hashed);
    assert_eq!(lines[1]["error"], "no such thing");
    assert_eq!(lines[0]["request"]["id"], lines[1]["request"]["id"]);
}

#[tokio::test]
async fn what_is_wrapped_is_hashed_whatever_its_fields_are_called() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = audit(SOON);
    enable(&audit, "main", json!({"file_path": path.to_str().unwrap()})).await;
    let request = testing::request(Operation::Write, "sys/", "wrapping/wrap", json!({"name": "s3cret"}));
    let entry = AuditEntry {
        request: &request,
        token: None,
        mount_type: "system",
        clear: &["name"],
        response: None,
        error: None,
        relay: None,
    };
    audit.request(&entry).await.unwrap();
    assert!(!std::fs::read_to_string(&path).unwrap().contains("s3cret"));
}

#[tokio::test]
async fn options_change_what_a_device_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (raw, hashed) = (dir.path().join("raw"), dir.path().join("hashed"));
    let audit = audit(SOON);
    let options = json!({"file_path": raw.to_str().unwrap(), "log_raw": "true", "prefix": "@holdfast: "});
    enable(&audit, "raw", options).await;
    enable(&audit, "hashed", json!({"file_path": hashed.to_str().unwrap()})).await;
    record(&audit).await.unwrap();
    let text = std::fs::read_to_string(&raw).unwrap();
    assert!(text.starts_with("@holdfast: {") && text.contains("hunter2"), "{text}");
    assert!(!std::fs::read_to_string(&hashed).unwrap().contains("hunter2"));
}

#[tokio::test]
async fn without_a_device_all_is_allowed_and_with_a_full_one_nothing_is() {
    let audit = audit(SOON);
    assert!(!audit.enabled().unwrap());
    record(&audit).await.unwrap();
    enable(&audit, "full", json!({"file_path": "/dev/full", "mode": "0666"})).await;
    for _ in 0..3 {
        let refused = record(&audit).await.unwrap_err();
        assert_eq!((refused.status(), refused.to_string().as_str()), (500, "internal error"));
    }
    assert_eq!(states(&audit), [DeviceState::Failed]);
    audit.storage().delete(&format!("{DEVICES}full/")).await.unwrap();
    record(&audit).await.unwrap();
}

#[tokio::test]
async fn one_device_that_works_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = audit(SOON);
    enable(&audit, "full", json!({"file_path": "/dev/full", "mode": "0666"})).await;
    enable(&audit, "main", json!({"file_path": path.to_str().unwrap()})).await;
    record(&audit).await.unwrap();
    record(&audit).await.unwrap();
    assert_eq!(lines(&path).len(), 2);
}

#[tokio::test]
async fn a_device_that_refused_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("absent").join("audit.log");
    let audit = audit(SOON);
    enable(&audit, "main", json!({"file_path": path.to_str().unwrap()})).await;
    assert!(record(&audit).await.is_err());
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    eventually("the device works again", async || record(&audit).await.is_ok()).await;
    assert_eq!(states(&audit), [DeviceState::Working]);
}

#[tokio::test]
async fn a_blocked_device_delays_once_and_is_back_when_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, file) = (dir.path().join("pipe"), dir.path().join("audit.log"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).unwrap();
    let limit = Duration::from_millis(100);
    let audit = audit(limit);
    enable(&audit, "pipe", json!({"file_path": pipe.to_str().unwrap()})).await;
    assert!(record(&audit).await.is_err(), "nobody reads the pipe");
    assert_eq!(states(&audit), [DeviceState::Blocked]);
    enable(&audit, "file", json!({"file_path": file.to_str().unwrap()})).await;
    let started = Instant::now();
    for _ in 0..50 {
        record(&audit).await.unwrap();
    }
    assert!(started.elapsed() < limit * 50, "a blocked device must be skipped");
    assert_eq!(lines(&file).len(), 50);
    let mut reader = std::fs::File::open(&pipe).unwrap();
    eventually("the pipe works again", async || {
        states(&audit).iter().all(|state| *state == DeviceState::Working)
    })
    .await;
    record(&audit).await.unwrap();
    let mut seen = [0u8; 10];
    reader.read_exact(&mut seen).unwrap();
    assert_eq!(seen[0], b'{');
}

#[tokio::test]
async fn reopening_follows_a_rotated_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = audit(SOON);
    enable(&audit, "main", json!({"file_path": path.to_str().unwrap()})).await;
    record(&audit).await.unwrap();
    std::fs::rename(&path, dir.path().join("audit.1")).unwrap();
    audit.reopen();
    record(&audit).await.unwrap();
    assert_eq!(lines(&path).len(), 1);
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_known_before_there_is_anything_to_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("absent").join("audit.log");
    let audit = audit(SOON);
    assert!(audit.works(), "no device is none that failed");
    enable(&audit, "main", json!({"file_path": path.to_str().unwrap()})).await;
    assert!(audit.enabled().unwrap());
    eventually("the device is known to fail", async || !audit.works()).await;
    let refused = record(&audit).await.unwrap_err();
    assert!(refused.warnings[0].contains("no audit device took the entry"), "{:?}", refused.warnings);
}

#[tokio::test]
async fn the_end_of_the_group_ends_a_device_behind_its_last_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = audit(SOON);
    enable(&audit, "main", json!({"file_path": path.to_str().unwrap()})).await;
    let devices = audit.devices().unwrap();
    let waiting: Vec<_> = (0..100).map(|_| devices[0].offer(Bytes::from_static(b"{}\n")).unwrap()).collect();
    audit.tasks.stop(SOON).await.unwrap();
    assert_eq!(lines(&path).len(), 100);
    for taken in waiting {
        assert!(taken.await.unwrap());
    }
    assert!(record(&audit).await.is_err(), "what comes later is refused");
}

fn seal(cluster_id: &str) -> SealRecord {
    let public = SealPublic {
        cluster_id: cluster_id.into(),
        cluster_name: "n".into(),
        seal: SealType::Shamir,
        shares: 1,
        threshold: 1,
        wrapped_root: None,
    };
    let (root, keyring) = (SecretKey::random().unwrap(), Keyring::generate().unwrap());
    SealRecord::new(public, &root, &keyring, b"identity").unwrap()
}

/// A restore replaces the store below a node that still has its own keys, in the middle of the request that asked for it.
#[tokio::test]
async fn after_a_restore_of_another_clusters_backup_the_devices_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let (own, restored) = (seal("own"), seal("restored"));
    for devices in [0, 1] {
        let audit = audit(SOON).under(own.clone());
        let store = Arc::clone(audit.storage().store());
        let put = async |key: &str, value: Vec<u8>| {
            let op = Op::Put { key: key.into(), value };
            store.commit(Batch { conditions: vec![], ops: vec![op] }).await.unwrap();
        };
        put(STORE_KEY, own.to_bytes().unwrap()).await;
        if devices > 0 {
            enable(&audit, "main", json!({"file_path": path.to_str().unwrap()})).await;
        }
        record(&audit).await.unwrap();
        put(STORE_KEY, restored.to_bytes().unwrap()).await;
        put(&format!("{DEVICES}theirs/"), b"under other keys".to_vec()).await;
        record(&audit).await.unwrap();
        let recorded = if devices > 0 { lines(&path).len() } else { 0 };
        assert_eq!(recorded, 2 * devices);
    }
}
