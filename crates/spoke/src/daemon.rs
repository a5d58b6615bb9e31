//! The daemon: dials for ever, serves what comes of it, renews its certificate, and goes down in order.
//!
//! The shell of [`Dialer`]: it does the machine's effects in their order and tells it what became of them. What must
//! hold: an epoch is on disk before it is dialled with, unless the directory cannot be written; a signal is heeded at
//! any moment; going down is told to the hub before it is done.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Epoch;
use holdfast_core::epoch::Dialer;
pub use holdfast_core::epoch::dialer::Timing;
use holdfast_core::epoch::dialer::{self, Effect, End, Event, Exit, Goodbye, Report};
use holdfast_core::ownership::{BootId, Stamp};
use holdfast_ops::shutdown::{Request, Signals};
use holdfast_ops::{MonoClock, Tasks, exit, rand};
use rustls_pki_types::ServerName;
use tokio::sync::mpsc;
use tracing::Instrument as _;

use crate::address::{Address, BadAddress};
use crate::cache::{Cache, IDLE, Opener};
use crate::counter::Counter;
use crate::credentials::{Credentials, CredentialsError};
use crate::link::{Keepalive, Target};
use crate::renewal::{self, Renewals, Schedule};
use crate::runner::{Limits, Runner};
use crate::session::{self, MOVED_WITHIN, Order, Setup, Told, Welcome};

/// How long running commands may go on when the daemon goes down.
const FINISH_WITHIN: Duration = Duration::from_secs(10);
/// How long the drivers may take to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);
/// News of streams that wait for the daemon.
const NEWS: usize = 64;

/// How a daemon is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The hub nodes to dial.
    pub servers: Vec<Address>,
    /// Where key, certificate, authority and session counter are.
    pub credentials_dir: PathBuf,
    /// The name that a hub's certificate must bear, when it is not the host that is dialled.
    pub server_name: Option<ServerName<'static>>,
    /// Between heartbeats; none: no heartbeats.
    pub heartbeat: Option<Duration>,
    /// How much runs at once.
    pub limits: Limits,
    /// When the certificate is renewed; none: never.
    pub renewal: Option<Schedule>,
    /// End with the first stream instead of dialling again.
    pub once: bool,
    /// The times of dialling.
    pub timing: Timing,
}

/// Why a daemon did not run, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The credentials cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// Signals cannot be heard.
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
    /// A task panicked.
    #[error(transparent)]
    Panicked(#[from] holdfast_ops::tasks::Failure),
}

impl Error {
    /// The exit code of the process.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Credentials(_) | Self::Signals(_) => exit::LOCAL,
            Self::Panicked(_) => exit::FAILED,
        }
    }
}

/// Runs the daemon until a signal ends it; gives the exit code.
///
/// # Errors
/// When it cannot begin, or a task panicked.
pub async fn run(options: Options, opener: Arc<dyn Opener>) -> Result<u8, Error> {
    holdfast_ops::core_dump::forbid();
    let tasks = Tasks::new("spoke");
    let signals = Signals::listen(&tasks).map_err(Error::Signals)?;
    run_with(options, opener, signals, &tasks).await
}

/// Runs the daemon with signals that the caller makes.
///
/// # Errors
/// As [`run`].
pub async fn run_with(
    options: Options,
    opener: Arc<dyn Opener>,
    signals: Signals,
    tasks: &Tasks,
) -> Result<u8, Error> {
    let credentials = Arc::new(Credentials::load(&options.credentials_dir)?);
    // Refused now rather than at each dial.
    credentials.client_config()?;
    tracing::info!(spoke = %credentials.name, servers = shown(&options.servers).join(","), "spoke starts");
    let span = tracing::info_span!("serve", spoke = %credentials.name);
    let exit = Daemon::new(options, credentials, opener, tasks).serve(signals).instrument(span).await?;
    Ok(match exit {
        Exit::Ok => exit::OK,
        Exit::Failed => exit::LOCAL,
    })
}

fn shown(servers: &[Address]) -> Vec<String> {
    servers.iter().map(ToString::to_string).collect()
}

/// What work beside the streams came to.
pub(crate) enum Done {
    /// An epoch is on disk, or could not be written; with the credentials that were found beside it.
    Persisted(Epoch, bool, Option<Credentials>),
    /// A renewal ended.
    Renewed(Result<Credentials, renewal::Error>),
}

struct Daemon {
    options: Options,
    credentials: Arc<Credentials>,
    counter: Counter,
    boot: BootId,
    clock: MonoClock,
    dialer: Dialer,
    cache: Cache,
    runner: Runner,
    keepalive: Keepalive,
    renewals: Renewals,
    streams: BTreeMap<Epoch, Held>,
    /// Addresses at which another authority's hub was met last.
    strangers: BTreeSet<String>,
    news: mpsc::Sender<(Epoch, Told)>,
    heard: mpsc::Receiver<(Epoch, Told)>,
    done: mpsc::Sender<Done>,
    finished: mpsc::Receiver<Done>,
    tasks: Tasks,
    stream_tasks: Tasks,
}

/// A stream as its daemon holds it.
struct Held {
    address: String,
    open: bool,
    orders: mpsc::Sender<Order>,
    tasks: Tasks,
}

impl Daemon {
    fn new(options: Options, credentials: Arc<Credentials>, opener: Arc<dyn Opener>, tasks: &Tasks) -> Self {
        let (counter, boot) = (Counter::new(&options.credentials_dir), BootId::new(rand::bytes()));
        let cache = Cache::new(opener, tasks);
        let dialer = Dialer::new(dialer::Setup {
            timing: options.timing,
            addresses: shown(&options.servers),
            boot,
            last: counter.read(),
            once: options.once,
            seed: u64::from_le_bytes(rand::bytes()),
        });
        let (news, heard) = mpsc::channel(NEWS);
        let (done, finished) = mpsc::channel(NEWS);
        Self {
            runner: Runner::new(cache.clone(), options.limits),
            renewals: Renewals::new(options.renewal),
            clock: MonoClock::new(),
            keepalive: Keepalive::default(),
            streams: BTreeMap::new(),
            strangers: BTreeSet::new(),
            stream_tasks: tasks.child("streams"),
            tasks: tasks.clone(),
            options,
            credentials,
            counter,
            boot,
            dialer,
            cache,
            news,
            heard,
            done,
            finished,
        }
    }

    async fn serve(mut self, mut signals: Signals) -> Result<Exit, Error> {
        let sweeper = self.cache.clone();
        self.tasks.spawn_until_cancelled("sweep", async move { sweeper.sweep(IDLE).await });
        let mut exit = self.feed(Event::Start);
        while exit.is_none() {
            let open = self.dialer.session().is_some();
            exit = tokio::select! {
                Some((epoch, told)) = self.heard.recv() => self.told(epoch, told),
                Some(done) = self.finished.recv() => self.is_done(done),
                () = self.clock.sleep_until(self.dialer.next_deadline()) => self.feed(Event::Tick),
                () = self.renewals.due(), if open => { self.renew(); None }
                _ = signals.reached(Request::Graceful) => self.feed(Event::Stop),
                failure = self.tasks.failed() => return Err(failure.into()),
            };
        }
        let tasks = self.tasks.clone();
        self.go_down(signals).await;
        tasks.failure().map_or(Ok(exit.unwrap_or(Exit::Ok)), |failure| Err(failure.into()))
    }

    /// Tells the machine and does what it says.
    fn feed(&mut self, event: Event) -> Option<Exit> {
        let mut effects = Vec::new();
        self.dialer.on(self.clock.now(), event, &mut effects);
        let mut exit = None;
        for effect in effects {
            match effect {
                Effect::Persist(epoch) => self.persist(epoch),
                Effect::Dial(epoch, address) => self.dial(epoch, address),
                Effect::Abandon(epoch) => drop(self.streams.remove(&epoch).map(|held| held.tasks.cancel())),
                Effect::Close(epoch, goodbye) => self.close(epoch, goodbye),
                Effect::Report(report) => say(&report),
                Effect::Exit(how) => exit = Some(how),
            }
        }
        exit
    }

    /// Writes the epoch, and looks whether the certificate was renewed by hand: the dial that follows is with that one.
    fn persist(&self, epoch: Epoch) {
        let (counter, done) = (self.counter.clone(), self.done.clone());
        // The files are in two minds while a renewal of our own replaces them.
        let dir = (!self.renewals.is_running()).then(|| self.options.credentials_dir.clone());
        let write = self.tasks.spawn_blocking("persist", move || {
            let written = counter.write(epoch);
            let durable = written
                .inspect_err(|error| tracing::debug!(%error, "the session counter was not written"))
                .is_ok();
            (durable, dir.and_then(|dir| Credentials::peek(&dir).ok()))
        });
        self.tasks.spawn_until_cancelled("persisted", async move {
            let (durable, found) = write.join().await.unwrap_or((false, None));
            let _ = done.send(Done::Persisted(epoch, durable, found)).await;
        });
    }

    /// Takes credentials that somebody renewed, if they are of this spoke and of the same authority.
    fn take(&mut self, found: Credentials) {
        let held = &self.credentials;
        let ours = found.name == held.name && found.ca_der() == held.ca_der();
        if ours && found.not_after > held.not_after && !self.renewals.is_running() {
            tracing::info!(not_after = found.not_after, "the certificate was renewed by hand");
            self.credentials = Arc::new(found);
        }
    }

    fn dial(&mut self, epoch: Epoch, address: String) {
        let tasks = self.stream_tasks.child("stream");
        let (orders, taken) = mpsc::channel(4);
        let held = Held { address: address.clone(), open: false, orders, tasks: tasks.clone() };
        self.streams.insert(epoch, held);
        let news = self.news.clone();
        let target = match self.target(&address) {
            Ok(target) => target,
            Err(why) => {
                self.tasks.spawn_until_cancelled("refuse", async move {
                    let _ = news.send((epoch, Told::Ended(End::Failed, why))).await;
                });
                return;
            }
        };
        let setup = Setup {
            target,
            stamp: Stamp { epoch, boot: self.boot },
            heartbeat: self.options.heartbeat,
            concurrency: self.options.limits.concurrency,
            runner: self.runner.clone(),
        };
        tracing::debug!(address, epoch = epoch.into_inner(), "dialling");
        let group = tasks.clone();
        tasks.spawn_until_cancelled("session", session::run(setup, taken, news, group));
    }

    /// An address that a hub told of may be none; what is configured was read at the start.
    fn target(&self, address: &str) -> Result<Target, String> {
        Ok(Target {
            address: address.parse().map_err(|bad: BadAddress| bad.to_string())?,
            server_name: self.options.server_name.clone(),
            tls: self.credentials.client_config().map_err(|error| error.to_string())?,
            keepalive: self.keepalive,
        })
    }

    fn close(&self, epoch: Epoch, goodbye: Goodbye) {
        let Some(held) = self.streams.get(&epoch) else { return };
        let grace = match goodbye {
            Goodbye::Moved => MOVED_WITHIN,
            Goodbye::Stopping => FINISH_WITHIN,
        };
        if held.orders.try_send(Order::Close(goodbye, grace)).is_err() {
            held.tasks.cancel();
        }
    }

    fn told(&mut self, epoch: Epoch, told: Told) -> Option<Exit> {
        match told {
            Told::Opened(Welcome { node, endpoints, keepalive }) => {
                let held = self.streams.get_mut(&epoch)?;
                held.open = true;
                self.keepalive = keepalive;
                self.strangers.remove(&held.address);
                tracing::info!(address = held.address, node, epoch = epoch.into_inner(), "stream up");
                self.feed(Event::Opened(epoch, endpoints))
            }
            Told::Drain(redirect) => self.feed(Event::Drain(epoch, redirect)),
            Told::Ended(end, reason) => {
                let held = self.streams.remove(&epoch)?;
                self.say_ended(epoch, &held, &reason);
                self.feed(Event::Ended(epoch, end))
            }
        }
    }

    /// A hub under another authority is told of once: each further dial finds the same.
    fn say_ended(&mut self, epoch: Epoch, held: &Held, reason: &str) {
        let (address, epoch) = (held.address.as_str(), epoch.into_inner());
        if held.open {
            tracing::info!(address, epoch, reason, "stream down");
        } else if !is_strange(reason) {
            tracing::warn!(address, epoch, reason, "no stream to this hub node");
        } else if self.strangers.insert(address.to_owned()) {
            tracing::error!(
                address,
                epoch,
                reason,
                "the hub's certificate is not of the authority that this spoke joined; if that was replaced, join again \
                 with the new hash (holdfast relay join -force)"
            );
        }
    }

    fn is_done(&mut self, done: Done) -> Option<Exit> {
        match done {
            Done::Persisted(epoch, durable, found) => {
                found.into_iter().for_each(|found| self.take(found));
                self.feed(Event::Persisted(epoch, durable))
            }
            Done::Renewed(Ok(credentials)) => {
                tracing::info!(not_after = credentials.not_after, "certificate renewed");
                self.credentials = Arc::new(credentials);
                self.renewals.ended();
                None
            }
            Done::Renewed(Err(error)) => {
                tracing::warn!(%error, not_after = self.credentials.not_after, "the certificate was not renewed");
                self.renewals.ended();
                None
            }
        }
    }

    /// Has the certificate renewed on the open stream when it is time.
    fn renew(&mut self) {
        if !self.renewals.begin(&self.credentials) {
            return;
        }
        let session = self.dialer.session().and_then(|(epoch, _)| self.streams.get(&epoch));
        let Some(held) = session else { return self.renewals.ended() };
        let orders = held.orders.clone();
        let (credentials, done) = (Arc::clone(&self.credentials), self.done.clone());
        self.tasks.spawn_until_cancelled("renew", async move {
            let renewed = renewal::on_stream(credentials, &orders).await;
            let _ = done.send(Done::Renewed(renewed)).await;
        });
    }

    /// Every stream was told to close; waits for them, then closes the drivers.
    async fn go_down(self, mut signals: Signals) {
        let down = async {
            let grace = FINISH_WITHIN + Duration::from_secs(3);
            if let Err(unfinished) = self.stream_tasks.wait(grace).await {
                tracing::warn!(%unfinished, "streams that did not end in time");
            }
            if let Err(unfinished) = self.cache.close_all(CLOSE_WITHIN).await {
                tracing::warn!(%unfinished, "database drivers that did not close in time");
            }
        };
        tokio::select! {
            () = down => {}
            _ = signals.reached(Request::Immediate) => {}
        }
        // What is left owes nothing.
        let _ = self.tasks.stop(Duration::from_secs(1)).await;
        tracing::info!("spoke stopped");
    }
}

/// Whether a dial ended because the hub's certificate was signed by someone else.
fn is_strange(reason: &str) -> bool {
    ["BadSignature", "UnknownIssuer"].iter().any(|fault| reason.contains(fault))
}

fn say(report: &Report) {
    match report {
        Report::NotPersisted => {
            tracing::warn!("the session counter cannot be written; it lives in memory only");
        }
        Report::TwoDaemons(pause) => {
            let pause_ms = pause.as_secs_f64() * 1e3;
            tracing::error!(pause_ms, "two daemons use the identity of this spoke");
        }
        Report::RedirectLimit => tracing::error!("redirect limit reached"),
    }
}
