//! So many commands at once, some more waiting, the rest refused; one reply each.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use holdfast_dbdriver::wire::Request;
use holdfast_ops::Tasks;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::command_error::Kind as Failure;
use holdfast_proto::relay::v1::reply::Outcome;
use holdfast_proto::relay::v1::spoke_frame::Frame;
use tokio::sync::mpsc;

use super::fake::{Fakes, Opens, SOON, command, creation, eventually, instance, removal};
use crate::cache::Cache;
use crate::runner::{Lane, Limits, Load, Runner};

struct Rig {
    fakes: Arc<Fakes>,
    runner: Runner,
    lane: Lane,
    replies: mpsc::Receiver<proto::SpokeFrame>,
    tasks: Tasks,
}

fn rig(concurrency: usize) -> Rig {
    let (opens, tasks) = (Opens::default(), Tasks::new("test"));
    let fakes = Arc::clone(&opens.0);
    let cache = Cache::new(Arc::new(opens), &tasks);
    let runner = Runner::new(cache, Limits { concurrency, queue_timeout: Duration::from_secs(5) });
    let (send, replies) = mpsc::channel(64);
    Rig { fakes, lane: runner.lane(send, &tasks), runner, replies, tasks }
}

fn outcome(frame: proto::SpokeFrame) -> (String, Result<(), Failure>) {
    let Some(Frame::Reply(reply)) = frame.frame else { panic!("{frame:?}") };
    match reply.outcome.unwrap() {
        Outcome::Output(_) => (reply.request_id, Ok(())),
        Outcome::Error(error) => (reply.request_id, Err(error.kind.unwrap())),
    }
}

impl Rig {
    fn take(&self, id: &str, url: &str, pool: u32) -> Option<proto::SpokeFrame> {
        self.lane.take(&command(id, &creation(id), instance(url, 1, url, pool)))
    }

    async fn reply(&mut self) -> (String, Result<(), Failure>) {
        outcome(tokio::time::timeout(SOON, self.replies.recv()).await.unwrap().unwrap())
    }
}

#[tokio::test]
async fn a_slow_database_takes_its_pool_and_leaves_the_rest_to_others() {
    let mut rig = rig(8);
    for n in 0..12 {
        assert!(rig.take(&format!("slow-{n}"), "slow", 4).is_none());
    }
    eventually("the pool is full", || rig.fakes.running.load(SeqCst) == 4).await;
    assert_eq!(rig.runner.load(), Load { running: 4, queued: 8 });
    for n in 0..20 {
        assert!(rig.take(&format!("quick-{n}"), "quick", 4).is_none(), "quick-{n}");
        assert_eq!(rig.reply().await, (format!("quick-{n}"), Ok(())));
    }
    assert_eq!(rig.fakes.running.load(SeqCst), 4);
    rig.fakes.gate.cancel();
    for _ in 0..12 {
        assert_eq!(rig.reply().await.1, Ok(()));
    }
    eventually("all places are free", || rig.runner.load() == Load::default()).await;
}

#[tokio::test]
async fn more_than_twice_the_limit_waiting_is_busy_at_once() {
    let mut rig = rig(2);
    for n in 0..6 {
        assert!(rig.take(&format!("c{n}"), "slow", 16).is_none());
    }
    eventually("two run", || rig.fakes.running.load(SeqCst) == 2).await;
    assert_eq!(rig.runner.load(), Load { running: 2, queued: 4 });
    let (id, refused) = outcome(rig.take("c6", "slow", 16).unwrap());
    assert_eq!((id.as_str(), refused), ("c6", Err(Failure::Busy(proto::Empty {}))));
    rig.fakes.gate.cancel();
    for _ in 0..6 {
        assert_eq!(rig.reply().await.1, Ok(()));
    }
    assert_eq!(rig.fakes.users.lock().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_is_busy_and_whose_deadline_passes_is_late() {
    let mut rig = rig(1);
    let runs = command("runs", &creation("runs"), instance("slow", 1, "slow", 16));
    assert!(rig.lane.take(&proto::Command { deadline_ms: 10_000, ..runs }).is_none());
    eventually("one runs", || rig.fakes.running.load(SeqCst) == 1).await;
    assert!(rig.take("patient", "slow", 16).is_none());
    let hasty = command("hasty", &creation("hasty"), instance("slow", 1, "slow", 16));
    assert!(rig.lane.take(&proto::Command { deadline_ms: 1000, ..hasty.clone() }).is_none());
    assert_eq!(rig.reply().await, ("hasty".to_owned(), Err(Failure::Deadline(proto::Empty {}))));
    assert_eq!(rig.reply().await, ("patient".to_owned(), Err(Failure::Busy(proto::Empty {}))));
    // One that runs into its deadline says what it may have left.
    let (id, outcome) = rig.reply().await;
    let Err(Failure::Driver(failure)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((id.as_str(), failure.reason.as_str()), ("runs", "deadline"));
    assert!(rig.lane.take(&proto::Command { deadline_ms: 0, ..hasty }).is_none());
    assert_eq!(rig.reply().await.1, Err(Failure::Deadline(proto::Empty {})));
    assert!(rig.fakes.users.lock().is_empty());
}

#[tokio::test]
async fn a_command_is_cancelled_by_its_id_while_it_waits_and_while_it_runs() {
    let mut rig = rig(1);
    assert!(rig.take("runs", "slow", 16).is_none());
    eventually("one runs", || rig.fakes.running.load(SeqCst) == 1).await;
    assert!(rig.take("waits", "slow", 16).is_none());
    rig.lane.cancel("unknown");
    rig.lane.cancel("waits");
    assert_eq!(rig.reply().await, ("waits".to_owned(), Err(Failure::Cancelled(proto::Empty {}))));
    rig.lane.cancel("runs");
    let (id, outcome) = rig.reply().await;
    let Err(Failure::Driver(failure)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((id.as_str(), failure.reason.as_str(), failure.maybe_done), ("runs", "cancelled", false));
    assert!(rig.fakes.users.lock().is_empty());
}

#[tokio::test]
async fn a_removal_ends_the_creation_with_its_key_even_under_another_configuration() {
    let mut rig = rig(8);
    assert!(rig.take("ann", "slow", 16).is_none());
    eventually("it runs", || rig.fakes.running.load(SeqCst) == 1).await;
    let gone = command("gone", &removal("ann"), instance("slow", 2, "quick", 16));
    assert!(rig.lane.take(&gone).is_none());
    let replies = [rig.reply().await, rig.reply().await];
    let of = |id: &str| replies.iter().find(|(of, _)| of == id).unwrap().1.clone();
    assert!(matches!(of("ann"), Err(Failure::Driver(f)) if f.reason == "cancelled" && !f.maybe_done));
    assert_eq!(of("gone"), Ok(()));
    let again = command("again", &creation("ann"), instance("slow", 2, "quick", 16));
    assert!(rig.lane.take(&again).is_none());
    assert!(rig.reply().await.1.is_err(), "the key is refused from then on");
}

#[tokio::test]
async fn the_same_key_again_gets_the_first_outcome_on_another_stream_too() {
    let mut rig = rig(8);
    assert!(rig.take("ann", "quick", 16).is_none());
    assert_eq!(rig.reply().await.1, Ok(()));
    rig.fakes.users.lock().clear();
    let (send, mut replies) = mpsc::channel(4);
    let next = rig.runner.lane(send, &rig.tasks);
    assert!(next.take(&command("2", &creation("ann"), instance("quick", 1, "quick", 16))).is_none());
    assert_eq!(outcome(replies.recv().await.unwrap()).1, Ok(()));
    assert!(rig.fakes.users.lock().is_empty(), "it was not made a second time");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_at_once() {
    let rig = rig(8);
    let good = command("x", &creation("ann"), instance("pg", 1, "pg", 16));
    let refusal = |command| match outcome(rig.lane.take(&command).unwrap()).1 {
        Err(Failure::Invalid(text) | Failure::UnknownPlugin(text)) => text.text,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(proto::Command { method: 0, ..good.clone() }), "unknown method");
    assert_eq!(
        refusal(proto::Command { payload: vec![255; 9].into(), ..good.clone() }),
        "the payload cannot be read"
    );
    assert_eq!(
        refusal(proto::Command { idempotency_key: vec![1].into(), ..good }),
        "an idempotency key has 16 bytes"
    );
    let mut other = instance("pg", 1, "pg", 16);
    other.plugin = "mongodb-database-plugin".into();
    assert_eq!(refusal(command("x", &creation("a"), other)), "unknown plugin \"mongodb-database-plugin\"");
}

#[tokio::test]
async fn an_id_in_use_is_not_used_twice_and_is_free_after_its_reply() {
    let mut rig = rig(8);
    assert!(rig.take("one", "slow", 16).is_none());
    assert!(matches!(outcome(rig.take("one", "slow", 16).unwrap()).1, Err(Failure::Invalid(_))));
    rig.fakes.gate.cancel();
    assert_eq!(rig.reply().await.1, Ok(()));
    assert!(rig.take("one", "slow", 16).is_none());
    assert_eq!(rig.reply().await.1, Ok(()));
}

#[tokio::test]
async fn type_and_close_are_answered_at_once() {
    let mut rig = rig(1);
    let types = rig.lane.take(&command("t", &Request::Type, proto::Instance::default())).unwrap();
    assert_eq!(outcome(types).1, Ok(()));
    assert!(rig.take("ann", "quick", 16).is_none());
    assert_eq!(rig.reply().await.1, Ok(()));
    // What is held is of another version and stays.
    let other = Request::Close { instance_id: "quick".into(), config_version: 2 };
    assert_eq!(outcome(rig.lane.take(&command("c", &other, proto::Instance::default())).unwrap()).1, Ok(()));
    assert!(rig.take("bob", "quick", 16).is_none());
    assert_eq!(rig.reply().await.1, Ok(()));
    assert_eq!((rig.fakes.opened.load(SeqCst), rig.fakes.closed.load(SeqCst)), (1, 0));
    let close = Request::Close { instance_id: "quick".into(), config_version: 1 };
    assert_eq!(outcome(rig.lane.take(&command("c", &close, proto::Instance::default())).unwrap()).1, Ok(()));
    eventually("it closes", || rig.fakes.closed.load(SeqCst) == 1).await;
}

#[tokio::test]
async fn the_commands_of_a_stream_that_is_gone_are_cancelled() {
    let rig = rig(8);
    assert!(rig.take("ann", "slow", 16).is_none());
    eventually("it runs", || rig.fakes.running.load(SeqCst) == 1).await;
    drop(rig.lane);
    eventually("it ends", || rig.runner.load() == Load::default()).await;
    assert!(rig.fakes.users.lock().is_empty());
}
