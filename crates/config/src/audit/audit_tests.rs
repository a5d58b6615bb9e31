use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use holdfast_tests::eventually::eventually;

use super::*;

const SOON: Duration = Duration::from_secs(20);

struct Rig {
    audit: Audit,
    tasks: Tasks,
    dropped: Counter,
    dir: tempfile::TempDir,
}

fn to(path: &Path, on_failure: OnAuditFailure) -> AuditSettings {
    AuditSettings {
        sink: AuditSink::File,
        path: Some(path.to_owned()),
        on_failure,
        ..AuditSettings::default()
    }
}

fn rig(settings: impl Fn(&Path) -> AuditSettings) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let (tasks, dropped) = (Tasks::new("config"), Counter::default());
    let audit = Audit::open(&settings(dir.path()), "node-7", &tasks, dropped.clone()).unwrap();
    Rig { audit, tasks, dropped, dir }
}

impl Rig {
    fn record(&self, id: usize) -> Result<(), AuditUnavailable> {
        self.audit.record(&Line { request_id: &id.to_string(), ..Line::default() })
    }

    /// The request ids in a file, in order.
    fn ids(&self, file: &str) -> Vec<usize> {
        ids(&std::fs::read_to_string(self.dir.path().join(file)).unwrap_or_default())
    }
}

fn ids(text: &str) -> Vec<usize> {
    let id = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["node"], "node-7");
        line["request_id"].as_str().unwrap().parse().unwrap()
    };
    text.lines().map(id).collect()
}

#[tokio::test]
async fn what_was_recorded_is_written_in_order_before_the_end() {
    let rig = rig(|dir| to(&dir.join("log"), OnAuditFailure::Continue));
    (0..5000).for_each(|id| rig.record(id).unwrap());
    rig.audit.close(SOON).await.unwrap();
    assert_eq!(rig.ids("log"), (0..5000).collect::<Vec<_>>());
    rig.record(1).unwrap();
    assert_eq!(rig.dropped.get(), 1, "after the end lines are only counted");
    rig.audit.close(SOON).await.unwrap();
    rig.tasks.wait(SOON).await.unwrap();
}

#[tokio::test]
async fn lines_are_written_without_waiting_for_the_end() {
    let rig = rig(|dir| to(&dir.join("log"), OnAuditFailure::Continue));
    rig.record(1).unwrap();
    eventually(SOON, "the line", || (rig.ids("log") == [1]).then_some(()));
}

#[tokio::test]
async fn other_settings_count_from_the_next_line() {
    let rig = rig(|dir| to(&dir.join("a"), OnAuditFailure::Continue));
    rig.record(1).unwrap();
    eventually(SOON, "the line", || (rig.ids("a") == [1]).then_some(()));
    let other = to(&rig.dir.path().join("b"), OnAuditFailure::Continue);
    rig.audit.apply(&AuditSettings { deliveries: true, ..other.clone() }).unwrap();
    eventually(SOON, "the switch", || rig.audit.shared.queue.lock().next.is_none().then_some(()));
    assert!(rig.audit.deliveries());
    rig.audit.record(&Line { message: Message::Deliver, request_id: "2", ..Line::default() }).unwrap();
    rig.audit.apply(&other).unwrap();
    rig.audit.record(&Line { message: Message::Deliver, request_id: "3", ..Line::default() }).unwrap();
    rig.audit.apply(&AuditSettings { sink: AuditSink::Off, ..other.clone() }).unwrap();
    rig.record(4).unwrap();
    let nowhere = to(Path::new("/nowhere/log"), OnAuditFailure::Continue);
    assert!(rig.audit.apply(&nowhere).is_err());
    rig.audit.close(SOON).await.unwrap();
    assert_eq!((rig.ids("a"), rig.ids("b")), (vec![1], vec![2]));
    assert_eq!(rig.dropped.get(), 0);
}

#[tokio::test]
async fn a_sink_that_fails_costs_lines_and_no_answer() {
    let rig = rig(|_| to(Path::new("/dev/full"), OnAuditFailure::Continue));
    (0..10).for_each(|id| rig.record(id).unwrap());
    eventually(SOON, "the count", || (rig.dropped.get() == 10).then_some(()));
    assert_eq!(rig.audit.ready(), Ok(()));
    let good = to(&rig.dir.path().join("log"), OnAuditFailure::Continue);
    rig.audit.apply(&good).unwrap();
    rig.record(11).unwrap();
    rig.audit.close(SOON).await.unwrap();
    assert_eq!((rig.ids("log"), rig.dropped.get()), (vec![11], 10));
}

#[tokio::test]
async fn a_sink_that_fails_refuses_values_and_loses_no_line() {
    let rig = rig(|_| to(Path::new("/dev/full"), OnAuditFailure::Refuse));
    assert_eq!(rig.audit.ready(), Ok(()));
    (0..10).for_each(|id| rig.record(id).unwrap());
    eventually(SOON, "the refusal", || rig.audit.ready().err());
    rig.record(10).unwrap();
    rig.audit.apply(&to(&rig.dir.path().join("log"), OnAuditFailure::Refuse)).unwrap();
    eventually(SOON, "the end of the refusal", || rig.audit.ready().ok());
    rig.audit.close(SOON).await.unwrap();
    assert_eq!((rig.ids("log"), rig.dropped.get()), ((0..11).collect(), 0));
}

/// A pipe that nobody reads until asked to.
fn pipe(dir: &Path) -> std::fs::File {
    let path = dir.join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let options = &mut std::fs::OpenOptions::new();
    options.read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).unwrap()
}

fn drain(pipe: &mut std::fs::File, expected: usize) -> Vec<usize> {
    let mut bytes = Vec::new();
    eventually(SOON, "all lines", || {
        let mut chunk = vec![0; 1 << 20];
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            bytes.extend_from_slice(&chunk[..n]);
        }
        (newlines(&bytes) >= expected).then_some(())
    });
    ids(std::str::from_utf8(&bytes).unwrap())
}

#[tokio::test]
async fn a_full_queue_refuses_and_what_it_took_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut pipe = pipe(dir.path());
    let rig = rig(|_| to(&dir.path().join("pipe"), OnAuditFailure::Refuse));
    let taken = (0..1_000_000).find(|id| rig.record(*id).is_err()).unwrap();
    assert!((QUEUE..QUEUE + 1000).contains(&taken), "{taken} lines");
    assert_eq!(rig.audit.ready(), Err(AuditUnavailable));
    assert_eq!(drain(&mut pipe, taken), (0..taken).collect::<Vec<_>>());
    eventually(SOON, "room", || rig.audit.ready().ok());
    assert_eq!(rig.dropped.get(), 1, "the one that was refused");
    rig.audit.close(SOON).await.unwrap();
}

#[tokio::test]
async fn a_full_queue_drops_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut pipe = pipe(dir.path());
    let rig = rig(|_| to(&dir.path().join("pipe"), OnAuditFailure::Continue));
    (0..20_000).for_each(|id| rig.record(id).unwrap());
    assert_eq!(rig.audit.ready(), Ok(()));
    let dropped = usize::try_from(rig.dropped.get()).unwrap();
    assert!(dropped >= 20_000 - QUEUE - 1000, "{dropped}");
    let written = drain(&mut pipe, 20_000 - dropped);
    assert_eq!(written.len(), 20_000 - dropped);
    assert!(written.is_sorted());
}

#[tokio::test]
async fn a_sink_that_hangs_holds_the_end_up_for_the_deadline_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut pipe = pipe(dir.path());
    let rig = rig(|_| to(&dir.path().join("pipe"), OnAuditFailure::Continue));
    (0..QUEUE).for_each(|id| rig.record(id).unwrap());
    assert_eq!(rig.audit.close(Duration::from_millis(50)).await, Err(AuditUnavailable));
    // The thread must get through, or the test's process would keep it.
    drain(&mut pipe, QUEUE);
    rig.tasks.wait(SOON).await.unwrap();
}

#[tokio::test]
async fn the_thread_ends_with_the_audit_and_what_it_had_is_written() {
    let Rig { audit, tasks, dir, .. } = rig(|dir| to(&dir.join("log"), OnAuditFailure::Refuse));
    audit.record(&Line { request_id: "1", ..Line::default() }).unwrap();
    drop(audit);
    tasks.wait(SOON).await.unwrap();
    assert_eq!(ids(&std::fs::read_to_string(dir.path().join("log")).unwrap()), [1]);
}

#[test]
fn settings_that_cannot_work() {
    let settings = AuditSettings { sink: AuditSink::File, ..AuditSettings::default() };
    let problem = Problem::new("audit.path", "audit.path must be set with audit.sink = \"file\"");
    assert_eq!(check(&settings), [problem]);
    assert_eq!(check(&AuditSettings::default()), []);
}
