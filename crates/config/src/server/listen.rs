//! The listeners of a replica: bound all or none, Unix sockets first, and only then accepting.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::readiness::Answer;
use holdfast_net::serve::{Listener, Options, Server, Service, WriteStall};
use holdfast_net::server_tls::{ClientCertificate, ServerTls, TlsFiles};
use holdfast_net::unix_socket::{self, OwnedPath, UnixOptions};
use holdfast_ops::Tasks;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::StartError;
use crate::api::{Api, Probes, Scrape};
use crate::config::{ClientAuth, ConfigSettings, ListenerSettings};
use crate::load::listeners::mode_of;

/// From the first byte of a request to the end of its headers.
const HEADER: Duration = Duration::from_secs(10);
/// Silence between two requests.
const IDLE: Duration = Duration::from_secs(60);
/// Connections of a listener for probes or metrics.
const FEW: usize = 256;
/// Descriptors beside those of streams.
const OTHERS: u64 = 512;

/// What was bound.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Bound {
    /// A TCP address, with the port that was taken.
    Tcp(std::net::SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// All listeners.
pub(super) struct Listeners {
    /// Bound and not yet accepting, each with what answers there.
    waiting: Vec<Waiting>,
    bound: Vec<Bound>,
    paths: Vec<OwnedPath>,
    servers: Vec<Server>,
    tls: Vec<Arc<ServerTls>>,
    options: Options,
}

struct Waiting {
    listener: Listener,
    tls: Option<Arc<ServerTls>>,
    purpose: Purpose,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Purpose {
    Api,
    Probes,
    Metrics,
}

impl Listeners {
    /// Binds everything, Unix sockets first.
    pub(super) async fn bind(settings: &ConfigSettings) -> Result<Self, StartError> {
        raise_file_limit(settings.limits.streams_total);
        let connections = match settings.limits.connections {
            0 => Semaphore::MAX_PERMITS,
            some => some as usize,
        };
        let options = Options {
            room: Arc::new(Semaphore::new(connections)),
            header: HEADER,
            idle: Some(IDLE),
            write_stall: WriteStall::new(settings.watch.write_stall.get()),
        };
        let (waiting, bound, paths) = (Vec::new(), Vec::new(), Vec::new());
        let mut all = Self { waiting, bound, paths, servers: Vec::new(), tls: Vec::new(), options };
        match all.bind_all(settings).await {
            Ok(()) => Ok(all),
            Err(error) => {
                all.unlink();
                Err(error)
            }
        }
    }

    async fn bind_all(&mut self, settings: &ConfigSettings) -> Result<(), StartError> {
        // Files are read before anything is bound.
        let tcp = settings.listener.iter().filter(|listener| listener.kind != "unix");
        let tcp = tcp.map(|listener| Ok((listener.addr.as_deref().unwrap_or_default(), tls_of(listener)?)));
        let tcp = tcp.collect::<Result<Vec<_>, StartError>>()?;
        for listener in settings.listener.iter().filter(|listener| listener.kind == "unix") {
            let (socket, path) = unix_socket::bind(&unix_options(listener)?).await?;
            self.bound.push(Bound::Unix(path.path().to_owned()));
            self.paths.push(path);
            self.waiting.push(Waiting { listener: Listener::Unix(socket), tls: None, purpose: Purpose::Api });
        }
        for (addr, tls) in tcp {
            self.tls.extend(tls.clone());
            self.bind_tcp(addr, tls, Purpose::Api).await?;
        }
        for (addr, purpose) in
            [(&settings.probe.addr, Purpose::Probes), (&settings.metrics.addr, Purpose::Metrics)]
        {
            if let Some(addr) = addr {
                self.bind_tcp(addr, None, purpose).await?;
            }
        }
        Ok(())
    }

    async fn bind_tcp(
        &mut self,
        addr: &str,
        tls: Option<Arc<ServerTls>>,
        purpose: Purpose,
    ) -> Result<(), StartError> {
        let fail = |error| StartError::Bind(addr.to_owned(), error);
        let listener = TcpListener::bind(addr).await.map_err(fail)?;
        self.bound.push(Bound::Tcp(listener.local_addr().map_err(fail)?));
        self.waiting.push(Waiting { listener: Listener::Tcp(listener), tls, purpose });
        Ok(())
    }

    /// Begins to accept everywhere.
    pub(super) fn accept(
        &mut self,
        api: &Arc<Api>,
        ready: watch::Receiver<Answer>,
        scrape: Arc<dyn Fn() -> String + Send + Sync>,
        tasks: &Tasks,
    ) -> Result<(), StartError> {
        for (waiting, bound) in self.waiting.drain(..).zip(&self.bound) {
            let few = || Options { room: Arc::new(Semaphore::new(FEW)), ..self.options.clone() };
            let (service, options, name): (Arc<dyn Service>, _, _) = match waiting.purpose {
                Purpose::Api => (Arc::clone(api) as Arc<dyn Service>, self.options.clone(), "api"),
                Purpose::Probes => (Arc::new(Probes(ready.clone())), few(), "probes"),
                Purpose::Metrics => (Arc::new(Scrape(Arc::clone(&scrape))), few(), "metrics"),
            };
            tracing::info!(listener = %bound, serves = name, tls = waiting.tls.is_some(), "listening");
            let group = tasks.child(name);
            let server = Server::start_with(waiting.listener, waiting.tls, service, options, &group);
            self.servers.push(server.map_err(|error| StartError::Bind(bound.to_string(), error))?);
        }
        Ok(())
    }

    pub(super) fn bound(&self) -> &[Bound] {
        &self.bound
    }

    pub(super) fn tls(&self) -> Vec<Arc<ServerTls>> {
        self.tls.clone()
    }

    /// What a reload changes of them.
    pub(super) fn reloadable(&self) -> (Vec<Arc<ServerTls>>, WriteStall) {
        (self.tls.clone(), self.options.write_stall.clone())
    }

    /// Open connections.
    pub(super) fn open(&self) -> usize {
        self.servers.iter().map(Server::open).sum()
    }

    pub(super) fn leave(&self) {
        self.servers.iter().for_each(Server::leave);
    }

    pub(super) fn unlink(&self) {
        self.paths.iter().for_each(OwnedPath::remove);
    }

    pub(super) fn stop_accepting(&self) {
        self.servers.iter().for_each(Server::stop_accepting);
    }

    pub(super) fn cut(&self) {
        self.servers.iter().for_each(Server::cut);
    }
}

fn tls_of(listener: &ListenerSettings) -> Result<Option<Arc<ServerTls>>, StartError> {
    let Some(tls) = &listener.tls else { return Ok(None) };
    let files = TlsFiles { cert: tls.cert.clone(), key: tls.key.clone(), client_ca: tls.client_ca.clone() };
    let clients = match tls.client_auth {
        ClientAuth::None => ClientCertificate::None,
        ClientAuth::Request => ClientCertificate::Request,
        ClientAuth::Require => ClientCertificate::Require,
    };
    Ok(Some(ServerTls::load_for(files, clients)?))
}

fn unix_options(listener: &ListenerSettings) -> Result<UnixOptions, StartError> {
    let path = listener.path.clone().unwrap_or_default();
    let unknown = |what, name: &str| StartError::Owner(path.display().to_string(), what, name.to_owned());
    let owner = match listener.owner.as_deref() {
        None => None,
        Some(name) => {
            let known = || nix::unistd::User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
            Some(name.parse().ok().or_else(known).ok_or_else(|| unknown("user", name))?)
        }
    };
    let group = match listener.group.as_deref() {
        None => None,
        Some(name) => {
            let known = || nix::unistd::Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
            Some(name.parse().ok().or_else(known).ok_or_else(|| unknown("group", name))?)
        }
    };
    let mode = listener.mode.as_deref().and_then(mode_of).unwrap_or(0o600);
    Ok(UnixOptions { mode, owner, group, takeover: listener.takeover, path })
}

/// Lets the process open as many descriptors as it may, and says when that is too few.
fn raise_file_limit(streams: u32) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
    let needed = u64::from(streams) + OTHERS;
    if hard < needed {
        tracing::warn!(
            limit = hard,
            needed,
            "the limit of open files is below limits.streams_total and some more"
        );
    }
}
