//! The port for spokes: bound before the authority that it serves is saved, and then as the store says.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};

use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;

use super::settings::host;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A port that was bound for an authority which is not saved yet. Dropped, it is free again.
#[derive(Debug)]
pub struct Bound {
    port: u16,
    /// None when the port is the one that is listened at already.
    socket: Option<TcpListener>,
}

#[derive(Debug, Default)]
struct Held {
    port: Option<u16>,
    /// Until the accept loop takes it.
    socket: Option<TcpListener>,
}

/// The port for spokes of this node.
pub struct Listener {
    bind: String,
    held: Mutex<Held>,
    changed: watch::Sender<u64>,
}

impl Listener {
    /// Not bound yet. `bind` is an address without a port.
    pub fn new(bind: String) -> Self {
        Self { bind, held: Mutex::default(), changed: watch::Sender::new(0) }
    }

    /// Binds a port, and listens to nobody yet.
    pub fn bind(&self, port: u16) -> io::Result<Bound> {
        if self.port() == Some(port) {
            return Ok(Bound { port, socket: None });
        }
        let address = SocketAddr::new(host(&self.bind).unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), port);
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Bound { port, socket: Some(socket.into()) })
    }

    /// Listens at a port that was bound, in place of the former one.
    pub fn adopt(&self, bound: Bound) {
        if bound.socket.is_some() {
            *self.held.lock() = Held { port: Some(bound.port), socket: bound.socket };
            self.changed.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    /// Listens no more.
    pub fn close(&self) {
        *self.held.lock() = Held::default();
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// The port that is listened at.
    pub fn port(&self) -> Option<u16> {
        self.held.lock().port
    }

    /// The socket, for whoever accepts on it, once.
    pub fn take(&self) -> Option<TcpListener> {
        self.held.lock().socket.take()
    }

    /// Changes of the port.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}
