//! A replica: everything put together, reloads, and the way down.
//!
//! What must hold: nothing accepts before everything is bound, and what was bound is undone when something is not; a
//! configuration counts as a whole or not at all; probes say no before any listener or stream is touched.

mod gauges;
mod inside;
mod listen;
mod reload;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::leaving::{Effect, Event, Leaving, Phase, Timing};
use holdfast_core::readiness::Answer;
use holdfast_net::server_tls::TlsError;
use holdfast_net::unix_socket::UnixError;
use holdfast_ops::shutdown::{Request, Signals};
use holdfast_ops::tasks::TaskHandle;
use holdfast_ops::{MonoClock, Tasks, exit};
use tokio::sync::watch;

use self::inside::Inside;
pub use self::listen::Bound;
use self::listen::Listeners;
use self::reload::Reloads;
use crate::api::{Api, Parts, World};
use crate::audit::Audit;
use crate::clock::{Clock, SystemClock};
use crate::config::WatchSettings;
use crate::fanout::board::Board;
use crate::fanout::hub::{Hub, HubSettings};
use crate::fanout::resume::Boot;
use crate::load::{Configuration, Overrides};
use crate::metrics::Meters;
use crate::ratelimit::Limits;
use crate::upstream::BuildError;
use crate::upstream::engine::{Engine, Setup};
use crate::upstream::hops::Hops;

/// How often what is open is counted on the way down.
const COUNT_EVERY: Duration = Duration::from_millis(10);
/// The longest wait for upstream tasks, of the five seconds for winding up.
const STOP: Duration = Duration::from_secs(3);
/// The longest wait for audit lines to be written.
const FLUSH: Duration = Duration::from_secs(1);

/// Why a replica cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A file of credentials holds none.
    #[error("{0}")]
    Empty(String),
    /// A key file cannot be used.
    #[error(transparent)]
    Key(#[from] crate::load::key_file::KeyError),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An upstream cannot be used.
    #[error(transparent)]
    Upstream(#[from] BuildError),
    /// A Unix socket cannot be bound.
    #[error(transparent)]
    Unix(#[from] UnixError),
    /// A user or group of a socket does not exist.
    #[error("listener {0}: there is no {1} {2:?}")]
    Owner(String, &'static str, String),
    /// An address cannot be bound.
    #[error("cannot listen on {0}")]
    Bind(String, #[source] std::io::Error),
    /// The audit file cannot be opened.
    #[error("the audit cannot be written")]
    Audit(#[source] std::io::Error),
    /// Signal handlers cannot be installed.
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
}

impl StartError {
    /// The exit code of the process.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Empty(_) | Self::Key(_) | Self::Tls(_) | Self::Upstream(_) | Self::Owner(..) => {
                exit::CONFIG
            }
            Self::Unix(UnixError::Served(_) | UnixError::Foreign(_)) => exit::CONFIG,
            _ => exit::LOCAL,
        }
    }
}

/// Where a configuration comes from, to be read again.
#[derive(Clone, Debug)]
pub struct Source {
    /// A file or a directory.
    pub path: PathBuf,
    /// What the command line adds.
    pub overrides: Overrides,
}

/// A running replica.
pub struct Replica {
    core: Arc<Core>,
    listeners: Listeners,
    reloads: Reloads,
    tasks: Tasks,
}

/// What requests, reloads and the way down share.
pub(crate) struct Core {
    pub(crate) api: Arc<Api>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) hub: Hub,
    pub(crate) audit: Arc<Audit>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) meters: Meters,
    pub(crate) inside: Arc<Inside>,
    pub(crate) hops: Arc<Hops>,
}

impl Replica {
    /// Binds everything, starts everything, then accepts.
    ///
    /// # Errors
    /// When anything of it is impossible; nothing is left behind then.
    pub async fn start(
        configuration: Arc<Configuration>,
        source: Source,
        tasks: &Tasks,
    ) -> Result<Self, StartError> {
        if let Some(empty) = configuration.authenticator.empty().first() {
            return Err(StartError::Empty(empty.problem().what));
        }
        let mut listeners = Listeners::bind(&configuration.settings).await?;
        let started = Core::start(&configuration, &listeners, tasks);
        let core = match started {
            Ok(core) => Arc::new(core),
            Err(error) => {
                listeners.unlink();
                return Err(error);
            }
        };
        let scrape: Arc<dyn Fn() -> String + Send + Sync> = {
            let (core, tls) = (Arc::downgrade(&core), listeners.tls());
            Arc::new(move || core.upgrade().map(|core| gauges::render(&core, &tls)).unwrap_or_default())
        };
        core.inside.render_with(Arc::clone(&scrape));
        listeners.accept(&core.api, core.engine.readiness(), scrape, tasks)?;
        let reloads = Reloads::new(source, configuration, listeners.reloadable());
        Ok(Self { core, listeners, reloads, tasks: tasks.clone() })
    }

    /// What was bound, in the order of the configuration.
    pub fn bound(&self) -> &[Bound] {
        self.listeners.bound()
    }

    /// What `/v1/readyz` says.
    pub fn readiness(&self) -> watch::Receiver<Answer> {
        self.core.engine.readiness()
    }

    /// Serves until it is told to go down, then goes down through its phases. Returns the exit code.
    pub async fn serve(mut self, signals: Signals) -> u8 {
        let grace = self.reloads.current().settings.drain_grace.get();
        let mut machine = Leaving::new(Timing::with_grace(grace));
        let mut effects = Vec::new();
        machine.on(MonoClock.now(), Event::Started, &mut effects);
        effects.clear();
        let mut walk = Walk { signals: signals.watch(), seen: Request::Serve };
        let (mut hangups, mut watching) = (signals.reloads(), self.reloads.watch());
        let failed = loop {
            tokio::select! {
                failure = self.tasks.failed() => break Some(failure),
                () = walk.asked() => break None,
                Ok(()) = hangups.changed() => self.reload(&mut machine).await,
                () = watching.changed() => {
                    if self.reloads.has_changed(&self.tasks).await {
                        self.reload(&mut machine).await;
                    }
                    watching = self.reloads.watch();
                }
                () = self.reloads.rule_ends() => self.core.hub.judge_again().await,
            }
        };
        let code = self.go_down(machine, walk).await;
        if failed.is_some() || self.tasks.failure().is_some() { exit::FAILED } else { code }
    }

    async fn reload(&mut self, machine: &mut Leaving) {
        if self.reloads.run(&self.core, &self.tasks).await {
            machine.set_grace(self.reloads.current().settings.drain_grace.get());
        }
    }

    async fn go_down(&self, mut machine: Leaving, mut walk: Walk) -> u8 {
        let clock = MonoClock::new();
        let (mut event, mut effects, mut wound_up) = (Event::Signal, Vec::new(), None);
        loop {
            // First, since a phase that waits for what is open would end at once if it knew of nothing.
            machine.on(clock.now(), self.open(), &mut effects);
            machine.on(clock.now(), event, &mut effects);
            for effect in std::mem::take(&mut effects) {
                if let Some(code) = self.perform(effect, &mut wound_up) {
                    return code;
                }
            }
            event = tokio::select! {
                () = walk.asked() => Event::Signal,
                () = done(&mut wound_up) => Event::WoundUp,
                () = clock.sleep_until(machine.next_deadline()) => Event::Tick,
                () = tokio::time::sleep(COUNT_EVERY) => Event::Tick,
            };
        }
    }

    fn open(&self) -> Event {
        Event::Open { streams: self.core.hub.open(), requests: self.listeners.open() }
    }

    /// Performs one effect; the exit code at the end.
    fn perform(&self, effect: Effect, wound_up: &mut Option<TaskHandle<()>>) -> Option<u8> {
        match effect {
            Effect::Enter(phase) => {
                if phase.is_draining() {
                    self.core.engine.drain();
                }
                tracing::info!(phase = name_of(phase), "going down");
            }
            Effect::TellToGo { within } => {
                self.core.api.leave();
                self.core.hub.tell_to_go(within);
                self.listeners.leave();
            }
            Effect::EndStreams => self.core.hub.end(),
            Effect::CutStreams => self.core.hub.cut(),
            Effect::UnlinkSockets => self.listeners.unlink(),
            Effect::StopAccepting => self.listeners.stop_accepting(),
            Effect::AbortRequests => self.listeners.cut(),
            Effect::WindUp => {
                let core = Arc::clone(&self.core);
                *wound_up = Some(self.tasks.spawn("wind-up", async move {
                    core.engine.stop(STOP).await;
                    let _ = core.audit.close(FLUSH).await;
                }));
            }
            Effect::RefuseStart => {}
            Effect::Exit(code) => {
                self.listeners.cut();
                return Some(code);
            }
        }
        None
    }
}

const fn name_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Serving => "serving",
        Phase::Draining(_) => "draining",
        Phase::EndingStreams(_) => "ending streams",
        Phase::Finishing(_) => "finishing",
        Phase::WindingUp(_) => "winding up",
        Phase::Stopped => "stopped",
    }
}

/// The signals that are still to be told.
struct Walk {
    signals: watch::Receiver<Request>,
    seen: Request,
}

impl Walk {
    /// Resolves with each signal, one at a time, also when several came before this looked.
    async fn asked(&mut self) {
        let seen = self.seen;
        if self.signals.wait_for(|asked| *asked > seen).await.is_err() {
            return std::future::pending().await;
        }
        self.seen = match seen {
            Request::Serve => Request::Graceful,
            Request::Graceful => Request::Immediate,
            Request::Immediate | Request::Again => Request::Again,
        };
    }
}

/// Resolves once, when the task that was begun is done.
async fn done(task: &mut Option<TaskHandle<()>>) {
    match task {
        Some(running) => {
            let _ = running.wait().await;
            *task = None;
        }
        None => std::future::pending().await,
    }
}

impl Core {
    fn start(
        configuration: &Arc<Configuration>,
        listeners: &Listeners,
        tasks: &Tasks,
    ) -> Result<Self, StartError> {
        let (settings, meters, clock) =
            (&configuration.settings, Meters::default(), Arc::new(SystemClock::default()));
        let node = settings.node_id.clone().unwrap_or_default();
        let fleet_key = inside::fleet_key(settings)?;
        let audit = Audit::open(&settings.audit, &node, tasks, meters.audit_dropped.clone());
        let audit = Arc::new(audit.map_err(StartError::Audit)?);
        let (board, boot, limits) =
            (Arc::new(Board::default()), Boot::random(), Limits::new(&settings.limits));
        let hops = Hops::new(boot.as_str());
        hops.apply(configuration);
        let (meter, builder) = (Arc::new(gauges::Attempts(meters.clone())), crate::upstream::builder(&hops));
        let setup = Setup { clock: Arc::clone(&clock) as Arc<dyn Clock>, meter, builder, ..Setup::default() };
        let engine = Arc::new(Engine::start(configuration, Arc::clone(&board), tasks, setup)?);
        let hub = Hub::start(
            Arc::clone(&board),
            boot,
            hub_settings(&settings.watch),
            meters.clone(),
            &tasks.child("streams"),
        );
        meters.generation.set(1);
        let inside = Arc::new(Inside::new(
            node,
            clock.now().wall,
            listeners.bound().to_vec(),
            Arc::clone(&engine),
            fleet_key,
        ));
        let parts = Parts {
            board,
            hub: hub.clone(),
            meters: meters.clone(),
            audit: Arc::clone(&audit),
            limits: Arc::clone(&limits),
            ready: engine.readiness(),
            boot,
            hops: Arc::clone(&hops),
            clock,
            status: Arc::clone(&inside) as Arc<dyn crate::api::StatusSource>,
        };
        let api = Api::new(parts, World { generation: 1, configuration: Arc::clone(configuration) });
        Ok(Self { api, engine, hub, audit, limits, meters, inside, hops })
    }
}

/// What streams take from the settings.
pub(crate) fn hub_settings(watch: &WatchSettings) -> HubSettings {
    let max_age = watch.max_age.get();
    HubSettings {
        heartbeat: watch.heartbeat.get(),
        write_stall: watch.write_stall.get(),
        max_age: (!max_age.is_zero()).then_some(max_age),
        redate: watch.redate.get(),
    }
}

/// Runs a replica until a signal ends it; the exit code.
///
/// # Errors
/// When it cannot start.
pub async fn run(configuration: Arc<Configuration>, source: Source) -> Result<u8, StartError> {
    holdfast_ops::core_dump::forbid();
    let tasks = Tasks::new("config");
    let signals = Signals::listen(&tasks).map_err(StartError::Signals)?;
    let replica = Replica::start(configuration, source, &tasks).await?;
    notify_systemd("READY=1");
    let code = replica.serve(signals).await;
    Ok(code)
}

/// Tells systemd, where it asked to be told.
fn notify_systemd(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = std::os::unix::net::UnixDatagram::unbound().and_then(|socket| {
        notify_address(Path::new(&path)).and_then(|to| socket.send_to_addr(state.as_bytes(), &to))
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "systemd could not be told");
    }
}

/// A path, or a name in the abstract namespace after an `@`.
fn notify_address(path: &Path) -> std::io::Result<std::os::unix::net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::net::SocketAddr;
    match path.as_os_str().as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    }
}
