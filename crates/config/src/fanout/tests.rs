use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::freshness::{Refusal, Served, State};
use holdfast_core::{AnswerKind, Wall};
use holdfast_net::serve::Cut;
use holdfast_ops::Tasks;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::board::Board;
use super::hub::{Holder, Hub, HubSettings, Rights, Subscription};
use super::resume::Boot;
use super::stream::StreamBody;
use crate::metrics::{Meters, StreamEnd};
use crate::value::{Secret, Value};

const SOON: Duration = Duration::from_secs(10);

/// A caller that may see all but some names, or is not known any more.
#[derive(Default)]
struct Caller {
    denied: Mutex<BTreeSet<&'static str>>,
    unknown: Mutex<bool>,
    ended: Mutex<Vec<StreamEnd>>,
}

impl Holder for Caller {
    fn judge(&self, names: &[Box<[u8]>], _: Wall) -> Option<Rights> {
        let denied = self.denied.lock();
        let allowed = |name: &[u8]| !denied.iter().any(|denied| denied.as_bytes() == name);
        let allowed = names.iter().map(|name| allowed(name)).collect();
        (!*self.unknown.lock()).then_some(Rights { allowed, expires: None })
    }

    fn ended(&self, why: StreamEnd, _: u64, _: Duration) {
        self.ended.lock().push(why);
    }
}

struct Rig {
    tasks: Tasks,
    board: Arc<Board>,
    hub: Hub,
    caller: Arc<Caller>,
}

fn settings() -> HubSettings {
    HubSettings {
        heartbeat: Duration::from_secs(15),
        write_stall: Duration::from_secs(30),
        max_age: None,
        redate: Duration::from_secs(60),
    }
}

fn rig(names: &[&str], settings: HubSettings) -> Rig {
    let (tasks, board) = (Tasks::new("test"), Arc::new(Board::default()));
    board.set_names(names.iter().copied());
    let hub = Hub::start(Arc::clone(&board), Boot::of(*b"bootboot"), settings, Meters::default(), &tasks);
    Rig { tasks, board, hub, caller: Arc::default() }
}

fn state(text: &str, at: i64) -> State<Value> {
    State {
        value: Some(Value { bytes: Secret::new(text.as_bytes().to_vec()), ..Value::default() }),
        resolved_at: Some(Wall::from_micros(at * 1_000_000)),
        settled: true,
        served: Served::Value { stale: None },
        ..State::default()
    }
}

fn update(name: &str, bytes: &str, second: u32, id: Option<&str>) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!(
        "event: update\n{id}data: {{\"name\":\"{name}\",\"bytes\":\"{bytes}\",\"metadata\":{{}},\
         \"resolved_at\":\"1970-01-01T00:00:{second:02}Z\"}}\n\n"
    )
}

fn error(name: &str, kind: &str, message: &str) -> String {
    format!(
        "event: error\ndata: {{\"name\":\"{name}\",\"metadata\":{{}},\
         \"error\":{{\"kind\":\"{kind}\",\"message\":\"{message}\"}}}}\n\n"
    )
}

impl Rig {
    fn asked(&self, names: &[&str]) -> Subscription {
        let names: Vec<Box<[u8]>> = names.iter().map(|name| Box::from(name.as_bytes())).collect();
        let rights = self.caller.judge(&names, Wall::default()).unwrap();
        Subscription {
            names,
            rights,
            judged: self.hub.generation(),
            holder: Arc::clone(&self.caller) as Arc<dyn Holder>,
            last_event_id: None,
            fresh: false,
            max_frame: 1_000_000,
            cut: None,
            connection: None,
        }
    }

    /// A stream, and everything up to and with `synced`.
    async fn open(&self, asked: Subscription) -> (StreamBody, String) {
        let mut body = self.hub.subscribe(asked);
        let text = until(&mut body, "event: synced").await;
        (body, text)
    }
}

async fn next(body: &mut StreamBody) -> Option<String> {
    let frame = tokio::time::timeout(SOON * 10, body.frame()).await.expect("something is due")?;
    Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
}

/// Everything until a text was seen, without heartbeats.
async fn until(body: &mut StreamBody, text: &str) -> String {
    let mut all = String::new();
    while !all.contains(text) {
        all += &next(body).await.expect("the stream goes on").replace(": heartbeat\n\n", "");
    }
    all
}

/// The id in the last frame that has one.
fn last_id(text: &str) -> String {
    text.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_baseline_in_order_then_synced_then_one_frame_a_change() {
    let rig = rig(&["a", "b"], settings());
    rig.board.publish("a", state("1", 1), true);
    *rig.caller.denied.lock() = ["c"].into();
    let (mut body, text) = rig.open(rig.asked(&["a", "c", "b", "gone"])).await;
    let id = last_id(&text);
    assert_eq!(
        text,
        [
            "retry: 1000\n\n",
            &update("a", "MQ==", 1, None),
            &error("c", "permission_denied", "permission denied"),
            &error("b", "unknown", "binding resolve failed"),
            &error("gone", "not_found", "binding not found"),
            &format!("event: synced\nid: {id}\ndata: {{}}\n\n"),
        ]
        .concat()
    );
    assert!(id.starts_with("bootboot.1.1."), "{id}");
    rig.board.publish("a", state("1", 2), false);
    rig.board.publish("a", state("2", 3), true);
    let changed = until(&mut body, "update").await;
    let id = last_id(&changed);
    assert!(id.starts_with("bootboot.1.2."), "{id}");
    assert_eq!(changed, update("a", "Mg==", 3, Some(&id)));
}

#[tokio::test(start_paused = true)]
async fn a_resume_sends_the_one_name_that_changed_and_a_foreign_id_everything() {
    let names: Vec<String> = (0..50).map(|n| format!("n{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let rig = rig(&names, settings());
    for name in &names {
        rig.board.publish(name, state("1", 1), true);
    }
    let (body, text) = rig.open(rig.asked(&names)).await;
    drop(body);
    rig.board.publish("n07", state("2", 2), true);
    for (id, expected) in [(last_id(&text), 1), (last_id(&text).replace("bootboot", "elsewher"), 50)] {
        let asked = Subscription { last_event_id: Some(id.into_bytes()), ..rig.asked(&names) };
        let (_body, text) = rig.open(asked).await;
        assert_eq!(text.matches("event: update").count(), expected, "{text}");
        assert!(text.contains(&update("n07", "Mg==", 2, None)));
        assert_eq!(text.matches("id: ").count(), 1, "an unfinished baseline has no id");
    }
}

#[tokio::test(start_paused = true)]
async fn hearts_beat_without_a_gap_over_the_interval_whatever_the_traffic() {
    let rig = rig(&["a"], settings());
    let mut bodies = Vec::new();
    for _ in 0..4 {
        bodies.push(rig.open(rig.asked(&["a"])).await.0);
    }
    for body in &mut bodies {
        let mut last = Instant::now();
        let mut beats = 0;
        while beats < 3 {
            let text = next(body).await.unwrap();
            beats += text.matches(": heartbeat\n\n").count();
            assert!(last.elapsed() <= Duration::from_secs(15), "{:?}", last.elapsed());
            last = Instant::now();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_is_seen_on_open_streams() {
    let rig = rig(&["a", "b", "c"], settings());
    for name in ["a", "b", "c"] {
        rig.board.publish(name, state("1", 1), true);
    }
    *rig.caller.denied.lock() = ["b"].into();
    let (mut body, _) = rig.open(rig.asked(&["a", "b", "c"])).await;
    *rig.caller.denied.lock() = ["a"].into();
    rig.board.set_names(["a", "b"]);
    rig.hub.applied(2).await;
    let text = until(&mut body, "binding not found").await;
    let frames = [
        error("a", "permission_denied", "permission denied"),
        update("b", "MQ==", 1, None),
        error("c", "not_found", "binding not found"),
    ];
    for frame in &frames {
        assert_eq!(text.matches(frame).count(), 1, "{frame} in {text}");
    }
    rig.board.publish("b", state("2", 2), true);
    assert!(last_id(&until(&mut body, "Mg==").await).starts_with("bootboot.2."));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_no_longer_known_is_told_and_ended() {
    let rig = rig(&["a"], settings());
    let (mut body, _) = rig.open(rig.asked(&["a", "b"])).await;
    *rig.caller.unknown.lock() = true;
    rig.hub.applied(2).await;
    let text = until(&mut body, "\"b\"").await;
    assert_eq!(
        text,
        error("a", "unauthenticated", "unauthenticated") + &error("b", "unauthenticated", "unauthenticated")
    );
    assert_eq!(next(&mut body).await, None);
    drop(body);
    assert_eq!(*rig.caller.ended.lock(), [StreamEnd::Unauthenticated]);
    assert_eq!(rig.hub.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_value_over_the_cap_is_an_error_of_its_name_once_a_change() {
    let rig = rig(&["a"], settings());
    rig.board.publish("a", state(&"x".repeat(100), 1), true);
    let (mut body, text) = rig.open(Subscription { max_frame: 120, ..rig.asked(&["a"]) }).await;
    let refused = error("a", "invalid", "value too large for this stream");
    assert!(text.contains(&refused), "{text}");
    rig.board.publish("a", state(&"x".repeat(100), 2), false);
    rig.board.publish("a", state("small", 3), true);
    assert!(until(&mut body, "update").await.starts_with("event: update"));
}

#[tokio::test(start_paused = true)]
async fn a_large_value_comes_in_pieces_and_whole() {
    let rig = rig(&["a"], settings());
    rig.board.publish("a", state(&"x".repeat(90_000), 1), true);
    let (_body, text) = rig.open(rig.asked(&["a"])).await;
    assert!(text.contains(&format!("\"bytes\":\"{}\"", "eHh4".repeat(30_000))));
    assert!(text.contains("Z\"}\n\nevent: synced\n"));
}

#[tokio::test(start_paused = true)]
async fn who_leaves_tells_streams_serves_them_on_and_ends_them() {
    let rig = rig(&["a"], settings());
    let (mut body, _) = rig.open(rig.asked(&["a"])).await;
    rig.hub.tell_to_go(Duration::from_secs(3));
    let told = "event: goaway\ndata: {\"reason\":\"draining\",\"within_ms\":3000}\n\n";
    assert_eq!(until(&mut body, "goaway").await, told);
    let (_new, text) = rig.open(rig.asked(&["a"])).await;
    assert!(text.contains(told), "one that comes now is told, too");
    rig.board.publish("a", state("2", 2), true);
    until(&mut body, "Mg==").await;
    rig.hub.end();
    assert_eq!(next(&mut body).await, None);
    assert_eq!(next(&mut rig.hub.subscribe(rig.asked(&["a"]))).await.as_deref(), Some("retry: 1000\n\n"));
}

#[tokio::test(start_paused = true)]
async fn an_aged_stream_is_told_and_then_ends() {
    let rig = rig(&["a"], HubSettings { max_age: Some(Duration::from_millis(50)), ..settings() });
    let mut body = rig.hub.subscribe(rig.asked(&["a"]));
    let mut text = String::new();
    while let Some(more) = next(&mut body).await {
        text += &more;
    }
    drop(body);
    assert_eq!(*rig.caller.ended.lock(), [StreamEnd::MaxAge]);
}

#[tokio::test(start_paused = true)]
async fn whoever_falls_behind_the_board_sees_the_newest() {
    let rig = rig(&["a", "b"], settings());
    let (mut body, _) = rig.open(rig.asked(&["a", "b"])).await;
    rig.board.publish("b", state("only", 1), true);
    for _ in 0..10_000 {
        rig.board.publish("a", state("old", 1), true);
    }
    rig.board.publish("a", state("new", 2), true);
    let text = until(&mut body, "\"bmV3\"").await;
    assert!(text.contains("\"b25seQ==\""), "{text}");
    assert!(last_id(&text).starts_with("bootboot.1.10002."));
}

#[tokio::test]
async fn a_stream_that_takes_nothing_is_cut_alone() {
    let short = HubSettings {
        write_stall: Duration::from_millis(50),
        heartbeat: Duration::from_secs(1),
        ..settings()
    };
    let rig = rig(&["a"], short);
    let (slow, quick) = (Cut::default(), Cut::default());
    let (body, _) = rig.open(Subscription { cut: Some(slow.clone()), ..rig.asked(&["a"]) }).await;
    let (mut reading, _) = rig.open(Subscription { cut: Some(quick.clone()), ..rig.asked(&["a"]) }).await;
    let reader = rig.tasks.spawn("reader", async move { while let Some(Ok(_)) = reading.frame().await {} });
    tokio::time::timeout(SOON, slow.asked_for()).await.unwrap();
    drop(body);
    assert_eq!(*rig.caller.ended.lock(), [StreamEnd::Slow]);
    assert!(tokio::time::timeout(Duration::from_millis(200), quick.asked_for()).await.is_err());
    reader.abort();
}

#[tokio::test]
async fn what_fails_upstream_is_an_error_of_its_name() {
    let rig = rig(&["a"], settings());
    let failed = State {
        settled: true,
        served: Served::Refused(AnswerKind::PermissionDenied, Refusal::ResolveFailed),
        ..State::default()
    };
    rig.board.publish("a", failed, true);
    let (_body, text) = rig.open(rig.asked(&["a"])).await;
    assert!(text.contains(&error("a", "permission_denied", "binding resolve failed")), "{text}");
}
