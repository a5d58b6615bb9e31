//! The port for spokes: bound before the authority that it serves is saved, and then as the store says.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;

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
    /// None when the port is listened at already, or about to be by somebody else.
    socket: Option<TcpListener>,
    held: Arc<Mutex<Held>>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.socket.take().is_some() {
            self.held.lock().reserved = None;
        }
    }
}

#[derive(Debug, Default)]
struct Held {
    port: Option<u16>,
    /// Bound by somebody who will say so once what it is for is saved: whoever sees the saved part before that must
    /// not take the port for lost.
    reserved: Option<u16>,
    /// Until the accept loop takes it.
    socket: Option<TcpListener>,
}

/// The port for spokes of this node.
pub struct Listener {
    bind: String,
    held: Arc<Mutex<Held>>,
    changed: watch::Sender<u64>,
}

impl Listener {
    /// Not bound yet. `bind` is an address without a port.
    pub fn new(bind: String) -> Self {
        Self { bind, held: Arc::default(), changed: watch::Sender::new(0) }
    }

    /// Binds a port, and listens to nobody yet.
    pub fn bind(&self, port: u16) -> io::Result<Bound> {
        // Held while the socket is made: of two who want the same port, one gets it and the other one knows.
        let mut held = self.held.lock();
        if held.port == Some(port) || held.reserved == Some(port) {
            return Ok(Bound { port, socket: None, held: Arc::clone(&self.held) });
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
        held.reserved = Some(port);
        Ok(Bound { port, socket: Some(socket.into()), held: Arc::clone(&self.held) })
    }

    /// Listens at a port that was bound, in place of the former one.
    pub fn adopt(&self, bound: Bound) {
        if self.adopt_quietly(bound) {
            self.changed.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    /// The same by whoever watches for changes, and would else wake itself. Whether there is a new socket to take.
    pub fn adopt_quietly(&self, mut bound: Bound) -> bool {
        let Some(socket) = bound.socket.take() else { return false };
        *self.held.lock() = Held { port: Some(bound.port), reserved: None, socket: Some(socket) };
        true
    }

    /// Listens no more.
    pub fn close(&self) {
        self.close_quietly();
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// The same by whoever watches for changes.
    pub fn close_quietly(&self) {
        *self.held.lock() = Held::default();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn a_port_is_bound_once_and_free_again_when_nobody_took_it() {
        let listener = Listener::new("127.0.0.1".into());
        let port = free_port();
        let bound = listener.bind(port).unwrap();
        let beside = listener.bind(port).unwrap();
        listener.adopt(beside);
        assert_eq!((listener.port(), listener.take().is_some()), (None, false), "it is not ours to adopt");
        drop(bound);
        TcpListener::bind(("127.0.0.1", port)).unwrap();

        let bound = listener.bind(port).unwrap();
        listener.adopt(bound);
        assert_eq!(listener.port(), Some(port));
        listener.adopt(listener.bind(port).unwrap());
        assert!(listener.take().is_some() && listener.take().is_none());
        // Whoever took the socket lost it: once that is said, the port is bound anew.
        listener.close_quietly();
        assert_eq!(listener.port(), None);
        assert!(listener.adopt_quietly(listener.bind(port).unwrap()) && listener.take().is_some());
    }
}
