//! The spoke port of an unsealed node: bound as the store says, connections accepted and ended.
//!
//! What must hold: the port is open on every unsealed node for as long as there is an authority, whoever leads; who
//! connects proves its name before anything is read; a name that was denied is gone within a second.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::SpokeName;
use holdfast_net::pings::Pings;
use holdfast_net::stall::Stalling;
use holdfast_ops::Tasks;
use holdfast_proto::relay::v1::spoke_gateway_server::SpokeGatewayServer;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tower_service::Service as _;

use super::authority::Authority;
use super::gateway::{Gateway, Session, denied_status};
use super::identity::Endpoint;
use super::settings::MAX_FRAME;
use crate::hub::Hub;

/// A TLS handshake must be done within this time.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections at once; one more waits in the listener's backlog.
const MAX_CONNECTIONS: usize = 16_384;
/// Streams on one connection: the spoke's, a renewal, and one more while it moves.
const MAX_STREAMS: u32 = 8;
/// A spoke that pings faster is cut off; a little less than the 5 s that it may, for the way.
const LEAST_PING: Duration = Duration::from_millis(4500);
/// How long after a first failed bind the port is tried again, and after later ones.
const SOON: Duration = Duration::from_millis(250);
const AGAIN: Duration = Duration::from_secs(2);

/// How often it is looked where spokes may dial the other nodes.
const LOOK: Duration = Duration::from_secs(5);

/// How long a connection that is ended may take over what is left to send.
const LINGER: Duration = Duration::from_millis(150);

/// What one open port needs.
struct Port {
    hub: Arc<Hub>,
    acceptor: TlsAcceptor,
    tasks: Tasks,
    room: Arc<Semaphore>,
}

/// Keeps the port as the store says, until `tasks` is cancelled.
pub async fn run(hub: Arc<Hub>, tasks: Tasks) {
    let mut authority = hub.relay.authority.watch();
    let mut listener = hub.relay.listener.watch();
    let mut accepting: Option<CancellationToken> = None;
    let mut failures = 0_u32;
    loop {
        authority.mark_unchanged();
        listener.mark_unchanged();
        let settled = settle(&hub, &tasks, &mut accepting);
        failures = if settled.is_ok() { 0 } else { failures.saturating_add(1) };
        note(&hub, settled, failures);
        end_denied(&hub);
        tell_hosts(&hub);
        let retry = async {
            match failures {
                0 => std::future::pending().await,
                1 => tokio::time::sleep(SOON).await,
                _ => tokio::time::sleep(AGAIN).await,
            }
        };
        tokio::select! {
            () = tasks.cancelled() => return,
            changed = authority.changed() => if changed.is_err() { return },
            changed = listener.changed() => if changed.is_err() { return },
            () = retry => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// The hub's certificate is for the places where the nodes say that spokes dial them.
fn tell_hosts(hub: &Hub) {
    let endpoints = hub.spokes.endpoints();
    let hosts = endpoints.iter().filter_map(|text| Endpoint::parse(text).ok()).map(|endpoint| endpoint.host);
    hub.relay.tell_hosts(hosts.collect());
}

/// Opens, moves or closes the port. Where the store cannot be read now, what is open stays so: only a store that says
/// that there is no relay ends anything.
fn settle(hub: &Arc<Hub>, tasks: &Tasks, accepting: &mut Option<CancellationToken>) -> io::Result<()> {
    let draining = hub.spokes.is_draining();
    let wanted = hub.relay.authority.port();
    if (draining || matches!(wanted, Ok(None)))
        && let Some(accepting) = accepting.take()
    {
        accepting.cancel();
        hub.relay.listener.close();
    }
    match wanted {
        Ok(None) => {
            let gone = || Status::unavailable("there is no relay any more");
            hub.spokes.live_streams().iter().for_each(|stream| hub.spokes.end(stream, gone()));
            Ok(())
        }
        _ if draining => Ok(()),
        Ok(Some(port)) => open(hub, tasks, port, accepting),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Opens the port, or moves to it.
fn open(
    hub: &Arc<Hub>,
    tasks: &Tasks,
    port: u16,
    accepting: &mut Option<CancellationToken>,
) -> io::Result<()> {
    let relay = &hub.relay;
    if relay.listener.port() != Some(port) {
        relay.listener.adopt_quietly(relay.listener.bind(port)?);
    }
    let Some(socket) = relay.listener.take() else { return Ok(()) };
    if let Some(former) = accepting.take() {
        former.cancel();
    }
    let made = || Ok((relay.authority.tls().map_err(io::Error::other)?, TcpListener::from_std(socket)?));
    // The socket is gone with the failure: whoever tries again has to bind, and nobody may be told of an open port.
    let (tls, listener) = made().inspect_err(|_: &io::Error| relay.listener.close_quietly())?;
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let open = Port { hub: Arc::clone(hub), acceptor: TlsAcceptor::from(tls), tasks: tasks.clone(), room };
    let stop = tasks.token().child_token();
    tasks.spawn("spoke-accept", accept(listener, Arc::new(open), stop.clone()));
    *accepting = Some(stop);
    tracing::info!(port, "spokes are taken");
    Ok(())
}

/// The first failure may be that of a port which is bound for an authority that is being made.
fn note(hub: &Hub, settled: io::Result<()>, failures: u32) {
    let error = settled.err().map(|error| error.to_string()).unwrap_or_default();
    if failures == 2 {
        tracing::error!(error, "the port for spokes is not brought up to date; it is tried again");
    }
    hub.spokes.note(&hub.spokes.own, "", &error);
}

/// Ends the streams of spokes whose name was denied, those that take nothing new too; none while it cannot be read who was.
fn end_denied(hub: &Hub) {
    let Ok(denied) = hub.relay.authority.denied() else { return };
    for stream in hub.spokes.live_streams() {
        if denied.contains_key(&stream.spoke) {
            hub.spokes.end(&stream, denied_status(&stream.spoke));
        }
    }
}

async fn accept(listener: TcpListener, port: Arc<Port>, stop: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = one(&listener, &port.room) => accepted,
        };
        match accepted {
            Ok((stream, address, slot)) => {
                let own = Arc::clone(&port);
                port.tasks.spawn("spoke-connection", async move {
                    serve(&own, stream, address).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a spoke failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn one(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let slot = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, slot))
}

async fn serve(port: &Port, stream: TcpStream, address: SocketAddr) {
    // Small messages that somebody waits for.
    let _ = stream.set_nodelay(true);
    let handshake = timeout(HANDSHAKE, port.acceptor.accept(stream));
    let handshake = tokio::select! {
        done = handshake => done,
        () = port.tasks.cancelled() => return,
    };
    let stream = match handshake {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%address, %error, "a handshake of a spoke failed"),
        Err(_) => return tracing::debug!(%address, "a handshake of a spoke took too long"),
    };
    let (_, tls) = stream.get_ref();
    let Some((spoke, cert_not_after)) =
        tls.peer_certificates().and_then(|chain| chain.first()).and_then(|cert| identity(cert))
    else {
        return;
    };
    let cut = CancellationToken::new();
    let session = Session { spoke, cert_not_after, address, cut: cut.clone() };
    let server = SpokeGatewayServer::new(Gateway::new(Arc::clone(&port.hub)))
        .max_decoding_message_size(MAX_FRAME)
        .max_encoding_message_size(MAX_FRAME);
    let calls = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(session.clone());
        let mut server = server.clone();
        async move { server.call(request).await }
    });
    let settings = &port.hub.spokes.settings;
    let (interval, patience) = (settings.keepalive_interval.get(), settings.keepalive_timeout.get());
    let connection = http2::Builder::new(Streams(port.tasks.clone()))
        .timer(TokioTimer::new())
        .keep_alive_interval(interval)
        .keep_alive_timeout(patience)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(2 << 20)
        .serve_connection(
            TokioIo::new(Stalling::new(Pings::new(stream, LEAST_PING), interval + patience)),
            calls,
        );
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = cut.cancelled() => {
            // What was said last may still lie in a buffer.
            connection.as_mut().graceful_shutdown();
            timeout(LINGER, connection).await.unwrap_or(Ok(()))
        }
        () = port.tasks.cancelled() => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(%address, %error, "a connection of a spoke ended");
    }
}

/// Whose certificate it is, and when it ends.
fn identity(cert: &[u8]) -> Option<(SpokeName, i64)> {
    let name = Authority::spoke_name(cert)?;
    let (_, parsed) = x509_parser::parse_x509_certificate(cert).ok()?;
    Some((name, parsed.validity().not_after.timestamp()))
}

/// Runs the streams of HTTP/2 connections as owned tasks.
#[derive(Clone)]
struct Streams(Tasks);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn("spoke-stream", future);
    }
}
