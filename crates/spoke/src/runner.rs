//! Runs the hub's commands on the drivers: so many at once, some more waiting, the rest refused.
//!
//! What must hold: taking a command never waits, so that cancels, drains and acks behind it pass; a database has at
//! most as many commands running as its pool has connections, so that a slow one leaves room for the others; each
//! command gets exactly one reply, unless its stream is gone.

mod room;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_dbdriver::wire::{self, Output, Request};
use holdfast_dbdriver::{Call, Driver as _, DriverError};
use holdfast_ops::Tasks;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::command_error::Kind as Failure;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Refused, User, Wanted};
use room::{Entry, Room};

/// The plugins that this build runs.
pub const PLUGINS: [&str; 2] = ["postgresql-database-plugin", "mysql-database-plugin"];
/// A deadline further away than this is a mistake of the hub's.
const LONGEST: Duration = Duration::from_secs(600);

/// How much runs at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Commands that run at once; 32. Twice as many more may wait.
    pub concurrency: usize,
    /// How long a command waits for its turn; 5 s. Then it is refused as busy.
    pub queue_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { concurrency: 32, queue_timeout: Duration::from_secs(5) }
    }
}

/// What runs and what waits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Load {
    /// Commands that run.
    pub running: usize,
    /// Commands that wait for their turn.
    pub queued: usize,
}

/// Runs commands. Clones are the same runner.
#[derive(Clone, Debug)]
pub struct Runner {
    cache: Cache,
    room: Room,
    queue_timeout: Duration,
}

/// The commands of one stream. When it is dropped or [`Lane::cut`], they are cancelled.
pub struct Lane {
    runner: Runner,
    live: Arc<Live>,
    replies: mpsc::Sender<proto::SpokeFrame>,
    refusing: AtomicBool,
    tasks: Tasks,
}

/// The commands of a stream that have no reply yet, by request id.
#[derive(Debug, Default)]
struct Live(Mutex<HashMap<String, CancellationToken>>);

/// A command that can be tried.
struct Job {
    id: String,
    request: Request,
    wanted: Wanted,
    call: Call,
}

impl Runner {
    /// A runner over the drivers of `cache`.
    pub fn new(cache: Cache, limits: Limits) -> Self {
        Self { cache, room: Room::new(limits.concurrency), queue_timeout: limits.queue_timeout }
    }

    /// What runs and what waits, over all streams.
    pub fn load(&self) -> Load {
        self.room.load()
    }

    /// The commands of a new stream, whose replies go to `replies`.
    pub fn lane(&self, replies: mpsc::Sender<proto::SpokeFrame>, tasks: &Tasks) -> Lane {
        let (live, refusing) = (Arc::default(), AtomicBool::new(false));
        Lane { runner: self.clone(), live, replies, refusing, tasks: tasks.child("commands") }
    }
}

impl Lane {
    /// Takes a command without waiting. A reply that is known at once comes back; every other goes its way later.
    pub fn take(&self, command: &proto::Command) -> Option<proto::SpokeFrame> {
        let id = command.request_id.clone();
        let received = Instant::now();
        let refuse = |failure| Some(reply(id.clone(), Err(failure)));
        if self.refusing.load(Ordering::Relaxed) || self.tasks.is_cancelled() {
            // It was not begun: the hub may send it to where this spoke has moved.
            return refuse(Failure::NotConnected(proto::NotConnected::default()));
        }
        let (request, instance) = match wire::decode(command) {
            Ok(read) => read,
            Err(error) => return refuse(invalid(error)),
        };
        let wanted = match instance.as_ref().map(Wanted::parse) {
            Some(Ok(wanted)) => wanted,
            Some(Err(refused)) => return refuse(failure_of(refused)),
            None => return Some(reply(id, Ok(self.at_once(&request)))),
        };
        let deadline = received + Duration::from_millis(command.deadline_ms).min(LONGEST);
        let cancel = self.tasks.token().child_token();
        if !self.live.enter(&id, &cancel) {
            return refuse(invalid("this request id is in use"));
        }
        let pool = self.runner.cache.pool(&wanted).unwrap_or(usize::MAX);
        let Some(entry) = self.runner.room.enter(wanted.id(), pool) else {
            self.live.leave(&id);
            return refuse(Failure::Busy(proto::Empty {}));
        };
        let job = Job { id, request, wanted, call: Call::new(deadline, cancel) };
        let (runner, live, replies) = (self.runner.clone(), Arc::clone(&self.live), self.replies.clone());
        let gone = self.tasks.token();
        self.tasks.spawn("command", async move {
            let outcome = runner.run(&job, entry).await;
            live.leave(&job.id);
            // A full queue waits for the stream's writer; when the stream is gone nobody wants the reply.
            gone.run_until_cancelled(replies.send(reply(job.id, outcome))).await;
        });
        None
    }

    /// The hub no longer wants the outcome of a command.
    pub fn cancel(&self, request_id: &str) {
        if let Some(cancel) = self.live.0.lock().get(request_id) {
            cancel.cancel();
        }
    }

    /// Refuses every further command as not connected: the stream goes down.
    pub fn refuse(&self) {
        self.refusing.store(true, Ordering::Relaxed);
    }

    /// How many commands of this stream have no reply yet.
    pub fn live(&self) -> usize {
        self.live.0.lock().len()
    }

    /// Waits until every command of this stream has its reply in the queue; whether that was in time.
    pub async fn finished(&self, deadline: Duration) -> bool {
        self.tasks.wait(deadline).await.is_ok()
    }

    /// Cancels every command: the stream is gone.
    pub fn cut(&self) {
        self.tasks.cancel();
    }

    fn at_once(&self, request: &Request) -> Output {
        match request {
            Request::Close { instance_id, config_version } => {
                self.runner.cache.close(instance_id, *config_version);
                Output::Done
            }
            _ => Output::Plugins(PLUGINS.map(str::to_owned).to_vec()),
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Runner {
    async fn run(&self, job: &Job, entry: Entry) -> Result<Output, Failure> {
        let patience = job.call.deadline.min(Instant::now() + self.queue_timeout);
        let turn = tokio::select! {
            biased;
            () = job.call.cancel.cancelled() => return Err(Failure::Cancelled(proto::Empty {})),
            turn = tokio::time::timeout_at(patience, entry.turn()) => turn,
        };
        let Ok(Some(_place)) = turn else {
            let late = job.call.left().is_zero();
            return Err(if late {
                Failure::Deadline(proto::Empty {})
            } else {
                Failure::Busy(proto::Empty {})
            });
        };
        if job.call.left().is_zero() {
            return Err(Failure::Deadline(proto::Empty {}));
        }
        self.ask(job).await.map_err(failure_of)
    }

    async fn ask(&self, job: &Job) -> Result<Output, Refused> {
        if let Request::Initialize { verify: true } = job.request {
            self.cache.verify(&job.wanted, &job.call).await?;
            return Ok(Output::Done);
        }
        let user = self.cache.acquire(&job.wanted, &job.call).await?;
        Ok(execute(&job.request, &job.call, &user).await?)
    }
}

async fn execute(request: &Request, call: &Call, user: &User) -> Result<Output, DriverError> {
    let driver = user.driver();
    match request {
        Request::NewUser(new) => driver.new_user(call, new).await?,
        Request::UpdateUser(update) => driver.update_user(call, update).await?,
        Request::DeleteUser(gone) => driver.delete_user(call, gone).await?,
        Request::VerifyPassword { username, password } => {
            return driver.verify_password(call, username, password).await.map(Output::Accepted);
        }
        Request::Initialize { verify } => driver.initialize(call, *verify).await?,
        Request::Close { .. } | Request::Type => {}
    }
    Ok(Output::Done)
}

impl Live {
    fn enter(&self, id: &str, cancel: &CancellationToken) -> bool {
        let mut live = self.0.lock();
        if live.contains_key(id) {
            return false;
        }
        live.insert(id.to_owned(), cancel.clone());
        true
    }

    fn leave(&self, id: &str) {
        self.0.lock().remove(id);
    }
}

fn invalid(text: impl ToString) -> Failure {
    Failure::Invalid(proto::Text { text: text.to_string() })
}

fn failure_of(refused: Refused) -> Failure {
    match refused {
        Refused::UnknownPlugin(_) => Failure::UnknownPlugin(proto::Text { text: refused.to_string() }),
        Refused::ConfigMissing | Refused::Config(_) => invalid(refused),
        Refused::Driver(error) => Failure::Driver(wire::to_wire(&error)),
    }
}

fn reply(request_id: String, outcome: Result<Output, Failure>) -> proto::SpokeFrame {
    use proto::reply::Outcome;
    let outcome = match outcome {
        Ok(output) => Outcome::Output(output.encode()),
        Err(failure) => Outcome::Error(proto::CommandError { kind: Some(failure) }),
    };
    let reply = proto::Reply { request_id, outcome: Some(outcome) };
    proto::SpokeFrame { frame: Some(proto::spoke_frame::Frame::Reply(reply)) }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("live", &self.live()).finish_non_exhaustive()
    }
}
