//! The hub process: wiring, signals, and the phases of going down.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::shutdown::{Effect, Event, Phase, Shutdown, Timing};
use holdfast_net::serve::Server;
use holdfast_net::server_tls::{ServerTls, TlsError, TlsFiles};
use holdfast_ops::shutdown::{Request, Signals};
use holdfast_ops::{MonoClock, Tasks, exit};
use tokio::net::TcpListener;

use crate::api::Api;
use crate::barrier::seal::SealError;
use crate::config::HubConfig;
use crate::node::files::{DataDir, DataDirError};
use crate::node::raft::RaftBackend;
use crate::node::{Node, Shared};

/// How often open connections are counted while they drain.
const COUNT_EVERY: Duration = Duration::from_millis(20);
/// How long background tasks may take to end after everything else has.
const STOP: Duration = Duration::from_secs(2);

/// Why a hub cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data directory belongs to another process, or cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The seal on the disk cannot be used.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address of the configuration cannot be read; validation lets none through.
    #[error("{0:?} is not an address with a port")]
    Address(String),
    /// The API's address cannot be bound.
    #[error("cannot listen on {0}")]
    Bind(String, #[source] std::io::Error),
    /// Signal handlers cannot be installed.
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
}

impl StartError {
    /// The exit code of the process.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::DataDir(_) | Self::Tls(_) | Self::Address(_) => exit::CONFIG,
            _ => exit::FAILED,
        }
    }
}

/// A running hub.
pub struct Hub {
    api: Arc<Api>,
    http: Server,
    tls: Option<Arc<ServerTls>>,
    tasks: Tasks,
}

impl Hub {
    /// Starts a hub: locks its data, binds its API, unseals itself where it can.
    pub async fn start(config: HubConfig, tasks: &Tasks) -> Result<Self, StartError> {
        let config = Arc::new(config);
        let tls = api_tls(&config)?;
        let dir = DataDir::open(&config.data_dir)?;
        let listen = &config.api.listen;
        let listener = TcpListener::bind(listen).await.map_err(|e| StartError::Bind(listen.clone(), e))?;
        let bound = listener.local_addr().map_err(|e| StartError::Bind(listen.clone(), e))?;
        let address = config.address(bound, parse(&config.cluster.listen)?);
        let backend = Arc::new(RaftBackend::new(&config));
        let node =
            Node::new(Shared { config: Arc::clone(&config), backend, dir, address, tasks: tasks.clone() })?;
        let api = Api::new(Arc::clone(&node));
        let http = Server::start(listener, tls.clone(), api.clone(), tasks, "api")
            .map_err(|e| StartError::Bind(listen.clone(), e))?;
        tracing::info!(node = %config.node_id, api = %bound, cluster = %config.cluster.listen, "listening");
        crate::label::start(&node, &config.kubernetes, &config.node_id, tasks);
        node.start().await;
        Ok(Self { api, http, tls, tasks: tasks.clone() })
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        self.api.node()
    }

    /// The address of the API.
    pub fn address(&self) -> SocketAddr {
        self.http.address()
    }

    /// Reads TLS files and opens audit files again.
    pub fn reload(&self) {
        if let Some(tls) = &self.tls
            && let Err(error) = tls.reload()
        {
            tracing::error!(%error, "the TLS files cannot be used; the former ones stay");
        }
        if let Some(running) = self.node().running() {
            running.hub.audit.reopen();
        }
    }

    /// Serves until it is told to go down, then goes down through its phases. An error is a component that failed.
    pub async fn serve(self, mut signals: Signals) -> Result<(), holdfast_ops::tasks::Failure> {
        let mut reloads = signals.reloads();
        loop {
            tokio::select! {
                failure = self.tasks.failed() => {
                    self.wipe();
                    return Err(failure);
                }
                _ = signals.reached(Request::Graceful) => break,
                Ok(()) = reloads.changed() => self.reload(),
            }
        }
        self.go_down(&mut signals).await;
        match self.tasks.failure() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// The phases: hand over, not ready, stop accepting, drain, wipe keys.
    async fn go_down(&self, signals: &mut Signals) {
        let clock = MonoClock::new();
        let mut machine = Shutdown::new(Timing::default());
        let (mut effects, mut events) = (Vec::new(), vec![Event::Signal]);
        let mut hurry = false;
        loop {
            // First, since a phase that waits for connections would end at once if it knew of none.
            machine.on(clock.now(), Event::Open(self.open()), &mut effects);
            for event in events.drain(..) {
                machine.on(clock.now(), event, &mut effects);
            }
            for effect in std::mem::take(&mut effects) {
                if self.perform(effect, hurry, &mut events).await {
                    return;
                }
            }
            if !events.is_empty() {
                continue;
            }
            tokio::select! {
                _ = signals.reached(Request::Immediate), if !hurry => {
                    hurry = true;
                    events.push(Event::Signal);
                }
                () = clock.sleep_until(machine.next_deadline()) => events.push(Event::Tick),
                () = tokio::time::sleep(COUNT_EVERY) => {}
            }
        }
    }

    /// Performs one effect; true at the end.
    async fn perform(&self, effect: Effect, hurry: bool, events: &mut Vec<Event>) -> bool {
        match effect {
            Effect::HandOver => {
                if let Some(running) = self.node().running() {
                    running.hand_over().await;
                }
                events.push(Event::HandedOver);
            }
            Effect::Enter(phase) => {
                if phase == Phase::NotReady {
                    self.api.set_draining();
                }
                tracing::info!(phase = phase.name(), "going down");
            }
            Effect::TellStreams => {
                if let Some(running) = self.node().running() {
                    crate::relay::leave::tell(&running.hub, "hub node shutting down");
                }
            }
            Effect::CloseListeners => self.http.stop_accepting(),
            Effect::Cut => self.http.cut(),
            Effect::WipeKeys if hurry => self.wipe(),
            Effect::WipeKeys => self.node().seal().await,
            Effect::Exit => {
                if !hurry && let Err(error) = self.tasks.stop(STOP).await {
                    tracing::debug!(%error, "tasks were cut");
                }
                return true;
            }
        }
        false
    }

    /// Connections of clients and streams of spokes.
    fn open(&self) -> usize {
        let streams = self.node().running().map_or(0, |running| running.hub.spokes.open_streams());
        self.http.open() + streams
    }

    fn wipe(&self) {
        if let Some(running) = self.node().running() {
            running.wipe();
        }
    }
}

/// Runs a hub until a signal ends it.
pub async fn run(config: HubConfig) -> Result<u8, StartError> {
    holdfast_ops::core_dump::forbid();
    let tasks = Tasks::new("hub");
    let signals = Signals::listen(&tasks).map_err(StartError::Signals)?;
    let hub = Hub::start(config, &tasks).await?;
    match hub.serve(signals).await {
        Ok(()) => Ok(exit::OK),
        // The panic itself was logged where it happened.
        Err(_) => Ok(exit::FAILED),
    }
}

fn api_tls(config: &HubConfig) -> Result<Option<Arc<ServerTls>>, TlsError> {
    let tls = &config.api.tls;
    let (Some(cert), Some(key)) = (&tls.cert, &tls.key) else { return Ok(None) };
    let files = TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: tls.client_ca.clone() };
    ServerTls::load(files).map(Some)
}

fn parse(text: &str) -> Result<SocketAddr, StartError> {
    text.parse().map_err(|_| StartError::Address(text.to_owned()))
}
