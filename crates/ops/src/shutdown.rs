//! Signals of the operating system as values, for the shells that walk through the phases of going down.
//!
//! The first SIGTERM or SIGINT asks for a graceful end, the second one for an end at once, a third one says so again; SIGHUP
//! asks to read certificates and log files again.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::tasks::Tasks;

/// What the operator asked for so far. It only grows.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Request {
    /// Nothing: serve.
    #[default]
    Serve,
    /// Go down through all phases.
    Graceful,
    /// Skip to the end.
    Immediate,
    /// A third time: even the end takes too long.
    Again,
}

/// Receivers of what the signals ask for.
#[derive(Clone, Debug)]
pub struct Signals {
    request: watch::Receiver<Request>,
    reload: watch::Receiver<u64>,
}

impl Signals {
    /// Starts listening for signals; without this call they end the process as usual.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn listen(tasks: &Tasks) -> std::io::Result<Self> {
        let handlers = Handlers {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
        };
        let (request_out, request) = watch::channel(Request::Serve);
        let (reload_out, reload) = watch::channel(0);
        tasks.spawn_until_cancelled("signals", handlers.run(request_out, reload_out));
        Ok(Self { request, reload })
    }

    /// Requests that a caller makes instead of the system: for tests, and for several daemons in one process.
    pub fn manual() -> (watch::Sender<Request>, Self) {
        let (ask, request) = watch::channel(Request::Serve);
        let (_, reload) = watch::channel(0);
        (ask, Self { request, reload })
    }

    /// What was asked for so far.
    pub fn request(&self) -> Request {
        *self.request.borrow()
    }

    /// A channel that follows the request.
    pub fn watch(&self) -> watch::Receiver<Request> {
        self.request.clone()
    }

    /// A channel that changes with each SIGHUP.
    pub fn reloads(&self) -> watch::Receiver<u64> {
        self.reload.clone()
    }

    /// Resolves when at least `wanted` was asked for. For ever pending once the listener is gone without that.
    pub async fn reached(&mut self, wanted: Request) -> Request {
        // Read out first: what the channel hands out must not be held across an await.
        let reached = self.request.wait_for(|request| *request >= wanted).await.map(|request| *request);
        match reached {
            Ok(request) => request,
            Err(_) => std::future::pending().await,
        }
    }
}

struct Handlers {
    term: Signal,
    int: Signal,
    hup: Signal,
}

impl Handlers {
    async fn run(mut self, request: watch::Sender<Request>, reload: watch::Sender<u64>) {
        loop {
            let name = tokio::select! {
                Some(()) = self.term.recv() => "SIGTERM",
                Some(()) = self.int.recv() => "SIGINT",
                Some(()) = self.hup.recv() => {
                    tracing::info!("SIGHUP: reading certificates and log files again");
                    reload.send_modify(|count| *count += 1);
                    continue;
                }
                else => return,
            };
            request.send_modify(|asked| {
                *asked = match *asked {
                    Request::Serve => Request::Graceful,
                    Request::Graceful => Request::Immediate,
                    Request::Immediate | Request::Again => Request::Again,
                };
                tracing::info!(signal = name, request = ?*asked, "going down");
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    fn send(signal: &str) {
        let pid = std::process::id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    #[tokio::test]
    async fn the_second_signal_skips_to_the_end_and_hup_only_reloads() {
        let tasks = Tasks::new("test");
        let mut signals = Signals::listen(&tasks).unwrap();
        let within = Duration::from_secs(10);
        let mut reloads = signals.reloads();
        send("-HUP");
        tokio::time::timeout(within, reloads.changed()).await.unwrap().unwrap();
        assert_eq!(signals.request(), Request::Serve);
        send("-TERM");
        let first = tokio::time::timeout(within, signals.reached(Request::Graceful)).await.unwrap();
        assert_eq!(first, Request::Graceful);
        send("-INT");
        let second = tokio::time::timeout(within, signals.reached(Request::Immediate)).await.unwrap();
        assert_eq!(second, Request::Immediate);
        tasks.stop(within).await.unwrap();
    }
}
